"""Three trees that meet: base, ours, head. State of each at a path, and properties of a path by all three.

The module decides nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from layerstack.core.publish_rules import DEFAULT, PublishRules
from layerstack.layers.chain import Chain
from layerstack.layers.index import Index, Layer
from layerstack.layers.packed_index import PackedIndex
from layerstack.model.conflict import TheirsLayer
from layerstack.model.manifest import LayerId
from layerstack.model.paths import ancestors
from layerstack.model.paths import parent as parent_of
from layerstack.text.gitignore import FILE_MAX, Ignored, IgnoreRules
from layerstack.tree.derived import Derived
from layerstack.tree.disk import Tree
from layerstack.tree.state import DIRECTORY, FILE, State, equal
from layerstack.units.units import Sides


class Meeting(NamedTuple):
    """Captured work, and the head on which it will be published."""

    tree: Tree
    listed: Index
    """Index of the work's tree."""
    base: Chain
    """Base of the work, the version of number `version`."""
    head: Chain
    version: int
    ignored: Ignored
    """Rules of the `.gitignore` files of base and head."""
    describe: Callable[[Layer], TheirsLayer]
    """Function that describes a layer and its author."""
    rules: PublishRules = DEFAULT
    side: Callable[[str], str] | None = None
    """As in `RepositoryRules`."""
    restores: bool = False
    """True for the tree of an earlier version: a ref that it lacks was not deleted by a person."""
    author: str = ""
    """The agent, or the session's short id, as names of refs have it."""


class Three:
    """States of base, ours and head at one path; None is absent. Each comparison is made on demand, once."""

    def __init__(self, trees: Trees, path: str, ours: State | None) -> None:
        self._trees, self._path = trees, path
        self.base, self.ours, self.head = trees.base.find(path), ours, trees.head.find(path)

    @functools.cached_property
    def ours_changed(self) -> bool:
        """True if ours differs from the base."""
        return not equal(self.base, self.ours)

    @functools.cached_property
    def head_changed(self) -> bool:
        """True if the head differs from the base."""
        return not self._trees.unmoved(self._path, self.base, self.head)

    @functools.cached_property
    def agree(self) -> bool:
        """True if ours and the head are equal."""
        return equal(self.ours, self.head)


class Trees:
    """The look-ups of one meeting."""

    def __init__(self, meeting: Meeting) -> None:
        self.tree, self.index, self.version = meeting.tree, meeting.listed, meeting.version
        self.base, self.head, self.describe = meeting.base, meeting.head, meeting.describe
        self.newer = [
            layer for layer in self.head.published if not layer.is_base and layer.version > self.version
        ]
        self.own = Layer(LayerId("ours"), self.tree, self.version, self.index)
        self.derived = Derived(
            (self.base.find, lambda path: self.shown.find(path), self.head.find), self.ignored
        )
        self._both_ignore, self._own_rules = meeting.ignored, IgnoreRules(self._own_gitignore)
        self._children: dict[str, list[str]] | None = None
        self.tracked: Callable[[str], bool] = lambda path: False
        """Predicate: an index of git has the path, so that no ignore rule applies to it."""

    @functools.cached_property
    def shown(self) -> Chain:
        """Chain that the session shows: the base with ours on top."""
        return self.base.with_pending((self.own, *self.base.pending))

    def three(self, path: str, ours: State | None) -> Three:
        """Return the three states of a path that ours lists."""
        return Three(self, path, ours)

    def sides(self) -> Sides:
        """The three trees in the form that `units` takes."""

        def unmoved(path: str) -> bool:
            return self.base.layer_of(path) is self.head.layer_of(path)

        def loose(path: str) -> bool:
            o, h = self.shown.find(path), self.head.find(path)
            return self.last_writer_wins(path, o if o is not None else self.base.find(path), h)

        return Sides(self.base.find, self.shown.find, self.head.find, unmoved, loose, self.derived.within)

    def _own_gitignore(self, path: str) -> bytes | None:
        state = self.shown.find(path)
        return state.data(FILE_MAX + 1) if state is not None and state.kind == FILE else None

    def ignored(self, path: str, is_directory: bool) -> bool:
        """True if the `.gitignore` files of all three trees ignore the path.

        A path that one side no longer ignores is checked for conflicts.
        """
        return (
            self._both_ignore(path, is_directory)
            and self._own_rules.ignored(path, is_directory)
            and not self.tracked(path)
        )

    def children(self, path: str) -> Iterable[str]:
        """The paths that ours lists in a directory."""
        if isinstance(self.index, PackedIndex):
            return self.index.children(path)
        if self._children is None:
            self._children = {}
            for child in sorted(self.index):
                if child:
                    self._children.setdefault(parent_of(child), []).append(child)
        return self._children.get(path, [])

    def below(self, path: str) -> list[str]:
        """Paths strictly below `path` that newer layers changed, parents first."""
        found: set[str] = set()
        for layer in self.newer:
            found.update(layer.below(path))
        return sorted(found)

    def unmoved(self, path: str, b: State | None, h: State | None) -> bool:
        """True if the head's state is the base's; nothing is read if both come from one layer."""
        return self.base.layer_of(path) is self.head.layer_of(path) or equal(b, h)

    def last_writer_wins(self, path: str, first: State | None, h: State | None) -> bool:
        """True if the path is ignored both with its kind in ours (or else the base) and with its kind in the
        head. False for the root.
        """
        if not path:
            return False
        if not self.ignored(path, first is not None and first.kind == DIRECTORY):
            return False
        return h is None or self.ignored(path, h.kind == DIRECTORY)

    def blocked(self, path: str, taken: Container[str]) -> bool:
        """True if an ancestor has become a file or a link in the head and stays one.

        Args:
            taken: ancestors where ours stays.
        """
        return any(
            x not in taken and (a := self.head.find(x)) is not None and a.kind != DIRECTORY
            for x in ancestors(path)
        )
