"""Access control lists in the kernel's form, so that tests need no program for them (`getfacl` is not on
every machine).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

ACL, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHERS = 1, 2, 4, 8, 16, 32
NO_ID = 0xFFFFFFFF

Rows = tuple[tuple[int, int, int], ...]
"""(tag, permissions, id) in the order of the kernel."""


def packed(*rows: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


def unpacked(value: bytes) -> Rows:
    return tuple(struct.iter_unpack("<HHI", value[4:]))  # type: ignore[arg-type]


def for_user(uid: int, may: int, *, owner: int = 7, group: int = 5, mask: int = 7, others: int = 5) -> bytes:
    """A list with one named user beside the usual three entries."""
    return packed(
        (OWNER, owner, NO_ID),
        (USER, may, uid),
        (GROUP, group, NO_ID),
        (MASK, mask, NO_ID),
        (OTHERS, others, NO_ID),
    )


def named(path: str | Path, which: str = ACL) -> dict[int, int]:
    """Return the named users and their permissions; empty without a list."""
    try:
        rows = unpacked(os.getxattr(path, which))
    except OSError:
        return {}
    return {uid: may for tag, may, uid in rows if tag == USER}
