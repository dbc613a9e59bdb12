"""A real agent in a separate process, with provider `local`, and a client of its line protocol."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest

from eos_agent.init import native as init_program
from eos_agent.kernel import cgroups
from eos_agent.wire import operations
from eos_agent.wire.protocol import DAEMON_TOKEN_KEY, encode_request, new_request_id
from tests import in_namespace, native, warm_python

for _module in warm_python.AGENT.modules:
    importlib.import_module(_module)  # an ordinary user may not be able to read the checkout

TOKEN = "t0ken-of-the-test"
WAIT_S = 60


class Failed(Exception):
    """An error envelope."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(json.dumps(error))
        self.kind: str = error["kind"]
        self.message: str = error["message"]
        self.details: dict[str, Any] = error["details"]

    @property
    def reason(self) -> str:
        return str(self.details.get("reason"))


def refused(call: Callable[[], object]) -> Failed:
    """Return the error envelope of a call that must fail."""
    with pytest.raises(Failed) as caught:
        call()
    return caught.value


class Connection:
    """One connection to the agent's unix socket, kept open between requests."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def line(self, raw: bytes) -> dict[str, Any]:
        self.socket.sendall(raw)
        answer: dict[str, Any] = json.loads(self.file.readline())
        return answer

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class Agent:
    """An agent that a test can start, call, stop, kill, and start again on the same store."""

    def __init__(
        self,
        folder: str,
        base: Mapping[str, bytes] | None = None,
        *,
        uid: int | None = None,
        **config: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.uid = uid
        self.workspace = os.path.join(folder, "ws")
        self.store = os.path.join(folder, "st")
        self.sandbox_id = "eos-test"
        self.log: list[str] = []
        self.prefix: list[str] = []  # a program that executes the agent
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._reader: threading.Thread | None = None
        self._stderr: Any = None
        tree = os.path.join(folder, "base", "B000001-base")
        for path in (tree, self.workspace, self.store):
            os.makedirs(path)
        for name, content in (base or {}).items():
            path = os.path.join(tree, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
            if content.startswith(b"#!"):
                os.chmod(path, 0o755)
        self.settings: dict[str, Any] = {
            "format": 1,
            "sandbox_id": self.sandbox_id,
            "provider": "local",
            "workspace_root": self.workspace,
            "layer_stack_root": self.store,
            "scratch_root": os.path.join(folder, "scratch"),
            "runtime_dir": os.path.join(folder, "run"),
            "base_root_hash": hashlib.sha256(b"base").hexdigest(),
            "base_dir": os.path.join(folder, "base"),
            "token_file": os.path.join(folder, "token"),
            "tcp_host": "127.0.0.1",
            "tcp_port": 0,
            "http_host": "127.0.0.1",
            "http_port": 0,
            "socket_path": os.path.join(folder, "run", "s"),
            "pid_path": os.path.join(folder, "run", "pid"),
            "endpoint_path": os.path.join(folder, "run", "endpoint.json"),
            "rootfs": None,
            "hidden_paths": [],
            "image_env": [],
            "container_env": {},
            "path": os.environ.get("PATH"),
            "private_dirs": [
                self.store,
                os.path.join(folder, "scratch"),
                os.path.join(folder, "run"),
                os.path.join(folder, "base"),
            ],
            "config": config,
        }
        with open(self.settings["token_file"], "w") as file:
            file.write(TOKEN + "\n")
        if uid is not None:
            for directory, names, files in os.walk(folder):
                for name in [".", *names, *files]:
                    os.chown(os.path.join(directory, name), uid, uid)
        self.settings_path = os.path.join(folder, "agent.json")

    def start(self, *, wait: bool = True) -> Agent:
        with open(self.settings_path, "w") as file:
            json.dump(self.settings, file)
        readable, writable = os.pipe()
        argv = ["serve", "--settings", self.settings_path]
        if self.uid is None:
            self._process = warm_python.WarmPopen(
                warm_python.AGENT,
                [*self.prefix, sys.executable, "-c", native.STARTER, native.program() or "", *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=writable,
            )
            self._pid = self._process.pid
        else:
            self._pid = self._forked(argv, writable)
        os.close(writable)
        ready = threading.Event()
        self._stderr = os.fdopen(readable, "r", errors="replace")

        def read() -> None:
            for line in self._stderr:
                self.log.append(line.rstrip("\n"))
                if '"event": "ready"' in line:
                    ready.set()
            ready.set()

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        if wait:
            assert ready.wait(WAIT_S), self.log
            assert any('"event": "ready"' in line for line in self.log), "\n".join(self.log)
        return self

    def _forked(self, argv: list[str], stderr: int) -> int:
        """The same as an ordinary user, who may not be able to read the interpreter's or the checkout's
        folder.
        """
        from eos_agent.__main__ import main

        assert self.uid is not None
        pid = in_namespace.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(stderr, 2)
                sys.stderr = os.fdopen(2, "w", closefd=False)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                init_program.find = native.program
                in_namespace.become(self.uid)
                os.chdir("/")
                code = main(argv)
            finally:
                os._exit(code)
        return pid

    @property
    def pid(self) -> int:
        return self._pid

    def _wait(self) -> int:
        if self._process is not None:
            code = self._process.wait(WAIT_S)
            self._process = None
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        assert self._reader is not None
        self._reader.join(WAIT_S)
        self._stderr.close()
        self._pid = 0
        return code

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        os.kill(self._pid, signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._wait()

    def wait(self) -> int:
        return self._wait()

    def close(self) -> None:
        if self._pid:
            self.kill()
        cgroups.reap(os.path.join(self.settings["runtime_dir"], "cgroups.json"), self.sandbox_id, self.store)
        if self.uid is not None:  # work/work has mode 000, and belongs to that uid
            in_namespace.call("user", _open_up, self.folder)

    # Requests

    def connect(self) -> Connection:
        return Connection(self.settings["socket_path"])

    def line(self, op: str, request_id: str | None = None, /, **args: Any) -> bytes:
        return encode_request(op, args, request_id=request_id or new_request_id(), sandbox_id=self.sandbox_id)

    def call(self, op: str, /, request_id: str | None = None, **args: Any) -> dict[str, Any]:
        """Send one request over a new connection; an error envelope raises Failed."""
        connection = self.connect()
        try:
            answer = connection.line(self.line(op, request_id, **args))
        finally:
            connection.close()
        if "error" in answer:
            raise Failed(answer["error"])
        operation = operations.find(op)
        assert operation is not None and not set(answer) - {field.name for field in operation.result}, (
            op,
            answer,
        )
        return answer

    def tcp(self, raw: bytes) -> dict[str, Any]:
        """Send one raw line over TCP and half-close the connection; return the reply."""
        with open(self.settings["endpoint_path"]) as file:
            host, port = json.load(file)["tcp"]
        with (
            socket.create_connection((host, port), WAIT_S) as connection,
            connection.makefile("rb") as reader,
        ):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            answer: dict[str, Any] = json.loads(reader.readline())
            assert reader.read() == b""
            return answer

    def tcp_call(self, op: str, token: str = TOKEN, **args: Any) -> dict[str, Any]:
        raw = encode_request(
            op, args, request_id="r-1", sandbox_id=self.sandbox_id, **{DAEMON_TOKEN_KEY: token}
        )
        return self.tcp(raw)

    def session(self, **args: Any) -> str:
        return str(self.call("create_workspace_session", **args)["workspace_session_id"])

    def read(self, path: str, **args: Any) -> str:
        return str(self.call("file_read", path=path, **args)["content"])

    def run(self, cmd: str, session: str | None = None, **args: Any) -> dict[str, Any]:
        if session is not None:
            args["workspace_session_id"] = session
        return self.call("exec_command", cmd=cmd, **{"yield_time_ms": 20_000, **args})  # pyright: ignore[reportArgumentType]

    def version(self) -> int:
        return int(self.call("layerstack")["manifest_version"])


def _open_up(folder: str) -> None:
    for directory, names, _files in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                os.chmod(os.path.join(directory, name), 0o755, follow_symlinks=False) if not os.path.islink(
                    os.path.join(directory, name)
                ) else None


@contextlib.contextmanager
def running(
    folder: str, base: Mapping[str, bytes] | None = None, *, uid: int | None = None, **config: Any
) -> Generator[Agent]:
    """A started agent; killed at the end if the test did not stop it."""
    agent = Agent(folder, base, uid=uid, **config)
    try:
        yield agent.start()
    finally:
        agent.close()


Starter = Callable[..., Agent]
"""The fixture `start_agent`."""


def agent_of(start_agent: Starter, ordinary: bool, **runtime: Any) -> Agent:
    """An agent of root or of an ordinary user, with settings of section `runtime`."""
    return start_agent(uid=in_namespace.ORDINARY_UID if ordinary else None, runtime=runtime)
