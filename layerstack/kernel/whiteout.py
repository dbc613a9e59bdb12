"""Whiteouts and opaque directories on disk: "this name is deleted", "no lower layer is visible below this
directory".

Source: overlayfs.rst, "whiteouts and opaque directories". A whiteout is a character device 0:0, or an empty
regular file with the xattr `<namespace>whiteout` in a directory whose opaque xattr is `x`. The kernel makes
the first only; the second is for transports that cannot carry devices. A look-up takes the xattr alone for a
whiteout, whatever the directory's opaque xattr; `x` only removes it from listings.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerstack.kernel.xattrs import XattrNamespace

_ABSENT = (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM)


def is_whiteout(status: os.stat_result) -> bool:
    """Check whether the result of an lstat is that of a whiteout."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_xattr_whiteout(path: str, size: int, xattr_namespace: XattrNamespace) -> bool:
    """Check whether the regular file at `path` is a whiteout that needs no device."""
    return size == 0 and get_overlay_xattr(path, xattr_namespace.whiteout) is not None


def make_whiteout(path: str) -> None:
    """Make a whiteout at `path`, which must not exist. Allowed inside a user namespace as well."""
    os.mknod(path, stat.S_IFCHR, 0)


def get_overlay_xattr(path: str, name: str) -> bytes | None:
    """Read the xattr `name` of `path` itself, or None."""
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise


def is_opaque(path: str, xattr_namespace: XattrNamespace) -> bool:
    """Check whether the directory at `path` is opaque."""
    return get_overlay_xattr(path, xattr_namespace.opaque) == b"y"


def has_xattr_whiteouts(path: str, xattr_namespace: XattrNamespace) -> bool:
    """Check whether whiteouts in the directory at `path` may be plain files."""
    return get_overlay_xattr(path, xattr_namespace.opaque) == b"x"


def set_opaque_xattr(path: str, xattr_namespace: XattrNamespace) -> None:
    """Make the directory at `path` opaque."""
    os.setxattr(path, xattr_namespace.opaque, b"y", follow_symlinks=False)
