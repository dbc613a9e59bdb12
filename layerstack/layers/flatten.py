"""Fold adjacent layers into one tree that shows the same: private layers before a publish, published ones at a squash."""

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
"""A record of a path: the rank of its layer in the block, 0 the newest; the layer; the record."""


class BlockListing:
    """What the layers of a block list, by path. Those with packed indexes are asked where they are: the memory of such a fold is that of the others."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._listed: dict[str, list[Listed]] = {}
        self._large: list[tuple[int, Layer, PackedIndex]] = []
        for rank, layer in enumerate(layers):
            if isinstance(layer.index, PackedIndex):
                self._large.append((rank, layer, layer.index))
                continue
            for path, rec in (layer.index or {}).items():
                self._listed.setdefault(path, []).append((rank, layer, rec))
        self._children: dict[str, list[str]] = {}
        for path in sorted(self._listed, key=byte_order) if self._large else sorted(self._listed):
            if path:
                self._children.setdefault(parent_of(path), []).append(path)

    def at(self, path: str) -> list[Listed]:
        """The records of a path, the newest first."""
        found = self._listed.get(path, [])
        large = [(rank, layer, rec) for rank, layer, index in self._large if (rec := index.get(path)) is not None]
        return sorted([*found, *large], key=lambda listed: listed[0]) if large else found

    def source(self, path: str) -> Layer | None:
        """The newest layer that lists the path: the one that a file of the result is from."""
        found = self.at(path)
        return found[0][1] if found else None

    def is_touched(self, path: str) -> bool:
        """Is a file of the result there for its time alone? (`Sealed.touched`)"""
        return all(rec.kind == FILE and rec.quiet for _, _, rec in self.at(path))

    def children(self, path: str) -> Iterator[str]:
        """The listed paths in a directory."""
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


class Folded(NamedTuple):
    """What is asked of a fold afterwards, by path."""

    source: Callable[[str], Layer | None]
    """Of each file and symlink, the layer that it is from."""
    is_touched: Callable[[str], bool]
    """Is a file there for its time alone?"""


class Reach(NamedTuple):
    """How far down the block a directory of the result reaches."""

    mask: int
    """The oldest rank that has a say in what is in it."""
    hides: bool
    """Did the block end it, so that nothing of what is below the block shows in it?"""
    quiet: bool
    """Did all its layers only pass through it?"""


def reach(records: Sequence[Listed], mask: int) -> Reach:
    """Go down the records of a directory, the newest first, as far as the mask of the directory that it is in.

    It merges with older directories until one layer has something else there, or hides what is older. The mask ends at the first record that is no
    directory, just above it: what that layer has there, and what is older, shows no more. An opaque directory keeps its rank: what is in
    it shows, what is older does not.
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


def fold(block: Sequence[Layer], below: Chain, target: Tree) -> Folded:
    """Write what the layers of `block` show on top of `below` into `target`, which holds nothing but its root, like the newest layer's.

    A whiteout stays only where `below` shows the name and nothing of the result hides it; a directory that hid what is below stays opaque.
    Files are shared by hard link. A directory has the time that the newest layer gave it, which is what `below` and the block showed.
    Raises:
        Stopped, at any entry.
    Cost: O(entries of the block); names come from the indexes, not from the disk.
    """
    folding = _Fold(BlockListing(block), below, target)
    root = block[0].tree.state("")
    target.set_attributes("", root)
    folding.fill("", len(block) - 1, cut=False)
    target.set_times("", root.times)
    return Folded(folding.listed.source, folding.listed.is_touched)


class _Fold:
    def __init__(self, listed: BlockListing, below: Chain, target: Tree) -> None:
        self.listed, self.below, self.target = listed, below, target

    def fill(self, path: str, mask: int, *, cut: bool) -> bool:
        """Write what is in a directory. Layers of a rank beyond `mask` have no say; `cut`: nothing of `below` shows here. -> is there anything?"""
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
            elif not cut and self.below.holder(child) is not None:
                self.target.whiteout(child)
                some = True
        return some

    def _directory(self, path: str, records: Sequence[Listed], mask: int, *, cut: bool) -> bool:
        """Write a directory with what is in it. -> is it in the result? One that all layers only passed through, without a trace, is not."""
        target = self.target
        mask, hides, quiet = reach(records, mask)
        under = None if cut else self.below.find(path)
        merges = under is not None and under.kind == DIRECTORY
        state = records[0][1].tree.state(path)
        target.put(path, state)
        if hides and merges:
            target.mark_opaque(path)
        some = self.fill(path, mask, cut=hides or not merges)
        if not some and not hides and quiet and under is not None and under.times[1] == state.times[1]:
            target.rmdir(path)
            return False
        target.set_times(path, state.times)
        return True
