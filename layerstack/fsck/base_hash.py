"""The hash of a base, computed again from its files; `layerstack.kernel.base_entry` defines it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Generator

from layerstack.fsck.one_tree import in_byte_order
from layerstack.kernel import base_xattrs, content
from layerstack.kernel.base_entry import base_entry


def tree_hash(
    root: str, failed: Callable[[OSError], None], *, plain: bool = False
) -> Generator[None, None, str]:
    """Compute the SHA-256 in hex of the tree at `root`; reads every file, and yields after each entry.

    Args:
        failed: called with the error of each entry that cannot be read.
        plain: use the SHA-256 of the bytes of each file, as bases were hashed before `content` had a second
            form.
    """
    top, total = os.fsencode(root), hashlib.sha256()

    def unlisted(path: bytes, error: OSError) -> None:
        failed(error)

    for path in in_byte_order(top, unlisted):
        yield
        full = top + b"/" + path if path else top
        try:
            status = os.lstat(full)
            mode, text, xattrs = status.st_mode, b"", ""
            if stat.S_ISLNK(mode):
                text = os.readlink(full)
            else:
                xattrs = base_xattrs.digest(base_xattrs.read(os.fsdecode(full)))
            if stat.S_ISREG(mode):
                text = content.digest_at(full, plain=plain).hex().encode()
            if stat.S_ISDIR(mode) or stat.S_ISLNK(mode) or stat.S_ISREG(mode):
                total.update(base_entry(path, mode, status.st_size, text, xattrs))
        except OSError as error:
            failed(error)
    return total.hexdigest()
