"""Extended attributes of a base: which are kept, under which names in each xattr namespace of overlayfs, and
how they enter the hash of the base.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from layerstack.kernel.xattrs import USER

ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_NONE = (errno.EOPNOTSUPP, errno.ENODATA, errno.ENOSYS)


class Keeping(NamedTuple):
    """The rule by which the store over a base keeps attributes."""

    escape: bool = False
    """The store's overlays use `user.overlay.*`, as those of an ordinary user do: file attributes with such
    names are stored escaped, and shown under their own name.
    """
    acls: bool = True
    """Access control lists are kept. False inside a user namespace, where a list that names any other user
    cannot be written again.
    """


ALL = Keeping()


def read(place: str | int) -> dict[str, bytes]:
    """Read the attributes of a file or directory that a base can keep: `user.*` and access control lists.
    `place` is a path (of a symlink, its own attributes are read) or a descriptor.
    """
    if not hasattr(os, "listxattr"):
        return {}
    try:
        names = os.listxattr(place, follow_symlinks=isinstance(place, int))
    except OSError as error:
        if error.errno in _NONE:
            return {}
        raise
    found: dict[str, bytes] = {}
    for name in names:
        if name.startswith("user.") or name in ACLS:
            try:
                found[name] = os.getxattr(place, name, follow_symlinks=isinstance(place, int))
            except OSError as error:
                if error.errno not in _NONE:  # removed since it was listed
                    raise
    return found


def stored(found: Mapping[str, bytes], keeping: Keeping) -> dict[str, bytes]:
    """Rename attributes to the names under which the base stores them."""
    out: dict[str, bytes] = {}
    for name, value in found.items():
        if name in ACLS and not keeping.acls:
            continue
        out[USER.stored(name) if keeping.escape else name] = value
    return out


def varies(found: Mapping[str, bytes]) -> bool:
    """Check whether two values of `Keeping` store these attributes in different ways."""
    return any(name in ACLS or name.startswith(USER.prefix) for name in found)


def digest(found: Mapping[str, bytes]) -> str:
    """Give the digest of names and values as stored, in hex; empty when there are none."""
    if not found:
        return ""
    total = hashlib.sha256()
    for name in sorted(found):
        total.update(b"%s\0%d\0%s" % (os.fsencode(name), len(found[name]), found[name]))
    return total.hexdigest()


def hashed(digest: str) -> bytes:
    """Give the bytes that a digest adds to its file's entry in the hash of a base: none without attributes,
    so that hashes made before attributes were kept stay valid.
    """
    return b"xattrs\0%s\0" % digest.encode() if digest else b""
