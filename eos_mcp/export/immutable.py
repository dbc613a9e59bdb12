"""Detect files and directories that no user may change, whatever their modes: immutable and append-only ones
(chattr(1)).
"""

from __future__ import annotations

import array
import contextlib
import os
import stat

from eos_mcp.export.dirfd import DirTree

_GET_FLAGS = 0x80086601
_FIXED = 0x10 | 0x20
"""FS_IOC_GETFLAGS; FS_IMMUTABLE_FL and FS_APPEND_FL."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


def fixed(tree: DirTree, path: bytes) -> bool:
    """Tell whether `path` has such a flag; False if the flags cannot be read."""
    try:
        import fcntl
    except ImportError:
        return False
    flags = array.array("l", [0])
    with contextlib.suppress(OSError):
        found = tree.lstat(path)
        if found is None or not (
            stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        ):  # on a device this number is another ioctl
            return False
        fd = os.open(path.rpartition(b"/")[2], _READ, dir_fd=tree.parent(path))
        try:
            fcntl.ioctl(fd, _GET_FLAGS, flags)
        finally:
            os.close(fd)
    return bool(flags[0] & _FIXED)
