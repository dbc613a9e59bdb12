"""Runs: neighbouring plain files and directories of an export that come as one entry, since a header of its own costs a small file more than its bytes.

The content of a run is a table, one row for each path in byte order, and then the bytes of its files one after the other:

    <path> NUL <f or d> <mode, octal> <size> <mtime in ns> <SHA-256 of the content in hex, or -> LF

A file of a run has one name, fewer than FILE_MAX bytes and no setuid or setgid bit; a directory is not opaque, and has no size and no digest.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from layerstack import stopping
from layerstack.index import Layer
from layerstack.index_file import unescaped
from layerstack.projection import Entry, Snapshot
from layerstack.tree import DiskTree

ROWS_MAX, BYTES_MAX, FILE_MAX = 1024, 1 << 18, 1 << 15
SPECIAL_BITS = 0o6000
ROW = re.compile(rb"([^\0]+)\0([fd]) ([0-7]{1,4}) ([0-9]{1,5}) (-?[0-9]{1,20}) ([0-9a-f]{64}|-)\n")
TABLE = re.compile(rb"(?:[^\0]+\0(?:f [0-7]{1,4} [0-9]{1,5} -?[0-9]{1,20} [0-9a-f]{64}|d [0-7]{1,4} 0 -?[0-9]{1,20} -)\n)+")

_LINE = re.compile(rb"([^\t\n]*)\t([flwd][qo]?)\t[0-7]+\t([0-9]+)\t([0-9a-f]+|-)\n")
_READ = 1 << 18

Decided = tuple[str, Entry | None, bool]
"""What `Snapshot.changed` gives."""
_Row = tuple[bytes, int, bytes, bytes, bytes]
"""Path, rank of its layer, mark, size, digest, as they stand in the layer's index."""


class Run(NamedTuple):
    """Entries that are sent together."""

    files: int
    directories: int
    table: bytes
    data: bytes


class Row(NamedTuple):
    """One of them."""

    path: bytes
    directory: bool
    mode: int
    size: int
    mtime_ns: int
    digest: bytes
    """In hex."""


def rows_of(table: bytes | memoryview) -> list[Row] | None:
    """The rows of a table; None: it is none."""
    raw = bytes(table)
    if TABLE.fullmatch(raw) is None:
        return None
    return [Row(path, kind == b"d", int(mode, 8), int(size), int(ns), digest) for path, kind, mode, size, ns, digest in ROW.findall(raw)]


class _Filling:
    """The run that is being filled."""

    def __init__(self) -> None:
        self.table: list[bytes] = []
        self.data: list[bytes] = []
        self.size = self.directories = 0

    def take(self) -> Run:
        run = Run(len(self.data), self.directories, b"".join(self.table), b"".join(self.data))
        self.__init__()  # type: ignore[misc]
        return run


def changed(version: Snapshot, root: str) -> Iterator[Decided | Run]:
    """As `Snapshot.changed` of a published version, with runs in the place of the entries that can be in one.

    Args:
        root: of the store: the index files are read from their start to their end.
    """
    chain = version.chain
    layers = chain.layers[:-1]
    filling = _Filling()
    roots = [_root(layer) for layer in layers]
    walks = [_rows(f"{root}/.layer-metadata/{layer.id}.index", rank) for rank, layer in enumerate(layers)]
    last: bytes | None = None
    above, shown_from = b"\0", 0  # a directory, and the lowest rank of a layer whose files in it are hidden
    for raw, rank, mark, size, digest in walks[0] if len(walks) == 1 else heapq.merge(*walks):
        if raw == last:
            continue  # an older layer
        last = raw
        if mark == b"f" and len(size) < 6 and digest != b"-" and (length := int(size)) < FILE_MAX:
            stopping.check()
            cut = raw.rfind(b"/")
            parent = raw[:cut] if cut > 0 else b""
            if parent != above:
                above, shown_from = parent, chain.hidden_from(os.fsdecode(parent))
            if rank < shown_from:
                row = _file(roots[rank] + raw, raw, length, digest)
                if row is not None:
                    filling.table.append(row[0])
                    filling.data.append(row[1])
                    filling.size += len(row[0]) + length
                    if filling.size >= BYTES_MAX or len(filling.table) >= ROWS_MAX:
                        yield filling.take()
                    continue
        decided = version.decided(os.fsdecode(raw))
        if decided is None:
            continue
        entry = decided[1]
        if entry is not None and entry.kind == "directory" and raw and not decided[2]:
            filling.table.append(b"%s\0d %o 0 %d -\n" % (raw, entry.mode & 0o7777, entry.mtime_ns))
            filling.directories += 1
            continue
        if filling.table:
            yield filling.take()
        yield decided
    if filling.table:
        yield filling.take()


def _root(layer: Layer) -> bytes:
    assert isinstance(layer.tree, DiskTree)
    return os.fsencode(layer.tree.root) + b"/"


def _file(place: bytes, path: bytes, size: int, digest: bytes) -> tuple[bytes, bytes] | None:
    """The row and the bytes of a file; None: it is none for a run, or not as its index says, and is looked at by itself."""
    fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        mode = status.st_mode
        if status.st_nlink != 1 or status.st_size != size or not stat.S_ISREG(mode) or mode & SPECIAL_BITS:
            return None
        data = os.read(fd, size) if size else b""
    finally:
        os.close(fd)
    if len(data) != size:
        return None
    return b"%s\0f %o %d %d %s\n" % (path, mode & 0o7777, size, status.st_mtime_ns, digest), data


def _rows(path: str, rank: int) -> Iterator[_Row]:
    """The lines of an index file. Memory: a piece of it."""
    with open(path, "rb", 0) as file:
        rest = file.read(_READ)
        rest = rest[rest.find(b"\n") + 1 :]
        while True:
            end = rest.rfind(b"\n") + 1
            lines: Sequence[tuple[Any, ...]] = _LINE.findall(rest, 0, end)
            for raw, mark, size, digest in lines:
                yield (unescaped(raw) if b"\\" in raw else raw), rank, mark, size, digest
            piece = file.read(_READ)
            if not piece:
                return
            rest = rest[end:] + piece
