"""Blocking reads with a deadline from the connection of a stream."""

from __future__ import annotations

import os
import socket
import struct

CHUNK = 1 << 20
"""Bytes that are requested at a time while a line is read."""
STREAM_SILENCE_S = 120.0


class BlockingReader:
    """The bytes of one connection, each read with a deadline."""

    def __init__(
        self, connection: socket.socket, received: bytes, *, silence_s: float = STREAM_SILENCE_S
    ) -> None:
        self._whole = 0
        if os.name == "posix":  # SO_RCVTIMEO: the kernel keeps the deadline, and one call can fill a chunk
            connection.setblocking(True)
            connection.setsockopt(
                socket.SOL_SOCKET,
                socket.SO_RCVTIMEO,
                struct.pack("@ll", int(silence_s), int(silence_s % 1 * 1e6)),
            )
            self._whole = socket.MSG_WAITALL
        else:
            connection.settimeout(silence_s)
        self._connection = connection
        self._held = memoryview(received)

    def read(self, n: int, /) -> bytes:
        """Read n bytes, fewer only at a deadline or the end; empty at the end.

        Raises:
            TimeoutError: silence; OSError: the connection was lost.
        """
        if not self._held:
            return self._receive(n, self._whole)
        piece, self._held = bytes(self._held[:n]), self._held[n:]
        return piece

    def _receive(self, n: int, flags: int) -> bytes:
        try:
            return self._connection.recv(n, flags)
        except BlockingIOError:
            raise TimeoutError from None

    def readline(self, limit: int, /) -> bytes:
        """Read up to and including the next newline, at most `limit` bytes."""
        line = bytearray()
        while not line.endswith(b"\n") and len(line) < limit:
            if not self._held:
                self._held = memoryview(self._receive(CHUNK, 0))
                if not self._held:
                    break
            end = bytes(self._held).find(b"\n") + 1 or len(self._held)
            end = min(end, limit - len(line))
            line += self._held[:end]
            self._held = self._held[end:]
        return bytes(line)
