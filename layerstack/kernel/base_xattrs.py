"""Extended attributes of a base: which are kept, as what they are stored in each form of overlay, and how they enter the hash of the base."""

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
    """What the store over a base is like."""

    escape: bool = False
    """Its overlays keep their own marks as `user.overlay.*` (an ordinary user's do): those of the files get another name, and are seen under their own."""
    acls: bool = True
    """Access control lists may name any user there; in a user namespace such a list cannot be written again."""


ALL = Keeping()


def read(place: str | int) -> dict[str, bytes]:
    """Those of a file or directory, by path (of a symlink its own) or descriptor, that a base can keep: `user.*` and access control lists."""
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
                if error.errno not in _NONE:  # it went meanwhile
                    raise
    return found


def stored(found: Mapping[str, bytes], keeping: Keeping) -> dict[str, bytes]:
    """Under the names that the base has them."""
    out: dict[str, bytes] = {}
    for name, value in found.items():
        if name in ACLS and not keeping.acls:
            continue
        out[USER.stored(name) if keeping.escape else name] = value
    return out


def varies(found: Mapping[str, bytes]) -> bool:
    """Whether two kinds of keeping store them in different ways."""
    return any(name in ACLS or name.startswith(USER.namespace) for name in found)


def digest(found: Mapping[str, bytes]) -> str:
    """Hex digits over names and values as they are stored; empty for none."""
    if not found:
        return ""
    total = hashlib.sha256()
    for name in sorted(found):
        total.update(b"%s\0%d\0%s" % (os.fsencode(name), len(found[name]), found[name]))
    return total.hexdigest()


def hashed(told: str) -> bytes:
    """What a digest adds to the entry of its file in the hash of a base: nothing where there are none, so that older hashes stay as they are."""
    return b"xattrs\0%s\0" % told.encode() if told else b""
