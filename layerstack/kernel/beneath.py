"""Open a path below a directory in one call that follows no link: openat2(2). ADR 0067.

A walk, which opens each component from its parent, has the same result. The caller walks where the call is
not available (other systems, kernels before 5.6, filters that refuse it, paths of PATH_MAX bytes or more),
and to find the component that an error is about.
"""

from __future__ import annotations

import functools
import os
import sys

from layerstack.kernel import syscalls

RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS


def open_beneath(dir_fd: int, path: str | bytes, flags: int) -> int | None:
    """Open a relative path below `dir_fd`. Mounts are crossed, as a walk does.

    Returns:
        A descriptor that the caller owns; None where the caller has to walk: after any error, and for a
        single name, which a walk opens with the same one call.
    """
    raw = os.fsencode(path)
    if b"/" not in raw or not _is_there():
        return None
    try:
        return syscalls.openat2(dir_fd, raw, flags | os.O_CLOEXEC, 0, RESOLVE)
    except OSError:
        return None


@functools.cache
def _is_there() -> bool:
    """True if this process may call openat2(2), tried once: ENOSYS or EPERM would be the answer each time."""
    if sys.platform != "linux":
        return False
    try:
        os.close(syscalls.openat2(syscalls.AT_FDCWD, b"/", os.O_PATH | os.O_CLOEXEC, 0, 0))
    except OSError:
        return False
    return True
