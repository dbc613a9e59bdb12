"""Sizes, leases and counts of a store, for observability."""

from __future__ import annotations

from typing import Any

from layerstack.core.stack import Stack
from layerstack.model.lease import READER
from layerstack.publish import draft_refs


def of(stack: Stack) -> dict[str, Any]:
    """See `Store.layer_stats`. Layers are listed newest first; sizes are from their metadata, None for the
    base.
    """
    head, leases = stack.head, stack.leases.all()
    sessions = [lease for lease in leases if lease.kind not in ("draft", "pin", READER)]
    rows: list[dict[str, Any]] = []
    for layer in stack.layers.of(head):
        booked = {
            lease.layer_ids[0]
            for lease in leases
            if layer.id in lease.layer_ids and lease.layer_ids[0] != layer.id
        }
        rows.append(
            {
                "layer_id": layer.id,
                "bytes": layer.about.get("bytes"),
                "allocated_bytes": layer.about.get("allocated_bytes"),
                "leased_by_workspaces": sum(lease.layer_ids[0] == layer.id for lease in sessions),
                "booked_by": sorted(booked),
            }
        )
    kept = draft_refs.all_of(stack)
    total, allocated = (
        sum(row["bytes"] or 0 for row in rows),
        sum(row["allocated_bytes"] or 0 for row in rows),
    )
    return {
        "version": head.version,
        "root_hash": head.root_hash,
        "active_lease_count": len(sessions),
        "layers": rows,
        "total_bytes": total,
        "total_allocated_bytes": allocated,
        "storage_logical_bytes": total + sum(draft.bytes for draft in kept),
        "storage_allocated_bytes": allocated + sum(draft.bytes for draft in kept),
        "staging_entry_count": stack.staging.count(),
        "draft_count": len(kept),
        "pin_count": len(stack.pins.held),
        "quota": stack.quota.to_json(),
    }
