"""Fold adjacent layers into one tree that shows the same: private layers before a publish, published ones at a squash."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from layerstack import stopping
from layerstack.chain import Chain
from layerstack.index import Layer, Record
from layerstack.packed_index import PackedIndex
from layerstack.paths import byte_order
from layerstack.paths import parent as parent_of
from layerstack.states import DIRECTORY, FILE, WHITEOUT
from layerstack.tree import Tree

Listed = tuple[int, Layer, Record]
"""A record of a path: the rank of its layer in the block, 0 the newest; the layer; the record."""


class Block:
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


def fold(block: Sequence[Layer], below: Chain, target: Tree) -> Folded:
    """Write what the layers of `block` show on top of `below` into `target`, which holds nothing but its root, like the newest layer's.

    A whiteout stays only where `below` shows the name and nothing of the result hides it; a directory that hid what is below stays opaque.
    Files are shared by hard link. A directory has the time that the newest layer gave it, which is what `below` and the block showed.
    Raises:
        Stopped, at any entry.
    Cost: O(entries of the block); names come from the indexes, not from the disk.
    """
    listed = Block(block)

    def go(path: str, last: int, *, cut: bool) -> bool:
        """What is in a directory. Layers older than rank `last` have nothing to say; `cut`: nothing of `below` shows here."""
        some = False
        for child in listed.children(path):
            stopping.check()
            rank, top, rec = listed.at(child)[0]
            if rank > last:
                continue
            if rec.kind == WHITEOUT:
                if not cut and below.holder(child) is not None:
                    target.whiteout(child)
                    some = True
            elif rec.kind != DIRECTORY:
                target.put(child, top.tree.state(child))
                some = True
            else:
                some = directory(child, last, cut=cut) or some
        return some

    def directory(path: str, last: int, *, cut: bool) -> bool:
        hit, quiet, records = False, not cut, listed.at(path)
        for rank, _, rec in records:
            if rank > last:
                break
            if rec.kind != DIRECTORY:
                hit, last = True, rank - 1
                break
            quiet = quiet and rec.quiet
            if rec.opaque:
                hit, last = True, rank
                break
        under = below.find(path) if not cut else None
        under_directory = under is not None and under.kind == DIRECTORY
        state = records[0][1].tree.state(path)
        target.put(path, state)
        if hit and not cut and under_directory:
            target.mark_opaque(path)
        some = go(path, last, cut=cut or hit or not under_directory)
        if not some and quiet and not hit and under is not None and under.times[1] == state.times[1]:
            target.rmdir(path)
            return False
        target.set_times(path, state.times)
        return True

    root = block[0].tree.state("")
    target.set_attributes("", root)
    go("", len(block) - 1, cut=False)
    target.set_times("", root.times)
    return Folded(listed.source, listed.is_touched)
