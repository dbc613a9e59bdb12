"""View of an unfinished layer on top of the head, with the edits that the resolution of conflicts needs: make
room for an entry, show the head's, find a free name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator

from layerstack.layers.chain import Chain
from layerstack.model.paths import ancestors, join
from layerstack.model.paths import parent as parent_of
from layerstack.publish.edits import Bring, Drop, Edit, Write
from layerstack.tree.disk import NAME_MAX, Tree
from layerstack.tree.state import DIRECTORY, WHITEOUT, State, equal


class LayerView:
    """Tree of a layer, and what a mount of it on top of `head` shows."""

    def __init__(
        self, tree: Tree, base: Chain, ours: Chain, head: Chain, displaced: Callable[[str, str], None]
    ) -> None:
        """`displaced(path, side)` is called before a directory replaces the entry of a side at a path."""
        self.tree, self.base, self.ours, self.head = tree, base, ours, head
        self.edits: list[Edit] = []
        """Edits that were made, as `survey` takes them."""
        self.added: set[str] = set()
        """Paths that `put` wrote."""
        self._displaced = displaced

    def listed(self, path: str) -> str | None:
        """Give the kind of the layer's own entry at the path; None when it has none.

        A symlink of the layer is not followed: it may lead anywhere outside, so nothing is below it.
        """
        for above in ancestors(path)[1:]:
            if self.tree.kind(above) != DIRECTORY:
                return None
        return self.tree.kind(path)

    def is_hidden(self, path: str) -> bool:
        """Check whether the layer, which has no entry of its own at the path, hides the head's."""
        for above in ancestors(path):
            kind = self.tree.kind(above)
            if kind is None:
                return False
            if kind != DIRECTORY or self.tree.opaque(above):
                return True
            under = self.head.find(above)
            if under is None or under.kind != DIRECTORY:
                return True
        return False

    def shown(self, path: str) -> State | None:
        """Give the state at the path in the mount."""
        kind = self.listed(path)
        if kind is None:
            return None if self.is_hidden(path) else self.head.find(path)
        return None if kind == WHITEOUT else self.tree.state(path)

    def is_directory(self, path: str) -> bool:
        """Check whether the mount has a directory at the path."""
        state = self.shown(path)
        return state is not None and state.kind == DIRECTORY

    @contextlib.contextmanager
    def _times_kept(self, folder: str) -> Generator[None]:
        """Keep the times of the directory during the block: only a change by a person or a build makes it
        newer.
        """
        times = self.tree.state(folder).times
        yield
        self.tree.set_times(folder, times)

    def open_directory(self, path: str) -> None:
        """Make the path a directory in the layer, with everything that the mount shows in it now."""
        kind = self.listed(path)
        if kind == DIRECTORY:
            return
        above = parent_of(path)
        self.open_directory(above)
        like = next(
            (
                state
                for tree in (self.head, self.ours, self.base)
                if (state := tree.find(path)) is not None and state.kind == DIRECTORY
            ),
            None,
        ) or self.tree.state(above)
        if kind is None:
            under = None if self.is_hidden(path) else self.head.find(path)
            if under is not None and under.kind != DIRECTORY:
                self._displaced(path, "theirs")
        elif kind != WHITEOUT:
            self._displaced(path, "ours")
        with self._times_kept(above):
            if kind is not None:
                self.tree.unlink(path)
            self.tree.put(path, like)
            if kind is not None:
                self.tree.set_opaque(path)

    def put(self, path: str, state: State) -> None:
        """Put one entry at the path, in the place of any other; its directories are made."""
        above = parent_of(path)
        self.open_directory(above)
        with self._times_kept(above):
            if self.listed(path) is None:
                self.tree.put(path, state)
            else:
                self.tree.replace(path, state)
        if state.body is None:
            self.edits.append(Bring(path, state))
        else:  # the written file's state: the bytes of thousands of files would not fit in memory
            self.edits.append(Write(path, self.tree.state(path)))
        self.added.add(path)

    def put_tree(self, source: Chain, path: str, target: str, wanted: Callable[[str], bool]) -> None:
        """Put an entry of another tree at `target`; of the entries in it, those that are wanted, with their
        directories. An entry that exists already stays.
        """
        state = source.find(path)
        assert state is not None
        if self.listed(target) != DIRECTORY or state.kind != DIRECTORY:
            self.put(target, state)
        if state.kind != DIRECTORY:
            return
        for inner in source.walk(path):
            found = source.find(inner)
            if found is None or not wanted(inner):
                continue
            at = target + inner[len(path) :] if path else join(target, inner)
            for above in ancestors(inner):
                if len(above) > len(path):
                    there = target + above[len(path) :] if path else join(target, above)
                    if self.listed(there) is None:
                        folder = source.find(above)
                        assert folder is not None
                        self.put(there, folder)
            if self.listed(at) is None:
                self.put(at, found)

    def remove(self, path: str) -> None:
        """Remove the layer's own entry, with everything in it, and directories that exist only for it."""
        if self.listed(path) is not None:
            with self._times_kept(parent_of(path)):
                self.tree.remove(path)
            self.edits.append(Drop(path))
        for above in reversed(ancestors(path)):
            if not above or self.listed(above) != DIRECTORY or self.tree.scan(above):
                return
            if self.head.find(above) is not None or self.base.find(above) is None:
                return
            with self._times_kept(parent_of(above)):
                self.tree.rmdir(above)

    def show_head(self, path: str) -> None:
        """Make the mount show the head's entry at the path, with everything in it."""
        state = self.head.find(path)
        if self.listed(path) is not None and not (
            state is not None and equal(state, self.tree.state(path)) and state.kind != DIRECTORY
        ):
            self.remove(path)
        if state is not None and self.is_hidden(path):
            self.put_tree(self.head, path, path, lambda _: True)

    def show(self, path: str, state: State | None) -> None:
        """Make the mount show this state at the path, with as few entries of the layer as that needs."""
        head = self.head.find(path)
        if state is None:
            self.hide(path)
            if head is None and self.listed(path) == WHITEOUT:
                self.remove(path)
        elif head is not None and equal(state, head):
            self.show_head(path)
        elif self.listed(path) in (None, WHITEOUT) or not equal(state, self.tree.state(path)):
            self.put(path, state)

    def hide(self, path: str) -> None:
        """Make the mount show nothing at the path."""
        if self.listed(path) not in (None, WHITEOUT):
            self.remove(path)
        if self.shown(path) is not None:
            self.open_directory(parent_of(path))
            with self._times_kept(parent_of(path)):
                self.tree.whiteout(path)

    # ---- names

    def free_name(self, path: str, side: str, longest: int) -> str:
        """Find a free path beside `path`, named after it and the side. A name that would be too long is cut
        at its end; a path that would be too long is in the workspace's root instead.

        Args:
            longest: bytes that the new path may have.
        """
        folder, _, name = path.rpartition("/")
        number = 0
        while True:
            end = f".{side}" + (f".{number}" if number else "")
            found = join(folder, _cut(name, NAME_MAX - len(end)) + end)
            if folder and len(os.fsencode(found)) > longest:
                folder = ""
                continue
            if self.is_free(found):
                return found
            number += 1

    def is_free(self, path: str) -> bool:
        """Check that neither side and nothing in the layer has an entry at the path."""
        return self.listed(path) is None and all(tree.find(path) is None for tree in (self.ours, self.head))


def _cut(name: str, size: int) -> str:
    """Cut a name to at most `size` bytes, between two characters."""
    raw = os.fsencode(name)
    if len(raw) <= size:
        return name
    raw = raw[:size]
    while raw and not _is_whole(raw, os.fsencode(name)):
        raw = raw[:-1]
    return os.fsdecode(raw)


def _is_whole(start: bytes, whole: bytes) -> bool:
    """Check that the cut is between two characters: the next byte does not continue one."""
    return len(start) == len(whole) or whole[len(start)] & 0xC0 != 0x80
