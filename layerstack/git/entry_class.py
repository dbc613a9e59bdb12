"""Kinds of the files in a repository's directory, by name: how a publication treats a file that both sides
changed. Source: gitrepository-layout(5), path.c, builtin/gc.c of git.
"""

from __future__ import annotations

import re

from layerstack.layers.git_leftovers import is_named_so
from layerstack.tree.state import FILE

OBJECT = "object"
"""Loose objects and packs: united."""
DERIVED = "derived"
"""Files that git makes again from the objects, such as the commit-graph; wrong beside other objects."""
REF, PACKED_REFS, HEAD, LOG, INDEX, CONFIG = "ref", "packed_refs", "head", "log", "index", "config"
LAST_WRITER = "last_writer"
"""Files about the last command, such as COMMIT_EDITMSG."""
OPERATION = "operation"
"""State of an operation under way."""
JUNK = "junk"
"""Locks and temporary files of a git that has ended."""
ORDINARY = "ordinary"
"""Files of people, and names that git does not know: the rules for any file."""

_DERIVED = re.compile(
    r"objects/info/(?:commit-graph|commit-graphs/.*|packs)"
    r"|objects/pack/multi-pack-index(?:[.-].*|\.d/.*)?|info/refs"
)
_LAST = re.compile(
    r"(?:[A-Z]+_)*EDITMSG|EDIT_DESCRIPTION|ADD_EDIT\.patch|ORIG_HEAD|FETCH_HEAD|AUTO_MERGE|SQUASH_MSG"
    r"|MERGE_MSG|MERGE_RR|REBASE_HEAD|gitk\.cache|gc\.log|addp-hunk-edit\.diff"
)
_OPERATION = re.compile(
    r"MERGE_HEAD|MERGE_MODE|MERGE_AUTOSTASH|CHERRY_PICK_HEAD|REVERT_HEAD|BISECT_.*|NOTES_MERGE_.*"
    r"|(?:rebase-merge|rebase-apply|sequencer)(?:/.*)?",
    re.DOTALL,
)
_WORKTREE = re.compile(r"worktrees/[^/]+/", re.DOTALL)


def split_worktree(below: str) -> tuple[str, str]:
    """Split a path below the repository into `worktrees/NAME/`, or nothing, and the rest."""
    found = _WORKTREE.match(below)
    return ("", below) if found is None else (found[0], below[found.end() :])


def class_of(below: str, kind: str = FILE) -> str:
    """Give the class of an entry.

    Args:
        below: path below the repository's directory; the files of a linked worktree have the class of those
            of the repository. A repository in `modules/` is one of its own: ask with its own root.
        kind: kind of the entry, as a `State` has it.
    """
    if is_named_so(below, kind):
        return JUNK
    below = split_worktree(below)[1]
    top = below.partition("/")[0]
    if top == "objects":
        return DERIVED if _DERIVED.fullmatch(below) is not None else OBJECT
    if top == "refs":
        return REF
    if top == "logs":
        return LOG
    if below == "packed-refs":
        return PACKED_REFS
    if below == "HEAD":
        return HEAD
    if below == "index" or (top == below and top.startswith("sharedindex.")):
        return INDEX
    if below in ("config", "config.worktree"):
        return CONFIG
    if _LAST.fullmatch(below) is not None:
        return LAST_WRITER
    if _OPERATION.fullmatch(below) is not None:
        return OPERATION
    return DERIVED if _DERIVED.fullmatch(below) is not None else ORDINARY
