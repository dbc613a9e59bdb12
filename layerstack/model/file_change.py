"""The change of one file, among several that are published together."""

from __future__ import annotations

from typing import NamedTuple


class FileChange(NamedTuple):
    """The state of `path` after the change."""

    path: str
    data: bytes | None
    """None: the file is deleted."""
    like: str | None
    """Existing path whose mode, owner and xattrs the file gets; None: a new file."""
    executable: bool | None = None
    """Set or clear the executable bits; None: leave them."""

    def mode(self, mode: int) -> int:
        """The permission bits, from those of `like` or of a new file."""
        if self.executable is None:
            return mode
        return mode | ((mode & 0o444) >> 2) if self.executable else mode & ~0o111
