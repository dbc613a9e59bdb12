"""Purge of a dead session that waits for recovery, or whose session.json is quarantined."""

from __future__ import annotations

import os

from layerstack.core.stack import Stack
from layerstack.errors import StoreBusy, StoreCorrupt
from layerstack.kernel import fsync, overlay, records
from layerstack.recovery.dead_sessions import Dead
from layerstack.session import saved_work


def trees_of(stack: Stack, dead: Dead, session_id: str) -> list[str]:
    """List the directories with the session's writes: its upperdir, its saved layers and its own pending
    layers, oldest last.

    Raises:
        NotFound: no session of that id is dead or quarantined (session_not_found).
    """
    folder = f"{stack.root}/sessions/{session_id}"
    if f"{folder}/session.json" not in stack.damaged:
        dead.get(session_id)
    private = f"{folder}/private"
    captured = sorted(os.listdir(private), reverse=True) if os.path.isdir(private) else []
    return [
        path
        for path in (f"{folder}/upper", *_saved(folder), *(f"{private}/{name}" for name in captured))
        if os.path.isdir(path)
    ]


def _saved(folder: str) -> list[str]:
    """List the saved layers of a session, the topmost first; all of them if its record cannot be read."""
    if not os.path.isdir(f"{folder}/saved"):
        return []
    try:
        present = saved_work.load(folder, records.read_session(folder)).present
    except StoreCorrupt:
        return [f"{folder}/saved/{name}" for name in sorted(os.listdir(f"{folder}/saved"), reverse=True)]
    return [saved_work.folder(folder, number) for number in present]


def give_up(stack: Stack, dead: Dead, session_id: str) -> None:
    """See `Store.give_up_session`."""
    folder = f"{stack.root}/sessions/{session_id}"
    if f"{folder}/session.json" not in stack.damaged:
        dead.give_up(session_id)
        return
    with stack.lock:
        stack.check_open()
        for tree in trees_of(stack, dead, session_id):
            if overlay.is_mounted(tree):
                raise StoreBusy(f"{tree}: a live overlay still writes into it", details={"upperdir": tree})
        stack.staging.discard_directory(folder)
        stack.damaged.pop(f"{folder}/session.json")
    fsync.fsync_dir(f"{stack.root}/sessions")
