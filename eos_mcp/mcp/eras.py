"""Both protocol eras on one pipe.

The SDK locks a pipe to the era of its first request, so it would refuse a client that probes with
`server/discover` and falls back to `initialize`. Here each era has a lane, a `Server.run` over streams in
memory, made when first needed; the envelope of a request names its era (MCP specification, versioning).
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import anyio.abc
import mcp.types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage

from eos_mcp.mcp.handshake import VERSION_KEY
from eos_mcp.mcp.server_options import MAX_MESSAGE_BYTES

log = logging.getLogger("eos.mcp")

BOM = b"\xef\xbb\xbf"
LEGACY, MODERN = "legacy", "modern"

RequestId = str | int
AnyId = str | int | float | None
"""An id, or a value in its place that the protocol does not allow."""


class Lanes:
    """Router of lines of the client to the SDK, and of messages of the SDK to the client. Use it only in the
    event loop's thread.

    An invalid message is answered with an error that carries its id; it is logged when the id cannot be read,
    since strict clients fail on an answer without id, and a request without answer blocks its caller. A
    value that cannot be an id comes back as it is where it is one number or truth, else as null.
    """

    def __init__(
        self, server: Server[Any], tasks: anyio.abc.TaskGroup, write: Callable[[bytes], None]
    ) -> None:
        self._server, self._tasks, self._write = server, tasks, write
        self._lanes: dict[str, MemoryObjectSendStream[SessionMessage | Exception]] = {}
        self._open: Counter[RequestId] = Counter()  # requests that will get an answer and have none yet
        self._answered: set[RequestId] = set()  # requests answered before the SDK was imported
        self._idle = anyio.Event()

    def route(self, line: bytes, *, answered: RequestId | None = None) -> None:
        """Pass one line to its era's lane.

        Args:
            answered: id of a request that was answered from the handshake table; the SDK gets the request,
                and its own answer is discarded.
        """
        line = line.removeprefix(BOM)
        if not line.strip():
            return
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            self._refuse(line)
            return
        if isinstance(message, types.JSONRPCNotification) and b'"id"' in line and _has_id(line):
            self._refuse(line)  # the SDK takes a request with an id of another type for a notification
            return
        if answered is not None:
            self._answered.add(answered)
        self._route(message)

    def too_long(self, head: bytes, tail: bytes) -> None:
        """Refuse a line above the limit, of which the first and the last bytes were kept."""
        request_id = _id_at_edge(head, tail)
        message = f"the message is longer than {MAX_MESSAGE_BYTES} bytes"
        if request_id is None:
            log.warning("dropped a line: %s, and its id could not be read", message)
        else:
            self._error(request_id, types.INVALID_REQUEST, message, {"limit": MAX_MESSAGE_BYTES})

    async def idle(self) -> None:
        """Wait until every request so far is answered."""
        while self._open:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _route(self, message: types.JSONRPCMessage) -> None:
        item = SessionMessage(message)
        if isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            cancelled = (message.params or {}).get("requestId")
            if isinstance(cancelled, (str, int)):
                self._request_ended(cancelled)
            for lane in self._lanes.values():
                lane.send_nowait(item)
            return
        if isinstance(message, types.JSONRPCRequest):
            self._open[coerce_request_id(message.id)] += 1
        self._lane(_era(message)).send_nowait(item)

    def _lane(self, era: str) -> MemoryObjectSendStream[SessionMessage | Exception]:
        if era not in self._lanes:
            inward, read = anyio.create_memory_object_stream[SessionMessage | Exception](float("inf"))
            written, outward = anyio.create_memory_object_stream[SessionMessage](float("inf"))
            self._lanes[era] = inward
            self._tasks.start_soon(
                self._server.run, read, written, self._server.create_initialization_options()
            )
            self._tasks.start_soon(self._pump, outward)
        return self._lanes[era]

    async def _pump(self, outward: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async with outward:
            async for item in outward:
                self._send(item.message)

    def _send(self, message: types.JSONRPCMessage) -> None:
        answers = message.id if isinstance(message, (types.JSONRPCResponse, types.JSONRPCError)) else None
        if answers is not None:
            self._request_ended(answers)
            if answers in self._answered:
                self._answered.discard(answers)
                if isinstance(message, types.JSONRPCError):
                    log.warning(
                        "the SDK refused an opening request that was already answered: %s",
                        message.error.message,
                    )
                return
        try:
            line = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except ValueError as error:  # text that is not Unicode
            log.error("dropped an outgoing message: %s", error)
            if answers is not None:
                self._error(answers, types.INTERNAL_ERROR, "the result cannot be written as JSON")
            return
        self._write(line + b"\n")

    def _request_ended(self, request_id: RequestId) -> None:
        key = coerce_request_id(request_id)  # the SDK takes 7 and "7" for one id, also in a cancellation
        if key in self._open:
            self._open[key] -= 1
            if self._open[key] <= 0:
                del self._open[key]
        if not self._open:
            self._idle.set()

    def _refuse(self, line: bytes) -> None:
        try:
            value: object = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            request_id = _id_at_edge(line[:4096], line[-4096:])
            if request_id is None:
                log.warning("dropped a line of %d bytes that is not JSON", len(line))
            else:
                self._error(request_id, types.PARSE_ERROR, "Parse error: the line is not JSON")
            return
        batch: list[object] = list(value) if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        why = "JSON-RPC batches are not supported" if batch else _why_invalid(line)
        for member in batch or [value]:
            if not isinstance(member, dict) or "method" not in member:
                log.warning("dropped a message that is neither request nor notification")
                continue
            request_id = member.get("id")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if isinstance(request_id, (str, int)) and not isinstance(request_id, bool):
                self._error(request_id, types.INVALID_REQUEST, why)
            elif "id" in member:
                echoed = request_id if isinstance(request_id, (bool, float)) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                self._error(echoed, types.INVALID_REQUEST, f"{why}: id must be a string or an integer")
            else:
                log.warning("dropped a message without an id: %s", why)

    def _error(
        self, request_id: RequestId | float | None, code: int, message: str, data: object = None
    ) -> None:
        failure: dict[str, object] = {"code": code, "message": message}
        if data is not None:
            failure["data"] = data
        if isinstance(request_id, float) and not math.isfinite(request_id):
            request_id = None
        text = json.dumps({"jsonrpc": "2.0", "id": request_id, "error": failure}, separators=(",", ":"))
        self._write(text.encode() + b"\n")


def _era(message: types.JSONRPCMessage) -> str:
    """`MODERN` for a message with an envelope, except `initialize`, which only the handshake era has; else
    `LEGACY`.
    """
    if (
        not isinstance(message, (types.JSONRPCRequest, types.JSONRPCNotification))
        or message.method == "initialize"
    ):
        return LEGACY
    meta = (message.params or {}).get("_meta")
    return MODERN if isinstance(meta, dict) and VERSION_KEY in meta else LEGACY


def _has_id(line: bytes) -> bool:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "id" in value


def _why_invalid(line: bytes) -> str:
    try:
        line.decode()
    except UnicodeDecodeError:
        return "Invalid Request: the message is not UTF-8"
    if re.search(rb"\\u[dD][89a-fA-F]", line):
        return "Invalid Request: the message has a lone surrogate, which is not Unicode"
    return "Invalid Request"


_HEAD = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*,')
_TAIL = re.compile(rb',\s*"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


def _id_at_edge(head: bytes, tail: bytes) -> RequestId | None:
    """Return the id of a message that is too long to parse, if `id` is its first or last member, as clients
    write it.
    """
    found = _HEAD.match(head) or _TAIL.search(tail)
    if found is None:
        return None
    try:
        value: object = json.loads(found.group(1))
    except ValueError:
        return None
    return value if isinstance(value, (str, int)) else None
