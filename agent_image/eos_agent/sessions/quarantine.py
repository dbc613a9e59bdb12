"""Quarantined records of the store, as rows of list_drafts, as lost sessions and as a warning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eos_agent.sessions.unpublished import of_trees
from layerstack.recovery.purge import trees_of

if TYPE_CHECKING:
    from layerstack.store import Store

REASON = "damaged"


def _of(store: Store, document: str) -> Iterator[tuple[str, str]]:
    """Yield (id, reason) of each draft or session whose record is quarantined."""
    for file, what in sorted(store.damaged.items()):
        folder, name = os.path.split(file)
        if name == document:
            yield os.path.basename(folder), what


def drafts(store: Store) -> list[dict[str, Any]]:
    """Rows of list_drafts for drafts whose record is quarantined: the work exists, its base is unknown."""
    unknown = dict.fromkeys(
        ("origin", "agent", "request_id", "base_version", "created_unix_ms", "paths", "bytes")
    )
    return [
        {"draft_id": draft_id, **unknown, "reason": REASON, "why": what}
        for draft_id, what in _of(store, "draft.json")
    ]


def sessions(store: Store) -> list[tuple[str, str]]:
    """Return (session id, reason) of sessions whose work cannot become a draft."""
    return [(session_id, f"session.json: {what}") for session_id, what in _of(store, "session.json")]


def has_session(store: Store, session_id: str) -> bool:
    """True for a session whose record is quarantined."""
    return any(session_id == found for found, _ in _of(store, "session.json"))


def purge(store: Store, session_id: str) -> dict[str, Any]:
    """Delete the session with its work. Returns the deleted paths, without its base, which is unknown.

    Raises:
        LayerStackError: another caller deleted it first (session_not_found), or a process still writes to it.
    """
    lost = of_trees(trees_of(store, store.dead, session_id))
    store.give_up_session(session_id)
    store.staging.wait_removed()
    return lost


def warning(store: Store) -> str | None:
    """One line about all quarantined records, or None."""
    if not store.damaged:
        return None
    names = [os.path.relpath(file, store.root) for file in sorted(store.damaged)]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"damaged and quarantined: {', '.join(names[:3])}{more}; eos fsck describes the damage. Until it "
        f"is repaired or deleted no layer is squashed or removed"
    )
