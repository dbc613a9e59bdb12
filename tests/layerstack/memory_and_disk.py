"""Do the tables that a store keeps in memory say what its disk says?"""

from __future__ import annotations

import os

from layerstack.model.manifest import Manifest
from layerstack.store import Store


def disagreement(store: Store) -> str:
    """Return the first difference between memory and disk: the head, the leases of drafts, pins and sessions;
    '' without one. No operation may be in progress.
    """
    root = store.root
    with open(f"{root}/manifest.json", "rb") as file:
        head = Manifest.load(file.read(), source="manifest.json")
    if head != store.head:
        return f"the head on disk is {head.version}, in memory {store.head.version}"
    leases: dict[str, list[str]] = {}
    for lease in store.leases.all():
        leases.setdefault(lease.kind, []).append(lease.name.partition(" ")[2])
    drafts = [name for name in os.listdir(f"{root}/drafts") if os.path.isdir(f"{root}/drafts/{name}/layer")]
    if sorted(drafts) != sorted(leases.get("draft", ())):
        return f"drafts on disk {sorted(drafts)}, leases of drafts {sorted(leases.get('draft', ()))}"
    listed = [draft.draft_id for draft in store.drafts()]
    if not set(listed) <= set(drafts):
        return f"drafts on disk {sorted(drafts)}, listed {sorted(listed)}"
    for draft in store.drafts():
        base = next(lease for lease in store.leases.all() if lease.name == f"draft {draft.draft_id}")
        if not store.cleanup_pending and (base.version, base.layer_ids) != (
            draft.base_version,
            draft.layer_ids,
        ):
            return f"{draft.draft_id} names {draft.layer_ids}, its lease {base.layer_ids}"
    folder = f"{root}/pins"
    pins = [
        name.partition(".")[0]
        for name in (os.listdir(folder) if os.path.isdir(folder) else ())
        if not name.startswith(".")
    ]
    held = sorted(leases.get("pin", ()))
    if not (set(pins) <= set(held) if store.pins.unsynced else sorted(pins) == held) or sorted(
        map(int, held)
    ) != sorted(store.pinned()):
        return f"pins on disk {sorted(pins)}, leases {held}, listed {sorted(store.pinned())}"
    sessions = set(
        os.listdir(f"{root}/sessions")
    )  # a folder without a lease is one that the disk would not let go: the next open looks at it
    if not set(leases.get("session", ())) <= sessions:
        return f"sessions on disk {sorted(sessions)}, leases {sorted(leases['session'])}"
    missing = [
        lease.name
        for lease in store.leases.all()
        for i in lease.layer_ids
        if i[0] != "B" and not os.path.isdir(f"{root}/layers/{i}")
    ]
    return f"layers of {missing[0]} are gone" if missing else ""
