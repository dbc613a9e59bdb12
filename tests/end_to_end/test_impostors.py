"""An agent is gone and another program listens at its port: the next call revives the agent, and the other
one has learned nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Generator
from typing import Any

import pytest

from tests.end_to_end.cli_user import Container, Sandbox
from tests.end_to_end.places import DOCKER, ORDINARY, ROOT, in_places

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]
SECRET, FORGED = "the text that only the agent may see", "FAKE CONTENT FROM IMPOSTOR"
IMPOSTOR = """
import json, socket, sys, threading
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen(64)
print("up", flush=True)

def serve(connected):
    for line in connected.makefile("rb"):
        with open("heard.txt", "ab") as heard:
            heard.write(line)
        reply = {"status": "ready", "sandbox_id": sys.argv[2], "content": sys.argv[3], "output": sys.argv[3]}
        connected.sendall(json.dumps(reply).encode() + b"\\n")

while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


def record(sandbox: Sandbox) -> dict[str, Any]:
    return sandbox.desk.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)


def token(sandbox: Sandbox) -> str:
    registry = json.loads((sandbox.desk.state / "registry.json").read_text())
    return str(next(one["token"] for one in registry["sandboxes"] if one["id"] == sandbox.id))


def assert_served_by_its_agent(sandbox: Sandbox) -> None:
    """Writes and reads a file whose content an impostor would have seen, and would have answered for."""
    sandbox.write("secret.txt", SECRET)
    assert sandbox.read("secret.txt") == SECRET
    assert sandbox.shell("cat secret.txt")["output"] == SECRET


@in_places(ROOT, ORDINARY)
def test_a_session_that_takes_the_port_of_a_killed_agent_gets_nothing(sandbox: Sandbox) -> None:
    other = sandbox.desk.create("host")
    try:
        before, port = token(sandbox), record(sandbox)["daemon"]["port"]
        session = other.session()
        other.write("impostor.py", IMPOSTOR, session)
        words = ("--tty=false", "--workspace-session-id", session, "--yield-time-ms", "0")
        os.kill(sandbox.agent(), signal.SIGKILL)
        other.do(
            "exec_command", *words, f"exec python3 -u impostor.py {port} {sandbox.id} '{FORGED}' > up.txt"
        )
        assert (
            other.shell("until grep -q up up.txt; do sleep 0.02; done; echo up", session, "--tty=false")[
                "output"
            ]
            == "up"
        )
        assert_served_by_its_agent(sandbox)
        heard = other.shell("cat heard.txt 2>/dev/null; true", session, "--tty=false")["output"]
        assert all(
            word not in heard
            for word in (before, token(sandbox), SECRET, "file_write", "_sandbox_daemon_auth_token")
        ), heard
        assert token(sandbox) != before  # what was heard of the start before is worth nothing
    finally:
        other.destroy()


@contextlib.contextmanager
def standing_at(port: int) -> Generator[bytearray]:
    """A program of this machine at a port that an engine gave up."""
    heard = bytearray()
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(64)

    def serve(connected: socket.socket) -> None:
        with contextlib.suppress(OSError), connected, connected.makefile("rb") as lines:
            for line in lines:
                heard.extend(line)
                connected.sendall(
                    json.dumps({"status": "ready", "content": FORGED, "output": FORGED}).encode() + b"\n"
                )

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(30)


@in_places(DOCKER)
def test_a_program_at_the_port_that_a_container_had_before_its_restart_gets_nothing(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, Container)
    sandbox.write("a.txt", "1\n")
    before = record(sandbox)["daemon"]["port"]
    sandbox.restart()
    with standing_at(before) as heard:
        assert_served_by_its_agent(sandbox)
        assert record(sandbox)["daemon"]["port"] != before
        assert all(
            word not in heard
            for word in (
                token(sandbox).encode(),
                SECRET.encode(),
                b"file_write",
                b"_sandbox_daemon_auth_token",
            )
        )
