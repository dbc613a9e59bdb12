"""Owners of lines as values, and the file in which a squashed layer stores them: for each path its owner, or
its ranges.

Up to SMALL paths the file is a JSON record. A larger file has lines in byte order of paths, of which writer
and reader have one in memory at a time:

    eos-blame 2 <count of paths> <SHA-256 of all lines below>
    <path, escaped as in an index> TAB <number of its owner, or [[count of lines, number], ...]>
    <JSON list of the owners>
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Mapping
from typing import IO, Any, NamedTuple

from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.layers.index_file import escaped, unescaped
from layerstack.layers.packed_index import SMALL, Packed

SUFFIX = ".blame"
LARGE_FORMAT = 2
_MAGIC = b"eos-blame"


class Range(NamedTuple):
    """Neighbouring lines of one owner."""

    start_line: int
    """Counted from 1."""
    line_count: int
    owner: str
    """The author as in the layer's metadata: `workspace_session:<id>`, `operation:<request_id>`; or
    `original`, `unknown`.
    """


Answer = tuple[Range, ...]
LayerBlame = Answer | str
"""The entry of a squashed layer for a path: the author of its text, or the owner of each line."""


def dump(ranges: dict[str, LayerBlame]) -> bytes:
    """Give the bytes of `<id>.blame`: owners by number; per path its owner, or [count, owner] for each
    range.
    """
    owners = sorted(
        {
            owner
            for entry in ranges.values()
            for owner in ([entry] if isinstance(entry, str) else [r.owner for r in entry])
        }
    )
    number = {owner: n for n, owner in enumerate(owners)}
    rows: dict[str, int | list[list[int]]] = {}
    for path, entry in sorted(ranges.items()):
        name = os.fsencode(path).decode("latin-1")
        rows[name] = (
            number[entry] if isinstance(entry, str) else [[r.line_count, number[r.owner]] for r in entry]
        )
    return records.dump({"owners": owners, "paths": rows})


def write_new(path: str, ranges: Iterable[tuple[str, LayerBlame]], *, aside: str) -> str:
    """Write the file at `path`, which must not exist, without waiting for the disk. Returns its SHA-256 in
    hex.

    Args:
        ranges: in byte order of paths.
        aside: a directory of the same file system, for an unnamed file.
    Raises:
        OSError.
    Memory: SMALL entries; the distinct owners.
    """
    rest = iter(ranges)
    few = dict(itertools.islice(rest, SMALL + 1))
    if len(few) <= SMALL:
        data = dump(few)
        fsync.write_new(path, data, sync=False)
        return hashlib.sha256(data).hexdigest()
    total, count, owners = hashlib.sha256(), 0, dict[str, int]()

    def number(owner: str) -> int:
        return owners.setdefault(owner, len(owners))

    with tempfile.TemporaryFile(dir=aside, buffering=1 << 18) as lines, open(path, "xb") as file:
        for name, entry in itertools.chain(few.items(), rest):
            value = (
                number(entry) if isinstance(entry, str) else [[r.line_count, number(r.owner)] for r in entry]
            )
            line = b"%s\t%s\n" % (escaped(name), _compact(value))
            total.update(line)
            lines.write(line)
            count += 1
        last = _compact(list(owners)) + b"\n"
        total.update(last)
        lines.write(last)
        lines.seek(0)
        file.write(_header(count, total.hexdigest()))
        shutil.copyfileobj(lines, file, 1 << 18)
        file.flush()
        fsync.begin_write_out(file.fileno())
    return checksum(path)


def checksum(path: str) -> str:
    """Give the SHA-256 of a whole file, in hex, which its layer's metadata names. Raises StoreCorrupt;
    OSError.
    """
    with records.reading(path) as file:
        total = hashlib.sha256()
        while piece := file.read(1 << 18):
            total.update(piece)
        return total.hexdigest()


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _header(count: int, total: str) -> bytes:
    return b"%s %d %d %s\n" % (_MAGIC, LARGE_FORMAT, count, total.encode())


class _Entries(Packed[LayerBlame]):
    """Entries of many paths; equal ones are stored once."""

    def __init__(self) -> None:
        self.entries: list[LayerBlame] = []
        super().__init__(self.entries, array("I"))


def load(path: str) -> Mapping[str, LayerBlame]:
    """Load what `write_new` wrote, packed if it is large. Raises StoreCorrupt, naming the file; OSError."""
    try:
        with records.reading(path) as file:
            header = file.readline()
            if header.startswith(_MAGIC + b" "):
                return _load_large(header, file, path)
    except FileNotFoundError:
        raise StoreCorrupt(f"{path}: missing", details={"file": path}) from None
    body = records.read(path)
    if not isinstance(body.get("owners"), list) or not isinstance(body.get("paths"), dict):
        raise StoreCorrupt(f"{path}: is not a record of owners", details={"file": path})
    owners: list[str] = body["owners"]
    found: dict[str, LayerBlame] = {}
    for name, rows in body["paths"].items():
        found[os.fsdecode(name.encode("latin-1"))] = _entry(rows, owners)
    return found


def _entry(rows: Any, owners: list[str]) -> LayerBlame:
    if isinstance(rows, int):
        return owners[rows]
    at, ranges = 1, list[Range]()
    for count, owner in rows:
        ranges.append(Range(at, count, owners[owner]))
        at += count
    return tuple(ranges)


def _load_large(header: bytes, file: IO[bytes], path: str) -> Mapping[str, LayerBlame]:
    def wrong(what: str) -> StoreCorrupt:
        return StoreCorrupt(f"{path}: {what}", details={"file": path})

    words = header.split(b" ")
    count = int(words[2]) if len(words) == 4 and words[2].isdigit() else -1
    total, found, numbers = hashlib.sha256(), _Entries(), dict[bytes, int]()
    before: bytes | None = None
    for _ in range(count):
        line = file.readline()
        total.update(line)
        raw, _, mark = line.partition(b"\t")
        here = unescaped(raw)
        if not mark.endswith(b"\n") or (before is not None and here <= before):
            raise wrong("a line is malformed or out of order")
        found.append(here, numbers.setdefault(mark, len(numbers)))
        before = here
    last = file.read()
    total.update(last)
    if _header(count, total.hexdigest()) != header:
        raise wrong(
            f"the header is not that of format {LARGE_FORMAT} for {count} lines, or the checksum does "
            f"not match"
        )
    try:
        owners: list[str] = json.loads(last)
    except ValueError:  # the count is too small
        raise wrong("the last line is not a list of owners") from None
    found.entries.extend(_entry(json.loads(mark), owners) for mark in numbers)
    return found
