"""The table of escapes against sandboxes of the local provider: the program without an interpreter, with a
real agent, its token, its store.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from layerstack.kernel import syscalls
from tests.eos_agent import attacks, confined, escapes
from tests.processes import cmdline, pids

from .cli_user import Desk, Desks, Sandbox
from .manager_fixture import records

pytestmark = [pytest.mark.needs("overlay", "userns", "root", "uid", "musl")]
OTHER_TMP = "/tmp/eos-test-other"
KINDS = {
    ("root", "shared"): "local-root",
    ("ordinary", "shared"): "local-user",
    ("root", "isolated"): "local-isolated",
}


@contextlib.contextmanager
def listening(*addresses: str) -> Generator[None]:
    """Sockets that everybody may connect to; those with a path are unlinked at the end."""
    with contextlib.ExitStack() as undo:
        for address in addresses:
            sock = undo.enter_context(socket.socket(socket.AF_UNIX))
            sock.bind(address)
            sock.listen()
            if not address.startswith("\0"):
                undo.callback(os.unlink, address)
                os.chmod(address, 0o666)
        yield


@contextlib.contextmanager
def shown_again(*folders: str) -> Generator[list[str]]:
    """Each of them at a second place, by a bind mount; agents that are started meanwhile see it there."""
    with contextlib.ExitStack() as undo:
        places: list[str] = []
        for folder in folders:
            places.append(tempfile.mkdtemp(prefix="eos-test-again-", dir="/var/tmp"))
            undo.callback(os.rmdir, places[-1])
            syscalls.mount(folder, places[-1], None, syscalls.MS_BIND)
            undo.callback(syscalls.umount, places[-1], syscalls.MNT_DETACH)
        yield places


@contextlib.contextmanager
def by_other_names() -> Generator[str]:
    """A folder of sockets whose names the kernel does not list, and a FIFO that is read."""
    with (
        tempfile.TemporaryDirectory(prefix="eos-test-sockets-", dir="/var/tmp") as top,
        contextlib.ExitStack() as undo,
    ):
        os.chmod(top, 0o755)
        for sock in confined.by_other_names(f"{top}/s"):
            undo.enter_context(sock)
        undo.callback(os.close, os.open(f"{top}/s/fifo", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        yield f"{top}/s"


class Sessions(NamedTuple):
    attacker: str
    other: str


def _other(sandbox: Sandbox, session: str, abstract: str, secret: str) -> dict[str, Any]:
    """What the other session has, started by a command of it."""
    cmd = (
        f"touch of-another secret; echo x > {OTHER_TMP}; rm -f {OTHER_TMP}.sock; exec ./attacks serve "
        f"{abstract} {OTHER_TMP}.sock"
    )
    how = ("--yield-time-ms", "0", "--tty=false", "--env", json.dumps([f"SECRET={secret}"]))
    command = sandbox.do("exec_command", "--workspace-session-id", session, *how, cmd)
    port = ""
    while not port:
        lines = ("--command-session-id", command["command_session_id"], "--start-offset", "0", "--limit", "5")
        port = str(sandbox.do("read_command_lines", *lines)["output"]).strip()
    (pid,) = [
        pid for pid in pids() if cmdline(pid) == f"./attacks\0serve\0{abstract}\0{OTHER_TMP}.sock\0".encode()
    ]
    upper = sandbox.store / "sessions" / session / "upper/secret"
    assert upper.exists()
    return {
        "other_pid": pid,
        "other_port": int(port),
        "other_tmp": OTHER_TMP,
        "other_abstract": abstract,
        "upper": str(upper),
    }


def _kept(path: Path) -> tuple[int, int, int, bytes]:
    """All that a change of a file changes."""
    status = path.stat()
    return status.st_mode, status.st_nlink, status.st_ctime_ns, path.read_bytes()


@pytest.mark.parametrize(("who", "network"), KINDS)
def test_no_program_of_a_local_session_gets_to_the_store_the_agent_its_token_or_another_session(
    desk: Desks, who: str, network: str
) -> None:
    at, kind = desk(who), KINDS[who, network]
    program = at.give("w/attacks", "")
    program.write_bytes(confined.program())
    program.chmod(0o755)
    for name in (".ssh/id", ".netrc", ".git-credentials", ".claude.json", ".config/gh/hosts.yml"):
        at.give(name, "PRIVATE")
    at.make_state()
    with shown_again(str(at.state), "/") as (state_again, root_again), by_other_names() as sockets:
        _try_everything(at, kind, network, state_again, root_again, sockets)


def _try_everything(
    at: Desk, kind: str, network: str, state_again: str, root_again: str, sockets: str
) -> None:
    sandbox = at.create("host")
    folder, (record,) = at.state / "sandboxes" / sandbox.id, records(str(at.state))
    held = [
        str(path)
        for path in at.state.rglob("*")
        if path.is_file() and record["token"].encode() in path.read_bytes()
    ]
    base = sandbox.store / "base/B000001-base/attacks"
    real = (
        base if base.exists() else next(Path(at.env["XDG_CACHE_HOME"]).rglob("bases/*/**/attacks"))
    )  # where the agent alone mounts it
    number = os.getpid()
    engine, late, abstract = (
        f"/var/tmp/eos-test-{number}.sock",
        f"/var/tmp/eos-test-{number}-late.sock",
        f"eos-test-{number}",
    )
    place: dict[str, Any] = {
        "abstract": abstract,
        "workspace": str(at.workspace),
        "home": str(at.person.home),
        "store": str(sandbox.store),
        "base_file": str(real),
        "bundle": str(next(Path(at.env["XDG_CACHE_HOME"], "eos/bundles").glob("*/ld.so")).parent),
        "token": held[0],
        "agent_socket": str(next(path for path in folder.rglob("*") if path.is_socket())),
        "agent_port": record["daemon"]["port"],
        "engine_socket": engine,
        "late_socket": late,
        "sockets": sockets,
        "second_token": held[0].replace(str(at.state), state_again),
        "again_token": root_again + held[0],
        "again_key": f"{root_again}{at.person.home}/.ssh/id",
        "disk": os.stat(at.state).st_dev,
    }
    attacks.in_halves(place, "secret", f"secret-{os.urandom(8).hex()}")
    attacks.in_halves(place, "token_text", str(record["token"]))
    assert all(Path(place[name]).exists() for name in ("second_token", "again_token", "again_key"))
    before = _kept(real)
    with listening(engine, f"\0{abstract}"):
        sessions = Sessions(*(sandbox.session("--network-profile", network) for _ in range(2)))
        place |= _other(sandbox, sessions.other, f"{abstract}-other", place["secret"])
        lines = escapes.lines_of(kind, place) + "".join(
            f"token {n}\tread\t{path}\n" for n, path in enumerate(held)
        )
        sandbox.write("lines", lines, sessions.attacker)
        with listening(late):
            output = sandbox.shell("sh -c './attacks lines; true'", sessions.attacker, "--tty=false")[
                "output"
            ]
    found = confined.parse(output)
    assert len(held) >= 2 and {found.pop(f"token {n}") for n in range(len(held))} <= escapes.HIDDEN
    assert found.keys() == {
        name for name, row in escapes.rows_of(kind).items() if isinstance(row.attack, attacks.Plain)
    }
    wrong = {name: text for name, text in escapes.wrong(kind, found).items() if name in found}
    if str(at.person.home).startswith("/tmp/"):
        wrong.pop("write the home folder", None)  # it went to the session's own /tmp
        assert not (at.person.home / "eos-was-here").exists()
    assert not wrong
    assert _kept(real) == before
    sandbox.destroy()
