"""Whiteouts and opaque marks on disk: "this name is gone", "nothing below this directory shows through".

Source: overlayfs.rst, "whiteouts and opaque directories". A whiteout is a character device 0:0, or an empty regular file with the xattr
`<namespace>whiteout` in a directory whose opaque mark is `x`. The kernel makes the first only; the second is for transports that cannot carry
devices. A look-up takes the xattr alone for a whiteout, whatever the directory is marked: `x` only has it left out of listings.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerstack.kernel.xattrs import Form

_ABSENT = (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM)


def is_whiteout(status: os.stat_result) -> bool:
    """Does the result of an lstat show a whiteout?"""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_plain_file_whiteout(path: str, size: int, form: Form) -> bool:
    """Is the regular file at `path` a whiteout in the form that needs no device?"""
    return size == 0 and get_mark(path, form.whiteout) is not None


def make_whiteout(path: str) -> None:
    """A whiteout at `path`, which must not exist. Allowed inside a user namespace as well."""
    os.mknod(path, stat.S_IFCHR, 0)


def get_mark(path: str, name: str) -> bytes | None:
    """The xattr `name` of `path` itself, or None."""
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise


def is_opaque(path: str, form: Form) -> bool:
    """Is the directory at `path` marked opaque?"""
    return get_mark(path, form.opaque) == b"y"


def has_plain_file_whiteouts(path: str, form: Form) -> bool:
    """Is the directory at `path` marked as one in which whiteouts may be plain files?"""
    return get_mark(path, form.opaque) == b"x"


def set_opaque(path: str, form: Form) -> None:
    """Mark the directory at `path` opaque."""
    os.setxattr(path, form.opaque, b"y", follow_symlinks=False)
