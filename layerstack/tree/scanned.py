"""A layer tree on disk that has one writer: capture and index read each entry once instead of three times."""

from __future__ import annotations

from collections.abc import Sequence

from layerstack.kernel.fsync import Step, no_step
from layerstack.kernel.whiteout import get_overlay_xattr
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.tree.disk import DirectoryEntry, DiskTree
from layerstack.tree.state import State

SEEN_MAX = 2_000
"""Most listings, states and opaque xattrs that are remembered; in a larger tree the rest is read again."""


class SeenTree(DiskTree):
    """A DiskTree that remembers what it read until one of its own methods changes the tree."""

    def __init__(
        self,
        root: str,
        xattr_namespace: XattrNamespace,
        *,
        aside: str = "",
        step: Step = no_step,
        room: int | None = None,
    ) -> None:
        super().__init__(root, xattr_namespace, aside=aside, step=self._changing, room=room)
        self._outer_step = step
        self._listings: dict[str, Sequence[DirectoryEntry]] = {}
        self._kept = 0  # entries of all three
        self._states: dict[str, State] = {}
        self._marks: dict[str, bytes | None] = {}

    def _changing(self, name: str) -> None:
        """Forget what was read, before each change: the `step` of the methods that change the tree."""
        self._forget()
        self._outer_step(name)

    def _forget(self) -> None:
        self._listings.clear()
        self._kept = 0
        self._states.clear()
        self._marks.clear()

    def scan(self, path: str) -> Sequence[DirectoryEntry]:
        found = self._listings.get(path)
        if found is None:
            found = super().scan(path)
            if self._kept < SEEN_MAX:
                self._listings[path] = found
                self._kept += 1 + len(found)
        return found

    def state(self, path: str) -> State:
        found = self._states.get(path)
        if found is None:
            found = super().state(path)
            if self._kept < SEEN_MAX:
                self._states[path] = found
                self._kept += 1
        return found

    def _opaque_xattr(self, path: str) -> bytes | None:
        if path in self._marks:
            return self._marks[path]
        found = get_overlay_xattr(self.full(path), self.xattr_namespace.opaque)
        if self._kept < SEEN_MAX:
            self._marks[path] = found
            self._kept += 1
        return found

    def opaque(self, path: str) -> bool:
        return self._opaque_xattr(path) == b"y"

    def xattr_whiteouts(self, path: str) -> list[str] | None:
        return super().xattr_whiteouts(path) if self._opaque_xattr(path) == b"x" else None

    def set_times(self, path: str, times: tuple[int, int]) -> None:
        self._forget()
        super().set_times(path, times)
