"""One connection of a client: read one line, authenticate it, get the answer, send the reply, close."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from eos_agent.wire import protocol
from eos_agent.wire.protocol import (
    BAD_JSON,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    REQUEST_TOO_LARGE,
    SERVER_SHUTTING_DOWN,
    UNAUTHORIZED,
    OperationError,
    Request,
)
from eos_mcp.agent_client.line_socket import LineSocket, TooLong
from eos_mcp.config.log import log
from eos_mcp.gateway.admission import Admission
from eos_mcp.gateway.progress import ProgressSender
from eos_mcp.requests import caller

READ_TIMEOUT_S = 30.0  # for the whole request
ANSWER_TIMEOUT_S = 60.0  # for at most 16 MiB; a client that reads more slowly occupies a connection

Answer = Callable[[Request, Callable[[str], None]], Awaitable[dict[str, Any] | bytes]]
"""`Router.answer`: a request and a function for its progress -> the reply; bytes are already encoded."""


class ClientConnection:
    """A connection with one request. `answer` never sees an unauthenticated one."""

    def __init__(self, connected: socket.socket, token: bytes, admission: Admission, answer: Answer) -> None:
        self._line = LineSocket(connected)
        self._token, self._admission, self._answer = token, admission, answer

    async def serve(self) -> None:
        """Answer the request and close. Every failure becomes an error reply; a cancellation means that the
        gateway ends.
        """
        try:
            reply = await self._reply()
            if reply is not None:
                await self._send(reply)
        finally:
            self._admission.leave(self._line.socket)
            self._line.close()

    async def _reply(self) -> bytes | None:
        """Return the reply to send; None: the client left without a request."""
        request: Request | None = None
        try:
            received = await self._receive()
            if received is None:
                return None
            request = self._authenticated(received)
            self._admission.admit(self._line.socket)
            return await self._result(request)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            error = OperationError(
                SERVER_SHUTTING_DOWN,
                "the gateway is stopping",
                {"reason": "gateway_stopping", "retryable": True},
            )
        except Exception as raised:
            error = _shown(raised, request)
        return protocol.encode(error.envelope())

    async def _receive(self) -> bytes | None:
        """Read a line; None: the connection ended before its first byte, or broke.

        Raises:
            OperationError: request_too_large, invalid_request (reason request_timeout), bad_json.
        """
        try:
            at_hand = self._line.line_at_hand(protocol.MAX_LINE_BYTES)
            if at_hand is not None:
                return at_hand
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._line.read_line(protocol.MAX_LINE_BYTES)
        except TooLong:
            raise OperationError(
                REQUEST_TOO_LARGE,
                f"the request exceeds the {protocol.MAX_LINE_BYTES} byte limit",
                {"limit": protocol.MAX_LINE_BYTES, "reason": "request_too_large"},
            ) from None
        except TimeoutError:
            raise OperationError(
                INVALID_REQUEST, f"no whole request within {READ_TIMEOUT_S:g} s", reason="request_timeout"
            ) from None
        except EOFError:
            if not self._line.pending:
                return None
            raise OperationError(
                BAD_JSON, "the connection ended before the request's newline", reason="bad_json"
            ) from None
        except OSError:
            return None

    def _authenticated(self, received: bytes) -> Request:
        """Check the token of a request, then decode it.

        Raises:
            OperationError: bad_json, unauthorized, invalid_request.
        """
        value = protocol.decode_object(received)
        given = value.get(protocol.GATEWAY_TOKEN_KEY)
        if not isinstance(given, str) or not hmac.compare_digest(
            given.encode("utf-8", "replace"), self._token
        ):
            hint = (
                "the gateway's token is in its token file (sandbox-gateway-token path) or in "
                "SANDBOX_GATEWAY_AUTH_TOKEN of the process that started it"
            )
            what = "is wrong" if isinstance(given, str) else "is missing"
            raise OperationError(
                UNAUTHORIZED, f"the gateway token {what}", {"hint": hint}, reason="bad_token"
            )
        request = protocol.decode_request(value)
        protocol.check_request_id(request.request_id)
        return request

    async def _result(self, request: Request) -> bytes:
        """Get the answer to a request; its progress is sent before the reply."""
        wants_progress = request.transport.get(protocol.STREAM_LOGS_KEY) is True
        progress = ProgressSender(self._line) if wants_progress else None
        caller.answer_on(self._line.socket, self._line.closed)
        try:
            return _encoded(await self._answer(request, _no_progress if progress is None else progress.put))
        finally:
            if progress is not None:
                await progress.flush()

    async def _send(self, reply: bytes) -> None:
        with contextlib.suppress(OSError):  # the client left or does not read; its request was performed
            if rest := self._line.send_at_once(reply):
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await self._line.send(rest)
            if not self._line.at_rest():
                await self._line.linger()


def _shown(raised: Exception, request: Request | None) -> OperationError:
    """Convert an exception into the error that the client sees. The log has it under the request id."""
    request_id = "" if request is None else request.request_id
    if isinstance(raised, OperationError):
        if request is not None and raised.kind == INTERNAL_ERROR:
            raised.details.setdefault("request_id", request_id)
        return raised
    if isinstance(raised, OSError):  # an error of this machine, most often a full disk
        shown = protocol.os_error(raised, kind=INTERNAL_ERROR)
        shown.details.setdefault("request_id", request_id)
        log("os_error", request_id=shown.details["request_id"], error=repr(raised))
        return shown
    log("bug", request_id=request_id, error=repr(raised), trace="".join(traceback.format_exception(raised)))
    details = {"reason": "bug", "hint": "see gateway.log", "request_id": request_id}
    return OperationError(INTERNAL_ERROR, "the gateway failed on this request", details)


def _no_progress(_: str) -> None:
    pass


def _encoded(reply: dict[str, Any] | bytes) -> bytes:
    if isinstance(reply, bytes):
        return reply + b"\n"
    encoded = protocol.encode(reply)
    if len(encoded) <= protocol.MAX_LINE_BYTES:
        return encoded
    details = {"limit": protocol.MAX_LINE_BYTES, "reason": "reply_too_large"}
    return protocol.encode(
        OperationError(INTERNAL_ERROR, f"the reply has {len(encoded)} bytes", details).envelope()
    )
