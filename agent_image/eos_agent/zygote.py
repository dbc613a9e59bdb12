"""The agent's side of the forker of sessions, a single-threaded process that is started before anything else.

    agent (asyncio) --- control socket --- zygote --- clone(NEWNS|NEWPID|NEWIPC[|NEWNET]) --- runner, pid 1 of the session
        \\______________________ one socket per session (frames of channel.py; session_runner.py) ____________________/

The zygote imports all that a runner needs, then only forks and reaps. It dies with the agent and the runners die with it
(PR_SET_PDEATHSIG, and the end of their socket). Whoever creates a session hands over a detached overlay mount; once `Runner.gone` is
resolved pid 1 was reaped, nothing of the session lives and the upperdir is free.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from eos_agent import channel
from eos_agent.cgroups import NONE, Groups
from eos_agent.freshness import Freshness
from eos_agent.inotify import INSTANCES
from eos_agent.link import Link, resolve
from eos_agent.neighbours import News
from eos_agent.session_group import SessionGroup
from eos_agent.session_runner import Runner, SessionSpec, Spawned, setup_failed


class HostSpec(NamedTuple):
    """What is the same for all sessions of a sandbox.

    hidden_paths are shown as empty folders; private_dirs (the local provider's own state) too. rootfs: a directory that is the root of each
    session, or None for the root that the agent sees. terminals: most of one session; open_files: most of one process.
    """

    provider: str
    workspace_root: str
    hidden_paths: Sequence[str] = ("/eos",)
    private_dirs: Sequence[str] = ()
    rootfs: str | None = None
    runtime_dir: str = ""
    terminals: int = 64
    open_files: int = 65536
    init: str | None = None
    """The program of the native pid 1 (init_program.py), or None."""


def fork_zygote(host: HostSpec, groups: Groups = NONE) -> tuple[int, socket.socket]:
    """Fork the zygote: the first thing an agent does, while it has one thread. Returns its pid and the agent's end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        from eos_agent import forker

        forker.main(host, theirs, parent, groups)  # never returns
    theirs.close()
    return pid, ours


class Zygote:
    """The agent's handle of the forker."""

    def __init__(self, pid: int, sock: socket.socket, groups: Groups = NONE, *, local: bool = False) -> None:
        self.pid = pid
        self._freshness = Freshness(pid) if local else None
        self._news = News() if local else None
        self.groups = groups
        self.inotify_most = INSTANCES
        self.lost: asyncio.Future[str]
        self._sock = sock
        self._link: Link | None = None
        self._last_id = 0
        self._creating: dict[int, Runner] = {}
        self._runners: dict[int, Runner] = {}

    async def start(self) -> None:
        """Attach to the running loop. `lost` resolves when the forker died: no session survives it, and the agent should end."""
        self.lost = asyncio.get_running_loop().create_future()
        self._link = Link(self._sock, self._on_frame, self._on_end)

    async def create(self, spec: SessionSpec, mount_fd: int, *, timeout_s: float) -> Runner:
        """Make a session on a detached overlay mount. The caller closes `mount_fd` afterwards, whatever happened.

        Raises:
            OperationError: operation_failed, reason setup_failed, with step and errno in the details; nothing of the session lives then.
        """
        link = self._link
        if link is None or self.lost.done():
            raise setup_failed(spec, "zygote", "the process that makes sessions is gone")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._last_id += 1
        number = self._last_id
        runner = Runner(spec, ours, self._ask)
        runner.inotify_most = self.inotify_most
        if self._freshness is not None:
            runner.before_a_command = self._freshness.before_a_command
        self._creating[number] = runner
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    covered = [] if self._news is None else self._news.late()
                    await link.send({"op": "create", "id": number, "spec": list(spec), "covered": covered}, fds=[mount_fd, theirs.fileno()])
                except OSError as error:
                    self._creating.pop(number, None)
                    runner.reaped(str(error), failed_step="zygote", code=error.errno)
                finally:
                    theirs.close()
                await runner.started()
        except BaseException as error:
            await asyncio.shield(runner.abandon())
            if isinstance(error, TimeoutError):
                raise setup_failed(spec, "start", f"timed out, not ready after {timeout_s:g} s") from None
            raise
        return runner

    async def _ask(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        if self._link is None:
            raise BrokenPipeError(errno.EPIPE, "the process that makes sessions is gone")
        await self._link.send(message, fds=fds)

    async def close(self) -> None:
        """End every session and the zygote; returns when it was reaped."""
        for runner in list(self._runners.values()):
            await runner.terminate()
        if self._link is not None:
            self._link.close()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        loop.add_reader(pidfd, resolve, ended)
        try:
            await ended
            os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pass
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    def _on_frame(self, frame: channel.Frame) -> None:
        message = frame.message
        event = message.get("event")
        if event == "started":
            runner = self._creating.pop(message["id"], None)
            pidfd = frame.fds[0]
            if runner is None:
                os.close(pidfd)
                return
            self._runners[message["pid"]] = runner
            runner.group = SessionGroup(self.groups, message["leaf"])
            runner.forked(message["pid"], pidfd)
        elif event == "not_started":
            runner = self._creating.pop(message["id"], None)
            if runner is not None:
                runner.reaped(str(message.get("message")), failed_step=str(message["step"]), code=message.get("errno"))
        elif event == "exited":
            runner = self._runners.pop(message["pid"], None)
            if runner is not None:
                runner.reaped(_describe(message["status"]))

    def _on_end(self) -> None:
        if not self.lost.done():
            self.lost.set_result("the process that makes sessions is gone")
        for runner in self._creating.values():
            runner.reaped("was lost with the zygote")
        for runner in self._runners.values():
            runner.orphaned()
        self._creating.clear()
        self._runners.clear()


def _describe(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


__all__ = ["HostSpec", "Runner", "SessionSpec", "Spawned", "Zygote", "fork_zygote"]
