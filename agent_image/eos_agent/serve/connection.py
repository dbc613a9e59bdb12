"""One connection of a JSON-line listener: a stream, with a fast path for a whole request line on an idle
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from eos_agent.base import eager

Answer = Callable[[bytes], Coroutine[Any, Any, bool]]
"""Answers the request of one line; returns True if the connection stays open for another request."""


class LineConnection(asyncio.StreamReaderProtocol):
    """A StreamReaderProtocol that answers a complete line in its data_received callback while `requests` is
    awaited.

    For such a line no task is woken up. All other data is fed to the stream, from which `read` returns it.

    Answers are sent in the order of requests, so the callback answers a line only if all earlier bytes were
    read and no answer is in progress. StreamReader has no public attribute for the bytes in its buffer, so
    `_held` counts them: it grows by the bytes that are fed to the stream and shrinks by those that `read`
    returns. `_ended` is set at the end of the stream.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(reader, accept, loop=loop)
        self._reader, self._turning = reader, loop
        self._held = 0
        self._ended = False
        self._longest = 0
        self._answer: Answer | None = None
        self._waiting: asyncio.Future[bool] | None = None  # done when `requests` has to return
        self._under_way: asyncio.Task[bool] | None = None

    async def read(self, size: int) -> bytes:
        """Read as StreamReader.read does."""
        data = await self._reader.read(size)
        self._held -= len(data)
        return data

    async def requests(self, answer: Answer, longest: int) -> bool:
        """Answer lines of at most `longest` bytes that arrive alone. Returns True if other data arrived,
        which `read` returns; False if an answer ended the connection.

        Raises:
            Any exception of `answer`.
        """
        if self._held or self._ended:
            return True
        self._answer, self._longest = answer, longest
        self._waiting = self._turning.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = self._answer = None
            if self._under_way is not None:
                self._under_way.cancel()
                await asyncio.wait([self._under_way])

    def data_received(self, data: bytes) -> None:
        if self._answer is not None and self._alone(data):
            self._under_way = eager.start(self._turning, self._answer(data))
            self._under_way.add_done_callback(self._answered)
            return
        self._held += len(data)
        super().data_received(data)
        self._look()

    def _alone(self, data: bytes) -> bool:
        """True for one whole line with no unread data and no request in progress."""
        busy = self._under_way is not None or self._held or self._ended
        return (
            not busy
            and len(data) <= self._longest
            and data.startswith(b"{")
            and data.find(b"\n") == len(data) - 1
        )

    def eof_received(self) -> bool | None:
        self._ended = True
        keep = super().eof_received()
        self._look()
        return keep

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        super().connection_lost(exc)
        self._look()

    def _answered(self, task: asyncio.Task[bool]) -> None:
        self._under_way = None
        error = None if task.cancelled() else task.exception()
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        if error is not None:
            waiting.set_exception(error)
        elif (
            task.cancelled() or not task.result()
        ):  # or something that it awaited was cancelled: no answer will follow
            waiting.set_result(False)
        else:
            self._look()

    def _look(self) -> None:
        if (
            self._waiting is not None
            and not self._waiting.done()
            and self._under_way is None
            and (self._held or self._ended)
        ):
            self._waiting.set_result(True)
