"""Check the file that a new archive would replace: an archive of an earlier export is replaced, a user's own
file is not.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from layerstack.export import pax

_ZSTD = b"\x28\xb5\x2f\xfd"
_WINDOW_MAX = 1 << 27
_EMPTY_MAX = 1 << 14
"""Limit in bytes of an empty archive: two blocks of zeros, which tar programs pad to 10 KiB."""


def check(dest: str, *, overwrite: bool) -> None:
    """Refuse to replace a file, unless it is empty or an archive that an export made.

    Args:
        overwrite: an archive that another program made, such as a backup, is replaced too. A file that is
            neither empty nor an archive never is.
    Raises:
        OperationError: operation_failed, reason export_conflict: `dest` is another file. Nothing was written.
    """
    try:
        found = os.lstat(dest)
    except OSError:
        return
    if stat.S_ISREG(found.st_mode):
        if not found.st_size:
            return
        what = f"a file of {found.st_size} bytes that is neither a tar archive nor compressed with zstd"
        with contextlib.suppress(OSError):
            packed, block = _first_block(dest)
            empty = block == pax.ZERO and found.st_size <= _EMPTY_MAX and (packed or _is_zero(dest))
            if empty or pax.is_ours(block):
                return
            if packed or block[257:262] == b"ustar":
                if overwrite:
                    return
                what = f"an archive of {found.st_size} bytes that no export has made"
    else:
        what = "a symlink" if stat.S_ISLNK(found.st_mode) else "no regular file"
    hint = "name another file as dest, or move that one away first"
    if what.startswith("an archive"):
        hint += "; on_conflict overwrite loses it"
    message = f"export to {dest}: {what} is there and would be replaced; nothing was written"
    raise OperationError(
        OPERATION_FAILED, message, {"path": dest, "dest": dest, "hint": hint}, reason="export_conflict"
    )


def _first_block(path: str) -> tuple[bool, bytes]:
    """Return True for a file compressed with zstd, and the first 512 bytes of its content, fewer if the file
    is shorter or unreadable.
    """
    with _opened(path) as fd:
        head = os.read(fd, pax.BLOCK)
        if not head.startswith(_ZSTD):
            return False, head
        import zstandard

        os.lseek(fd, 0, os.SEEK_SET)
        try:
            with (
                open(fd, "rb", closefd=False) as file,
                zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX).stream_reader(file) as out,
            ):
                return True, out.read(pax.BLOCK)
        except zstandard.ZstdError:
            return True, head


def _is_zero(path: str) -> bool:
    with _opened(path) as fd:
        return not os.read(fd, _EMPTY_MAX).strip(b"\0")


@contextlib.contextmanager
def _opened(path: str) -> Generator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
