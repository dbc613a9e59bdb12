"""Lines over non-blocking sockets: read a line or a number of bytes, send, and close without loss of sent
data.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable

CHUNK = 256 * 1024
FIRST_CHUNK = 64 * 1024
INSIDE = "it closed the connection inside a line"
LINGER_S = 2.0
LINGER_BYTES = 64 * 1024 * 1024


class TooLong(Exception):
    """A line is longer than the limit."""


class LineSocket:
    """A connected socket, and the bytes received after the last line."""

    def __init__(self, connected: socket.socket, received: bytes = b"") -> None:
        connected.setblocking(False)
        self.socket = connected
        self.pending = bytearray(received)
        self._loop = asyncio.get_running_loop()
        self._watcher: Callable[[], None] | None = None

    def watch(self, readable: Callable[[], None]) -> None:
        """Call `readable` while bytes or the end of the stream are unread. Until `unwatch` no other reader
        may wait on the socket.

        Another function may replace `readable` without a system call.
        """
        if self._watcher is None:
            self._loop.add_reader(self.socket, self._wake)
        self._watcher = readable

    def unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher = None
            self._loop.remove_reader(self.socket)

    def _wake(self) -> None:
        if self._watcher is not None:
            self._watcher()

    async def read_line(self, limit: int) -> bytes | None:
        """Read a line, without its newline; None at the end of the stream before any byte.

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
                    raise EOFError(INSIDE)
                return None
            self.pending += chunk
        return self._take(end, limit)

    def line_at_hand(self, limit: int) -> bytes | None:
        """Return a line if all of it has arrived, without a wait. None: use `read_line`, which waits and
        raises.

        Raises:
            TooLong: as `read_line`; OSError: the connection broke.
        """
        if not self.pending:
            try:
                self.pending += self.socket.recv(CHUNK)
            except BlockingIOError:
                return None
        end = self.pending.find(b"\n")
        return None if end < 0 else self._take(end, limit)

    def receive(self, limit: int) -> bytes | None:
        """Receive once, for a watcher; return the line with its newline once it is complete, None before.

        Raises:
            TooLong, EOFError: as `read_line`, and EOFError at the end of the stream before any byte; OSError:
                the connection broke.
        """
        try:
            chunk = self.socket.recv(CHUNK if self.pending else FIRST_CHUNK)
        except BlockingIOError:
            return None
        if not chunk:
            raise EOFError(INSIDE if self.pending else "it closed the connection")
        if not self.pending and chunk.find(b"\n") == len(chunk) - 1 < limit:
            return chunk  # nearly always the whole line comes at once
        searched = len(self.pending)
        self.pending += chunk
        end = self.pending.find(b"\n", searched)
        if end < 0:
            if len(self.pending) >= limit:
                raise TooLong
            return None
        return self._take(end, limit) + b"\n"

    def _take(self, end: int, limit: int) -> bytes:
        if end >= limit:
            raise TooLong
        line = bytes(self.pending[:end])
        del self.pending[: end + 1]
        return line

    async def read_exactly(self, size: int) -> bytes:
        """Read `size` bytes.

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
        """Send as much as the socket's buffer takes; return the rest, for `send`.

        Raises:
            OSError: the connection broke.
        """
        try:
            return data[self.socket.send(data) :]
        except BlockingIOError:
            return data

    async def linger(self) -> None:
        """Read what the peer still sends, within bounds: close(2) with unread bytes resets the connection,
        and the peer may lose the reply.
        """
        taken = 0
        with contextlib.suppress(OSError, TimeoutError):
            self.socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                while taken < LINGER_BYTES and (chunk := await self._loop.sock_recv(self.socket, CHUNK)):
                    taken += len(chunk)

    def at_rest(self) -> bool:
        """Tell whether nothing was received and the peer has not closed."""
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
        self.unwatch()
        self.socket.close()


def unread(connected: socket.socket) -> bool:
    """Tell whether received bytes are unread, with which close(2) would reset the connection. Does not wait,
    even on a blocking socket.
    """
    try:
        return bool(connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


def check_owner(connected: socket.socket, path: str) -> None:
    """Check that the process that listens at a unix socket is this user's. Only Linux can tell (SO_PEERCRED,
    unix(7)); elsewhere the mode of the socket's directory protects it.

    Raises:
        PermissionError: the process is another user's.
    """
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise PermissionError(
                f"process {pid} of uid {uid} listens at {path}, not one of uid {os.geteuid()}"
            )
