"""One command, from its spawn to its terminal state.

Everything here runs on the event loop. A command has ended when its process group has ended and its output is
drained. It is *terminal*, and reported as ended, when in addition its session is finalized, if it was the
last command of an implicit session.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from eos_agent.base import telemetry
from eos_agent.kernel.terminal_wait import TerminalWait, terminal_wait
from eos_agent.sessions.carriage_return import plain_row
from eos_agent.sessions.command_result import Cursor, OutputView, cut_json, rows_json, stderr_json
from eos_agent.sessions.interruption import (
    DEFAULT_RULE,
    CommandEnd,
    PublishRule,
    Unfinished,
    signal_name,
    unfinished,
)
from eos_agent.sessions.service import ENDED, Service
from eos_agent.sessions.transcript import ANSWER_MAX_BYTES, Transcript
from eos_agent.wire.encoding import UTF8
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from layerstack.kernel import fsync

if TYPE_CHECKING:
    from eos_agent.base.pool import Pool
    from eos_agent.sessions.session import Session
READ_BYTES = 64 * 1024
END_S = 5.0
OBSERVE_S = 0.25
TYPED_S = 0.05
"""Seconds after input was written in which a program may not have been woken for it yet."""
DRAIN_S = 0.1
CLOSE_LATER_S = 0.002


class Command:
    """One command. finished (and the event `over`): its end no longer waits for any process. terminal: its
    end may be reported."""

    def __init__(
        self,
        command_id: str,
        session: Session,
        text: str,
        request_id: str,
        directory: str,
        *,
        split: bool,
        max_bytes: int,
        completion: str = "process_group",
        leader_grace_s: float = 0.0,
        answer_bytes: int = ANSWER_MAX_BYTES,
        rule: PublishRule = DEFAULT_RULE,
        negative_codes: bool = False,
        service: Service | None = None,
    ) -> None:
        """Prepare a command that is not spawned yet.

        Args:
            directory: its output is written there once it is too large for memory.
            split: standard error has a transcript of its own.
            max_bytes: the most that a transcript keeps on disk.
            completion: "process_group": the command ends with the last process of its group; "leader": with
                its leader.
            leader_grace_s: seconds after the leader's end after which callers get an answer although the
                group lives.
            answer_bytes: the most output of one result.
            rule: decides if its work is published when it does not end by exit(0).
            negative_codes: its exit code after signal N is -N instead of 128 + N.
            service: its name and state, if it is a service.
        """
        self.id = command_id
        self.session = session
        self.text = text
        self.request_id = request_id
        self.span = telemetry.span(
            "command.exec", command_session_id=command_id, workspace_session_id=session.id
        )
        self.started = time.monotonic()
        self.started_unix_ms = int(time.time() * 1000)
        self.ended: float | None = None
        self.exit_code: int | None = None
        self.leader_code: int | None = None  # -N after signal N
        self.signal: str | None = None  # name of the signal that ended the leader
        self.rule = rule
        self.service = service
        self.input_wait: TerminalWait | None = None  # as the last `observe_terminal` found
        self.waiting_on: list[dict[str, Any]] = []
        self.left_behind: list[dict[str, Any]] = []
        self.timed_out = self.cancelled = self.finished = False
        self.over = asyncio.Event()  # set with `finished`
        self.terminal = asyncio.Event()
        self.answerable = asyncio.Event()  # terminal, or its leader has ended and its group lives
        self.outcome: dict[str, Any] = {}  # fields that the end of its session adds to the result
        self.lost: OperationError | None = None  # its session was lost: no exit code is known
        self.output = Transcript(directory, "output", max_bytes)
        self.errors = Transcript(directory, "stderr", max_bytes) if split else None
        self.directory = directory
        self._completion, self._leader_grace_s, self._answer_bytes = completion, leader_grace_s, answer_bytes
        self._negative_codes = negative_codes
        self._group_gone = self._attached = self._killing = False
        self._loop = asyncio.get_running_loop()
        self._readers: dict[int, Transcript] = {}
        self._input = -1
        self._tty = False
        self._line_open = False  # the terminal has an unfinished line
        self._written = 0.0  # when input was written
        self._input_lock = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None  # pending while a write waits for room in the input
        self._cursor, self._error_cursor = Cursor(), Cursor(again=False)
        self._timer: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # Output

    def attach(self, fds: dict[str, int]) -> None:
        """Take over the descriptors of the spawned process."""
        self.started = time.monotonic()
        self._attached = True
        if "tty" in fds:
            self._tty = True
            self._input = fds["tty"]
            self._readers[fds["tty"]] = self.output
        else:
            self._input = fds.get("stdin", -1)
            for name in ("stdout", "stderr"):
                if name in fds:
                    self._readers[fds[name]] = (
                        self.errors if name == "stderr" and self.errors is not None else self.output
                    )
        for fd in self._readers:
            self._loop.add_reader(fd, self._readable, fd)
        if self._group_gone:  # the group's end was reported before the reply to the spawn
            self._drain()

    def _readable(self, fd: int) -> bool:
        """Read once; False if no output is available."""
        transcript = self._readers.get(fd)
        if transcript is None:
            return False
        try:
            data = os.read(fd, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: the last process closed the terminal
                self.outcome["output_error"] = errno.errorcode.get(error.errno or 0, "EIO")
            data = b""
        if data:
            transcript.append(data)
            return True
        self._end_of(fd)
        if self._group_gone and not self._readers:
            self._finish()
        return False

    def _end_of(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        del self._readers[fd]
        if fd != self._input:
            os.close(fd)

    def _drain(self) -> None:
        """Read the rest of the output; for at most 100 ms this includes output of processes that have left
        the group."""
        for fd in list(self._readers):
            for _ in range(64):
                if not self._readable(fd):
                    break
        if not self.finished:
            if self._readers:
                self._loop.call_later(DRAIN_S, self._finish)
            else:
                self._finish()

    # Events of its processes

    def on_event(self, event: dict[str, Any]) -> None:
        """Handle an event that init reports; InitHandle.spawn lists the events."""
        if self.finished:
            return
        kind = event.get("event")
        if kind in ("leader_exit", "ended"):
            self.leader_code = os.waitstatus_to_exitcode(int(event["status"]))
            ended = self._completion == "leader" or (kind == "ended" and not self._killing)
            if ended and not self._group_gone:
                self._gone([])
        elif kind == "waiting_on":
            self.waiting_on = list(event.get("processes", []))
            if self._lingering is None:
                self._lingering = self._loop.call_later(self._leader_grace_s, self._linger)
        elif (
            kind == "group_gone" and not self._group_gone and not self._killing
        ):  # else `_kill` waits for processes outside the group too
            self._gone(list(event.get("left_behind", [])))

    def _linger(self) -> None:
        """Answer waiting callers: the leader ended a while ago, but other processes of its group live."""
        if not self._group_gone:
            self.answerable.set()

    def _gone(self, left_behind: list[dict[str, Any]]) -> None:
        self._group_gone = True
        self.waiting_on = []
        self.left_behind = left_behind
        if self._attached:  # else `attach` continues once it has the descriptors
            self._drain()

    def _finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        self.ended = time.monotonic()
        for timer in (self._timer, self._lingering):
            if timer is not None:
                timer.cancel()
        for fd in list(self._readers):
            self._end_of(fd)
        self._close_input()
        self.output.finish()
        if self.errors is not None:
            self.errors.finish()
        self.exit_code = 124 if self.timed_out else 130 if self.cancelled else self._shown(self.leader_code)
        if (
            not self.timed_out
            and not self.cancelled
            and self.leader_code is not None
            and self.leader_code < 0
        ):
            self.signal = signal_name(-self.leader_code)
        if self.leader_code:
            self._note_oom_kills()
        self.over.set()

    def _shown(self, code: int | None) -> int | None:
        return code if code is None or code >= 0 or self._negative_codes else 128 - code

    def _note_oom_kills(self) -> None:
        """Add to the outcome the number of processes that the kernel killed for lack of memory. The kernel
        counts them per cgroup, so the number is that of the session.
        """
        group = self.session.init.group
        kills = group.new_oom_kills()
        if kills:
            limit = group.memory_max_bytes()
            self.outcome["oom_kills"] = kills
            room = "its sandbox" if limit is None else f"its {limit} bytes"
            self.outcome.setdefault(
                "hint", f"the kernel killed {kills} of the session's processes: {room} of memory were used up"
            )

    def lose(self) -> None:
        """End without an exit code: the session's processes have ended, and no init reports their exit
        status."""
        self._group_gone = True
        for fd in list(self._readers):
            for _ in range(64):
                if not self._readable(fd):
                    break
        self._finish()

    # Input

    async def write(self, text: str, *, deadline_s: float | None) -> None:
        """Write the text unchanged.

        Raises:
            OperationError: operation_failed; the input is closed, or the command read nothing for
                `deadline_s`.
        """
        data = memoryview(text.encode("utf-8", "surrogatepass"))
        total = len(data)
        if not total:
            return
        async with self._input_lock:
            try:
                async with asyncio.timeout(deadline_s):
                    while data:
                        if self._input < 0:
                            raise self._input_closed(total - len(data))
                        try:
                            data = data[os.write(self._input, data[:READ_BYTES]) :]
                        except (BlockingIOError, InterruptedError):
                            await self._writable()
                        except OSError as error:
                            if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):
                                raise
                            raise self._input_closed(total - len(data)) from None
            except TimeoutError:
                written = total - len(data)
                raise OperationError(
                    OPERATION_FAILED,
                    f"stdin_backpressure: the command took {written} of {total} bytes within "
                    f"{deadline_s:g} s",
                    {
                        "command_session_id": self.id,
                        "written_bytes": written,
                        "total_bytes": total,
                        "retryable": True,
                    },
                    reason="stdin_backpressure",
                ) from None
            self._line_open = not text.endswith("\n")
            self._written = time.monotonic()

    def _input_closed(self, written: int) -> OperationError:
        return OperationError(
            OPERATION_FAILED,
            f"standard input of {self.id} is closed",
            {"command_session_id": self.id, "written_bytes": written},
            reason="stdin_closed",
        )

    async def _writable(self) -> None:
        fd = self._input
        ready = self._room = self._loop.create_future()
        self._loop.add_writer(fd, _set, ready)
        try:
            await ready
        finally:
            self._room = None
            if self._input == fd:
                self._loop.remove_writer(fd)

    async def end_input(self) -> None:
        """End the input: close the pipe, or write the terminal's end-of-file character."""
        if self._tty:
            await self.write("\x04\x04" if self._line_open else "\x04", deadline_s=2)
            self._line_open = False
        elif self._input >= 0:
            async with self._input_lock:
                self._close_input()
        else:
            raise self._input_closed(0)

    def _close_input(self) -> None:
        if self._input >= 0:
            fd, self._input = self._input, -1
            self._loop.remove_writer(fd)
            if self._room is not None:  # the descriptor is no longer watched
                _set(self._room)
            if fd in self._readers:
                self._loop.remove_reader(fd)
                del self._readers[fd]
            if self._tty:  # the last close of a terminal takes a third of a millisecond: after the answer
                self._loop.call_later(CLOSE_LATER_S, os.close, fd)
            else:
                os.close(fd)

    def feed(self, text: str) -> None:
        """Write the initial input in the background; without a terminal also end the input after it."""

        async def run() -> None:
            try:
                await self.write(text, deadline_s=None)
                if not self._tty:
                    await self.end_input()
            except OperationError:
                pass  # the command has closed its input

        self.in_background(run())

    # Ending it

    def limit(self, timeout_s: float) -> None:
        """Kill the whole tree `timeout_s` seconds after its start."""

        def expired() -> None:
            if not self.finished and not self._group_gone:
                self.timed_out = True
                self.in_background(self._kill())

        self._timer = self._loop.call_at(
            self._loop.time() + max(0.0, self.started + timeout_s - time.monotonic()), expired
        )

    def cancel(self) -> bool:
        """Kill the whole tree; False if the command has ended by itself."""
        if self.finished or self._group_gone:
            return False
        if not self.cancelled:
            self.cancelled = True
            self.in_background(self._kill())
        return True

    async def _kill(self) -> None:
        init, self._killing = self.session.init, True
        try:
            await init.kill_tree(self.id)
        except OperationError:
            return  # the session has ended, and its commands with it
        finally:
            self._killing = False
        if not self._group_gone:
            self._gone([])

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task that is referenced until it ends."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Waiting and results

    async def wait(self, until: float) -> None:
        """Wait until it is terminal, or until the monotonic time `until`."""
        await _until(self.terminal, until)

    async def wait_for_answer(self, until: float) -> None:
        """Wait as `wait` does, but no longer than until the leader has ended: background processes may hold
        the output open for days.

        After a caller was answered so, later calls wait for the background processes too.
        """
        await _until(self.terminal if self.answerable.is_set() else self.answerable, until)

    def unfinished(self) -> Unfinished | None:
        """Return the reason why the command's work is not published; None if it is published."""
        return unfinished(CommandEnd(self.exit_code, self.signal, self.timed_out, self.cancelled), self.rule)

    def end_terminal(self) -> None:
        """Mark its end as reported."""
        self.terminal.set()
        self.answerable.set()

    async def wait_for_news(self, until: float) -> None:
        """Wait as `wait` does; of a service that is starting, only until it is ready or its time is over."""
        if self.service is None or self.service.readiness is None or self.service.settled.is_set():
            await self.wait(until)
        else:
            await _until(self.service.settled, until)
            if self.service.state == ENDED:
                await self.wait(time.monotonic() + END_S)  # its end is being reported

    async def observe_terminal(self, pool: Pool) -> None:
        """Note if a running program waits for input on its terminal. A pool without a free thread delays the
        answer by OBSERVE_S at most."""
        self.input_wait = None
        if not self._tty or self._input < 0 or self.finished or time.monotonic() - self._written < TYPED_S:
            return
        try:
            fd, root = os.dup(self._input), self.session.init.pid
        except OSError:  # no descriptor is free
            return

        def observe() -> TerminalWait | None:
            try:
                return terminal_wait(fd, root)
            finally:
                os.close(fd)

        observing = self._loop.create_task(pool.run(observe))
        self._tasks.add(observing)
        observing.add_done_callback(self._tasks.discard)
        await asyncio.wait({observing}, timeout=OBSERVE_S)
        typed = time.monotonic() - self._written < TYPED_S
        if observing.done() and not self.finished and not typed:
            self.input_wait = observing.result()

    async def wait_finished(self, until: float) -> None:
        """Wait for the end of its processes. A caller that holds the session's gate cannot use `wait`: the
        finalization would wait for the gate.
        """
        await _until(self.over, until)

    @property
    def status(self) -> str:
        if not self.terminal.is_set():
            return "running"
        if self.timed_out:
            return "timed_out"
        if self.cancelled:
            return "cancelled"
        return "ok" if self.exit_code == 0 else "error"

    def result(
        self,
        start: int | None = None,
        limit: int | None = None,
        *,
        always_id: bool = True,
        raw: bool = False,
        encoding: str = UTF8,
    ) -> dict[str, Any]:
        """Return the command result object.

        Args:
            start: first row; None takes the rows from the cursor on, which each result of a running command
                advances.
            always_id: False leaves `command_session_id` out if the command is done and this result has all of
                its output.
            raw: also show text that was overwritten after a carriage return; the numbers of rows are the same
                with and without it.
            encoding: BASE64 returns the bytes of the rows, raw; else bytes that are not UTF-8 become U+FFFD.
        """
        if start is None and self.lost is not None:
            raise self.lost
        running = not self.terminal.is_set()
        view = OutputView(raw, encoding)
        if start is None:
            rows = self._cursor.read(self.output, self._answer_bytes, view, advance=running)
        else:
            rows = self.output.read(start, limit, self._answer_bytes, errors=view.errors)
        found = {**self._status_json(running), **rows_json(self.output, rows, view)}
        whole = (
            rows.end == self.output.total_rows
            and not self.output.dropped
            and view.shows_all(rows, found["output"])
        )
        if always_id or running or not whole:
            found["command_session_id"] = self.id
        if running and self.output.screen_row is not None:
            found["screen_offset"] = self.output.screen_row
        found["workspace_session_id"] = self.session.id
        if self.service is not None:
            found |= self.service.json(running)
        if running and self.input_wait is not None:
            found |= self._input_json(self.input_wait)
        if self.errors is not None:
            if start is None:
                stderr = self._error_cursor.read(self.errors, self._answer_bytes, view, advance=running)
            else:
                stderr = self.errors.read(start, limit, self._answer_bytes, errors=view.errors)
            found |= stderr_json(self.errors, stderr, view)
        found |= cut_json(self.output, rows, view, windowed=limit is not None, with_tail=start is None)
        return found | self._progress_json(running)

    def _status_json(self, running: bool) -> dict[str, Any]:
        """The fields of a result about the command's status."""
        now = time.monotonic()
        end = self.ended if self.ended is not None and not running else now
        return {
            "status": self.status,
            "exit_code": None if running else self.exit_code,
            **({} if running or self.signal is None else {"signal": self.signal}),
            "wall_time_seconds": round(now - self.started, 6),
            "command_total_time_seconds": round(end - self.started, 6),
        }

    def _progress_json(self, running: bool) -> dict[str, Any]:
        """The fields of a result about the processes of a running command; for an ended command, the fields
        that its session added."""
        found: dict[str, Any] = {}
        if running and self.finished:
            found["finalizing"] = True
        elif running and self.leader_code is not None:
            found["leader_exit_code"], found["waiting_on"] = self._shown(self.leader_code), self.waiting_on
            if self.answerable.is_set():
                found["left_behind"] = self.waiting_on
        if self.left_behind:
            found["left_behind"] = self.left_behind
        return found if running else found | self.outcome

    def _input_json(self, wait: TerminalWait) -> dict[str, Any]:
        """The fields of a result about a program that waits for input."""
        total = self.output.total_rows
        how = ", with the newline" if wait.lines else "; each key counts as it is typed"
        hint = f"it waits for input on its terminal: write_command_stdin types it{how}"
        if wait.lines and not wait.echo:
            hint += "; what is typed is not shown, as for a password"
        return {
            "waiting_for_input": True,
            "last_line": plain_row(self.output.read(total - 1).text) if total else "",
            "hint": hint,
        }

    async def end_with_session(self, by: str) -> None:
        """Note that the operation `by` has ended init, and this service with it. Processes that outlive
        SIGTERM and the grace are killed with their pid namespace (pid_namespaces(7)), and init reports no
        end.
        """
        self.outcome["stopped_by"] = by
        if self._group_gone:
            await self.wait_finished(time.monotonic() + END_S)
        if not self.finished:
            self.leader_code = -signal.SIGKILL if self.leader_code is None else self.leader_code
            self.lose()

    def end_span(self) -> None:
        """End the span. Called before `end_terminal`, so that a caller that gets the end can read the
        trace."""
        if self.exit_code is not None:
            self.span.attrs["exit_code"] = self.exit_code
        if self.lost is not None:
            self.span.end(self.lost)
            return
        words = {True: telemetry.COMPLETED, False: telemetry.ERROR}
        self.span.status = (
            telemetry.TIMED_OUT
            if self.timed_out
            else telemetry.CANCELLED
            if self.cancelled
            else words[self.exit_code == 0]
        )
        self.span.end()

    def row(self) -> dict[str, Any]:
        """Give the entry of the command in list_commands."""
        return {
            "command_session_id": self.id,
            "workspace_session_id": self.session.id,
            "status": self.status,
            "exit_code": self.exit_code if self.terminal.is_set() else None,
            **({"signal": self.signal} if self.terminal.is_set() and self.signal is not None else {}),
            **({} if self.service is None else self.service.json(not self.terminal.is_set())),
            "command": self.text if len(self.text) <= 1000 else self.text[:1000] + "…",
            "request_id": self.request_id,
            "started_unix_ms": self.started_unix_ms,
        }

    @property
    def disk_bytes(self) -> int:
        """Size of its output on disk, in bytes."""
        return self.output.disk_bytes + (self.errors.disk_bytes if self.errors is not None else 0)

    def remove(self) -> None:
        """Delete its output."""
        self.output.remove()
        if self.errors is not None:
            self.errors.remove()
        if self.output.on_disk or (self.errors is not None and self.errors.on_disk):
            with fsync.suppress_errno(errno.ENOENT, errno.ENOTEMPTY):
                os.rmdir(self.directory)


async def _until(event: asyncio.Event, until: float) -> None:
    left = until - time.monotonic()
    if event.is_set() or left <= 0:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(left):
            await event.wait()


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
