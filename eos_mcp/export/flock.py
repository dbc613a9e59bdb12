"""A lock on an open file or directory, which the kernel releases when its owner ends: flock(2)."""

from __future__ import annotations

import errno

_BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)


def lock(fd: int) -> bool:
    """Take the exclusive lock without waiting; False while another process has it.

    True as well where the system lacks flock(2), or its file system cannot lock this kind of file.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _BUSY
    return True
