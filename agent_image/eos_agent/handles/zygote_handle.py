"""The agent's handle of the zygote, the single-threaded process that forks each session's init.

    agent (asyncio) --- control socket --- zygote --- clone(NEWNS|NEWPID|NEWIPC[|NEWNET]) --- init
        \\______________ one socket per session (ipc/frames.py; init_handle.py) ________________/

    init is pid 1 of the session.

The zygote imports all modules that an init needs; after that it only forks and reaps. It dies with the agent,
and the inits die with the zygote (PR_SET_PDEATHSIG, and the end of their socket). A session is created on a
detached overlay mount. Once `InitHandle.gone` is set, init was reaped, all processes of the session have
ended and its upperdir is not in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from eos_agent.base import log
from eos_agent.handles.freshness import Freshness
from eos_agent.handles.init_handle import ANSWER_S, InitHandle, setup_failed
from eos_agent.ipc import frames
from eos_agent.ipc.frame_socket import FrameSocket, resolve
from eos_agent.kernel.cgroups import NONE, Groups
from eos_agent.kernel.inotify_limit import INSTANCES
from eos_agent.kernel.session_cgroup import SessionGroup
from eos_agent.machine.neighbours import News
from eos_agent.zygote.specs import HostSpec, SessionSpec

NEWS_S = 1.0
"""Seconds between two checks for new gateways while sessions are open; each command start checks too."""
MASK_S = 10.0


def fork_zygote(host: HostSpec, groups: Groups = NONE) -> tuple[int, socket.socket]:
    """Fork the zygote, while the agent has one thread. Returns its pid and the agent's end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        from eos_agent.zygote import main

        main.main(host, theirs, parent, groups)  # never returns
    theirs.close()
    return pid, ours


