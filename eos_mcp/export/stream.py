"""The manager's end of an export stream: every entry is checked before it is returned, and only the present
chunk is in memory.

The stream's form is that of `layerstack.export.stream`. Sandboxes are not trusted: input that our agent would
never send is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import json
import operator
import struct
import tempfile
from array import array
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.export.names import flaw
from layerstack.export import pax
from layerstack.kernel.content import ContentHash
from layerstack.model.run_table import FILE_MAX, SPECIAL_BITS, RunRow, rows_of

PIECE_BYTES = 1 << 20
MAX_FRAME_BYTES = 64 << 20
MAX_LINE_BYTES = 16 << 20
HASHED_ASIDE_BYTES = 1 << 17
MAX_MAP_BYTES = 6 << 20
"""Longest map of a file with holes: the largest number of ranges, each of two numbers of 19 digits."""
NAMED_MAX = 5
CAP_SETTING = "manager.export.max_decompressed_bytes"


RUN_MAX = 2 << 20
"""Maximum of bytes of a run; our agent sends a quarter of a MiB."""

_RECORD = struct.Struct("<Hc")


class DeadlineReader(Protocol):
    """Blocking bytes with a deadline on each call: TimeoutError when it passes, OSError when the connection
    is lost.

    The caller asks only for bytes that must come, so both exact and short reads are correct.
    """

    def read(self, n: int, /) -> bytes:
        """Return 1 to n bytes; empty at the end of the stream."""
        ...

    def readline(self, limit: int, /) -> bytes:
        """Return the bytes up to and including the next newline."""
        ...


class ExportLimits(NamedTuple):
    """`manager.export`: bytes received (None: no cap), bytes of the tar, entries."""

    max_stream_bytes: int | None = None
    max_decompressed_bytes: int = 8 << 30
    max_apply_entries: int = 1_000_000


def refused(message: str, reason: str, **details: Any) -> OperationError:
    return OperationError(OPERATION_FAILED, f"export: {message}", details, reason=reason)


def json_line(line: bytes, name: str) -> dict[str, Any]:
    """Parse the stream's header or trailer."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not line.endswith(b"\n") or not isinstance(value, dict):
        raise refused(f"the stream's {name} is not a line of JSON", "bad_stream")
    found: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    return found


