"""Resolve the conflicts of a plan by the sides that were named. Nothing of either side is lost: a text
contains both between markers; of any other entry, that of the other side is kept beside it.

The layer already shows ours at and below each path in conflict (`MergePlan`). In order:

1. where theirs is taken, the head's entry shows again;
2. where ours is taken, ours is put back if the first step hid it, and texts get their markers;
3. entries of the side that does not show at a path are put beside it (`kept_sides`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from layerstack.model.conflict import Conflict
from layerstack.model.paths import ancestors, byte_order
from layerstack.model.resolution import MARKERS, OURS, THEIRS, Choice, ResolvedConflict
from layerstack.publish.decide import merged_content
from layerstack.publish.kept_sides import ChosenSides, KeptSides, changed_from
from layerstack.publish.layer_view import LayerView
from layerstack.text.lines import TEXT_MAX, is_text
from layerstack.text.markers import Labels, Marked, mark
from layerstack.tree.disk import DiskTree
from layerstack.tree.state import DIRECTORY, FILE, State, equal

UNIT = "unit"
_TEXTS = frozenset(("content", "add_add"))
_ATTRIBUTES = frozenset(("mode", "xattr"))


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
        taker.resolved.append(taker.kept.keep_unit(conflict))
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
        self.kept = KeptSides(self.view, on, self.cases)
        self.resolved: list[ResolvedConflict] = []
        self.marked: dict[str, tuple[str, ...]] = {}
        self.why: dict[str, str] = {}
        self.all_shown: set[str] = set()
        """Paths of texts that show both sides."""

    def add(self, path: str, conflict: Conflict | None) -> None:
        asked = path if conflict is None else conflict.path
        self.cases.setdefault(path, _Case(path, self.on.choice.side(asked), conflict))

    def displaced(self, path: str, side: str) -> None:
        """Keep an entry that is replaced by a directory, which the other side's entries need."""
        kept = self.kept.keep(path, side, leaves=True)
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
                self.view.put_tree(
                    self.on.ours, case.path, case.path, changed_from(self.on.base, self.on.ours)
                )
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
            kept = None if case.path in self.all_shown else self.kept.keep(case.path, other)
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
