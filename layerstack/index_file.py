"""Make the index of a tree, and keep it in a file: one line per path in byte order, so that one path is found by bisection.

    eos-index 2 <count of lines> <SHA-256 of all lines>
    <path> TAB <kind>[q|o] TAB <mode, octal> TAB <size> TAB <digest of the content or ->

Digests are those of `layerstack.content`; format 1 has the SHA-256 of the bytes of every file, which differs for those with 64 KiB of zeros. In a path `\\\\`, `\\t` and `\\n` stand for backslash, TAB and LF. Kinds are f, l, d, w; q is a mere container, o opaque.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from layerstack.chain import Chain
from layerstack.content import BLOCK
from layerstack.errors import StoreCorrupt
from layerstack.index import Index, Record, record
from layerstack.paths import byte_order, join
from layerstack.states import DIRECTORY, FILE, LINK, WHITEOUT, equal
from layerstack.tree import Tree

PLAIN_FORMAT, FORMAT = 1, 2
_MAGIC = b"eos-index"
_LINE = re.compile("([^\t]*)\t([^\t]*)\t[^\n]*\n")
_MARKS = {
    kind + flag: record(kind, quiet=flag == "q", opaque=flag == "o")
    for kind in (FILE, LINK, DIRECTORY, WHITEOUT)
    for flag in ("", "q", "o")
}


class Row(NamedTuple):
    """A line of the file."""

    path: str
    record: Record
    mode: int
    size: int
    digest: bytes | None
    """Of a file's content, or the SHA-256 of a symlink's target."""


class Indexed(NamedTuple):
    """The index of a tree with what is written beside it."""

    records: Index
    rows: tuple[Row, ...]
    """In byte order of paths."""
    digest: str
    """SHA-256 in hex over path, kind, opaque mark, mode, owner, xattrs and content of each entry; times are no part of it."""
    size_bytes: int
    """Of regular files, several names of one file once."""
    allocated_bytes: int

    @property
    def changed(self) -> list[str]:
        """The paths that say something, in byte order."""
        return [row.path for row in self.rows if not row.record.quiet]


def build(
    tree: Tree,
    below: Chain | None,
    *,
    known: Mapping[tuple[int, int], bytes] | None = None,
    digests: Mapping[str, bytes] | None = None,
    hashes: bool = True,
    leaving: bool = False,
) -> Indexed:
    """The index of a sealed tree that stands on the chain `below`. Reads each file once, unless `known` has the digest of its inode.

    Args:
        digests: of files by path, as far as they are known.
        hashes: False leaves out digests and sizes: enough to plan.
        leaving: what is read will be synced soon: the device may begin.
    """
    rows: list[Row] = []
    lines: list[tuple[bytes, bytes]] = []
    sizes, counted = [0, 0], set[tuple[int, int]]()
    known, digests = known or {}, digests or {}

    def note(path: str, rec: Record, mode: int, size: int, digest: bytes | None, rest: bytes) -> None:
        rows.append(Row(path, rec, mode, size, digest))
        if hashes:
            lines.append((byte_order(path), rest))

    def attributes(meta: tuple[int, int, int], xattrs: Mapping[str, bytes]) -> bytes:
        return repr((meta, sorted(xattrs.items()))).encode()

    def visit(path: str, cut: bool) -> None:
        """`cut`: nothing of `below` shows here."""
        state, opaque = tree.state(path), tree.opaque(path)
        under = below.find(path) if below is not None and not (opaque or cut) else None
        quiet = under is not None and under.kind == DIRECTORY and equal(under, state)
        note(
            path,
            record(DIRECTORY, quiet=quiet, opaque=opaque),
            state.meta[0],
            0,
            None,
            (b"o" if opaque else b"d") + attributes(state.meta, state.xattrs) if hashes else b"",
        )
        inside = under is None or under.kind != DIRECTORY
        for name, kind in tree.scan(path):
            child = join(path, name)
            if kind == DIRECTORY:
                visit(child, inside)
            elif kind == WHITEOUT or not hashes:
                note(child, record(kind), 0, 0, None, b"w")
            else:
                found = tree.state(child)
                if kind == LINK:
                    digest = hashlib.sha256(os.fsencode(found.target)).digest()
                else:
                    digest = known.get(found.inode) or digests.get(child) or found.digest(leaving=leaving)
                    if found.inode not in counted:
                        counted.add(found.inode)
                        sizes[0] += found.size
                        sizes[1] += found.allocated
                note(child, record(kind), found.meta[0], found.size, digest, kind.encode() + digest + attributes(found.meta, found.xattrs))

    visit("", False)
    rows.sort(key=lambda row: byte_order(row.path))
    total = hashlib.sha256()
    for raw, rest in sorted(lines):
        total.update(b"%d:%s%d:%s" % (len(raw), raw, len(rest), rest))
    return Indexed({row.path: row.record for row in rows}, tuple(rows), total.hexdigest(), sizes[0], sizes[1])


def known_digests(tree: Tree, indexed: Indexed) -> dict[tuple[int, int], bytes]:
    """Digest by inode, for a clone of `tree` that shares its files."""
    return {tree.state(row.path).inode: row.digest for row in indexed.rows if row.digest is not None and row.record.kind == FILE}


# ---- the file --------------------------------------------------------------------------------------------------------------------

_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"))


def _escape(path: str) -> bytes:
    raw = os.fsencode(path)
    for plain, escaped in _ESCAPES:
        if plain in raw:
            raw = raw.replace(plain, escaped)
    return raw


def unescaped(raw: bytes) -> bytes:
    """The bytes of a path as it stands in a line."""
    if b"\\" in raw:
        parts = raw.split(b"\\\\")
        raw = b"\\".join([part.replace(b"\\t", b"\t").replace(b"\\n", b"\n") for part in parts])
    return raw


def _unescape(raw: bytes) -> str:
    return os.fsdecode(unescaped(raw))


def dump(indexed: Indexed) -> bytes:
    """The bytes of the index file."""
    lines: list[bytes] = []
    for path, rec, mode, size, digest in indexed.rows:
        flag = "q" if rec.quiet else "o" if rec.opaque else ""
        lines.append(_escape(path) + f"\t{rec.kind}{flag}\t{mode:o}\t{size}\t{digest.hex() if digest else '-'}\n".encode())
    body = b"".join(lines)
    return b"%s %d %d %s\n%s" % (_MAGIC, FORMAT, len(lines), hashlib.sha256(body).hexdigest().encode(), body)


def checksum(data: bytes) -> str:
    """Of an index file, as its header has it; its layer's metadata names it, so that no layer takes another's."""
    return data[: data.find(b"\n")].rpartition(b" ")[2].decode("ascii", "replace")


def _corrupt(source: str, what: str) -> StoreCorrupt:
    return StoreCorrupt(f"{source}: {what}", details={"file": source})


def format_of(word: bytes, source: str) -> int:
    """The format that a header names. Raises StoreCorrupt, naming `source`, for one that is not known."""
    for known in (FORMAT, PLAIN_FORMAT):
        if word == b"%d" % known:
            return known
    raise _corrupt(source, f"format {word.decode('ascii', 'replace')} is not known, {PLAIN_FORMAT} and {FORMAT} are")


def _body(data: bytes, source: str) -> tuple[bytes, bytes]:
    """All lines, and how many the header says there are."""
    header, _, body = data.partition(b"\n")
    words = header.split(b" ")
    if len(words) != 4 or words[0] != _MAGIC:
        raise _corrupt(source, "not an index")
    format_of(words[1], source)
    if hashlib.sha256(body).hexdigest().encode() != words[3]:
        raise _corrupt(source, "the checksum does not match its content")
    return body, words[2]


def load(data: bytes, *, source: str) -> dict[str, Record]:
    """path -> record, as `dump` wrote it. Raises StoreCorrupt naming `source` for anything else. Cost: 0.6 us a line."""
    body, count = _body(data, source)
    lines = _LINE.findall(os.fsdecode(body))
    try:
        found = {path: _MARKS[mark] for path, mark in lines}
    except KeyError as error:
        raise _corrupt(source, f"a line is marked {error.args[0]!r}") from None
    if b"\\" in body:
        found = {_unescape(os.fsencode(path)) if "\\" in path else path: rec for path, rec in found.items()}
    if b"%d" % len(found) != count:
        raise _corrupt(source, f"{len(found)} paths, the header says {count.decode('ascii', 'replace')}")
    return found


def load_digests(data: bytes, *, source: str) -> dict[str, bytes]:
    """The digest of each file, by path; of format 1 only those that are the same in both. Raises StoreCorrupt as `load`."""
    found: dict[str, bytes] = {}
    body = _body(data, source)[0]
    plain = data.startswith(b"%s %d " % (_MAGIC, PLAIN_FORMAT))
    for line in body.split(b"\n")[:-1]:
        path, mark, _, size, digest = line.split(b"\t")
        if mark == FILE.encode() and digest != b"-" and not (plain and int(size) >= BLOCK):
            found[_unescape(path)] = bytes.fromhex(digest.decode())
    return found


def row_of(line: bytes) -> Row:
    """A line of the file, without its end. Raises ValueError or KeyError for one that `dump` did not write."""
    path, mark, mode, size, digest = line.split(b"\t")
    return Row(_unescape(path), _MARKS[mark.decode()], int(mode, 8), int(size), None if digest == b"-" else bytes.fromhex(digest.decode()))


def look_up(file: str, path: str) -> Row | None:
    """One path of an index file, by bisection: O(log size) reads of a line, and no checksum of the whole."""
    wanted = byte_order(path)
    with open(file, "rb") as f:
        f.readline()
        low, high = f.tell(), os.fstat(f.fileno()).st_size
        while low < high:
            f.seek((low + high) // 2)
            if f.tell() > low:
                f.readline()  # into the next whole line
            if f.tell() >= high:
                f.seek(low)
            at = f.tell()
            row = row_of(f.readline().rstrip(b"\n"))
            here = byte_order(row.path)
            if here == wanted:
                return row
            if here < wanted:
                low = f.tell()
            else:
                high = at
    return None
