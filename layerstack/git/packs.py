"""Packs: objects by their id in a pack's index (version 1 and 2), with deltas resolved.

Every number in a pack is checked before it is used: a session may have written the file. Source:
gitformat-pack(5).
"""

from __future__ import annotations

import bisect
import struct
from typing import NamedTuple

from layerstack.git.file_bytes import CHUNK, RepositoryFiles, SizedCache, inflate, inflate_start
from layerstack.git.object_format import (
    BLOB_MAX,
    CorruptObject,
    ObjectFormat,
    ObjectTooLarge,
    Oid,
)
from layerstack.tree.state import State

DEPTH_MAX = 4096
"""Deltas between an object and its base; git writes at most 4095."""
CHAIN_BYTES_MAX = 4 << 30
"""Bytes of all results of the deltas of one object."""
_HEAD_BYTES = 4096
_FANOUT = struct.Struct(">256I")
_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFS, _REF = 6, 7

DeltaBases = SizedCache[tuple[str, int], tuple[str, bytes]]
"""(pack, offset) -> kind and bytes."""


class PackIndex:
    """The index of one pack, of which only the table of first bytes is kept in memory."""

    def __init__(self, files: RepositoryFiles, state: State, fmt: ObjectFormat) -> None:
        """Read the header. Raises CorruptObject."""
        self._files, self._state, self._width = files, state, fmt.size
        start = files.read(state, 0, 8 + _FANOUT.size)
        self._second = start[:4] == b"\377tOc"
        if self._second and start[4:8] != b"\0\0\0\2":
            raise CorruptObject(f"a pack's index of the version {start[4:8].hex()}")
        self._head = 8 if self._second else 0
        if len(start) < self._head + _FANOUT.size:
            raise CorruptObject(f"a pack's index of {len(start)} bytes")
        self._fanout = (0, *_FANOUT.unpack_from(start, self._head))
        if any(x > y for x, y in zip(self._fanout, self._fanout[1:], strict=False)):
            raise CorruptObject("a pack's index whose table of first bytes falls")
        self.count = self._fanout[-1]
        self._ids = self._head + _FANOUT.size
        least = self._ids + self.count * (self._width + (8 if self._second else 4)) + 2 * self._width
        self._large_end = state.size - 2 * self._width
        self._large = self._ids + self.count * (self._width + 8)
        most = least + 8 * max(0, self.count - 1) if self._second else least
        if not least <= state.size <= most:
            raise CorruptObject(f"a pack's index of {state.size} bytes for {self.count} objects")

    def pack_checksum(self) -> bytes:
        return self._files.read(self._state, self._large_end, self._width)

    def find(self, oid: Oid) -> int | None:
        """Give an object's offset in the pack; None when it is not there.

        Raises:
            CorruptObject: its offset points out of the index.
        """
        first, last = self._fanout[oid[0]], self._fanout[oid[0] + 1]
        row = self._width + (0 if self._second else 4)
        skip = 0 if self._second else 4
        while (last - first) * row > CHUNK:
            middle = (first + last) // 2
            there = self._files.read(self._state, self._ids + middle * row + skip, self._width)
            if there <= oid:
                first = middle
            else:
                last = middle
        rows = self._files.read(self._state, self._ids + first * row, (last - first) * row)
        count = len(rows) // row
        at = bisect.bisect_left(range(count), oid, key=lambda n: rows[n * row + skip : (n + 1) * row])
        if at == count or rows[at * row + skip : (at + 1) * row] != oid:
            return None
        if not self._second:
            return int.from_bytes(rows[at * row : at * row + 4], "big")
        place = self._ids + self.count * (self._width + 4) + 4 * (first + at)
        offset = int.from_bytes(self._files.read(self._state, place, 4), "big")
        if offset < 1 << 31:
            return offset
        place = self._large + 8 * (offset & 0x7FFFFFFF)
        if place + 8 > self._large_end:
            raise CorruptObject("a pack's index with an offset outside of its table")
        return int.from_bytes(self._files.read(self._state, place, 8), "big")


class PackEntry(NamedTuple):
    """The header of one entry: the size of its stream's content, and for a delta the offset of its base."""

    code: int
    size: int
    base: int
    stream: int
    begun: bytes
    """The first bytes at `stream`."""


