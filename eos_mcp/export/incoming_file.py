"""The content of one file of the delta: compared with the destination's file while it arrives, and written to
a staged file after the first difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType

from eos_mcp.export.dirfd import copy_data
from eos_mcp.export.hygiene import JUDGED_MAX
from layerstack.kernel.content import next_data
from layerstack.kernel.fsync import begin_write_out, write_all

WRITE_OUT_BYTES = 8 << 20
"""Number of bytes of a file after which the kernel is asked to write them while the rest still arrives: the
fsync at the end then waits for little.
"""


class IncomingFile:
    """One file that is being received. A context manager: closes both descriptors at the end.

    `equal_fd` is the destination's file while all received bytes equal it, then None; `fd` is the staged file
    once it exists.
    """

    def __init__(
        self, length: int, equal_fd: int | None, create: Callable[[], int] | None, judged: bytearray | None
    ) -> None:
        """Create the staged file at once if there is no file to compare with.

        Args:
            length: of the file, holes included.
            equal_fd: the destination's file, of the same length; None: no comparison.
            create: makes the staged file and returns its descriptor; None in a dry run, which writes nothing.
            judged: buffer for the first bytes, by which hygiene judges the file.
        """
        self.equal_fd = equal_fd
        self.fd = create() if equal_fd is None and create is not None else None
        self.received = 0
        """Number of received bytes; holes are not sent."""
        self._length, self._create, self._judged = length, create, judged
        self._end = 0  # of the compared or written part
        self._sent = 0  # end of the part that the kernel was asked to write

    def __enter__(self) -> IncomingFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in (self.equal_fd, self.fd):
            if fd is not None:
                os.close(fd)

    def receive(self, pieces: Iterable[tuple[int, memoryview]]) -> None:
        """Receive all chunks, each with its offset; holes are between them and after the last."""
        for offset, piece in pieces:
            self.received += len(piece)
            if self._judged is not None:
                judge(self._judged, offset, piece)
            if self._equals(offset, piece):
                self._end = offset + len(piece)
            else:
                self._differs()
                self._write(offset, piece)
        if self.equal_fd is not None and not _empty(self.equal_fd, self._end, self._length):
            self._differs()
        if self._judged is not None and self.equal_fd is None:
            judge(self._judged, self._length, b"")
        if self.fd is not None and self._end < self._length:
            os.ftruncate(self.fd, self._length)  # a hole follows the last piece

    def _equals(self, offset: int, piece: memoryview) -> bool:
        if self.equal_fd is None:
            return False
        return _empty(self.equal_fd, self._end, offset) and os.pread(
            self.equal_fd, len(piece), offset
        ) == bytes(piece)

    def _differs(self) -> None:
        """End the comparison: copy the equal part to the staged file."""
        if self.equal_fd is None:
            return
        if self._create is not None:
            self.fd = self._create()
            copy_data(self.equal_fd, self.fd, self._end)
        os.close(self.equal_fd)
        self.equal_fd = None

    def _write(self, offset: int, piece: memoryview) -> None:
        if self.fd is None:
            return
        if offset != self._end:
            os.lseek(self.fd, offset, os.SEEK_SET)
        write_all(self.fd, piece)
        self._end = offset + len(piece)
        if self._end - self._sent >= WRITE_OUT_BYTES:
            begin_write_out(self.fd, self._sent, self._end - self._sent)
            self._sent = self._end


def judge(judged: bytearray, offset: int, piece: bytes | memoryview) -> None:
    """Append the next bytes of a file, up to the number that is judged; a hole before them becomes zeros."""
    judged.extend(bytes(max(0, min(offset, JUDGED_MAX + 1) - len(judged))))
    judged += piece[: max(0, JUDGED_MAX + 1 - len(judged))]


def _empty(fd: int, begin: int, end: int) -> bool:
    """Tell whether a file has only zero bytes from `begin` to `end`; its holes are not read."""
    while begin < end and (begin := next_data(fd, begin, end)) < end:
        data = os.pread(fd, min(1 << 20, end - begin), begin)
        if not data or data.count(0) != len(data):
            return False
        begin += len(data)
    return True
