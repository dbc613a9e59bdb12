"""The index of a large layer: path -> record, at some ten bytes per path instead of some hundred. Found by bisection, walked in byte order.

Paths stand in groups of GROUP. The first of a group is whole, of each other only what differs from the one before:

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
"""An index of so many paths or fewer is a dict: it answers in a tenth of the time."""

MEMO = 1024
"""Answers that are remembered, so that the directories above each path are not looked for again and again."""

_HEAD = struct.Struct("<HH")


class Packed(Mapping[str, V], Generic[V]):
    """Path -> one of some values. Filled once, in byte order of paths; from then on it never changes. May be read from any thread."""

    def __init__(self, values: Sequence[V], marks: MutableSequence[int]) -> None:
        """`marks` has of each path the number of its value among `values`."""
        self._values, self._marks = values, marks
        self._data = bytearray()
        self._groups = array("Q")  # where each of them begins
        self._last = b""
        self._near: tuple[bytes, bytes | None, dict[bytes, V]] = (
            b"\xff" * 5000,
            None,
            {},
        )  # the last group: begin, end, what is in it
        self._memo: dict[bytes, V | None] = {}

    def append(self, path: bytes, mark: int) -> None:
        """The path, which sorts behind all that are there, with the number of its value."""
        if len(self._marks) % GROUP:
            shared = path.rfind(b"/") + 1
            while path[:shared] != self._last[:shared]:
                shared = path.rfind(b"/", 0, shared - 1) + 1
        else:
            self._groups.append(len(self._data))
            shared = 0
        self._data += _HEAD.pack(shared, len(path) - shared)
        self._data += path[shared:]
        self._marks.append(mark)
        self._last = path

    def walk(self, start: int = 0) -> Iterator[tuple[bytes, V]]:
        """The paths from number `start` on, in byte order."""
        data, marks, values, unpack = self._data, self._marks, self._values, _HEAD.unpack_from
        if start >= len(marks):
            return
        at, path = self._groups[start // GROUP], b""
        for number in range(start - start % GROUP, len(marks)):
            shared, size = unpack(data, at)
            at += 4 + size
            path = path[:shared] + data[at - size : at]
            if number >= start:
                yield path, values[marks[number]]

    def place(self, path: bytes) -> int:
        """The number of the first path that does not sort before this one; how many there are when all do."""
        data, groups = self._data, self._groups
        low, high = 0, len(groups)
        while low < high:  # the first group whose head sorts behind
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
        """What is listed at the path. Those that are asked one after the other are mostly neighbours, or directories that were asked before."""
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
        """All strictly below a path, in byte order."""
        prefix = byte_order(path) + b"/" if path else b""
        for found, record in self.walk(self.place(prefix) if path else 1):
            if not found.startswith(prefix):
                return
            yield os.fsdecode(found), record

    def children(self, path: str) -> Iterator[str]:
        """The paths directly in a directory, in byte order. What lies deeper is passed over by bisection."""
        prefix = byte_order(path) + b"/" if path else b""
        number = self.place(prefix) if path else 1
        while number < len(self._marks):
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
                number = self.place(inside + b"0")  # "0" is the byte behind "/"

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
        return len(self._marks)

    def items(self) -> ItemsView[str, V]:
        return _Items(self)


class PackedIndex(Packed[IndexRecord]):
    """An index: filled by `add`."""

    def __init__(self) -> None:
        super().__init__(NUMBERED, bytearray())

    def add(self, path: bytes, record: IndexRecord) -> None:
        """Append the path, which sorts behind all that are there."""
        self.append(path, number_of(record))


class _Items(ItemsView[str, V]):
    """In one walk, not by a bisection for each path."""

    def __init__(self, index: Packed[V]) -> None:
        super().__init__(index)
        self._index = index

    def __iter__(self) -> Iterator[tuple[str, V]]:
        for path, record in self._index.walk():
            yield os.fsdecode(path), record
