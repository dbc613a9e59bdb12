"""Python programs that start in milliseconds: a process that has imported their modules forks each of them.

A program sees what it would see as a process of its own: its command line, environment, directory, streams;
its parent is the process that asked. Only the imports are done before. Programs whose start is the subject of
a test, and those of users who may not read the checkout, are started by subprocess.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 1 << 17
"""Of one request: a command line and an environment."""

ROOM = 4096
"""Bytes of a program's command line at most."""

LIKE = ("PYTHON", "LANG", "LC_")
"""Variables that an interpreter reads at its start: with other ones a program is no fork."""
ALIKE = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")

SERVER = '''
import ctypes, gc, importlib, json, os, runpy, socket, sys

CLONE_PARENT = 0x8000

def show(argv):
    """Write the command line over this process's own: code is filled up with spaces; other programs have it
    as one text, as setproctitle(3) shows it.
    """
    with open("/proc/self/stat", "rb") as file:
        start, end = (int(word) for word in file.read().rpartition(b")")[2].split()[45:47])
    words = [os.fsencode(word) for word in argv]
    room = end - start - sum(len(word) + 1 for word in words)
    assert room > 0, "the command line is too long"
    if argv[1] == "-c":
        words[2] += b" " * room
        text = b"".join(word + bytes(1) for word in words)
    else:
        text = b" ".join(words) + b" " * (room + 1)
    assert len(text) == end - start
    ctypes.memmove(start, text, len(text))

def wait():
    server = socket.socket(fileno=int(sys.argv[1]))
    from layerstack.kernel import syscalls
    for name in sys.argv[3:]:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a module has started a thread"
    gc.collect()
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(server, 1 << 17, 3)
        if not data:
            os._exit(0)
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = syscalls.clone(CLONE_PARENT)
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            server.close()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            return json.loads(data)
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for fd in fds:
            os.close(fd)
        server.send(str(pid).encode())

asked = wait()
os.environ.clear()
os.environ.update(asked["env"])
os.chdir(asked["cwd"])
show(asked["argv"])
kind, name, *rest = asked["argv"][1:] if asked["argv"][1] in ("-c", "-m") else ["", *asked["argv"][1:]]
sys.argv[:] = ["-c" if kind == "-c" else name, *rest]
sys.path[0] = "" if kind == "-c" else os.getcwd() if kind == "-m" else os.path.dirname(os.path.abspath(name))
if kind == "-c":
    exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
elif kind == "-m":
    runpy.run_module(name, run_name="__main__", alter_sys=True)
else:
    runpy.run_path(name, run_name="__main__")
'''


class WarmPython:
    """The process that forks; started at the first use. `modules`: what it imports."""

    def __init__(self, *modules: str) -> None:
        self.modules = modules
        self._socket: socket.socket | None = None
        self._owner = 0
        self._started: list[subprocess.Popen[bytes]] = []

    def fits(self, argv: Sequence[str], env: dict[str, str]) -> bool:
        """Return True if a fork is the same as a process of its own."""

        def read_at_start(names: dict[str, str]) -> dict[str, str]:
            return {n: value for n, value in names.items() if n.startswith(LIKE) and n not in ALIKE}

        here = os.geteuid() == 0 and argv[0] == sys.executable
        return here and read_at_start(env) == read_at_start(dict(os.environ))

    def fork(self, argv: Sequence[str], env: dict[str, str], cwd: str, fds: Sequence[int]) -> int:
        """Start a program as a child of this process; return its pid. fds: its standard streams."""
        if self._socket is None or self._owner != os.getpid():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            argv_of_server = [sys.executable, "-c", SERVER, str(theirs.fileno()), " " * ROOM, *self.modules]
            self._started.append(
                subprocess.Popen(argv_of_server, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            )
            theirs.close()
            self._socket, self._owner = ours, os.getpid()
            atexit.register(self._end, os.getpid())
        request = json.dumps({"argv": list(argv), "env": env, "cwd": cwd}).encode()
        assert len(request) <= MOST_BYTES, len(request)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self._socket.sendmsg([request], [rights])
        pid = int(self._socket.recv(64) or 0)
        assert pid > 0, f"the process that imports {' '.join(self.modules)} has ended"
        return pid

    def _end(self, owner: int) -> None:
        if self._socket is not None and os.getpid() == owner == self._owner:
            self._socket.close()
            self._started[-1].wait(60)


AGENT = WarmPython(
    *(
        f"eos_agent.{name}"
        for name in (
            "zygote.main",
            "init.setup",
            "sessions.commands",
            "serve.handlers",
            "http.http_server",
            "serve.server",
            "sessions.table",
            "files.head",
            "handles.environment",
            "base.pool",
            "kernel.container_isolation",
            "sessions.squash",
            "wire.proof",
            "__main__",
        )
    ),
    "asyncio",
    "layerstack.store",
    "layerstack.export.stream",
    "layerstack.kernel.xattrs",
    "layerstack.units.units",
)
"""For agents that run on this machine itself."""

MCP = WarmPython(
    "eos_mcp.mcp.app",
    "eos_mcp.mcp.event_loop",
    "eos_mcp.mcp.stdio",
    "eos_mcp.mcp.http",
    "eos_mcp.mcp.http_unproven",
    "eos_mcp.gateway_client.sync",
)
"""For MCP servers."""


class WarmPopen(subprocess.Popen[bytes]):
    """A Popen whose program is forked by `warm` where that is the same."""

    def __init__(self, warm: WarmPython, argv: Sequence[str], **how: Any) -> None:
        self.warm = warm
        super().__init__(list(argv), **how)

    def _execute_child(self, args: Any, *rest: Any) -> None:  # type: ignore[override]
        (_, _, _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite) = rest[:15]
        environment = dict(os.environ if env is None else env)
        if not self.warm.fits(args, environment):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        wanted = (p2cread, c2pwrite, errwrite)
        fds = [number if fd == -1 else fd for number, fd in enumerate(wanted)]
        try:
            self.pid = self.warm.fork(args, environment, os.fspath(cwd or os.getcwd()), fds)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
