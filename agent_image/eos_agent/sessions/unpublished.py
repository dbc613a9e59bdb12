"""Unpublished work of sessions: its paths, its bytes, and a test for any."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from layerstack.session.folder import CARRIED

if TYPE_CHECKING:
    from eos_agent.sessions.session import Session
    from layerstack.session.upper import Upper

WALK_MAX = 50_000
SHOWN_PATHS = 100


def unpublished(upper: Upper, *, walk_max: int = WALK_MAX) -> dict[str, Any]:
    """Measure the unpublished work: `paths` (at most 100, by name), their `count`, `bytes` of regular files,
    and `truncated` if that is not all.

    The work of the draft on which the session was opened does not count, since the draft is kept. A directory
    counts if it is empty in the upperdir: it was made, emptied or changed itself. An entry that was written
    without a change of its content counts too, since contents are not compared. Cost: a walk of at most
    `walk_max` entries.
    """
    return of_trees(_own_trees(upper), walk_max=walk_max)


def of_trees(roots: list[str], *, walk_max: int = WALK_MAX) -> dict[str, Any]:
    """Measure directories in upperdir form, as `unpublished` does."""
    seen: dict[str, None] = {}
    size = walked = 0
    for root in roots:
        stack = [""]
        while stack and walked < walk_max:
            directory = stack.pop()
            try:
                with os.scandir(os.path.join(root, directory) if directory else root) as entries:
                    found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
            except OSError:
                continue
            below: list[str] = []
            if directory and not found:
                seen[directory] = None
            for entry in found:
                walked += 1
                path = f"{directory}/{entry.name}" if directory else entry.name
                if entry.is_dir(follow_symlinks=False):
                    below.append(path)
                    continue
                seen[path] = None
                if entry.is_file(follow_symlinks=False):
                    try:
                        size += entry.stat(follow_symlinks=False).st_size
                    except OSError:
                        continue
            stack += reversed(below)
    shown = [os.fsencode(path).decode("utf-8", "replace") for path in itertools.islice(seen, SHOWN_PATHS)]
    return {
        "paths": shown,
        "count": len(seen),
        "bytes": size,
        "truncated": len(seen) > len(shown) or walked >= walk_max,
    }


def is_clean(session: Session) -> bool:
    """True if publishing would change nothing; in a session on a draft, if nothing was written. No process
    may run in the session.
    """
    if session.draft_id is not None:
        upper = session.upper
        return (
            not unpublished(upper)["count"]
            and _own_trees(upper) == [upper.upperdir]
            and not upper.root_changed
        )
    return session.upper.preview().no_op


def of_sandbox(sessions: list[Session], *, clean: bool) -> dict[str, Any]:
    """Measure the work that is lost if the sandbox is destroyed. clean: compare contents, not only names."""
    rows: list[dict[str, Any]] = []
    left = WALK_MAX
    for session in sessions:
        row = unpublished(session.upper, walk_max=max(1, left))
        left -= row["count"]
        if session.ending:  # it is being published, kept or removed now, with unknown outcome
            is_empty = False
        else:
            is_empty = not row["count"] and (not clean or is_clean(session))
        rows.append(
            {
                "workspace_session_id": session.id,
                "agent": session.agent,
                "clean": is_empty and not session.commands,
                **row,
            }
        )
    return {"sessions": rows}


def _own_trees(upper: Upper) -> list[str]:
    """The upperdir, and captured changes below it that are not in a draft."""
    private = f"{upper.directory}/private"
    try:
        names = sorted(os.listdir(private), reverse=True)
    except FileNotFoundError:
        names = []
    return [
        upper.upperdir,
        *upper.saved_directories,
        *(f"{private}/{name}" for name in names if not (upper.carried and name == CARRIED)),
    ]
