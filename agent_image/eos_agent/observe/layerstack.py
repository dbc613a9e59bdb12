"""The operation `layerstack`: the stack on disk, the mounts of a session, the entries of a layer."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eos_agent.observe.limits import MAX_BYTES
from eos_agent.observe.sampler import STACK
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from layerstack.model.conflict import path_json

if TYPE_CHECKING:
    from eos_agent.observe.agent import Agent
    from layerstack.layers.index import Layer
    from layerstack.store import Store

KINDS = {"f": "file", "l": "symlink", "d": "directory", "w": "delete"}
OPAQUE = "opaque_dir"
WALK_MAX = 50_000
"""Most names that are listed of one directory of the base."""


async def layerstack(agent: Agent, args: dict[str, Any]) -> dict[str, Any]:
    """Answer the operation, contract 7.9: the inventory; with `workspace_id` the mounts of a session, with
    `layer_id` the entries of a layer.

    Raises:
        OperationError: invalid_request; the session or the layer is unknown, or `limit` is above its maximum.
    """
    workspace_id = args.get("workspace_id")
    if workspace_id is not None:
        return await _workspace(agent, workspace_id)
    if args.get("layer_id") is not None:
        return await _layer(agent, args)
    stats, trend = await agent.pool.run(
        lambda: (agent.store.layer_stats(), agent.sampler.series(STACK, args["window_ms"]))
    )
    keys = (
        "root_hash",
        "active_lease_count",
        "total_bytes",
        "total_allocated_bytes",
        "storage_logical_bytes",
        "storage_allocated_bytes",
    )
    more = ("staging_entry_count", "layers", "draft_count", "pin_count", "quota")
    found = {
        "view": "layerstack",
        "manifest_version": stats["version"],
        **{key: stats[key] for key in (*keys, *more)},
    }
    if trend:
        found["trend"] = trend
    return found


async def _layer(agent: Agent, args: dict[str, Any]) -> dict[str, Any]:
    layer_id, limit = args["layer_id"], args.get("limit")
    most: int = agent.settings.get("observability.views.layer_delta_max_limit", 5000)
    if limit is None:
        limit = agent.settings.get("observability.views.layer_delta_default_limit", 500)
    elif not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise OperationError(
            INVALID_REQUEST, "limit must be a number from 1", {"argument": "limit"}, reason="wrong_type"
        )
    elif limit > most:
        details = {"argument": "limit", "maximum": most}
        raise OperationError(
            INVALID_REQUEST, f"limit exceeds max: {limit} > {most}", details, reason="out_of_bounds"
        )
    entries, truncated = await agent.pool.run(lambda: _entries(agent.store, layer_id, limit))
    return {"view": "layerstack", "layer_id": layer_id, "entries": entries, "truncated": truncated}


def _entries(store: Store, layer_id: object, limit: int) -> tuple[list[dict[str, Any]], bool]:
    with store.reading() as snapshot:
        layer = next((layer for layer in snapshot.chain.published if layer.id == layer_id), None)
        if layer is None:
            shown = layer_id[:200] if isinstance(layer_id, str) else layer_id
            raise OperationError(
                INVALID_REQUEST,
                f"layer not found: {shown}",
                {"argument": "layer_id"},
                reason="layer_not_found",
            )
        found: list[dict[str, Any]] = []
        size = 0
        listed = _base(store.root, layer) if layer.is_base else changed_paths(layer)
        for path, kind in listed:
            size += len(path) + 40
            if len(found) == limit or size > MAX_BYTES:
                return found, True
            found.append({**path_json(path), "kind": kind})
    return found, False


def changed_paths(layer: Layer) -> Iterator[tuple[str, str]]:
    """Yield the layer's changes in order of path, without unchanged parent directories."""
    for path in layer.paths():
        record = layer.get(path)
        if record is not None and path and not record.quiet:
            yield path, OPAQUE if record.opaque else KINDS[record.kind]


def _base(root: str, layer: Layer) -> Iterator[tuple[str, str]]:
    """Walk the base, which has no index, depth first."""
    top = f"{root}/base/{layer.id}"
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(f"{top}/{directory}") as entries:
                inside = sorted(itertools.islice(entries, WALK_MAX), key=lambda entry: entry.name)
        except OSError:
            continue
        below: list[str] = []
        for entry in inside:
            path = f"{directory}/{entry.name}" if directory else entry.name
            if entry.is_dir(follow_symlinks=False):
                below.append(path)
                yield path, "directory"
            elif entry.is_symlink():
                yield path, "symlink"
            elif entry.is_file(follow_symlinks=False):
                yield path, "file"
        waiting += reversed(below)


async def _workspace(agent: Agent, workspace_id: str) -> dict[str, Any]:
    session = agent.sessions.live.get(workspace_id)
    if session is None:
        raise OperationError(
            INVALID_REQUEST,
            f"workspace session not found: {workspace_id}",
            {"argument": "workspace_id"},
            reason="session_not_found",
        )
    ids = {other.id: set(other.upper.snapshot.manifest.layer_ids) for other in agent.sessions.live.values()}
    mounts = [
        {
            "layer_id": layer_id,
            "shared_with": sorted(
                other for other, layers in ids.items() if other != workspace_id and layer_id in layers
            ),
        }
        for layer_id in session.upper.snapshot.manifest.layer_ids
    ]
    try:
        upper_bytes: int | None = await agent.pool.run(session.upper.size_bytes)
    except OSError:
        upper_bytes = None
    return {"view": "layerstack", "workspace": workspace_id, "mounts": mounts, "upper_bytes": upper_bytes}
