"""Plain calls of tools of the handshake era, past the SDK's dispatch: the same lines for the client at a fraction of the work. ADR 0027.

The SDK stays the authority. It sees every message but these, settles the protocol version, and says by example how a result of that version is
written: where an example of ours differs from its own by a byte, every call is the SDK's. So are calls with anything in them but a name,
arguments and a progress token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import anyio
import anyio.abc
import anyio.lowlevel
import mcp.types as types
import mcp_types.methods
from mcp.shared.dispatcher import coerce_request_id
from opentelemetry import trace
from pydantic_core import to_json

from eos_mcp.mcp.tools import ToolAnswer, Tools

log = logging.getLogger("eos.mcp")

RequestId = str | int
CALL = "tools/call"
_PARAMS, _META = frozenset({"name", "arguments", "_meta"}), frozenset({"progressToken"})
_SAMPLE: dict[str, Any] = {
    "error": {"kind": None},
    "a": [None, 1, 1e-7, 1e22, float("inf"), {"b": None}],
    "": 'ä\u2028\x00"\\',
    "_meta": {},
}


class Express:
    """The calls of one pipe. All methods belong to the event loop's thread."""

    def __init__(
        self, tools: Tools, tasks: anyio.abc.TaskGroup, send: Callable[[types.JSONRPCMessage | bytes, RequestId | None], None]
    ) -> None:
        """
        Args:
            send: takes what goes to the client, and the id of the request that it answers; None for that: the id was cancelled, nothing goes.
        """
        self._tools, self._tasks, self._send = tools, tasks, send
        self._calls: dict[RequestId, anyio.CancelScope] = {}
        self._open = False

    def negotiated(self, version: object) -> None:
        """The SDK has answered `initialize` with this protocol version: from now on it would take calls."""
        self._open = isinstance(version, str) and _agrees(version)

    def take(self, message: types.JSONRPCRequest) -> bool:
        """Whether the call is carried here."""
        if not self._open or message.method != CALL:
            return False
        params = message.params
        if params is None or not _PARAMS.issuperset(params):
            return False
        name, arguments = params.get("name"), params.get("arguments", {})
        token: str | int | None = None
        if not isinstance(name, str) or not isinstance(arguments, dict) or self._tools.wants_client(name):
            return False
        if "_meta" in params:
            meta: Any = params["_meta"]
            if not isinstance(meta, dict) or not _META.issuperset(cast("dict[object, object]", meta)):
                return False
            given = cast("dict[str, object]", meta).get("progressToken")
            if isinstance(given, bool) or not isinstance(given, (str, int)):
                return False
            token = given
        scope = anyio.CancelScope()
        self._calls[coerce_request_id(message.id)] = scope  # what cancels it may be the next line, before the task runs
        self._tasks.start_soon(self._run, scope, message.id, name, cast("dict[str, Any]", arguments), token)
        return True

    def cancel(self, request_id: RequestId) -> None:
        """The client does not want it any more: the call ends, and is not answered."""
        scope = self._calls.get(coerce_request_id(request_id))
        if scope is not None:
            scope.cancel()

    async def _run(
        self, scope: anyio.CancelScope, request_id: RequestId, name: str, arguments: dict[str, Any], token: RequestId | None
    ) -> None:
        key = coerce_request_id(request_id)
        answer: ToolAnswer | None = None

        async def report(value: float, text: str) -> None:
            params = {"progressToken": token, "progress": value, "message": text}
            if self._calls.get(key) is scope:
                self._send(types.JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params=params), None)

        try:
            with scope:
                await anyio.lowlevel.checkpoint_if_cancelled()
                answer = await self._tools.answer(name, arguments, report if token is not None else None)
        finally:
            if self._calls.get(key) is scope:  # another call may bear the same id by now
                del self._calls[key]
        if answer is None or scope.cancel_called:
            return
        try:
            self._send(_line(request_id, answer), request_id)
        except ValueError:  # text that is no Unicode: the other way says so
            result = {"content": [{"text": answer.text, "type": "text"}], "isError": answer.is_error, "structuredContent": answer.reply}
            self._send(types.JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result), request_id)


def _line(request_id: RequestId, answer: ToolAnswer) -> bytes:
    """
    Raises:
        ValueError: a lone surrogate.
    """
    result = {"content": [{"text": answer.text, "type": "text"}], "isError": answer.is_error, "structuredContent": answer.reply}
    return to_json({"jsonrpc": "2.0", "id": request_id, "result": result}, inf_nan_mode="null")


def _agrees(version: str) -> bool:
    """Whether the SDK writes results of that protocol version as we do, and nobody traces its calls."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return False
    for is_error in (False, True):
        try:
            result = types.CallToolResult(
                content=[types.TextContent(type="text", text="tü\n")], structured_content=_SAMPLE, is_error=is_error
            ).model_dump(by_alias=True, mode="json", exclude_none=True)
            result = mcp_types.methods.serialize_server_result(CALL, version, result)
            theirs = types.JSONRPCResponse(jsonrpc="2.0", id="i", result=result).model_dump_json(by_alias=True, exclude_unset=True)
        except (ValueError, KeyError, AttributeError) as error:
            log.warning("calls of tools take the SDK's way: %s", error)
            return False
        if theirs.encode() != _line("i", ToolAnswer("tü\n", _SAMPLE, is_error)):
            return False
    return True
