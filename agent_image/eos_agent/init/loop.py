"""The loop of a session's init: reap, spawn commands, report their events, do file operations, freeze and
kill.

One thread waits in poll(2) for the agent's socket and for children that end. Commands are started by
posix_spawn(3), a vfork: no Python code runs between fork and exec. A command with `user` is started by fork
and exec.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from eos_agent.files import mounted, move, patch_mount
from eos_agent.init.kill import Kill, send, send_to_group
from eos_agent.init.spawn import cwd_not_found, exec_failed, find_program, plumb, start, too_many_in_flight
from eos_agent.init.worker import Undo, Work, Worker
from eos_agent.ipc import frames
from eos_agent.ipc.sigchld import SIGINFO_BYTES, sigchld_fd
from eos_agent.kernel import network
from eos_agent.kernel.fd_limits import OpenFiles
from eos_agent.kernel.oom import OomScore
from eos_agent.kernel.process_tag import (
    FREEZE_LIMIT_S,
    ProcessTags,
    TaggedProcess,
    alone,
    has_tag,
    list_processes,
)
from eos_agent.wire.protocol import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    OPERATION_FAILED,
    SERVER_BUSY,
    OperationError,
    os_error,
)
from layerstack.errors import LayerStackError
from layerstack.kernel import tempnames

MAX_WORKERS = 8
_POLL_FIRST_S, _POLL_LAST_S = 0.005, 0.1
_SHELLS = (("/bin/bash", ["/bin/bash", "--noprofile", "--norc", "-c"]), ("/bin/sh", ["/bin/sh", "-c"]))


class _Command:
    """A process group whose end is reported to the agent."""

    def __init__(self, key: str, pid: int, tag: int) -> None:
        self.key, self.pid, self.tag = key, pid, tag
        self.leader_gone = self.reported = False
        self.status = 0
        self.shown: list[dict[str, Any]] = []
        self.pause_s = _POLL_FIRST_S
        self.due = 0.0


class InitLoop:
    """The loop of a session's init, or of its helper."""

    def __init__(
        self, sock: socket.socket, workspace_root: str, oom_score: OomScore, files: OpenFiles | None
    ) -> None:
        """files: limits of commands; None in a helper, which starts no commands."""
        self._sock = sock
        self._files = files
        self._root = workspace_root
        self._wake = sigchld_fd()
        self._environment: dict[str, str] = {}  # that of the last spawn request with one
        self._tags = ProcessTags()
        self._oom_score = oom_score
        self._commands: dict[str, _Command] = {}  # live, by key
        self._leaders: dict[int, _Command] = {}
        self._left: dict[str, int] = {}  # ended commands that left processes behind: key -> tag
        self._kills: list[Kill] = []
        self._ends: list[int] = []  # requests to be answered when no process is left
        self._stopped: set[int] = set()
        self._workers: dict[int, Worker] = {}  # by the pipe that each writes to
        self._poll = select.poll()
        self._events = bytearray()  # those of this turn, sent in one message

    def serve(self) -> None:
        """Answer until the agent closes its end."""
        decoder = frames.FrameDecoder()
        self._poll.register(self._sock, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in self._poll.poll(self._timeout_ms())}
            if self._wake in ready:
                os.read(self._wake, SIGINFO_BYTES)
                empty = self._reap()
                self._check(empty=empty)
                if empty:
                    self._all_ended()
            for fd in ready & self._workers.keys():
                self._hear(self._workers[fd])
            if self._sock.fileno() in ready:
                raw, fds = frames.receive(self._sock)
                if not raw:
                    return
                for frame in decoder.feed(raw, fds):
                    for fd in frame.fds:
                        os.close(fd)
                    self._answer(frame)
            self._check()
            self._flush()

    def warm_up(self, peer: socket.socket) -> None:
        """Run the code paths of a failing spawn and of a command's end once. `peer` is the other end of the
        socket.
        """
        environment = {"PATH": "/bin", "TERM": "dumb", "LANG": "C.UTF-8", "HOME": "/"}
        request = {
            "op": "spawn",
            "id": 0,
            "key": "0",
            "argv": ["/", "-c", ""],
            "env": environment,
            "cwd": "/",
            "split": False,
            "stdin": False,
        }
        frames.send(peer, {**request, "tty": False, "uid": None})
        for frame in frames.FrameDecoder().feed(*frames.receive(self._sock)):
            self._answer(frame)
        self._check(empty=self._reap())
        self._event("ended", "0", status=0)
        self._flush()
        self._timeout_ms()
        alone()

    def _timeout_ms(self) -> int | None:
        moments = [c.due for c in self._commands.values() if c.leader_gone] + [k.due for k in self._kills]
        moments += [a.due for a in self._workers.values() if a.due is not None]
        return None if not moments else max(0, int((min(moments) - time.monotonic()) * 1000) + 1)

    def _answer(self, frame: frames.Frame) -> None:
        message = frame.message
        number, op = message["id"], message["op"]
        fds: list[int] = []
        data: bytes | None = None
        reply: dict[str, Any]
        try:
            if op == "spawn":
                reply, fds = self._spawn(message)
            elif op == "file" and message.get("in_worker"):
                self._start_worker(message, frame.data)
                return
            elif op == "file":
                result, data = mounted.perform_in_mount(
                    message["name"], self._root, message["args"], frame.data
                )
                reply = {"result": result}
            elif op == "kill_tree":
                self._kill_tree(message["key"], number)
                return
            elif op == "end":
                self._end_all(number)
                return
            elif op == "signal":
                reply = {"sent": self._signal(message["key"], message["signum"])}
            elif op == "sockets":
                reply, fds = network.unconnected(message["families"])
            elif op == "which_shell":
                reply = {
                    "argv": next(
                        (argv for path, argv in _SHELLS if os.access(path, os.X_OK) and os.path.isfile(path)),
                        None,
                    )
                }
            elif op == "freeze":
                self._freeze()
                reply = {}
            elif op == "thaw":
                self._thaw()
                reply = {}
            elif op == "ping":
                reply = {}
            elif op == "processes":
                reply = {"processes": [{"pid": p.pid, "name": p.name} for p in list_processes() if p.alive]}
            else:
                raise OperationError(INTERNAL_ERROR, f"unknown request to init: {op}")
        except Exception as error:
            reply = {"error": _envelope(error)}
        self._flush()
        try:
            frames.send(self._sock, {"id": number, **reply}, data, fds)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            if op == "spawn":
                self._discard(message["key"])
            frames.send(self._sock, {"id": number, "error": _envelope(too_many_in_flight())})
        for fd in fds:
            os.close(fd)

    def _discard(self, key: str) -> None:
        """Kill a command whose descriptors could not be sent; the caller gets an error."""
        command = self._commands.pop(key)
        del self._leaders[command.pid]
        send_to_group(command.pid, signal.SIGKILL)

    def _event(self, event: str, key: str, **values: Any) -> None:
        self._events += frames.encode({"event": event, "key": key, **values})

    def _flush(self) -> None:
        if self._events:
            self._sock.sendall(self._events)
            self._events.clear()

    # File operations in a child

    def _start_worker(self, message: dict[str, Any], data: bytes | None) -> None:
        args: dict[str, Any] = message["args"]
        undo: Undo | None = None
        if message["name"] == "move":
            args = {**args, "passing": tempnames.place_name()}
            undo = functools.partial(move.clear_after_move, self._root, args)
        elif message["name"] == "patch":
            undo = functools.partial(patch_mount.clear_after_patch, self._root, args)

        def work(tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
            try:
                result, _ = mounted.perform_in_mount(message["name"], self._root, args, data, tell)
            except Exception as error:
                return {"error": _envelope(error)}
            return {"result": result}

        if len(self._workers) >= MAX_WORKERS:
            raise OperationError(
                SERVER_BUSY,
                f"{MAX_WORKERS} searches are under way in this session, which is the limit",
                {"limit": MAX_WORKERS, "retryable": True},
                reason="too_many_file_operations",
            )
        self._tags.clear()
        self._listen(Worker(message["id"], work, message["limit_s"], undo))

    def _listen(self, worker: Worker) -> None:
        self._workers[worker.fd] = worker
        self._poll.register(worker.fd, select.POLLIN)

    def _hear(self, worker: Worker) -> None:
        reply = worker.read()
        if reply is None:
            return
        self._poll.unregister(worker.fd)
        del self._workers[worker.fd]
        worker.close()
        if worker.broken_off and worker.undo is not None:
            self._tags.clear()
            with contextlib.suppress(
                OSError
            ):  # fork failed: capture leaves out the temporary entry that remains
                self._listen(Worker(worker.number, _undoing(worker.undo, reply), None))
                return
        self._flush()
        frames.send(self._sock, {**reply, "id": worker.number})

    # Commands

    def _spawn(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        argv, env = message["argv"], message["env"]
        if env is None:
            env = self._environment
        else:
            self._environment = env
        cwd = os.path.join(self._root, message["cwd"])
        program = find_program(argv[0], env.get("PATH", ""))
        names, ours, theirs, actions = plumb(message["tty"], message["split"], message["stdin"])
        try:
            tag = self._tags.set_next()
            try:
                os.chdir(cwd)
            except OSError as error:
                raise cwd_not_found(message["cwd"], error) from None
            except ValueError:  # a NUL or a lone surrogate: no directory has such a name
                raise cwd_not_found(
                    message["cwd"], FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                ) from None
            try:
                with self._oom_score.raised():
                    pid = start(
                        program,
                        argv,
                        env,
                        actions,
                        tty=message["tty"],
                        uid=message.get("uid"),
                        files=self._files,
                    )
            except OSError as error:
                raise exec_failed(argv[0], error) from None
            except ValueError as error:  # a NUL in an argument, `=` in the name of a variable
                raise OperationError(
                    INVALID_REQUEST, f"cannot run {argv[0]!r}: {error}", reason="invalid_argument"
                ) from None
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            os.chdir("/")  # a working directory in the workspace would keep it busy
            for fd in theirs:
                os.close(fd)
        command = _Command(message["key"], pid, tag)
        self._commands[command.key] = command
        self._leaders[pid] = command
        return {"pid": pid, "fds": names, "mark": tag}, ours

    def _signal(self, key: str, signum: int) -> bool:
        command = self._commands.get(key)
        return command is not None and send_to_group(command.pid, signum)

    def _reap(self) -> bool:
        """Reap ended children. Returns True if no process is left: orphans become children of pid 1
        (pid_namespaces(7)), so a pid 1 without children is alone.
        """
        empty = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                empty = True
                break
            if pid == 0:
                break
            for worker in self._workers.values():
                worker.reaped = worker.reaped or worker.pid == pid
            command = self._leaders.pop(pid, None)
            if command is not None:
                command.leader_gone, command.status = True, status
        now = time.monotonic()
        for command in self._commands.values():
            if command.leader_gone:
                command.due = now
        for kill in self._kills:
            kill.due = now
        return empty

    def _check(self, *, empty: bool = False) -> None:
        """Report commands whose leader and group have ended, and advance kills. empty: `_reap` has just
        returned True.
        """
        now = time.monotonic()
        for command in [c for c in self._commands.values() if c.leader_gone and c.due <= now]:
            if empty or not send_to_group(command.pid, 0):
                self._end(command, [] if empty or alone() else list_processes())
                continue
            if not command.reported:
                command.reported = True
                self._event("leader_exit", command.key, status=command.status)
            processes = list_processes()
            members = [p for p in processes if p.group == command.pid and p.alive]
            if not members:  # only zombies, whose parent left the group and does not reap them
                self._end(command, processes)
                continue
            shown = _names(members)
            if shown != command.shown:
                command.shown = shown
                self._event("waiting_on", command.key, processes=shown)
            command.due = now + command.pause_s
            command.pause_s = min(command.pause_s * 2, _POLL_LAST_S)
        for worker in self._workers.values():
            worker.expire(now)
        for kill in [k for k in self._kills if k.due <= now]:
            if kill.advance(now):
                self._kills.remove(kill)
                self._flush()
                frames.send(self._sock, {"id": kill.number})

    def _end(self, command: _Command, processes: list[TaggedProcess]) -> None:
        alone = {} if any(p.alive for p in processes) else {"alone": True}
        left = [p for p in processes if p.alive and p.group != command.pid and has_tag(p, command.tag)]
        if left:
            self._left[command.key] = command.tag
        del self._commands[command.key]
        if not left and not command.reported:
            self._event("ended", command.key, status=command.status, **alone)
            return
        if not command.reported:
            self._event("leader_exit", command.key, status=command.status)
        self._event("group_gone", command.key, left_behind=_names(left), **alone)

    def _end_all(self, number: int) -> None:
        """Send SIGTERM to every other process, stopped ones too. The reply is sent when all have ended; the
        agent's wait has a limit.
        """
        self._ends.append(number)
        for signum in (signal.SIGTERM, signal.SIGCONT):
            send(-1, signum)
        self._stopped.clear()
        if self._reap():
            self._check(empty=True)
            self._all_ended()

    def _all_ended(self) -> None:
        self._flush()
        for number in self._ends:
            frames.send(self._sock, {"id": number})
        self._ends.clear()

    def _kill_tree(self, key: str, number: int) -> None:
        command = self._commands.get(key)
        tag = command.tag if command is not None else self._left.pop(key, 0)
        kill = Kill(number, command.pid if command is not None else 0, tag)
        kill.due = 0.0
        self._kills.append(kill)

    # Freezing

    def _freeze(self) -> None:
        """Send SIGSTOP in rounds until every process is stopped; a process that is forked during a round gets
        it in the next one.
        """
        already = {p.pid for p in list_processes() if p.state in "Tt"} if not self._stopped else set[int]()
        deadline = time.monotonic() + FREEZE_LIMIT_S
        while True:
            moving = [p for p in list_processes() if p.alive and p.state not in "Tt"]
            if not moving:
                return
            if time.monotonic() > deadline:
                self._thaw()
                raise OperationError(
                    OPERATION_FAILED,
                    f"cannot freeze: {_names(moving)}",
                    {"processes": _names(moving)},
                    reason="freeze_failed",
                )
            for process in moving:
                if process.pid not in already:
                    self._stopped.add(process.pid)
                send(process.pid, signal.SIGSTOP)
            time.sleep(0.0002)

    def _thaw(self) -> None:
        for pid in self._stopped:
            send(pid, signal.SIGCONT)
        self._stopped.clear()


def _names(processes: list[TaggedProcess]) -> list[dict[str, Any]]:
    return [{"pid": p.pid, "name": p.name} for p in processes]


def _undoing(undo: Undo, reply: dict[str, Any]) -> Work:
    """Build a worker's task: report `reply`, so that it is the answer even if the worker is killed, then run
    `undo`."""

    def work(tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        tell(reply)
        with contextlib.suppress(OSError, OperationError):
            undo()
        return reply

    return work


def _envelope(error: Exception) -> dict[str, Any]:
    """The JSON form of an exception on the socket."""
    if isinstance(error, LayerStackError):
        error = OperationError(error.kind, error.message, error.details, reason=error.reason)
    elif isinstance(error, OSError):
        error = os_error(error)
    elif not isinstance(error, OperationError):
        error = OperationError(INTERNAL_ERROR, "internal error", {"exception": repr(error)})
    return {"kind": error.kind, "message": error.message, "details": error.details}
