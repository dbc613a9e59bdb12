"""Make the index of a tree, and store it in a file: one line per path in byte order, so that a path is found
by bisection.

    eos-index 2 <count of lines> <SHA-256 of all lines>
    <path> TAB <kind>[q|o] TAB <mode, octal> TAB <size> TAB <digest of the content or ->

Digests are those of `layerstack.kernel.content`; format 1 has the SHA-256 of the bytes of every file, which
differs for files with 64 KiB of zeros. In a path `\\\\`, `\\t` and `\\n` stand for backslash, TAB and LF.
Kinds are f, l, d, w; q is an unchanged container, o an opaque directory; a file with q has the content and
attributes of the file below, and is there for its time alone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync, records, unnamed_files
from layerstack.layers.chain import Chain
from layerstack.layers.index_record import Index, IndexRecord, record
from layerstack.layers.packed_index import SMALL, PackedIndex
from layerstack.model import cancel
from layerstack.model.paths import byte_order, join
from layerstack.tree.disk import Children, DirectoryEntry, DiskTree, Tree
from layerstack.tree.state import DIRECTORY, FILE, LINK, WHITEOUT, State, equal

PLAIN_FORMAT, FORMAT = 1, 2
_MAGIC = b"eos-index"
_LINE = re.compile("([^\t]*)\t([^\t]*)\t[^\n]*\n")
_MARKS = {
    kind + flag: record(kind, quiet=flag == "q", opaque=flag == "o")
    for kind in (FILE, LINK, DIRECTORY, WHITEOUT)
    for flag in ("", "q", "o")
}


class IndexRow(NamedTuple):
    """A line of the file."""

    path: str
    record: IndexRecord
    mode: int
    size: int
    digest: bytes | None
    """The digest of a file's content, or the SHA-256 of a symlink's target."""
    mtime_ns: int = 0
    """The time of the file whose digest was computed. Not stored: 0 in a row that was read from a file."""


class Indexed(NamedTuple):
    """The index of a tree with the data written beside it. Of a large tree only the packed paths are in
    memory.
    """

    records: Index
    rows: Collection[IndexRow]
    """Rows in byte order of paths; may be iterated any number of times."""
    digest: str
    """SHA-256 in hex over path, kind, opacity, mode, owner, xattrs and content of each entry, not over
    times.
    """
    size_bytes: int
    """Bytes of regular files; several names of one file count once."""
    allocated_bytes: int
    changes: int = 0
    """Number of paths that are a change."""

    @property
    def changed(self) -> list[str]:
        """The paths that are a change, in byte order."""
        return [row.path for row in self.rows if not row.record.quiet]

    def files(self) -> Iterator[str]:
        """The paths of its regular files."""
        return (row.path for row in self.rows if row.record.kind == FILE)

    def folders(self) -> Iterator[str]:
        """The paths of its directories."""
        return (row.path for row in self.rows if row.record.kind == DIRECTORY)


class _PackedRows(Collection[IndexRow]):
    """Rows of a large tree, without sizes and digests."""

    def __init__(self, index: PackedIndex) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, row: object) -> bool:
        return isinstance(row, IndexRow) and self._index.get(row.path) == row.record

    def __iter__(self) -> Iterator[IndexRow]:
        for path, rec in self._index.items():
            yield IndexRow(path, rec, 0, 0, None)


class _SpilledRows(Collection[IndexRow]):
    """Rows of a large tree: the lines of its index file, in an unnamed file. Valid until the end of the scope
    of `unnamed_files` in which it was made.
    """

    def __init__(self, folder: str | None) -> None:
        self._file = unnamed_files.new_file(folder)
        self._total = hashlib.sha256()
        self._count = 0

    def add(self, row: IndexRow) -> None:
        """Append. Raises OSError."""
        line = _line(row)
        self._total.update(line)
        self._file.write(line)
        self._count += 1

    def header(self) -> bytes:
        """The first line of the index file."""
        self._file.flush()
        return _header(self._count, self._total.hexdigest())

    def copy_to(self, fd: int) -> None:
        """Append its lines to a new file. Raises OSError."""
        self._file.flush()
        at, size = 0, os.fstat(self._file.fileno()).st_size
        while at < size:
            sent = os.sendfile(fd, self._file.fileno(), at, size - at)
            if not sent:
                raise OSError(errno.EIO, "the rows of an index were cut short")
            at += sent

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row: object) -> bool:
        return any(row == each for each in self)

    def __iter__(self) -> Iterator[IndexRow]:
        self._file.flush()
        fd, at, rest = self._file.fileno(), 0, b""
        while piece := os.pread(fd, 1 << 18, at):
            at += len(piece)
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            yield from map(row_of, lines)


class _Writer:
    """Collect entries in byte order of paths: a few as rows, many packed."""

    def __init__(self, folder: str | None, *, hashes: bool) -> None:
        self._folder, self._hashes = folder, hashes
        self._rows: list[IndexRow] = []
        self._packed: PackedIndex | None = None
        self._spilled: _SpilledRows | None = None
        self._total = hashlib.sha256()
        self._changes = 0

    def add(self, row: IndexRow, rest: bytes) -> None:
        """Add a row. `rest`: bytes that the digest of the tree includes beside the path."""
        if self._hashes:
            raw = byte_order(row.path)
            self._total.update(b"%d:%s%d:%s" % (len(raw), raw, len(rest), rest))
        if self._packed is not None:
            self._changes += not row.record.quiet
            self._pack(row)
            return
        rows = self._rows
        rows.append(row)
        if len(rows) > SMALL:
            self._changes = sum(not each.record.quiet for each in rows)
            self._packed = PackedIndex()
            self._spilled = _SpilledRows(self._folder) if self._hashes else None
            for each in self._rows:
                self._pack(each)
            self._rows = []

    def _pack(self, row: IndexRow) -> None:
        assert self._packed is not None
        self._packed.add(byte_order(row.path), row.record)
        if self._spilled is not None:
            self._spilled.add(row)

    def done(self, sizes: Sequence[int]) -> Indexed:
        digest = self._total.hexdigest()
        if self._packed is None:
            rows = tuple(self._rows)
            changes = len(rows) - sum([row.record.quiet for row in rows])
            return Indexed({row.path: row.record for row in rows}, rows, digest, sizes[0], sizes[1], changes)
        large = _PackedRows(self._packed) if self._spilled is None else self._spilled
        return Indexed(self._packed, large, digest, sizes[0], sizes[1], self._changes)


Known = Callable[[str, State], "bytes | None"]
"""(path, state of a file there) -> its digest, or None where it must be read; called in byte order of
paths.
"""


def build(
    tree: Tree,
    below: Chain | None,
    *,
    known: Known | None = None,
    hashes: bool = True,
    leaving: bool = False,
    touched: Callable[[str], bool] | None = None,
) -> Indexed:
    """Make the index of a captured tree on the chain `below`. Reads each file once, unless `known` has its
    digest.

    Args:
        hashes: False leaves out digests and sizes, which a plan does not need.
        leaving: start writing the files out, since they will be synced soon.
        touched: True for a file that is there for its time alone (`Captured.touched`). Such a file is listed,
            and is not a change.
    Raises:
        OSError; Stopped, at any entry.
    Memory: the names of the widest directory, and the packed paths; rows of a large tree are in an unnamed
    file in the tree's `aside`.
    """
    out = _Writer(tree.aside if isinstance(tree, DiskTree) and tree.aside else None, hashes=hashes)
    sizes, counted = [0, 0], set[int]()  # inode numbers: a tree is on one file system

    def attributes(meta: tuple[int, int, int], xattrs: Mapping[str, bytes]) -> bytes:
        return repr((meta, sorted(xattrs.items()))).encode()

    def directory(path: str, cut: bool) -> bool:
        """Add a directory. `cut`: nothing of `below` is visible here. Returns True when nothing of `below` is
        visible in the directory either.
        """
        state, opaque = tree.state(path), tree.opaque(path)
        under = below.find(path) if below is not None and not (opaque or cut) else None
        quiet = under is not None and under.kind == DIRECTORY and equal(under, state)
        rest = (b"o" if opaque else b"d") + attributes(state.meta, state.xattrs) if hashes else b""
        out.add(
            IndexRow(
                path, record(DIRECTORY, quiet=quiet, opaque=opaque), state.meta[0], 0, None, state.times[1]
            ),
            rest,
        )
        return under is None or under.kind != DIRECTORY

    def leaf(path: str, kind: str) -> None:
        mark = record(kind, quiet=touched is not None and kind == FILE and touched(path))
        if kind == WHITEOUT or not hashes:
            out.add(IndexRow(path, mark, 0, 0, None), b"w")
            return
        found = tree.state(path)
        if kind == LINK:
            digest = hashlib.sha256(os.fsencode(found.target)).digest()
        else:
            digest = (known(path, found) if known is not None else None) or found.digest(leaving=leaving)
        if kind == FILE and (found.links <= 1 or found.inode[1] not in counted):
            if found.links > 1:
                counted.add(found.inode[1])
            sizes[0] += found.size
            sizes[1] += found.allocated
        rest = kind.encode() + digest + attributes(found.meta, found.xattrs)
        out.add(IndexRow(path, mark, found.meta[0], found.size, digest, found.times[1]), rest)

    def contents(path: str, cut: bool) -> Iterator[tuple[str, bool]]:
        """Give each directory in `path` where its content sorts: `d` comes before `d-`, and `d/x` after
        it.
        """
        waiting: list[tuple[bytes, str, bool]] = []
        for name, kind in _in_byte_order(tree.scan(path)):
            cancel.check()
            if waiting:
                raw = byte_order(name)
                while waiting and waiting[-1][0] < raw:
                    yield waiting.pop()[1:]
            child = join(path, name)
            if kind == DIRECTORY:
                waiting.append((byte_order(name) + b"/", child, directory(child, cut)))
            else:
                leaf(child, kind)
        while waiting:
            yield waiting.pop()[1:]

    open_now = [contents("", directory("", False))]
    while open_now:
        inner = next(open_now[-1], None)
        if inner is None:
            open_now.pop()
        else:
            open_now.append(contents(*inner))
    return out.done(sizes)


def _in_byte_order(children: Sequence[DirectoryEntry]) -> Iterable[DirectoryEntry]:
    """Sort entries that are in order of their text, which differs only where a name is not UTF-8."""
    if isinstance(children, Children) or all(name.isascii() for name, _ in children):
        return children
    return sorted(children, key=lambda child: byte_order(child.name))


def known_digests(tree: Tree, indexed: Indexed) -> Known:
    """Give the digests of files that a clone of `tree` shares with it, at the same paths. Memory: none; each
    path may be queried once, in byte order.
    """
    rows = iter(indexed.rows)
    here: list[IndexRow | None] = [next(rows, None)]

    def known(path: str, state: State) -> bytes | None:
        wanted = byte_order(path)
        while (row := here[0]) is not None and byte_order(row.path) < wanted:
            here[0] = next(rows, None)
        if row is None or row.path != path or row.digest is None or row.record.kind != FILE:
            return None
        return row.digest if tree.state(path).inode == state.inode else None

    return known


# ---- the file ------------------------------------------------------------------------------

_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"))


def escaped(path: str) -> bytes:
    """Escape a path as in a line of the file."""
    raw = os.fsencode(path)
    for plain, escaped in _ESCAPES:
        if plain in raw:
            raw = raw.replace(plain, escaped)
    return raw


def unescaped(raw: bytes) -> bytes:
    """Give the bytes of a path that is escaped as in a line."""
    if b"\\" in raw:
        parts = raw.split(b"\\\\")
        raw = b"\\".join([part.replace(b"\\t", b"\t").replace(b"\\n", b"\n") for part in parts])
    return raw


def _unescape(raw: bytes) -> str:
    return os.fsdecode(unescaped(raw))


def _line(row: IndexRow) -> bytes:
    path, rec, mode, size, digest, _ = row
    flag = "q" if rec.quiet else "o" if rec.opaque else ""
    return (
        escaped(path) + f"\t{rec.kind}{flag}\t{mode:o}\t{size}\t{digest.hex() if digest else '-'}\n".encode()
    )


def _header(count: int, total: str) -> bytes:
    return b"%s %d %d %s\n" % (_MAGIC, FORMAT, count, total.encode())


def dump(indexed: Indexed) -> bytes:
    """The bytes of the index file."""
    lines = [_line(row) for row in indexed.rows]
    body = b"".join(lines)
    return _header(len(lines), hashlib.sha256(body).hexdigest()) + body


def write_new(path: str, indexed: Indexed) -> str:
    """Write the index file at `path`, which must not exist, without waiting for the disk. Returns its
    `checksum`. Raises OSError.
    """
    if not isinstance(indexed.rows, _SpilledRows):
        data = dump(indexed)
        fsync.write_new(path, data, sync=False)
        return checksum(data)
    header = indexed.rows.header()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, header)
        indexed.rows.copy_to(fd)
        fsync.begin_write_out(fd)
    finally:
        os.close(fd)
    return checksum(header)


def checksum(data: bytes) -> str:
    """Give the checksum in the header of an index file; the layer's metadata names it, so that the index of
    another layer is recognised.
    """
    return data[: data.find(b"\n")].rpartition(b" ")[2].decode("ascii", "replace")


def _corrupt(source: str, what: str) -> StoreCorrupt:
    return StoreCorrupt(f"{source}: {what}", details={"file": source})


def format_of(word: bytes, source: str) -> int:
    """Give the format that a header names. Raises StoreCorrupt, naming `source`, for an unknown one."""
    for known in (FORMAT, PLAIN_FORMAT):
        if word == b"%d" % known:
            return known
    raise _corrupt(
        source,
        f"format {word.decode('ascii', 'replace')} is unknown; known formats are {PLAIN_FORMAT} and {FORMAT}",
    )


def _body(data: bytes, source: str) -> tuple[bytes, bytes]:
    """Check the header. Returns all lines, and their number in the header."""
    header, _, body = data.partition(b"\n")
    words = header.split(b" ")
    if len(words) != 4 or words[0] != _MAGIC:
        raise _corrupt(source, "not an index")
    format_of(words[1], source)
    if hashlib.sha256(body).hexdigest().encode() != words[3]:
        raise _corrupt(source, "the checksum does not match its content")
    return body, words[2]


def load(data: bytes, *, source: str) -> dict[str, IndexRecord]:
    """Parse what `dump` wrote: path -> record. Raises StoreCorrupt, naming `source`, for anything else. Cost:
    0.6 us per line.
    """
    body, count = _body(data, source)
    lines = _LINE.findall(os.fsdecode(body))
    try:
        found = {path: _MARKS[mark] for path, mark in lines}
    except KeyError as error:
        raise _corrupt(source, f"a line has the unknown kind {error.args[0]!r}") from None
    if b"\\" in body:
        found = {_unescape(os.fsencode(path)) if "\\" in path else path: rec for path, rec in found.items()}
    if b"%d" % len(found) != count:
        raise _corrupt(source, f"has {len(found)} paths, its header says {count.decode('ascii', 'replace')}")
    return found


def load_file(path: str) -> tuple[Index, str]:
    """Read the index in a file, packed if it is large, and its checksum. Raises StoreCorrupt as `load`;
    OSError.
    """
    with records.reading(path) as file:
        header = file.readline()
        words = header.split(b" ")
        if len(words) != 4 or not words[2].isdigit() or int(words[2]) <= SMALL:
            data = header + file.read()
            return load(data, source=path), checksum(data)
        if words[0] != _MAGIC:
            raise _corrupt(path, "not an index")
        format_of(words[1], path)
        total, found, count, last = hashlib.sha256(), PackedIndex(), 0, b""
        for line in file:
            total.update(line)
            raw, _, rest = line.partition(b"\t")
            mark = _MARKS.get(rest[: rest.find(b"\t")].decode("ascii", "replace"))
            here = unescaped(raw)
            if mark is None or not line.endswith(b"\n") or (here <= last and count):
                raise _corrupt(path, f"line {count + 2} is not a line of an index, or out of order")
            found.add(here, mark)
            count, last = count + 1, here
    if total.hexdigest().encode() != words[3].rstrip(b"\n"):
        raise _corrupt(path, "the checksum does not match its content")
    if count != int(words[2]):
        raise _corrupt(path, f"has {count} paths, its header says {int(words[2])}")
    return found, checksum(header)


def row_of(line: bytes) -> IndexRow:
    """Parse a line of the file, without its newline. Raises ValueError or KeyError for one that `dump` did
    not write.
    """
    path, mark, mode, size, digest = line.split(b"\t")
    return IndexRow(
        _unescape(path),
        _MARKS[mark.decode()],
        int(mode, 8),
        int(size),
        None if digest == b"-" else bytes.fromhex(digest.decode()),
    )
