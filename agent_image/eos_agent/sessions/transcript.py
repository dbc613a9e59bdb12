"""The output of one command as rows. Each row has a stable number; the size on disk is bounded, and a marker
replaces dropped rows.

A row ends at LF; a CR before it is removed (the terminal's CR LF becomes LF); a row over 64 KiB is split.
Rows are kept in segments of about 1 MiB, each a file with one row per line. The first 8 MiB and the newest
rows are kept; when the bound is reached, whole segments in between are dropped and their rows are read as one
marker. A small output stays in memory and is never written to disk.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_right
from typing import NamedTuple

from layerstack.kernel.fsync import write_all

ROW_MAX_BYTES = 64 * 1024
ANSWER_MAX_BYTES = 256 * 1024
SEGMENT_BYTES = 1 << 20
HEAD_SEGMENTS = 8
MAX_BYTES = 64 << 20
MEMORY_BYTES = 8 * 1024
INDEX_STEP = 4096
TAIL_ROWS = 100


_ALTERNATE_SCREEN = re.compile(rb"\x1b\[\?(?:1049|1047|47)([hl])")


class Rows(NamedTuple):
    """Rows [start, end) of a transcript, joined by LF. dropped: the range of rows that the marker among them
    replaces.
    """

    text: str
    start: int
    end: int
    dropped: tuple[int, int, int] | None = None  # first row, one past the last row, bytes


class _Segment:
    """Consecutive rows. index: flattened (row, offset) pairs in ascending order; rows are counted from the
    first of the segment.
    """

    def __init__(self, path: str, first_row: int) -> None:
        self.path, self.first_row = path, first_row
        self.rows = 0  # number of complete rows
        self.size = 0
        self.memory: bytearray | None = bytearray()
        self.fd = -1
        self.index_rows = array("Q", [0])
        self.index_offsets = array("Q", [0])

    def append(self, raw: bytes) -> None:
        at = rows = 0
        while self.size + len(raw) - self.index_offsets[-1] >= INDEX_STEP:
            begin = max(at, self.index_offsets[-1] + INDEX_STEP - self.size - 1)
            found = raw.find(b"\n", begin) + 1
            if found == 0:
                break
            rows += raw.count(b"\n", at, found)
            at = found
            self.index_rows.append(self.rows + rows)
            self.index_offsets.append(self.size + found)
        ends = rows + raw.count(b"\n", at)
        if self.memory is not None:
            self.memory += raw
            if len(self.memory) > MEMORY_BYTES:
                self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                write_all(self.fd, self.memory)
                self.memory = None
        else:
            write_all(self.fd, raw)
        self.rows += ends
        self.size += len(raw)

    def capture_tree(self) -> None:
        """Close the file for writing; a later read opens it again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read(self, row: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` bytes that begin at or before `row`, and their first row."""
        at = bisect_right(self.index_rows, row) - 1
        offset = self.index_offsets[at]
        if self.memory is not None:
            return bytes(self.memory[offset : offset + max_bytes]), self.index_rows[at]
        fd = self.fd if self.fd >= 0 else os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, max_bytes, offset), self.index_rows[at]
        finally:
            if fd != self.fd:
                os.close(fd)

    def remove(self) -> None:
        self.capture_tree()
        if self.memory is None:
            os.unlink(self.path)


class Transcript:
    """The output of one stream of a command. Not thread-safe: the event loop owns it."""

    def __init__(self, directory: str, name: str = "output", max_bytes: int = MAX_BYTES) -> None:
        """directory: made when output is first written to disk."""
        self._directory, self._name = directory, name
        self._max_bytes = max(max_bytes, (HEAD_SEGMENTS + 2) * SEGMENT_BYTES)
        self._segments: list[_Segment] = [_Segment(os.path.join(directory, f"{name}-0"), 0)]
        self._made = 0
        self._size = 0
        self._open_bytes = 0  # length of the row that has no end yet
        self._carry = b""  # a CR whose next byte is not received yet
        self._dropped: tuple[int, int, int] | None = None
        self._escape = b""  # the last bytes, if they may be the beginning of a sequence
        self.screen_row: int | None = None
        """The row in which the alternate screen was switched on; None while it is off."""
        self.error: OSError | None = (
            None  # a write failed: rows from there on are lost, and readers see a marker
        )

    @property
    def total_rows(self) -> int:
        """Rows so far, an unfinished last one included."""
        last = self._segments[-1]
        return last.first_row + last.rows + (1 if self._open_bytes else 0)

    @property
    def open_bytes(self) -> int:
        """Length of the unfinished last row; 0 without one."""
        return self._open_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows so far with their ends, dropped ones included."""
        return self._size + (self._dropped[2] if self._dropped else 0)

    @property
    def on_disk(self) -> bool:
        """True once the directory was made."""
        return self._made > 0 or self._segments[0].memory is None

    @property
    def disk_bytes(self) -> int:
        return self._size if self.on_disk else 0

    @property
    def dropped(self) -> tuple[int, int, int] | None:
        return self._dropped

    def append(self, data: bytes) -> None:
        """Append output of the command, in pieces of any size."""
        if self._escape or b"\x1b" in data:
            self._watch_screen(data)
        if self._carry:
            data, self._carry = self._carry + data, b""
        if data.endswith(b"\r"):
            data, self._carry = data[:-1], b"\r"
        self._rows(data.replace(b"\r\n", b"\n"))

    def _watch_screen(self, data: bytes) -> None:
        data = self._escape + data
        self._escape = data[-8:] if b"\x1b" in data[-8:] else b""
        for found in _ALTERNATE_SCREEN.finditer(data):
            if found[1] == b"l":
                self.screen_row = None
            elif self.screen_row is None:
                self.screen_row = max(0, self.total_rows - 1)

    def finish(self) -> None:
        """Note the end of the stream: bytes held back become part of the last row, and the file is closed."""
        if self._carry:
            data, self._carry = self._carry, b""
            self._rows(data)
        self._segments[-1].capture_tree()

    def _rows(self, data: bytes) -> None:
        while data:
            end = data.find(b"\n")
            first = len(data) if end < 0 else end
            room = ROW_MAX_BYTES - self._open_bytes
            if first > room:  # the open row is full: end it, at the start of a character
                cut = room
                while cut > 0 and room - cut < 3 and data[cut] & 0xC0 == 0x80:
                    cut -= 1
                self._put(data[:cut] + b"\n")
                data = data[cut:]
                continue
            longest = _first_long_row(data, first)
            if longest < 0:
                self._put(data)
                return
            self._put(data[:longest])
            data = data[longest:]

    def _put(self, data: bytes) -> None:
        """Store `data`, which has no row over the limit; a new segment begins between two rows."""
        while data:
            segment = self._segments[-1]
            cut = len(data)
            full = segment.size + cut >= SEGMENT_BYTES
            if full:
                end = data.find(b"\n", max(0, SEGMENT_BYTES - segment.size - 1))
                full, cut = end >= 0, (end + 1 if end >= 0 else cut)
            try:
                if segment.memory is not None and segment.size + cut > MEMORY_BYTES:
                    os.makedirs(self._directory, mode=0o700, exist_ok=True)
                segment.append(data[:cut])
            except OSError as error:
                self.error = error
                return
            self._size += cut
            last = data.rfind(b"\n", 0, cut)
            self._open_bytes = self._open_bytes + cut if last < 0 else cut - last - 1
            if full:
                self._rotate()
            data = data[cut:]

    def _rotate(self) -> None:
        last = self._segments[-1]
        last.capture_tree()
        self._made += 1
        self._segments.append(
            _Segment(os.path.join(self._directory, f"{self._name}-{self._made}"), last.first_row + last.rows)
        )
        while self._size > self._max_bytes and len(self._segments) > HEAD_SEGMENTS + 2:
            gone = self._segments.pop(HEAD_SEGMENTS)
            first, size = (self._dropped[0], self._dropped[2]) if self._dropped else (gone.first_row, 0)
            self._dropped = (first, gone.first_row + gone.rows, size + gone.size)
            self._size -= gone.size
            gone.remove()

    def read(
        self,
        start: int,
        limit: int | None = None,
        max_bytes: int = ANSWER_MAX_BYTES,
        *,
        errors: str = "replace",
    ) -> Rows:
        """Read rows from `start` on, at most `limit` rows and `max_bytes` bytes, but at least one row if
        there is one.

        errors: that of bytes.decode; a text with "surrogateescape" can be encoded to the same bytes. Dropped
        rows are returned as one row, the marker; `end` is then the row after the last of them.
        """
        total = self.total_rows
        start = min(start, total)
        roof = total if limit is None else min(total, start + limit)
        rows: list[str] = []
        dropped = None
        at, used = start, 0
        while at < roof:
            if self._dropped and self._dropped[0] <= at < self._dropped[1]:
                dropped = (at, self._dropped[1], self._dropped[2])
                rows.append(
                    f"[{dropped[1] - at} lines were dropped here: the transcript keeps at most "
                    f"{self._max_bytes >> 20} MiB]"
                )
                at = min(self._dropped[1], total)
                if limit is not None:
                    roof = max(roof, at)
                continue
            piece, size = self._piece(at, roof, max_bytes - used, bool(rows), errors)
            if not piece:
                break
            rows += piece
            used += size
            at += len(piece)
        text = "\n".join(rows)
        return Rows(text, start, at, dropped)

    def tail(self, after: int, max_bytes: int, *, errors: str = "replace") -> Rows:
        """Read the last rows, at most `max_bytes` bytes and none before `after`. If the last row alone is
        longer, only its end is returned.
        """
        total = self.total_rows
        found = self.read(max(after, total - TAIL_ROWS), max_bytes=ROW_MAX_BYTES * TAIL_ROWS, errors=errors)
        lines, start = found.text.split("\n"), found.start
        if found.dropped is not None:  # the marker replaces many rows
            lines, start = lines[1:], found.dropped[1]
        used = 0
        keep = len(lines)
        while keep and (used := used + len(lines[keep - 1].encode("utf-8", errors)) + 1) <= max_bytes + 1:
            keep -= 1
        if keep == len(lines) and lines:
            return Rows(lines[-1][-(max_bytes // 4) :], total - 1, total)
        return Rows("\n".join(lines[keep:]), start + keep, total)

    def _piece(self, row: int, roof: int, max_bytes: int, some: bool, errors: str) -> tuple[list[str], int]:
        """Read rows from `row` on that are in one segment and fit into `max_bytes`; return them and their
        size. The first one is returned even if it does not fit, unless `some` rows were read before.
        """
        firsts = [segment.first_row for segment in self._segments]
        segment = self._segments[bisect_right(firsts, row) - 1]
        want = row - segment.first_row
        data, at = segment.read(want, max_bytes + INDEX_STEP + 2 * ROW_MAX_BYTES)
        offset = 0
        for _ in range(want - at):
            offset = data.find(b"\n", offset) + 1
        out: list[str] = []
        used = 0
        last = segment.first_row + segment.rows
        while row < roof:
            found = data.find(b"\n", offset)
            if found < 0:
                if row < last:  # cut by the size of the read
                    break
                found = len(data)
            text = data[offset:found].decode("utf-8", errors)
            size = len(text.encode("utf-8", errors)) + 1
            if (out or some) and used + size > max_bytes + 1:
                break
            out.append(text)
            used += size
            offset = found + 1
            row += 1
            if row == last and offset >= len(data):
                break
        return out, used

    def remove(self) -> None:
        """Delete the transcript."""
        for segment in self._segments:
            segment.remove()


def _first_long_row(data: bytes, first: int) -> int:
    """Offset of the first row over the limit, after the row that ends at `first`; -1 without such a row."""
    if len(data) - first <= ROW_MAX_BYTES:
        return -1
    at = first + 1
    while at < len(data):
        end = data.find(b"\n", at)
        if (len(data) if end < 0 else end) - at > ROW_MAX_BYTES:
            return at
        if end < 0:
            return -1
        at = end + 1
    return -1
