"""git's index: read in versions 2, 3 and 4, whole or split; written in version 2, or 3 where flags need it.

The extension TREE is kept and made invalid where entries change. Others hold what git makes again by itself
(untracked cache, fsmonitor, offsets for threads) or what a resolved conflict was (REUC), and are dropped.
Everything in the file is hostile: each length is checked against the bytes that are there. Source:
gitformat-index(5), read-cache.c, split-index.c, ewah/ of git.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from layerstack.git.cache_tree import CacheTree
from layerstack.git.ewah import bits_of
from layerstack.git.index_rows import (
    NAME_MASK,
    STAT_SIZE,
    IndexEntry,
    IndexStat,
    Row,
    entry_of,
    row_of,
    stat_of,
    value_of,
    with_stat,
)
from layerstack.git.object_format import CorruptObject, GitRefused, ObjectFormat, Oid

INDEX_MAX = 512 << 20
"""Bytes of an index that is read."""
ENTRIES_MAX = 5_000_000
PATH_BYTES_MAX = 65536
"""Bytes of one path; far beyond what a file system has."""

_HEADER = struct.Struct(">4sII")
_U32 = struct.Struct(">I")
_PADS = [bytes(8 - n) for n in range(8)]
"""NULs behind an entry, at least one, by its length modulo 8."""


class SharedIndex(NamedTuple):
    """The link from a split index to the file `sharedindex.<name>` that has the rest."""

    name: str
    deleted: frozenset[int]
    replaced: frozenset[int]


class GitIndex:
    """An index that can be changed: path -> row for entries of stage 0, and unmerged entries beside."""

    def __init__(self, fmt: ObjectFormat) -> None:
        self.fmt = fmt
        self.rows: dict[bytes, Row] = {}
        """Entries of stage 0, in no particular order."""
        self.unmerged: dict[bytes, dict[int, Row]] = {}
        """Path -> stage (1 base, 2 ours, 3 theirs) -> row, for paths in conflict."""
        self.flagged = False
        """True when an entry may have the flags assume-valid, skip-worktree or intent-to-add."""
        self.trees = CacheTree()

    @classmethod
    def parse(
        cls, data: bytes, fmt: ObjectFormat, shared: Callable[[str], bytes | None] | None = None
    ) -> GitIndex:
        """Parse the file.

        Args:
            shared: name of a file beside the index, `sharedindex.<hex>` -> its bytes.
        Raises:
            CorruptObject: the bytes are not an index, or its checksum is another.
            GitRefused: a format or extension that is not merged.
        """
        return _IndexReader(data, fmt).read(shared)

    def __len__(self) -> int:
        return len(self.rows) + sum(map(len, self.unmerged.values()))

    def __contains__(self, path: bytes) -> bool:
        return path in self.rows or path in self.unmerged

    def entry(self, path: bytes) -> IndexEntry | None:
        """Give the entry of stage 0; None when there is none."""
        row = self.rows.get(path)
        return None if row is None else entry_of(path, row, self.fmt.size)

    def entries(self) -> Iterator[IndexEntry]:
        """List all entries in git's order: by the bytes of the path, then by stage."""
        for path, row in self._sorted():
            yield entry_of(path, row, self.fmt.size)

    def stat(self, path: bytes) -> IndexStat | None:
        row = self.rows.get(path)
        return None if row is None else stat_of(row)

    def _sorted(self) -> Iterator[tuple[bytes, Row]]:
        if not self.unmerged:
            for path in sorted(self.rows):
                yield path, self.rows[path]
            return
        for path in sorted({*self.rows, *self.unmerged}):
            if (row := self.rows.get(path)) is not None:
                yield path, row
            stages = self.unmerged.get(path, {})
            for stage in sorted(stages):
                yield path, stages[stage]

    def put(self, entry: IndexEntry, stat: IndexStat | None = None) -> None:
        """Add an entry or replace it. Of stage 0 it takes the place of the unmerged ones, and the other way
        round.
        """
        row = row_of(entry, stat)
        self.trees.invalidate(entry.path)
        self.flagged = self.flagged or entry.assume_valid or entry.skip_worktree or entry.intent_to_add
        if entry.stage:
            self.rows.pop(entry.path, None)
            self.unmerged.setdefault(entry.path, {})[entry.stage] = row
        else:
            self.unmerged.pop(entry.path, None)
            self.rows[entry.path] = row

    def put_row(self, path: bytes, row: Row) -> None:
        """Add an entry of stage 0 with the stat data of another index, or replace it."""
        self.trees.invalidate(path)
        self.unmerged.pop(path, None)
        self.rows[path] = row

    def remove(self, path: bytes) -> None:
        """Remove all entries of a path."""
        if self.rows.pop(path, None) is not None or self.unmerged.pop(path, None) is not None:
            self.trees.invalidate(path)

    def restat(self, path: bytes, stat: IndexStat) -> None:
        """Give an entry of stage 0 the stat data of a file equal to it, which git then does not read."""
        row = self.rows.get(path)
        if row is not None:
            self.rows[path] = with_stat(row, stat)

    def smudge(self, path: bytes) -> None:
        """Give an entry size 0, with which git reads the file at its next look: an equal size and second of
        a file that is not known to be equal would hide an edit.
        """
        row = self.rows.get(path)
        if row is not None:
            self.rows[path] = with_stat(row, stat_of(row)._replace(size=0))

    def smudge_all(self, paths: Iterable[bytes] | None = None) -> None:
        for path in list(self.rows) if paths is None else paths:
            self.smudge(path)

    def to_bytes(self) -> bytes:
        """Write the index as version 2, or 3 when an entry has extended flags; never split."""
        size, fixed = self.fmt.size, STAT_SIZE + self.fmt.size
        parts: list[bytes] = []
        version, plain = 2, bytes(2)
        for path, row in self._sorted():
            length = len(path)
            name = length if length < NAME_MASK else NAME_MASK
            if row[fixed:] == plain:
                parts += row[:fixed], name.to_bytes(2, "big"), path, _PADS[fixed + 2 + length & 7]
                continue
            high = row[fixed]
            if high & 0x40:
                version = 3
            flags = bytes((high | name >> 8, name & 0xFF))
            parts += row[:fixed], flags + row[fixed + 2 :], path, _PADS[len(row) + length & 7]
        out = _HEADER.pack(b"DIRC", version, len(parts) // 4) + b"".join(parts)
        trees = self.trees.to_bytes(size)
        if trees:
            out += b"TREE" + _U32.pack(len(trees)) + trees
        return out + hashlib.new(self.fmt.name, out, usedforsecurity=False).digest()


def same_entries(x: GitIndex, y: GitIndex) -> bool:
    """Check whether two indexes are equal but for stat data and extensions."""
    if x.rows.keys() != y.rows.keys() or x.unmerged.keys() != y.unmerged.keys():
        return False
    other = y.rows
    for path, row in x.rows.items():
        its = other[path]
        if row != its and value_of(row) != value_of(its):
            return False
    return all(
        {stage: value_of(row) for stage, row in stages.items()}
        == {stage: value_of(row) for stage, row in y.unmerged[path].items()}
        for path, stages in x.unmerged.items()
    )


class _IndexReader:
    """Parses one file."""

    def __init__(self, data: bytes, fmt: ObjectFormat) -> None:
        if len(data) > INDEX_MAX:
            raise GitRefused(f"read an index: it has {len(data):,} bytes, at most {INDEX_MAX:,} are read")
        if len(data) < _HEADER.size + fmt.size:
            raise CorruptObject(f"read an index: it has {len(data)} bytes, fewer than its header needs")
        magic, self.version, self.count = _HEADER.unpack_from(data)
        if magic != b"DIRC" or self.version not in (2, 3, 4):
            raise GitRefused(
                f"read an index: it begins with {magic!r} and version {self.version}; versions 2, 3 and 4"
                " are read"
            )
        self.data, self.fmt, self.end = data, fmt, len(data) - fmt.size
        if self.count > ENTRIES_MAX or self.count * (STAT_SIZE + fmt.size + 3) > self.end:
            raise CorruptObject(
                f"read an index of {len(data):,} bytes: its header says {self.count:,} entries"
            )
        checksum = data[self.end :]
        # index.skipHash writes zeros
        if checksum.strip(b"\0") and checksum != _checksum(fmt, data[: self.end]):
            raise CorruptObject(f"read an index of {len(data):,} bytes: its checksum is another")

    def read(self, shared: Callable[[str], bytes | None] | None) -> GitIndex:
        index = GitIndex(self.fmt)
        plain_end = self._plain(index.rows)
        if plain_end is not None:
            link = self._extensions(plain_end, index)
            if link is None:
                return index
            index.rows.clear()
        pairs, at = self._entries()
        link = self._extensions(at, index)
        if link is not None:
            pairs = self._joined(pairs, link, shared)
        _fill(index, pairs)
        return index

    def _plain(self, rows: dict[bytes, Row]) -> int | None:
        """Read entries that have no flags and short paths, as nearly all have, in a quarter of the time; give
        the offset at which they end. None for an index with other entries or with damage, and no rows.
        """
        data, fixed, at, none = self.data, STAT_SIZE + self.fmt.size, _HEADER.size, bytes(2)
        try:
            for _ in range(self.count if self.version < 4 else 0):
                flags = at + fixed
                high = data[flags]
                if high >= 0x10:
                    break
                stop = flags + 2 + (high << 8 | data[flags + 1])
                rows[data[flags + 2 : stop]] = data[at:flags] + none
                at += (stop - at + 8) & ~7
        except IndexError:
            at = self.end + 1
        paths = b"/".join(rows) if at <= self.end and len(rows) == self.count else b"\0"
        if (
            b"\0" in paths
            or b"" in rows
            or len(paths) > self.end
            or any(map(NAME_MASK.__le__, map(len, rows)))
        ):
            rows.clear()
            return None
        return at

    def _entries(self) -> tuple[list[tuple[bytes, Row]], int]:
        """Read the entries and give the offset at which they end."""
        data, end, size = self.data, self.end, self.fmt.size
        pairs: list[tuple[bytes, Row]] = []
        at, fixed, packed, before = _HEADER.size, STAT_SIZE + size, self.version == 4, b""
        for _ in range(self.count):
            flags_at = at + fixed
            if flags_at + 2 > end:
                raise CorruptObject(f"read an index: an entry begins at {at} and ends behind the file")
            high = data[flags_at]
            length = (high & 0x0F) << 8 | data[flags_at + 1]
            name_at = flags_at + (4 if high & 0x40 else 2)
            if high & 0x40 and self.version == 2:
                raise CorruptObject("read an index of version 2: an entry has extended flags")
            row = data[at:name_at]
            if packed:
                stripped, name_at = self._varint(name_at)
                stop = data.find(b"\0", name_at, end)
                if stripped > len(before) or stop < 0:
                    raise CorruptObject(f"read an index: the path of the entry at {at} is cut short")
                path = before = before[: len(before) - stripped] + data[name_at:stop]
                at = stop + 1
            else:
                stop = name_at + length if length < NAME_MASK else data.find(b"\0", name_at, end)
                path = data[name_at:stop]
                at += (stop - at + 8) & ~7
            if stop < 0 or at > end or len(path) > PATH_BYTES_MAX:
                raise CorruptObject("read an index: the path of an entry ends behind the file")
            if b"\0" in path:
                raise CorruptObject(f"read an index: the path {path!r} has a NUL")
            pairs.append((path, row))
        return pairs, at

    def _varint(self, at: int) -> tuple[int, int]:
        """Read a number as `decode_varint` does, with the offset behind it."""
        value = -1
        for here in range(at, min(at + 5, self.end)):
            byte = self.data[here]
            value = (value + 1) << 7 | byte & 127
            if not byte & 128:
                return value, here + 1
        raise CorruptObject(f"read an index: the number at {at} is too large")

    def _extensions(self, at: int, index: GitIndex) -> SharedIndex | None:
        link: SharedIndex | None = None
        while at + 8 <= self.end:
            name, length = self.data[at : at + 4], _U32.unpack_from(self.data, at + 4)[0]
            body = self.data[at + 8 : at + 8 + length]
            at += 8 + length
            if at > self.end:
                raise CorruptObject(f"read an index: the extension {name!r} has {length:,} bytes, too many")
            if name == b"TREE":
                index.trees = CacheTree.parse(body, self.fmt.size)
            elif name == b"link":
                link = self._link(body)
            elif name == b"sdir":
                raise GitRefused(
                    "read an index: it is sparse (whole directories as one entry), which is not merged;"
                    " `git config index.sparse false && git sparse-checkout reapply` makes it complete"
                )
            elif name[:1] >= b"a":
                # git itself must understand an extension whose first letter is not a capital
                raise GitRefused(f"read an index: it has the extension {name!r}, which is not known")
        return link

    def _link(self, body: bytes) -> SharedIndex | None:
        size = self.fmt.size
        if len(body) < size:
            raise CorruptObject("read an index: its link to the shared index is cut short")
        if not body[:size].strip(b"\0"):
            return None
        name = f"sharedindex.{body[:size].hex()}"
        if len(body) == size:
            return SharedIndex(name, frozenset(), frozenset())
        deleted, at = bits_of(body, size, ENTRIES_MAX)
        replaced, _ = bits_of(body, at, ENTRIES_MAX)
        return SharedIndex(name, frozenset(deleted), frozenset(replaced))

    def _joined(
        self,
        own: list[tuple[bytes, Row]],
        link: SharedIndex,
        shared: Callable[[str], bytes | None] | None,
    ) -> list[tuple[bytes, Row]]:
        """Join the entries of the shared index with those of the split one, as `merge_base_index` does:
        entries without a path replace, in their order, those that are marked.
        """
        data = shared(link.name) if shared is not None else None
        if data is None:
            raise CorruptObject(f"read a split index: there is no {link.name} beside it")
        other = _IndexReader(data, self.fmt)
        if data[other.end :] != bytes.fromhex(link.name.partition(".")[2]):
            raise CorruptObject(f"read a split index: {link.name} has another checksum than its name says")
        below, at = other._entries()
        if other._extensions(at, GitIndex(self.fmt)) is not None:
            raise CorruptObject(f"read a split index: {link.name} is split itself")
        unnamed = [row for path, row in own if not path]
        if len(unnamed) != len(link.replaced) or max((*link.deleted, *link.replaced, 0)) > len(below):
            raise CorruptObject(f"read a split index: it does not fit {link.name}")
        rows = iter(unnamed)
        joined: list[tuple[bytes, Row]] = []
        for number, (path, row) in enumerate(below):
            if number in link.replaced:
                row = next(rows)
            if number not in link.deleted:
                joined.append((path, row))
        return joined + [pair for pair in own if pair[0]]


def _fill(index: GitIndex, pairs: list[tuple[bytes, Row]]) -> None:
    at, flagged = STAT_SIZE + index.fmt.size, False
    rows = index.rows
    plain = bytes(2)
    for path, row in pairs:
        high = row[at]
        if high < 0x10:
            rows[path] = row[:at] + plain  # the length of the name is not part of an entry
            continue
        row = row[:at] + bytes((high & 0xF0, 0)) + row[at + 2 :]
        if stage := high >> 4 & 3:
            index.unmerged.setdefault(path, {})[stage] = row
        else:
            flagged = True
            rows[path] = row
    if len(index) != len(pairs) or b"" in rows or b"" in index.unmerged:
        raise CorruptObject("read an index: a path is there twice, or empty")
    index.flagged = flagged


def _checksum(fmt: ObjectFormat, data: bytes) -> Oid:
    return hashlib.new(fmt.name, data, usedforsecurity=False).digest()
