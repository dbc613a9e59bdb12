"""squash_layerstack: the store folds layers that nothing keeps apart; live sessions stay on the chain that they are mounted on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eos_agent.pool import Pool
    from eos_agent.sessions import Sessions
    from layerstack.squash import Block

NOT_MOVED = "unsupported:kernel_gate_not_proven"
"""No session is moved to another chain while it lives: that is not built."""
HELD = "pinned:lease_holder_not_swept"


async def squash(sessions: Sessions, pool: Pool) -> dict[str, Any]:
    """The result of contract 1.1.8.

    Raises:
        SquashInFlight, OSError: as Store.squash.
    """
    before = set(sessions.live)
    done = await pool.run(sessions.store.squash)
    chains: dict[str, set[str]] = {session.id: set(session.upper.snapshot.manifest.layer_ids) for session in sessions.live.values()}
    swept: list[dict[str, Any]] = []
    if done.blocks:
        replaced = {layer_id for block in done.blocks for layer_id in block.replaced_layer_ids}
        swept = [_swept(session_id, replaced, chains.get(session_id)) for session_id in sorted(before | set(chains))]
    return {
        "manifest_version": done.manifest.version,
        "squashed_blocks": [_block(block, list(chains.values())) for block in done.blocks],
        "swept_sessions": swept,
    }


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
