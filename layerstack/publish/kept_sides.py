"""Keep entries of the side that a resolution does not show: put them beside their path, as PATH.theirs or
PATH.ours.

Where a directory above the path is no longer a directory, the suffix is added to its name, and its entries
keep their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from layerstack.core.publish_rules import PublishRules
from layerstack.layers.chain import Chain
from layerstack.model.conflict import Conflict
from layerstack.model.paths import ancestors, join
from layerstack.model.resolution import MARKERS, OURS, THEIRS, Choice, ResolvedConflict
from layerstack.publish.layer_view import LayerView
from layerstack.tree.state import DIRECTORY, State, equal
from layerstack.units.units import BUILT_IN, Kind


class ChosenSides(NamedTuple):
    """The three trees, and the chosen sides."""

    base: Chain
    ours: Chain
    head: Chain
    version: int
    """Version of the base."""
    rules: PublishRules
    choice: Choice
    longest: int
    """Bytes that a path of the layer may have."""


class KeptSides:
    """The entries that were kept, and their names. Each name is chosen once for each side of a path."""

    def __init__(self, view: LayerView, on: ChosenSides, in_conflict: Container[str]) -> None:
        """`in_conflict`: paths for which the caller calls `keep`; `keep` of a directory above leaves them
        out."""
        self._view, self._on, self._in_conflict = view, on, in_conflict
        self._roots: dict[tuple[str, str], str] = {}

    def keep(self, path: str, side: str, *, leaves: bool = False) -> str | None:
        """Put the entry of a side beside the path, unless the mount shows it there.

        Args:
            leaves: the mount shows the entry now, and will not afterwards.
        Returns:
            Its path; None when the side has nothing at the path that could be lost.
        """
        source, other = (self._on.ours, self._on.head) if side == OURS else (self._on.head, self._on.ours)
        state, changed = source.find(path), changed_from(self._on.base, source)
        if state is None or not path:
            return None
        if state.kind == DIRECTORY:
            if (beside := other.find(path)) is not None and beside.kind == DIRECTORY:
                return None
            lost = self._lost_in(path, source, changed)
            if self._view.is_directory(path):
                for inner in lost:
                    if inner not in self._in_conflict:
                        self.keep(inner, side)
                return None
            if not lost and not changed(path):
                return None
        elif not leaves and equal(self._view.shown(path), state):
            return None
        return self._put_beside(path, side, source, state)

    def _lost_in(self, directory: str, source: Chain, changed: Callable[[str], bool]) -> list[str]:
        """List the changed entries of a side in a directory that the mount does not show."""
        return [
            inner
            for inner in source.walk(directory)
            if changed(inner) and not _is_shown(self._view.shown(inner), source.find(inner))
        ]

    def _put_beside(self, path: str, side: str, source: Chain, state: State) -> str:
        """Put the entry, with the directories above it that the mount lacks; return its new path."""
        root = next(
            (above for above in ancestors(path)[1:] if not self._view.is_directory(above)),
            path,
        )
        name = self._root_name(root, side, source, path)
        target = name + path[len(root) :]
        if state.kind != DIRECTORY and self._view.listed(target) is not None:
            return target
        for above in ancestors(path)[1:]:
            if len(above) >= len(root) and self._view.listed(at := name + above[len(root) :]) is None:
                folder = source.find(above)
                assert folder is not None
                self._view.put(at, folder)
        self._view.put_tree(source, path, target, changed_from(self._on.base, source))
        return target

    def _root_name(self, root: str, side: str, source: Chain, path: str) -> str:
        """Choose the name under which entries of a side at and below `root` are kept; once for each root."""
        if (root, side) not in self._roots:
            size = len(os.fsencode(root))
            rest = max((len(os.fsencode(inner)) - size for inner in (path, *source.walk(root))), default=0)
            self._roots[root, side] = self._view.free_name(root, side, self._on.longest - rest)
        return self._roots[root, side]

    def keep_unit(self, conflict: Conflict) -> ResolvedConflict:
        """Keep the members that a unit has on the side that was not taken: together, under one name."""
        assert conflict.unit is not None
        root, theirs = conflict.path, self._on.choice.side(conflict.path) == THEIRS
        side, source = (OURS, self._on.ours) if theirs else (THEIRS, self._on.head)
        kind = next(one for one in (*self._on.rules.units, *BUILT_IN) if one.name == conflict.unit.name)
        members = [path for path in _members(kind, root, conflict, source) if source.find(path) is not None]
        name = self._unit_name(conflict.unit.name, root, side, members) if members else None
        for path in members:
            assert name is not None
            self._put_member(path, root, name, source)
        layer = conflict.theirs_layer
        return ResolvedConflict(
            root,
            conflict.cls,
            THEIRS if theirs else OURS,
            name,
            "not_text" if self._on.choice.side(root) == MARKERS else None,
            None if layer is None else layer.manifest_version,
        )

    def _put_member(self, path: str, root: str, name: str, source: Chain) -> None:
        """Put one member of a unit at `root` under `name`, with the directories above it."""
        for above in ancestors(path):
            if len(above) >= len(root) and (root or above) and above != path:
                at = name + above[len(root) :] if root else join(name, above)
                folder = source.find(above)
                if folder is not None and folder.kind == DIRECTORY and self._view.listed(at) is None:
                    self._view.put(at, folder)
        found = source.find(path)
        assert found is not None
        target = name + path[len(root) :] if root else join(name, path)
        if self._view.listed(target) is None:
            self._view.put(target, found)

    def _unit_name(self, kind: str, root: str, side: str, members: Sequence[str]) -> str:
        """Find a name such that all members have a free path under it."""
        rest = max(len(os.fsencode(path)) - len(os.fsencode(root)) for path in members)
        while True:
            name = self._view.free_name(root or kind, side, self._on.longest - rest)
            if not root or all(self._view.is_free(name + path[len(root) :]) for path in members):
                return name
            root += "_"


def changed_from(base: Chain, tree: Chain) -> Callable[[str], bool]:
    """Return a predicate: True for a path where `tree` differs from `base`."""

    def differs(path: str) -> bool:
        return base.layer_of(path) is not tree.layer_of(path) and not equal(base.find(path), tree.find(path))

    return differs


def _members(kind: Kind, root: str, conflict: Conflict, source: Chain) -> Sequence[str]:
    """List the paths to keep: every member of a database, of a git repository those that a side changed."""
    assert conflict.unit is not None
    few = kind.members(root)
    if few is not None:
        return few
    if kind.name == "git":
        return conflict.unit.members
    return [path for path in source.walk(root) if kind.holds(root, path)]


def _is_shown(shown: State | None, state: State | None) -> bool:
    """Check whether a mount shows the state of a side. Two directories count as equal: their entries are
    checked one by one.
    """
    if shown is None or state is None:
        return shown is state
    return (shown.kind == state.kind == DIRECTORY) or equal(shown, state)
