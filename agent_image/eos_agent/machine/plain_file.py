"""Read text files that another user may have replaced: by a FIFO, which blocks a reader, or by an endless
file."""

from __future__ import annotations

import os
import stat

BYTES_MAX = 1 << 20
"""/etc/passwd of 10,000 users has 600 kB; the rest of a longer file is ignored."""


def read_lines(path: str, limit: int = BYTES_MAX) -> list[str]:
    """Read the lines of a regular file, up to `limit` bytes; [] if `path` names no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return []
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        try:
            return file.read(limit).decode("utf-8", "surrogateescape").split("\n")
        except OSError:
            return []
