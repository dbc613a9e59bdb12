"""The table of commands: admission, the operations on them, and the newest 512 that ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from eos_agent.base import telemetry
from eos_agent.base.cancellation import Cancellations, request_not_found
from eos_agent.handles.environment import command_environment, parse_env
from eos_agent.handles.git_identities import GitIdentities
from eos_agent.sessions import readiness, service, session_commands
from eos_agent.sessions.command import Command
from eos_agent.sessions.interruption import PublishRule
from eos_agent.sessions.kept_output import KeptOutput
from eos_agent.sessions.output_search import CONTEXT_MAX, OutputSearch
from eos_agent.wire.encoding import UTF8
from eos_agent.wire.message_text import message_of
from eos_agent.wire.protocol import INVALID_REQUEST, NOT_FOUND, OPERATION_FAILED, SERVER_BUSY, OperationError
from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync

if TYPE_CHECKING:
    from eos_agent.base.settings import Settings
    from eos_agent.handles.init_handle import Spawned
    from eos_agent.sessions.service import Service
    from eos_agent.sessions.session import Session
    from eos_agent.sessions.table import Sessions

CANCEL_WAIT_S = 20.0
"""Seconds that a cancellation waits for the end of the process tree and of an implicit session, so that on a
busy machine too the answer is `cancelled`.
"""
DEFAULT_YIELD_MS = 1000
MAX_COMMAND_BYTES = 131071  # MAX_ARG_STRLEN of the kernel, without the final NUL
INTERRUPT, END_OF_INPUT = "\x03", "\x04"
COUNTER_BLOCK = 1000
SETTLE_S = 1.0
"""Seconds after the time limit of a service's readiness in which it is settled."""


def command_not_found(command_id: str, kind: str = NOT_FOUND) -> OperationError:
    details = {
        "command_session_id": command_id,
        "hint": "list_workspace_sessions shows the running ones; the newest 512 that ended are kept",
    }
    return OperationError(kind, f"command not found: {command_id}", details, reason="command_not_found")


def _number_in(path: str) -> int:
    with open(path, "rb") as file:
        return int(file.read())


def full_session(session: Session, most: int) -> OperationError:
    details = {
        "limit": "runtime.command.max_active_per_session",
        "value": most,
        "active_command_session_ids": list(session.commands),
        "retryable": True,
        "hint": "wait for one with read_command_lines (wait_ms), signal_command one, or use another session",
    }
    message = (
        f"command admission refused: {most} commands run in workspace session {session.id}, which is "
        f"the limit of one session"
    )
    return OperationError(SERVER_BUSY, message, details, reason="max_active_commands_of_session")


def no_terminal_left(session: Session, most: int) -> OperationError:
    """The error for a command that gets no terminal, because the session's /dev/pts is full or the machine's
    limit is reached.
    """
    limit, where = "runtime.workspace.max_terminals", f"workspace session {session.id}"
    with contextlib.suppress(OSError, ValueError):
        used, machine, reserve = (
            _number_in(f"/proc/sys/kernel/pty/{name}") for name in ("nr", "max", "reserve")
        )
        if used >= machine - reserve:
            limit, where, most = "kernel.pty.max - kernel.pty.reserve", "the whole machine", machine - reserve
    details = {
        "limit": limit,
        "value": most,
        "workspace_session_id": session.id,
        "retryable": True,
        "hint": "tty=false runs the command without one; end processes that hold terminals",
    }
    message = f"no terminal is free in {where}: there are at most {most}"
    return OperationError(SERVER_BUSY, message, details, reason="no_terminal_left")


