"""What the store has set apart, for those who look: rows among the drafts, sessions that are lost, warnings."""

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
    """(name of the folder, what is wrong) of each draft or session whose document is set apart."""
    for file, what in sorted(store.damaged.items()):
        folder, name = os.path.split(file)
        if name == document:
            yield os.path.basename(folder), what


def drafts(store: Store) -> list[dict[str, Any]]:
    """Rows of list_drafts: the work is there, and nobody can say what it stands on."""
    unknown = dict.fromkeys(("origin", "agent", "request_id", "base_version", "created_unix_ms", "paths", "bytes"))
    return [{"draft_id": draft_id, **unknown, "reason": REASON, "why": what} for draft_id, what in _of(store, "draft.json")]


def sessions(store: Store) -> list[tuple[str, str]]:
    """(session id, why) of sessions whose work cannot become a draft."""
    return [(session_id, f"session.json: {what}") for session_id, what in _of(store, "session.json")]


def has_session(store: Store, session_id: str) -> bool:
    """Whether the session is one of those."""
    return any(session_id == found for found, _ in _of(store, "session.json"))


def purge(store: Store, session_id: str) -> dict[str, Any]:
    """Delete the session with its work. Returns what that was, by the names that are there: on what it stood nobody can say.

    Raises:
        LayerStackError: somebody else was faster (session_not_found), or something still writes there.
    """
    lost = of_trees(trees_of(store, store.dead, session_id))
    store.give_up_session(session_id)
    store.scrap.settle()
    return lost


def warning(store: Store) -> str | None:
    """One line about all of it, None when there is nothing."""
    if not store.damaged:
        return None
    names = [os.path.relpath(file, store.root) for file in sorted(store.damaged)]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"damaged and set apart: {', '.join(names[:3])}{more}; eos fsck says what is wrong. No layer is folded or removed meanwhile"
