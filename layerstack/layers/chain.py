"""The layer stack of a version as a value: its layers, newest first, and the look-up of a path in them. No
mount is needed or made.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

from layerstack.errors import NotFound
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.layers.index import Layer, PathIndex
from layerstack.layers.packed_index import PackedIndex
from layerstack.model.paths import byte_order, join, parent
from layerstack.tree.state import DIRECTORY, SPECIAL, WHITEOUT, State

TOPS_KEPT = 50_000
"""Directories for which a chain remembers what masks them."""


class Chain:
    """Pending layers (captured, unpublished work) on the layers of a manifest; rank 0 is the top. Immutable,
    shared between threads.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        path_index: PathIndex,
        xattr_namespace: XattrNamespace,
        pending: Sequence[Layer] = (),
    ) -> None:
        self._fill(tuple(layers), path_index, xattr_namespace, tuple(pending))
        self._height: dict[str, int] = {layer.id: at for at, layer in enumerate(reversed(self.published))}
        """Height of each published layer, 0 = lowest. Shared with later chains, whose layers are higher than
        this chain's own.
        """
        self.ids: tuple[str, ...] = tuple([layer.id for layer in self.published])
        """Ids of the published layers, newest first."""
        self._drops = -1

    def _fill(
        self,
        published: tuple[Layer, ...],
        path_index: PathIndex,
        xattr_namespace: XattrNamespace,
        pending: tuple[Layer, ...],
    ) -> None:
        self.pending, self.published = pending, published
        self.layers = pending + published
        self.path_index, self.xattr_namespace = path_index, xattr_namespace
        self.base = self.layers[-1]
        self._bottom = len(self.layers) - 1
        self._tops: dict[str, tuple[int, bool]] = {}

    def above(self, layer: Layer) -> Chain:
        """Give the chain with one more published layer on top, which is in the path index already. Cost: the
        copy of two tuples.
        """
        new = object.__new__(Chain)
        new._fill((layer, *self.published), self.path_index, self.xattr_namespace, ())
        new._height = (
            self._height
            if len(self._height) == len(self.published)
            else {each: self._height[each] for each in self.ids}
        )
        new._height[layer.id] = len(self.published)
        new.ids = (layer.id, *self.ids)
        new._drops = self._drops
        return new

    def with_pending(self, pending: Sequence[Layer]) -> Chain:
        """Give the same published layers with these pending ones on top, the topmost first, in place of its
        own.
        """
        return Chain(self.published, self.path_index, self.xattr_namespace, pending)

    def _rank(self, layer_id: str) -> int | None:
        """Give the rank of a published layer, 0 = top of all layers; None if it is not in this chain."""
        height = self._height.get(layer_id)
        if height is None or height >= len(self.published):
            return None
        return self._bottom - height

    def up_to(self, version: int) -> Chain:
        """Give the chain of an earlier version of the same stack: the layers of this chain that are not
        newer. The version must not be inside a squashed run.
        """
        if self.published[0].version <= version:
            return self
        return Chain(
            [layer for layer in self.published if layer.version <= version],
            self.path_index,
            self.xattr_namespace,
        )

    def sorted(self, layers: Iterable[Layer]) -> list[Layer]:
        """List, newest first, the given layers that are published layers of this version."""
        found = [(rank, layer) for layer in layers if (rank := self._rank(layer.id)) is not None]
        return [layer for _, layer in sorted(found, key=lambda hit: hit[0])]

    def _complete(self) -> None:
        """Check, after each look-up in the path index, that no layer of this chain was dropped before: the
        look-up would have missed that layer and shown older content.
        """
        drops = self.path_index.drops
        if drops != self._drops:
            lost = next((layer for layer in self.published if layer.gone), None)
            if lost is not None:
                raise NotFound(
                    f"layer {lost.id} of this version was replaced by a squash: only a version with a lease "
                    f"stays readable",
                    reason="version_not_found",
                    details={"layer_id": lost.id},
                )
            self._drops = drops

    def _first(self, path: str, *, masks: bool = False) -> tuple[int, Layer | None]:
        """Find the newest layer that lists `path`, or with `masks` masks everything below it, and its rank;
        the base is not searched.
        """
        for rank, layer in enumerate(self.pending):
            found = layer.get(path)
            if found is not None and (found.masks or not masks):
                return rank, layer
        best, who, index = len(self.layers), None, self.path_index
        if index.large:
            listed = index.masking(path) if masks else index.listing(path)
        else:
            listed = (index.by_mask if masks else index.by_path).get(path, ())
        for layer in listed:  # newest first, in the order of the layers of a version
            at = self._rank(layer.id)
            if at is not None:
                best, who = at, layer
                break
        self._complete()
        return best, who

    def _top(self, path: str) -> tuple[int, bool]:
        """Find the rank of the newest layer that masks what is below `path`, at it or at an ancestor.

        The second value is True when that layer has no directory there, so that no entry of its own is below
        `path` either. The result never changes for a chain and is remembered for each directory.
        """
        found = self._tops.get(path)
        if found is not None:
            return found
        if len(self._tops) > TOPS_KEPT:
            self._tops = {}
        unknown = [path]
        while unknown[-1]:
            above = parent(unknown[-1])
            found = self._tops.get(above)
            if found is not None:
                break
            unknown.append(above)
        best, ends = found or (len(self.layers), False)
        for at in reversed(unknown):
            rank, by = self._first(at, masks=True)
            if by is not None and rank <= best:
                record = by.get(at)
                ends = (ends and rank == best) or (record is not None and record.kind != DIRECTORY)
                best = rank
            self._tops[at] = best, ends
        return best, ends

    def layer_of(self, path: str) -> Layer | None:
        """Find the layer whose entry this version shows at `path`; None when it shows none."""
        best, who = self._first(path)
        if path:
            mask, ends = self._top(parent(path))
            if mask < best or (mask == best and ends):
                return None
        if who is not None:
            found = who.get(path)
            return None if found is None or found.kind == WHITEOUT else who
        return self.base if self.base.get(path) else None

    def find(self, path: str) -> State | None:
        """Give the state of `path` in this version; None when absent. Symlinks among its directories are not
        followed: a path below one is absent.
        """
        who = self.layer_of(path)
        return None if who is None else who.tree.state(path)

    def hidden_from(self, directory: str) -> int:
        """Give the lowest rank of a layer whose entries in a directory are not visible, because it or a newer
        layer replaced the directory.
        """
        best, ends = self._top(directory)
        return best if ends else best + 1

    def directories(self, path: str) -> list[Layer]:
        """List the layers that merge into the directory `path`, newest first; empty unless it is a
        directory.
        """
        top = self._top(parent(path))[0] if path else len(self.layers)
        hits: list[tuple[int, Layer]] = [
            (rank, layer) for rank, layer in enumerate(self.pending) if layer.get(path) is not None
        ]
        listed = [
            (rank, layer)
            for layer in self.path_index.listing(path)
            if (rank := self._rank(layer.id)) is not None
        ]
        hits += sorted(listed, key=lambda hit: hit[0])
        self._complete()
        merged: list[Layer] = []
        for rank, layer in hits:
            found = layer.get(path)
            if rank > top or found is None or found.kind != DIRECTORY:
                return merged
            merged.append(layer)
            if found.opaque:
                return merged
        if top >= self._bottom:
            found = self.base.get(path)
            if found is not None and found.kind == DIRECTORY:
                merged.append(self.base)
        return merged

    def names(self, path: str, *, stop_above: int | None = None) -> set[str]:
        """List the names in the directory `path`; stops early, with more than `stop_above` names, when that
        is given.
        """
        seen, gone = set[str](), set[str]()
        for layer in self.directories(path):
            for name, kind in layer.tree.scan(path):
                if name in seen or name in gone:
                    continue
                listed = layer.get(join(path, name))
                (gone if listed is None or listed.kind == WHITEOUT or kind not in "fld" else seen).add(name)
                if stop_above is not None and len(seen) > stop_above:
                    return seen
        return seen

    def ordered(self, path: str) -> Iterator[str]:
        """List the paths directly in the directory `path`, in byte order. Names in large layers are read from
        their indexes one by one.
        """
        last: bytes | None = None
        for name, _, shown in heapq.merge(
            *(_listed(rank, layer, path) for rank, layer in enumerate(self.directories(path)))
        ):
            if name != last and shown:
                yield join(path, os.fsdecode(name))
            last = name

    def walk(self, path: str = "") -> Iterator[str]:
        """List the visible paths strictly below `path`, a directory before its entries."""
        for name in sorted(self.names(path)):
            child = join(path, name)
            yield child
            state = self.find(child)
            if state is not None and state.kind == DIRECTORY:
                yield from self.walk(child)


def _listed(rank: int, layer: Layer, path: str) -> Iterator[tuple[bytes, int, bool]]:
    """List (name, rank, whether it is visible) of one layer's entries in a directory, in byte order of the
    names.
    """
    if isinstance(layer.index, PackedIndex):
        skip = len(byte_order(path)) + 1 if path else 0
        for child in layer.index.children(path):
            yield byte_order(child)[skip:], rank, layer.index[child].kind != WHITEOUT
        return
    found = [
        (byte_order(name), rank, kind not in (WHITEOUT, SPECIAL)) for name, kind in layer.tree.scan(path)
    ]
    yield from found if all(one[0] < other[0] for one, other in itertools.pairwise(found)) else sorted(found)
