"""A lock on an open file or directory that the kernel ends with its holder: flock(2)."""

from __future__ import annotations

import errno

_BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)


def lock(fd: int) -> bool:
    """Take the exclusive lock without waiting; False while another process has it.

    Where the system has no flock(2), or its file system cannot lock this kind of file, the answer is True.
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
