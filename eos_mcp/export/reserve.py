"""Reserved space for records of exports on a full disk: files of zeros, made while there is room. One becomes
the record and is overwritten in place.

    <state>/exports/<n>.reserve     64 KiB each; renamed to `<random>.record` where the disk has no room for a
                                    new file, and back when it is dropped

So an export to another disk needs no space on the full disk. A record in such a file has the same lines,
followed by zero bytes.
"""

from __future__ import annotations

import contextlib
import os
import stat

from eos_mcp.export.flock import lock
from layerstack.kernel.fsync import fsync_dir

SUFFIX = ".reserve"
FILES = 2
"""Number of simultaneous exports with reserved space."""
SIZE = 1 << 16
_OPEN = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def keep(folder: str) -> None:
    """Make the missing reserve files, as far as there is room; an existing file costs a stat(2)."""
    for number in range(FILES):
        path = os.path.join(folder, f"{number}{SUFFIX}")
        if os.path.exists(path):
            continue
        made = f"{path}.{os.urandom(4).hex()}"
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                zero(fd)
                os.rename(made, path)
            finally:
                os.close(fd)
            fsync_dir(folder)
        except OSError:  # no room now: the next export tries again
            with contextlib.suppress(OSError):
                os.unlink(made)
            return


def acquire(folder: str, name: str) -> int | None:
    """Rename a reserve file to `name` in its directory; return it open and locked. None: all are in use."""
    for number in range(FILES):
        path = os.path.join(folder, f"{number}{SUFFIX}")
        try:
            fd = os.open(path, _OPEN)
        except OSError:
            continue
        try:
            found = os.fstat(fd)
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_size == SIZE
            if (
                ours and lock(fd) and os.path.samestat(found, os.lstat(path))
            ):  # no other process has renamed it
                os.rename(path, os.path.join(folder, name))
                return fd
        except OSError:
            pass
        os.close(fd)
    return None


def give_back(fd: int, path: str) -> bool:
    """Rename the record at `path` back to a reserve file; False: the record was not one, or all reserve files
    exist: the caller removes it.
    """
    if os.fstat(fd).st_size != SIZE:
        return False
    folder = os.path.dirname(path)
    for number in range(FILES):
        place = os.path.join(folder, f"{number}{SUFFIX}")
        if not os.path.lexists(place):
            zero(fd)
            os.rename(path, place)
            return True
    return False


def zero(fd: int) -> None:
    """Overwrite the whole file with zeros, durably."""
    at = 0
    while at < SIZE:
        at += os.pwrite(fd, bytes(SIZE - at), at)
    os.fsync(fd)
