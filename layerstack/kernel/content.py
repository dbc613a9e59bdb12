"""Digest of a file's content, and the places of its holes: holes are not read, so a file of 8 TiB without
data costs nothing.

The digest depends on the bytes alone, not on which blocks the file system stores. A file without an aligned
block of BLOCK zero bytes has the SHA-256 of its bytes. Any other file is split into runs of such blocks and
the data between them, and has the SHA-256 of

    BLOCK zero bytes, then for each run  `z<length>\\n`  or  `d<length>\\n<SHA-256 of its bytes, 32 bytes>`

Fewer than BLOCK bytes at the end of a file are not a block. The zero bytes in front keep the two kinds of
digest apart: a file that consists of the bytes above would itself have the second kind.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator

from layerstack.kernel.fsync import begin_write_out
from layerstack.model import cancel

BLOCK = 1 << 16
"""64 KiB: smaller files have the SHA-256 of their bytes. With one written page per block, sixteen times as
many bytes are hashed as are on disk.
"""
PIECE = 1 << 20
"""Files are read in pieces of 1 MiB, a multiple of BLOCK."""
ZERO = bytes(BLOCK)
RANGES_MAX = 1 << 17
"""Most ranges of data that are listed for one file; with more, smaller holes count as data."""

_IN_FRONT = hashlib.sha256(ZERO)
_TELLS = hasattr(os, "SEEK_DATA") and hasattr(os.stat_result, "st_blocks")


class ContentHash:
    """Digest of bytes that come in order, in pieces of any length; `skip` takes zero bytes that were not
    read.
    """

    def __init__(self, *, plain: bool = False) -> None:
        """`plain`: always the SHA-256 of the bytes, as before the second kind of digest existed."""
        self._plain = plain
        self._run = hashlib.sha256()  # of the data since the last zero block
        self._size = 0  # of that data
        self._zeros = 0  # bytes of whole zero blocks before it
        self._at = 0  # bytes of the present block
        self._pending = 0  # number of zero bytes while the present block has no other bytes; else -1
        self._total = _IN_FRONT
        self._two = False

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        if self._plain:
            self._run.update(data)
            return
        view, at, end = memoryview(data), 0, len(data)
        while at < end:
            if self._at == 0 and end - at >= BLOCK:
                begin = at
                while end - at >= BLOCK and not _is_zero(view[at : at + BLOCK]):
                    at += BLOCK
                if at > begin:
                    self._data(view[begin:at])
                while end - at >= BLOCK and _is_zero(view[at : at + BLOCK]):
                    at += BLOCK
                    self._zero_blocks(BLOCK)
                continue
            part = view[at : min(end, at + BLOCK - self._at)]
            at += len(part)
            self._part(part)

    def _part(self, part: memoryview) -> None:
        """Take bytes that end within the present block, or at its end."""
        if self._at == 0:
            self._pending = 0
        if self._pending >= 0 and _is_zero(part):
            self._pending += len(part)
        else:
            self._flush_pending()
            self._data(part)
            self._pending = -1
        self._at += len(part)
        if self._at == BLOCK:
            self._at = 0
            if self._pending >= 0:
                self._pending = 0
                self._zero_blocks(BLOCK)

    def skip(self, size: int) -> None:
        """Take `size` zero bytes."""
        if self._plain:
            while size:
                cancel.check()
                part = min(size, BLOCK)
                self._run.update(memoryview(ZERO)[:part])
                size -= part
            return
        if self._at and size:
            part = min(size, BLOCK - self._at)
            self._part(memoryview(ZERO)[:part])
            size -= part
        if whole := size - size % BLOCK:
            self._zero_blocks(whole)
        if size % BLOCK:
            self._part(memoryview(ZERO)[: size % BLOCK])

    def _flush_pending(self) -> None:
        """Count the zero bytes at the start of the present block as data."""
        if self._pending > 0:
            self._data(memoryview(ZERO)[: self._pending])
        self._pending = 0

    def _data(self, part: memoryview) -> None:
        if self._zeros:
            self._total.update(b"z%d\n" % self._zeros)
            self._zeros = 0
        self._run.update(part)
        self._size += len(part)

    def _zero_blocks(self, size: int) -> None:
        if not self._two:
            self._two, self._total = True, _IN_FRONT.copy()
        self._end_run()
        self._zeros += size

    def _end_run(self) -> None:
        if self._size:
            self._total.update(b"d%d\n%s" % (self._size, self._run.digest()))
            self._run, self._size = hashlib.sha256(), 0

    def digest(self) -> bytes:
        """The digest of all bytes so far; nothing may be added afterwards."""
        if self._plain:
            return self._run.digest()
        if self._pending > 0:
            self._flush_pending()
        if not self._two:
            return self._run.digest()
        self._end_run()
        if self._zeros:
            self._total.update(b"z%d\n" % self._zeros)
            self._zeros = 0
        return self._total.digest()


def _is_zero(part: memoryview) -> bool:
    return (
        part[0] == 0 and part[-1] == 0 and bytes(part) == (ZERO if len(part) == BLOCK else ZERO[: len(part)])
    )


def digest_of_bytes(data: bytes) -> bytes:
    """Digest bytes in memory."""
    if len(data) < BLOCK:
        return hashlib.sha256(data).digest()
    total = ContentHash()
    total.update(data)
    return total.digest()


def digest_of_file(fd: int, *, leaving: bool = False, plain: bool = False) -> bytes:
    """Digest an open file. Holes are not read.

    Args:
        leaving: start writing out what is read to the device, as `fsync.begin_write_out` does.
        plain: always the SHA-256 of the bytes.
    Raises:
        OSError; Stopped, between two pieces.
    """
    if leaving:
        begin_write_out(fd)
    status = os.fstat(fd)
    if status.st_size < BLOCK:
        data = os.read(fd, status.st_size + 1)
        total = hashlib.sha256(data)
        if len(data) != status.st_size:  # it grows, or the read was cut short
            while data := os.read(fd, BLOCK):
                total.update(data)
        return total.digest()
    found = ContentHash(plain=plain)
    at = 0
    for begin, end in data_ranges(fd, status):
        found.skip(begin - at)
        at = begin
        while at < end and (data := os.pread(fd, min(PIECE - at % BLOCK, end - at), at)):
            cancel.check()
            found.update(data)
            at += len(data)
        if at < end:
            return found.digest()  # it has become shorter
    found.skip(status.st_size - at)
    return found.digest()


def digest_at(path: str | bytes, *, plain: bool = False) -> bytes:
    """Digest the regular file at `path`; a symlink is not followed, a FIFO not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return digest_of_file(fd, plain=plain)
    finally:
        os.close(fd)


