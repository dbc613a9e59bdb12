"""Lines over non-blocking sockets: read one, read so many bytes, send, and close without losing what was sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket

CHUNK = 256 * 1024
LINGER_S = 2.0
LINGER_BYTES = 64 * 1024 * 1024


class TooLong(Exception):
    """A line goes on beyond the limit."""


class LineSocket:
    """A connected socket and what was received beyond the last line."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.pending = bytearray()
        self._loop = asyncio.get_running_loop()

    async def read_line(self, limit: int) -> bytes | None:
        """A line without its newline; None at the end of the stream before any byte.

        Raises:
            TooLong: more than `limit` bytes with the newline.
            EOFError: the stream ends inside a line.
        """
        searched = 0
        while (end := self.pending.find(b"\n", searched)) < 0:
            searched = len(self.pending)
            if searched >= limit:
                raise TooLong
            chunk = await self._loop.sock_recv(self.socket, CHUNK)
            if not chunk:
                if self.pending:
                    raise EOFError
                return None
            self.pending += chunk
        return self._take(end, limit)

    def line_at_hand(self, limit: int) -> bytes | None:
        """The line if all of it is here: nothing is waited for, so nobody needs a clock. None: `read_line` says what is the matter.

        Raises:
            TooLong: as `read_line`; OSError: the connection broke.
        """
        try:
            self.pending += self.socket.recv(CHUNK)
        except BlockingIOError:
            return None
        end = self.pending.find(b"\n")
        return None if end < 0 else self._take(end, limit)

    def _take(self, end: int, limit: int) -> bytes:
        if end >= limit:
            raise TooLong
        line = bytes(self.pending[:end])
        del self.pending[: end + 1]
        return line

    async def read_exactly(self, size: int) -> bytes:
        """`size` bytes.

        Raises:
            EOFError: the stream ends before.
        """
        while len(self.pending) < size:
            chunk = await self._loop.sock_recv(self.socket, CHUNK)
            if not chunk:
                raise EOFError
            self.pending += chunk
        data = bytes(self.pending[:size])
        del self.pending[:size]
        return data

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    def send_at_once(self, data: bytes) -> bytes:
        """What the peer's buffer has room for; returns the rest, for `send`.

        Raises:
            OSError: the connection broke.
        """
        try:
            return data[self.socket.send(data) :]
        except BlockingIOError:
            return data

    async def linger(self) -> None:
        """Take in what the peer still sends, within bounds: closing with unread bytes resets the connection and may take our answer with it."""
        taken = 0
        with contextlib.suppress(OSError, TimeoutError):
            self.socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                while taken < LINGER_BYTES and (chunk := await self._loop.sock_recv(self.socket, CHUNK)):
                    taken += len(chunk)

    def at_rest(self) -> bool:
        """Nothing was received and the peer has not closed."""
        if self.pending:
            return False
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self.socket.close()
