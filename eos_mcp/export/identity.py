"""The identity of a destination: tells if it is the directory of an earlier export, on the same branch. In
another directory or on another branch, a missing file does not mean that the user deleted it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

from eos_mcp.export.dirfd import DirTree

HEAD_MAX = 4096
_BTIME = 0x800
_EMPTY_PATH = 0x1000


class DirectoryIdentity(NamedTuple):
    """Device, inode and time of birth in ns (0: not known) of a directory, and the text of its
    `.git/HEAD`.
    """

    device: int
    inode: int
    born_ns: int
    branch: str


def identity_of(tree: DirTree) -> DirectoryIdentity:
    found = os.fstat(tree.fd)
    return DirectoryIdentity(found.st_dev, found.st_ino, _born_ns(tree.fd), _branch(tree))


def _branch(tree: DirTree) -> str:
    fd = tree.open_file(b".git/HEAD")
    if fd is None:
        fd = tree.open_file(b".git")  # a linked worktree: its HEAD is elsewhere, named by untrusted content
    if fd is None:
        return ""
    try:
        return os.read(fd, HEAD_MAX).decode("utf-8", "replace")
    finally:
        os.close(fd)


def _born_ns(fd: int) -> int:
    """Return the time of birth of statx(2); 0 where the system or the file system has none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, TypeError, AttributeError):
        return int(getattr(os.fstat(fd), "st_birthtime", 0) * 1_000_000_000)
    buffer = (ctypes.c_uint8 * 256)()
    if call(ctypes.c_int(fd), b"", ctypes.c_int(_EMPTY_PATH), ctypes.c_uint(_BTIME), buffer) < 0:
        return 0
    mask, seconds, nanoseconds = (
        struct.unpack_from(form, bytes(buffer), at)[0] for form, at in (("=I", 0), ("=q", 80), ("=I", 88))
    )
    return int(seconds) * 1_000_000_000 + int(nanoseconds) if mask & _BTIME else 0
