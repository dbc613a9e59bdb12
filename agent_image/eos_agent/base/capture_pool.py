"""A thread pool for captures. A capture reads every file that a session wrote, and can be stopped.

The time of a capture grows with the work of the session. In the pool of all blocking calls a few captures
would occupy every thread; here captures wait for captures only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from eos_agent.base.pool import Pool
from layerstack.errors import Stopped
from layerstack.model.cancel import stoppable

T = TypeVar("T")

KEPT = 256
"""Number of ids kept of requests that were cancelled before their capture began; the oldest are forgotten
first."""
CANCELLED = "the request was cancelled"
SHUTTING_DOWN = "the agent is shutting down"


class _Capture:
    """A capture that waits or runs."""

    def __init__(self) -> None:
        self.cancelled = False

    def consume(self) -> bool:
        """Consume the cancellation: True only once, so that keeping the work afterwards, which may take long
        too, is not stopped."""
        was, self.cancelled = self.cancelled, False
        return was


class Captures:
    """A pool for at most `width` captures at a time; others wait in order. Its methods run on the event loop,
    the captures in threads."""

    def __init__(self, width: int) -> None:
        self._pool = Pool(width, "eos-capture")
        self._known: dict[str, list[_Capture]] = {}
        self._expected: OrderedDict[str, None] = OrderedDict()
        self._ending = False

    async def run(self, call: Callable[[], T], *, request_id: str | None = None) -> T:
        """Run call() in a thread and return its result. `cancel(request_id)` and `stop()` stop the call
        between two files.

        Raises:
            Stopped: it was stopped, and nothing was published. Errors of call() are passed on.
        """
        capture = _Capture()

        def why() -> str | None:
            if self._ending:
                return SHUTTING_DOWN
            return CANCELLED if capture.consume() else None

        def stopped_or_done() -> T:
            with stoppable(why):
                return call()

        if request_id is None:
            return await self._pool.run(stopped_or_done)
        if request_id in self._expected:
            del self._expected[request_id]
            raise Stopped(f"the work was stopped: {CANCELLED}", details={"why": CANCELLED})
        self._known.setdefault(request_id, []).append(capture)
        try:
            return await self._pool.run(stopped_or_done)
        finally:
            left = self._known[request_id]
            left.remove(capture)
            if not left:
                del self._known[request_id]

    def cancel(self, request_id: str) -> bool:
        """Stop the capture of that request; return False if it has none."""
        found = self._known.get(request_id, [])
        for capture in found:
            capture.cancelled = True
        return bool(found)

    def expect(self, request_id: str) -> None:
        """Stop the capture of that request as soon as it begins."""
        self._expected[request_id] = None
        while len(self._expected) > KEPT:
            self._expected.popitem(last=False)

    def stop(self) -> None:
        """Stop all captures, later ones too, since the agent ends. The next agent recovers unpublished
        work."""
        self._ending = True

    @property
    def active(self) -> int:
        """Number of running captures."""
        return self._pool.active

    @property
    def waiting(self) -> int:
        """Number of captures waiting for a thread."""
        return self._pool.waiting

    def close(self) -> None:
        self._pool.close()
