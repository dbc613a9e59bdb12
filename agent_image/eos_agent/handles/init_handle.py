"""The agent's handle of a session's init: send requests, receive events, kill init, await its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from eos_agent.handles import dial
from eos_agent.handles.helper_handle import AskZygote, FileHelper, no_helper
from eos_agent.handles.init_errors import refusal
from eos_agent.ipc import frames
from eos_agent.ipc.frame_socket import FrameSocket
from eos_agent.kernel.cgroups import NONE
from eos_agent.kernel.inotify_limit import INSTANCES, InotifyLimit
from eos_agent.kernel.procfs import tree_of
from eos_agent.kernel.session_cgroup import SessionGroup, command_member
from eos_agent.wire.protocol import INTERNAL_ERROR, OPERATION_FAILED, OperationError
from eos_agent.zygote.specs import SessionSpec

FORCE_AFTER_S = 0.4
"""Seconds, counted from the SIGTERM, after which the agent itself kills a process tree that init has not
killed by then.
"""


ANSWER_S = 60.0
"""Default seconds after which an init that does not answer and is not frozen is killed: otherwise its callers
would wait for ever.
"""


OnEvent = Callable[[dict[str, Any]], None]
"""Handles an event that init reports about one command; InitHandle.spawn lists the events."""


class Spawned(NamedTuple):
    """A running command. pid: its pid in the session's namespace. fds ("tty" | "stdin", "stdout", "stderr"):
    the caller owns and closes them.
    """

    pid: int
    fds: dict[str, int]


class InitHandle:
    """The agent's handle of one session's init.

    native: init is the program of init.c, and a helper does the file operations. namespaces: its pid and mnt
    namespace, as /proc/PID/ns shows them. address: address of an isolated session in its network; None for a
    shared session and for one with a loopback only. stuck: init was killed because it did not answer for
    `answer_s`. alone: no other process lived in the session when the last command ended.
    """

    def __init__(
        self,
        spec: SessionSpec,
        sock: socket.socket,
        ask: AskZygote,
        *,
        answer_s: float = ANSWER_S,
        inotify_most: int = INSTANCES,
        before_command: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Attach to the running loop.

        Args:
            ask: sends a frame to the zygote.
            answer_s: seconds after which an init that does not answer is killed.
            inotify_most: inotify instances that the session may have.
            before_command: awaited before each command starts.
        """
        loop = asyncio.get_running_loop()
        self.spec = spec
        self.pid = 0
        self.address: str | None = None
        self.namespaces: dict[str, str] = {}
        self.group = SessionGroup(NONE, "")
        self.gone: asyncio.Future[str] = loop.create_future()
        self.answer_s = answer_s
        self.stuck = False
        self.alone = True
        self._before_command = before_command
        self._listeners: dict[str, OnEvent] = {}  # by the key of each live command
        self.native = False
        self._ask = ask
        self._helper: FileHelper | None = None
        self._helper_turn = asyncio.Lock()
        self._pidfd = -1
        self._guard: InotifyLimit | None = None
        self._inotify_most = inotify_most
        self._abandoned = False
        self._killable: dict[str, tuple[int, int]] = {}  # tag and pid of each live command
        self._environment: dict[str, str] | None = None  # the environment that init certainly remembers
        self._environments = 0  # number of environments sent to init so far
        self._cloned: asyncio.Future[None] = loop.create_future()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._waiting: dict[int, asyncio.Future[frames.Frame]] = {}
        self._last_id = 0
        self._link = FrameSocket(sock, self._on_frame, self._on_end)

    async def spawn(
        self,
        key: str,
        *,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        tty: bool,
        split: bool,
        stdin: bool,
        on_event: OnEvent,
        uid: int | None = None,
    ) -> Spawned:
        """Start a command as the leader of its own session and process group.

        cwd is absolute or relative to the workspace. With `tty` a pseudo-terminal is the command's standard
        input, output and error. Without it the outputs are pipes, a single one unless `split`, and the input
        is /dev/null unless `stdin`. The returned descriptors are non-blocking.

        `on_event` is called from the loop, possibly before this returns, with
        {"event": "leader_exit", "key", "status": a wait status},
        {"event": "waiting_on", "key", "processes": [{"pid", "name"}]} (the leader is gone, these of its group
        live), {"event": "group_gone", "key", "left_behind": [{"pid", "name"}]}, or {"event": "ended", "key",
        "status"}: leader and group are gone and nothing is left behind.

        Raises:
            OperationError: operation_failed with reason cwd_not_found, exec_failed or session_lost.
        """
        if self._before_command is not None:
            await self._before_command()
        message: dict[str, Any] = {
            "op": "spawn",
            "key": key,
            "argv": argv,
            "env": None,
            "cwd": cwd,
            "tty": tty,
            "split": split,
            "stdin": stdin,
            "uid": uid,
        }
        if env != self._environment:  # else init uses its last environment again
            message["env"], self._environment = env, None
            self._environments += 1
        turn = self._environments
        self._killable[key] = (0, 0)
        self._listeners[key] = on_event
        self.alone = False
        try:
            frame = await self._call(message)
        except BaseException as error:
            self._killable.pop(key, None)
            self._listeners.pop(key, None)
            most = self.group.limits()["pids_max"]
            if (
                most is not None
                and isinstance(error, OperationError)
                and error.details.get("errno") == "EAGAIN"
            ):
                error.details["hint"] = (
                    f"the session has reached its limit of {most} processes; cancel or signal a command of it"
                )
            raise
        if turn == self._environments:
            self._environment = env
        if key in self._killable:  # else the end of the command was reported before this reply
            self._killable[key] = (int(frame.message["mark"]), int(frame.message["pid"]))
        return Spawned(int(frame.message["pid"]), dict(zip(frame.message["fds"], frame.fds, strict=True)))

    async def which_shell(self) -> list[str] | None:
        """Return the argv that precedes the command text: bash without start-up files, else sh, else None."""
        found = (await self._call({"op": "which_shell"})).message["argv"]
        return None if found is None else [str(a) for a in found]

    async def ping(self, helper: FileHelper | None = None) -> None:
        """Ping init or `helper`. As in any call, an init that does not answer is killed; this method does not
        report that."""
        with contextlib.suppress(OperationError):
            await self._call({"op": "ping"}, helper=helper)

    async def signal(self, key: str, signum: int) -> bool:
        """Send a signal to the process group of a command; False if the group has ended."""
        return bool((await self._call({"op": "signal", "key": key, "signum": signum})).message["sent"])

    async def kill_tree(self, key: str) -> None:
        """Send SIGTERM, and after 100 ms SIGKILL, to all descendants of a command, also outside of its group.
        Returns when all have ended.

        Init sends the signals. If that takes too long, because the tree forks as fast as it is killed or uses
        up init's processor time, this method freezes the whole session and kills the tree itself.
        """
        kill = asyncio.ensure_future(self._call({"op": "kill_tree", "key": key}, patient=True))
        try:
            mark, pid = self._killable.get(key, (0, 0))
            while self.group.can_freeze and (mark or pid):
                if (await asyncio.wait([kill], timeout=FORCE_AFTER_S))[0]:
                    break
                with contextlib.suppress(
                    OSError, OperationError
                ):  # the session has ended, or cannot be frozen: init continues to kill
                    await self.group.kill_command(mark, pid)
            await kill
        finally:
            kill.cancel()

    async def end(self, grace_s: float, *, thaw: bool = False) -> None:
        """End the session: SIGTERM to all its processes, up to `grace_s` seconds for them to end, then
        `terminate`.

        SIGTERM is skipped if no process is left. thaw: the session is frozen, and is thawed only if SIGTERM
        is sent.
        """
        try:
            if grace_s > 0 and (self._killable or not self.alone) and not self.gone.done():
                if thaw and self.group.can_freeze:
                    self.group.thaw()
                with contextlib.suppress(OperationError, TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await self._call({"op": "end"}, patient=True)
        finally:
            await self.terminate()

    async def file_op(
        self,
        name: str,
        args: dict[str, Any],
        data: bytes | None = None,
        *,
        in_worker: bool = False,
        limit_s: float | None = None,
    ) -> tuple[dict[str, Any], bytes | None]:
        """Run eos_agent.files.mounted.perform_in_mount inside the mount. Its errors come back as
        OperationError.

        in_worker: run the operation in a child of init, so that init can serve other requests; the child is
        killed after `limit_s`. With a native init a helper runs the operation; if no helper lives, this call
        forks one.
        """
        message: dict[str, Any] = {"op": "file", "name": name, "args": args}
        if in_worker:
            message.update(in_worker=True, limit_s=limit_s)
        helper = await self._file_helper() if self.native else None
        frame = await self._call(message, data, patient=in_worker, helper=helper)
        return frame.message["result"], frame.data

    async def _file_helper(self) -> FileHelper:
        """Return the live helper, or let the zygote fork a new one.

        Raises:
            OperationError: session_lost; operation_failed, reason no_file_helper.
        """
        async with self._helper_turn:
            helper = self._helper
            if helper is not None and not helper.over:
                return helper
            frame = await self._call({"op": "namespaces"})
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            helper = self._helper = FileHelper(ours, self._on_frame, lambda: None)
            try:
                await self._ask({"op": "help", "pid": self.pid}, [theirs.fileno(), *frame.fds])
            except OSError as error:
                helper.close()
                raise no_helper(str(error)) from None
            finally:
                theirs.close()
                for fd in frame.fds:
                    os.close(fd)
            try:
                async with asyncio.timeout(self.answer_s):
                    await asyncio.shield(helper.ready)
            except BaseException as error:
                helper.close()
                if self.gone.done():
                    raise _lost(self.spec.session_id) from None
                if isinstance(error, TimeoutError):
                    raise no_helper(f"not ready after {self.answer_s:g} s") from None
                raise
            return helper

    async def processes(self) -> list[dict[str, Any]]:
        """List the processes of the session without init: `pid`, `name`."""
        return list((await self._call({"op": "processes"})).message["processes"])

    def pids_of(self, keys: Sequence[str]) -> set[int]:
        """Pids, in the session's namespace, of the processes of these commands, also outside of their groups.
        Blocking: it reads /proc.
        """
        wanted = [self._killable[key] for key in keys if key in self._killable]
        return {
            inner
            for pid in tree_of(self.pid)
            for tag, leader in wanted
            if (inner := command_member(pid, tag, leader)) is not None
        }

    async def connect(self, port: int, *, timeout_s: float = 10.0) -> int:
        """Connect to a server in the session's network, on its loopback or at its address. Returns the
        descriptor of a non-blocking socket.

        Init only creates the sockets, since a socket belongs to the network namespace in which it was
        created. The agent connects them, so that a slow server does not block init.

        Raises:
            OperationError: operation_failed, reason connect_failed, connect_timed_out, session_lost.
        """
        addresses = [dial.LOOPBACK, dial.LOOPBACK_6, *([self.address] if self.address else [])]
        frame = await self._call(
            {"op": "sockets", "families": [dial.family_of(address) for address in addresses]}
        )
        pairs = [
            (address, family)
            for address, family in zip(addresses, frame.message["families"], strict=True)
            if family >= 0
        ]
        sockets = [
            (address, socket.socket(fileno=fd)) for (address, _), fd in zip(pairs, frame.fds, strict=True)
        ]
        return (
            await dial.first_that_answers(sockets, port, timeout_s=timeout_s, where="the session")
        ).detach()

    async def freeze(self) -> None:
        """Freeze every process of the session; returns when all are frozen. A cgroup freezes init too, which
        then answers after `thaw`.
        """
        if self.gone.done():
            raise _lost(self.spec.session_id)
        if self.group.can_freeze:
            await self.group.freeze()
        else:
            await self._call({"op": "freeze"})

    async def thaw(self) -> None:
        """Thaw the processes that `freeze` froze; a process that was stopped before stays stopped."""
        if self.group.can_freeze:
            self.group.thaw()
        else:
            await self._call({"op": "thaw"})

    async def terminate(self) -> None:
        """Send SIGKILL to init, which ends its pid namespace (pid_namespaces(7)). Returns when init was
        reaped. Idempotent.
        """
        self._kill()
        await asyncio.shield(self.gone)

    async def _call(
        self,
        message: dict[str, Any],
        data: bytes | None = None,
        *,
        patient: bool = False,
        helper: FileHelper | None = None,
    ) -> frames.Frame:
        """Send a request and wait for the reply.

        Args:
            patient: the reply may take any time; init serves other requests in between, and pings check that
                it lives.
            helper: the process to ask instead of init.
        Raises:
            OperationError: the error that init reports; session_lost if init ended, or was killed because it
                did not answer (`stuck`).
        """
        if self.gone.done():
            raise _lost(self.spec.session_id)
        self._last_id += 1
        number = self._last_id
        reply: asyncio.Future[frames.Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        watch = _Watch(self, reply, patient, helper)
        link = self._link
        if helper is not None:
            helper.add(number, reply)
            link = helper.link
        try:
            await link.send({**message, "id": number}, data)
            frame = await reply  # after a cancellation _on_frame discards the reply
        except OSError:
            if helper is not None and not self.gone.done():
                raise no_helper("it has just ended") from None
            raise _lost(self.spec.session_id) from None
        finally:
            self._waiting.pop(number, None)
            watch.end()
            if helper is not None:
                helper.remove(number)
        if "refused" in frame.message:
            raise refusal(message, frame.message)
        error = frame.message.get("error")
        if error is not None:
            if error["kind"] == INTERNAL_ERROR:  # a bug in init: only the log gets its text
                raise RuntimeError(f"{message['op']} in init: {error['details']}")
            raise OperationError(error["kind"], error["message"], error["details"])
        return frame

    def _on_frame(self, frame: frames.Frame) -> None:
        message = frame.message
        number = message.get("id")
        if number is not None:
            reply = self._waiting.pop(number, None)
            if reply is not None and not reply.done():
                reply.set_result(frame)
            else:
                for fd in frame.fds:
                    os.close(fd)
            return
        event = message.get("event")
        if event == "inotify":
            (fd,) = frame.fds
            self._guard = InotifyLimit(
                fd, self._inotify_most, lambda: list(tree_of(self.pid)) if self.pid else []
            )
            return
        for fd in frame.fds:
            os.close(fd)
        if event == "ready":
            self.address = message["address"]
            self.native = message.get("init") == "native"
            self.namespaces = message["namespaces"]
            if not self._ready.done():
                self._ready.set_result(None)
        elif event == "failed":
            if not self._ready.done():
                self._ready.set_exception(
                    setup_failed(self.spec, message["step"], message["message"], message.get("errno"))
                )
        else:
            key = str(message.get("key"))
            listener = self._listeners.get(key)
            if event in ("group_gone", "ended"):
                self._killable.pop(key, None)
                self._listeners.pop(key, None)
                self.alone = message.get("alone") is True
            if listener is not None:
                listener(message)

    def declare_stuck(self) -> None:
        """Kill an init that does not answer, and fail all pending calls. `gone` is set when init was
        reaped."""
        self.stuck = True
        self._on_end()

    def _on_end(self) -> None:
        """Handle the end of init's socket: init has died or is broken. It is killed in both cases."""
        self._kill()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(_lost(self.spec.session_id))

    def forked(self, pid: int, pidfd: int, group: SessionGroup) -> None:
        """Accept pid, pidfd and cgroup from the zygote's report; the pidfd is closed when init was reaped."""
        self.pid, self._pidfd, self.group = pid, pidfd, group
        if not self._cloned.done():
            self._cloned.set_result(None)
        if self._abandoned:
            self._kill()

    def orphaned(self) -> None:
        """Watch init's pidfd, since the zygote has died and cannot report the end of init, which dies with
        it."""
        loop, pidfd = asyncio.get_running_loop(), self._pidfd

        def ended() -> None:
            loop.remove_reader(pidfd)
            self.reaped("was lost with the zygote")

        self._kill()
        loop.add_reader(pidfd, ended)

    async def started(self) -> None:
        """Wait until init is ready.

        Raises:
            OperationError: operation_failed, reason setup_failed.
        """
        for moment in (self._cloned, self._ready):  # the two events come from two sockets, in any order
            both: list[asyncio.Future[Any]] = [moment, self.gone]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise setup_failed(self.spec, "start", f"its process {self.gone.result()} before it was ready")
        self._ready.result()

    async def abandon(self) -> None:
        """Kill init after a failed set-up; returns when it was reaped."""
        self._abandoned = True
        if not self._ready.done():
            self._ready.cancel()
        elif not self._ready.cancelled():
            self._ready.exception()
        self._link.close()
        self._kill()
        await self.gone

    def _kill(self) -> None:
        if self._pidfd >= 0:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def reaped(self, reason: str, *, failed_step: str = "", code: int | None = None) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if failed_step and not self._ready.done():
            self._ready.set_exception(setup_failed(self.spec, failed_step, reason, code))
        self._link.close()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(_lost(self.spec.session_id))
        if self._helper is not None:
            self._helper.close()
        if not self.gone.done():
            self.gone.set_result(reason)


class _Watch:
    """A timer for one call; it is cancelled when the reply arrives."""

    def __init__(
        self, init: InitHandle, reply: asyncio.Future[frames.Frame], patient: bool, helper: FileHelper | None
    ) -> None:
        self._init, self._reply, self._patient, self._helper = init, reply, patient, helper
        self._ping: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._arm()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._init.answer_s, self._due)

    def _due(self) -> None:
        init = self._init
        if self._reply.done() or init.gone.done():
            return
        if init.group.frozen:
            self._arm()
        elif self._patient:
            self._ping = self._loop.create_task(init.ping(self._helper))
            self._arm()
        else:
            init.declare_stuck()

    def end(self) -> None:
        self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()


def setup_failed(spec: SessionSpec, step: str, message: str, code: int | None = None) -> OperationError:
    name = "" if code is None else f" [{_errno_name(code)}]"
    details: dict[str, Any] = {"step": step, "workspace_session_id": spec.session_id}
    if code is not None:
        details["errno"] = _errno_name(code)
    return OperationError(
        OPERATION_FAILED, f"session set-up failed at {step}: {message}{name}", details, reason="setup_failed"
    )


def _errno_name(code: int) -> str:
    import errno

    return errno.errorcode.get(code, str(code))


def _lost(session_id: str) -> OperationError:
    return OperationError(
        OPERATION_FAILED,
        f"workspace session lost: {session_id}: its init process has ended",
        {"workspace_session_id": session_id},
        reason="session_lost",
    )
