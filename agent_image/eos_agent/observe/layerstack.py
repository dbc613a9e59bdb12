"""The operation `layerstack`: the stack as it lies on disk, what one session has mounted, what one layer holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos_agent.protocol import INVALID_REQUEST, OperationError

if TYPE_CHECKING:
    from eos_agent.handlers import Handlers


async def layerstack(agent: Handlers, args: dict[str, Any]) -> dict[str, Any]:
    """Contract 7.9: inventory, or with `workspace_id` the mounts of a session. (No samples are kept, so `trend` is absent.)

    Raises:
        OperationError: invalid_request; the session is unknown.
    """
    workspace_id = args.get("workspace_id")
    if workspace_id is not None:
        return await _workspace(agent, workspace_id)
    if args.get("layer_id") is not None:
        raise OperationError(
            INVALID_REQUEST, "layer_id: the entries of a layer cannot be listed yet", {"argument": "layer_id"}, reason="not_available"
        )
    stats = await agent.pool.run(agent.store.layer_stats)
    keys = ("root_hash", "active_lease_count", "total_bytes", "total_allocated_bytes", "storage_logical_bytes", "storage_allocated_bytes")
    more = ("staging_entry_count", "layers", "draft_count", "pin_count")
    return {"view": "layerstack", "manifest_version": stats["version"], **{key: stats[key] for key in (*keys, *more)}}


async def _workspace(agent: Handlers, workspace_id: str) -> dict[str, Any]:
    session = agent.sessions.live.get(workspace_id)
    if session is None:
        raise OperationError(
            INVALID_REQUEST, f"workspace session not found: {workspace_id}", {"argument": "workspace_id"}, reason="session_not_found"
        )
    ids = {other.id: set(other.upper.snapshot.manifest.layer_ids) for other in agent.sessions.live.values()}
    mounts = [
        {
            "layer_id": layer_id,
            "shared_with": sorted(other for other, layers in ids.items() if other != workspace_id and layer_id in layers),
        }
        for layer_id in session.upper.snapshot.manifest.layer_ids
    ]
    try:
        upper_bytes: int | None = await agent.pool.run(session.upper.size_bytes)
    except OSError:
        upper_bytes = None
    return {"view": "layerstack", "workspace": workspace_id, "mounts": mounts, "upper_bytes": upper_bytes}
