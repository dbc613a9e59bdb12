"""Collect neighbouring small files and directories of an export into runs (`run_table`), from the indexes of
the layers.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from layerstack.export.ignored import IgnoredPaths
from layerstack.layers.index import Layer
from layerstack.layers.index_file import unescaped
from layerstack.layers.snapshot import Entry, Snapshot
from layerstack.model import cancel
from layerstack.model.run_table import FILE_MAX, SPECIAL_BITS
from layerstack.tree.disk import DiskTree

ROWS_MAX, BYTES_MAX = 1024, 1 << 18

_LINE = re.compile(rb"([^\t\n]*)\t([flwd][qo]?)\t[0-7]+\t([0-9]+)\t([0-9a-f]+|-)\n")
_READ = 1 << 18

Decided = tuple[str, Entry | None, bool]
"""An item of `Snapshot.changed`."""
_Row = tuple[bytes, int, bytes, bytes, bytes]
"""Path, rank of its layer, kind, size, digest, as in the layer's index."""


class FileRun(NamedTuple):
    """Entries that are sent as one entry."""

    files: int
    directories: int
    table: bytes
    data: bytes


class _Filling:
    """The run that is being filled."""

    def __init__(self) -> None:
        self.table: list[bytes] = []
        self.data: list[bytes] = []
        self.size = self.directories = 0

    def run(self) -> FileRun:
        return FileRun(len(self.data), self.directories, b"".join(self.table), b"".join(self.data))


def changed(version: Snapshot, root: str, ignored: IgnoredPaths | None = None) -> Iterator[Decided | FileRun]:
    """Give `Snapshot.changed` of a published version with runs in place of the entries that a run can
    contain.

    Args:
        root: of the store, whose index files are read from start to end.
        ignored: counts ignored paths, and decides whether they are left out.
    """
    chain = version.chain
    layers = chain.layers[:-1]
    filling = _Filling()
    roots = [_root(layer) for layer in layers]
    walks = [_rows(f"{root}/.layer-metadata/{layer.id}.index", rank) for rank, layer in enumerate(layers)]
    last: bytes | None = None
    hits: Callable[[bytes], bool] = bool  # replaced at the first directory
    above, shown_from = b"\0", 0  # a directory, and the lowest rank of a layer whose files in it are hidden
    for raw, rank, mark, size, digest in walks[0] if len(walks) == 1 else heapq.merge(*walks):
        if raw == last:
            continue  # an older layer
        last = raw
        if mark == b"f" and len(size) < 6 and digest != b"-" and (length := int(size)) < FILE_MAX:
            cancel.check()
            cut = raw.rfind(b"/")
            parent = raw[:cut] if cut > 0 else b""
            if parent != above:
                above, shown_from = parent, chain.hidden_from(os.fsdecode(parent))
                if ignored is not None:
                    hits = ignored.files_in(os.fsdecode(parent))
            if rank < shown_from:
                hit = ignored is not None and hits(raw)
                if hit and ignored is not None and not ignored.sends:
                    ignored.count(length)
                    continue
                row = _file(roots[rank] + raw, raw, length, digest)
                if row is not None:
                    if hit and ignored is not None:
                        ignored.count(length)
                    filling.table.append(row[0])
                    filling.data.append(row[1])
                    filling.size += len(row[0]) + length
                    if filling.size >= BYTES_MAX or len(filling.table) >= ROWS_MAX:
                        yield filling.run()
                        filling = _Filling()
                    continue
        decided = version.decided(os.fsdecode(raw))
        if decided is None:
            continue
        if ignored is not None and ignored.leaves_out(decided, was_directory=was_directory(version, decided)):
            continue
        entry = decided[1]
        if entry is not None and entry.kind == "directory" and raw and not decided[2]:
            filling.table.append(b"%s\0d %o 0 %d -\n" % (raw, entry.mode & 0o7777, entry.mtime_ns))
            filling.directories += 1
            continue
        if filling.table:
            yield filling.run()
            filling = _Filling()
        yield decided
    if filling.table:
        yield filling.run()


def was_directory(version: Snapshot, item: Decided) -> bool:
    """Test that a deleted path is a directory of the base."""
    was = version.in_base(item[0]) if item[1] is None else None
    return was is not None and was.kind == "directory"


def _root(layer: Layer) -> bytes:
    assert isinstance(layer.tree, DiskTree)
    return os.fsencode(layer.tree.root) + b"/"


def _file(place: bytes, path: bytes, size: int, digest: bytes) -> tuple[bytes, bytes] | None:
    """Make the row and read the bytes of a file. None: the file is sent by itself, since a run cannot contain
    it or it differs from its index.
    """
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
    """Read the lines of an index file. Memory: a piece of it."""
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
