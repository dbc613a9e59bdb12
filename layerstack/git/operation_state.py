"""Operations that are under way in a repository: what git remembers of a merge, a rebase and the like until
one of two commands ends it. Source: wt-status.c, sequencer.c, builtin/am.c of git.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from layerstack.git.objects import GitTree
from layerstack.tree.state import DIRECTORY, FILE

TODO_BYTES = 4096
SHOWN = 20
"""Paths that a command names."""


class GitOperation(NamedTuple):
    """One operation. Both commands run in the work tree where it is."""

    name: str
    """merge, rebase, am, cherry-pick, revert, bisect, notes merge, or unmerged paths."""
    worktree: str
    """Name of the linked worktree; empty for the repository's own."""
    finish: str
    abort: str

    @property
    def text(self) -> str:
        """Name it with its worktree and both commands, for a message."""
        where = f" in the worktree {self.worktree}" if self.worktree else ""
        return f"{self.name}{where}: `{self.finish}` or `{self.abort}`"


def operations(
    root: str, tree: GitTree, unmerged: Mapping[str, Sequence[bytes]] | None = None
) -> tuple[GitOperation, ...]:
    """List the operations under way in one tree, the repository's own work tree first.

    Args:
        unmerged: paths with unmerged entries in an index, by worktree (empty name: the repository's own).
            They count when no other operation of that worktree explains them.
    """
    found: list[GitOperation] = []
    for worktree in ("", *sorted(tree.names(f"{root}/worktrees"))):
        place = f"{root}/worktrees/{worktree}" if worktree else root
        here = [GitOperation(name, worktree, *ends) for name, ends in _named(place, tree)]
        paths = (unmerged or {}).get(worktree, ())
        if paths and not here:
            shown = " ".join(_quoted(path) for path in paths[:SHOWN])
            more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
            # a mixed reset forgets the stages; the files keep both sides between their markers
            here = [GitOperation("unmerged paths", worktree, f"git add {shown}{more}", "git reset")]
        found += here
    return tuple(found)


def _named(place: str, tree: GitTree) -> list[tuple[str, tuple[str, str]]]:
    def has(name: str, kind: str = FILE) -> bool:
        state = tree.find(f"{place}/{name}")
        return state is not None and state.kind == kind

    found: list[str] = []
    if has("MERGE_HEAD"):
        found.append("merge")
    if has("rebase-apply", DIRECTORY):
        found.append("am" if has("rebase-apply/applying") else "rebase")
    elif has("rebase-merge", DIRECTORY):
        found.append("rebase")
    else:  # a rebase keeps CHERRY_PICK_HEAD too
        word = _first_step(place, tree)
        if has("CHERRY_PICK_HEAD") or word in ("pick", "p"):
            found.append("cherry-pick")
        if has("REVERT_HEAD") or word == "revert":
            found.append("revert")
    if has("BISECT_START") or has("BISECT_LOG"):
        found.append("bisect")
    if has("NOTES_MERGE_PARTIAL"):
        found.append("notes merge")
    return [(name, _ends(name)) for name in found]


def _first_step(place: str, tree: GitTree) -> str | None:
    state = tree.find(f"{place}/sequencer/todo")
    if state is None or state.kind != FILE:
        return None
    words = state.data(TODO_BYTES).split(None, 1)
    return words[0].decode("latin-1") if words else None


def _ends(name: str) -> tuple[str, str]:
    if name == "bisect":
        return "git bisect reset HEAD", "git bisect reset"
    if name == "notes merge":
        return "git notes merge --commit", "git notes merge --abort"
    return f"git {name} --continue", f"git {name} --abort"


def _quoted(path: bytes) -> str:
    text = path.decode("utf-8", "replace")
    plain = all(char.isalnum() or char in "/._-+=,@%" for char in text) and not text.startswith("-")
    return text if plain else "'" + text.replace("'", "'\\''") + "'"
