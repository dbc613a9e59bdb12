"""Lines over non-blocking sockets: send, read a line, and close without loss of sent data."""

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

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.pending = bytearray()
        self._loop = asyncio.get_running_loop()
        self._watcher: Callable[[], None] | None = None

    def watch(self, readable: Callable[[], None]) -> None:
        """Call `readable` while bytes or the end of the stream are unread. No other reader may wait on the
        socket before `unwatch`.

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

    async def ask(self, data: bytes, limit: int) -> bytes:
        """Send a line, then `read_line`."""
        answered = self._expect(limit)  # before the send: the watcher of an idle connection would close it
        if rest := self.send_at_once(data):
            await self.send(rest)
        return _line_of(await answered)

    async def read_line(self, limit: int) -> bytes:
        """Read a line, without its newline.

        The socket stays watched, so that the next `ask`, `read_line` or `watch` costs no registration with
        the loop; call `unwatch` before another reader uses the socket.

        Raises:
            TooLong: the line and its newline exceed `limit` bytes; EOFError: the stream ended, inside a line
                if `pending` is not empty; OSError: the connection broke.
        """
        return _line_of(await self._expect(limit))

    def _expect(self, limit: int) -> asyncio.Future[bytes | Exception]:
        answered: asyncio.Future[bytes | Exception] = self._loop.create_future()
        self.watch(lambda: self._receive(answered, limit))
        return answered

    def _receive(self, answered: asyncio.Future[bytes | Exception], limit: int) -> None:
        """Receive once, in the callback: a task that received later would be woken a second time by the same
        bytes, since epoll(7) reports a level.
        """
        if answered.done():  # bytes after the answer: left for the next watcher
            self.unwatch()
            return
        try:
            line = self._next_line(limit)
        except (OSError, EOFError, TooLong) as error:
            answered.set_result(error)
        else:
            if line is not None:
                answered.set_result(line)

    def _next_line(self, limit: int) -> bytes | None:
        """Receive once; return the line if it is complete, else None."""
        try:
            chunk = self.socket.recv(CHUNK if self.pending else FIRST_CHUNK)
        except BlockingIOError:
            return None
        if not chunk:
            raise EOFError(INSIDE if self.pending else "it closed the connection")
        if not self.pending and chunk.find(b"\n") == len(chunk) - 1 < limit:
            return chunk[:-1]  # the usual case: one receive returns the whole line
        searched = len(self.pending)
        self.pending += chunk
        end = self.pending.find(b"\n", searched)
        if end < 0:
            if len(self.pending) >= limit:
                raise TooLong
            return None
        return self._pop_line(end, limit)

    def line_at_hand(self, limit: int) -> bytes | None:
        """Return a line if all of it has arrived, without a wait. None: use `read_line`, which waits and
        raises.

        Raises:
            TooLong: as `read_line`; OSError: the connection broke.
        """
        if not self.pending:
            try:
                self.pending += self.socket.recv(FIRST_CHUNK)
            except BlockingIOError:
                return None
        end = self.pending.find(b"\n")
        return None if end < 0 else self._pop_line(end, limit)

    def _pop_line(self, end: int, limit: int) -> bytes:
        if end >= limit:
            raise TooLong
        line = bytes(self.pending[:end])
        del self.pending[: end + 1]
        return line

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    def send_at_once(self, data: bytes) -> bytes:
        """Send as much as the socket's buffer takes; return the rest, which the caller passes to `send`.

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
        self.unwatch()
        with contextlib.suppress(OSError, TimeoutError):
            self.socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                while taken < LINGER_BYTES and (chunk := await self._loop.sock_recv(self.socket, CHUNK)):
                    taken += len(chunk)

    async def closed(self) -> None:
        """Wait until the peer has closed its end or the connection broke. Bytes that it sends are
        discarded."""
        ended: asyncio.Future[None] = self._loop.create_future()
        self.watch(lambda: self._discard(ended))
        try:
            await ended
        finally:
            self.unwatch()

    def _discard(self, ended: asyncio.Future[None]) -> None:
        try:
            over = not self.socket.recv(CHUNK)
        except BlockingIOError:
            over = False
        except OSError:
            over = True
        if over and not ended.done():
            ended.set_result(None)

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


def _line_of(outcome: bytes | Exception) -> bytes:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def check_owner(connected: socket.socket, path: str) -> None:
    """Check that the process that listens at a unix socket belongs to this user. Only Linux reports it
    (SO_PEERCRED, unix(7)); elsewhere the mode of the socket's directory is the protection.

    Raises:
        PermissionError: the process belongs to another user.
    """
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise PermissionError(
                f"process {pid} of uid {uid} listens at {path}, not one of uid {os.geteuid()}"
            )
