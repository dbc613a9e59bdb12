"""`staging/` of a store: unfinished and unwanted files. Empty at rest, swept at open."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from layerstack.kernel import unnamed_files
from layerstack.tree.disk import PART, discard

Names = Callable[..., str]
"""(purpose, *suffixes) -> an unused path in staging, unused with each suffix too."""


REMOVAL_WAIT_S = 20.0
"""Longest wait for a removal; hundreds of thousands of files may take longer, and no caller waits for
them.
"""


class Staging:
    """Names in one staging directory. A name is held from its reservation until its entry was renamed away or
    removed; gc removes no entry of a held name.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self.later: Callable[[Callable[[], None]], object] | None = None
        """Function that runs the removal of discarded directories in another thread; None: they are removed
        at once.
        """
        self._leaving: set[str] = set()

    def name(self, what: str, *suffixes: str) -> str:
        """Reserve an unused path, with each suffix if some are given, until `forget` or `discard`; nothing is
        created.
        """
        path = f"{self.path}/{what}-{os.urandom(6).hex()}"
        with self._lock:
            self._held.update([path + suffix for suffix in suffixes or ("",)])
        return path

    def forget(self, *paths: str) -> None:
        """Release paths: they were renamed away, or gc may remove them."""
        with self._lock:
            self._held.difference_update(paths)

    def holds(self, path: str) -> bool:
        """Check whether a path is reserved."""
        return path in self._held

    def discard(self, path: str) -> None:
        """Remove the entry at a held path, best effort; gc or the next open removes leftovers."""
        discard(path)
        self.forget(path)

    def temporary_names(self) -> contextlib.AbstractContextManager[Names]:
        """Give a function that reserves names as `name` does, one for each suffix; at the end of the block
        the entries of those that are still held are removed.

        Unnamed files that are made in the block, such as the rows of large indexes, are closed with it.
        """
        return _TemporaryNames(self)

    def discard_directory(self, folder: str, also: Iterable[str] = ()) -> None:
        """Remove a directory of the same file system in one act: after an error it is unchanged, else gone.

        Args:
            also: files that belong to it, and are removed afterwards.
        Raises:
            OSError: it could not be renamed, and is unchanged.
        """
        gone = self.name("gone")
        try:
            os.rename(folder, gone)
        except OSError:
            self.forget(gone)
            raise
        if self.later is None:
            self._remove(gone, also)
        else:
            self._leaving.add(gone)
            self.later(lambda: self._remove(gone, also))

    def _remove(self, gone: str, also: Iterable[str]) -> None:
        self.discard(gone)
        for path in also:
            discard(path)
        self._leaving.discard(gone)

    def wait_removed(self, *, timeout_s: float = REMOVAL_WAIT_S) -> bool:
        """Wait until everything discarded before this call is removed and its space is free; False when that
        takes longer.
        """
        if self.later is None:
            return True
        done = threading.Event()
        self.later(done.set)
        return done.wait(timeout_s)

    def count(self) -> int:
        """Count the entries, without those that are being removed."""
        leaving = {os.path.basename(path) for path in self._leaving.copy()}
        return sum(name not in leaving for name in os.listdir(self.path))

    def sweep(self) -> None:
        """Remove, best effort, every entry that no operation of this process holds: staging never contains
        the only copy of work.
        """
        found = [f"{self.path}/{name}" for name in os.listdir(self.path) if not name.startswith(PART)]
        with self._lock:  # after the listing: an entry that was listed and is not held now was released
            temporary_names = [path for path in found if path not in self._held]
        for path in temporary_names:
            discard(path)

    def sweep_all(self) -> None:
        """Remove every entry, at open, when no operation runs. An entry that cannot be removed stays, and
        does no harm.
        """
        for name in os.listdir(self.path):
            self.remove_later(f"{self.path}/{name}")

    def remove_later(self, path: str) -> None:
        """Remove, best effort, an entry whose name is never used again: at once, or where `later` runs it."""
        if self.later is None:
            discard(path)
        else:
            self.later(lambda: discard(path))


class _TemporaryNames:
    """Block of `Staging.temporary_names`."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._made: list[str] = []

    def __enter__(self) -> Names:
        self._rows = unnamed_files.begin()
        return self._new

    def _new(self, what: str, *suffixes: str) -> str:
        path = self._staging.name(what, *suffixes)
        self._made += [path + suffix for suffix in suffixes or ("",)]
        return path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unnamed_files.end(self._rows)
        staging = self._staging
        for path in self._made:
            if staging.holds(path):
                staging.discard(path)
