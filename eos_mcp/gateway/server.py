"""Connections: admit, read one line, authenticate, answer, close. One request each, progress frames before
the reply when asked for.

A coroutine per connection, but for the plain ones, which a relay carries (relay.py) and whose answers come
back here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
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
from eos_mcp.agent_client.deadlines import Deadlines
from eos_mcp.agent_client.line_socket import LineSocket, TooLong, unread
from eos_mcp.config.log import log
from eos_mcp.gateway.listen import Listener
from eos_mcp.gateway.relay import LONGEST, Outcome, Relay
from eos_mcp.gateway_client.frames import progress_frame
from eos_mcp.requests import caller

READ_TIMEOUT_S = 30.0
# for 16 MiB at most: who takes longer to read them has gone to sleep, and holds one of our connections
ANSWER_TIMEOUT_S = 60.0
ACCEPT_PAUSE_S = 0.1
# connections that have shown no token yet: they count against no limit, but one more, and the oldest is hung
# up on
STRANGERS = 256

Answer = Callable[[Request, Callable[[str], None], Outcome | None], Awaitable[dict[str, Any] | bytes]]


class GatewayServer:
    """Serves `listeners` until `stop`. `answer` never sees an unauthenticated request."""

    def __init__(
        self, listeners: list[Listener], token: str, answer: Answer, *, relay: Relay, max_connections: int
    ) -> None:
        self.listeners = listeners
        self.last_request_at = time.monotonic()
        self._token = token.encode()
        self._answer = answer
        self._relay = relay
        self._max_connections = max_connections
        self._open: set[asyncio.Task[None]] = set()
        self._refusing: set[asyncio.Task[None]] = set()
        self._accepting = False
        self._silent: set[socket.socket] = set()  # that have sent nothing yet
        self._strangers: dict[
            socket.socket, None
        ] = {}  # those, and the ones that a coroutine reads a request from; oldest first
        self._deadlines = Deadlines()

    @property
    def busy(self) -> bool:
        return len(self._open) + len(self._relay) + len(self._silent) > 0

    @property
    def _in_use(self) -> int:
        """Connections whose token was right."""
        return len(self._open) + len(self._relay) - (len(self._strangers) - len(self._silent))

    def start(self) -> None:
        self._accepting = True
        for listener in self.listeners:
            self._watch(listener.socket)

    async def stop_accepting(self) -> None:
        self._accepting = False
        for listener in self.listeners:
            asyncio.get_running_loop().remove_reader(listener.socket)

    def take_pending(self) -> None:
        """Serve the connections in the backlogs; called when no client can connect any more."""
        for listener in self.listeners:
            with contextlib.suppress(OSError):
                while True:
                    connected, _ = listener.socket.accept()
                    self._admit(connected)

    async def finish(self, grace_s: float) -> None:
        """Wait at most `grace_s` for requests in flight, then answer the rest with the error that the gateway
        stops.
        """
        until = time.monotonic() + grace_s
        for connected in list(self._silent):
            self._spoke(connected, None)
        self._deadlines.close()
        await self._relay.finish(self, grace_s)
        if self._open:
            await asyncio.wait(self._open, timeout=max(0.0, until - time.monotonic()))
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=1)

    def _watch(self, listening: socket.socket) -> None:
        if self._accepting:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connected, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # whoever it was has gone
            return
        except OSError as error:  # out of descriptors: those in use will be given back
            log("accept_failed", error=str(error))
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(ACCEPT_PAUSE_S, self._watch, listening)
            return
        self._admit(connected)

    def _admit(self, connected: socket.socket) -> None:
        self.last_request_at = time.monotonic()
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.monotonic() + READ_TIMEOUT_S
        if not self._begin(connected, until):
            self._silent.add(connected)
            self._meet(connected)
            self._deadlines.set(connected, until, lambda: self._spoke(connected, until))
            asyncio.get_running_loop().add_reader(connected, self._spoke, connected, until)

    def _meet(self, connected: socket.socket) -> None:
        """Note one more connection that has shown nothing yet, at the cost of the oldest such one where there
        are too many.
        """
        self._strangers[connected] = None
        if len(self._strangers) <= STRANGERS:
            return
        oldest = next(iter(self._strangers))
        if oldest in self._silent:
            self._silent.discard(oldest)
            del self._strangers[oldest]
            self._deadlines.clear(oldest)
            asyncio.get_running_loop().remove_reader(oldest)
            oldest.close()
            return
        self._strangers[oldest] = self._strangers.pop(
            oldest
        )  # its coroutine finds the end of the stream, and takes it out
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)

    def _spoke(self, connected: socket.socket, until: float | None) -> None:
        """Something is there, or it is late, or the gateway ends (None)."""
        self._silent.discard(connected)
        self._strangers.pop(connected, None)
        self._deadlines.clear(connected)
        asyncio.get_running_loop().remove_reader(connected)
        if until is None or not self._begin(connected, until):
            self._read(LineSocket(connected), until)

    def _read(self, line: LineSocket, until: float | None) -> None:
        self._meet(line.socket)
        self._spawn(self._serve(line, read_until=until))

    def _begin(self, connected: socket.socket, until: float) -> bool:
        """Read what is there and see to it that it is answered; False: there is nothing yet."""
        try:
            received = connected.recv(LONGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        request = self._request_in(received)
        if request is None:
            self._read(LineSocket(connected, received), until)
        elif self._in_use >= self._max_connections:
            task = asyncio.create_task(self._refuse(connected))
            self._refusing.add(task)  # keep a reference: asyncio has only weak ones (asyncio.create_task)
            task.add_done_callback(self._refusing.discard)
        elif not self._relay.take(self, connected, request, len(received)):
            self._spawn(self._serve(LineSocket(connected), request))
        return True

    def _request_in(self, received: bytes) -> Request | None:
        """None: there is not one line, or something is wrong with it, which the coroutine finds again and
        tells.
        """
        if received.find(b"\n") != len(received) - 1 or not received:
            return None
        try:
            return self._authenticated(received)
        except OperationError:
            return None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(self._ended)

    def deliver(self, connected: socket.socket, reply: bytes) -> None:
        """As relay.Server; what the client does not take at once is a coroutine's."""
        self.last_request_at = time.monotonic()
        try:
            sent = connected.send(reply, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            connected.close()
            return
        if sent == len(reply) and not unread(connected):
            connected.close()
        else:
            self._spawn(self._end(LineSocket(connected), reply[sent:]))

    def long_way(self, connected: socket.socket, request: Request, outcome: Outcome | None) -> None:
        """As relay.Server."""
        self._spawn(self._serve(LineSocket(connected), request, outcome))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self.last_request_at = time.monotonic()
        if not task.cancelled() and (error := task.exception()) is not None:
            log("connection_failed", error=repr(error))

    async def _refuse(self, connected: socket.socket) -> None:
        line = LineSocket(connected)
        try:
            with contextlib.suppress(OSError):
                await line.send(protocol.encode(self._full().envelope()))
                await line.linger()
        finally:
            line.close()

    def _full(self) -> OperationError:
        details = {
            "max_concurrent_connections": self._max_connections,
            "reason": "gateway_at_capacity",
            "retryable": True,
        }
        return OperationError(
            INTERNAL_ERROR, f"the gateway serves {self._max_connections} connections already", details
        )

    async def _serve(
        self,
        line: LineSocket,
        request: Request | None = None,
        outcome: Outcome | None = None,
        *,
        read_until: float | None = None,
    ) -> None:
        """One connection.

        Args:
            request: None: it is read first, at `read_until` at the latest.
            outcome: as `Router.answer`.
        """
        try:
            reply = await self._exchange(line, request, outcome, read_until)
            if reply is not None:
                await self._end(line, reply)
        finally:
            self._strangers.pop(line.socket, None)
            line.close()

    async def _end(self, line: LineSocket, reply: bytes) -> None:
        try:
            with contextlib.suppress(
                OSError
            ):  # the client has gone or does not read; what it asked for was done
                if rest := line.send_at_once(reply):
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        await line.send(rest)
                if line.pending or not line.at_rest():
                    await line.linger()
        finally:
            line.close()

    async def _exchange(
        self, line: LineSocket, request: Request | None, outcome: Outcome | None, read_until: float | None
    ) -> bytes | None:
        frames: _Frames | None = None
        try:
            if request is None:
                received = await self._receive(line, read_until)
                if received is None:
                    return None
                request = self._authenticated(received)
                self._strangers.pop(line.socket, None)
                if self._in_use > self._max_connections:
                    raise self._full()
            if request.transport.get(protocol.STREAM_LOGS_KEY) is True:
                frames = _Frames(line)
            with caller.answering(line.socket):
                reply = await self._answer(
                    request, frames.put if frames is not None else _no_progress, outcome
                )
            encoded = _encoded(reply)
        except OperationError as error:
            if request is not None and error.kind == INTERNAL_ERROR:
                error.details.setdefault("request_id", request.request_id)  # what the log is searched for
            encoded = protocol.encode(error.envelope())
        except asyncio.CancelledError:
            details = {"reason": "gateway_stopping", "retryable": True}
            encoded = protocol.encode(
                OperationError(SERVER_SHUTTING_DOWN, "the gateway is stopping", details).envelope()
            )
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        except OSError as error:  # of this machine: a full disk, most of all
            failure = protocol.os_error(error, kind=INTERNAL_ERROR)
            failure.details.setdefault("request_id", "" if request is None else request.request_id)
            log("os_error", request_id=failure.details["request_id"], error=repr(error))
            encoded = protocol.encode(failure.envelope())
        except Exception as error:
            import traceback

            log(
                "bug",
                request_id="" if request is None else request.request_id,
                error=repr(error),
                trace=traceback.format_exc(),
            )
            details = {
                "reason": "bug",
                "hint": "see gateway.log",
                "request_id": "" if request is None else request.request_id,
            }
            encoded = protocol.encode(
                OperationError(INTERNAL_ERROR, "the gateway failed on this request", details).envelope()
            )
        if frames is not None:
            await frames.flush()
        return encoded

    async def _receive(self, line: LineSocket, until: float | None) -> bytes | None:
        try:
            at_hand = line.line_at_hand(protocol.MAX_LINE_BYTES)
            if at_hand is not None:
                return at_hand
            async with asyncio.timeout(READ_TIMEOUT_S if until is None else until - time.monotonic()):
                return await line.read_line(protocol.MAX_LINE_BYTES)
        except TooLong:
            details = {"limit": protocol.MAX_LINE_BYTES, "reason": "request_too_large"}
            raise OperationError(
                REQUEST_TOO_LARGE, f"the request exceeds the {protocol.MAX_LINE_BYTES} byte limit", details
            ) from None
        except TimeoutError:
            details = {"reason": "request_timeout"}
            raise OperationError(
                INVALID_REQUEST, f"no whole request within {READ_TIMEOUT_S:g} s", details
            ) from None
        except EOFError:
            raise OperationError(
                BAD_JSON, "the connection ended before the request's newline", reason="bad_json"
            ) from None
        except OSError:
            return None

    def _authenticated(self, received: bytes) -> Request:
        value = protocol.decode_object(received)
        given = value.get(protocol.GATEWAY_TOKEN_KEY)
        if not isinstance(given, str) or not hmac.compare_digest(
            given.encode("utf-8", "replace"), self._token
        ):
            hint = (
                "the gateway's token is in its token file (sandbox-gateway-token path) or in "
                "SANDBOX_GATEWAY_AUTH_TOKEN of whoever started it"
            )
            what = "is wrong" if isinstance(given, str) else "is missing"
            raise OperationError(
                UNAUTHORIZED, f"the gateway token {what}", {"hint": hint}, reason="bad_token"
            )
        request = protocol.decode_request(value)
        protocol.check_request_id(request.request_id)
        return request


class _Frames:
    """Progress of one request, in order. `put` may be called in any thread; a client that does not read
    delays only itself.
    """

    def __init__(self, line: LineSocket) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._sender = asyncio.create_task(self._send())

    def put(self, message: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: no client is left
            self._loop.call_soon_threadsafe(self._queue.put_nowait, message)

    async def flush(self) -> None:
        await asyncio.sleep(0)  # what other threads handed over before their work ended
        self._queue.put_nowait(None)
        await self._sender

    async def _send(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone or does not read: no more frames
            while (message := await self._queue.get()) is not None:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await self._line.send(progress_frame(message))


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
