"""POSIX tar headers with pax records, as bytes: encoded the same way by every Python, decoded strictly. Pure.

Names are bytes. A name that fits is in the header; any other is in a `path` record, with `hdrcharset=BINARY`
unless it is UTF-8. Whiteouts and opaque directories, for which tar has no type, are a pax record
(`EOS.kind`): no file name is reserved. Source: POSIX.1-2017, pax, "ustar Interchange Format", "pax Extended
Header".
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

BLOCK = 512
ZERO = bytes(BLOCK)
_RECORDS_NAME = b"././@PaxHeader"
END = ZERO * 2

FILE = b"0"
HARD_LINK = b"1"
SYMLINK = b"2"
DIRECTORY = b"5"
_EXTENDED = b"x"

KIND = b"EOS.kind"
WHITEOUT = b"whiteout"
OPAQUE = b"opaque"
BASE = b"base"
RUN = b"run"
IGNORED = b"ignored"
RUN_OF = b"EOS.run"
OF_BASE = b"EOS.base"
SHA256 = b"EOS.sha256"
EARLIER = b"EOS.earlier"
SPARSE = b"EOS.sparse"
OUTPUT = b"EOS.output"
XATTR = b"SCHILY.xattr."

MAX_RECORDS = 1 << 20
"""Bytes of pax records that one entry may have: two paths and its extended attributes."""

_MAX_OCTAL_11 = 0o77777777777
_BILLION = 1_000_000_000


class Malformed(ValueError):
    """Bytes that are not a header that `encode` would write."""


class Header(NamedTuple):
    """One entry without its content. `size` bytes of content follow, padded to whole blocks; only a file has
    any.
    """

    path: bytes
    type: bytes
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    target: bytes = b""
    kind: bytes = b""
    """`whiteout`, `base` or `ignored` on an empty file, `opaque` on a directory, `run` on several entries in
    one file, else empty.
    """
    xattrs: Mapping[bytes, bytes] = {}
    sha256: bytes = b""
    """The digest of a file's content, 64 hex digits; may be empty."""
    earlier: bytes = b""
    """`SIZE:MTIME_NS` of each file that an older layer has at the path, separated by spaces; may be empty."""
    sparse: int = 0
    """Size of a file with holes: `sparse_map` and the data that it lists follow, `size` bytes together. 0: no
    holes.
    """
    of_base: bytes = b""
    """State of the base's entry at the path, for kind `base`: `d`, `f:SIZE:MTIME_NS:SHA256` or `l:SHA256 of
    the target`.
    """
    table: int = 0
    """Number of bytes of the content that are rows, for kind `run` (`layerstack.model.run_table`); the files'
    bytes follow.
    """

    output: bool = False
    """True for an output of builds (`layerstack.text.build_roles`); set only on request."""

    @property
    def length(self) -> int:
        """The size of the file, its holes included."""
        return self.sparse or self.size


def padding(size: int) -> bytes:
    """Give the zero bytes after `size` bytes of content."""
    return bytes(-size % BLOCK)


def sparse_map(ranges: Sequence[tuple[int, int]], length: int) -> bytes:
    """List the data of a file of `length` bytes as (offset, size): decimal lines, padded to a block. Source:
    GNU tar, "PAX Format, Version 1.0".
    """
    listed = list(ranges)
    if not listed or sum(listed[-1]) < length:
        listed.append((length, 0))
    lines = b"%d\n" % len(listed) + b"".join(b"%d\n%d\n" % one for one in listed)
    return lines + padding(len(lines))


