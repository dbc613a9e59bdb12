"""The agent's end of a socket to the zygote or to the init of a session."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any

from eos_agent.ipc import frames as channel


class FrameSocket:
    """The agent's end of one socket: frames in by callback, frames out in order."""

    def __init__(
        self, sock: socket.socket, on_frame: Callable[[channel.Frame], None], on_end: Callable[[], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_end = on_end
        self._decoder = channel.FrameDecoder()
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._room: asyncio.Future[None] | None = None  # pending while the peer's buffer is full
        self._rest: asyncio.Task[bool] | None = None  # sends the rest of a frame that was begun
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
        """Send one frame, in order. A frame that was begun is sent whole even if the caller is cancelled: the
        peer could not read the next frame after half of this one.

        Raises:
            OSError: the peer has ended, or the socket was closed before the frame was sent.
        """
        raw = channel.encode(message, data, len(fds))
        async with self._turn:
            while self._open:
                if self._rest is not None:
                    await self._begun(self._rest)
                    continue
                try:
                    sent = self._sock.sendmsg([raw], channel.rights(fds))
                except (BlockingIOError, InterruptedError):
                    await self._writable()
                    continue
                if sent < len(raw):
                    self._rest = self._loop.create_task(self._send_rest(memoryview(raw)[sent:]))
                    await self._begun(self._rest)
                return
        raise _gone()

    async def _begun(self, rest: asyncio.Task[bool]) -> None:
        whole = await asyncio.shield(rest)
        self._rest = None
        if not whole:
            raise _gone()

    async def _send_rest(self, rest: memoryview) -> bool:
        """Send the rest of a frame; False: the peer has ended."""
        while rest and self._open:
            try:
                rest = rest[self._sock.send(rest) :]
            except (BlockingIOError, InterruptedError):
                await self._writable()
            except OSError:
                return False
        return not rest

    async def _writable(self) -> None:
        """Wait until the socket is writable or closed: the loop does not report a socket that it no longer
        watches."""
        ready = self._room = self._loop.create_future()
        self._loop.add_writer(self._sock, resolve, ready)
        try:
            await ready
        finally:
            self._room = None
            if self._open:
                self._loop.remove_writer(self._sock)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._decoder.close()
            self._sock.close()
            if self._room is not None:
                resolve(self._room)


def _gone() -> BrokenPipeError:
    return BrokenPipeError(errno.EPIPE, "the process at the other end has ended")


def resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
