"""A view with everything that a restore brings back: also special files, times, and which names are of one
file."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple


class Seen(NamedTuple):
    """One path: mode with its kind, owner, group, time, size, device, content or target, xattrs, and the
    first path of the same file.
    """

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    rdev: int
    body: bytes
    xattrs: tuple[tuple[str, bytes], ...]
    first: str


def whole_view(root: str) -> dict[str, Seen]:
    """Read the tree at `root`. Opens no special file."""
    found: dict[str, Seen] = {}
    firsts: dict[tuple[int, int], str] = {}

    def visit(path: str) -> None:
        full = f"{root}/{path}" if path else root
        s = os.lstat(full)
        body = b""
        if stat.S_ISREG(s.st_mode):
            with open(full, "rb") as file:
                body = file.read()
        elif stat.S_ISLNK(s.st_mode):
            body = os.fsencode(os.readlink(full))
        xattrs = (
            ()
            if stat.S_ISLNK(s.st_mode)
            else tuple(
                (name, os.getxattr(full, name))
                for name in sorted(os.listxattr(full))
                if name.startswith("user.")
            )
        )
        is_directory = stat.S_ISDIR(s.st_mode)
        first = path if is_directory else firsts.setdefault((s.st_dev, s.st_ino), path)
        size = 0 if is_directory else s.st_size
        found[path] = Seen(s.st_mode, s.st_uid, s.st_gid, s.st_mtime_ns, size, s.st_rdev, body, xattrs, first)
        if is_directory:
            for name in sorted(os.listdir(full), key=os.fsencode):
                visit(f"{path}/{name}" if path else name)

    visit("")
    return found
