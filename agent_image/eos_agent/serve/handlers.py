"""The table from operation to handler; arguments are checked against the catalog first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from eos_agent.base import log, telemetry
from eos_agent.base.pool import Pool
from eos_agent.base.settings import Settings
from eos_agent.base.telemetry import Telemetry
from eos_agent.files import head
from eos_agent.files.mounted import MAX_LIST_ENTRIES
from eos_agent.files.text import MAX_EDIT_BYTES, MAX_WINDOW_BYTES, MAX_WINDOW_LINES
from eos_agent.observe.agent import Agent, ConnectionCount
from eos_agent.observe.daemon import daemon, measure, own_figures
from eos_agent.observe.diagnostics import SelfDiagnostics
from eos_agent.observe.events import events
from eos_agent.observe.layerstack import layerstack
from eos_agent.observe.resources import cgroup, resources
from eos_agent.observe.sampler import Sampler
from eos_agent.observe.snapshot import snapshot
from eos_agent.observe.topology import topology
from eos_agent.observe.trace import trace
from eos_agent.serve import export_stream, git_export
from eos_agent.serve.read_several import read_several
from eos_agent.sessions import checkpoint, diff_session, file_calls, look_back, publish, rebase, unpublished
from eos_agent.sessions.check_store import Checks
from eos_agent.sessions.commands import Commands
from eos_agent.sessions.imports import Imports
from eos_agent.sessions.squash import Squashes
from eos_agent.sessions.table import Sessions
from eos_agent.wire.arguments import check_arguments
from eos_agent.wire.encoding import bytes_of, encoding_of
from eos_agent.wire.message_text import message_of
from eos_agent.wire.operations import INTERNAL_NAMES, find
from eos_agent.wire.operations_observe import OBSERVABILITY
from eos_agent.wire.protocol import INVALID_REQUEST, UNKNOWN_OP, OperationError, Request

if TYPE_CHECKING:
    from layerstack.export.stream import FileRange
    from layerstack.store import Store


class Stream(NamedTuple):
    """An answer in chunks of bytes or file ranges, each sent when it is ready; the connection ends with
    it."""

    pieces: AsyncGenerator[bytes | FileRange]


DRAFTS_SHOWN = 50
"""Most drafts in an answer of list_workspace_sessions, which has the newest; list_drafts has all."""
UNTRACED = frozenset({"sandbox_daemon_ready", *(operation.name for operation in OBSERVABILITY)})
"""Operations without a trace, so that `last` is the trace of the last request that was not an observation."""
CHANGING_FILES = frozenset({"write", "edit", "delete", "move", "patch"})


def _made(draft: dict[str, Any]) -> int:
    """Time at which a draft was made; 0 if its record cannot be read."""
    made = draft.get("created_unix_ms")
    return made if isinstance(made, int) else 0


Handler = Callable[[dict[str, Any], Request], Awaitable[dict[str, Any]]]


class Handlers:
    """The operations of one agent."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        sessions: Sessions,
        commands: Commands,
        pool: Pool,
        exports: Pool,
        recorder: Telemetry | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.sessions = sessions
        self.commands = commands
        self.pool = pool
        self.exports = exports
        self.telemetry = recorder or Telemetry(None)
        self.diagnostics = SelfDiagnostics(settings)
        self.sampler = Sampler(settings, sessions, pool, on_sample=self._diagnose)
        self.connections = ConnectionCount()
        self.checks = Checks(store)
        self.squashes = Squashes(sessions, exports, on_event=self._happened)
        self.imports = Imports(sessions)
        agent = Agent(
            settings,
            store,
            sessions,
            commands,
            pool,
            self.sampler,
            self.telemetry,
            self.diagnostics,
            self.connections,
        )
        self._table: dict[str, Handler] = {
            "exec_command": lambda args, request: commands.exec(args, request.request_id),
            "write_command_stdin": lambda args, _: commands.write_stdin(args),
            "read_command_lines": lambda args, _: commands.read_lines(args),
            "wait_command": lambda args, _: commands.wait(args),
            "signal_command": lambda args, _: commands.signal(args),
            "close_stdin": lambda args, _: commands.close_stdin(args),
            "list_commands": self._now(commands.list),
            "file_read": self._file("read"),
            "file_write": self._file("write"),
            "file_edit": self._file("edit"),
            "file_list": self._file("list"),
            "file_stat": self._file("stat"),
            "file_delete": self._file("delete"),
            "file_move": self._file("move"),
            "apply_patch": self._file("patch"),
            "file_search": lambda args, request: file_calls.walk(
                sessions, "search", args, request.request_id
            ),
            "file_blame": self._history(look_back.file_blame),
            "diff_session": lambda args, request: diff_session.diff_session(
                sessions, args, request.request_id
            ),
            "diff_draft": self._history(look_back.diff_draft),
            "list_versions": self._history(look_back.list_versions),
            "diff_versions": self._history(look_back.diff_versions),
            "pin_version": self._changing(look_back.pin_version),
            "unpin_version": self._history(look_back.unpin_version),
            "rollback_to": self._changing(look_back.rollback_to),
            "fsck": lambda args, _: self.checks.page(args),
            "create_workspace_session": lambda args, request: sessions.create(args, request.request_id),
            "publish_workspace_session": lambda args, request: publish.publish(
                sessions, args, request.request_id
            ),
            "rebase_workspace_session": lambda args, request: rebase.rebase(
                sessions, args, request.request_id
            ),
            "checkpoint_session": lambda args, request: checkpoint.checkpoint(
                sessions, args, request.request_id
            ),
            "restore_session": lambda args, request: checkpoint.restore(sessions, args, request.request_id),
            "destroy_workspace_session": lambda args, request: sessions.destroy(args, request.request_id),
            "recover_workspace_session": lambda args, _: sessions.recover(args),
            "list_workspace_sessions": self._list_sessions,
            "preview_publish": lambda args, request: publish.preview(sessions, args, request.request_id),
            "list_drafts": self._list_drafts,
            "discard_draft": self._discard_draft,
            "snapshot": lambda _args, _request: snapshot(agent),
            "trace": lambda args, _: trace(agent, args),
            "events": lambda args, _: events(agent, args),
            "resources": lambda args, _: resources(agent, args),
            "daemon": lambda _args, _request: daemon(agent),
            "topology": lambda _args, _request: topology(agent),
            "cgroup": lambda args, _: cgroup(agent, args),
            "layerstack": lambda args, _: layerstack(agent, args),
        }

    @staticmethod
    def _now(call: Callable[[dict[str, Any]], dict[str, Any]]) -> Handler:
        async def handler(args: dict[str, Any], _request: Request) -> dict[str, Any]:
            return call(args)

        return handler

    async def perform(self, request: Request) -> dict[str, Any] | Stream:
        """Perform one request. On return, also by an error, its trace can be read.

        Raises:
            OperationError, or any exception of the operation; base.errors.operation_error makes an envelope
            of it.
        """
        if request.op in UNTRACED:
            return await self._perform(request)
        known = request.op in INTERNAL_NAMES or request.op == "export_stream" or find(request.op) is not None
        with self.telemetry.request(request.request_id, op=request.op if known else "unknown"):
            return await self._perform(request)

    async def _perform(self, request: Request) -> dict[str, Any] | Stream:
        if request.op == "sandbox_daemon_ready":
            return {"status": "ready", "sandbox_id": self.settings.sandbox_id, "daemon": "sandbox-daemon"}
        if request.op == "cancel_request":
            return await self.commands.cancel_request(request.args)
        if request.op == "unpublished_work":
            return await self._unpublished(request.args)
        if request.op == "squash_layerstack":
            with telemetry.span("layerstack.squash"), telemetry.Phases(telemetry.SQUASHING):
                return await self.squashes.perform()
        if request.op == "export_stream":
            return self._export(request.args)
        if request.op == "export_git_heads":
            return await self.pool.run(lambda: git_export.heads(self.store, request.args))
        if request.op == "export_git":
            span = telemetry.span("layerstack.export")
            return Stream(git_export.pack_pieces(self.store, self.exports, request.args, span))
        if request.op == "import_tree":
            with telemetry.Phases(telemetry.PUBLISHING):
                return await self.imports.perform(request.args, request.request_id)
        operation, handler = find(request.op), self._table.get(request.op)
        if operation is None or handler is None:
            raise OperationError(
                UNKNOWN_OP, f"unknown operation: {request.op}", {"op": request.op}, reason="unknown_op"
            )
        given = self._raw_defaults(request.op, request.args)
        args = check_arguments(operation, given, server=True)
        for key in ("layer_id", "limit"):  # arguments of raw requests that the catalog does not list
            if key in given and key not in args:
                args[key] = given[key]
        named = args.get("workspace_session_id")
        if isinstance(named, str) and self.store.dead.find(named) is not None:
            await self.sessions.recovering.wait_for_session(named)
        return await handler(args, request)

    def _raw_defaults(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        """Fill in configured defaults, and accept numbers of raw requests that the catalog excludes."""
        given = dict(args)
        if op == "file_read":
            given.setdefault("limit", self.settings.get("runtime.file.read_lines_default", MAX_WINDOW_LINES))
            if given.get("offset") == 0:
                given["offset"] = 1
        elif op == "read_command_lines":
            given.setdefault("limit", self.settings.get("runtime.command.read_lines_default", 200))
        return given

    def _file(self, name: str) -> Handler:
        root = self.settings.workspace_root
        limits: dict[str, Any] = {
            "read": {"max_bytes": self.settings.get("runtime.file.max_output_bytes", MAX_WINDOW_BYTES)},
            "edit": {"max_bytes": self.settings.get("runtime.file.max_edit_bytes", MAX_EDIT_BYTES)},
            "patch": {"max_bytes": self.settings.get("runtime.file.max_edit_bytes", MAX_EDIT_BYTES)},
            "list": {"max_entries": self.settings.get("runtime.file.max_list_entries", MAX_LIST_ENTRIES)},
        }.get(name, {})

        async def handler(args: dict[str, Any], request: Request) -> dict[str, Any]:
            if "workspace_session_id" in args and "version" in args:
                raise OperationError(
                    INVALID_REQUEST,
                    f"file_{name} reads either a version or a session",
                    {"argument": "version"},
                    reason="one_of_two",
                )
            if args.get("paths"):
                return await read_several(args, limits["max_bytes"], lambda one: handler(one, request))
            args.pop("paths", None)
            if name == "list" and args.get("glob"):
                return await file_calls.walk(self.sessions, "glob", {**limits, **args}, request.request_id)
            session_id, agent = args.pop("workspace_session_id", None), args.pop("agent", None)
            content = args.pop("content", None)
            data = None if content is None else bytes_of(content, encoding_of(args))
            message = message_of(args)
            args.pop("message", None)
            args = {**limits, **args}
            if session_id is not None:
                return await file_calls.file_op(self.sessions, session_id, name, args, data, message)
            with telemetry.Phases(telemetry.PUBLISHING if name in CHANGING_FILES else {}):
                return await self.pool.run(
                    lambda: head.perform_on_head(
                        self.store,
                        name,
                        root,
                        args,
                        data,
                        request_id=request.request_id,
                        agent=agent,
                        message=message,
                    )
                )

        return handler

    def _history(self, call: Callable[[Store, str, dict[str, Any]], dict[str, Any]]) -> Handler:
        async def handler(args: dict[str, Any], _request: Request) -> dict[str, Any]:
            return await self.pool.run(lambda: call(self.store, self.settings.workspace_root, args))

        return handler

    def _changing(self, call: Callable[[Store, str, dict[str, Any], str], dict[str, Any]]) -> Handler:
        async def handler(args: dict[str, Any], request: Request) -> dict[str, Any]:
            with telemetry.Phases(telemetry.PUBLISHING):
                return await self.sessions.captures.run(
                    lambda: call(self.store, self.settings.workspace_root, args, request.request_id),
                    request_id=request.request_id,
                )

        return handler

    async def _unpublished(self, args: dict[str, Any]) -> dict[str, Any]:
        """The internal operation unpublished_work, which the manager calls before it destroys the sandbox.
        clean: compare contents.
        """
        from eos_agent.sessions import quarantine

        dead = await self.sessions.dead_rows(patient=args.get("clean") is True)
        live = list(self.sessions.live.values())
        found = await self.sessions.captures.run(
            lambda: unpublished.of_sandbox(live, clean=args.get("clean") is True)
        )
        drafts = await self.pool.run(self.store.drafts)
        rows = [*(draft.to_json() for draft in drafts), *quarantine.drafts(self.store)]
        return {
            **found,
            "dead_sessions": dead,
            "drafts": rows,
            "layers": max(0, len(self.store.head.layers) - 1),
            "newest_version": self._newest_version(),
        }

    def _newest_version(self) -> int:
        """The version of the newest publication; 0 without any. A squash makes a version of its own, with no
        change.
        """
        top = self.store.head.layers[0]
        return 0 if top.is_base else self.store.layers.get(top.layer_id).version

    async def _list_sessions(self, _args: dict[str, Any], _request: Request) -> dict[str, Any]:
        dead = await self.sessions.dead_rows(patient=True)
        found: dict[str, Any] = {"sessions": await self.sessions.rows()}
        drafts = await self._drafts()
        if drafts:
            found["drafts"] = sorted(drafts, key=_made, reverse=True)[:DRAFTS_SHOWN]
            found["draft_count"] = len(drafts)
        return {**found, "dead_sessions": dead} if dead else found

    async def _list_drafts(self, _args: dict[str, Any], _request: Request) -> dict[str, Any]:
        await self.sessions.recovering.quiet()
        return {"drafts": await self._drafts()}

    async def _drafts(self) -> list[dict[str, Any]]:
        drafts = await self.pool.run(self.store.drafts)
        from eos_agent.sessions import quarantine

        return [*(draft.to_json() for draft in drafts), *quarantine.drafts(self.store)]

    async def _discard_draft(self, args: dict[str, Any], _request: Request) -> dict[str, Any]:
        draft_id = args["draft_id"]

        def discard() -> int:
            size_bytes = self.store.discard_draft(draft_id)
            self.store.staging.wait_removed()
            return size_bytes

        size = await self.pool.run(discard)
        self.sessions.forget_draft(draft_id)
        return {"draft_id": draft_id, "discarded": True, "bytes": size}

    def _export(self, args: dict[str, Any]) -> Stream:
        """The internal operation export_stream, for export_changes."""
        given = export_stream.arguments_of(args)
        span = telemetry.span("layerstack.export", offset=given.offset)
        return Stream(export_stream.export_pieces(self.sessions, self.exports, given, span))

    # Events without a request

    def _happened(self, name: str, attrs: dict[str, Any]) -> None:
        """Log and trace an event that no request caused."""
        log.log(name, **attrs)
        self.telemetry.happened(name, attrs)

    def _diagnose(self, ts: int) -> None:
        """Check this process after each sample; runs in the sampler's thread."""
        inside = own_figures()
        self.diagnostics.look(
            ts,
            **inside,
            about=lambda: measure({"ownership": {}, "transcripts": self.settings.transcripts}),
        )
