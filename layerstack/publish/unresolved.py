"""Files that a rebase wrote conflict markers into, and that still contain them: they are not published unless
the caller allows it. Likewise a git merge that a rebase began and left to commit: its MERGE_HEAD, with the id
in it as the line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from layerstack.errors import UnresolvedConflicts
from layerstack.model import cancel
from layerstack.model.conflict import path_json
from layerstack.model.paths import ancestors, byte_order, join
from layerstack.model.resolution import Unresolved
from layerstack.text.lines import TEXT_MAX
from layerstack.text.markers import lines_left
from layerstack.tree.disk import Tree
from layerstack.tree.state import DIRECTORY, FILE, State

PATHS_SHOWN = 100
MERGE_HEAD = "/MERGE_HEAD"
COMMIT_HINT = (
    "edit the conflict markers away, then in the session `git add -A` and `git commit --no-edit`, which "
    "makes one history of both sides; then publish; or publish with allow_unresolved"
)
MOVED_MAX, MOVED_BYTES = 100_000, 1 << 30
"""Changed files, and bytes of them, that are searched when a file with markers is no longer at its path,
since it may be renamed. The publication itself reads and syncs all of them.
"""
_SIZE_MAX = 4 * TEXT_MAX
"""Bytes of a file that are searched: more than a rebase writes into one."""


def to_json(unresolved: Unresolved) -> dict[str, list[str]]:
    """Convert for a record."""
    return {path: list(lines) for path, lines in unresolved.items()}


def from_json(body: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Read what `to_json` made. Raises KeyError, TypeError for anything else."""
    found: dict[str, tuple[str, ...]] = {}
    for path, lines in body.items():
        if not isinstance(lines, list):
            raise TypeError(f"marker lines of {path!r} are {type(lines).__name__}")
        found[path] = tuple(str(line) for line in lines)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return found


def joined(first: Unresolved, second: Unresolved) -> dict[str, tuple[str, ...]]:
    """Join two sets of files; the lines of a file in both are joined too."""
    found = dict(first)
    for path, lines in second.items():
        found[path] = tuple(dict.fromkeys((*found.get(path, ()), *lines)))
    return found


def still(unresolved: Unresolved, find: Callable[[str], State | None]) -> dict[str, tuple[str, ...]]:
    """Give the files that still contain one of their marker lines in a tree."""
    return {
        path: lines for path, lines in unresolved.items() if (state := find(path)) and _left(state, lines)
    }


def check(unresolved: Unresolved, tree: Tree) -> None:
    """Refuse captured work with marker lines in it. Raises UnresolvedConflicts."""
    found = refusal(unresolved, tree)
    if found is not None:
        raise found


def refusal(unresolved: Unresolved, tree: Tree) -> UnresolvedConflicts | None:
    """Give the refusal of captured work, or None when no marker line is left in its files.

    Cost: a read of each file in `unresolved`; of MOVED_MAX changed files or MOVED_BYTES at most if one of
    those is removed.
    """
    found: list[tuple[str, Sequence[int]]] = []
    moved: set[str] = set()
    listing = _Names(tree)
    for path in sorted(unresolved, key=byte_order):
        if listing.kind(path) != FILE:
            if not path.endswith(MERGE_HEAD):  # its line is an id, which other files of git contain too
                moved.update(unresolved[path])
            continue
        lines = _left(tree.state(path), unresolved[path])
        if lines:
            found.append((path, lines))
    if moved:
        found += _moved(tree, unresolved, moved)
    if not found:
        return None
    shown = [{**path_json(path), "lines": list(lines)} for path, lines in found[:PATHS_SHOWN]]
    if all(path.endswith(MERGE_HEAD) for path, _ in found):
        return UnresolvedConflicts(
            f"a git merge that a rebase began is not committed: {shown[0]['path']}",
            details={"paths": shown, "path_count": len(found), "hint": COMMIT_HINT},
        )
    texts = [one for one in found if not one[0].endswith(MERGE_HEAD)]
    names = ", ".join(f"{path_json(path)['path']} line {lines[0]}" for path, lines in texts[:3])
    more = f", and {len(texts) - 3} more" if len(texts) > 3 else ""
    return UnresolvedConflicts(
        f"{len(texts)} files contain conflict markers of a rebase: {names}{more}",
        details={
            "paths": shown,
            "path_count": len(found),
            "hint": COMMIT_HINT
            if any(path.endswith(MERGE_HEAD) for path, _ in found)
            else "edit each file: keep the lines that belong there, remove the marker lines; or publish "
            "with allow_unresolved if they are meant",
        },
    )


def _moved(tree: Tree, unresolved: Unresolved, moved: Collection[str]) -> Iterator[tuple[str, Sequence[int]]]:
    """Search the other changed files for marker lines of files that are no longer at their paths."""
    least, left = min(map(len, moved)), MOVED_BYTES
    for number, path in enumerate(_files(tree, "")):
        if number == MOVED_MAX or left < 0:
            return
        cancel.check()
        if path not in unresolved and (state := tree.state(path)).size >= least:
            left -= min(state.size, _SIZE_MAX)
            if lines := _left(state, moved):
                yield path, lines


def _left(state: State, lines: Collection[str]) -> list[int]:
    return lines_left(state.data(_SIZE_MAX), lines) if state.kind == FILE else []


class _Names:
    """The names in the directories of a layer, each read once. Nothing is below a symlink, which may lead
    outside.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._read: dict[str, dict[str, str]] = {}

    def kind(self, path: str) -> str | None:
        """Give the kind of the layer's entry at the path; None when it has none."""
        kind: str | None = DIRECTORY
        for at in (*ancestors(path)[1:], path):
            if kind != DIRECTORY:
                return None
            above, _, name = at.rpartition("/")
            if above not in self._read:
                self._read[above] = {entry.name: entry.kind for entry in self._tree.scan(above)}
            kind = self._read[above].get(name)
        return kind


def _files(tree: Tree, folder: str) -> Iterator[str]:
    for name, kind in tree.scan(folder):
        path = join(folder, name)
        if kind == DIRECTORY:
            yield from _files(tree, path)
        elif kind == FILE:
            yield path
