"""Encode one entry of a base for the hash of the base.

A base's root hash is the SHA-256 of its entries in byte order of their paths, the root as `.`. An entry is
its kind, path, permission bits, and for a file size and digest (`layerstack.kernel.content`), for a symlink
the target, each ended by NUL; then, where it has attributes, `xattrs` and their digest.
"""

from __future__ import annotations

import stat

from layerstack.kernel.base_xattrs import hashed


def base_entry(path: bytes, mode: int, size: int, content: bytes, xattrs: str) -> bytes:
    """Encode one entry.

    Args:
        path: relative; empty is the root.
        mode: st_mode of a directory, symlink or regular file.
        size: of a regular file.
        content: the hex digest of a file's content, or the target of a symlink.
        xattrs: the digest of the attributes of a file or directory; empty where it has none.
    """
    name, more = path or b".", hashed(xattrs) if xattrs else b""
    if stat.S_ISREG(mode):  # most entries
        return b"file\0%s\0%o\0%d\0%s\0%s" % (name, stat.S_IMODE(mode), size, content, more)
    if stat.S_ISLNK(mode):
        return b"symlink\0%s\0%s\0%s" % (name, content, more)
    return b"directory\0%s\0%o\0%s" % (name, stat.S_IMODE(mode), more)
