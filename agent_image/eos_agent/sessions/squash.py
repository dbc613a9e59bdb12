"""The operation squash_layerstack, and automatic squashes. Live sessions keep the layers that they have
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
"""The reason in an answer for a live session that keeps its chain: moving it to another chain is not
implemented."""
HELD = "pinned:lease_holder_not_swept"
QUIET_S, PATIENCE_S = 0.25, 1.0
"""Seconds without a publish for which an automatic squash waits, and the longest wait after the squash is
due.
"""
ENTRIES_PER_LAYER = 256
"""Most paths per replaced layer with which a squash is due because of one shared directory; they take some
milliseconds per layer.
"""


class Policy(NamedTuple):
    """The conditions under which an automatic squash is due. Only layers that can be squashed are counted."""

    at_layers: int | None = None
    """Number of squashable layers with which a squash is due."""
    at_sharing: int | None = None
    """Number of squashable layers that change the same directory with which a squash is due, unless it is too
    expensive: a publish of a few files must not cause a squash of everything that was squashed before. The
    cost per layer falls with the number of layers.
    """

    @property
    def least(self) -> int:
        """Smallest number of layers with which a squash can be due."""
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
    """The squashes of one sandbox, one at a time: requested ones and, with a policy, automatic ones.

    `on_event(name, attrs)` is called in the event loop for each
    `layerstack.autosquash.evaluate|triggered|completed|failed`; attrs are numbers, and names of this program.
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
            SquashInFlight: another requested squash is in progress. OSError: as Store.squash.
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
        """Start automatic squashes. Publishes do not wait for them, since they run when publishes pause. The
        exception is a chain so long that the kernel will soon refuse to mount it: the publish that finds it
        squashes it.
        """
        loop = asyncio.get_running_loop()
        self._store.on_new_head = lambda: loop.call_soon_threadsafe(self._published.set)
        auto_squash = self._store.auto_squash
        auto_squash.squash_at = SQUASH_AT
        auto_squash.on_squash = lambda why, done: loop.call_soon_threadsafe(self._squashed, why, done)
        self._published.set()
        self._worker = loop.create_task(self._work(policy))

    async def close(self) -> None:
        """Start no further automatic squash; one in progress ends by itself."""
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
            except Exception as error:  # the store is unchanged, or the next squash continues from its state
                self._failed(why, error)
            finally:
                if self._due.done():
                    self._due = None

    def _squashed(self, why: str, done: Squashed | Exception | None) -> None:
        """Log and trace a squash that a publish did by itself; the store calls this at its beginning and at
        its end."""
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
        """Wait until no publish was made for QUIET_S, at most PATIENCE_S."""
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
