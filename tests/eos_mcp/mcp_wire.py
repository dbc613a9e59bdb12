"""Speak JSON-RPC with a server process over its pipes, byte by byte; every line that it writes must be
JSON-RPC.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import selectors
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from tests import warm_python

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mcp_fixture.py")
PATIENCE_S = 60.0  # for answers: a bound, not a measured time
END_S = 60.0  # for the end of a process whose tools would run for minutes

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "claude-code", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def initialize(request_id: int | str = 0, version: str = "2025-11-25") -> dict[str, Any]:
    params = {
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "claude-code", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params}


def discover(request_id: int | str = 0) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "server/discover", "params": {"_meta": META}}


def call(
    request_id: int | str,
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    modern: bool = False,
    **meta: Any,
) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": dict(arguments or {})}
    if modern or meta:
        params["_meta"] = {**(META if modern else {}), **meta}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


class Wire:
    """One server process; it ends with the block. `warm`: not a start of its own (tests/warm_python.py)."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.PIPE,
        warm: bool = True,
    ) -> None:
        environment = {**os.environ, **(env or {})}
        pipes: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process: subprocess.Popen[bytes]
        if warm:
            self.process = warm_python.WarmPopen(warm_python.MCP, argv, env=environment, **pipes)
        else:
            self.process = subprocess.Popen[bytes](argv, env=environment, **pipes)
        assert self.process.stdout is not None and self.process.stderr is not None
        self._out, self._buffer = self.process.stdout.fileno(), bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self.stderr: list[str] = []
        self._news = threading.Condition()
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._drain.join()
        self._selector.close()
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            if file is not None:
                file.close()

    def send(self, *messages: Mapping[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write(
                message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            )
        self.process.stdin.flush()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close_output(self) -> None:
        """The client's end of the server's standard output is gone."""
        assert self.process.stdout is not None
        self._selector.unregister(self._out)
        self.process.stdout.close()

    def output_is_full(self) -> None:
        """Wait until the unread pipe is full."""
        size = fcntl.fcntl(self._out, fcntl.F_GETPIPE_SZ)
        deadline = time.monotonic() + PATIENCE_S
        held = array.array("i", [0])
        while held[0] < size:
            fcntl.ioctl(self._out, termios.FIONREAD, held)
            assert time.monotonic() < deadline, "the pipe does not fill"
            threading.Event().wait(0.01)

    def receive(self) -> dict[str, Any]:
        """Return the next message."""
        deadline = time.monotonic() + PATIENCE_S
        while (end := self._buffer.find(b"\n")) < 0:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"no message; standard error: {self.stderr}")
            data = os.read(self._out, 1 << 20)
            if not data:
                raise EOFError(f"the server closed its output; standard error: {self.stderr}")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0", line
        return message

    def answers(self, count: int) -> dict[Any, dict[str, Any]]:
        """Return the next `count` answers by id."""
        found: dict[Any, dict[str, Any]] = {}
        while len(found) < count:
            message = self.receive()
            if "id" in message and "method" not in message:
                found[message["id"]] = message
        return found

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer; other messages that come before it are dropped."""
        self.send(message)
        while (answer := self.receive()).get("id") != message["id"]:
            pass
        return answer

    def open(self) -> None:
        """The handshake of the older era."""
        self.ask(initialize())
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def says(self, text: str) -> None:
        """Wait until standard error has a line with `text`."""
        with self._news:
            found = self._news.wait_for(lambda: any(text in line for line in self.stderr), PATIENCE_S)
        assert found, f"{text} not in standard error: {self.stderr}"

    def ends(self) -> int:
        """Wait for the exit code, for much less time than the tools would take."""
        code = self.process.wait(END_S)
        self._drain.join(END_S)
        return code

    def rest(self) -> list[dict[str, Any]]:
        """Return the unread standard output of an ended process."""
        messages: list[dict[str, Any]] = []
        try:
            while True:
                messages.append(self.receive())
        except EOFError:
            assert not self._buffer.strip(), bytes(self._buffer)
        return messages

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.stderr.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()


def fixture(gate: str = "-", *, env: Mapping[str, str] | None = None) -> Wire:
    """The fixture server over stdio."""
    return Wire([sys.executable, FIXTURE, "stdio", gate], env=env, warm=gate == "-")
