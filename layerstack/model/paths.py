"""Paths inside a tree: str as os.fsdecode gives it, relative, `/` between names, '' for the root; never `.`,
`..`, NUL or an empty name.
"""

from __future__ import annotations

import os

from layerstack.errors import InvalidPath


def check(path: str) -> str:
    """Return `path` unchanged, or raise InvalidPath. Every path from outside passes through here."""
    if path == "":
        return path
    if path.startswith("/"):
        raise InvalidPath(f"path {path!r} is absolute: paths in a tree are relative", details={"path": path})
    if "\0" in path:
        raise InvalidPath(f"path {path!r} holds a NUL byte", details={"path": path})
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidPath(
            f"path {path!r} holds a character that a file name cannot hold", details={"path": ascii(path)}
        ) from None
    for name in path.split("/"):
        if name in ("", ".", ".."):
            raise InvalidPath(f"path {path!r} holds the name {name!r}", details={"path": path})
    return path


def join(directory: str, name: str) -> str:
    """Give the path of `name` in `directory`."""
    return f"{directory}/{name}" if directory else name


def parent(path: str) -> str:
    """Give the directory that contains `path`; the root is its own parent."""
    return path.rpartition("/")[0]


def ancestors(path: str) -> list[str]:
    """List the proper ancestors, topmost first: 'a/b/c' -> '', 'a', 'a/b'; the root has none."""
    if not path:
        return []
    out, at = [""], path.find("/")
    while at >= 0:
        out.append(path[:at])
        at = path.find("/", at + 1)
    return out


def byte_order(path: str) -> bytes:
    """Sort key: the path's own bytes."""
    return os.fsencode(path)
