"""Sizes, leases and counts of a store, for observability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerstack.model.lease import READER

if TYPE_CHECKING:
    from layerstack.store import Store


def of(store: Store) -> dict[str, Any]:
    """See `Store.layer_stats`. Layers newest first; sizes are those of the layers' metadata, None for the base."""
    head, leases = store.head, store.leases.all()
    sessions = [lease for lease in leases if lease.kind not in ("draft", "pin", READER)]
    rows: list[dict[str, Any]] = []
    for layer in store.layers.of(head):
        booked = {lease.layer_ids[0] for lease in leases if layer.id in lease.layer_ids and lease.layer_ids[0] != layer.id}
        rows.append(
            {
                "layer_id": layer.id,
                "bytes": layer.about.get("bytes"),
                "allocated_bytes": layer.about.get("allocated_bytes"),
                "leased_by_workspaces": sum(lease.layer_ids[0] == layer.id for lease in sessions),
                "booked_by": sorted(booked),
            }
        )
    kept = store.drafts()
    total, allocated = sum(row["bytes"] or 0 for row in rows), sum(row["allocated_bytes"] or 0 for row in rows)
    return {
        "version": head.version,
        "root_hash": head.root_hash,
        "active_lease_count": len(sessions),
        "layers": rows,
        "total_bytes": total,
        "total_allocated_bytes": allocated,
        "storage_logical_bytes": total + sum(draft.bytes for draft in kept),
        "storage_allocated_bytes": allocated + sum(draft.bytes for draft in kept),
        "staging_entry_count": store.scrap.count(),
        "draft_count": len(kept),
        "pin_count": len(store.pins.all()),
        "quota": store.quota.to_json(),
    }
