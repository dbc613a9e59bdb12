"""The agent's end of a socket to its zygote or to a session's runner."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from eos_agent import channel


class Link:
    """The agent's end of one socket: frames in by callback, frames out in order."""

    def __init__(self, sock: socket.socket, on_frame: Callable[[channel.Frame], None], on_end: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_end = on_end
        self._decoder = channel.Decoder()
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._loop.add_reader(sock, self._read)

    def _read(self) -> None:
        try:
            raw, fds = channel.receive(self._sock)
            frames = self._decoder.feed(raw, fds)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, channel.BadFrame):
            raw, frames = b"", []
        for frame in frames:
            self._on_frame(frame)
        if not raw:
            self.close()
            self._on_end()

    async def send(self, message: dict[str, Any], data: bytes | None = None, fds: Sequence[int] = ()) -> None:
        """Queue one frame in order.

        Raises:
            OSError: the peer is gone.
        """
        raw = channel.encode(message, data, len(fds))
        async with self._turn:
            while self._open:
                try:
                    sent = self._sock.sendmsg([raw], channel.rights(fds))
                except (BlockingIOError, InterruptedError):
                    await self._writable()
                    continue
                if sent < len(raw):
                    await self._loop.sock_sendall(self._sock, memoryview(raw)[sent:])
                return
        raise BrokenPipeError(32, "the session's process is gone")

    async def _writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._sock, resolve, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(self._sock)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._decoder.close()
            self._sock.close()


def resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
