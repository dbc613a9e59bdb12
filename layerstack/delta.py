"""Which paths differ between two versions, or between a version and work on top of one. Only what layers outside of their common ones list
is looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from layerstack import stopping
from layerstack.chain import Chain
from layerstack.index import Layer
from layerstack.packed_index import PackedIndex
from layerstack.paths import ancestors, byte_order, join
from layerstack.states import DIRECTORY, State, equal, same

KEPT, KEPT_PATHS = 4, 100_000
"""Lists of paths that a store remembers, so that the pages of one answer are found once; longer lists are not kept."""


class Difference(NamedTuple):
    """A path and its two states; None is absent."""

    path: str
    old: State | None
    new: State | None


def at(old: Chain, new: Chain, path: str) -> Difference | None:
    """The difference at one path, or None. Reads content only of two files of one size in different layers."""
    if old.holder(path) is new.holder(path):
        return None
    before, after = old.find(path), new.find(path)
    return None if equal(before, after) else Difference(path, before, after)


def delta(old: Chain, new: Chain, *, under: str = "") -> list[str]:
    """Every path, at or below `under`, that is not the same in both, in byte order. What is in a directory that only one has is listed too.

    Cost: O(records of the layers that only one has); below a directory that one of them made anew, all of it.
    """
    return sorted(_Walk(old, new).below(under), key=byte_order)


def count(old: Chain, new: Chain) -> int:
    """How many paths `delta` would list; none of them is kept."""
    return sum(1 for _ in _Walk(old, new).below(""))


class _Walk:
    def __init__(self, old: Chain, new: Chain) -> None:
        self.old, self.new = old, new
        common = 0
        for one, other in zip(reversed(old.layers), reversed(new.layers), strict=False):
            if one.id != other.id:
                break
            common += 1
        self.outside: list[Layer] = [*old.layers[: len(old.layers) - common], *new.layers[: len(new.layers) - common]]
        self.listed: dict[str, set[str]] = {}
        self.large: list[PackedIndex] = []
        for layer in self.outside:
            if isinstance(layer.index, PackedIndex):
                self.large.append(layer.index)  # asked where it is: a set of its names costs ten times what they take there
                continue
            for path, record in (layer.index or {}).items():
                if not record.quiet:
                    self.note(path)

    def note(self, path: str) -> None:
        while path:
            above, _, name = path.rpartition("/")
            names = self.listed.setdefault(above, set())
            if name in names:
                return
            names.add(name)
            path = above

    def covers(self, path: str) -> bool:
        return any((record := layer.get(path)) is not None and record.covers for layer in self.outside)

    def below(self, under: str) -> Iterator[str]:
        """The paths that differ, at or below one."""
        return self.go(under, covered=any(self.covers(ancestor) for ancestor in ancestors(under)))

    def go(self, path: str, *, covered: bool) -> Iterator[str]:
        """`covered`: one of the layers changed what is below without listing it."""
        stopping.check()
        if at(self.old, self.new, path) is not None:
            yield path
        sides = [chain for chain in (self.old, self.new) if (state := chain.find(path)) is not None and state.kind == DIRECTORY]
        covered = covered or self.covers(path)
        names: set[str] = set()
        if len(sides) == 2 and not covered:
            names.update(self.listed.get(path, ()))
            for index in self.large:
                names.update(child.rpartition("/")[2] for child in index.children(path))
        else:
            for side in sides:
                names |= side.names(path)
        for name in names:
            yield from self.go(join(path, name), covered=covered or len(sides) == 1)


class Deltas:
    """The last lists of paths that `delta` gave, by the layers of both sides, which never change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], list[str]] = OrderedDict()

    def paths(self, old: Chain, new: Chain, under: str) -> list[str]:
        """As `delta`."""
        key = (under, tuple(layer.id for layer in old.layers), tuple(layer.id for layer in new.layers))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = delta(old, new, under=under)
        if len(found) <= KEPT_PATHS:
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return found


def change_of(old: State | None, new: State | None) -> str:
    """`added`, `deleted`, `modified`, `type` (another kind), `attributes` (mode, owner or xattrs alone) or `none`."""
    if equal(old, new):
        return "none"
    if old is None or new is None:
        return "added" if old is None else "deleted"
    if old.kind != new.kind:
        return "type"
    return "attributes" if old.kind == DIRECTORY or same(old, new) else "modified"
