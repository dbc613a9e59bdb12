"""The index of a large layer: path -> record, at some ten bytes per path instead of some hundred. Searched by
bisection, iterated in byte order.

Paths are in groups of GROUP. The first of a group is whole; each other has only what differs from the one
before:

    <u16 bytes shared> <u16 bytes that follow> <these bytes>
"""

from __future__ import annotations

import itertools
import os
import struct
from array import array
from collections.abc import ItemsView, Iterator, Mapping, MutableSequence, Sequence
from typing import Generic, TypeVar, overload

from layerstack.layers.index_record import NUMBERED, IndexRecord, number_of
from layerstack.model.paths import byte_order

T = TypeVar("T")
V = TypeVar("V")

GROUP = 16
SMALL = 4096
"""An index of at most this many paths is a dict, which is ten times as fast."""

MEMO = 1024
"""Answers that are remembered, so that the directories above each path are not searched for again and
again.
"""

_HEAD = struct.Struct("<HH")


class Packed(Mapping[str, V], Generic[V]):
    """Path -> one of some values. Filled once, in byte order of paths; constant afterwards. May be read from
    any thread.
    """

    def __init__(self, values: Sequence[V], numbers: MutableSequence[int]) -> None:
        """`numbers` has, for each path, the number of its value among `values`."""
        self._values, self._numbers = values, numbers
        self._data = bytearray()
        self._groups = array("Q")  # offsets at which they begin
        self._last = b""
        self._near: tuple[bytes, bytes | None, dict[bytes, V]] = (
            b"\xff" * 5000,
            None,
            {},
        )  # the last group: begin, end, its entries
        self._memo: dict[bytes, V | None] = {}

    def append(self, path: bytes, number: int) -> None:
        """Append a path, which sorts after all others, with the number of its value."""
        if len(self._numbers) % GROUP:
            shared = path.rfind(b"/") + 1
            while path[:shared] != self._last[:shared]:
                shared = path.rfind(b"/", 0, shared - 1) + 1
        else:
            self._groups.append(len(self._data))
            shared = 0
        self._data += _HEAD.pack(shared, len(path) - shared)
        self._data += path[shared:]
        self._numbers.append(number)
        self._last = path

    def walk(self, start: int = 0) -> Iterator[tuple[bytes, V]]:
        """Iterate from path number `start` on, in byte order."""
        data, numbers, values, unpack = self._data, self._numbers, self._values, _HEAD.unpack_from
        if start >= len(numbers):
            return
        at, path = self._groups[start // GROUP], b""
        for number in range(start - start % GROUP, len(numbers)):
            shared, size = unpack(data, at)
            at += 4 + size
            path = path[:shared] + data[at - size : at]
            if number >= start:
                yield path, values[numbers[number]]

    def place(self, path: bytes) -> int:
        """Give the number of the first path that does not sort before this one; the length when all do."""
        data, groups = self._data, self._groups
        low, high = 0, len(groups)
        while low < high:  # the first group whose first path sorts after `path`
            middle = (low + high) // 2
            at = groups[middle]
            if data[at + 4 : at + 4 + _HEAD.unpack_from(data, at)[1]] <= path:
                low = middle + 1
            else:
                high = middle
        number = max(0, low - 1) * GROUP
        for found, _ in self.walk(number):
            if found >= path:
                break
            number += 1
        return number

    def find(self, path: bytes) -> V | None:
        """Give the value of the path, or None. Successive queries are mostly neighbours, or directories that
        were queried before.
        """
        low, high, table = self._near
        if low <= path and (high is None or path < high):
            return table.get(path)
        memo = self._memo
        if path in memo:
            return memo[path]
        data, groups = self._data, self._groups
        begin, end = 0, len(groups)
        while begin < end:
            middle = (begin + end) // 2
            at = groups[middle]
            if data[at + 4 : at + 4 + _HEAD.unpack_from(data, at)[1]] <= path:
                begin = middle + 1
            else:
                end = middle
        first = max(0, begin - 1) * GROUP
        walked = list(itertools.islice(self.walk(first), GROUP + 1))
        table = dict(walked[:GROUP])
        if begin and walked:
            self._near = (walked[0][0], walked[GROUP][0] if len(walked) > GROUP else None, table)
        found = table.get(path)
        if len(memo) >= MEMO:
            self._memo = memo = {}
        memo[path] = found
        return found

    def below(self, path: str) -> Iterator[tuple[str, V]]:
        """Iterate over everything strictly below a path, in byte order."""
        prefix = byte_order(path) + b"/" if path else b""
        for found, record in self.walk(self.place(prefix) if path else 1):
            if not found.startswith(prefix):
                return
            yield os.fsdecode(found), record

    def children(self, path: str) -> Iterator[str]:
        """Iterate over the paths directly in a directory, in byte order. Deeper paths are skipped by
        bisection.
        """
        prefix = byte_order(path) + b"/" if path else b""
        number = self.place(prefix) if path else 1
        while number < len(self._numbers):
            inside = b""
            for found, _ in self.walk(number):
                if not found.startswith(prefix):
                    return
                cut = found.find(b"/", len(prefix))
                if cut >= 0:
                    inside = found[:cut]
                    break
                number += 1
                yield os.fsdecode(found)
            if inside:
                number = self.place(inside + b"0")  # "0" is the byte after "/"

    @overload
    def get(self, path: str, /) -> V | None: ...
    @overload
    def get(self, path: str, /, default: V | T) -> V | T: ...
    def get(self, path: str, /, default: object = None) -> object:
        found = self.find(byte_order(path))
        return default if found is None else found

    def __getitem__(self, path: str) -> V:
        found = self.find(byte_order(path))
        if found is None:
            raise KeyError(path)
        return found

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.find(byte_order(path)) is not None

    def __iter__(self) -> Iterator[str]:
        for path, _ in self.walk():
            yield os.fsdecode(path)

    def __len__(self) -> int:
        return len(self._numbers)

    def items(self) -> ItemsView[str, V]:
        return _Items(self)


class PackedIndex(Packed[IndexRecord]):
    """An index: filled by `add`."""

    def __init__(self) -> None:
        super().__init__(NUMBERED, bytearray())

    def add(self, path: bytes, record: IndexRecord) -> None:
        """Append the path, which sorts after all others."""
        self.append(path, number_of(record))


class _Items(ItemsView[str, V]):
    """Iterate in one walk, not by a bisection for each path."""

    def __init__(self, index: Packed[V]) -> None:
        super().__init__(index)
        self._index = index

    def __iter__(self) -> Iterator[tuple[str, V]]:
        for path, record in self._index.walk():
            yield os.fsdecode(path), record
