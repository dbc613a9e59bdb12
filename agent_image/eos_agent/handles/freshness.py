"""Refresh the views of local sessions before a command, at a bounded cost: drop the cached lookups of the
overlays of machine_view.py.
"""

from __future__ import annotations

import asyncio
import time

from eos_agent.kernel import machine_view

PAUSE_S = 1.0
"""Seconds after a refresh in which no other refresh is made."""
SHARE = 20
"""The pause is at least this many times the duration of the last refresh, since a refresh that visits the
whole machine takes long.
"""
INLINE_S = 0.0005


class Freshness:
    """The refreshes for the sessions of one zygote."""

    def __init__(self, namespace_of: int) -> None:
        self._pid = namespace_of
        self._due = 0.0
        self._took_s = 0.0
        self._refreshing: asyncio.Task[None] | None = None

    async def before_command(self) -> None:
        """Refresh if a refresh is due. Concurrent callers wait for the one in progress."""
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)
        elif time.monotonic() >= self._due:
            if self._took_s <= INLINE_S:
                self._refresh()
                return
            self._refreshing = asyncio.create_task(asyncio.to_thread(self._refresh))
            try:
                await asyncio.shield(self._refreshing)
            finally:
                self._refreshing = None

    def _refresh(self) -> None:
        before = time.monotonic()
        machine_view.refresh(self._pid)
        now = time.monotonic()
        self._took_s = now - before
        self._due = now + max(PAUSE_S, SHARE * self._took_s)
