"""squash_layerstack, and squashes without being asked: the store folds layers that nothing keeps apart; live sessions stay where they are mounted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from eos_agent import log
from layerstack.errors import SquashInFlight

if TYPE_CHECKING:
    from eos_agent.pool import Pool
    from eos_agent.sessions import Sessions
    from layerstack.squash import Block, Squashed

NOT_MOVED = "unsupported:kernel_gate_not_proven"
"""No session is moved to another chain while it lives: that is not built."""
HELD = "pinned:lease_holder_not_swept"
QUIET_S, PATIENCE_S = 0.25, 1.0
"""A squash of our own waits until nothing was published for so long, and no longer than this after it was due."""


class Squashes:
    """One at a time: those that are asked for, and with a policy those that are due."""

    def __init__(self, sessions: Sessions, pool: Pool) -> None:
        self._sessions, self._store, self._pool = sessions, sessions.store, pool
        self._asked = False
        self._due: asyncio.Task[Squashed] | None = None
        self._published = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def perform(self) -> dict[str, Any]:
        """The result of contract 1.1.8. One that nobody asked for is waited for.

        Raises:
            SquashInFlight: another one was asked for. OSError: as Store.squash.
        """
        if self._asked:
            raise SquashInFlight("a squash of this sandbox is already in flight")
        self._asked = True
        try:
            if self._due is not None:
                await asyncio.wait([self._due])
            before = set(self._sessions.live)
            return self._told(await self._pool.run(self._store.squash), before)
        finally:
            self._asked = False

    def _told(self, done: Squashed, before: set[str]) -> dict[str, Any]:
        live = self._sessions.live.values()
        chains: dict[str, set[str]] = {session.id: set(session.upper.snapshot.manifest.layer_ids) for session in live}
        swept: list[dict[str, Any]] = []
        if done.blocks:
            replaced = {layer_id for block in done.blocks for layer_id in block.replaced_layer_ids}
            swept = [_swept(session_id, replaced, chains.get(session_id)) for session_id in sorted(before | set(chains))]
        return {
            "manifest_version": done.manifest.version,
            "squashed_blocks": [_block(block, list(chains.values())) for block in done.blocks],
            "swept_sessions": swept,
        }

    # Without being asked

    def watch(self, at_layers: int) -> None:
        """From now on squash whenever so many layers can be folded. Publishes wait for nothing: it comes when they pause."""
        loop = asyncio.get_running_loop()
        self._store.on_head = lambda: loop.call_soon_threadsafe(self._published.set)
        self._published.set()
        self._worker = loop.create_task(self._work(at_layers))

    async def close(self) -> None:
        """Start no more of them; one that is under way ends by itself."""
        self._store.on_head = None
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        if self._due is not None:
            await asyncio.wait([self._due])

    async def _work(self, at_layers: int) -> None:
        while True:
            await self._published.wait()
            self._published.clear()
            if len(self._store.head.layers) <= at_layers or await self._pool.run(self._store.foldable) < at_layers:
                continue
            await self._pause()
            if self._asked:
                continue
            self._due = asyncio.get_running_loop().create_task(self._pool.run(self._store.squash))
            try:
                done = await asyncio.shield(self._due)
                log.log("squashed", version=done.manifest.version, layers=[len(block.replaced_layer_ids) for block in done.blocks])
            except Exception as error:  # the store is as it was, or the next one goes on from there
                log.failure("squash_failed", error)
            finally:
                if self._due.done():
                    self._due = None

    async def _pause(self) -> None:
        """Until nothing is published for a moment, or the patience is over."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    self._published.clear()
                    async with asyncio.timeout(QUIET_S):
                        await self._published.wait()
        except TimeoutError:
            return


def _swept(session_id: str, replaced: set[str], chain: set[str] | None) -> dict[str, Any]:
    if chain is None:
        return {"session_id": session_id, "disposition": "session_gone"}
    if chain.isdisjoint(replaced):
        return {"session_id": session_id, "disposition": "identity"}
    return {"session_id": session_id, "disposition": "leased", "reason": NOT_MOVED}


def _block(block: Block, chains: list[set[str]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "squashed_layer_id": block.squashed_layer_id,
        "replaced_layer_ids": list(block.replaced_layer_ids),
        "replaced_layers": "reclaimed" if block.reclaimed else "leased",
    }
    if not block.reclaimed:
        needed = any(not chain.isdisjoint(block.replaced_layer_ids) for chain in chains)
        found["blocked_reasons"] = [NOT_MOVED, HELD] if needed else [HELD]
    return found
