"""Local sessions see this machine as it is when a command begins: the overlays of machine_view.py are made to look again, but not all the time."""

from __future__ import annotations

import asyncio
import time

from eos_agent.kernel import machine_view

PAUSE_S = 1.0
"""What was looked at less than so long ago is not looked at again."""
SHARE = 20
"""Nor before so many times what it took: a command that walked the whole machine leaves much to forget, and the next look costs it again."""
INLINE_S = 0.0005


class Freshness:
    """Of the sessions that one process forks, the zygote."""

    def __init__(self, namespace_of: int) -> None:
        self._pid = namespace_of
        self._due = 0.0
        self._took_s = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def before_command(self) -> None:
        """Everybody who comes while it is done waits for it."""
        if self._looking is not None:
            await asyncio.shield(self._looking)
        elif time.monotonic() >= self._due:
            if self._took_s <= INLINE_S:
                self._look()
                return
            self._looking = asyncio.create_task(asyncio.to_thread(self._look))
            try:
                await asyncio.shield(self._looking)
            finally:
                self._looking = None

    def _look(self) -> None:
        before = time.monotonic()
        machine_view.refresh(self._pid)
        now = time.monotonic()
        self._took_s = now - before
        self._due = now + max(PAUSE_S, SHARE * self._took_s)
