"""A layer tree in memory, over files that are somebody else's: what a preview seals and merges in the place of a live upper."""

from __future__ import annotations

from layerstack.form import Form
from layerstack.paths import join
from layerstack.paths import parent as parent_of
from layerstack.states import DIRECTORY, SPECIAL, WHITEOUT, State
from layerstack.tree import Child, DiskTree


class _Node:
    __slots__ = ("children", "foreign", "opaque", "redirect", "state")

    def __init__(self, state: State | None, *, opaque: bool = False, redirect: str | None = None) -> None:
        self.state = state  # None: a whiteout, or a special file
        self.opaque, self.redirect = opaque, redirect
        self.foreign: list[str] | None = None
        self.children: dict[str, tuple[str, _Node]] | None = None


class MemoryTree:
    """A tree of names over files on disk; changing it changes no file."""

    def __init__(self, root: State, form: Form) -> None:
        self.form = form
        self._root = _Node(root)
        self._root.children = {}

    @classmethod
    def load(cls, source: DiskTree) -> MemoryTree:
        """The tree at `source` as it is now, by reading alone: one lstat per entry, two getxattr per directory.

        Of a live upper the files may not be linked from anywhere: a hard link changes what the session sees.
        """
        tree = cls(source.state(""), source.form)

        def fill(path: str, node: _Node) -> None:
            node.opaque, node.redirect, node.foreign = source.opaque(path), source.redirect(path), source.foreign(path)
            node.children = {}
            for name, kind in source.scan(path):
                child = join(path, name)
                if kind in (WHITEOUT, SPECIAL):
                    node.children[name] = (kind, _Node(None))
                    continue
                inner = _Node(source.state(child))
                node.children[name] = (kind, inner)
                if kind == DIRECTORY:
                    fill(child, inner)

        fill("", tree._root)
        return tree

    def _node(self, path: str) -> _Node:
        node = self._root
        if path:
            for name in path.split("/"):
                assert node.children is not None
                node = node.children[name][1]
        return node

    def _children(self, path: str) -> dict[str, tuple[str, _Node]]:
        children = self._node(path).children
        assert children is not None
        return children

    def scan(self, path: str) -> list[Child]:
        return sorted(Child(name, kind) for name, (kind, _) in self._children(path).items())

    def state(self, path: str) -> State:
        state = self._node(path).state
        assert state is not None
        return state

    def opaque(self, path: str) -> bool:
        return self._node(path).opaque

    def foreign(self, path: str) -> list[str] | None:
        return self._node(path).foreign

    def redirect(self, path: str) -> str | None:
        return self._node(path).redirect

    def put(self, path: str, state: State, *, times: bool = True) -> None:
        node = _Node(state)
        if state.kind == DIRECTORY:
            node.children = {}
        self._children(parent_of(path))[path.rpartition("/")[2]] = (state.kind, node)

    def whiteout(self, path: str) -> None:
        self._children(parent_of(path))[path.rpartition("/")[2]] = (WHITEOUT, _Node(None))

    def mark_opaque(self, path: str) -> None:
        self._node(path).opaque = True

    def unmark_opaque(self, path: str) -> None:
        self._node(path).opaque, self._node(path).foreign = False, None

    def unmark_redirect(self, path: str) -> None:
        self._node(path).redirect = None

    def unlink(self, path: str) -> None:
        del self._children(parent_of(path))[path.rpartition("/")[2]]

    rmdir = unlink
    remove = unlink

    def replace(self, path: str, state: State, *, times: bool = True) -> None:
        self.put(path, state, times=times)

    def set_attributes(self, path: str, state: State) -> None:
        self._node(path).state = state

    def set_times(self, path: str, times: tuple[int, int]) -> None:
        pass