class ZygoteHandle:
    """The agent's handle of the zygote."""

    def __init__(
        self,
        pid: int,
        sock: socket.socket,
        groups: Groups = NONE,
        *,
        news: News | None = None,
        answer_s: float = ANSWER_S,
        inotify_most: int = INSTANCES,
    ) -> None:
        """Make the handle of the zygote that `fork_zygote` has forked.

        Args:
            news: reports directories of new gateways (local provider only). Made before the fork, so that it
                also reports those that were registered after the zygote had read the register.
            answer_s, inotify_most: passed to the InitHandle of each session.
        """
        self.pid = pid
        self._freshness = None if news is None else Freshness(pid)
        self._news = news
        self._groups = groups
        self._answer_s, self._inotify_most = answer_s, inotify_most
        self.lost: asyncio.Future[str]
        self._sock = sock
        self._link: FrameSocket | None = None
        self._last_id = 0
        self._masked: set[str] = set()
        self._masking: dict[int, asyncio.Future[None]] = {}
        self._keeping: dict[int, asyncio.Future[None]] = {}
        self._writing: dict[int, asyncio.Future[str]] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._creating: dict[int, InitHandle] = {}
        self._inits: dict[int, InitHandle] = {}

    async def start(self) -> None:
        """Attach to the running loop. `lost` is set when the zygote has died: all sessions have died with it,
        and the agent should end.
        """
        self.lost = asyncio.get_running_loop().create_future()
        self._link = FrameSocket(self._sock, self._on_frame, self._on_end)
        if self._news is not None:
            self._watcher = asyncio.create_task(self._watch_news())

    async def _watch_news(self) -> None:
        """Mask the directories of new gateways in open sessions, whether or not a command starts."""
        while not self.lost.done():
            await asyncio.sleep(NEWS_S)
            if self._inits:
                with contextlib.suppress(OSError):
                    await self._mask_news()

    async def _mask_news(self) -> None:
        """Mask directories of other gateways in all sessions; those already masked are skipped."""
        late = [] if self._news is None else self._news.late()
        fresh = [folder for folder in late if folder not in self._masked]
        if self._masking:  # a command may not start before a mask in progress is complete
            await asyncio.wait(list(self._masking.values()), timeout=MASK_S)
        if not fresh or self._link is None:
            return
        self._masked.update(fresh)
        self._last_id += 1
        number, done = self._last_id, asyncio.get_running_loop().create_future()
        self._masking[number] = done
        try:
            await self._link.send({"op": "mask", "id": number, "paths": fresh})
            async with asyncio.timeout(MASK_S):
                await done
        except TimeoutError:
            log.log("neighbours_uncovered", paths=fresh)
        finally:
            self._masking.pop(number, None)

    async def _refresh_view(self) -> None:
        if self._freshness is not None:
            await self._freshness.before_command()
        await self._mask_news()

    async def keep_folders(self, pid: int) -> None:
        """Keep the own /tmp, /var/tmp and /dev/shm of a session, whose init has this pid and still runs, for
        the init that replaces it; `create` with `replaces`, or `release_folders`, follows.
        """
        if self._link is None or self.lost.done():
            return
        self._last_id += 1
        number, done = self._last_id, asyncio.get_running_loop().create_future()
        self._keeping[number] = done
        try:
            await self._hint({"op": "keep", "id": number, "pid": pid})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MASK_S):
                    await done
        finally:
            self._keeping.pop(number, None)

    async def release_folders(self, pid: int) -> None:
        """Drop what `keep_folders` kept, if no init has taken it over."""
        await self._hint({"op": "release", "pid": pid})

    async def write_git_files(self, files: Mapping[str, str]) -> bool:
        """Write files of git's configuration, which every session sees in `git_identity.DIRECTORY`; False,
        with a line in the log, if that failed.
        """
        if self._link is None or self.lost.done():
            return False
        self._last_id += 1
        number, done = self._last_id, asyncio.get_running_loop().create_future()
        self._writing[number] = done
        try:
            await self._link.send({"op": "git_files", "id": number, "files": dict(files)})
            async with asyncio.timeout(MASK_S):
                error = await done
        except (OSError, TimeoutError) as failed:
            error = str(failed) or "timed out"
        finally:
            self._writing.pop(number, None)
        if error:
            log.log("git_identity_unwritten", error=error)
        return not error

    async def _hint(self, message: dict[str, Any]) -> None:
        """Send a request that may be lost with the zygote."""
        if self._link is not None:
            with contextlib.suppress(OSError):
                await self._link.send(message)

    async def create(
        self, spec: SessionSpec, mount_fd: int, *, timeout_s: float, replaces: int = 0
    ) -> InitHandle:
        """Create a session on a detached overlay mount. The caller closes `mount_fd` afterwards, also after
        an error.

        Args:
            replaces: pid of the session's init before, for which `keep_folders` was called; 0: none.

        Raises:
            OperationError: operation_failed, reason setup_failed, with step and errno in the details; all
                processes of the session have ended.
        """
        link = self._link
        if link is None or self.lost.done():
            raise setup_failed(spec, "zygote", "the zygote, which makes sessions, has ended")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._last_id += 1
        number = self._last_id
        init = InitHandle(
            spec,
            ours,
            self._ask,
            answer_s=self._answer_s,
            inotify_most=self._inotify_most,
            before_command=None if self._freshness is None else self._refresh_view,
        )
        self._creating[number] = init
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    masked = [] if self._news is None else self._news.late()
                    await link.send(
                        {
                            "op": "create",
                            "id": number,
                            "spec": list(spec),
                            "masked": masked,
                            "replaces": replaces,
                        },
                        fds=[mount_fd, theirs.fileno()],
                    )
                except OSError as error:
                    self._creating.pop(number, None)
                    init.reaped(str(error), failed_step="zygote", code=error.errno)
                finally:
                    theirs.close()
                await init.started()
        except BaseException as error:
            await asyncio.shield(init.abandon())
            if isinstance(error, TimeoutError):
                raise setup_failed(spec, "start", f"timed out, not ready after {timeout_s:g} s") from None
            raise
        return init

    async def _ask(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        if self._link is None:
            raise BrokenPipeError(errno.EPIPE, "the zygote, which makes sessions, has ended")
        await self._link.send(message, fds=fds)

    async def close(self) -> None:
        """End every session and the zygote; returns when the zygote was reaped."""
        if self._watcher is not None:
            self._watcher.cancel()
        for init in list(self._inits.values()):
            await init.terminate()
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

    def _on_frame(self, frame: frames.Frame) -> None:
        message = frame.message
        event = message.get("event")
        if event == "started":
            init = self._creating.pop(message["id"], None)
            pidfd = frame.fds[0]
            if init is None:
                os.close(pidfd)
                return
            self._inits[message["pid"]] = init
            init.forked(message["pid"], pidfd, SessionGroup(self._groups, message["cgroup"]))
        elif event == "not_started":
            init = self._creating.pop(message["id"], None)
            if init is not None:
                init.reaped(
                    str(message.get("message")), failed_step=str(message["step"]), code=message.get("errno")
                )
        elif event == "masked":
            waiting = self._masking.get(message["id"])
            if waiting is not None:
                resolve(waiting)
            if message["failed"]:
                log.log("neighbours_uncovered", paths=message["failed"])
        elif event == "kept":
            kept = self._keeping.get(message["id"])
            if kept is not None:
                resolve(kept)
        elif event == "git_files":
            written = self._writing.get(message["id"])
            if written is not None and not written.done():
                written.set_result(message["error"])
        elif event == "exited":
            init = self._inits.pop(message["pid"], None)
            if init is not None:
                init.reaped(_describe(message["status"]))

    def _on_end(self) -> None:
        if not self.lost.done():
            self.lost.set_result("the zygote, which makes sessions, has ended")
        for init in self._creating.values():
            init.reaped("was lost with the zygote")
        for init in self._inits.values():
            init.orphaned()
        for waiting in (*self._masking.values(), *self._keeping.values()):
            resolve(waiting)
        for written in self._writing.values():
            if not written.done():
                written.set_result("the zygote, which makes sessions, has ended")
        self._creating.clear()
        self._inits.clear()


def _describe(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
