"""The folder of unfinished and unwanted things: `staging/` of a store, empty at rest, swept at open."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterable

from layerstack.kernel import unnamed_files
from layerstack.tree.disk import PART, discard

Names = Callable[..., str]
"""(what it is for, *suffixes) -> a path in staging that nobody has, with any of the suffixes."""


SETTLE_S = 20.0
"""A removal of hundreds of thousands of files may take longer; nobody is kept for it."""


class Staging:
    """Names in one staging folder. Every name is held from before it exists until it was renamed away or removed: gc leaves it alone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self.later: Callable[[Callable[[], None]], object] | None = None
        """Runs the removal of what was thrown away, in a thread of somebody who has time; None: at once."""
        self._leaving: set[str] = set()

    def name(self, what: str) -> str:
        """A path that nobody has; nothing is made there. It is held until `forget` or `discard`."""
        return self._new(what, ("",))

    def _new(self, what: str, suffixes: tuple[str, ...]) -> str:
        path = f"{self.path}/{what}-{os.urandom(6).hex()}"
        with self._lock:
            self._held.update(path + suffix for suffix in suffixes)
        return path

    def forget(self, path: str) -> None:
        """Nothing is there any more, or gc may take what is."""
        with self._lock:
            self._held.discard(path)

    def discard(self, path: str) -> None:
        """Remove what is at a held path, best effort: what stays is swept by gc or at the next open."""
        discard(path)
        self.forget(path)

    @contextlib.contextmanager
    def scrap(self) -> Generator[Names]:
        """Gives names as `name` does, for one thing or for one of each suffix; what lies there at the end of the block is removed.

        The rows of large indexes that are made in the block are gone with it too.
        """
        made: list[str] = []

        def new(what: str, *suffixes: str) -> str:
            path = self._new(what, suffixes or ("",))
            made.extend(path + suffix for suffix in suffixes or ("",))
            return path

        rows = unnamed_files.begin()
        try:
            yield new
        finally:
            unnamed_files.end(rows)
            for path in made:
                self.discard(path)

    def throw_away(self, folder: str, also: Iterable[str] = ()) -> None:
        """Remove a folder of the same file system in one act: it is there as it was, or it is gone.

        Args:
            also: files that mean nothing without it, which go afterwards.
        Raises:
            OSError: it could not be renamed, and is there as it was.
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

    def settle(self, *, timeout_s: float = SETTLE_S) -> bool:
        """Wait until what was thrown away before this call is removed, and its space free; False when that took longer."""
        if self.later is None:
            return True
        done = threading.Event()
        self.later(done.set)
        return done.wait(timeout_s)

    def count(self) -> int:
        """Entries, without those that are being removed."""
        leaving = {os.path.basename(path) for path in self._leaving.copy()}
        return sum(name not in leaving for name in os.listdir(self.path))

    def sweep(self) -> None:
        """Remove, best effort, everything that no operation of this process holds: it is scrap by definition, the work is elsewhere."""
        found = [f"{self.path}/{name}" for name in os.listdir(self.path) if not name.startswith(PART)]
        with self._lock:  # after the listing: what was listed and is not held by now was given up
            scrap = [path for path in found if path not in self._held]
        for path in scrap:
            discard(path)

    def sweep_all(self) -> None:
        """At open, when no operation is under way. What cannot be removed stays: it is in nobody's way."""
        for name in os.listdir(self.path):
            self.remove_later(f"{self.path}/{name}")

    def remove_later(self, path: str) -> None:
        """Remove, best effort, what nobody will look for: at once, or where `later` does it. Nothing else ever has that name."""
        if self.later is None:
            discard(path)
        else:
            self.later(lambda: discard(path))
