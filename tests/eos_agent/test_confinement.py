"""Ways out of a session, and what must stay possible: one row each, tried for real in each kind of session."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
from collections.abc import Callable

import pytest

from eos_agent import harden, view
from eos_agent.harden import CAP_NUMBERS
from layerstack import linux

from . import attacks
from .box import Box, in_box
from .escapes import EVERYWHERE, ROWS

POWERS = {"local-root": ("root", "overlay"), "local-user": ("userns",), "shared": ("root", "overlay")}


def _nothing(*_args: object, **_options: object) -> None:
    """In the place of a protection that is left out."""


def _leave_dumpable() -> None:
    real = linux.prctl
    linux.prctl = lambda option, *args: 0 if (option, *args) == (linux.PR_SET_DUMPABLE, 0) else real(option, *args)


PROTECTIONS: dict[str, tuple[str, Callable[[], object]]] = {
    # what is left out: (a row that must notice, how)
    "own /dev": ("devices of the machine", lambda: setattr(view, "_dev", _nothing)),
    "own /run": ("list /run", lambda: setattr(view, "_run", _nothing)),
    "read-only /proc/sys": ("core_pattern", lambda: setattr(view, "_PROC_READ_ONLY", ())),
    "hidden folders": ("read the agent's token", lambda: setattr(view, "hide", _nothing)),
    "hidden sockets": ("connect to a socket outside the private folders", lambda: setattr(view, "_hide_socket", _nothing)),
    "Landlock": ("connect to an abstract socket", lambda: setattr(harden.Landlock, "restrict", _nothing)),
    "seccomp": ("unshare user", lambda: setattr(harden, "install_seccomp", _nothing)),
    "capset": ("chroot", lambda: setattr(linux, "capset", _nothing)),
    "not dumpable": ("trace pid 1", _leave_dumpable),
}


@functools.cache
def findings(kind: str, without: str = "") -> dict[str, str]:
    """Everything of the table for this kind of session, tried in one go; `without` one of the protections."""
    table = {name: row.attack for name, row in ROWS.items() if kind in row.where}

    def before_fork(top: str) -> None:
        for folder in (f"{top}/store/other/upper", f"{top}/home/.ssh"):
            os.makedirs(folder)
        for path in (f"{top}/store/other/upper/secret", f"{top}/private/token", f"{top}/home/.ssh/id", f"{top}/home/.netrc"):
            with open(path, "w") as f:
                f.write("secret")
        attacks.become_a_file_operation(table)
        if without:
            linux.unshare(linux.CLONE_NEWUTS)  # one of the attacks changes the name of the host, and here it may succeed
            PROTECTIONS[without][1]()

    async def scenario(box: Box) -> dict[str, str]:
        listening: list[socket.socket] = []
        abstract = f"eos-test-{os.getpid()}"
        engine = f"/var/tmp/eos-test-{os.getpid()}.sock"
        for address in (f"{box.top}/private/agent.sock", engine, "\0" + abstract):
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(address)
            sock.listen()
            listening.append(sock)
        try:
            other = await box.session("other")
            running = await other.start("exec sleep 1000")
            with open(f"/proc/{other.runner.pid}/task/{other.runner.pid}/children") as f:
                other_pid = int(f.read().split()[0])
            place = {
                "store": f"{box.top}/store",
                "home": f"{box.top}/home",
                "token": f"{box.top}/private/token",
                "agent_socket": f"{box.top}/private/agent.sock",
                "engine_socket": engine,
                "abstract": abstract,
                "other_pid": other_pid,
                "workspace": box.workspace,
            }
            live = await box.session("attacker")
            result, _ = await live.runner.file_op("attack", place)
            assert await other.runner.signal(running.key, signal.SIGCONT)
            return dict(json.loads(result["found"]))
        finally:
            os.unlink(engine)
            for sock in listening:
                sock.close()

    hidden = [] if kind != "shared" else ["TOP/store", "TOP/private"]
    form, provider = ("user" if kind == "local-user" else "trusted"), ("docker" if kind == "shared" else "local")
    parent = "/var/tmp" if kind != "shared" else None  # /tmp is private in local sessions: whatever lies there is hidden anyway
    return in_box(scenario, form=form, provider=provider, hidden=hidden, before_fork=before_fork, parent=parent)


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(k, n, marks=pytest.mark.needs(*POWERS[k])) for k in EVERYWHERE for n, row in ROWS.items() if k in row.where],
)
def test_every_row_of_the_table_comes_out_as_it_says(kind: str, name: str) -> None:
    found = findings(kind)[name]
    assert found.split(":")[0] in ROWS[name].expected, f"{name} in {kind}: {found}"


@pytest.mark.needs("root", "overlay")
@pytest.mark.parametrize("protection", PROTECTIONS)
def test_each_protection_is_noticed_when_it_is_left_out(protection: str) -> None:
    row = PROTECTIONS[protection][0]
    found = findings("local-root", without=protection)
    assert found[row].split(":")[0] not in ROWS[row].expected, f"without {protection}: {row} is still {found[row]}"


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.needs(*POWERS[k])) for k in EVERYWHERE])
def test_a_command_has_exactly_the_capabilities_of_the_list_and_cannot_gain_any(kind: str) -> None:
    async def scenario(box: Box) -> str:
        live = await box.session()
        return (await live.run("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; id -u")).out

    form, provider = ("user" if kind == "local-user" else "trusted"), ("docker" if kind == "shared" else "local")
    words = in_box(scenario, form=form, provider=provider).split()
    status = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    full = sum(1 << n for n in CAP_NUMBERS.values())
    assert (int(status["CapInh:"], 16), int(status["CapAmb:"], 16)) == (0, 0)
    for name in ("CapPrm:", "CapEff:", "CapBnd:"):
        got = int(status[name], 16)
        assert got & ~full == 0 and got & sum(1 << CAP_NUMBERS[n] for n in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETFCAP"))
    assert (status["NoNewPrivs:"], status["Seccomp:"], words[-1]) == ("1", "2", "0")
