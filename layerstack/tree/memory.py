"""A layer tree of changes over a tree on disk that is only read: a preview captures and merges here instead
of in a live upperdir.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from layerstack.kernel.xattrs import XattrNamespace
from layerstack.model.paths import parent as parent_of
from layerstack.tree.disk import LARGE, Children, DirectoryEntry
from layerstack.tree.state import DIRECTORY, SPECIAL, WHITEOUT, State


class _Node:
    """Changes at one path: the entry, its xattrs of overlayfs, or its content."""

    __slots__ = ("children", "disk", "kind", "opaque", "redirect", "state", "xattr_whiteouts")

    def __init__(self, kind: str, state: State | None, *, disk: bool) -> None:
        self.kind, self.state = kind, state  # no state: a whiteout, or it is as on disk
        self.disk = disk
        """Entries that `children` does not name, and values that are None, are as on disk."""
        self.children: dict[str, _Node | None] = {}
        """Changes in a directory, by name; None: deleted."""
        self.opaque: bool | None = None if disk else False
        self.xattr_whiteouts = self.redirect = disk  # True: as on disk


class Source(Protocol):
    """The tree below, which is only read."""

    xattr_namespace: XattrNamespace

    def scan(self, path: str) -> Sequence[DirectoryEntry]: ...
    def state(self, path: str) -> State: ...
    def opaque(self, path: str) -> bool: ...
    def xattr_whiteouts(self, path: str) -> list[str] | None: ...
    def redirect(self, path: str) -> str | None: ...


class MemoryTree:
    """A tree of names; changing it changes no file. Memory: that of the changes. Unchanged entries are read
    from the source each time.
    """

    def __init__(self, root: State, xattr_namespace: XattrNamespace, source: Source | None = None) -> None:
        self.xattr_namespace = xattr_namespace
        self._source = source
        self._root = _Node(DIRECTORY, root, disk=source is not None)

    @classmethod
    def load(cls, source: Source) -> MemoryTree:
        """Make a tree without changes over `source`, which no other process may change while the tree is in
        use.

        Files of a live upperdir must not be hard-linked: a link count changes what the session sees.
        """
        return cls(source.state(""), source.xattr_namespace, source)

    def _find(self, path: str) -> _Node | None:
        """Find the changes at the path; None when neither it nor its content changed. Raises
        FileNotFoundError for a deleted path.
        """
        node = self._root
        if path:
            for name in path.split("/"):
                if name not in node.children:
                    if node.disk:
                        return None
                    raise FileNotFoundError(path)
                child = node.children[name]
                if child is None:
                    raise FileNotFoundError(path)
                node = child
        return node

    def _own(self, path: str) -> _Node:
        """Find the changes at the path to write to them; every directory above it gets a node."""
        node = self._root
        if path:
            for name in path.split("/"):
                child = node.children.get(name)
                if child is None:
                    if name in node.children or not node.disk:
                        raise FileNotFoundError(path)
                    child = node.children[name] = _Node(DIRECTORY, None, disk=True)
                node = child
        return node

    def _disk(self) -> Source:
        assert self._source is not None
        return self._source

    def scan(self, path: str) -> Sequence[DirectoryEntry]:
        node = self._find(path)
        if node is None:
            return self._disk().scan(path)
        ours = [
            DirectoryEntry(name, child.kind) for name, child in node.children.items() if child is not None
        ]
        if not node.disk:
            return sorted(ours)
        there = self._disk().scan(path)
        if not node.children:
            return there
        changed = node.children
        left = (child for child in there if child.name not in changed)
        return sorted([*ours, *left]) if len(there) <= LARGE else Children.of(itertools.chain(ours, left))

    def state(self, path: str) -> State:
        node = self._find(path)
        if node is None or (node.state is None and node.disk):
            return self._disk().state(path)
        assert node.state is not None
        return node.state

    def kind(self, path: str) -> str | None:
        if not path:
            return DIRECTORY
        name = path.rpartition("/")[2]
        found = next((entry.kind for entry in self.scan(parent_of(path)) if entry.name == name), None)
        return WHITEOUT if found == SPECIAL else found

    def opaque(self, path: str) -> bool:
        node = self._find(path)
        return self._disk().opaque(path) if node is None or node.opaque is None else node.opaque

    def xattr_whiteouts(self, path: str) -> list[str] | None:
        node = self._find(path)
        return self._disk().xattr_whiteouts(path) if node is None or node.xattr_whiteouts else None

    def redirect(self, path: str) -> str | None:
        node = self._find(path)
        return self._disk().redirect(path) if node is None or node.redirect else None

    def put(self, path: str, state: State, *, times: bool = True) -> None:
        self._own(parent_of(path)).children[path.rpartition("/")[2]] = _Node(state.kind, state, disk=False)

    def whiteout(self, path: str) -> None:
        self._own(parent_of(path)).children[path.rpartition("/")[2]] = _GONE

    def set_opaque(self, path: str) -> None:
        self._own(path).opaque = True

    def clear_opaque(self, path: str) -> None:
        node = self._own(path)
        node.opaque, node.xattr_whiteouts = False, False

    def clear_redirect(self, path: str) -> None:
        self._own(path).redirect = False

    def unlink(self, path: str) -> None:
        node, name = self._own(parent_of(path)), path.rpartition("/")[2]
        if node.disk:
            node.children[name] = None
        else:
            del node.children[name]

    rmdir = unlink
    remove = unlink

    def replace(self, path: str, state: State, *, times: bool = True) -> None:
        self.put(path, state, times=times)

    def set_attributes(self, path: str, state: State) -> None:
        self._own(path).state = state

    def set_times(self, path: str, times: tuple[int, int]) -> None:
        pass


_GONE = _Node(WHITEOUT, None, disk=False)
"""The node of every whiteout, which has no data of its own."""
