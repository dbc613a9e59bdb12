"""Runs of an export stream: neighbouring small files and directories that are sent as one entry, since a
header costs more than the bytes of a small file.

The content of a run is a table, one row for each path in byte order, followed by the bytes of its files, one
after the other:

    <path> NUL <f or d> <mode, octal> <size> <mtime in ns> <SHA-256 of the content in hex, or -> LF

A file of a run has a single name (hard link), fewer than FILE_MAX bytes and no setuid or setgid bit. A
directory of a run is not opaque, and has neither size nor digest.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FILE_MAX = 1 << 15
SPECIAL_BITS = 0o6000

_ROW = re.compile(rb"([^\0]+)\0([fd]) ([0-7]{1,4}) ([0-9]{1,5}) (-?[0-9]{1,20}) ([0-9a-f]{64}|-)\n")
_TABLE = re.compile(
    rb"(?:[^\0]+\0(?:f [0-7]{1,4} [0-9]{1,5} -?[0-9]{1,20} [0-9a-f]{64}|d [0-7]{1,4} 0 -?[0-9]{1,20} -)\n)+"
)


class RunRow(NamedTuple):
    """A file or directory of a run."""

    path: bytes
    directory: bool
    mode: int
    size: int
    mtime_ns: int
    digest: bytes
    """SHA-256 in hex, `-` for a directory."""


def rows_of(table: bytes | memoryview) -> list[RunRow] | None:
    """Parse a table; None when the bytes are not one. Linear in its size."""
    raw = bytes(table)
    if _TABLE.fullmatch(raw) is None:
        return None
    return [
        RunRow(path, kind == b"d", int(mode, 8), int(size), int(ns), digest)
        for path, kind, mode, size, ns, digest in _ROW.findall(raw)
    ]
