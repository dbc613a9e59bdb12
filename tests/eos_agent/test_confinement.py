"""Ways out of a session, and what must stay possible: one row each, tried for real in each kind of
session.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from agent_image import native_init
from eos_agent.init import mounts as view
from eos_agent.kernel import harden, machine_view, mountinfo
from eos_agent.kernel.harden import CAP_NUMBERS
from layerstack.kernel import syscalls
from tests import native

from . import attacks, escapes
from .bare_zygote import Box, in_box
from .confined import OF_BOXES, POWERS, findings, try_all


def _nothing(*_args: object, **_options: object) -> None:
    """In the place of a protection that is left out."""


def _leave_dumpable() -> None:
    real = syscalls.prctl
    syscalls.prctl = lambda option, *args: (
        0 if (option, *args) == (syscalls.PR_SET_DUMPABLE, 0) else real(option, *args)
    )


def _only_where_it_is_named() -> None:
    """Masks by mount point and path, as if no other mount could show the same."""
    real = machine_view._Composer._hidden_below  # pyright: ignore[reportPrivateUsage]

    def by_name(composer: Any, inside: str, here: mountinfo.Spot) -> list[str]:
        return real(composer, inside, here) if inside == "/" else []

    machine_view._Composer._hidden_below = by_name  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]


def _bind_instead() -> None:
    """The machine's root itself, read-only, in the place of an overlay of it."""
    machine_view._overlay = lambda lowerdirs, _attributes: mountinfo.clone(
        next(path for path in lowerdirs if path.startswith("/proc"))
    )  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage]


PROTECTIONS: dict[str, tuple[str, Callable[[], object]]] = {
    # what is left out: (a row that must notice, how)
    "own /dev": ("devices of the machine", lambda: setattr(view, "_dev", _nothing)),
    "own /run": ("list /run", lambda: setattr(view, "_run", _nothing)),
    "read-only /proc/sys": ("core_pattern", lambda: setattr(view, "_PROC_READ_ONLY", ())),
    "hidden folders": ("read the agent's token", lambda: setattr(mountinfo.Looking, "spots", lambda *_: [])),
    "hidden on each mount": ("read ~/.ssh by a second mount of the home", _only_where_it_is_named),
    "overlays": ("connect to a socket outside the private folders", _bind_instead),
    "families": (
        "socket AF_VSOCK",
        lambda: setattr(harden, "_only_families", lambda _machine, **_options: []),
    ),
    "Landlock": (
        "connect to an abstract socket of the machine",
        lambda: setattr(harden.Landlock, "restrict", _nothing),
    ),
    "seccomp": ("unshare user", lambda: setattr(harden, "install_seccomp", _nothing)),
    "no packet sockets": (
        "read the packets of others",
        lambda: setattr(harden, "_only_families", lambda _machine, **_options: []),
    ),
    "capset": ("chroot", lambda: setattr(syscalls, "capset", _nothing)),
    "not dumpable": ("trace pid 1", _leave_dumpable),
}


