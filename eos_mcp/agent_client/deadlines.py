"""Many deadlines on one timer of the event loop: setting and clearing one costs an entry of a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable


class Deadlines:
    """Deadlines, at most one per key, on the loop's clock, `time.monotonic`. Construct it inside the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, key: Hashable, at: float, over: Callable[[], None]) -> None:
        """Call `over` once at the time `at`, unless the key is cleared before."""
        self._due[key] = (at, over)
        if self._timer is None or at < self._timer.when():
            self._wake_at(at)

    def clear(self, key: Hashable) -> None:
        """Remove the deadline of a key, if it has one. The timer is left as it is: when it fires and finds
        nothing due, it is set to the next deadline.
        """
        self._due.pop(key, None)

    def close(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        due = sorted(((at, key) for key, (at, _) in self._due.items() if at <= now), key=lambda one: one[0])
        for _, key in due:
            found = self._due.pop(key, None)
            if found is not None:
                found[1]()
        if self._due and self._timer is None:
            self._wake_at(min(at for at, _ in self._due.values()))
