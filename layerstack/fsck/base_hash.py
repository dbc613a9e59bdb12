"""The hash of a base, as recorded when the store was made: over kind, path, permission bits, size, content
and attributes of all entries.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Generator

from layerstack.fsck.one_tree import in_byte_order
from layerstack.kernel import base_xattrs, content


def tree_hash(root: str, failed: Callable[[OSError], None], *, plain: bool = False) -> Generator[None, None, str]:
    """Give the SHA-256 in hex of the tree at `root`, every file read. Yields after each entry.

    Args:
        failed: called with each error of reading.
        plain: by the SHA-256 of the bytes of each file, as bases were hashed before `content` had a second
            kind of digest.
    """
    top, total = os.fsencode(root), hashlib.sha256()

    def unlisted(path: bytes, error: OSError) -> None:
        failed(error)

    for path in in_byte_order(top, unlisted):
        yield
        full = top + b"/" + path if path else top
        name = path or b"."
        try:
            status = os.lstat(full)
            bits = stat.S_IMODE(status.st_mode)
            more = b"" if stat.S_ISLNK(status.st_mode) else base_xattrs.hashed(base_xattrs.digest(base_xattrs.read(os.fsdecode(full))))
            if stat.S_ISDIR(status.st_mode):
                total.update(b"directory\0%s\0%o\0%s" % (name, bits, more))
            elif stat.S_ISLNK(status.st_mode):
                total.update(b"symlink\0%s\0%s\0" % (name, os.readlink(full)))
            elif stat.S_ISREG(status.st_mode):
                digest = content.digest_at(full, plain=plain).hex().encode()
                total.update(b"file\0%s\0%o\0%d\0%s\0%s" % (name, bits, status.st_size, digest, more))
        except OSError as error:
            failed(error)
    return total.hexdigest()
