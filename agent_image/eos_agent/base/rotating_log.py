"""A log of JSON lines with a bounded size: the newer segment `path` and the older segment `path.1`.

If a kill cut a line short, the next writer ends it, and readers skip it. Nothing is fsynced: a power cut may
lose the newest lines.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterable
from typing import Any

from layerstack.kernel import fsync

TAIL_BYTES = 64 * 1024


class Segments:
    """Two segments, each of half the bound. Methods may be called from any thread.

    Args:
        path: the newer segment; its directory is made.
        max_bytes: of both segments together.
    Raises:
        OSError: the directory cannot be made. Only the constructor raises it.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self.path, self._half = path, max_bytes // 2
        self._lock = threading.Lock()
        self._fd = -1
        self._size = 0
        self.lines: int
        """Approximate number of kept lines: the lines of a deleted file count until the next start."""
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        older, newer = (data.count(b"\n") for data in self._read())
        self.lines, self._older_lines = older + newer, older

    @property
    def older(self) -> str:
        return self.path + ".1"

    def write(self, lines: Iterable[bytes]) -> int:
        """Append lines, each with its newline, and return how many were written.

        A line longer than a segment is skipped. After an error the remaining lines are not written.
        """
        written = 0
        with self._lock:
            try:
                batch = bytearray()
                waiting = 0
                self._open()
                for line in lines:
                    if self._size + len(batch) + len(line) > self._half:
                        written += self._put(batch, waiting)
                        batch, waiting = bytearray(), 0
                        self._turn()
                    if len(line) <= self._half:
                        batch += line
                        waiting += 1
                written += self._put(batch, waiting)
            except OSError:
                self._close()
        return written

    def _put(self, batch: bytearray, lines: int) -> int:
        done = 0
        while done < len(batch):
            done += os.write(self._fd, memoryview(batch)[done:])
        self._size += len(batch)
        self.lines += lines
        return lines

    def _open(self) -> None:
        """Open the newer segment at its end; terminate a torn last line. Make a deleted file again."""
        if self._fd >= 0:
            if os.fstat(self._fd).st_nlink:
                return
            self._close()
        self._fd = os.open(
            self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self._size = os.fstat(self._fd).st_size
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            self._size += os.write(self._fd, b"\n")

    def _turn(self) -> None:
        """Rename the newer segment over the older one and begin a new one."""
        self._close()
        os.rename(self.path, self.older)
        self.lines, self._older_lines = self.lines - self._older_lines, self.lines - self._older_lines
        self._open()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> list[bytes]:
        """Read both segments, the older one first. The last line may be incomplete."""
        with self._lock:
            return self._read()

    def _read(self) -> list[bytes]:
        return [_content(self.older, self._half), _content(self.path, self._half)]

    def tail(self) -> bytes:
        """Read the last whole lines, at most 64 KiB."""
        older, newer = self.read()
        return (older[-TAIL_BYTES:] + newer)[-TAIL_BYTES:]

    def close(self) -> None:
        with self._lock:
            self._close()


def _content(path: str, limit: int) -> bytes:
    """Read a segment; only its end if it is longer than `limit` (written under a larger bound)."""
    found = b""
    with fsync.suppress_errno(errno.ENOENT, errno.EACCES, errno.EIO, errno.EISDIR, errno.ELOOP):
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                file.seek(size - limit)
            found = file.read(limit)
    return found


def decode(line: bytes, **members: type) -> dict[str, Any] | None:
    """Decode one line; None if it is torn or not an object, or if one of `members` is absent or of another
    type."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    found: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    return found if all(isinstance(found.get(name), kind) for name, kind in members.items()) else None
