"""Files without a name that hold what would be too much for memory; they are closed with the scope that they were made in.

A traceback may keep the objects that use them for long: an open file would keep the file system from being unmounted.
"""

from __future__ import annotations

import contextlib
import tempfile
from contextvars import ContextVar, Token
from typing import IO

_open: ContextVar[list[IO[bytes]] | None] = ContextVar("layerstack.kernel.unnamed_files", default=None)


Scope = tuple[list[IO[bytes]], Token[list[IO[bytes]] | None]]


def begin() -> Scope:
    """From now on to `end`, in this context, `new_file` gives files that end then; scopes lie within each other."""
    files: list[IO[bytes]] = []
    return files, _open.set(files)


def end(scope: Scope) -> None:
    """Close what was made in the scope."""
    files, token = scope
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
