"""`tools/list` and `tools/call`: the catalog as tools, one call from its arguments to its result.

A client that cancels an `exec_command` (`notifications/cancelled`, or hanging up in the modern HTTP era) has
the command killed in its sandbox; the work of its own session becomes a draft. When this server ends, for
whatever reason, the gateway cancels its commands without a session 10 s later (`eos_mcp.gateway.departed`),
unless `on_disconnect` is `detach`. Any other cancelled call only stops waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import anyio
import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from eos_agent.wire.protocol import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    SERVER_BUSY,
    OperationError,
    is_error,
    new_request_id,
)
from eos_mcp import catalog
from eos_mcp.catalog import Operation
from eos_mcp.gateway_client.aio import ToolGateway
from eos_mcp.mcp import (
    allowed_dirs,
    confirm,
    default_sandbox,
    example_calls,
    known_clients,
    media,
    model_arguments,
    render,
    schema,
    terminal_output,
    truncate,
)
from eos_mcp.mcp.offered_tools import OfferedTools
from eos_mcp.mcp.own_requests import OwnRequests
from eos_mcp.mcp.server_options import EOS, ServerOptions

log = logging.getLogger("eos.mcp")

# For operations whose budget has no limit, such as create_sandbox and export_changes.
UNBOUNDED_S = 1800.0
FIRST_PROGRESS_S = 1.5
NEXT_PROGRESS_S = 5.0
CANCEL_S = 2.0
LIST_S = 30.0
PENDING = "pending"  # stands for the sandbox while the other arguments are checked
NAME_SHOWN = 200  # characters of the name of an unknown tool in its error
AGENT_MAX_BYTES = 256  # as the catalog bounds the argument
CANCELLED_THERE = frozenset(
    {"exec_command", "preview_publish", "publish_workspace_session", "rebase_workspace_session"}
)
CANCEL_BUSY_S, CANCEL_PAUSE_S = (
    10.0,
    0.1,
)  # a sandbox without a free connection is asked again: else the command would keep running unseen


Report = Callable[[float, str], Awaitable[None]]
"""Progress of one call: seconds, text."""


class Client(NamedTuple):
    """The client of a call: its name, how to ask for its roots, and how to ask its person."""

    name: str | None = None
    roots: Callable[[], Awaitable[Sequence[str]]] | None = None
    ask: confirm.Ask | None = None


UNKNOWN_CLIENT = Client()


class ToolAnswer(NamedTuple):
    """Answer of one call: the text for the model, and the gateway's JSON."""

    text: str
    reply: dict[str, Any]
    is_error: bool


