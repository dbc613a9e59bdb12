"""Check the disk space for a publish before the session's processes are ended: if the publish fails after
that, the session may end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerstack.store import Store

PLENTY_BYTES, PLENTY_FILES = 16 * 1024 * 1024, 1024
"""Free bytes and inodes with which the check allocates no file."""
NEED_BYTES, NEED_PER_PATH = 256 * 1024, 512
"""Bytes for manifests, metadata and directories, and for a line of the index per path."""


def check(store: Store, paths: int) -> None:
    """Raise OSError (ENOSPC, EDQUOT) if the metadata of a publish of `paths` paths does not fit.

    Cost: one statvfs(2) on a disk with plenty of space. Else a file is allocated in staging and removed,
    which also shows quotas and reserved blocks.
    """
    found = os.statvfs(store.root)
    need = NEED_BYTES + NEED_PER_PATH * paths
    if found.f_bavail * found.f_frsize >= PLENTY_BYTES + need and (
        not found.f_files or found.f_favail >= PLENTY_FILES
    ):
        return
    with store.staging.temporary_names() as new_name:
        path = new_name("room")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, need)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)
