"""Files without a name for data that is too large for memory; they are closed with the scope in which they
were made.

A traceback may keep the objects that use them for long, and an open file would keep the file system from
being unmounted.
"""

from __future__ import annotations

import contextlib
import tempfile
from contextvars import ContextVar, Token
from typing import IO

_open: ContextVar[list[IO[bytes]] | None] = ContextVar("layerstack.kernel.unnamed_files", default=None)


Scope = tuple[list[IO[bytes]], Token[list[IO[bytes]] | None]]


def begin() -> Scope:
    """Begin a scope in this context: `new_file` then gives files that `end` closes. Scopes nest."""
    files: list[IO[bytes]] = []
    return files, _open.set(files)


def end(scope: Scope) -> None:
    """Close the files of the scope."""
    files, token = scope
    _open.reset(token)
    for file in files:
        with contextlib.suppress(OSError):  # a full disk refused buffered bytes, which are no longer needed
            file.close()


def new_file(folder: str | None) -> IO[bytes]:
    """Make a file to write and read, on the file system of `folder`. Outside of every scope it is closed when
    its last reference ends. Raises OSError.
    """
    file = tempfile.TemporaryFile(dir=folder, buffering=1 << 18)  # noqa: SIM115
    files = _open.get()
    if files is not None:
        files.append(file)
    return file
