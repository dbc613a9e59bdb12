"""Progress frames of one request, written to its connection in order."""

from __future__ import annotations

import asyncio
import contextlib

from eos_mcp.agent_client.line_socket import LineSocket
from eos_mcp.gateway_client.frames import progress_frame

FRAME_TIMEOUT_S = 60.0


class ProgressSender:
    """Sender of frames in a separate task, which the first frame starts, so that a client that does not read
    delays only itself. Construct it inside the loop.
    """

    def __init__(self, line: LineSocket) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._sending: asyncio.Task[None] | None = None
        self._used = False

    def put(self, message: str) -> None:
        """Send a message after those before; callable in any thread."""
        self._used = True
        with contextlib.suppress(RuntimeError):  # the loop has ended: no client is left
            self._loop.call_soon_threadsafe(self._enqueue, message)

    async def flush(self) -> None:
        """Wait until every message was sent. Call it after the threads that call `put` have ended."""
        if self._used:
            await asyncio.sleep(0)  # let the loop run the callbacks with messages of other threads
        if self._sending is not None:
            self._queue.put_nowait(None)
            await self._sending

    def _enqueue(self, message: str) -> None:
        self._queue.put_nowait(message)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        with contextlib.suppress(OSError):  # the client left or does not read: no more frames
            while (message := await self._queue.get()) is not None:
                async with asyncio.timeout(FRAME_TIMEOUT_S):
                    await self._line.send(progress_frame(message))
