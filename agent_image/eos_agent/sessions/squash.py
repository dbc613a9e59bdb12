"""The operation squash_layerstack, and automatic squashes. Live sessions stay on the layers that they have
mounted.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from eos_agent.base import log
from layerstack.errors import LayerStackError, SquashInFlight
from layerstack.squash.auto_squash import SQUASH_AT
from layerstack.squash.depth import Depth, Depths

if TYPE_CHECKING:
    from eos_agent.base.pool import Pool
    from eos_agent.sessions.table import Sessions
    from layerstack.squash.squash import Block, Squashed

NOT_MOVED = "unsupported:kernel_gate_not_proven"
"""No session is moved to another chain while it lives: that is not built."""
HELD = "pinned:lease_holder_not_swept"
QUIET_S, PATIENCE_S = 0.25, 1.0
"""A squash of our own waits until nothing was published for so long, and no longer than this after it was
due.
"""
ENTRIES_PER_LAYER = 256
"""Paths that a fold may take up for each layer that it replaces, when it is due for the sake of one
directory: some milliseconds each.
"""


class Policy(NamedTuple):
    """When a squash is due without being asked for. It counts only what can be folded."""

    at_layers: int | None = None
    """So many layers can be folded."""
    at_sharing: int | None = None
    """So many that can be folded touch one directory, unless the fold is too dear: a publish of a few files
    must not be paid by a fold of all that was folded before. More layers make it cheap for each.
    """

    @property
    def least(self) -> int:
        """Fewest layers with which a squash can be due."""
        return min(number for number in self if number is not None)

    def due(self, depth: Depth) -> str | None:
        """The rule by which a squash is due, or None."""
        if self.at_layers is not None and depth.squashable >= self.at_layers:
            return "layers"
        cheap = depth.entries <= ENTRIES_PER_LAYER * depth.squashable
        return (
            "shared_directory"
            if self.at_sharing is not None and depth.sharing >= self.at_sharing and cheap
            else None
        )


class Squashes:
    """One at a time: those that are asked for, and with a policy those that are due.

    `on_event(name, attrs)` is called in the event loop for each
    `layerstack.autosquash.evaluate|triggered|completed|failed`; attrs are numbers and names of ours.
    """

    def __init__(
        self, sessions: Sessions, pool: Pool, *, on_event: Callable[[str, dict[str, Any]], object]
    ) -> None:
        self._sessions, self._store, self._pool = sessions, sessions.store, pool
        self._asked = False
        self._due: asyncio.Task[Squashed] | None = None
        self._published = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._on_event = on_event

    async def perform(self) -> dict[str, Any]:
        """Squash by request; the result of contract 1.1.8. Waits for an automatic squash in progress.

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
            return self._json(await self._pool.run(self._store.squash), before)
        finally:
            self._asked = False

    def _json(self, done: Squashed, before: set[str]) -> dict[str, Any]:
        live = self._sessions.live.values()
        chains: dict[str, set[str]] = {
            session.id: set(session.upper.snapshot.manifest.layer_ids) for session in live
        }
        swept: list[dict[str, Any]] = []
        if done.blocks:
            replaced = {layer_id for block in done.blocks for layer_id in block.replaced_layer_ids}
            swept = [
                _swept(session_id, replaced, chains.get(session_id))
                for session_id in sorted(before | set(chains))
            ]
        return {
            "manifest_version": done.manifest.version,
            "squashed_blocks": [_block(block, list(chains.values())) for block in done.blocks],
            "swept_sessions": swept,
        }

    # Automatic squashes

    def watch(self, policy: Policy) -> None:
        """Start squashing by the policy. Publishes do not wait for it: it comes when they pause, but for a
        head that has grown so long that the kernel will soon not mount it: that one is folded by the publish
        that finds it.
        """
        loop = asyncio.get_running_loop()
        self._store.on_new_head = lambda: loop.call_soon_threadsafe(self._published.set)
        auto_squash = self._store.auto_squash
        auto_squash.squash_at = SQUASH_AT
        auto_squash.on_squash = lambda why, done: loop.call_soon_threadsafe(self._squashed, why, done)
        self._published.set()
        self._worker = loop.create_task(self._work(policy))

    async def close(self) -> None:
        """Start no more of them; one that is under way ends by itself."""
        self._store.on_new_head = self._store.auto_squash.on_squash = None
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        if self._due is not None:
            await asyncio.wait([self._due])

    async def _work(self, policy: Policy) -> None:
        depths = Depths(self._store)
        while True:
            await self._published.wait()
            self._published.clear()
            if len(self._store.head.layers) <= policy.least:
                continue
            depth = await self._pool.run(depths.measure)
            why = policy.due(depth)
            seen = {
                "layers": depth.layers,
                "foldable": depth.squashable,
                "entries": depth.entries,
                "sharing": depth.sharing,
            }
            self._event("evaluate", **seen, due=why is not None)
            if why is None:
                continue
            await self._pause()
            if self._asked:
                continue
            self._event("triggered", why=why, **seen)
            started = time.monotonic()
            self._due = asyncio.get_running_loop().create_task(self._pool.run(self._store.squash))
            try:
                self._completed(
                    why, await asyncio.shield(self._due), dur_ms=round((time.monotonic() - started) * 1000, 3)
                )
            except Exception as error:  # the store is as it was, or the next one goes on from there
                self._failed(why, error)
            finally:
                if self._due.done():
                    self._due = None

    def _squashed(self, why: str, done: Squashed | Exception | None) -> None:
        """A publish folded by itself: from the store, which tells the beginning and the end."""
        if done is None:
            self._event("triggered", why=why, layers=len(self._store.head.layers))
        elif isinstance(done, Exception):
            self._failed(why, done)
        else:
            self._completed(why, done)

    def _completed(self, why: str, done: Squashed, **more: Any) -> None:
        replaced = sum(len(block.replaced_layer_ids) for block in done.blocks)
        self._event(
            "completed",
            why=why,
            version=done.manifest.version,
            blocks=len(done.blocks),
            replaced=replaced,
            **more,
        )

    def _failed(self, why: str, error: Exception) -> None:
        attrs: dict[str, Any] = {"why": why, "error": type(error).__name__}
        if isinstance(error, LayerStackError):
            attrs["reason"] = error.reason
        elif isinstance(error, OSError):
            attrs["errno"] = errno.errorcode.get(error.errno or 0, "?")
        else:
            log.failure("squash_failed", error)
        self._event("failed", **attrs)

    def _event(self, name: str, **attrs: Any) -> None:
        self._on_event(f"layerstack.autosquash.{name}", attrs)

    async def _pause(self) -> None:
        """Wait until no publish has come for QUIET_S, at most PATIENCE_S."""
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
