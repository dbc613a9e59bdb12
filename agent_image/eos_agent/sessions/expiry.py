"""The time to live of sessions: an explicit session that was not used for `ttl_s` is ended, and its work
becomes a draft.

Each session with a time to live has one timer. If the session was used when its timer is due, the timer is
armed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from eos_agent.wire.operation import TTL_MIN_S

if TYPE_CHECKING:
    from eos_agent.sessions.session import Session

EXPIRED = "expired"


class Expiry:
    """The timers. Everything here runs on the event loop.

    Args:
        end: ends an idle session; its gate is held.
        spawn: runs a coroutine in the background.
    """

    def __init__(
        self,
        end: Callable[[Session], Coroutine[Any, Any, None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._end, self._spawn = end, spawn
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def watch(self, session: Session) -> None:
        """Arm the timer of a session that has a time to live."""
        if session.ttl_s is not None:
            self._arm(session, session.ttl_s)

    def forget(self, session: Session) -> None:
        """Cancel the timer of an ended session."""
        timer = self._timers.pop(session.id, None)
        if timer is not None:
            timer.cancel()

    def _arm(self, session: Session, after_s: float) -> None:
        self._timers[session.id] = asyncio.get_running_loop().call_later(after_s, self._due, session)

    def _due(self, session: Session) -> None:
        del self._timers[session.id]
        left = session.idle_left_s()
        if session.ended.is_set() or left is None:
            return
        if left > 0 or session.gate.locked():
            self._arm(session, max(left, TTL_MIN_S))
        else:
            self._spawn(self._expire(session))

    async def _expire(self, session: Session) -> None:
        async with session.gate:
            left = session.idle_left_s()
            if session.ending or left is None:
                return
            if left > 0:
                self._arm(session, left)
                return
            await self._end(session)
