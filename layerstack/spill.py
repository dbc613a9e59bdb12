"""Files without a name that hold what would be too much for memory; they are closed with the scope that they were made in.

A traceback may keep the objects that use them for long: an open file would keep the file system from being unmounted.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator
from contextvars import ContextVar
from typing import IO

_open: ContextVar[list[IO[bytes]] | None] = ContextVar("layerstack.spill", default=None)


@contextlib.contextmanager
def scope() -> Generator[None]:
    """What `new_file` gives in this block, and not in one within it, is closed at its end."""
    files: list[IO[bytes]] = []
    token = _open.set(files)
    try:
        yield
    finally:
        _open.reset(token)
        for file in files:
            with contextlib.suppress(OSError):  # what a full disk did not take is no longer wanted
                file.close()


def new_file(folder: str | None) -> IO[bytes]:
    """A file to write and read, on the file system of `folder`. Outside of every scope it is closed when nothing refers to it. Raises OSError."""
    file = tempfile.TemporaryFile(dir=folder, buffering=1 << 18)  # noqa: SIM115
    files = _open.get()
    if files is not None:
        files.append(file)
    return file