KINDS = [pytest.param(kind, marks=pytest.mark.needs(*powers)) for kind, powers in POWERS.items()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_the_table_comes_out_as_it_says(kind: str) -> None:
    assert escapes.wrong(kind, findings(kind).forked) == {}


@pytest.mark.needs("musl")
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_without_an_interpreter_gets_no_further_at_the_end_of_a_chain_of_shells_or_as_a_daemon(
    kind: str,
) -> None:
    found = findings(kind)
    plain = {name for name, row in escapes.rows_of(kind).items() if isinstance(row.attack, attacks.Plain)}
    assert len(plain & escapes.CALLS.keys()) >= 40 and len(plain & escapes.ESCAPES.keys()) >= 20
    for tried in (found.nested, found.daemon):
        assert tried.keys() == plain
        assert not {name: text for name, text in escapes.wrong(kind, tried).items() if name in plain}


@pytest.mark.needs("root", "overlay")
@pytest.mark.parametrize("protection", PROTECTIONS)
def test_each_protection_is_noticed_when_it_is_left_out(protection: str) -> None:
    row, tamper = PROTECTIONS[protection]
    assert row not in escapes.wrong("local-root", findings("local-root").forked)
    with native.chosen(
        "python" if row == "trace pid 1" else "native"
    ):  # the native one has a test of its own
        assert row in escapes.wrong("local-root", try_all("local-root", row, tamper).forked), (
            f"without {protection}"
        )


# capset(2) is not among them: the bounding set has taken the same capabilities when the program was executed
LINES = {
    "Landlock": "(ruleset >= 0 && syscall(SYS_landlock_restrict_self, ruleset, 0)) || ",
    "seccomp": '    if (prctl(PR_SET_SECCOMP, 2, &filter, 0, 0))\n        failed("harden");\n',
    "not dumpable": (
        "    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* no ptrace, no /proc/1/mem for a session's uid 0 */\n"
    ),
}
LOOKS = (
    "grep -h ^Seccomp /proc/self/status; grep -h ^CapPrm /proc/1/status; cat /proc/1/environ >/dev/null "
    "2>&1 && echo open; "
    "./connect NAME && echo connected"
)
CONNECT = """
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
int main(int argc, char **argv) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strcpy(to.sun_path + 1, argv[argc - 1]);
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&to, (socklen_t)(sizeof(sa_family_t) + 1 + strlen(argv[1]))) != 0;
}
"""  # noqa: E501


@pytest.mark.needs("root", "overlay", "cc")
def test_each_line_of_the_native_init_that_protects_is_noticed_when_it_is_left_out() -> None:
    name = f"eos-test-{os.getpid()}"

    def build(top: str) -> None:
        with open(f"{top}/connect.c", "w") as file:
            file.write(CONNECT)
        target = f"{top}/store/base/connect"
        for compiler in filter(None, map(shutil.which, native_init.COMPILERS)):
            if (
                subprocess.run(
                    [compiler, "-static", "-o", target, f"{top}/connect.c"], capture_output=True
                ).returncode
                == 0
            ):
                return
        raise AssertionError("no compiler")

    def look(left_out: str) -> str:
        async def scenario(box: Box) -> str:
            return (await (await box.session()).run(LOOKS.replace("NAME", name))).out

        with native.chosen("native", left_out):
            return in_box(scenario, before_fork=build)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        whole = look("")
        found = {protection: look(line) for protection, line in LINES.items()}
    filters = int(dict(line.split(":\t") for line in whole.splitlines() if "\t" in line)["Seccomp_filters"])
    assert (
        whole.startswith(f"Seccomp:\t2\nSeccomp_filters:\t{filters}\nCapPrm:\t")
        and "open" not in whole
        and "connected" not in whole
    )
    assert (
        f"Seccomp_filters:\t{filters - 1}\n" in found["seccomp"]
    )  # the one that counts inotify instances is set up before (inotify.py)
    assert all(f"Seccomp_filters:\t{filters}\n" in found[other] for other in LINES if other != "seccomp")
    assert "open" in found["not dumpable"]
    assert "connected" in found["Landlock"] or harden.Landlock.probe().abi < 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_has_exactly_the_capabilities_of_the_list_and_cannot_gain_any(kind: str) -> None:
    async def scenario(box: Box) -> str:
        live = await box.session()
        return (await live.run("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; id -u")).out

    namespace, provider, _ = OF_BOXES[kind]
    words = in_box(scenario, namespace=namespace, provider=provider).split()
    status = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    full = sum(1 << n for n in CAP_NUMBERS.values())
    assert (int(status["CapInh:"], 16), int(status["CapAmb:"], 16)) == (0, 0)
    for name in ("CapPrm:", "CapEff:", "CapBnd:"):
        got = int(status[name], 16)
        assert got & ~full == 0 and got & sum(
            1 << CAP_NUMBERS[n] for n in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETFCAP")
        )
    assert (status["NoNewPrivs:"], status["Seccomp:"], words[-1]) == ("1", "2", "0")
