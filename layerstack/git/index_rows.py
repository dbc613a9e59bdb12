"""Entries of git's index, kept as the bytes of their fixed part, so that 50,000 of them cost little.

A row is `<40 bytes: stat data and mode> <id> <flags> [extended flags]`, as version 3 of the index has it:
ctime, mtime (seconds, nanoseconds), device, inode, mode, uid, gid, size, each 32 bits. Source:
gitformat-index(5), read-cache.c of git.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from layerstack.git.object_format import Oid

Row = bytes

STAT = struct.Struct(">10I")
STAT_SIZE = STAT.size
MODE_AT = 24
"""Offset of the mode in a row, 4 bytes; the id follows at STAT_SIZE."""
ASSUME_VALID, EXTENDED, STAGE_MASK, NAME_MASK = 0x8000, 0x4000, 0x3000, 0x0FFF
SKIP_WORKTREE, INTENT_TO_ADD = 0x4000, 0x2000
_FLAGS, _MODE = struct.Struct(">H"), struct.Struct(">I")


class IndexEntry(NamedTuple):
    """One entry without its stat data: what `git ls-files --stage` shows, and the flags."""

    path: bytes
    mode: int
    oid: Oid
    stage: int = 0
    assume_valid: bool = False
    skip_worktree: bool = False
    intent_to_add: bool = False


class IndexStat(NamedTuple):
    """Stat data of an entry: the file as it was when git last saw it equal to the entry; 32 bits each."""

    ctime: int = 0
    ctime_ns: int = 0
    mtime: int = 0
    mtime_ns: int = 0
    device: int = 0
    inode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0


def row_of(entry: IndexEntry, stat: IndexStat | None = None) -> Row:
    """Make the row of an entry. Without stat data git reads the file at its next look."""
    s = stat or IndexStat()
    values = (s.ctime, s.ctime_ns, s.mtime, s.mtime_ns, s.device, s.inode, entry.mode, s.uid, s.gid, s.size)
    flags = (ASSUME_VALID if entry.assume_valid else 0) | entry.stage << 12
    more = (SKIP_WORKTREE if entry.skip_worktree else 0) | (INTENT_TO_ADD if entry.intent_to_add else 0)
    head = STAT.pack(*(value & 0xFFFFFFFF for value in values)) + entry.oid
    if more:
        return head + _FLAGS.pack(flags | EXTENDED) + _FLAGS.pack(more)
    return head + _FLAGS.pack(flags)


def mode_of(row: Row) -> int:
    return int(_MODE.unpack_from(row, MODE_AT)[0])


def oid_of_row(row: Row, size: int) -> Oid:
    """Give the id; `size` is that of the object format."""
    return row[STAT_SIZE : STAT_SIZE + size]


def flags_of(row: Row, size: int) -> tuple[int, int]:
    """Give the flags without the length of the name, and the extended flags."""
    flags = _FLAGS.unpack_from(row, STAT_SIZE + size)[0]
    more = _FLAGS.unpack_from(row, STAT_SIZE + size + 2)[0] if flags & EXTENDED else 0
    return flags & ~NAME_MASK, more


def entry_of(path: bytes, row: Row, size: int) -> IndexEntry:
    flags, more = flags_of(row, size)
    return IndexEntry(
        path,
        mode_of(row),
        oid_of_row(row, size),
        (flags & STAGE_MASK) >> 12,
        bool(flags & ASSUME_VALID),
        bool(more & SKIP_WORKTREE),
        bool(more & INTENT_TO_ADD),
    )


def stat_of(row: Row) -> IndexStat:
    c, c_ns, m, m_ns, device, inode, _, uid, gid, size = STAT.unpack_from(row)
    return IndexStat(c, c_ns, m, m_ns, device, inode, uid, gid, size)


def value_of(row: Row) -> bytes:
    """Give all but the stat data: mode, id, flags, as bytes to compare."""
    return row[MODE_AT : MODE_AT + 4] + row[STAT_SIZE:]


def with_stat(row: Row, stat: IndexStat) -> Row:
    """Replace the stat data; mode, id and flags stay."""
    values = (stat.ctime, stat.ctime_ns, stat.mtime, stat.mtime_ns, stat.device, stat.inode)
    return (
        STAT.pack(
            *(value & 0xFFFFFFFF for value in values),
            mode_of(row),
            *(value & 0xFFFFFFFF for value in (stat.uid, stat.gid, stat.size)),
        )
        + row[STAT_SIZE:]
    )