def sandbox_refusal(error: dict[str, Any]) -> OperationError:
    """Make the sandbox's own refusal a failure of this operation."""
    details = error.get("details")
    kept: dict[str, Any] = details if isinstance(details, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return OperationError(OPERATION_FAILED, str(error.get("message", "the sandbox refused the export")), kept)


def ended_early() -> OperationError:
    return refused("the forwarded stream ended before its trailer", "export_interrupted", retryable=True)


def check_received(received: int, limits: ExportLimits) -> None:
    """Refuse more bytes than the cap of a stream."""
    cap = limits.max_stream_bytes
    if cap is not None and received > cap:
        raise refused(
            f"export stream cap exceeded: more than {cap} bytes were received", "stream_cap", limit=cap
        )


def check_frame(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        raise refused(f"a frame of {size} bytes, at most {MAX_FRAME_BYTES} are taken", "bad_stream")


def shown(path: bytes) -> str:
    """Return a path for a message: decoded from UTF-8 if possible, without control characters."""
    text = path.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class StreamRun(NamedTuple):
    """Plain files and directories that came together, each file verified by its digest. `data`: the bytes of
    the files, one after the other.
    """

    rows: list[RunRow]
    data: memoryview


class SortedPaths:
    """Paths in byte order with one letter each, on disk; 8 bytes of memory per path."""

    def __init__(self, directory: str | None = None) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, buffering=1 << 16)  # noqa: SIM115
        self._at = array("Q")
        self._end = 0
        self._dirty = False

    def add(self, path: bytes, letter: bytes) -> None:
        """Append a path; the caller keeps the order."""
        record = _RECORD.pack(len(path), letter) + path
        self._file.write(record)
        self._at.append(self._end)
        self._end += len(record)
        self._dirty = True

    def add_all(self, rows: list[RunRow]) -> None:
        """Call `add` for each row."""
        records = [_RECORD.pack(len(row.path), b"d" if row.directory else b"f") + row.path for row in rows]
        self._file.write(b"".join(records))
        ends = list(itertools.accumulate(map(len, records), initial=self._end))
        self._end = ends.pop()
        self._at.extend(ends)
        self._dirty = True

    def find(self, path: bytes) -> tuple[int, bytes] | None:
        """Return the number and the letter of a path."""
        lo, hi = 0, len(self._at)
        while lo < hi:
            middle = (lo + hi) // 2
            found, letter = self._record(middle)
            if found == path:
                return middle, letter
            if found < path:
                lo = middle + 1
            else:
                hi = middle
        return None

    def path(self, number: int) -> bytes:
        return self._record(number)[0]

    def _record(self, number: int) -> tuple[bytes, bytes]:
        if self._dirty:
            self._file.flush()
            self._dirty = False
        self._file.seek(self._at[number])
        size, letter = _RECORD.unpack(self._file.read(3))
        found = self._file.read(size)
        self._file.seek(0, 2)
        return found, letter

    def close(self) -> None:
        self._file.close()


LETTERS = {pax.FILE: b"f", pax.HARD_LINK: b"h", pax.SYMLINK: b"l", pax.DIRECTORY: b"d"}
IGNORED_LETTER = b"i"
_LETTERS_OF_KINDS = {pax.WHITEOUT: b"w", pax.IGNORED: IGNORED_LETTER}


class ExportStream:
    """One stream from its first line to its trailer. Iterate `entries()`, read `content()` of each file, then
    `finish()`.

    Raises:
        OperationError: operation_failed, with a reason, from any of its methods: the sandbox's own refusal,
            an entry that is not allowed, an exceeded limit, bytes that do not match their digest, a silent or
            lost connection.
    """

    def __init__(self, reader: DeadlineReader, limits: ExportLimits) -> None:
        self._reader, self._limits = reader, limits
        self.received = self.tar_bytes = self.count = 0
        self.ignored: dict[str, int] | None = None
        """Numbers of ignored files and of their bytes, after `finish`; None: the sandbox did not count."""
        self.on_base_entry: Callable[[pax.Header], None] | None = None
        """Callback that takes the entries of the sandbox's base; without one such an entry is refused."""
        self._base_count = 0
        self._digest = hashlib.sha256()
        self._hasher: ThreadPoolExecutor | None = None  # hashes large chunks while they are written
        self._hashing: Future[None] | None = None
        self._piece = memoryview(b"")  # received part of the present frame
        self._frame_left = 0  # bytes of that frame still to come
        self._length = b""  # received part of the next frame's length
        self._ended = False
        self._content_left = self._padding = 0
        self._parents: dict[bytes, bytes | None] = {}
        self.header = self._line("header")
        self._by_file = self.header.get("format") in (
            2,
            3,
            4,
        )  # each file has its own digest; the trailer's covers all bytes but their content
        self._plain = self.header.get("format") == 2  # the digest of a file is then the SHA-256 of its bytes
        self._content: pax.Header | None = None
        self._held: memoryview | None = None  # content of a file that came in a run
        self._content_digest = ContentHash(plain=self._plain)
        self._largest: list[tuple[int, bytes]] = []  # the largest files so far
        if (
            self.header.get("format") not in (1, 2, 3, 4)
            or type(self.header.get("manifest_version")) is not int
        ):
            raise refused("the stream's first line is not one that this version understands", "bad_stream")
        self.without_ignored = self.header.get("ignored") in ("exclude", "mark")
        self.index = SortedPaths()

    def __enter__(self) -> ExportStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hasher is not None:
            self._hasher.shutdown()
        self.index.close()

    # bytes

    def _hash(self, piece: memoryview) -> None:
        """Hash pieces in order, a large one in a thread; at most one of these is unfinished at a time."""
        digest = self._content_digest if self._by_file else self._digest

        def update(part: memoryview) -> None:
            digest.update(part)

        if self._hashing is not None:
            self._hashing.result()
            self._hashing = None
        if len(piece) < HASHED_ASIDE_BYTES:
            update(piece)
            return
        if self._hasher is None:
            self._hasher = ThreadPoolExecutor(1, "export-digest")
        self._hashing = self._hasher.submit(update, piece)

    def _read(self, n: int) -> bytes:
        with reading():
            data = self._reader.read(n)
        self._receive(len(data))
        return data

    def _receive(self, size: int) -> None:
        if not size:
            raise ended_early()
        self.received += size
        check_received(self.received, self._limits)

    def _line(self, name: str) -> dict[str, Any]:
        with reading():
            line = self._reader.readline(MAX_LINE_BYTES)
        self._receive(len(line))
        found = json_line(line, name)
        if isinstance(error := found.get("error"), dict):
            refusal = sandbox_refusal(error)  # pyright: ignore[reportUnknownArgumentType]
            if error.get("kind") == "unknown_op":  # pyright: ignore[reportUnknownMemberType]
                refusal.details["daemon_op"] = "export_layerstack"
            raise refusal
        return found

    def _fill(self) -> bool:
        """Make at least one byte of a frame available; False at the end of the frames. Reads a frame together
        with the length of the next frame.
        """
        while not self._piece:
            if self._ended:
                return False
            if self._frame_left:
                data = self._read(
                    min(self._frame_left, PIECE_BYTES) + (4 if self._frame_left <= PIECE_BYTES else 0)
                )
                mine = memoryview(data)[: self._frame_left]
                self._length = data[len(mine) :]
                self._frame_left -= len(mine)
                if not self._by_file:
                    self._hash(mine)
                self.tar_bytes += len(mine)
                if self.tar_bytes > self._limits.max_decompressed_bytes:
                    self._too_large()
                self._piece = mine
                return True
            while len(self._length) < 4:
                self._length += self._read(4 - len(self._length))
            self._frame_left = int.from_bytes(self._length, "big")
            self._length = b""
            self._ended = not self._frame_left
            check_frame(self._frame_left)
        return True

    def _too_large(self) -> None:
        cap, largest = self._limits.max_decompressed_bytes, sorted(self._largest, reverse=True)
        named = ", ".join(f"{shown(path)} ({size} bytes)" for size, path in largest)
        raise refused(
            f"decompressed size cap exceeded: the export has more than {cap} bytes"
            + (f"; the largest files so far: {named}" if named else ""),
            "decompressed_cap",
            limit=cap,
            setting=CAP_SETTING,
            paths=[{"path": shown(path), "bytes": size} for size, path in largest],
            hint=f"raise {CAP_SETTING} in the gateway's configuration, or publish without these files; "
            f"holes of sparse files do not count",
        )

    def _read_exactly(self, n: int, *, hashed: bool = True) -> bytes:
        """Return exactly n bytes of the tar; `hashed` False is for bytes of files, which have their own
        digests.
        """
        if 0 < n <= len(self._piece):
            found = bytes(self._piece[:n])
            self._piece = self._piece[n:]
            if self._by_file and hashed:
                self._digest.update(found)
            return found
        out = bytearray()
        while len(out) < n:
            if not self._fill():
                raise refused("the archive in the stream is cut short", "bad_stream")
            part = self._piece[: n - len(out)]
            out += part
            self._piece = self._piece[len(part) :]
        if self._by_file and hashed:
            self._digest.update(out)
        return bytes(out)

    # entries

    def entries(self) -> Iterator[pax.Header]:
        """Yield every entry, checked, in byte order of paths; unread content is skipped."""
        for found in self.items():
            if not isinstance(found, StreamRun):
                yield found
                continue
            at = 0
            for path, directory, mode, size, mtime_ns, digest in found.rows:
                self._held = found.data[at : at + size]
                at += size
                kind = pax.DIRECTORY if directory else pax.FILE
                yield pax.Header(path, kind, mode, size, mtime_ns, sha256=b"" if directory else digest)
            self._held = None

    def items(self) -> Iterator[pax.Header | StreamRun]:
        """Yield the entries like `entries`, plain ones in runs."""
        decoder = pax.PaxDecoder()
        last = b""
        try:
            while True:
                self._pass_content()
                block = self._read_exactly(pax.BLOCK)
                header = decoder.block(block)
                if decoder.needs:
                    decoder.records(self._read_exactly(decoder.needs))
                elif header is None:
                    if self._read_exactly(pax.BLOCK) != pax.ZERO:
                        raise refused("the archive in the stream has no proper end", "bad_stream")
                    return
                elif header.kind == pax.BASE:
                    self._base_entry(header)
                elif header.kind == pax.RUN:
                    run = self._run(header, last)
                    last = run.rows[-1].path
                    yield run
                else:
                    self._check(header, last)
                    last = header.path
                    self._content_left, self._content = header.size, header
                    self._padding = -header.size % pax.BLOCK
                    yield header
        except pax.Malformed as error:
            raise refused(f"the archive in the stream is not one of ours: {error}", "bad_stream") from None

    def _run(self, header: pax.Header, last: bytes) -> StreamRun:
        """Return a run; its rows are checked like entries in `_check`, its files by their digests."""
        if self.header.get("format") != 4 or header.size > RUN_MAX:
            raise refused(
                f"a run of {header.size} bytes, which this form of the stream does not have", "bad_stream"
            )
        table = self._read_exactly(header.table)
        data = memoryview(self._read_exactly(header.size - header.table, hashed=False))
        self._read_exactly(-header.size % pax.BLOCK)
        rows = rows_of(table)
        if rows is None or sum(row.size for row in rows) != len(data):
            raise refused("the rows of a run are damaged, or not of its bytes", "bad_stream")
        self.count += len(rows)
        if self.count > (cap := self._limits.max_apply_entries):
            raise refused(
                f"entry-count cap exceeded: the export has more than {cap} entries", "entry_cap", limit=cap
            )
        if self.tar_bytes > self._limits.max_decompressed_bytes:
            self._too_large()
        paths = [row.path for row in rows]
        if not (paths[0] > last and all(map(operator.lt, paths, paths[1:]))):
            raise refused(
                f"entry {shown(paths[0])} or one in its run is out of order",
                "bad_entry",
                path=shown(paths[0]),
            )
        self.index.add_all(rows)
        above: bytes | None = None
        at = 0
        for path, directory, mode, size, _, digest in rows:
            _check_name(path, "entry")
            parent = path.rpartition(b"/")[0]
            if parent != above:
                if parent and self._letter(parent) != b"d":
                    raise refused(
                        f"entry {shown(path)}: its directory is not in the stream",
                        "bad_entry",
                        path=shown(path),
                    )
                above = parent
            if directory:
                self._remember(path, b"d")
                continue
            if mode & SPECIAL_BITS or size >= FILE_MAX:
                raise refused(
                    f"file {shown(path)} is too large for a run, or setuid, setgid or sticky",
                    "bad_entry",
                    path=shown(path),
                )
            if hashlib.sha256(data[at : at + size]).hexdigest().encode() != digest:
                raise refused(
                    f"the content of {shown(path)} is not what was published",
                    "stream_corrupt",
                    path=shown(path),
                    retryable=True,
                )
            at += size
        return StreamRun(rows, data)

    def _base_entry(self, header: pax.Header) -> None:
        """Receive an entry of the base; these come on request, before the first entry of the delta."""
        self._base_count += 1
        if self._base_count > (cap := self._limits.max_apply_entries):
            raise refused(
                f"entry-count cap exceeded: the sandbox sent more than {cap} entries of its base",
                "entry_cap",
                limit=cap,
            )
        _check_name(header.path, "entry")
        if self.on_base_entry is None or self.count:
            raise refused(
                f"entry {shown(header.path)} describes the base, which this export did not request",
                "bad_entry",
                path=shown(header.path),
            )
        self.on_base_entry(header)

    def _check(self, header: pax.Header, last: bytes) -> None:
        path = header.path
        self.count += 1
        if self.count > (cap := self._limits.max_apply_entries):
            raise refused(
                f"entry-count cap exceeded: the export has more than {cap} entries", "entry_cap", limit=cap
            )
        _check_name(path, "entry")
        if header.size:
            heapq.heappush(self._largest, (header.size, path))
            if len(self._largest) > NAMED_MAX:
                heapq.heappop(self._largest)
        if header.sparse and self.header.get("format") not in (3, 4):
            raise refused(
                f"file {shown(path)} comes with holes, which this form of the stream does not have",
                "bad_entry",
                path=shown(path),
            )
        if self.tar_bytes - len(self._piece) + header.size > self._limits.max_decompressed_bytes:
            self._too_large()
        if path <= last:
            raise refused(f"entry {shown(path)} is out of order", "bad_entry", path=shown(path))
        parent = path.rpartition(b"/")[0]
        if parent and self._letter(parent) != b"d":
            raise refused(
                f"entry {shown(path)}: its directory is not in the stream", "bad_entry", path=shown(path)
            )
        if header.type == pax.HARD_LINK:
            _check_name(header.target, f"hard link {shown(path)} to")
            if self._letter(header.target) != b"f":
                raise refused(
                    f"hard link {shown(path)} to {shown(header.target)}, which is not an earlier file of "
                    f"the stream",
                    "bad_entry",
                    path=shown(path),
                )
        if header.type == pax.SYMLINK and (not header.target or b"\0" in header.target):
            raise refused(f"symlink {shown(path)} has no proper target", "bad_entry", path=shown(path))
        if self._by_file and (header.type == pax.FILE and not header.kind) != bool(header.sha256):
            raise refused(f"file {shown(path)} comes without its digest", "bad_entry", path=shown(path))
        if header.kind == pax.IGNORED and self.header.get("ignored") != "mark":
            raise refused(
                f"entry {shown(path)} stands for an ignored path, which this export did not request",
                "bad_entry",
                path=shown(path),
            )
        letter = _LETTERS_OF_KINDS.get(header.kind) or LETTERS[header.type]
        self.index.add(path, letter)
        if letter == b"d":
            self._remember(path, letter)

    def _letter(self, path: bytes) -> bytes | None:
        if path not in self._parents:
            found = self.index.find(path)
            self._remember(path, found[1] if found else None)
        return self._parents[path]

    def _remember(self, path: bytes, letter: bytes | None) -> None:
        if len(self._parents) >= 4096:
            self._parents.clear()
        self._parents[path] = letter

    def content(self) -> Iterator[memoryview]:
        """Yield the bytes of the present file as they are in the tar, in chunks, with the map of a file with
        holes. Each chunk is valid until the next.
        """
        for _, part in self._parts():
            yield part

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the data of the present file, each chunk with its offset in the file; all other bytes are
        zero. Each chunk is valid until the next.
        """
        for offset, part in self._parts():
            if offset is not None:
                yield offset, part

    def _parts(self) -> Iterator[tuple[int | None, memoryview]]:
        """Yield all bytes of the present file; the offset of bytes of a map is None. Skipped bytes are
        checked as well.
        """
        if self._held is not None:
            part, self._held = self._held, None
            if part:
                yield 0, part
            return
        header = self._content
        if header is None or not self._content_left:
            return
        if not header.sparse:
            at = 0
            while self._content_left:
                part = self._some(self._content_left)
                if self._by_file:
                    self._hash(part)
                yield at, part
                at += len(part)
            return
        raw = self._map()
        ranges = _ranges(raw, header, self._content_left)
        yield None, memoryview(raw)
        at = 0
        for offset, size in ranges:
            self._skip(offset - at)
            at = offset
            while at < offset + size:
                part = self._some(offset + size - at)
                self._hash(part)
                yield at, part
                at += len(part)
        self._skip(header.sparse - at)

    def _some(self, most: int) -> memoryview:
        """Return 1 to `most` bytes of the present file."""
        if not self._fill():
            raise refused("the archive in the stream is cut short", "bad_stream")
        part = self._piece[:most]
        self._piece = self._piece[len(part) :]
        self._content_left -= len(part)
        return part

    def _skip(self, size: int) -> None:
        """Account for zero bytes of the present file that are not sent."""
        self._hash(memoryview(b""))
        self._content_digest.skip(size)

    def _map(self) -> bytes:
        """Return the blocks of the map at the beginning of the present file."""
        raw, lines, wanted = bytearray(), 0, 1
        while lines < wanted:
            if not self._content_left or len(raw) > MAX_MAP_BYTES:
                raise _bad_map(self._content)
            want = min(pax.BLOCK, self._content_left)
            while want:
                part = self._some(want)
                raw += part
                want -= len(part)
                lines += bytes(part).count(b"\n")
            if wanted == 1 and lines:
                wanted += 2 * _number(raw.partition(b"\n")[0], self._content)
        return bytes(raw)

    def _pass_content(self) -> None:
        for _ in self.content():
            pass
        if self._by_file and self._content is not None and self._content.sha256:
            self._hash(memoryview(b""))
            if self._content_digest.digest().hex().encode() != self._content.sha256:
                path = shown(self._content.path)
                raise refused(
                    f"the content of {path} is not what was published",
                    "stream_corrupt",
                    path=path,
                    retryable=True,
                )
            self._content_digest = ContentHash(plain=self._plain)
            self._content = None
        if self._padding:
            self._read_exactly(self._padding)
            self._padding = 0

    def finish(self) -> dict[str, Any]:
        """Read to the trailer and compare: only after this the stream is known to be complete."""
        if self._fill():
            raise refused("bytes after the end of the archive", "bad_stream")
        trailer = self._line("trailer")
        self._hash(memoryview(b""))
        if (
            trailer.get("sha256") != self._digest.hexdigest()
            or trailer.get("tar_bytes") != self.tar_bytes
            or trailer.get("entries") != self.count + self._base_count
        ):
            raise refused(
                "the stream does not match its trailer: bytes were lost or changed",
                "stream_corrupt",
                retryable=True,
            )
        self.ignored = _counts(trailer.get("ignored"))
        return trailer

    def ignored_json(self, rule: str) -> dict[str, Any]:
        """Return the key `ignored` of a result; empty if the sandbox did not count."""
        return {} if self.ignored is None else {"ignored": {**self.ignored, "included": rule == "include"}}


def _counts(found: Any) -> dict[str, int] | None:
    """Return the number of ignored files and of their bytes, if the trailer has them in this form."""
    if not isinstance(found, dict):
        return None
    numbers: list[Any] = [found.get(key) for key in ("files", "bytes")]  # pyright: ignore[reportUnknownMemberType]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return None
    return {"files": numbers[0], "bytes": numbers[1]}


def _bad_map(header: pax.Header | None) -> OperationError:
    path = shown(header.path) if header is not None else ""
    return refused(f"the map of {path}, a file with holes, is not one of ours", "bad_stream", path=path)


def _number(text: bytes | bytearray, header: pax.Header | None) -> int:
    if not text or len(text) > 19 or bytes(text).strip(b"0123456789"):
        raise _bad_map(header)
    return int(text)


def _ranges(raw: bytes, header: pax.Header, left: int) -> list[tuple[int, int]]:
    """Return (offset, size) of the data of a file with holes, checked: in order, within the file, and with as
    many bytes as are still to come.
    """
    lines = raw.split(b"\n")
    numbers = [_number(line, header) for line in lines[1 : 1 + 2 * _number(lines[0], header)]]
    found = list(zip(numbers[::2], numbers[1::2], strict=True))
    at = 0
    for offset, size in found:
        if offset < at or offset + size > header.sparse:
            raise _bad_map(header)
        at = offset + size
    if not found or at != header.sparse or sum(numbers[1::2]) != left:
        raise _bad_map(header)
    return found


def _check_name(path: bytes, what: str) -> None:
    """Refuse a path that is not a normalised relative one.

    Raises:
        OperationError: operation_failed, `bad_entry`.
    """

    if (why := flaw(path)) is not None:
        raise refused(f"{what} {shown(path)} {why}", "bad_entry", path=shown(path))


@contextlib.contextmanager
def reading() -> Generator[None]:
    """Report a failed read as an error of the stream: `export_stalled` or `export_interrupted`."""
    try:
        yield
    except TimeoutError:
        raise refused(
            "the sandbox sent nothing until the deadline", "export_stalled", retryable=True
        ) from None
    except OSError as error:
        raise refused(
            f"the connection that forwards the stream was lost: {error}", "export_interrupted", retryable=True
        ) from None
