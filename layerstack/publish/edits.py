"""Edits: what a plan changes in a clone of captured work, so that it shows the merge on top of the head."""

from __future__ import annotations

from typing import NamedTuple

from layerstack.layers.chain import Chain
from layerstack.model.paths import parent as parent_of
from layerstack.tree.disk import Tree
from layerstack.tree.state import State


class Drop(NamedTuple):
    """Remove the entry, with all below it, from the layer."""

    path: str

    def apply(self, tree: Tree) -> None:
        tree.remove(self.path)


class Bring(NamedTuple):
    """Put the head's entry at the path into the layer, in the place of ours."""

    path: str
    state: State

    def apply(self, tree: Tree) -> None:
        name = self.path.rpartition("/")[2]
        if any(child.name == name for child in tree.scan(parent_of(self.path))):
            tree.replace(self.path, self.state)
        else:
            tree.put(self.path, self.state)


class Attributes(NamedTuple):
    """Give the directory the attributes of a state."""

    path: str
    state: State

    def apply(self, tree: Tree) -> None:
        tree.set_attributes(self.path, self.state)


class Write(NamedTuple):
    """Replace the file or symlink by a new one: its inode may be shared with other layers, so it is never
    edited.
    """

    path: str
    state: State

    def apply(self, tree: Tree) -> None:
        tree.replace(self.path, self.state)


class Whiteout(NamedTuple):
    """Hide the head's entry at the path."""

    path: str

    def apply(self, tree: Tree) -> None:
        tree.whiteout(self.path)


class Recapture(NamedTuple):
    """Capture the directory again, against the head; changes nothing by itself."""

    path: str

    def apply(self, tree: Tree) -> None:
        return


class MergedTrees(NamedTuple):
    """The trees of a merge: what `Show` needs to know of what is around a path."""

    base: Chain
    ours: Chain
    head: Chain


class Show(NamedTuple):
    """Make the mount show a state at the path, None for nothing, whatever the layer has at and above it."""

    path: str
    state: State | None
    trees: MergedTrees


Edit = Drop | Bring | Attributes | Write | Whiteout | Recapture | Show
