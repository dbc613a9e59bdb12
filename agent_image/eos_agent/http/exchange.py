"""One HTTP request between a connected client and a connected server: its head, its body, the response, and a
tunnel if both agree on an upgrade.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eos_agent.http.answer import WORDS, HttpRefusal, refused
from eos_agent.http.message import (
    CHUNKED,
    PIECE_BYTES,
    BadMessage,
    Body,
    RequestHead,
    ResponseHead,
    chunk,
    encode_head,
)

if TYPE_CHECKING:
    from eos_agent.http.peer import HttpPeer

BODY_STALL_S = 60.0  # a client that sends no byte of an announced body for so long
GONE_POLL_S = 5.0
LAST_BYTES_S = 10.0  # to send the bytes left in a tunnel after both sides have ended
READ_STALL_S = 600.0  # a client that takes nothing of an answer
_OF_THE_WHOLE_ADDRESS = ("service-worker-allowed", "clear-site-data")
"""Response fields that a server may not send: they apply to the whole address, which the servers of all
sessions share, while a server owns only the paths below its own prefix.
"""
_TCP_CLOSE = 7  # include/net/tcp_states.h, the first byte of struct tcp_info
_KEEPALIVE = (
    ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
    if hasattr(socket, "TCP_KEEPIDLE")
    else ()
)


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Enable keep-alive probes, so that the kernel detects a silent peer that has vanished, or has closed
    instead of half-closed.
    """
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def gone(writer: asyncio.StreamWriter) -> bool:
    """True if the peer has closed the connection; False if it has only half-closed it."""
    if writer.transport.is_closing():
        return True
    sock = writer.get_extra_info("socket")
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Make the coming close a reset: at an ordinary end of the connection a response without a length would
    look complete.
    """
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Exchange:
    """One request in progress. started: the client was sent a part of the server's response, so that no other
    answer can follow."""

    def __init__(self, request: RequestHead, client: HttpPeer, server: HttpPeer, response_s: float) -> None:
        self._request, self._client, self._server = request, client, server
        self._response_s = response_s
        self._body = request.body
        self.started = False

    async def run(self, target: str, fields: Sequence[tuple[str, str]]) -> None:
        """Forward the request and its response; the caller closes both connections.

        Raises:
            Refused: the answer for the client, which was sent nothing so far.
            ConnectionError: the response broke off, or the client closed the connection.
        """
        self._send_head(target, fields)
        upload = asyncio.get_running_loop().create_task(self._upload())
        try:
            response = await self._response(upload)
            if response.status == 101:
                await upload
                await self._tunnel(response)
            else:
                await self._download(response)
        except BadMessage as bad:
            raise refused(bad.status, "bad_request", bad.why) from None
        finally:
            upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)

    def _send_head(self, target: str, fields: Sequence[tuple[str, str]]) -> None:
        request, upgrade = self._request, self._request.upgrade
        pairs = list(fields)
        pairs += [("Connection", "Upgrade"), ("Upgrade", upgrade)] if upgrade else [("Connection", "close")]
        if self._body == CHUNKED:
            pairs.append(("Transfer-Encoding", "chunked"))
        elif request.fields.get("content-length") is not None:
            pairs.append(("Content-Length", str(self._body.length)))
        self._server.send_request(request.method, target, pairs)

    async def _upload(self) -> None:
        """Send the request's body until it ends or the server reads no more."""
        if self._body.empty:
            return
        if self._request.minor and self._request.fields.get("expect") is not None:
            self._client.writer.write(encode_head(f"HTTP/1.1 100 {WORDS[100]}", ()))
        async with contextlib.aclosing(self._client.pieces(self._body)) as content:
            while True:
                try:
                    async with asyncio.timeout(BODY_STALL_S):
                        piece = await anext(content, b"")
                except TimeoutError:
                    raise HttpRefusal(408) from None
                except asyncio.IncompleteReadError:
                    raise ConnectionResetError("the client left in the middle of its request") from None
                if not await self._give(self._server.framed(piece)) or not piece:
                    return

    async def _give(self, raw: bytes) -> bool:
        """Send to the server; False if it reads no more, for which its response has the reason."""
        try:
            self._server.writer.write(raw)
            async with asyncio.timeout(self._response_s):
                await self._server.writer.drain()
        except ConnectionError:
            return False
        except TimeoutError:
            raise self._too_late("take the request") from None
        return True

    async def _response(self, upload: asyncio.Task[None]) -> ResponseHead:
        """Read the head of the response; the time limit begins when the server has the whole request."""
        head = asyncio.get_running_loop().create_task(self._response_head())
        both: set[asyncio.Task[None] | asyncio.Task[ResponseHead]] = {upload, head}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if upload.done():
                upload.result()
            async with asyncio.timeout(None if head.done() else self._response_s):
                return await head
        except TimeoutError:
            raise self._too_late("answer") from None
        finally:
            if not head.cancel() and not head.cancelled():
                head.exception()  # marks it as retrieved

    def _too_late(self, what: str) -> HttpRefusal:
        return refused(504, "response_timed_out", f"the server did not {what} within {self._response_s:g} s")

    async def _response_head(self) -> ResponseHead:
        while True:
            try:
                found = await self._server.response()
                found.body(self._request.method)
            except (asyncio.IncompleteReadError, ConnectionError):
                raise refused(
                    502, "bad_response", "the server closed the connection without an answer"
                ) from None
            except asyncio.LimitOverrunError:
                raise refused(502, "bad_response", "the head of the server's answer is too long") from None
            except BadMessage as bad:
                raise refused(
                    502, "bad_response", f"the server's answer is not an HTTP/1 response: {bad.why}"
                ) from None
            if found.status == 101 or found.status >= 200:
                return found

    async def _download(self, response: ResponseHead) -> None:
        body = response.body(self._request.method)
        chunked = body == CHUNKED and self._request.minor > 0
        self._start(response, [*self._framing(response, body, chunked), ("Connection", "close")])
        try:
            async with contextlib.aclosing(self._server.pieces(body)) as content:
                async for piece in content:
                    await self._show(chunk(piece) if chunked else piece)
        except (asyncio.IncompleteReadError, BadMessage, ConnectionError):
            _reset(self._client.writer)
            raise ConnectionResetError("the answer was broken off") from None
        await self._show(chunk(b"") if chunked else b"")

    def _framing(self, response: ResponseHead, body: Body, chunked: bool) -> list[tuple[str, str]]:
        if chunked:
            return [("Transfer-Encoding", "chunked")]
        if response.status == 204:
            return []
        if self._request.method == "HEAD" or response.status == 304:  # the length that a body would have
            return [("Content-Length", value) for value in response.fields.all("content-length")[:1]]
        return [] if body.length is None else [("Content-Length", str(body.length))]

    def _start(self, response: ResponseHead, pairs: Sequence[tuple[str, str]]) -> None:
        self.started = True
        first = f"HTTP/1.1 {response.status} {response.reason}"
        self._client.writer.write(
            encode_head(first, [*response.fields.without(*_OF_THE_WHOLE_ADDRESS), *pairs])
        )

    async def _show(self, raw: bytes) -> None:
        """Send to the client. Raises: ConnectionError, also if the client does not read."""
        self._client.writer.write(raw)
        try:
            async with asyncio.timeout(READ_STALL_S):
                await self._client.writer.drain()
        except TimeoutError:
            raise ConnectionResetError("the client does not read") from None

    async def _tunnel(self, response: ResponseHead) -> None:
        """Copy bytes in both directions until both sides have ended; the end of one side half-closes the
        other."""
        upgrade = response.fields.get("upgrade") or self._request.upgrade or ""
        self._start(response, [("Connection", "Upgrade"), ("Upgrade", upgrade)])
        keep_alive(self._server.writer)
        self._server.writer.write(self._client.unread())
        loop = asyncio.get_running_loop()
        there = loop.create_task(_pump(self._client.reader, self._server.writer))
        back = loop.create_task(_pump(self._server.reader, self._client.writer))
        ways = {there, back}
        try:
            left, once = ways, None
            while left and not (back.done() and gone(self._server.writer)):
                done, left = await asyncio.wait(left, timeout=once, return_when=asyncio.FIRST_COMPLETED)
                for way in done:
                    way.result()
                once = GONE_POLL_S  # a side that has ended may have half-closed or closed
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        self._server.writer.close()
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(LAST_BYTES_S):
                await self._server.writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    with contextlib.suppress(OSError):  # it is closed: its reader gets the error
        writer.write_eof()
