"""A disk whose figures count: an ext4 with a journal. Where the machine's own has none, root makes one in a
file, on a loop device.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator

from layerstack.kernel import fsync

SIZE_BYTES = 16 << 30
"""Of the file, which is sparse."""


@contextlib.contextmanager
def journaled() -> Generator[tuple[str | None, str]]:
    """(a folder on such a disk, or None for the ordinary one; what to say about it)."""
    temporary = tempfile.gettempdir()
    if fsync.keeps_order(temporary):
        yield None, "a file system with an ordered journal"
        return
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        yield None, "a file system WITHOUT an ordered journal: each directory gets an fsync of its own"
        return
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="eos-disk-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        image, at = f"{folder}/image", f"{folder}/at"
        os.mkdir(at)
        with open(image, "wb") as file:
            file.truncate(SIZE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-i", "8192", image)
        try:
            _run("mount", "-o", "loop", image, at)
        except subprocess.CalledProcessError:
            yield None, "a file system WITHOUT an ordered journal, and no loop device to be had"
            return
        stack.callback(_run, "umount", "--lazy", at)  # a row that failed may have left something open
        yield at, "an ext4 with a journal in a file on a loop device (the disk's own has none)"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=120)