class Commands:
    """The commands of one agent: the running ones, and the newest 512 that ended."""

    def __init__(self, settings: Settings, sessions: Sessions, base_environment: dict[str, str]) -> None:
        self._settings = settings
        self._sessions = sessions
        self._environment = base_environment
        self._git = GitIdentities(settings, sessions.zygote)
        self._known: OrderedDict[str, Command] = OrderedDict()
        self._terminal: OrderedDict[str, None] = OrderedDict()
        self._active = 0  # starting or running
        self._endings: set[asyncio.Task[None]] = set()  # one for each running command
        self._cancellations = Cancellations()
        self._counter_path = os.path.join(settings.layer_stack_root, "command-counter.json")
        self._next = self._reserved = self._read_counter()
        self._reserve()
        self._max_active: int = settings.get("runtime.command.max_active", 32)
        self._max_of_session: int = settings.get(
            "runtime.command.max_active_per_session", self._max_active - self._max_active // 4
        )
        self._max_terminals: int = settings.get("runtime.workspace.max_terminals", 64)
        self._kept_bytes: int = settings.get("runtime.command.max_kept_output_bytes", 1 << 30)
        self._kept = KeptOutput()
        self._searches = OutputSearch()
        self._keep: int = settings.get("runtime.namespace_execution.max_terminal_entries", 512)
        self._transcript_bytes: int = settings.get("runtime.command.max_transcript_bytes", 64 << 20)
        self._answer_bytes: int = settings.get("runtime.command.max_output_bytes", 256 << 10)
        self._stdin_deadline: float = settings.get("runtime.namespace_execution.stdin_write_deadline_s", 2)
        self._control: str = settings.get("runtime.command.stdin_control", "typed")
        self._negative_codes = settings.get("runtime.command.signal_exit_code", "shell") == "negative"
        self._publish_interrupted = settings.get("runtime.publish.interrupted", "reject") == "publish"
        self._unknown: str = settings.get("runtime.command.unknown_id", "not_found")
        self._leader_grace_s: float = settings.get("runtime.command.leader_grace_s", 0.5)
        self._completion: str = settings.get("runtime.command.completion", "process_group")

    def _read_counter(self) -> int:
        try:
            with open(self._counter_path, encoding="utf-8") as file:
                body = json.load(file)
        except FileNotFoundError:
            return 1
        if body.get("format") != 1:
            raise StoreCorrupt(
                f"{self._counter_path}: format {body.get('format')!r} is unknown",
                details={"file": self._counter_path},
            )
        return int(body["next"])

    def _reserve(self) -> None:
        """Reserve a block of 1000 numbers on disk, so that no command id occurs twice in the life of the
        store."""
        self._reserved = self._next + COUNTER_BLOCK
        fsync.write_file(
            self._counter_path, json.dumps({"format": 1, "next": self._reserved}).encode() + b"\n"
        )

    def _new_id(self) -> str:
        if self._next >= self._reserved:
            self._reserve()
        number, self._next = self._next, self._next + 1
        return f"namespace_execution_{number}"

    @property
    def active(self) -> int:
        """Number of commands that are starting or running."""
        return self._active

    # Operations

    async def exec(self, args: dict[str, Any], request_id: str) -> dict[str, Any]:
        with self._cancellations.starting(request_id):
            command = await self.start(args, request_id)
        if command.service is not None and command.service.readiness is not None:
            await self._await_service(command, command.service, args.get("yield_time_ms"))
        else:
            await command.wait_for_answer(
                command.started + args.get("yield_time_ms", DEFAULT_YIELD_MS) / 1000
            )
        if args.get("yield_time_ms") != 0:
            await self._observe(command)
        return command.result(always_id=False, raw=args["raw"], encoding=args.get("encoding", UTF8))

    async def _observe(self, command: Command) -> None:
        """Find out, before a result, if a command that runs waits for input."""
        if not command.terminal.is_set():
            await command.observe_terminal(self._sessions.pool)

    async def _await_service(self, command: Command, named: Service, yield_ms: int | None) -> None:
        """Wait until a service is ready, at most `yield_ms`.

        Raises:
            OperationError: operation_failed; service_ended, service_not_ready.
        """
        assert named.readiness is not None
        limit_s = named.readiness.timeout_s + SETTLE_S
        await command.wait_for_news(
            command.started + (limit_s if yield_ms is None else min(limit_s, yield_ms / 1000))
        )
        found = readiness.failure(command, named)
        if found is not None:
            raise found

    async def start(self, args: dict[str, Any], request_id: str) -> Command:
        """Admit and spawn a command.

        Raises:
            OperationError: invalid_request, server_busy at the limit, operation_failed for other failures.
        """
        text: str = args["cmd"]
        if not text:
            raise OperationError(
                INVALID_REQUEST, "cmd must be non-empty", {"argument": "cmd"}, reason="empty_command"
            )
        if not text.strip():
            raise OperationError(
                OPERATION_FAILED,
                "invalid command request: cmd must be non-empty",
                {"argument": "cmd"},
                reason="empty_command",
            )
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_COMMAND_BYTES or "\0" in text:
            why = (
                "holds a NUL byte"
                if "\0" in text
                else f"is {size} bytes, at most {MAX_COMMAND_BYTES} can be started"
            )
            hint = "write the script to a file with file_write and run that, or pass it as stdin to `sh`"
            raise OperationError(
                INVALID_REQUEST,
                f"cmd {why}",
                {"argument": "cmd", "max_bytes": MAX_COMMAND_BYTES, "hint": hint},
                reason="command_too_long",
            )
        tty, split = args["tty"], args["split_output"]
        if split and tty:
            raise OperationError(
                INVALID_REQUEST,
                "split_output needs tty=false",
                {"argument": "split_output"},
                reason="split_needs_pipes",
            )
        extra = parse_env(args.get("env", []))
        service.check(args)
        if self._active >= self._max_active:
            raise OperationError(
                SERVER_BUSY,
                f"command admission refused: {self._max_active} commands are running, which is the limit",
                {
                    "max_active_commands": self._max_active,
                    "limit": "runtime.command.max_active",
                    "value": self._max_active,
                    "retryable": True,
                },
                reason="max_active_commands",
            )
        message = message_of(args)
        self._active += 1
        try:
            session_id = args.get("workspace_session_id")
            if session_id is not None:
                async with self._sessions.use(session_id) as session:
                    session.message = message or session.message
                    return await self._spawn(session, text, args, extra, request_id)
            session = await self._sessions.create_implicit(agent=args.get("agent"), request_id=request_id)
            session.message = message
            try:
                async with self._sessions.use(session.id):
                    return await self._spawn(session, text, args, extra, request_id)
            except BaseException:
                await self._sessions.finalize(session)
                raise
        except BaseException:
            self._active -= 1
            raise

    async def _spawn(
        self, session: Session, text: str, args: dict[str, Any], extra: dict[str, str], request_id: str
    ) -> Command:
        """Spawn a command; the session's gate is held."""
        self._cancellations.check(request_id)
        if len(session.commands) >= self._max_of_session:
            raise full_session(session, self._max_of_session)
        named = session_commands.service_of(args, session)
        if named is not None:
            await readiness.check(session, named, self._searches)
        shell = await self._sessions.shell(session) or []
        command_id = self._new_id()
        directory = os.path.join(self._settings.transcripts, command_id)
        command = Command(
            command_id,
            session,
            text,
            request_id,
            directory,
            split=args["split_output"],
            max_bytes=self._transcript_bytes,
            completion=self._completion,
            leader_grace_s=self._leader_grace_s,
            answer_bytes=self._answer_bytes,
            rule=PublishRule(
                args.get("publish_interrupted", self._publish_interrupted), args["publish_on_failure"]
            ),
            negative_codes=self._negative_codes,
            service=named,
        )
        session.commands[command_id] = command
        session.fresh = False
        try:
            try:
                spawned = await self._run(command, shell, args, extra)
            except OperationError as error:
                if error.details.get("reason") != "exec_failed":
                    raise
                spawned = await self._run(
                    command, await self._sessions.shell(session, again=True) or [], args, extra
                )
        except BaseException as error:
            session.commands.pop(command_id, None)
            command.span.end(error)
            raise
        self._known[command_id] = command
        command.attach(spawned.fds)
        ending = asyncio.get_running_loop().create_task(self._end(command))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        if named is not None and named.readiness is not None:
            command.in_background(readiness.watch(command, named, named.readiness, self._searches))
        if "timeout_ms" in args and not command.finished:
            command.limit(args["timeout_ms"] / 1000)
        if args.get("stdin") is not None and not command.finished:
            command.feed(args["stdin"])
        return command

    async def _run(
        self, command: Command, shell: list[str], args: dict[str, Any], extra: dict[str, str]
    ) -> Spawned:
        if not shell:
            raise OperationError(
                OPERATION_FAILED,
                "the image has no shell: neither bash nor sh can be run in the session",
                {
                    "workspace_session_id": command.session.id,
                    "hint": "use an image with /bin/sh, or the file operations",
                },
                reason="no_shell",
            )
        tty, uid, base = args["tty"], None, self._environment
        identity = await self._git.of(command.session.agent)
        if args.get("user") is not None:
            account, _ = await command.session.init.file_op("account", {"user": args["user"]})
            uid, base = account["uid"], {**base, "USER": account["name"], "HOME": account["home"]}
        try:
            with telemetry.within(command.span), telemetry.span("namespace.exec.run_shell", tty=tty):
                return await command.session.init.spawn(
                    command.id,
                    argv=[*shell, command.text],
                    env=identity.added_to(command_environment(base, extra, tty=tty)),
                    cwd=args.get("cwd") or self._settings.workspace_root,
                    tty=tty,
                    split=args["split_output"],
                    stdin=not tty and args.get("stdin") is not None,
                    on_event=command.on_event,
                    uid=uid,
                )
        except OperationError as error:
            if error.details.get("reason") == "no_terminal" and error.details.get("errno") == "ENOSPC":
                raise no_terminal_left(command.session, self._max_terminals) from None
            raise

    async def _end(self, command: Command) -> None:
        """Wait for the command's processes and, if it was the last command of an implicit session, for the
        end of the session; then report the command's end.
        """
        await command.over.wait()
        self._active -= 1
        try:
            command.outcome.update(await self._sessions.command_ended(command))
        finally:
            self._make_terminal(command)

    def _make_terminal(self, command: Command) -> None:
        command.end_span()
        command.end_terminal()
        self._terminal[command.id] = None
        self._kept.add(command.id, command.session.id, command.disk_bytes)
        while len(self._terminal) > self._keep:
            self._evict(next(iter(self._terminal)))
        while (
            self._kept.bytes > self._kept_bytes and (oldest := self._kept.next_deleted()) != command.id
        ):  # the newest is about to be read
            self._evict(oldest)

    def _evict(self, command_id: str) -> None:
        del self._terminal[command_id]
        self._kept.remove(command_id)
        gone = self._known.pop(command_id, None)
        if gone is not None:
            gone.remove()

    def _live(self, command_id: str, kind: str = NOT_FOUND) -> Command:
        """The running command of that id; `kind`: that of the error for an unknown one."""
        if not command_id:
            details = {"argument": "command_session_id"}
            raise OperationError(
                INVALID_REQUEST, "command_session_id must be non-empty", details, reason="empty_id"
            )
        command = self._known.get(command_id)
        if command is None:
            raise command_not_found(command_id, kind)
        if command.lost is not None:
            raise command.lost
        if command.finished:
            raise OperationError(
                OPERATION_FAILED,
                f"command already completed: {command_id}",
                {
                    "command_session_id": command_id,
                    "hint": "read_command_lines returns its output and its exit code",
                },
                reason="command_finished",
            )
        return command

    async def write_stdin(self, args: dict[str, Any]) -> dict[str, Any]:
        command = self._live(args["command_session_id"], OPERATION_FAILED)  # contract 1.2.2
        text: str = args["stdin"]
        typed = set(text) - set("\r\n")
        cancels = {INTERRUPT} if self._control == "typed" else {INTERRUPT, END_OF_INPUT}
        if (typed and typed <= cancels) or (self._control == "anywhere" and typed & cancels):
            command.cancel()
            await command.wait(time.monotonic() + CANCEL_WAIT_S)
            return command.result()
        if typed == {END_OF_INPUT}:
            await command.end_input()
        else:
            await command.write(text, deadline_s=self._stdin_deadline)
        await command.wait_for_answer(time.monotonic() + args.get("yield_time_ms", DEFAULT_YIELD_MS) / 1000)
        await self._observe(command)
        return command.result()

    async def close_stdin(self, args: dict[str, Any]) -> dict[str, Any]:
        command = self._live(args["command_session_id"])
        await command.end_input()
        await command.wait_for_answer(time.monotonic() + DEFAULT_YIELD_MS / 1000)
        await self._observe(command)
        return command.result()

    async def signal(self, args: dict[str, Any]) -> dict[str, Any]:
        command = self._live(args["command_session_id"])
        number = signal.Signals["SIG" + args["signal"]]
        if not await command.session.init.signal(command.id, number) and not command.finished:
            raise OperationError(
                OPERATION_FAILED,
                f"command already completed: {command.id}",
                {"command_session_id": command.id},
                reason="command_finished",
            )
        if number not in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGSTOP, signal.SIGCONT):
            await command.wait_for_answer(time.monotonic() + DEFAULT_YIELD_MS / 1000)
        await self._observe(command)
        return command.result()

    async def cancel_request(self, args: dict[str, Any]) -> dict[str, Any]:
        """Kill the command that a request started. The work of an implicit session becomes a draft; an
        explicit session is left alone.
        """
        request_id, starting = await self._cancellations.cancel_start(args)
        found = [command for command in self._known.values() if command.request_id == request_id]
        answer: dict[str, Any] = {"request_id": request_id, "cancelled": False}
        if not found:
            captures = self._sessions.captures
            answer["cancelled"] = starting or captures.cancel(request_id)
            if not answer["cancelled"]:
                if args.get("in_flight") is not True:
                    raise request_not_found(request_id)
                self._cancellations.expect(request_id)
                captures.expect(request_id)
                answer["cancelled"] = True
            return answer
        for command in found:
            answer["command_session_id"] = command.id
            # the command may have ended, and its work may be in publication
            if command.cancel() or self._sessions.captures.cancel(request_id):
                answer["cancelled"] = True
        end = time.monotonic() + CANCEL_WAIT_S
        for command in found:
            await command.wait(end)
        return answer

    async def wait(self, args: dict[str, Any]) -> dict[str, Any]:
        command = self._known.get(args["command_session_id"])
        if command is None:
            raise command_not_found(args["command_session_id"])
        await command.wait(time.monotonic() + args["timeout_ms"] / 1000)
        await self._observe(command)
        return command.result()

    async def read_lines(self, args: dict[str, Any]) -> dict[str, Any]:
        command_id = args["command_session_id"]
        command = self._known.get(command_id)
        if command is None:
            if self._unknown != "empty_ok":
                raise command_not_found(command_id)
            zero = dict.fromkeys(("wall_time_seconds", "command_total_time_seconds"), 0.0)
            none = dict.fromkeys(("start_offset", "end_offset", "total_lines", "original_token_count"), 0)
            return {
                "status": "ok",
                "exit_code": None,
                **zero,
                **none,
                "output": "",
                "command_session_id": command_id,
            }
        most: int = self._settings.get("runtime.command.read_lines_max", 1000)
        limit = min(max(1, args["limit"]), most)
        if args.get("wait_ms"):
            await command.wait_for_news(time.monotonic() + args["wait_ms"] / 1000)
        await self._observe(command)
        start, total = args["start_offset"], command.output.total_rows
        if args.get("tail"):
            limit = min(args["tail"], most)
            start = total - limit
        elif start < 0:
            start += total
        start, encoding = max(0, start), args.get("encoding", UTF8)
        if args.get("pattern"):
            found = await self._searches.search(
                command.output, args["pattern"], start, min(args.get("context", 0), CONTEXT_MAX)
            )
            return {**command.result(start, 1, raw=args["raw"]), **found.json(start, total)}
        return command.result(start, limit, raw=args["raw"], encoding=encoding)

    def list(self, args: dict[str, Any]) -> dict[str, Any]:
        session_id, after, limit = args.get("workspace_session_id"), args.get("after"), args.get("limit", 200)
        rows = [command for command in self._known.values() if session_id in (None, command.session.id)]
        if after is not None:
            number = _number(after)
            rows = [command for command in rows if _number(command.id) > number]
        page = rows[:limit]
        return {
            "commands": [command.row() for command in page],
            "next": page[-1].id if len(rows) > limit else None,
        }


def _number(command_id: str) -> int:
    tail = command_id.rpartition("_")[2]
    if not tail.isdecimal() or len(tail) > 20:
        raise OperationError(
            INVALID_REQUEST,
            "after is not a command_session_id",
            {"argument": "after"},
            reason="invalid_cursor",
        )
    return int(tail)