class Tools:
    """The tools of one server. Holds no state of sandboxes; every call is one request to the gateway."""

    def __init__(
        self, options: ServerOptions, gateway: ToolGateway, operations: Sequence[Operation] | None = None
    ) -> None:
        self._options, self._gateway = options, gateway
        members = schema.operations(options) if operations is None else operations
        self._operations = {operation.name: operation for operation in members}
        self._for_models = options.program == EOS and options.tool_set in ("agent", "all")
        self._lenient = options.program == EOS
        self._patient = self._lenient and options.tool_set == "agent"
        self._offered = OfferedTools(self._operations)
        self._operations |= {
            other: self._operations[name]
            for name, other in schema.names(options).items()
            if name in self._operations
        }
        definitions = [self._offered.definition(d) for d in schema.definitions(options, members)]
        self._list = types.ListToolsResult(tools=[types.Tool.model_validate(d) for d in definitions])
        self._roots, self._resolved = allowed_dirs.by_command_line(options), allowed_dirs.Resolved()
        self._last_chosen = default_sandbox.LastChosen()
        self._asker = confirm.Asker() if self._lenient else None
        self.closing = False
        """Set at shutdown: calls that are cut off then stay running in their sandbox."""

    async def list(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return self._list

    async def call(
        self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Handle tools/call of the SDK."""

        async def report(value: float, text: str) -> None:
            await ctx.session.report_progress(value, None, text)

        async def asked() -> Sequence[str]:
            return await allowed_dirs.asked(ctx, self._options, self._resolved)

        roots = await asked() if self.wants_client(params.name) else None
        info = ctx.session.client_params
        name = info.client_info.name if info is not None else None
        operation = self._operations.get(params.name)
        confirmed = self._asker is not None and operation is not None and operation.name in confirm.CONFIRMED
        ask = self._asker.of(ctx, params) if self._asker is not None and confirmed else None
        try:
            found = await self.answer(
                params.name,
                params.arguments or {},
                report if _progress_token(ctx) is not None else None,
                roots,
                Client(name, asked, ask),
            )
        except confirm.InputNeeded as needed:
            return needed.result
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=found.text)]
        content += media.taken_out(found.reply)
        return types.CallToolResult(content=content, structured_content=found.reply, is_error=found.is_error)

    @property
    def names(self) -> Sequence[str]:
        """Names of the tools as tools/list has them."""
        return [tool.name for tool in self._list.tools]

    def wants_client(self, name: str) -> bool:
        """Return True when a call of this tool needs the client's roots."""
        return name in allowed_dirs.BOUND and self._roots is None and allowed_dirs.bounded(self._options)

    def _bounds(self, name: str) -> Sequence[str] | None:
        return allowed_dirs.where_started() if self.wants_client(name) else self._roots

    async def answer(
        self,
        name: str,
        arguments: Mapping[str, Any],
        report: Report | None,
        roots: Sequence[str] | None = None,
        client: Client = UNKNOWN_CLIENT,
    ) -> ToolAnswer:
        """Make one tool call. The result has the gateway's JSON or an error envelope; only cancellation,
        and InputNeeded and MCPError of `confirm`, are raised.

        Args:
            report: sends a progress notification; None: the client did not ask for any.
            roots: of the client, for a tool that `wants_client`.
        """
        try:
            reply, text = await self._perform(
                report, name, dict(arguments), self._bounds(name) if roots is None else roots, client
            )
        except OperationError as error:
            reply = error.envelope()
            example_calls.show(reply["error"], self._operations.get(name))
            reply = self._offered.reply(reply)
            text = render.error(reply["error"], name, self._offered)
        except (confirm.InputNeeded, MCPError):
            raise
        except Exception:
            log.exception("call of %s failed", name)
            failure = OperationError(
                INTERNAL_ERROR,
                f"the MCP server failed on {name}; its log has the details",
                reason="internal_error",
            )
            reply = failure.envelope()
            text = render.error(reply["error"], name)
        return ToolAnswer(text, reply, is_error(reply))

    async def _perform(
        self,
        report: Report | None,
        name: str,
        args: dict[str, Any],
        roots: Sequence[str] | None,
        client: Client,
    ) -> tuple[dict[str, Any], str]:
        operation = self._operations.get(name)
        if operation is None:
            raise _unknown_tool(name, list(self._operations))
        if self._lenient:
            args = model_arguments.plain(operation, args)
        self._fill_sandbox(operation, args)
        pending = self._lenient and "sandbox_id" not in args and default_sandbox.wants(operation)
        if pending:
            args["sandbox_id"] = PENDING
        if self._lenient and "agent" not in args and operation.argument("agent") is not None:
            args |= _named(client)
        try:
            sandbox_id, checked = catalog.build(operation, args)
        except OperationError as error:
            _suggest(error, operation, whole=self._options.tool_set != "agent")
            raise
        chosen = await self._chosen_sandbox(operation, client) if pending else None
        if chosen is not None and operation.scope == "system":
            checked["sandbox_id"] = chosen
        elif chosen is not None:
            sandbox_id = chosen
        self._limit_wait(operation, checked, client, progress=report is not None)
        if operation.name == "exec_command" and self._options.on_disconnect == "detach":
            checked.setdefault("on_disconnect", "detach")
        ask = client.ask
        if ask is not None:
            checked = confirm.proposed(operation.name, checked, self._options)
        sent = allowed_dirs.carried(self._options, name, checked, roots)
        call = _Call(operation, sandbox_id, sent, new_request_id(), self._budget_s(operation, checked))
        try:
            reply = await self._reported(
                call, report, ask if confirm.wanted(operation.name, checked) else None
            )
        except anyio.get_cancelled_exc_class():
            await self._cancelled(call)
            raise
        if is_error(reply):
            example_calls.show(reply["error"], operation)
        reply, text = await self._shown(call, checked, reply, client)
        if is_error(reply):
            return reply, text
        if name == "create_sandbox" and isinstance(reply.get("id"), str):
            self._last_chosen.changes(client.name, reply["id"])
        if chosen is not None:
            reply = {**reply, "sandbox_id": chosen}
            if self._last_chosen.changes(client.name, chosen):
                text = f"{text}\n\n(sandbox_id {chosen})"
        return reply, text

    async def _shown(
        self, call: _Call, checked: dict[str, Any], reply: dict[str, Any], client: Client
    ) -> tuple[dict[str, Any], str]:
        """Return the result for the client, and its text."""
        operation, reply = call.operation, self._offered.reply(reply)
        if self._for_models and operation.name == "file_read" and media.may_be_media(checked, reply):
            reply = await self._media(call, checked, reply)
        if self._for_models and terminal_output.wanted(operation.name, checked, reply):
            reply = await self._readable(call, reply)
        if self._for_models:
            page = known_clients.page_characters(client.name, asked=known_clients.asks_for_more(checked))
            shorter = truncate.fit(operation.name, reply, page)
            if (
                operation.name == "exec_command"
                and shorter.get("truncated")
                and "command_session_id" not in reply
            ):
                shorter = {**shorter, "command_session_id": await self._handle(call)}
            return shorter, render.result(operation.name, checked, shorter, self._offered)
        text = render.result(operation.name, checked, reply, self._offered)
        if operation.name == "exec_command" and render.was_cut(reply) and "command_session_id" not in reply:
            text = render.result(
                operation.name,
                checked,
                {**reply, "command_session_id": await self._handle(call)},
                self._offered,
            )
        return reply, text

    async def _readable(self, call: _Call, reply: dict[str, Any]) -> dict[str, Any]:
        async def read(args: dict[str, Any]) -> dict[str, Any]:
            command = {"command_session_id": reply.get("command_session_id")}
            return await self._gateway.request(
                "read_command_lines",
                {**command, **args},
                sandbox_id=call.sandbox_id,
                request_id=new_request_id(),
                timeout_s=LIST_S,
            )

        return await terminal_output.readable(reply, read)

    async def _media(self, call: _Call, checked: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
        async def read(args: dict[str, Any]) -> dict[str, Any]:
            return await self._gateway.request(
                "file_read",
                args,
                sandbox_id=call.sandbox_id,
                request_id=new_request_id(),
                timeout_s=call.timeout_s,
            )

        return await media.fetched(checked, reply, read)

    async def _chosen_sandbox(self, operation: Operation, client: Client) -> str:
        """Return the sandbox of a call that names none. The client's roots are requested only if the
        directory of this server does not decide.
        """
        listed = await OwnRequests(self._gateway).ask("list_sandboxes", {}, timeout_s=LIST_S)
        places = allowed_dirs.where_started() if self._roots is None else self._roots
        try:
            return default_sandbox.choose(listed, places, operation.name)
        except OperationError:
            if client.roots is None or self._roots is not None:
                raise
            return default_sandbox.choose(listed, await client.roots(), operation.name)

    def _fill_sandbox(self, operation: Operation, args: dict[str, Any]) -> None:
        default = self._options.sandbox_id
        if default is None or "sandbox_id" in args or operation.name == "destroy_sandbox":
            return
        inside = operation.argument("sandbox_id")
        if operation.scope == "sandbox_required" or (operation.scope == "system" and inside is not None):
            args["sandbox_id"] = default

    def _limit_wait(
        self, operation: Operation, checked: dict[str, Any], client: Client, *, progress: bool
    ) -> None:
        """Set the default of the waiting argument, such as `yield_time_ms`, and limit it to the time that
        the client waits.

        Many clients give up on a call after 60 s, whatever progress they get. The command keeps running, and
        the answer has its id.
        """
        argument = operation.waits
        if not isinstance(argument, str) or not argument.endswith("_ms"):
            return
        wants_default = operation.name == "exec_command" and "ready" not in checked
        if argument not in checked and wants_default and self._patient:
            checked[argument] = known_clients.default_wait_ms(client.name, progress=progress)
        if argument not in checked and "ready" in checked and self._lenient:
            checked[argument] = known_clients.longest_wait_ms(client.name, progress=progress)
        if argument in checked:
            name = client.name if self._lenient else known_clients.REFERENCE
            checked[argument] = min(checked[argument], known_clients.longest_wait_ms(name, progress=progress))

    def _budget_s(self, operation: Operation, checked: Mapping[str, Any]) -> float:
        own = catalog.budget_s(operation, checked)
        return UNBOUNDED_S if own is None else max(own, 30.0) - 30.0 + self._options.timeout_s

    async def _reported(self, call: _Call, report: Report | None, ask: confirm.Ask | None) -> dict[str, Any]:
        """Perform the call with its progress, which counts through every question and request of it."""
        if report is None:
            return await self._asked(call, None, ask)
        reporter = _Reporter(report, call.operation.name)
        outcome: dict[str, Any] | Exception | None = None
        async with anyio.create_task_group() as tg:
            tg.start_soon(reporter.tick)
            try:
                outcome = await self._asked(call, reporter, ask)
            except (OperationError, MCPError, confirm.InputNeeded) as error:
                outcome = error  # raised below: a task group would wrap it
            tg.cancel_scope.cancel()
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    async def _asked(
        self, call: _Call, reporter: _Reporter | None, ask: confirm.Ask | None
    ) -> dict[str, Any]:
        if ask is None:
            return await self._send(call, reporter)
        return await confirm.performed(
            call.operation.name, ask, lambda more: self._send(call.with_more(more), reporter)
        )

    async def _send(self, call: _Call, reporter: _Reporter | None = None) -> dict[str, Any]:
        streams = reporter is not None and call.operation.name == "create_sandbox"
        return await self._gateway.request(
            call.operation.name,
            call.args,
            sandbox_id=call.sandbox_id,
            request_id=call.request_id,
            timeout_s=call.timeout_s,
            on_progress=reporter.say if reporter is not None and streams else None,
        )

    async def _cancelled(self, call: _Call) -> None:
        """Cancel the call in its sandbox too: kill the command, whose work becomes a draft, or stop a
        capture.

        A command stays running when the gateway cannot cancel it.
        """
        if self.closing or call.operation.name not in CANCELLED_THERE:
            return
        with anyio.move_on_after(CANCEL_BUSY_S, shield=True):
            while not self.closing:
                try:
                    reply = await self._gateway.request(
                        "cancel_request",
                        {"request_id": call.request_id},
                        sandbox_id=call.sandbox_id,
                        request_id=new_request_id(),
                        timeout_s=CANCEL_S,
                    )
                except OperationError as error:
                    log.warning("cancel of request %s: %s", call.request_id, error)
                    return
                if not is_error(reply):
                    return
                if reply["error"].get("kind") != SERVER_BUSY:
                    log.info("cancel of request %s: %s", call.request_id, reply["error"].get("message"))
                    return
                await anyio.sleep(CANCEL_PAUSE_S)

    async def _handle(self, call: _Call) -> str | None:
        """Id of the command that this call ran, to read the rest of a truncated output; None when not
        found.
        """
        try:
            reply = await self._gateway.request(
                "list_commands",
                {},
                sandbox_id=call.sandbox_id,
                request_id=new_request_id(),
                timeout_s=CANCEL_S,
            )
        except OperationError:
            return None
        rows = [row for row in reply.get("commands") or () if row.get("request_id") == call.request_id]
        return rows[-1].get("command_session_id") if rows else None


class _Call:
    def __init__(
        self,
        operation: Operation,
        sandbox_id: str | None,
        args: dict[str, Any],
        request_id: str,
        timeout_s: float,
    ) -> None:
        self.operation, self.sandbox_id, self.args = operation, sandbox_id, args
        self.request_id, self.timeout_s = request_id, timeout_s

    def with_more(self, args: dict[str, Any]) -> _Call:
        """The same call with more arguments, as a request of its own."""
        return _Call(self.operation, self.sandbox_id, {**self.args, **args}, new_request_id(), self.timeout_s)


class _Reporter:
    """Progress notifications of one call: strictly increasing seconds, and the last message of the
    operation.
    """

    def __init__(self, report: Report, name: str) -> None:
        self._report, self._text = report, name
        self._began, self._last = time.monotonic(), 0.0

    async def tick(self) -> None:
        await anyio.sleep(FIRST_PROGRESS_S)
        while True:
            await self._send(f"{self._text}: {time.monotonic() - self._began:.0f} s")
            await anyio.sleep(NEXT_PROGRESS_S)

    async def say(self, text: str) -> None:
        self._text = text.strip() or self._text
        await self._send(self._text)

    async def _send(self, message: str) -> None:
        value = round(max(time.monotonic() - self._began, self._last + 0.001), 3)
        self._last = value
        try:
            await self._report(value, message)
        except Exception as error:  # the client went away; its call ends by other means
            log.debug("progress: %s", error)


def _named(client: Client) -> dict[str, Any]:
    """The client's name as the argument `agent`: printable, and no longer than it may be."""
    text = "".join(c for c in client.name or "" if c.isprintable()).strip()
    short = text.encode("utf-8", "replace")[:AGENT_MAX_BYTES].decode("utf-8", "ignore")
    return {"agent": short} if short else {}


def _progress_token(ctx: ServerRequestContext[Any]) -> object:
    meta: object = (ctx.params or {}).get("_meta")
    return meta.get("progressToken") if isinstance(meta, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _nearest(word: str, known: Sequence[str]) -> str | None:
    import difflib

    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return found[0] if found else None


def _unknown_tool(name: str, known: list[str]) -> OperationError:
    name = name[:NAME_SHOWN]
    details: dict[str, Any] = {"operation": name}
    nearest = _nearest(name, known)
    if catalog.find(name) is not None:
        details["hint"] = (
            "this server's tool set (--set) does not contain it; use the tools that tools/list names"
        )
    elif nearest is not None:
        details["nearest"], details["hint"] = nearest, f"did you mean {nearest}?"
    return OperationError(INVALID_REQUEST, f"unknown operation: {name}", details, reason="unknown_operation")


def _suggest(error: OperationError, operation: Operation, *, whole: bool) -> None:
    """Add the nearest argument that the tool's schema has to an unknown_argument error."""
    if error.details.get("reason") != "unknown_argument":
        return
    known = [
        *(("sandbox_id",) if operation.scope != "system" else ()),
        *(a.name for a in operation.arguments if schema.shows(a, whole=whole)),
    ]
    nearest = _nearest(str(error.details.get("argument")), known)
    error.details["hint"] = (
        f"did you mean {nearest}?"
        if nearest is not None
        else f"it takes {', '.join(known) or 'no arguments'}"
    )
    if nearest is not None:
        error.details["nearest"] = nearest