def encode(header: Header, *, gnu: bool = False) -> bytes:
    """Encode a header as blocks, pax records first where it needs any; owner and group are 0 without names.

    Args:
        gnu: write holes in GNU tar's records, which other programs read, instead of those of our own streams.
    """
    records: dict[bytes, bytes] = {}
    name = header.path + (b"/" if header.type == DIRECTORY else b"")
    if len(name) > 100:
        records[b"path"] = name
    if len(header.target) > 100:
        records[b"linkpath"] = header.target
    if header.size > _MAX_OCTAL_11:
        records[b"size"] = b"%d" % header.size
    if header.mtime_ns % _BILLION or not 0 <= header.mtime_ns // _BILLION <= _MAX_OCTAL_11:
        records[b"mtime"] = _time(header.mtime_ns)
    if header.kind:
        records[KIND] = header.kind
    if header.sha256:
        records[SHA256] = header.sha256
    if header.earlier:
        records[EARLIER] = header.earlier
    if header.sparse and gnu:
        records |= {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": header.path}
        records[b"GNU.sparse.realsize"] = b"%d" % header.sparse
    elif header.sparse:
        records[SPARSE] = b"%d" % header.sparse
    if header.of_base:
        records[OF_BASE] = header.of_base
    if header.table:
        records[RUN_OF] = b"%d" % header.table
    if header.output:
        records[OUTPUT] = b"1"
    for key in sorted(header.xattrs):
        records[XATTR + key] = header.xattrs[key]
    plain = _ustar(name, header.type, header.mode, header.size, header.mtime_ns // _BILLION, header.target)
    if not records:
        return plain
    if not all(
        _is_utf8(records[key]) for key in (b"path", b"linkpath", b"GNU.sparse.name") if key in records
    ):
        records = {b"hdrcharset": b"BINARY", **records}
    body = b"".join(_record(key, value) for key, value in records.items())
    return _records_block(len(body)) + body + padding(len(body)) + plain


@functools.lru_cache(maxsize=256)
def _records_block(size: int) -> bytes:
    return _ustar(_RECORDS_NAME, _EXTENDED, 0o644, size, 0, b"")


def encode_file(path: bytes, mode: int, size: int, mtime_ns: int) -> bytes:
    """Encode a file that has nothing but these values, in a third of the time of `encode` if its name is
    short.
    """
    seconds, rest = divmod(mtime_ns, _BILLION)
    if len(path) > 100 or not 0 <= seconds <= _MAX_OCTAL_11 or size > _MAX_OCTAL_11:
        return encode(Header(path, FILE, mode, size, mtime_ns))
    head = b"%s%07o\0000000000\0000000000\000%011o\0%011o\0" % (
        path.ljust(100, b"\0"),
        mode & 0o7777,
        size,
        seconds,
    )
    block = b"%s%06o\0 0%s" % (head, (zlib.adler32(head) - 1 + _FILE_REST) & 0xFFFF, _FILE_TAIL)
    if not rest:
        return block
    body = b"mtime=%d.%09d\n" % (seconds, rest)
    body = b"%d %s" % (len(body) + 3, body)
    return b"%s%s%s%s" % (_records_block(len(body)), body, padding(len(body)), block)


def _time(ns: int) -> bytes:
    seconds, rest = divmod(abs(ns), _BILLION)
    text = b"%s%d" % (b"-" if ns < 0 else b"", seconds)
    return text + (b".%09d" % rest if rest else b"")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" %s=%s\n" % (key, value)
    size = len(rest) + 1
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d%s" % (size, rest)


def _ustar(name: bytes, kind: bytes, mode: int, size: int, seconds: int, target: bytes) -> bytes:
    fields = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0        %s%s" % (
        name[:100].ljust(100, b"\0"),
        mode & 0o7777,
        0,
        0,
        size if size <= _MAX_OCTAL_11 else 0,
        min(max(seconds, 0), _MAX_OCTAL_11),
        kind,
        target[:100].ljust(100, b"\0"),
    )
    block = (fields + b"ustar\x0000").ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


_FILE_TAIL = (b"\0" * 100 + b"ustar\x0000").ljust(BLOCK - 157, b"\0")
_FILE_REST = 8 * 32 + ord("0") + sum(_FILE_TAIL)
"""Part of the checksum that comes from the fields after it, and from its own field, which counts as spaces.
The sum of a header with a name of 100 bytes fits into 16 bits.
"""


def is_ours(block: bytes) -> bool:
    """Check whether `encode` wrote this header, of an entry or of records; other programs write owners, names
    and numbers in other forms.
    """
    if len(block) != BLOCK:
        return False
    try:
        mode, size, seconds = (_octal(block[at:end]) for at, end in ((100, 108), (124, 136), (136, 148)))
    except Malformed:
        return False
    name, kind = _text(block[:100]), block[156:157]
    if kind == _EXTENDED and (name, mode) != (_RECORDS_NAME, 0o644):  # tarfile of Python has another mode
        return False
    return block == _ustar(name, kind, mode, size, seconds, _text(block[157:257]))


class PaxDecoder:
    """Decode headers: feed each header block, and while `needs` > 0 that many bytes of records (padding
    included) after it.
    """

    def __init__(self) -> None:
        self._records: dict[bytes, bytes] | None = None
        self._size = 0
        self.needs = 0

    def block(self, block: bytes) -> Header | None:
        """Decode the entry of a header block; None when it announces records, or is the end of the archive.

        Raises:
            Malformed: a wrong checksum, a type or a number that `encode` does not write, records without an
                entry.
        """
        if block == ZERO:
            if self._records is not None:
                raise Malformed("pax records without an entry after them")
            return None
        if len(block) != BLOCK or block[257:263] != b"ustar\0":
            raise Malformed("not a ustar header")
        if _octal(block[148:156]) != sum(block) - sum(block[148:156]) + 256:
            raise Malformed("the checksum of a header does not match")
        kind, size = block[156:157], _octal(block[124:136])
        if kind == _EXTENDED:
            if self._records is not None:
                raise Malformed("two sets of pax records for one entry")
            if size > MAX_RECORDS:
                raise Malformed(
                    f"{size} bytes of pax records for one entry, at most {MAX_RECORDS} are accepted"
                )
            self._size, self.needs = size, size + -size % BLOCK
            self._records = {}
            return None
        records, self._records = self._records or {}, None
        if kind not in (FILE, HARD_LINK, SYMLINK, DIRECTORY):
            raise Malformed(f"entry of unknown type {kind!r}")
        name = records.get(b"path")
        if name is None:
            name = _text(block[0:100])
            if prefix := _text(block[345:500]):
                name = prefix + b"/" + name
        target = records.get(b"linkpath", _text(block[157:257]))
        mtime_ns = (
            _nanoseconds(records[b"mtime"]) if b"mtime" in records else _octal(block[136:148]) * _BILLION
        )
        if b"size" in records:
            size = _decimal(records[b"size"])
        tag = records.get(KIND, b"")
        if (
            tag not in (b"", WHITEOUT, OPAQUE, BASE, RUN, IGNORED)
            or (tag in (WHITEOUT, BASE, IGNORED) and (kind != FILE or size))
            or (tag == OPAQUE and kind != DIRECTORY)
            or (tag == RUN and kind != FILE)
        ):
            raise Malformed(f"entry of unknown kind {tag!r}")
        if size and kind != FILE:
            raise Malformed(f"{size} bytes of content for an entry that is not a file")
        digest = records.get(SHA256, b"")
        if digest and (len(digest) != 64 or digest.strip(b"0123456789abcdef") or kind != FILE or tag):
            raise Malformed("EOS.sha256 is not 64 hex digits, or its entry has no content")
        earlier = records.get(EARLIER, b"")
        if earlier.strip(b"0123456789:- ") or (earlier and kind not in (FILE, HARD_LINK)):
            raise Malformed("EOS.earlier is malformed, or its entry is not a file")
        sparse = _decimal(records[SPARSE]) if SPARSE in records else 0
        if SPARSE in records and (kind != FILE or tag or not 0 < sparse < 1 << 63 or size < BLOCK):
            raise Malformed("EOS.sparse is out of range, or its entry cannot have holes")
        of_base = records.get(OF_BASE, b"")
        if (tag == BASE) != bool(of_base) or (of_base and not _is_state(of_base)):
            raise Malformed("EOS.base is malformed, missing, or on an entry of another kind")
        table = _decimal(records[RUN_OF]) if RUN_OF in records else 0
        if (tag == RUN) != bool(table) or table > size:
            raise Malformed("EOS.run is out of range, missing, or on an entry of another kind")
        xattrs = {key[len(XATTR) :]: value for key, value in records.items() if key.startswith(XATTR)}
        if kind == DIRECTORY:
            name = name[:-1] if name.endswith(b"/") else name
        mode = _octal(block[100:108]) & 0o7777
        output = records.get(OUTPUT, b"")
        if output and (output != b"1" or tag or kind not in (FILE, HARD_LINK)):
            raise Malformed("EOS.output is not 1, or its entry is not a file")
        return Header(
            name,
            kind,
            mode,
            size,
            mtime_ns,
            target,
            tag,
            xattrs,
            digest,
            earlier,
            sparse,
            of_base,
            table,
            bool(output),
        )

    def records(self, data: bytes) -> None:
        """Decode the records that the last block announced.

        Raises:
            Malformed: they are not pax records.
        """
        self.needs = 0
        found: dict[bytes, bytes] = {}
        at, end = 0, self._size
        while at < end:
            space = data.find(b" ", at, min(end, at + 12))
            size = _decimal(data[at:space]) if space > 0 else 0
            record = data[at : at + size]
            equals = record.find(b"=")
            if size < 5 or at + size > end or equals < 0 or not record.endswith(b"\n"):
                raise Malformed("a pax record is damaged")
            found[record[space - at + 1 : equals]] = record[equals + 1 : -1]
            at += size
        self._records = found


def _is_state(text: bytes) -> bool:
    letter, *rest = text.split(b":")
    if letter == b"d":
        return not rest
    if (
        not rest
        or len(rest) != {b"f": 3, b"l": 1}.get(letter, 0)
        or len(rest[-1]) != 64
        or rest[-1].strip(b"0123456789abcdef")
    ):
        return False
    return all(
        0 < len(number) <= 20 and not number.removeprefix(b"-").strip(b"0123456789") for number in rest[:-1]
    )


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        raise Malformed(f"not an octal number: {field!r}")
    return int(digits, 8)


def _decimal(text: bytes) -> int:
    if not text or len(text) > 20 or text.strip(b"0123456789"):
        raise Malformed(f"not a decimal number: {text[:40]!r}")
    return int(text)


def _nanoseconds(text: bytes) -> int:
    negative = text.startswith(b"-")
    whole, _, rest = text[negative:].partition(b".")
    ns = _decimal(whole) * _BILLION + (_decimal(rest[:9].ljust(9, b"0")) if rest else 0)
    return -ns if negative else ns
