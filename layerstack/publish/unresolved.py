"""Files that a rebase wrote conflict markers into, and that still contain them: they are not published unless
the caller allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from layerstack.errors import UnresolvedConflicts
from layerstack.model.conflict import path_json
from layerstack.model.paths import byte_order, join
from layerstack.model.resolution import Unresolved
from layerstack.text.lines import TEXT_MAX
from layerstack.text.markers import lines_left
from layerstack.tree.disk import Tree
from layerstack.tree.state import DIRECTORY, FILE, State

PATHS_SHOWN = 100
MOVED_MAX = 1000
"""Changed files that are searched when a file with markers is no longer at its path, since it may be
renamed.
"""
_SIZE_MAX = 4 * TEXT_MAX
"""Largest file that is searched, in bytes: three texts, their markers, and later additions."""


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

    Cost: a read of each file in `unresolved`; of at most MOVED_MAX changed files if one of those is removed.
    """
    found: list[tuple[str, Sequence[int]]] = []
    moved: set[str] = set()
    files: dict[str, frozenset[str]] = {}
    for path in sorted(unresolved, key=byte_order):
        above, _, name = path.rpartition("/")
        if above not in files:
            files[above] = _files_in(tree, above)
        if name not in files[above]:
            moved.update(unresolved[path])
            continue
        lines = _left(tree.state(path), unresolved[path])
        if lines:
            found.append((path, lines))
    if moved:
        for number, path in enumerate(_files(tree, "")):
            if number == MOVED_MAX:
                break
            if path not in unresolved and (lines := _left(tree.state(path), moved)):
                found.append((path, lines))
    if not found:
        return None
    shown = [{**path_json(path), "lines": list(lines)} for path, lines in found[:PATHS_SHOWN]]
    names = ", ".join(f"{path} line {lines[0]}" for path, lines in found[:3])
    more = f", and {len(found) - 3} more" if len(found) > 3 else ""
    return UnresolvedConflicts(
        f"{len(found)} files contain conflict markers of a rebase: {names}{more}",
        details={
            "paths": shown,
            "path_count": len(found),
            "hint": "edit each file: keep the lines that belong there, remove the marker lines; or publish "
            "with allow_unresolved if they are meant",
        },
    )


def _left(state: State, lines: Collection[str]) -> list[int]:
    if state.kind != FILE or state.size > _SIZE_MAX:
        return []
    return lines_left(state.data(), lines)


def _files_in(tree: Tree, folder: str) -> frozenset[str]:
    """List the names of the files in a directory of the layer; of any other path, nothing."""
    try:
        return frozenset(name for name, kind in tree.scan(folder) if kind == FILE)
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def _files(tree: Tree, folder: str) -> Iterator[str]:
    for name, kind in tree.scan(folder):
        path = join(folder, name)
        if kind == DIRECTORY:
            yield from _files(tree, path)
        elif kind == FILE:
            yield path
