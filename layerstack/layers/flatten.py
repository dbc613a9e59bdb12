"""Flatten adjacent layers into one tree that shows the same: pending layers before a publication, published
ones at a squash.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from layerstack.layers.chain import Chain
from layerstack.layers.index import IndexRecord, Layer
from layerstack.layers.packed_index import PackedIndex
from layerstack.model import cancel
from layerstack.model.paths import byte_order
from layerstack.model.paths import parent as parent_of
from layerstack.tree.disk import Tree
from layerstack.tree.state import DIRECTORY, FILE, WHITEOUT

Listed = tuple[int, Layer, IndexRecord]
"""A record of a path: the rank of its layer in the run, 0 = newest; the layer; the record."""


class BlockListing:
    """Paths that the layers of a run list. Packed indexes are queried directly, so that memory is that of the
    other indexes.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._listed: dict[str, list[Listed]] = {}
        self._large: list[tuple[int, Layer, PackedIndex]] = []
        for rank, layer in enumerate(layers):
            if isinstance(layer.index, PackedIndex):
                self._large.append((rank, layer, layer.index))
                continue
            for path, rec in (layer.index or {}).items():
                self._listed.setdefault(path, []).append((rank, layer, rec))
        self._last: tuple[str, list[Listed]] | None = None
        self._children: dict[str, list[str]] = {}
        for path in sorted(self._listed, key=byte_order) if self._large else sorted(self._listed):
            if path:
                self._children.setdefault(parent_of(path), []).append(path)

    def at(self, path: str) -> list[Listed]:
        """List the records of a path, newest first. The same path is mostly asked for twice in a row."""
        found = self._listed.get(path, [])
        if not self._large:
            return found
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        large = [
            (rank, layer, rec) for rank, layer, index in self._large if (rec := index.get(path)) is not None
        ]
        found = sorted([*found, *large], key=lambda listed: listed[0]) if large else found
        self._last = (path, found)
        return found

    def source(self, path: str) -> Layer | None:
        """Find the newest layer that lists the path: the source of a file of the result."""
        found = self.at(path)
        return found[0][1] if found else None

    def is_touched(self, path: str) -> bool:
        """Check whether a file of the result is there for its time alone (`Captured.touched`)."""
        return all(rec.kind == FILE and rec.quiet for _, _, rec in self.at(path))

    def children(self, path: str) -> Iterator[str]:
        """Give the listed paths in a directory."""
        some: list[Iterable[str]] = [self._children.get(path, ())]
        some += [index.children(path) for _, _, index in self._large]
        if len(some) == 1:
            yield from some[0]
            return
        last: str | None = None
        for child in heapq.merge(*some, key=byte_order):
            if child != last:
                yield child
            last = child


class Flattened(NamedTuple):
    """Look-ups by path in the result of `flatten`."""

    source: Callable[[str], Layer | None]
    """Function: path of a file or symlink -> the layer that it is from."""
    is_touched: Callable[[str], bool]
    """Predicate: the file is there for its time alone."""


class Reach(NamedTuple):
    """Extent of a directory of the result: the layers of the run that contribute to it."""

    mask: int
    """The oldest rank whose layer contributes entries."""
    hides: bool
    """True when nothing below the run is visible in the directory."""
    quiet: bool
    """True when the directory is an unchanged container in all layers of the run that list it."""


def reach(records: Sequence[Listed], mask: int) -> Reach:
    """Find the oldest layer with which a directory merges. `records` are its records, newest first; `mask` is
    that of its parent, which limits the result.

    A directory merges with older ones until a layer has another kind of entry there, or an opaque directory.
    The mask ends just above the first record that is not a directory: that layer's entry, and everything
    older, is not visible. An opaque directory itself is included: its entries are visible, older ones are
    not.
    """
    quiet = True
    for rank, _, rec in records:
        if rank > mask:
            break
        if rec.kind != DIRECTORY:
            return Reach(rank - 1, True, quiet)
        quiet = quiet and rec.quiet
        if rec.opaque:
            return Reach(rank, True, quiet)
    return Reach(mask, False, quiet)


def flatten(block: Sequence[Layer], below: Chain, target: Tree) -> Flattened:
    """Write what the layers of `block` show on top of `below` into `target`, which contains nothing but its
    root, a copy of the newest layer's.

    A whiteout stays only where `below` shows the name and nothing of the result hides it; a directory that
    hid lower entries stays opaque. Files are hard-linked. A directory gets the time that the newest layer
    gave it, which is what `below` and the run showed.
    Raises:
        Stopped, at any entry.
    Cost: O(entries of the run); names come from the indexes, not from the disk.
    """
    folding = _Flatten(BlockListing(block), below, target)
    root = block[0].tree.state("")
    target.set_attributes("", root)
    folding.fill("", len(block) - 1, cut=False)
    target.set_times("", root.times)
    return Flattened(folding.listed.source, folding.listed.is_touched)


class _Flatten:
    def __init__(self, listed: BlockListing, below: Chain, target: Tree) -> None:
        self.listed, self.below, self.target = listed, below, target

    def fill(self, path: str, mask: int, *, cut: bool) -> bool:
        """Write the entries of a directory. Layers of a rank beyond `mask` do not contribute; `cut`: nothing
        of `below` is visible here. Returns whether any entry was written.
        """
        some = False
        for child in self.listed.children(path):
            cancel.check()
            records = self.listed.at(child)
            rank, layer, rec = records[0]
            if rank > mask:
                continue
            if rec.kind == DIRECTORY:
                some = self._directory(child, records, mask, cut=cut) or some
            elif rec.kind != WHITEOUT:
                self.target.put(child, layer.tree.state(child))
                some = True
            elif not cut and self.below.layer_of(child) is not None:
                self.target.whiteout(child)
                some = True
        return some

    def _directory(self, path: str, records: Sequence[Listed], mask: int, *, cut: bool) -> bool:
        """Write a directory with its entries. Returns whether it is in the result: one that is an unchanged
        container in all layers, and empty, is not.
        """
        target = self.target
        mask, hides, quiet = reach(records, mask)
        under = None if cut else self.below.find(path)
        merges = under is not None and under.kind == DIRECTORY
        state = records[0][1].tree.state(path)
        target.put(path, state)
        if hides and merges:
            target.set_opaque(path)
        some = self.fill(path, mask, cut=hides or not merges)
        if not some and not hides and quiet and under is not None and under.times[1] == state.times[1]:
            target.rmdir(path)
            return False
        target.set_times(path, state.times)
        return True
