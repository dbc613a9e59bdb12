"""The result of `flatten`, computed path by path: a preview flattens pending layers without writing a
tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from layerstack.layers.chain import Chain
from layerstack.layers.flatten import BlockListing, reach
from layerstack.layers.index import Layer
from layerstack.model.paths import parent as parent_of
from layerstack.tree.disk import LARGE, Children, DirectoryEntry
from layerstack.tree.state import DIRECTORY, WHITEOUT, State

KEPT = 4096
"""Directories that are remembered."""


class _FlattenedDirectory(NamedTuple):
    """The entries of a directory come from layers of rank `last` or newer, and, unless it is `cut`, from
    below the run.
    """

    last: int
    cut: bool
    opaque: bool


class FlattenedTree:
    """The tree that `flatten` makes of `block`, layers newest first, on top of `below`, with one difference:
    unchanged containers stay, which a capture removes. Read-only; each call reads the layers as they are.
    """

    def __init__(self, block: Sequence[Layer], below: Chain) -> None:
        self.xattr_namespace = below.xattr_namespace
        self._top, self._below, self._listed = block[0], below, BlockListing(block)
        self._root = _FlattenedDirectory(len(block) - 1, False, False)
        self._known: dict[str, _FlattenedDirectory] = {}

    def _directory(self, path: str) -> _FlattenedDirectory:
        if not path:
            return self._root
        known = self._known.get(path)
        if known is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            known = self._known[path] = self._resolve(path, self._directory(parent_of(path)))
        return known

    def _resolve(self, path: str, above: _FlattenedDirectory) -> _FlattenedDirectory:
        last, hides, _ = reach(self._listed.at(path), above.last)
        under = None if above.cut else self._below.find(path)
        merges = under is not None and under.kind == DIRECTORY
        return _FlattenedDirectory(last, hides or not merges, hides and merges)

    def _children(self, path: str) -> Iterator[DirectoryEntry]:
        here = self._directory(path)
        skip = len(path) + 1 if path else 0
        for child in self._listed.children(path):
            rank, _, rec = self._listed.at(child)[0]
            if rank <= here.last and (
                rec.kind != WHITEOUT or (not here.cut and self._below.layer_of(child) is not None)
            ):
                yield DirectoryEntry(child[skip:], rec.kind)

    def scan(self, path: str) -> Sequence[DirectoryEntry]:
        """See `Tree.scan`."""
        found: list[DirectoryEntry] = []
        rest = self._children(path)
        for child in rest:
            found.append(child)
            if len(found) > LARGE:
                return Children.of(_chained(found, rest))
        return sorted(found)

    def state(self, path: str) -> State:
        """See `Tree.state`."""
        return self._listed.at(path)[0][1].tree.state(path) if path else self._top.tree.state("")

    def opaque(self, path: str) -> bool:
        """See `Tree.opaque`."""
        return self._directory(path).opaque

    def xattr_whiteouts(self, path: str) -> list[str] | None:
        """Return None: captured layers have no whiteouts that are plain files."""
        return None

    def redirect(self, path: str) -> str | None:
        """Return None: captured layers have no renamed directories."""
        return None


def _chained(first: list[DirectoryEntry], rest: Iterator[DirectoryEntry]) -> Iterator[DirectoryEntry]:
    yield from first
    yield from rest
