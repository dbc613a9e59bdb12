"""Resolve the conflicts of a plan by the sides that were named. Nothing of either side is lost: a text
contains both between markers; of any other entry, that of the other side is kept beside it.

The layer already shows ours at and below each path in conflict (`MergePlan`). In order:

1. where theirs is taken, the head's entry shows again;
2. where ours is taken, ours is put back if the first step hid it, and texts get their markers;
3. entries of the side that does not show at a path are put beside it, as PATH.theirs or PATH.ours. Where a
   directory above the path is no longer a directory, the suffix is added to its name, and its entries keep
   their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from layerstack.core.publish_rules import PublishRules
from layerstack.layers.chain import Chain
from layerstack.model.conflict import Conflict
from layerstack.model.paths import ancestors, byte_order, join
from layerstack.model.resolution import MARKERS, OURS, THEIRS, Choice, ResolvedConflict
from layerstack.publish.decide import merged_content
from layerstack.publish.layer_view import LayerView
from layerstack.text.lines import TEXT_MAX, is_text
from layerstack.text.markers import Labels, Marked, mark
from layerstack.tree.disk import DiskTree
from layerstack.tree.state import DIRECTORY, FILE, State, equal
from layerstack.units.units import BUILT_IN, Kind

UNIT = "unit"
_TEXTS = frozenset(("content", "add_add"))
_ATTRIBUTES = frozenset(("mode", "xattr"))


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


class Taken(NamedTuple):
    """Outcome, in byte order of paths; `added` is the number of entries that were written."""

    resolved: tuple[ResolvedConflict, ...]
    marked: Mapping[str, tuple[str, ...]]
    """Path -> the marker lines in its file."""
    view: LayerView


def unit_sides(conflicts: Iterable[Conflict], choice: Choice) -> dict[tuple[str, str], str]:
    """Give the side of each unit in conflict, in the form that `plan` takes; a unit cannot have markers, so
    ours is taken instead.
    """
    return {
        (conflict.unit.name, conflict.path): "head" if choice.side(conflict.path) == THEIRS else OURS
        for conflict in conflicts
        if conflict.unit is not None
    }


def take_sides(
    tree: DiskTree,
    conflicts: Sequence[Conflict],
    units: Sequence[Conflict],
    below: Sequence[str],
    on: ChosenSides,
) -> Taken:
    """Resolve every conflict in a layer to which the plan's edits were applied.

    Args:
        units: conflicts of units that the plan has decided by the named side.
        below: as in `MergePlan`.
    """
    taker = _Taker(tree, on)
    for conflict in conflicts:
        members = conflict.unit.members if conflict.unit is not None else (conflict.path,)
        for path in members:
            taker.add(path, conflict)
    for path in below:
        taker.add(path, None)
    taker.add_blocking()
    taker.place()
    for conflict in units:
        taker.keep_unit(conflict)
    taker.keep_all()
    resolved = {one.path: one for one in taker.resolved}
    return Taken(tuple(resolved[path] for path in sorted(resolved, key=byte_order)), taker.marked, taker.view)


class _Case(NamedTuple):
    path: str
    side: str
    conflict: Conflict | None


class _Taker:
    def __init__(self, tree: DiskTree, on: ChosenSides) -> None:
        self.on = on
        self.view = LayerView(tree, on.base, on.ours, on.head, self.displaced)
        self.cases: dict[str, _Case] = {}
        self.resolved: list[ResolvedConflict] = []
        self.marked: dict[str, tuple[str, ...]] = {}
        self.why: dict[str, str] = {}
        self.kept_roots: dict[tuple[str, str], str] = {}
        self.all_shown: set[str] = set()
        """Paths of texts that show both sides."""

    def add(self, path: str, conflict: Conflict | None) -> None:
        asked = path if conflict is None else conflict.path
        self.cases.setdefault(path, _Case(path, self.on.choice.side(asked), conflict))

    def displaced(self, path: str, side: str) -> None:
        """Keep an entry that is replaced by a directory, which the other side's entries need."""
        kept = self.keep(path, side, leaves=True)
        self.resolved.append(ResolvedConflict(path, "type", OURS if side == THEIRS else THEIRS, kept))

    def add_blocking(self) -> None:
        """Add the files of the head at paths where ours has a directory with conflicts: such a file shows if
        theirs is taken for all of them.
        """
        blocking: dict[str, list[str]] = {}
        known: dict[str, bool] = {}
        for path, case in self.cases.items():
            for above in ancestors(path):
                if above not in known:
                    theirs, ours = self.on.head.find(above), self.on.ours.find(above)
                    known[above] = (
                        theirs is not None
                        and theirs.kind != DIRECTORY
                        and ours is not None
                        and ours.kind == DIRECTORY
                    )
                if known[above] and above not in self.cases:
                    blocking.setdefault(above, []).append(case.side)
        for path, sides in blocking.items():
            side = THEIRS if all(one == THEIRS for one in sides) else OURS
            self.cases[path] = _Case(path, side, None)

    def sides(self, path: str) -> tuple[State | None, State | None, State | None]:
        return self.on.base.find(path), self.on.ours.find(path), self.on.head.find(path)

    # ---- steps 1 and 2

    def place(self) -> None:
        """Show at each path the chosen side; parents come first."""
        cases = sorted(self.cases.values(), key=lambda case: byte_order(case.path))
        for case in cases:
            if case.side == THEIRS:
                self.place_theirs(case)
        for case in cases:
            if case.side != THEIRS:
                self.place_ours(case)

    def place_theirs(self, case: _Case) -> None:
        b, o, h = self.sides(case.path)
        if o is not None and h is not None and o.kind == h.kind == DIRECTORY:
            self.view.open_directory(case.path)
            self.view.tree.set_attributes(case.path, h)
        elif (both := self.with_both_contents(case, b, o, h, h)) is not None:
            self.view.put(case.path, both)
        else:
            self.view.show_head(case.path)

    def place_ours(self, case: _Case) -> None:
        b, o, h = self.sides(case.path)
        if o is None:
            self.view.hide(case.path)
            return
        if o.kind == DIRECTORY:
            if not self.view.is_directory(case.path):
                self.view.put_tree(self.on.ours, case.path, case.path, self.changed(self.on.ours))
            self.view.open_directory(case.path)
            self.view.tree.set_attributes(case.path, o)
            return
        marked = self.markers(case, b, o, h) if case.side == MARKERS else None
        if marked is not None:
            new = o.changed(meta=o.meta, xattrs=dict(o.xattrs), content=marked.content)
            new.linkable = False
            self.view.put(case.path, new)
            self.marked[case.path] = marked.lines
            if case.conflict is not None and set(case.conflict.cls.split("+")) <= _TEXTS:
                self.all_shown.add(case.path)
        elif (both := self.with_both_contents(case, b, o, h, o)) is not None:
            self.view.put(case.path, both)
        elif not equal(o, self.view.shown(case.path)):
            self.view.put(case.path, o)

    def with_both_contents(
        self, case: _Case, b: State | None, o: State | None, h: State | None, side: State | None
    ) -> State | None:
        """Merge a file whose attributes alone are in conflict: the merged content with the attributes of the
        side. None for any other conflict.
        """
        if case.conflict is None or not set(case.conflict.cls.split("+")) <= _ATTRIBUTES:
            return None
        if o is None or h is None or side is None or not o.kind == h.kind == FILE:
            return None
        content = merged_content(b, o, h, self.on.rules)
        if content is None or content is side:
            return None
        both = side.changed(meta=side.meta, xattrs=dict(side.xattrs), content=content)
        both.linkable = False
        return both

    def markers(self, case: _Case, b: State | None, o: State, h: State | None) -> Marked | None:
        """Merge a text with markers; None, with the reason in `why`, where ours is taken instead."""
        conflict = case.conflict
        classes = set[str]() if conflict is None else set(conflict.cls.split("+"))
        if conflict is None or h is None or not classes & _TEXTS:
            if classes & {"binary"} and h is not None:
                large = max(state.size for state in (b, o, h) if state is not None) > TEXT_MAX
                self.why[case.path] = "too_large" if large else "not_text"
            elif conflict is not None and conflict.unit is not None:
                self.why[case.path] = "not_text"
            return None
        like = b if b is not None and b.kind == FILE else None
        texts = (b"" if like is None else like.data(), o.data(), h.data())
        assert all(map(is_text, texts))
        theirs = conflict.theirs_layer
        who = "theirs" if theirs is None else theirs.agent or theirs.owner or "theirs"
        version = "" if theirs is None else f", version {theirs.manifest_version}"
        labels = Labels(
            self.on.choice.label,
            f"base version {self.on.version}",
            f"{who}{version}",
        )
        found = mark(*texts, labels, adjacent=self.on.rules.merge_adjacent)
        if isinstance(found, str):
            self.why[case.path] = found
            return None
        return found

    # ---- step 3

    def keep_all(self) -> None:
        for case in sorted(self.cases.values(), key=lambda case: byte_order(case.path)):
            other = OURS if case.side == THEIRS else THEIRS
            kept = None if case.path in self.all_shown else self.keep(case.path, other)
            conflict = case.conflict
            if conflict is None and kept is None:
                continue
            if conflict is not None and conflict.unit is not None and conflict.path != case.path:
                continue
            side = OURS if case.side == MARKERS and case.path not in self.marked else case.side
            theirs = None if conflict is None else conflict.theirs_layer
            self.resolved.append(
                ResolvedConflict(
                    case.path,
                    "parent" if conflict is None else conflict.cls,
                    side,
                    kept,
                    self.why.get(case.path),
                    None if theirs is None else theirs.manifest_version,
                )
            )

    def changed(self, tree: Chain) -> Callable[[str], bool]:
        """Return a predicate: True for a path where a side differs from the base."""
        base = self.on.base

        def differs(path: str) -> bool:
            return base.layer_of(path) is not tree.layer_of(path) and not equal(
                base.find(path), tree.find(path)
            )

        return differs

    def keep(self, path: str, side: str, *, leaves: bool = False) -> str | None:
        """Put the entry of a side beside the path, unless the mount shows it there.

        Args:
            leaves: the mount shows the entry now, and will not afterwards.
        Returns:
            Its path; None when the side has nothing at the path that could be lost.
        """
        source, other = (self.on.ours, self.on.head) if side == OURS else (self.on.head, self.on.ours)
        state, changed = source.find(path), self.changed(source)
        if state is None or not path:
            return None
        shown = self.view.shown(path)
        if state.kind == DIRECTORY:
            if (beside := other.find(path)) is not None and beside.kind == DIRECTORY:
                return None
            lost = [
                inner
                for inner in source.walk(path)
                if changed(inner) and not _is_shown(self.view.shown(inner), source.find(inner))
            ]
            if shown is not None and shown.kind == DIRECTORY:
                for inner in lost:
                    if inner not in self.cases:
                        self.keep(inner, side)
                return None
            if not lost and not changed(path):
                return None
        elif not leaves and equal(shown, state):
            return None
        root = next(
            (above for above in ancestors(path)[1:] if not self.view.is_directory(above)),
            path,
        )
        name = self.kept_root(root, side, source, path)
        target = name + path[len(root) :]
        if state.kind != DIRECTORY and self.view.listed(target) is not None:
            return target
        for above in ancestors(path)[1:]:
            if len(above) >= len(root) and self.view.listed(at := name + above[len(root) :]) is None:
                folder = source.find(above)
                assert folder is not None
                self.view.put(at, folder)
        self.view.put_tree(source, path, target, changed)
        return target

    def kept_root(self, root: str, side: str, source: Chain, path: str) -> str:
        """Choose the name under which entries of a side at and below `root` are kept; once for each root."""
        if (root, side) not in self.kept_roots:
            size = len(os.fsencode(root))
            rest = max((len(os.fsencode(inner)) - size for inner in (path, *source.walk(root))), default=0)
            self.kept_roots[root, side] = self.view.free_name(root, side, self.on.longest - rest)
        return self.kept_roots[root, side]

    # ---- units

    def keep_unit(self, conflict: Conflict) -> None:
        """Keep the members that a unit has on the side that was not taken: together, under one name."""
        assert conflict.unit is not None
        root, theirs = conflict.path, self.on.choice.side(conflict.path) == THEIRS
        side, source = (OURS, self.on.ours) if theirs else (THEIRS, self.on.head)
        kind = next(one for one in (*self.on.rules.units, *BUILT_IN) if one.name == conflict.unit.name)
        members = [path for path in _members(kind, root, conflict, source) if source.find(path) is not None]
        name = self.unit_name(conflict.unit.name, root, side, members) if members else None
        for path in members:
            assert name is not None
            target = name + path[len(root) :] if root else join(name, path)
            for above in ancestors(path):
                if len(above) >= len(root) and (root or above) and above != path:
                    at = name + above[len(root) :] if root else join(name, above)
                    folder = source.find(above)
                    if folder is not None and folder.kind == DIRECTORY and self.view.listed(at) is None:
                        self.view.put(at, folder)
            found = source.find(path)
            assert found is not None
            if self.view.listed(target) is None:
                self.view.put(target, found)
        layer = conflict.theirs_layer
        asked = self.on.choice.side(root)
        self.resolved.append(
            ResolvedConflict(
                root,
                conflict.cls,
                THEIRS if theirs else OURS,
                name,
                "not_text" if asked == MARKERS else None,
                None if layer is None else layer.manifest_version,
            )
        )

    def unit_name(self, kind: str, root: str, side: str, members: Sequence[str]) -> str:
        """Find a name such that all members have a free path under it."""
        rest = max(len(os.fsencode(path)) - len(os.fsencode(root)) for path in members)
        while True:
            name = self.view.free_name(root or kind, side, self.on.longest - rest)
            if not root or all(self.view.is_free(name + path[len(root) :]) for path in members):
                return name
            root += "_"


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