def has_holes(status: os.stat_result) -> bool:
    """Check whether the file may have holes of a block. True may be wrong, False never is."""
    return _TELLS and status.st_size >= BLOCK and status.st_blocks * 512 < status.st_size


def next_data(fd: int, at: int, size: int) -> int:
    """Give the offset of the first byte from `at` on that is not in a hole; `size` when the rest is one
    hole.
    """
    try:
        return min(os.lseek(fd, at, os.SEEK_DATA), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # this file system does not report holes
            return at
        raise


def end_of_data(fd: int, at: int, size: int) -> int:
    """Give the offset of the first hole after the data at `at`."""
    try:
        return min(max(os.lseek(fd, at, os.SEEK_HOLE), at + 1), size)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENXIO):
            return size
        raise


def data_ranges(
    fd: int, status: os.stat_result | None = None, *, least: int = 1
) -> Iterator[tuple[int, int]]:
    """List (begin, end) of the data outside of holes, in order; neighbours with fewer than `least` bytes
    between them are joined. Moves the offset of `fd`.
    """
    status = os.fstat(fd) if status is None else status
    size = status.st_size
    if not has_holes(status):
        if size:
            yield 0, size
        return
    begin, end = -1, 0
    while end < size:
        cancel.check()
        at = next_data(fd, end, size)
        if at >= size:
            break
        if begin < 0:
            begin = at
        elif at - end >= least:
            yield begin, end
            begin = at
        end = end_of_data(fd, at, size)
    if begin >= 0:
        yield begin, end


def sparse_map(fd: int, status: os.stat_result | None = None) -> list[tuple[int, int]] | None:
    """List (offset, length) of the data of a file that has holes of whole blocks, at most RANGES_MAX entries.
    None: it has no such hole, or all of it counts as data.
    """
    status = os.fstat(fd) if status is None else status
    if not has_holes(status):
        return None
    least = BLOCK
    while least < status.st_size:
        found: list[tuple[int, int]] = []
        for begin, end in data_ranges(fd, status, least=least):
            found.append((begin, end - begin))
            if len(found) > RANGES_MAX:
                break
        else:
            held = sum(length for _, length in found)
            return found if status.st_size - held >= BLOCK else None
        least *= 4
    return None


def same_content(one: int, other: int) -> bool:
    """Check whether two open files have the same bytes. A range that is a hole in both is not read."""
    a, b = os.fstat(one), os.fstat(other)
    if a.st_size != b.st_size:
        return False
    size, at = a.st_size, 0
    holes = has_holes(a) or has_holes(b)
    while at < size:
        end = size
        if holes:
            first, second = next_data(one, at, size), next_data(other, at, size)
            at = min(first, second)
            if at >= size:
                return True
            end = end_of_data(one if first == at else other, at, size)
        while at < end:
            cancel.check()
            left = min(PIECE, end - at)
            data = os.pread(one, left, at)
            if data != os.pread(other, left, at):
                return False
            if not data:
                return True
            at += len(data)
    return True
