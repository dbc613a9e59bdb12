"""A dry run of a `dir` export: reports the changes and errors that the export would have. Only reads."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from typing import Any

from eos_mcp.export import immutable
from eos_mcp.export.dirfd import DirTree

LISTED_MAX = 200
"""Maximum of changes that a dry run lists; it counts all."""


class DryRun:
    """Receives each change in the order of the stream; the caller closes `target`.

    Args:
        home: parent of the export's staging directory: the destination, or the nearest existing directory
            above it.
    """

    def __init__(self, home: str, target: DirTree | None) -> None:
        self.home, self.target = home, target
        self.folds = folds_by_names(home)
        self.changes: list[dict[str, str]] = []
        self.change_count = 0
        self._bytes: dict[bytes, int] = {b"": 0}
        self._open: dict[bytes, bool] = {}

    def change(self, action: str, path: bytes, size: int = 0, system: bytes = b"") -> None:
        """Note a change: `write`, `delete` or `mode`.

        Args:
            system: the directory of the destination at which the path's file system begins.
        Raises:
            OSError: the kernel's error that the export would get for this path.
        """
        self.change_count += 1
        if len(self.changes) < LISTED_MAX:
            self.changes.append({"action": action, "path": path.decode("utf-8", "replace")})
        if action != "mode" and system not in self._bytes and self.target is not None:
            _check_system(self.target, system)
        self._bytes[system] = self._bytes.get(system, 0) + size
        old = None if self.target is None else self.target.lstat(path)
        if action == "mode":
            self._own(path, old)
            return
        if self.target is not None:
            self._may_change(path, old, self.target)

    def room(self) -> None:
        """Raises OSError, ENOSPC: a file system of the destination has less room than the files need that
        would be written.
        """
        for system, needed in self._bytes.items():
            check_room(os.path.join(self.home, os.fsdecode(system)) if system else self.home, needed)

    def to_json(self) -> dict[str, Any]:
        return {"dry_run": True, "changes": self.changes, "change_count": self.change_count}

    # errors of the kernel

    def _own(self, path: bytes, old: os.stat_result | None) -> None:
        if old is not None and os.geteuid() not in (0, old.st_uid):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)

    def _may_change(self, path: bytes, old: os.stat_result | None, target: DirTree) -> None:
        above = path.rpartition(b"/")[0]
        may = self._open.get(above)
        if may is None:
            if len(self._open) > 1000:
                self._open.clear()
            parent = target.lstat(above) if above else os.fstat(target.fd)
            # the export makes a missing directory, and adds permissions to one of this user's
            may = self._open[above] = (
                parent is None
                or not stat.S_ISDIR(parent.st_mode)
                or (bool(above) and parent.st_uid == os.geteuid())
                or _access(b".", target.fd if not above else target.parent(above + b"/x"))
            )
        if not may:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        if immutable.fixed(target, path) or (above and immutable.fixed(target, above)):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        if (
            old is not None
            and stat.S_ISDIR(old.st_mode)
            and not _access(path.rpartition(b"/")[2], target.parent(path))
        ):
            raise OSError(
                errno.EACCES, os.strerror(errno.EACCES), path
            )  # rename(2) of a directory into another writes its `..`


def _check_system(target: DirTree, point: bytes) -> None:
    """Raise the OSError that a staging directory in a mount point of the destination would get."""
    below = target.below(point)
    try:
        if not _access(b".", below.fd):
            code = errno.EROFS if os.fstatvfs(below.fd).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code), point)
    finally:
        below.close()


def check_home(dest: str) -> str:
    """Return the directory to which an export to `dest` (resolved, absolute) would write first: `dest`, or
    the nearest existing directory above it.

    Raises:
        OSError: `dest` would not be in a directory, the directory is not writable, or it is on a read-only
            file system.
    """
    home = dest
    while not os.path.lexists(home):
        home = os.path.dirname(home)
    if not os.path.isdir(home):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), home)
    if not _access(home, None):
        code = errno.EROFS if os.statvfs(home).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(code, os.strerror(code), home)
    return home


def check_room(directory: str, needed: int) -> None:
    """Raises OSError, ENOSPC: `needed` bytes do not fit on the file system of `directory`."""
    found = os.statvfs(directory)
    if needed > found.f_bavail * found.f_frsize:
        raise OSError(
            errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed} bytes would be written", directory
        )


def folds_by_names(directory: str) -> bool:
    """Tell whether this file system folds case in names, by existing names: those in the directory, then its
    own.

    False when no name with two spellings exists (the empty root of a volume).
    """
    place = os.path.realpath(directory)
    device = os.lstat(place).st_dev
    with os.scandir(place) as entries:
        for entry in entries:
            if (other_spelling := _spelt_twice(place, entry.name)) is not None:
                return other_spelling
    while os.path.dirname(place) != place and os.lstat(os.path.dirname(place)).st_dev == device:
        above, name = os.path.split(place)
        if (other_spelling := _spelt_twice(above, name)) is not None:
            return other_spelling
        place = above
    return False


def _spelt_twice(directory: str, name: str) -> bool | None:
    """Tell whether another spelling of a name is the same file; None without another spelling, or when a
    different file has it.
    """
    try:
        others = {name.swapcase(), unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)} - {
            name
        }
        own = os.lstat(os.path.join(directory, name))
    except (OSError, ValueError):
        return None
    answers: list[bool] = []
    for other in others:
        try:
            answers.append(os.path.samestat(own, os.lstat(os.path.join(directory, other))))
        except FileNotFoundError:
            answers.append(False)
        except (OSError, ValueError):
            continue
    return any(answers) if answers else None


def _access(path: str | bytes, dir_fd: int | None) -> bool:
    """Check write and search permission of the effective user."""
    effective = os.access in os.supports_effective_ids
    return os.access(path, os.W_OK | os.X_OK, dir_fd=dir_fd, effective_ids=effective)