class Pack:
    """One pack with its index."""

    def __init__(
        self,
        name: str,
        files: RepositoryFiles,
        index: State,
        pack: State,
        fmt: ObjectFormat,
        bases: DeltaBases,
    ) -> None:
        """Check both headers. Raises CorruptObject, OSError."""
        self.name, self._files, self._state, self._fmt, self._bases = name, files, pack, fmt, bases
        self.index = PackIndex(files, index, fmt)
        self._end = pack.size - fmt.size
        start = files.read(pack, 0, 12)
        if start[:4] != b"PACK" or start[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
            raise CorruptObject(f"{name}: not a pack of version 2 or 3")
        if int.from_bytes(start[8:12], "big") != self.index.count:
            raise CorruptObject(f"{name}: a pack and an index with different numbers of objects")
        if files.read(pack, self._end, fmt.size) != self.index.pack_checksum():
            raise CorruptObject(f"{name}: an index of another pack")

    def read(self, offset: int) -> tuple[str, bytes]:
        """Read the object at an offset.

        Raises:
            CorruptObject: damage, or deltas in a circle.
            ObjectTooLarge: more than BLOB_MAX bytes.
        """
        deltas: list[tuple[int, PackEntry]] = []
        at, passed, total = offset, set[int](), 0
        while (found := self._bases.get((self.name, at))) is None:
            entry = self._entry(at)
            total += entry.size
            if entry.code in _KINDS:
                found = _KINDS[entry.code], self._content(entry)
                self._bases.put((self.name, at), found, len(found[1]))
                break
            if at in passed or len(deltas) >= DEPTH_MAX:
                raise CorruptObject(f"{self.name}: deltas in a circle, or more than {DEPTH_MAX}, at {offset}")
            passed.add(at)
            deltas.append((at, entry))
            at = entry.base
        kind, data = found
        for at, entry in reversed(deltas):
            data = apply_delta(data, self._content(entry))
            total += len(data)
            if total > CHAIN_BYTES_MAX:
                raise ObjectTooLarge(f"{self.name}: deltas of more than {CHAIN_BYTES_MAX} bytes at {offset}")
            self._bases.put((self.name, at), (kind, data), len(data))
        return kind, data

    def header(self, offset: int) -> tuple[str, int]:
        """Give kind and size of the object at an offset, without its content."""
        entry = self._entry(offset)
        size, passed = entry.size, set[int]()
        if entry.code not in _KINDS:
            start = inflate_start(entry.begun, 32)
            size = _number(start, _number(start, 0)[1])[0]
        while entry.code not in _KINDS:
            if entry.base in passed or len(passed) >= DEPTH_MAX:
                raise CorruptObject(f"{self.name}: deltas in a circle, or more than {DEPTH_MAX}, at {offset}")
            passed.add(entry.base)
            entry = self._entry(entry.base)
        return _KINDS[entry.code], size

    def _content(self, entry: PackEntry) -> bytes:
        if entry.size > BLOB_MAX:
            raise ObjectTooLarge(f"{self.name}: an object of {entry.size} bytes, more than {BLOB_MAX}")
        return inflate(self._files.reader(self._state), entry.stream, entry.size, entry.begun)

    def _entry(self, offset: int) -> PackEntry:
        if not 12 <= offset < self._end:
            raise CorruptObject(f"{self.name}: an object at {offset} of {self._end} bytes")
        raw = self._files.read(self._state, offset, min(_HEAD_BYTES, self._end - offset))
        code, size, shift, at = raw[0] >> 4 & 7, raw[0] & 15, 4, 1
        try:
            while raw[at - 1] & 0x80:
                size |= (raw[at] & 0x7F) << shift
                shift, at = shift + 7, at + 1
                if shift > 63:
                    raise CorruptObject(f"{self.name}: a size of more than 63 bits at {offset}")
            base = 0
            if code == _OFS:
                back, more = raw[at] & 0x7F, raw[at] & 0x80
                at += 1
                while more:
                    back, more = (back + 1 << 7) | raw[at] & 0x7F, raw[at] & 0x80
                    at += 1
                    if back > offset:
                        break
                base = offset - back
                if not 12 <= base < offset:
                    raise CorruptObject(f"{self.name}: a delta at {offset} whose base is at {base}")
        except IndexError:
            raise CorruptObject(f"{self.name}: an object at {offset} that ends in its header") from None
        if code == _REF:
            found = self.index.find(raw[at : at + self._fmt.size]) if len(raw) > at + self._fmt.size else None
            if found is None:
                raise CorruptObject(f"{self.name}: a delta at {offset} whose base is not in the pack")
            base, at = found, at + self._fmt.size
        elif code != _OFS and code not in _KINDS:
            raise CorruptObject(f"{self.name}: an object of the kind {code} at {offset}")
        return PackEntry(code, size, base, offset + at, raw[at:])


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Parse a number of a delta's header: its value, and the place after it."""
    value, shift = 0, 0
    while True:
        if at >= len(data) or shift > 63:
            raise CorruptObject("a delta that ends in its header")
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Apply a delta of a pack to its base.

    Raises:
        CorruptObject: sizes that do not match, or a copy from outside of the base.
        ObjectTooLarge: a result of more than BLOB_MAX bytes.
    """
    source, at = _number(delta, 0)
    target, at = _number(delta, at)
    if source != len(base):
        raise CorruptObject(f"a delta for {source} bytes on a base of {len(base)}")
    if target > BLOB_MAX:
        raise ObjectTooLarge(f"a delta with a result of {target} bytes, more than {BLOB_MAX}")
    parts, got, end = list[bytes](), 0, len(delta)
    while at < end:
        order = delta[at]
        at += 1
        if order & 0x80:
            offset = size = 0
            for n in range(7):
                if order & 1 << n:
                    if at >= end:
                        raise CorruptObject("a delta that ends within a copy")
                    if n < 4:
                        offset |= delta[at] << 8 * n
                    else:
                        size |= delta[at] << 8 * (n - 4)
                    at += 1
            part = base[offset : offset + (size or 0x10000)]
            if len(part) != (size or 0x10000):
                raise CorruptObject(f"a delta that copies {size} bytes at {offset} of {source}")
        else:
            part = delta[at : at + order]
            if not order or len(part) != order:
                raise CorruptObject("a delta that ends within its text, or has the order 0")
            at += order
        got += len(part)
        if got > target:
            break
        parts.append(part)
    if got != target:
        raise CorruptObject(f"a delta with a result of {got} bytes or more in place of {target}")
    return b"".join(parts)
