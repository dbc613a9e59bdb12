"""Walk a tree in byte order of names, from any place on, without `.git` and what .gitignore excludes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from typing import NamedTuple, Protocol

from eos_agent.files.dirfd import DIR_FLAGS, directory, lstat, not_found, open_regular, parent_of
from eos_agent.wire.protocol import OperationError
from layerstack.model.paths import join
from layerstack.text.gitignore import IgnoreRules

IGNORE_FILE_BYTES = 1 << 20


class Visitor(Protocol):
    """The page that a walk fills."""

    def pass_by(self, path: str) -> None:
        """Take note that everything before the directory `path` was visited."""

    def not_read(self, error: OSError) -> None:
        """Take note of an entry that cannot be read."""

    def left_out(self, path: str) -> None:
        """Take note of an ignored directory, which is not entered."""


class WalkEntry(NamedTuple):
    """One entry that is not a directory: `name` in the open directory `dir_fd`, which the walk closes."""

    path: str
    name: str
    dir_fd: int
    stat: os.stat_result


class Walk:
    """The entries below `top`, a directory, that are not directories; nothing is left out if `top` is itself
    in `.git` or ignored.

    Args:
        start: path of the first entry, or None.
    """

    def __init__(
        self, root_fd: int, top: str, start: str | None, visitor: Visitor, *, include_ignored: bool
    ) -> None:
        self._root_fd, self._top, self._start, self._visitor = root_fd, top, start, visitor
        self._rules = IgnoreRules(lambda path: _small_file(root_fd, path))
        self._all = include_ignored or (bool(top) and self._rules.ignored(top, True))

    def excludes(self, path: str) -> bool:
        """Test that a file is ignored, and that ignored files are left out."""
        return not self._all and self._rules.ignored(path, False)

    def entries(self) -> Generator[WalkEntry]:
        """Yield the entries; the caller decides which of them `excludes` leaves out.

        Raises:
            OperationError: not_found, or invalid_request: `top` is not a directory.
        """
        with directory(self._root_fd, self._top) as top_fd:
            stack = [_Folder(self._top, os.dup(top_fd), self._resume(self._top))]
            try:
                while stack:
                    folder = stack[-1]
                    name = folder.next()
                    if name is None:
                        os.close(stack.pop().fd)
                        continue
                    if name == ".git":
                        continue
                    path = join(folder.path, name)
                    try:
                        found = lstat(name, folder.fd)
                        if found is not None and stat.S_ISDIR(found.st_mode):
                            self._enter(path, name, folder.fd, stack)
                            continue
                    except OSError as error:
                        self._visitor.not_read(error)
                        continue
                    if found is not None:
                        yield WalkEntry(path, name, folder.fd, found)
            finally:
                for folder in stack:
                    os.close(folder.fd)

    def _enter(self, path: str, name: str, dir_fd: int, stack: list[_Folder]) -> None:
        if not self._all and self._rules.ignored(path, True):
            self._visitor.left_out(path)
            return
        inside = self._start is not None and self._start.startswith(path + "/")
        self._visitor.pass_by(self._start if inside and self._start is not None else path)
        stack.append(_Folder(path, os.open(name, DIR_FLAGS, dir_fd=dir_fd), self._resume(path)))

    def _resume(self, path: str) -> bytes:
        """Return the first name in the directory `path` that is not visited yet."""
        prefix = path + "/" if path else ""
        if self._start is None or not self._start.startswith(prefix):
            return b""
        return os.fsencode(self._start[len(prefix) :].split("/", 1)[0])


class _Folder:
    """A directory of the walk, and those of its names that are not visited yet."""

    def __init__(self, path: str, fd: int, resume: bytes) -> None:
        self.path, self.fd = path, fd
        self._names = sorted((raw for raw in map(os.fsencode, os.listdir(fd)) if raw >= resume), reverse=True)

    def next(self) -> str | None:
        return os.fsdecode(self._names.pop()) if self._names else None


def is_directory(root_fd: int, path: str) -> bool:
    """Test that `path` is a directory. Raises OperationError, not_found, if it is absent."""
    with parent_of(root_fd, path) as (parent, name):
        found = lstat(name, parent)
        if found is None:
            raise not_found(path)
        return stat.S_ISDIR(found.st_mode)


@contextlib.contextmanager
def opened_regular(path: str, name: str, dir_fd: int) -> Generator[int]:
    """Open a regular file; raises OperationError for any other kind."""
    fd = open_regular(path, name, dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _small_file(root_fd: int, path: str) -> bytes | None:
    """Read a .gitignore; None if it is absent or not a regular file."""
    try:
        with parent_of(root_fd, path) as (parent, name), opened_regular(path, name, parent) as fd:
            return os.pread(fd, IGNORE_FILE_BYTES, 0)
    except (OSError, OperationError):
        return None
