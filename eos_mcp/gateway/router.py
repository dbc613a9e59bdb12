"""Choose the handler of a request: the gateway itself, a manager handler, or the agent of the named sandbox.
The first match wins.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from eos_agent.wire import protocol
from eos_agent.wire.operations import INTERNAL_NAMES
from eos_agent.wire.protocol import INVALID_REQUEST, UNKNOWN_OP, OperationError, Request
from eos_mcp import __version__, catalog
from eos_mcp.agent_client.pool import AgentPool, AgentTarget, decoded
from eos_mcp.config.log import log
from eos_mcp.gateway.departed import DepartedClients

REVISING = frozenset(
    {
        "exec_command",
        "write_command_stdin",
        "file_write",
        "file_edit",
        "create_workspace_session",
        "publish_workspace_session",
        "destroy_workspace_session",
    }
)
FEATURES = ("drafts", "cancel_request", "file_list", "keep_alive", "gateway_info", "export_dry_run")
NO_ANSWER = frozenset({"forward_timeout", "sandbox_unreachable"})
_OF_COMMANDS = frozenset(
    {
        "exec_command",
        "read_command_lines",
        "wait_command",
        "write_command_stdin",
        "close_stdin",
        "signal_command",
    }
)
_FORWARD = b'"forward":"/forward/'
LOGGED_CHARACTERS = 200  # limit on text of a client in a log line
_LOGGED = frozenset(
    {"create_sandbox", "destroy_sandbox", "export_changes", "import_changes", "squash_layerstacks"}
)


class ManagerProtocol(Protocol):
    """Part of the manager that the gateway uses."""

    async def start(self) -> None: ...
    def handles(self, op: str, scope_kind: str) -> bool: ...
    async def handle(
        self, op: str, args: dict[str, Any], *, request_id: str, progress: Callable[[str], None]
    ) -> dict[str, Any]: ...
    def target(self, sandbox_id: str, *, refresh: bool = False) -> Awaitable[AgentTarget]: ...
    async def explain(
        self, sandbox_id: str, op: str, broken: OperationError | None
    ) -> OperationError | None: ...
    def http_base(self, sandbox_id: str) -> str | None: ...
    def note_activity(self, sandbox_id: str) -> None: ...
    def note_silence(self, sandbox_id: str) -> None: ...
    def sandbox_count(self) -> int: ...
    async def close(self) -> None: ...


class Router:
    """Dispatcher of decoded requests; every failure is raised as an OperationError."""

    def __init__(
        self,
        manager: ManagerProtocol,
        forwarder: AgentPool,
        *,
        info: Callable[[], dict[str, Any]],
        contract_results: bool,
    ) -> None:
        self._manager, self._forwarder = manager, forwarder
        self._info, self._contract_results = info, contract_results
        # Sandbox and request id of commands whose end a client awaits.
        self._executing: set[tuple[str, str]] = set()
        self.departed = DepartedClients(self._cancel)

    async def answer(self, request: Request, progress: Callable[[str], None]) -> dict[str, Any] | bytes:
        """Return the reply, which may be an agent's error envelope; bytes are the line of an agent's result,
        unchanged.

        Raises:
            OperationError: the gateway's or the manager's own.
        """
        started = time.monotonic()
        result = "internal_error"
        try:
            reply = await self._route(request, progress)
            result = _kind(reply)
        except OperationError as error:
            result = error.kind
            raise
        finally:
            if request.op in _LOGGED or result not in (
                "ok",
                INVALID_REQUEST,
                protocol.NOT_FOUND,
                protocol.OPERATION_FAILED,
            ):
                took_ms = round((time.monotonic() - started) * 1000, 1)
                who = {"op": request.op, "request_id": request.request_id, "sandbox_id": request.sandbox_id}
                log(
                    "request",
                    **{key: value and value[:LOGGED_CHARACTERS] for key, value in who.items()},
                    result=result,
                    took_ms=took_ms,
                )
        return (
            only_contract(request.op, reply)
            if self._contract_results and not isinstance(reply, bytes)
            else reply
        )

    async def _route(self, request: Request, progress: Callable[[str], None]) -> dict[str, Any] | bytes:
        op, sandbox_id = request.op, request.sandbox_id
        if sandbox_id is None and op == "gateway_info":
            return self._info()
        if sandbox_id is None and op == "hold_client":
            return await self.departed.hold(request.args.get("client"))
        if self._manager.handles(op, "system" if sandbox_id is None else "sandbox"):
            args = request.args if sandbox_id is None else {**request.args, "sandbox_id": sandbox_id}
            reply = await self._manager.handle(op, args, request_id=request.request_id, progress=progress)
            self._after_manager(op, args, reply)
            return reply
        if sandbox_id is None:
            raise OperationError(
                UNKNOWN_OP, f"unknown operation in system scope: {op}", {"operation": op}, reason="unknown_op"
            )
        operation = catalog.find(op)
        if op in INTERNAL_NAMES:
            raise OperationError(
                INVALID_REQUEST,
                f"{op} is internal to manager and agent",
                {"operation": op},
                reason="internal_operation",
            )
        if operation is not None and operation.scope == "system":
            message = f"{op} is a manager operation: send it with system scope, sandbox_id inside args"
            raise OperationError(INVALID_REQUEST, message, {"operation": op}, reason="wrong_scope")
        answer = await self._forward(sandbox_id, request)
        if op in REVISING and _counts(answer):
            self._manager.note_activity(sandbox_id)
        return answer

    async def _forward(self, sandbox_id: str, request: Request) -> dict[str, Any] | bytes:
        op, args = request.op, request.args
        executing = (sandbox_id, request.request_id) if op == "exec_command" else None
        if executing is not None:
            self._executing.add(executing)
            self.departed.note(
                request.transport.get(protocol.CLIENT_KEY), sandbox_id, request.request_id, args
            )
        elif op == "cancel_request":  # the request to cancel may not have reached the agent yet
            args = {**args, "in_flight": (sandbox_id, str(args.get("request_id"))) in self._executing}
        try:
            line = await self._forwarder.request_line(
                sandbox_id,
                op,
                args,
                request_id=request.request_id,
                timeout_s=catalog.budget_s(catalog.find(op), args),
            )
            served = op in _OF_COMMANDS and _FORWARD in line
            if b'"error"' not in line and not self._contract_results and not served:
                return line
            reply = decoded(line, op)
            if served and isinstance(reply.get("forward"), str):
                base = self._manager.http_base(sandbox_id)
                reply |= {} if base is None else {"service_url": base + reply["forward"]}
        except OperationError as error:
            if error.details.get("reason") in NO_ANSWER:
                self._manager.note_silence(sandbox_id)
            if error.details.get("reason") != "sandbox_gone":
                raise
            raise await self._manager.explain(sandbox_id, op, error) or error from error
        finally:
            if executing is not None:
                self._executing.discard(executing)
        if protocol.is_error(reply) and reply["error"].get("kind") == protocol.SERVER_SHUTTING_DOWN:
            explained = await self._manager.explain(sandbox_id, op, None)
            if explained is not None:
                raise explained
        return reply

    async def _cancel(self, sandbox_id: str, request_id: str) -> bool:
        args = {"request_id": request_id, "in_flight": (sandbox_id, request_id) in self._executing}
        request = Request("cancel_request", protocol.new_request_id(), sandbox_id, args, {})
        reply = await self._forward(sandbox_id, request)
        return not isinstance(reply, bytes) or b'"cancelled":true' in reply.replace(b" ", b"")

    def _after_manager(self, op: str, args: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        sandbox_id = args.get("sandbox_id")
        if protocol.is_error(reply) or not isinstance(sandbox_id, str):
            return
        if op == "destroy_sandbox":
            self._forwarder.forget(sandbox_id)
        elif op == "squash_layerstacks":
            self._manager.note_activity(sandbox_id)


def catalog_hash() -> str:
    return hashlib.sha256(protocol.encode(catalog.document())).hexdigest()


def base_info() -> dict[str, Any]:
    """Fields of `gateway_info` that are the same on every gateway of this version."""
    return {"version": __version__, "catalog_hash": catalog_hash(), "features": list(FEATURES)}


def only_contract(op: str, reply: dict[str, Any]) -> dict[str, Any]:
    """Remove keys beyond the contract (`gateway.results: contract`); results of our own operations are
    unchanged.
    """
    operation = catalog.find(op)
    if operation is None or operation.ours or not operation.result or protocol.is_error(reply):
        return reply
    kept = _without_ours(operation.result, reply)
    records = kept.get("sandboxes")
    if isinstance(records, list):
        shape = (
            cast(Any, catalog.find("inspect_sandbox")).result
            if operation.domain == "manager"
            else operation.result
        )
        kept["sandboxes"] = [_without_ours(shape, record) for record in cast("list[dict[str, Any]]", records)]
    return kept


def _without_ours(fields: Sequence[catalog.ResultField], value: Mapping[str, Any]) -> dict[str, Any]:
    allowed = {field.name for field in fields if not field.ours}
    kept = {key: inner for key, inner in value.items() if key in allowed}
    for field in fields:
        outer, dot, name = field.name.partition(".")
        if dot and field.ours and outer in kept:
            kept[outer] = _without(kept[outer], name)
    return kept


def _without(value: object, name: str) -> object:
    if isinstance(value, list):
        return [_without(each, name) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: inner for key, inner in cast("dict[str, object]", value).items() if key != name}
    return value


def _kind(reply: Mapping[str, Any] | bytes) -> str:
    if isinstance(reply, bytes) or not protocol.is_error(reply):
        return "ok"
    error = reply["error"]
    return (
        str(cast("dict[str, Any]", error).get("kind")) if isinstance(error, dict) else protocol.INTERNAL_ERROR
    )


def _counts(reply: Mapping[str, Any] | bytes) -> bool:
    """Return True when the call changed the sandbox; a publish that failed only while it closed the session
    did.
    """
    if isinstance(reply, bytes) or not protocol.is_error(reply):
        return True
    error = reply["error"]
    details: Any = cast("dict[str, Any]", error).get("details") if isinstance(error, dict) else None
    return isinstance(details, dict) and cast("dict[str, Any]", details).get("publish_completed") is True
