"""Files of the destination with several hard links: an export never changes them through one name.

A file of the destination that already has the content of its entry stays in place. But if it has a further
hard link that the delta does not name, in the destination or outside, it is replaced by a copy. So the other
name keeps its mode and its time, and later writes to one do not change the other.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from typing import NamedTuple

from eos_mcp.export.dirfd import DirTree, copy_data
from layerstack.export import pax


class Held(NamedTuple):
    """A file whose content is equal, until all names of the delta are known."""

    n: int
    header: pax.Header
    status: os.stat_result
    names: list[tuple[int, pax.Header]]
    """Hard links to it in the delta."""
    seen: list[bytes]
    """Names of the delta that already are this inode in the destination, the file's own first."""


class Names:
    """The held files of one export. Memory: a few hundred bytes for each file of the delta that has several
    names in the destination.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, Held] = {}

    def hold(self, n: int, header: pax.Header, status: os.stat_result) -> None:
        self._held[header.path] = Held(n, header, status, [], [header.path])

    def linked(self, n: int, header: pax.Header, old: os.stat_result | None) -> None:
        """Note a hard link of the delta; `old`: the destination's entry at its path."""
        held = self._held.get(header.target)
        if held is not None:
            held.names.append((n, header))
            if old is not None and os.path.samestat(old, held.status):
                held.seen.append(header.path)

    def shared(self) -> list[Held]:
        """List the files that have a name outside the delta, and the files whose mode changes, since the
        change would apply to all names.
        """
        return [
            held
            for held in self._held.values()
            if len(held.seen) < held.status.st_nlink or stat.S_IMODE(held.status.st_mode) != held.header.mode
        ]


@contextlib.contextmanager
def copied(source: int, place: DirTree, name: bytes, status: os.stat_result) -> Generator[int]:
    """Make a file `name` in `place` with the content of an open file; the caller sets owner, mode and
    times.
    """
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place.fd)
    try:
        copy_data(source, fd, status.st_size)
        os.ftruncate(fd, status.st_size)
        yield fd
    finally:
        os.close(fd)


def is_shared(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1
