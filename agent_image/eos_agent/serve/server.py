"""The agent's two JSON-line listeners: accept, read a line, authenticate, dispatch, answer. One coroutine per
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import hmac
import os
import select
import socket
from typing import Any

from eos_agent.base import log
from eos_agent.base.errors import operation_error
from eos_agent.serve.connection import LineConnection
from eos_agent.serve.handlers import Handlers, Stream
from eos_agent.wire import proof
from eos_agent.wire.protocol import (
    BAD_JSON,
    DAEMON_TOKEN_KEY,
    INVALID_REQUEST,
    KEEP_ALIVE_KEY,
    MAX_LINE_BYTES,
    REQUEST_TOO_LARGE,
    SERVER_BUSY,
    SERVER_SHUTTING_DOWN,
    UNAUTHORIZED,
    OperationError,
    Request,
    decode_object,
    decode_request,
    encode,
)

BACKLOG = 1024
UNREAD_TOKEN_BYTES = (
    64 * 1024
)  # a longer line is parsed only if it contains the token: a search costs a hundredth of parsing
READ_BYTES = 256 * 1024
STRANGERS = 256  # most unauthenticated connections; a further one closes the oldest
STRANGERS_BYTES = 64 * 1024 * 1024  # of the unfinished lines of all unauthenticated connections together
LINGER_S = 2.0
ANSWER_S = 60.0  # a peer that does not read an answer in this time is disconnected
STREAM_S = 600.0  # the same for a chunk of a stream: its reader may write to a slow disk


class Peer:
    """The peer of a connection. trusted: its requests need no token, since it is on the unix socket or has
    sent its proof."""

    __slots__ = ("admitted", "expected", "trusted")

    def __init__(self, trusted: bool) -> None:
        self.trusted = trusted
        self.admitted = False  # counted in ConnectionCount
        self.expected: str | None = None  # the proof that the peer has to send; "" once it was sent


class AgentServer:
    """The listeners of one agent. A request that was read is performed even if its peer has half-closed or
    closed the connection.
    """

    def __init__(self, handlers: Handlers, token: str) -> None:
        settings = handlers.settings
        self._handlers = handlers
        self._token = token.encode()
        self._start = proof.new_nonce()
        self._key = proof.start_key(token, settings.sandbox_id, self._start)
        self._max_request: int = min(
            settings.get("daemon.server.max_request_bytes", MAX_LINE_BYTES), MAX_LINE_BYTES
        )
        self._read_timeout: float = settings.get("daemon.server.request_read_timeout_s", 30)
        self._max_connections: int = settings.get("daemon.server.max_concurrent_connections", 64)
        # Connections in service: authenticated, and not kept-alive ones that wait for their next request.
        self._count = handlers.connections
        self._servers: list[asyncio.Server] = []
        self.connections: set[asyncio.Task[Any]] = set()
        self._idle: set[asyncio.StreamWriter] = set()
        self._strangers: dict[
            asyncio.StreamWriter, None
        ] = {}  # oldest first: peers that have sent neither token nor proof, or no request on the unix socket
        self._strangers_bytes = 0
        self.address = ("", 0)
        self.draining = False

    async def listen(self) -> tuple[str, int]:
        """Open both listeners; returns the TCP address in use."""
        settings = self._handlers.settings
        with contextlib.suppress(FileNotFoundError):
            os.unlink(settings.socket_path)
        mask = os.umask(0o177)
        loop = asyncio.get_running_loop()
        try:
            unix = await loop.create_unix_server(
                lambda: self._connection(loop, trusted=True), settings.socket_path, backlog=BACKLOG
            )
        finally:
            os.umask(mask)
        tcp = await loop.create_server(
            lambda: self._connection(loop, trusted=False),
            settings.tcp_host,
            settings.tcp_port,
            backlog=BACKLOG,
            family=socket.AF_INET,
        )
        self._servers += [unix, tcp]
        host, port = tcp.sockets[0].getsockname()[:2]
        self.address = (str(host), int(port))
        return self.address

    def _connection(self, loop: asyncio.AbstractEventLoop, *, trusted: bool) -> LineConnection:
        def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = loop.create_task(self._serve(connection, writer, trusted))
            self.connections.add(task)
            task.add_done_callback(self.connections.discard)

        connection = LineConnection(asyncio.StreamReader(limit=READ_BYTES, loop=loop), accept, loop)
        return connection

    async def _serve(self, reader: LineConnection, writer: asyncio.StreamWriter, trusted: bool) -> None:
        peer = Peer(trusted)
        self._strangers[writer] = None
        if len(self._strangers) > STRANGERS:
            self._displace()
        try:
            first, received = True, bytearray()
            while not self.draining or first:
                line = await self._line(reader, writer, received, first, peer)
                if line is None or not await self._one(line, writer, peer):
                    return
                first = not peer.admitted
        except (ConnectionError, BrokenPipeError, TimeoutError):
            return
        except Exception as error:
            log.failure("connection_failed", error)
        finally:
            self._count.in_use -= peer.admitted
            self._idle.discard(writer)
            self._strangers.pop(writer, None)
            await _close(writer)

    def _displace(self) -> None:
        """Close the oldest unauthenticated connection, so that a peer that opens many blocks no other."""
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        oldest.transport.abort()

    def _admit(self, writer: asyncio.StreamWriter, peer: Peer) -> None:
        """Count a connection whose peer is authenticated.

        Raises:
            OperationError: server_busy.
        """
        if self._count.in_use >= self._max_connections:
            raise OperationError(
                SERVER_BUSY,
                f"the agent serves {self._max_connections} connections, which is the limit",
                {"fields": {"max_concurrent_connections": self._max_connections}, "retryable": True},
                reason="max_concurrent_connections",
            )
        self._strangers.pop(writer, None)
        self._count.in_use += 1
        peer.admitted = True

    async def _line(
        self,
        reader: LineConnection,
        writer: asyncio.StreamWriter,
        received: bytearray,
        first: bool,
        peer: Peer,
    ) -> bytes | None:
        """Read one request line; None at the end of the stream. On a kept-alive connection the timeout begins
        with the first byte of the line, else with the connection.

        Args:
            received: bytes received after the previous line; on return, those after this line.
        """
        if not first and not received:
            self._idle.add(writer)
            self._count.in_use -= 1
            try:
                if not await reader.requests(functools.partial(self._kept, writer, peer), self._max_request):
                    return None
                received += await reader.read(READ_BYTES)
            finally:
                self._count.in_use += 1
                self._idle.discard(writer)
            if not received:
                return None
        try:
            end = received.find(b"\n")
            if end < 0:
                async with asyncio.timeout(self._read_timeout):
                    end = await self._rest(received, reader, stranger=not peer.trusted)
            if end > self._max_request:
                raise self._too_large()
        except OperationError as error:
            await self._last_answer(reader, writer, error)
            return None
        line = bytes(received[: end + 1])
        del received[: end + 1]
        return line if line.strip() else None

    async def _rest(self, received: bytearray, reader: LineConnection, *, stranger: bool) -> int:
        """Receive up to a newline or the end of the stream; returns its offset in `received`.

        Raises:
            OperationError: request_too_large; server_busy if the unfinished lines of all unauthenticated
                peers together exceed STRANGERS_BYTES.
        """
        counted = 0
        try:
            while True:
                searched = len(received)
                data = await reader.read(READ_BYTES)
                received += data
                end = received.find(b"\n", searched)
                if end >= 0 or not data:
                    return end if data else searched
                if len(received) > self._max_request:
                    raise self._too_large()
                if stranger:
                    self._strangers_bytes += len(received) - counted
                    counted = len(received)
                    if self._strangers_bytes > STRANGERS_BYTES:
                        raise OperationError(
                            SERVER_BUSY,
                            f"requests whose token is not known yet hold {STRANGERS_BYTES} bytes, which is "
                            f"the limit",
                            {"fields": {"max_bytes": STRANGERS_BYTES}, "retryable": True},
                            reason="max_unauthenticated_bytes",
                        )
        finally:
            self._strangers_bytes -= counted

    def _too_large(self) -> OperationError:
        return OperationError(
            REQUEST_TOO_LARGE,
            f"request exceeds the byte limit of {self._max_request}",
            {"fields": {"limit": self._max_request}},
            reason="request_too_large",
        )

    async def _kept(self, writer: asyncio.StreamWriter, peer: Peer, line: bytes) -> bool:
        """Do the same as `_one` on a kept-alive connection."""
        self._idle.discard(writer)
        self._count.in_use += 1
        try:
            return await self._one(line, writer, peer)
        finally:
            self._count.in_use -= 1
            self._idle.add(writer)

    async def _one(self, line: bytes, writer: asyncio.StreamWriter, peer: Peer) -> bool:
        """Answer one request; True if the connection stays open for another."""
        keep = False
        request: Request | None = None
        try:
            if not peer.trusted and len(line) > UNREAD_TOKEN_BYTES and self._token not in line:
                raise _unauthorized()
            value = decode_object(line)
            if len(value) == 1:
                if proof.PROOF_KEY in value:
                    self._prove(value[proof.PROOF_KEY], peer)
                    return True
                if proof.PROVE_KEY in value:
                    await self._answer(writer, self._meet(value[proof.PROVE_KEY], peer))
                    return True
            keep = value.get(KEEP_ALIVE_KEY) is True
            if not peer.trusted and not self._authentic(value.get(DAEMON_TOKEN_KEY)):
                keep = False
                raise _unauthorized()
            if not peer.admitted:
                self._admit(writer, peer)
            request = decode_request(value)
            answer = await self._perform(request)
        except Exception as error:
            answer = self._envelope(error, request)
            keep = keep and peer.admitted and answer["error"]["kind"] != BAD_JSON
        if isinstance(answer, Stream):
            await self._stream(answer, writer, request)
            return False
        await self._answer(writer, answer)
        return keep and not self.draining

    def _meet(self, asked: object, peer: Peer) -> dict[str, Any]:
        """Prove to a peer that the agent knows the token, once per connection.

        Raises:
            OperationError: unauthorized.
        """
        try:
            if peer.expected is not None:
                raise proof.WrongProof("a connection may ask for one proof only")
            found = proof.meet(self._key, self._handlers.settings.sandbox_id, self._start, asked)
        except proof.WrongProof as wrong:
            raise OperationError(UNAUTHORIZED, str(wrong), reason="bad_proof") from None
        peer.expected = found.proof
        return found.reply

    def _prove(self, given: object, peer: Peer) -> None:
        """Check a peer's proof. A right proof gets no answer, since the peer's first request follows at once.

        Raises:
            OperationError: unauthorized.
        """
        expected, peer.expected = peer.expected, ""
        if not expected or not proof.matches(expected, given):
            raise OperationError(UNAUTHORIZED, "the proof is wrong or was not asked for", reason="bad_proof")
        peer.trusted = True

    def _authentic(self, given: object) -> bool:
        return isinstance(given, str) and hmac.compare_digest(
            given.encode("utf-8", "surrogatepass"), self._token
        )

    async def _perform(self, request: Request) -> dict[str, Any] | Stream:
        if self.draining:
            raise OperationError(
                SERVER_SHUTTING_DOWN, "the agent is shutting down", {"retryable": True}, reason="draining"
            )
        sandbox_id = self._handlers.settings.sandbox_id
        if request.sandbox_id is None:
            raise OperationError(
                INVALID_REQUEST,
                f"{request.op} needs sandbox scope",
                {"argument": "scope"},
                reason="sandbox_scope_required",
            )
        if request.sandbox_id != sandbox_id:
            raise OperationError(
                INVALID_REQUEST,
                f"sandbox not found: {request.sandbox_id}",
                {"sandbox_id": request.sandbox_id},
                reason="sandbox_mismatch",
            )
        return await self._handlers.perform(request)

    def _envelope(self, error: Exception, request: Request | None) -> dict[str, Any]:
        shown = operation_error(error, request.request_id if request else None)
        if shown.kind == "internal_error" and not isinstance(error, OperationError):
            log.failure(
                "request_failed",
                error,
                op=request.op if request else None,
                request_id=request.request_id if request else None,
            )
        return shown.envelope()

    async def _answer(self, writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
        writer.write(encode(value))
        if writer.transport.get_write_buffer_size():  # else the kernel has taken all of it
            async with asyncio.timeout(ANSWER_S):
                await writer.drain()

    async def _last_answer(
        self, reader: LineConnection, writer: asyncio.StreamWriter, error: OperationError
    ) -> None:
        """Answer a peer that may still be sending, and read from it for a moment longer: otherwise it gets a
        reset instead of the answer.
        """
        await self._answer(writer, error.envelope())
        writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while await reader.read(1 << 16):
                    pass

    async def _stream(self, stream: Stream, writer: asyncio.StreamWriter, request: Request | None) -> None:
        """Send each chunk when it is ready. An error before the first chunk is answered by an envelope; an
        error after it resets the connection.

        A range of a file is sent by sendfile(2) in a thread, since it may wait for the disk. The chunks
        before it are flushed first.
        """
        begun = False
        fd = os.dup(writer.get_extra_info("socket").fileno())
        writer.transport.set_write_buffer_limits(high=0)
        try:
            async for piece in stream.pieces:
                if isinstance(piece, bytes):
                    writer.write(piece)
                    begun = True
                    async with asyncio.timeout(STREAM_S):
                        await writer.drain()
                else:
                    await self._handlers.exports.run(functools.partial(_send_range, fd, *piece))
        except ConnectionError:
            return
        except Exception as error:
            envelope = self._envelope(error, request)
            if begun:
                log.log("stream_broken", error=envelope["error"]["message"])
                writer.transport.abort()
            else:
                await self._answer(writer, envelope)
        finally:
            os.close(fd)
            await stream.pieces.aclose()

    async def close(self, grace_s: float) -> None:
        """Stop listening; connections in service get `grace_s` for their answers."""
        self.draining = True
        for server in self._servers:
            server.close()
        for writer in list(self._idle):
            writer.close()
        if self.connections:
            await asyncio.wait(self.connections, timeout=grace_s)
        for task in list(self.connections):
            task.cancel()
        if self.connections:
            await asyncio.wait(self.connections, timeout=1)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._handlers.settings.socket_path)


def _send_range(to: int, fd: int, offset: int, size: int) -> None:
    """Write a range of the file `fd` to the non-blocking socket `to`.

    Raises:
        ConnectionError: the peer has closed the connection. TimeoutError: it read nothing for STREAM_S.
            OSError: the disk refused, or the file is too short.
    """
    waiting = select.poll()
    waiting.register(to, select.POLLOUT)
    while size:
        try:
            sent = os.sendfile(to, fd, offset, size)
        except BlockingIOError:
            if not waiting.poll(STREAM_S * 1000):
                raise TimeoutError(f"the reader of a stream read nothing for {STREAM_S:.0f} s") from None
            continue
        if not sent:
            raise OSError(errno.EIO, "a file is shorter than it was")
        offset += sent
        size -= sent


def _unauthorized() -> OperationError:
    return OperationError(UNAUTHORIZED, "the agent's token is missing or wrong", reason="unauthorized")


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close the connection once everything written was sent, and in any case after ANSWER_S."""
    writer.close()
    try:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(ANSWER_S):
                await writer.wait_closed()
    except asyncio.CancelledError:
        pass
    finally:
        writer.transport.abort()
