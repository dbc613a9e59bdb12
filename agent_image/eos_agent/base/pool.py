"""The agent's small pool of threads for blocking work: the store and the disk. Waiting for anything else never comes here."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Pool:
    """At most `width` blocking calls at a time; more wait in order."""

    def __init__(self, width: int, name: str = "eos-blocking") -> None:
        self._executor = ThreadPoolExecutor(max_workers=width, thread_name_prefix=name)
        self._width, self._asked = width, 0
        self._counting = threading.Lock()

    async def run(self, call: Callable[[], T]) -> T:
        """The result of call(), made in a thread, in the context of the caller. It runs to its end even if the caller stops waiting."""
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

    @property
    def active(self) -> int:
        """Calls that run now."""
        return min(self._asked, self._width)

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return max(0, self._asked - self._width)

    def later(self, call: Callable[[], object]) -> None:
        """Made in a thread, in order; nobody waits for it. May be called from any thread."""
        self._executor.submit(call)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
