"""Find the paths that differ between two versions, or between a version and work on top of one. Only paths
that a layer of one side alone lists are compared.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator
from typing import NamedTuple

from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.layers.packed_index import PackedIndex
from layerstack.model import cancel
from layerstack.model.paths import ancestors, byte_order
from layerstack.tree.state import DIRECTORY, LINK, State, equal, same

KEPT, KEPT_PATHS = 4, 100_000
"""Comparisons that a store remembers, so that the pages of one answer are computed once; and paths of
each.
"""


class Difference(NamedTuple):
    """A path and its two states; None is absent."""

    path: str
    old: State | None
    new: State | None
    retimed: bool = False
    """True when the states are equal and only the times of the file or directory differ."""


def at(old: Chain, new: Chain, path: str) -> Difference | None:
    """Compare one path; None when it does not differ. Reads content only of two files of equal size in
    different layers.
    """
    if old.layer_of(path) is new.layer_of(path):
        return None
    before, after = old.find(path), new.find(path)
    return None if equal(before, after) else Difference(path, before, after)


def delta(old: Chain, new: Chain, *, under: str = "") -> list[str]:
    """List all of `paths`."""
    return list(paths(old, new, under=under))


def paths(old: Chain, new: Chain, *, under: str = "") -> Iterator[str]:
    """Give every path, at or below `under`, that differs, in byte order. Entries of a directory that only one
    side has are included.

    Cost: O(records of the layers that only one side has), of large ones only as far as the caller iterates;
    below a directory that one side made again, all of it. Memory: the small layers' paths, and the names of
    one directory.
    """
    return (found.path for found in _DeltaWalk(old, new).below(under))


def tops(old: Chain, new: Chain, *, times: bool = False) -> Iterator[Difference]:
    """Give the differences at the paths of `paths`, without those below an entry that is not a directory in
    `new`.

    Args:
        times: also files and directories that differ in their time only.
    """
    return _DeltaWalk(old, new, only_tops=True, times=times).below("")


def count(old: Chain, new: Chain) -> int:
    """Count the paths that `delta` would list, without keeping them."""
    return sum(1 for _ in _DeltaWalk(old, new).below(""))


class _Inside(NamedTuple):
    """A directory whose content is still to be compared."""

    path: str
    sides: tuple[Chain, ...]
    """The sides that have it."""
    masked: bool
    """True when one of the layers masks its content without listing it."""


class _DeltaWalk:
    def __init__(self, old: Chain, new: Chain, *, only_tops: bool = False, times: bool = False) -> None:
        self.old, self.new, self.only_tops, self.times = old, new, only_tops, times
        common = 0
        for one, other in zip(reversed(old.layers), reversed(new.layers), strict=False):
            if one.id != other.id:
                break
            common += 1
        self.outside: list[Layer] = [
            *old.layers[: len(old.layers) - common],
            *new.layers[: len(new.layers) - common],
        ]
        self.listed: dict[str, set[str]] = {}
        self.large: list[PackedIndex] = []
        for layer in self.outside:
            if isinstance(layer.index, PackedIndex):
                # queried directly: a set of its names would take ten times the memory
                self.large.append(layer.index)
                continue
            for path, record in (layer.index or {}).items():
                if times or not record.quiet:
                    self.note(path)

    def note(self, path: str) -> None:
        while path:
            above = path.rpartition("/")[0]
            children = self.listed.setdefault(above, set())
            if path in children:
                return
            children.add(path)
            path = above

    def masks(self, path: str) -> bool:
        return any((record := layer.get(path)) is not None and record.masks for layer in self.outside)

    def below(self, under: str) -> Iterator[Difference]:
        """Give the differences at or below a path."""
        found, inside = self.compare(under, masked=any(self.masks(ancestor) for ancestor in ancestors(under)))
        if found is not None:
            yield found
        open_now = [] if inside is None else [self.content(inside)]
        while open_now:
            met = next(open_now[-1], None)
            if met is None:
                open_now.pop()
            elif isinstance(met, _Inside):
                open_now.append(self.content(met))
            else:
                yield met

    def content(self, directory: _Inside) -> Iterator[Difference | _Inside]:
        """Give the differences directly in a directory, and each directory in it where its own content sorts:
        `d` comes before `d-`, and `d/x` after it.
        """
        waiting: list[tuple[bytes, _Inside]] = []
        for path in self.children(directory):
            raw = byte_order(path)
            while waiting and waiting[-1][0] < raw:
                yield waiting.pop()[1]
            found, inside = self.compare(path, masked=directory.masked)
            if found is not None:
                yield found
            if inside is not None:
                waiting.append((raw + b"/", inside))
        while waiting:
            yield waiting.pop()[1]

    def children(self, directory: _Inside) -> Iterator[str]:
        path = directory.path
        if directory.masked:
            some = [side.ordered(path) for side in directory.sides]
        else:
            some = [
                iter(sorted(self.listed.get(path, ()), key=byte_order)),
                *(index.children(path) for index in self.large),
            ]
        last: str | None = None
        for child in heapq.merge(*some, key=byte_order):
            if child != last:
                yield child
            last = child

    def compare(self, path: str, *, masked: bool) -> tuple[Difference | None, _Inside | None]:
        """Compare one path. `masked`: one of the layers masks the directory that contains it without listing
        it.
        """
        cancel.check()
        one, other = self.old.layer_of(path), self.new.layer_of(path)
        found: Difference | None = None
        if one is other:
            record = None if one is None else one.get(path)
            sides: tuple[Chain, ...] = (
                (self.old, self.new) if record is not None and record.kind == DIRECTORY else ()
            )
        else:
            before = None if one is None else one.tree.state(path)
            after = None if other is None else other.tree.state(path)
            retimed = equal(before, after)
            if not retimed or (self.times and _has_another_time(before, after)):
                found = Difference(path, before, after, retimed)
            both = ((self.old, before), (self.new, after))
            sides = tuple(chain for chain, state in both if state is not None and state.kind == DIRECTORY)
        if not sides or (self.only_tops and self.new not in sides):
            return found, None
        return found, _Inside(path, sides, masked or len(sides) == 1 or self.masks(path))


def _has_another_time(before: State | None, after: State | None) -> bool:
    """Compare the times of two equal states. The time of a symlink is ignored."""
    return (
        before is not None and after is not None and after.kind != LINK and before.times[1] != after.times[1]
    )


class _ComparedPaths:
    """Paths of one comparison that were read so far, or the last of them when they are many. One caller at a
    time.
    """

    def __init__(self, rest: Iterator[str], layers: tuple[Layer, ...]) -> None:
        self.layers = layers
        self.begin = 0
        """The number of the first path that is remembered."""
        self._rest, self._found = rest, list[str]()

    def get(self, start: int) -> Iterator[str]:
        """Give the paths from number `start` on, which is not before `begin`."""
        at = start
        while True:
            while at - self.begin >= len(self._found):
                path = next(self._rest, None)
                if path is None:
                    return
                if len(self._found) >= KEPT_PATHS:
                    half = KEPT_PATHS // 2
                    del self._found[:half]
                    self.begin += half
                self._found.append(path)
            yield self._found[at - self.begin]
            at += 1


class Deltas:
    """The last comparisons, by the layers of both sides, which never change: a page continues where the one
    before it ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], _ComparedPaths] = OrderedDict()

    @contextlib.contextmanager
    def paths(
        self, old: Chain, new: Chain, under: str, start: int, *, but: Chain | None = None
    ) -> Generator[Iterator[str]]:
        """Give `paths` from number `start` on; without those whose state is the same in `but` and in
        `new`.
        """
        layers = [() if chain is None else chain.layers for chain in (old, new, but)]
        key = (under, *(tuple(layer.id for layer in some) for some in layers))
        with self._lock:
            listed = self._kept.pop(key, None)
        if listed is None or start < listed.begin or any(layer.gone for layer in listed.layers):
            listed = _ComparedPaths(self._find(old, new, under, but), tuple(itertools.chain(*layers)))
        yield listed.get(start)
        with self._lock:  # not after an error, which has ended the search: the next call starts over
            self._kept[key] = listed
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    @staticmethod
    def _find(old: Chain, new: Chain, under: str, but: Chain | None) -> Iterator[str]:
        for path in paths(old, new, under=under):
            if but is None or not equal(but.find(path), new.find(path)):
                yield path


def change_of(old: State | None, new: State | None) -> str:
    """`added`, `deleted`, `modified`, `type` (another kind), `attributes` (mode, owner or xattrs alone) or
    `none`.
    """
    if equal(old, new):
        return "none"
    if old is None or new is None:
        return "added" if old is None else "deleted"
    if old.kind != new.kind:
        return "type"
    return "attributes" if old.kind == DIRECTORY or same(old, new) else "modified"
