"""Work whose length the caller decides: what looks at every file that a session wrote. It has threads of its own, and can be stopped.

A capture is as long as a session's work is large. In the pool of all blocking calls as many of them as it has threads would stop the agent; here
others of their kind wait for them, and nothing else does.
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
"""Requests that were cancelled before they came to their capture: the newest of them are remembered."""
CANCELLED = "the request was cancelled"
SHUTTING_DOWN = "the agent is shutting down"


class _Capture:
    """One that waits or runs."""

    def __init__(self) -> None:
        self.cancelled = False

    def take(self) -> bool:
        """Whether it was cancelled. Told once: who has stopped for it keeps the work, which may take long as well."""
        was, self.cancelled = self.cancelled, False
        return was


class Captures:
    """At most `width` captures at a time; more wait in order. Everything but the calls themselves runs on the event loop."""

    def __init__(self, width: int) -> None:
        self._pool = Pool(width, "eos-capture")
        self._known: dict[str, list[_Capture]] = {}
        self._expected: OrderedDict[str, None] = OrderedDict()
        self._ending = False

    async def run(self, call: Callable[[], T], *, request_id: str | None = None) -> T:
        """The result of call(), made in a thread; `cancel` of that request stops it while it looks at files, and so does `stop`.

        Raises:
            Stopped: it was stopped, and nothing was published; whatever call() raises.
        """
        capture = _Capture()

        def why() -> str | None:
            if self._ending:
                return SHUTTING_DOWN
            return CANCELLED if capture.take() else None

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
        """Stop what that request captures now. False: it captures nothing."""
        found = self._known.get(request_id, [])
        for capture in found:
            capture.cancelled = True
        return bool(found)

    def expect(self, request_id: str) -> None:
        """Refuse that request when it comes to a capture."""
        self._expected[request_id] = None
        while len(self._expected) > KEPT:
            self._expected.popitem(last=False)

    def stop(self) -> None:
        """Stop all of them, and all that are still to come: the agent ends. What was not published is found by its next start."""
        self._ending = True

    @property
    def active(self) -> int:
        """Captures that run now."""
        return self._pool.active

    @property
    def waiting(self) -> int:
        """Captures that wait for a thread."""
        return self._pool.waiting

    def close(self) -> None:
        self._pool.close()
