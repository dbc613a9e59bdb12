"""The agent's thread pool for blocking calls of the store and the disk; other waits do not use it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")


class Pool:
    """A pool for at most `width` blocking calls at a time; others wait in order."""

    def __init__(self, width: int, name: str = "eos-blocking") -> None:
        self._executor = ThreadPoolExecutor(max_workers=width, thread_name_prefix=name)
        self._width, self._asked = width, 0
        self._counting = threading.Lock()

    async def run(self, call: Callable[[], T], *, context: contextvars.Context | None = None) -> T:
        """Run call() in a thread, in the caller's context or in `context`, and return its result. The call
        runs to its end even if the caller is cancelled."""
        if context is None:
            context = contextvars.copy_context()

        def counted() -> T:
            try:
                return context.run(call)
            finally:
                with self._counting:
                    self._asked -= 1

        with self._counting:
            self._asked += 1
        return await asyncio.get_running_loop().run_in_executor(self._executor, counted)

    @contextlib.asynccontextmanager
    async def entered(self, manager: AbstractContextManager[T]) -> AsyncGenerator[T]:
        """Enter and leave a context manager in threads, both in the context of the entry, and yield its
        value. It is left even if the caller is cancelled while it is entered."""
        context = contextvars.copy_context()

        def leave() -> None:
            manager.__exit__(None, None, None)

        entering = asyncio.ensure_future(self.run(manager.__enter__, context=context))
        try:
            value = await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() else self.later(leave)
            )
            raise
        try:
            yield value
        finally:
            await self.run(leave, context=context)

    @property
    def active(self) -> int:
        """Number of running calls."""
        return min(self._asked, self._width)

    @property
    def waiting(self) -> int:
        """Number of calls waiting for a thread."""
        return max(0, self._asked - self._width)

    def later(self, call: Callable[[], object]) -> None:
        """Queue call() for a thread, in order, without waiting for it. May be called from any thread."""
        self._executor.submit(call)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
