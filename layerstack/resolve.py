"""Plan and resolve: sealed work on its base, a head that moved on -> every conflict, or what must change in the layer.

The outcome is a function of three trees, base B, ours O, head H, alone. Which paths are looked at comes from the versions of the layers
(`Shelf`); the verdict is always the decision table on real states. Subtrees that nothing newer meets are not entered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from layerstack.chain import Chain
from layerstack.changes import Conflict, Hunk, Notice, Renamed, TheirsLayer, TornUnit
from layerstack.derived import Derived
from layerstack.git_unit import commit_of
from layerstack.ignore import FILE_MAX, IgnoreRules
from layerstack.index import Index, Layer, Record
from layerstack.manifest import LayerId
from layerstack.packed_index import PackedIndex
from layerstack.paths import ancestors, byte_order
from layerstack.paths import parent as parent_of
from layerstack.renames import Renames
from layerstack.rules import DEFAULT, Rules, Verdict, decide
from layerstack.states import DIRECTORY, FILE, WHITEOUT, State, equal, fingerprint
from layerstack.tree import Tree
from layerstack.unit_plan import decided_database, decided_units, unit_at
from layerstack.units import CONFLICT, HEAD, OURS, Decided, Sides, Unit, differs

Ignored = Callable[[str, bool], bool]
"""(path, is it a directory?) -> is it on the ignored route?"""

NOTICE_LIMIT = 100
"""Replaced paths that are named; of more the last notice has the number."""
RENAMES_MAX = 100
"""Paths that both sides removed about which it is looked where they went."""
UNIT = "unit"
HUNK_LIMIT = 100
"""Hunks named per conflict; more are cut and said to be."""


class Drop(NamedTuple):
    """Take the entry, with all below it, out of the layer."""

    path: str

    def apply(self, tree: Tree) -> None:
        tree.remove(self.path)


class Bring(NamedTuple):
    """Put what the head has at the path into the layer, in the place of ours."""

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
    """Replace the file or symlink by a new one: its inode may be shared with other layers, so it is never edited."""

    path: str
    state: State

    def apply(self, tree: Tree) -> None:
        tree.replace(self.path, self.state)


class Whiteout(NamedTuple):
    """Hide what the head has at the path."""

    path: str

    def apply(self, tree: Tree) -> None:
        tree.whiteout(self.path)


class Look(NamedTuple):
    """Nothing to edit, but the directory must be sealed once more, against the head."""

    path: str

    def apply(self, tree: Tree) -> None:
        return


Edit = Drop | Bring | Attributes | Write | Whiteout | Look


class Plan(NamedTuple):
    """Without conflicts, a clone of the layer with the edits applied shows the merge on top of the head. No edits: the layer itself does."""

    conflicts: tuple[Conflict, ...]
    edits: tuple[Edit, ...]
    notices: tuple[Notice, ...]


def plan(
    tree: Tree,
    index: Index,
    *,
    base: Chain,
    head: Chain,
    version: int,
    ignored: Ignored,
    describe: Callable[[Layer], TheirsLayer],
    rules: Rules = DEFAULT,
) -> Plan:
    """Decide every path of `index` that something newer than `version` bears on.

    Args:
        tree, index: sealed work that stands on `base`, which is the chain of `version`.
        describe: who published a layer.
    Returns:
        All conflicts in byte order of paths, none left out; or the edits in the order to apply.
    Cost: O(newer records that meet ours) look-ups; content is read for paths in doubt only.
    """
    merge = _Merge(tree, index, base, head, version, ignored, describe, rules)
    merge.visit("", inside=False, gone=False, covered=False)
    merge.place_forced()
    return Plan(merge.listed_conflicts(), tuple(merge.edits), merge.listed_notices())


class _Merge:
    def __init__(
        self,
        tree: Tree,
        index: Index,
        base: Chain,
        head: Chain,
        version: int,
        ignored: Ignored,
        describe: Callable[[Layer], TheirsLayer],
        rules: Rules,
    ) -> None:
        self.tree, self.index, self.B, self.H, self.version = tree, index, base, head, version
        self._both_ignore, self._own_rules = ignored, IgnoreRules(self._own_gitignore)
        self.shelf, self.rules, self.describe = head.shelf, rules, describe
        self.newer = [layer for layer in head.published if not layer.is_base and layer.version > version]
        self.edits: list[Edit] = []
        self.conflicts: dict[str, tuple[str, tuple[Hunk, ...]]] = {}
        self.notices: list[Notice] = []
        self.taken: set[str] = set()  # ignored directories of ours that win over what the head has there
        self.replaced: list[str] = []  # ignored paths of the head whose change is lost
        self.left: list[str] = []  # derived paths where ours gives way
        self.both_removed: list[str] = []
        self._children: dict[str, list[str]] | None = None
        self.own = Layer(LayerId("ours"), tree, version, index)
        self.renames = {
            "ours": Renames(base, lambda path: self.shown.find(path), lambda: iter(index)),
            "theirs": Renames(base, head.find, lambda: (path for layer in self.newer for path in layer.under(""))),
        }
        self.derived = Derived((base.find, lambda path: self.shown.find(path), head.find), self.ignored)
        self.units = decided_units(self.own, self.newer, base, rules.units, self.sides)
        self.forced = {path: unit.whose for unit in self.units for path in unit.forced}
        unlisted = [path for path in self.forced if path not in index]
        self.filled = {above for path in unlisted for above in ancestors(path)}
        """Directories that `place_forced` brings something into."""

    # look-ups

    @functools.cached_property
    def shown(self) -> Chain:
        """What the session shows."""
        return Chain(self.B.published, self.B.shelf, self.B.form, (self.own,))

    def sides(self) -> Sides:
        """The three trees, as the rule for units wants them."""

        def unmoved(path: str) -> bool:
            return self.B.holder(path) is self.H.holder(path)

        def loose(path: str) -> bool:
            o, h = self.shown.find(path), self.H.find(path)
            return self.last_writer_wins(path, o if o is not None else self.B.find(path), h)

        return Sides(self.B.find, self.shown.find, self.H.find, unmoved, loose, self.derived.within)

    def _own_gitignore(self, path: str) -> bytes | None:
        state = self.shown.find(path)
        return state.data(FILE_MAX + 1) if state is not None and state.kind == FILE else None

    def ignored(self, path: str, is_directory: bool) -> bool:
        """By the `.gitignore` files of all three trees: what a side has taken out of them is checked for conflicts."""
        return self._both_ignore(path, is_directory) and self._own_rules.ignored(path, is_directory)

    def children(self, path: str) -> Iterable[str]:
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
        """Is the head's state the base's? Without a read when both come from one layer."""
        return self.B.holder(path) is self.H.holder(path) or equal(b, h)

    def last_writer_wins(self, path: str, first: State | None, h: State | None) -> bool:
        if not path:
            return False
        if not self.ignored(path, first is not None and first.kind == DIRECTORY):
            return False
        return h is None or self.ignored(path, h.kind == DIRECTORY)

    def blocked(self, path: str) -> bool:
        """Has an ancestor become a file or a link in the head, and stays one?"""
        return any(x not in self.taken and (a := self.H.find(x)) is not None and a.kind != DIRECTORY for x in ancestors(path))

    # verdicts

    def conflict(self, path: str, kind: str, hunks: tuple[Hunk, ...] = ()) -> None:
        self.conflicts.setdefault(path, (kind, hunks))

    def decided(self, path: str, b: State | None, o: State | None, h: State | None) -> Verdict:
        verdict = decide(b, o, h, self.rules)
        if verdict.conflict is not None:
            self.conflict(path, verdict.conflict, verdict.hunks)
        return verdict

    def combine(self, path: str, b: State | None, o: State, h: State) -> State:
        """The merge of the two; what is there afterwards."""
        return self.merged(path, self.decided(path, b, o, h), o, h)

    def combine_ignored(self, path: str, b: State | None, o: State, h: State) -> State:
        """The same on the ignored route: what does not merge is ours."""
        verdict = decide(b, o, h, self.rules)
        if verdict.conflict is not None:
            self.replaced.append(path)
        return self.merged(path, verdict, o, h)

    def merged(self, path: str, verdict: Verdict, o: State, h: State) -> State:
        """Ours where there is a conflict."""
        if verdict.conflict is not None:
            return o
        content, meta, xattrs = verdict.content, verdict.meta, dict(verdict.xattrs)
        if content == "ours" and meta == o.meta and xattrs == o.xattrs:
            return o
        merged = o.changed(meta=meta, xattrs=xattrs, content=content if isinstance(content, bytes) else h if content == "head" else o)
        if o.kind == DIRECTORY:
            self.edits.append(Attributes(path, merged))
        elif content == "head" and meta == h.meta and xattrs == h.xattrs:
            self.edits.append(Bring(path, h))
        else:
            merged.linkable = False
            self.edits.append(Write(path, merged))
        return merged

    def hidden(self, path: str) -> None:
        """Ours has nothing below `path` any more. Source changes of the head there conflict; ignored ones go with the directory."""
        for q in self.below(path):
            h = self.H.find(q)
            if h is None or q in self.forced:
                continue
            b = self.B.find(q)
            if self.derived(q, b, h):
                self.left.append(q)
            elif self.last_writer_wins(q, b, h) if b is not None else self.ignored(q, h.kind == DIRECTORY):
                self.notices.append(Notice("dropped", q))
            elif b is None:
                self.conflict(q, "parent")
            elif not self.unmoved(q, b, h):
                self.decided(q, b, None, h)

    # the walk

    def visit(self, path: str, *, inside: bool, gone: bool, covered: bool) -> bool:
        """`inside`: an opaque directory of ours is above; `gone`: the parent is no directory in H; `covered`: something newer covers an
        ancestor. -> is the path in the resulting layer?"""
        if path in self.forced:
            return self.visit_forced(path, inside=inside, gone=gone)
        if not gone and not covered and not self.shelf.touched(path, self.version):
            return True
        covered = covered or self.shelf.covered(path, self.version)
        rec, b, h = self.index[path], self.B.find(path), self.H.find(path)
        if rec.kind == WHITEOUT:
            return self.visit_whiteout(path, b, h)
        o = self.tree.state(path)
        if rec.kind == DIRECTORY:
            return self.visit_directory(path, rec, b, o, h, inside=inside, gone=gone, covered=covered)
        return self.visit_file(path, b, o, h, inside=inside, gone=gone)

    def visit_whiteout(self, path: str, b: State | None, h: State | None) -> bool:
        if h is None:
            if b is not None:
                self.both_removed.append(path)
            self.edits.append(Drop(path))
            return False
        if not self.unmoved(path, b, h):
            if h.kind != DIRECTORY and self.derived(path, b, h):
                return self.leave(path, None)
            if self.last_writer_wins(path, b, h):
                self.replaced.append(path)
            elif not self.derived(path, b, h):
                self.decided(path, b, None, h)
        if h.kind == DIRECTORY:
            self.hidden(path)
        return True

    def visit_file(self, path: str, b: State | None, o: State, h: State | None, *, inside: bool, gone: bool) -> bool:
        unmoved = self.unmoved(path, b, h)
        if (gone or not unmoved) and self.derived(path, b, o, h) and not equal(b, o) and not equal(o, h):
            return self.leave(path, h if inside else None)
        if h is not None and h.kind == DIRECTORY:
            self.hidden(path)
        if equal(b, o):  # inside opaque directories, or a file that was only touched
            if unmoved:
                return True
            if h is None or not inside:
                self.edits.append(Drop(path))
                return False
            self.edits.append(Bring(path, h))
            return True
        if not gone and unmoved:
            return True
        if h is not None and equal(o, h):
            if not inside:
                self.edits.append(Drop(path))
            return inside
        if self.last_writer_wins(path, o, h):
            if gone and self.blocked(path):
                self.conflict(path, "parent")
            elif h is not None:
                self.combine_ignored(path, b, o, h)
            return True
        if gone or h is None:
            if gone and b is None:
                self.conflict(path, "parent")
            else:
                self.decided(path, b, o, None)
            return True
        self.combine(path, b, o, h)
        return True

    def visit_directory(
        self, path: str, rec: Record, b: State | None, o: State, h: State | None, *, inside: bool, gone: bool, covered: bool
    ) -> bool:
        if b is None or b.kind != DIRECTORY:  # ours made this directory
            if (gone or (not self.unmoved(path, b, h) and (h is None or h.kind != DIRECTORY))) and self.derived(path, b, o, h):
                return self.leave_directory(path, h, inside=inside, gone=gone, covered=covered)
            if gone:
                if self.last_writer_wins(path, o, h):
                    if self.blocked(path):
                        self.conflict(path, "parent")
                elif b is None:
                    self.conflict(path, "parent")
                else:
                    self.decided(path, b, o, None)
                return True
            if self.unmoved(path, b, h):
                return True
            if h is None or h.kind != DIRECTORY:
                if not self.last_writer_wins(path, o, h):
                    self.decided(path, b, o, h)
                elif h is not None:
                    self.replaced.append(path)
                return True
        elif h is None or h.kind != DIRECTORY:  # the head took this directory away
            return self.visit_taken(path, rec, b, o, h, inside=inside, covered=covered)
        # a directory on both sides: attributes first, then what is in it
        now = o
        if not equal(o, h) and (equal(b, o) or (not equal(b, h) and self.derived(path, b, o, h))):
            now = o.changed(meta=h.meta, xattrs=dict(h.xattrs))
            self.edits.append(Attributes(path, now))
        elif not equal(o, h) and not equal(b, h):
            now = (self.combine_ignored if self.last_writer_wins(path, o, h) else self.combine)(path, b, o, h)
        cut = inside or rec.opaque
        left = path in self.filled
        for child in self.children(path):
            left = self.visit(child, inside=cut, gone=False, covered=covered) or left
        if rec.opaque and not inside:
            self.bring_below(path)
            self.edits.append(Look(path))
        if cut or left:
            return True
        if now.meta == h.meta and now.xattrs == h.xattrs:  # nothing of ours is left; the root stays, and is seen to change nothing
            self.edits.append(Drop(path) if path else Look(path))
            return not path
        return True

    def visit_taken(self, path: str, rec: Record, b: State, o: State, h: State | None, *, inside: bool, covered: bool) -> bool:
        ours_stays = False
        if not equal(b, o) and not self.derived(path, b, o, h):
            if self.last_writer_wins(path, o, h):
                ours_stays = True
                if h is not None:
                    self.replaced.append(path)
                self.taken.add(path)
                if self.blocked(path):
                    self.conflict(path, "parent")
            else:
                self.decided(path, b, o, h)
        left = path in self.filled
        for child in self.children(path):
            left = self.visit(child, inside=inside or rec.opaque, gone=not ours_stays, covered=covered) or left
        if ours_stays or left:
            return True
        self.edits.append(Drop(path))
        return False

    def bring_below(self, path: str) -> None:
        """`path` is opaque in ours; what the head added or changed below it since the base must not vanish under the mark."""
        lost = {edit.path for edit in self.edits if isinstance(edit, Drop)}
        brought = {edit.path: edit.state.kind == DIRECTORY for edit in self.edits if isinstance(edit, Bring)}

        def is_directory(q: str) -> bool:
            return brought[q] if q in brought else q in self.index and self.index[q].kind == DIRECTORY and q not in lost

        for q in self.below(path):
            if q in self.index or q in brought:
                continue
            h = self.H.find(q)
            if h is None:
                continue
            b = self.B.find(q)
            ignored, derived = self.last_writer_wins(q, b if b is not None else h, h), self.derived(q, b, h)
            if self.forced.get(q) == OURS:
                continue
            if (q in self.forced or (b is not None and derived and not self.unmoved(q, b, h))) and h.kind != DIRECTORY:
                if is_directory(parent_of(q)):
                    self.edits.append(Bring(q, h))
                    brought[q] = False
                self.left.append(q)
            elif b is not None:  # ours removed it
                if not self.unmoved(q, b, h):
                    if ignored:
                        self.replaced.append(q)
                    elif not derived:
                        self.decided(q, b, None, h)
            elif is_directory(parent_of(q)):
                self.edits.append(Bring(q, h))
                brought[q] = h.kind == DIRECTORY
                self.notices.append(Notice("kept", q))
            elif ignored or derived:
                self.notices.append(Notice("dropped", q))
            else:
                self.conflict(q, "parent")

    # derived paths and units

    def leave(self, path: str, h: State | None) -> bool:
        """Ours gives way to the head's: to what shows there, or, in a directory that hides that, to `h`."""
        self.left.append(path)
        self.edits.append(Drop(path) if h is None else Bring(path, h))
        return h is not None

    def leave_directory(self, path: str, h: State | None, *, inside: bool, gone: bool, covered: bool) -> bool:
        """The same of a directory that ours made where the head has none; what is in it and not derived is judged by itself."""
        stays = False
        for child in self.children(path):
            stays = self.visit(child, inside=inside, gone=True, covered=covered) or stays
        if stays and not gone:
            self.decided(path, self.B.find(path), self.tree.state(path), h)
        return stays or self.leave(path, h if inside else None)

    def visit_forced(self, path: str, *, inside: bool, gone: bool) -> bool:
        """A member of a unit that is one side's as a whole."""
        h = self.H.find(path)
        if self.forced[path] == HEAD:
            self.edits.append(Bring(path, h) if inside and h is not None else Drop(path))
            return inside and h is not None
        if self.index[path].kind == WHITEOUT and h is None:
            self.edits.append(Drop(path))
            return False
        if gone and self.blocked(path):
            self.conflict(path, "parent")
        return True

    def place_forced(self) -> None:
        """Of units that are ours as a whole, the members that ours left as they were in the base and the head did not."""
        for path in sorted(path for path, whose in self.forced.items() if whose == OURS and path not in self.index):
            o = self.shown.find(path)
            if self.blocked(path):
                self.conflict(path, "parent")
                continue
            if o is None:
                if not any((rec := self.index.get(above)) is not None and rec.covers for above in ancestors(path)):
                    self.edits.append(Whiteout(path))
                continue
            for above in ancestors(path):
                if above not in self.index and above not in self.taken:
                    container = self.H.find(above) or self.shown.find(above)
                    assert container is not None
                    self.edits.append(Bring(above, container))
                    self.taken.add(above)
            self.edits.append(Bring(path, o))

    # the report

    def theirs(self, path: str) -> Layer | None:
        """The newest layer that changed `path` since the base."""
        above = ancestors(path)
        for layer in self.newer:
            found = layer.get(path)
            if found is not None and not found.quiet:
                return layer
            if any((a := layer.get(x)) is not None and a.covers for x in above):
                return layer
        return None

    def theirs_of(self, paths: Iterable[str]) -> Layer | None:
        """The newest layer that changed one of them."""
        found = [layer for path in paths if (layer := self.theirs(path)) is not None]
        return max(found, key=lambda layer: layer.version, default=None)

    def _with_units(self) -> dict[str, tuple[str, tuple[Hunk, ...]]]:
        """The conflicts, those about members of a unit put together at its root."""
        torn = [unit.unit for unit in self.units if unit.whose == CONFLICT]
        alone: dict[Unit, list[str]] = {}
        for path in sorted(self.conflicts, key=byte_order):
            if any(unit.holds(path) for unit in torn):
                continue
            b, o, h = self.B.find(path), self.shown.find(path), self.H.find(path)
            if differs(b, h) and differs(b, o) and differs(o, h):
                unit = unit_at(path, self.rules.units, self.sides())
                if unit is not None:
                    alone.setdefault(unit, []).append(path)
            elif (decided := decided_database(path, self.sides())) is not None and decided.whose == CONFLICT:
                alone[decided.unit] = [*decided.changed]
        self.units += [Decided(unit, CONFLICT, tuple(paths)) for unit, paths in alone.items()]
        torn += alone
        found = {path: what for path, what in self.conflicts.items() if not any(unit.holds(path) for unit in torn)}
        return {**found, **{unit.root: (UNIT, ()) for unit in torn}}

    def _renamed(self, path: str, kind: str) -> Renamed | None:
        """Where the side that has nothing at the path any more has it now."""
        if kind not in ("delete_modify", "modify_delete", "parent"):
            return None
        by = "ours" if self.shown.find(path) is None else "theirs"
        to = self.renames[by].find(path)
        return None if to is None else Renamed(to, by)

    def _renamed_twice(self) -> Iterator[Notice]:
        """What both sides removed at a path, and have at different ones."""
        for path in self.both_removed[:RENAMES_MAX]:
            ours, theirs = (self.renames[by].find(path) for by in ("ours", "theirs"))
            if ours is not None and theirs is not None and ours != theirs:
                yield Notice("rename_rename", path, self.by(self.theirs(path)), renamed=(Renamed(ours, "ours"), Renamed(theirs, "theirs")))

    def _torn(self, unit: Decided) -> TornUnit:
        commit = commit_of(unit.unit.root, self.B.find) if unit.unit.kind.name == "git" else None
        return TornUnit(unit.unit.kind.name, unit.changed, commit)

    def by(self, layer: Layer | None) -> TheirsLayer | None:
        """Who published it."""
        return None if layer is None else self.describe(layer)

    def listed_notices(self) -> tuple[Notice, ...]:
        found = [*self.notices, *self._renamed_twice()]
        for unit in self.units:
            if unit.replaced and unit.whose == OURS:
                found.append(Notice("replaced", unit.unit.root, self.by(self.theirs_of(unit.changed)), unit.unit.kind.name))
            elif unit.replaced and unit.whose == HEAD:
                self.left += unit.forced
        replaced = sorted(self.replaced, key=byte_order)
        for n, path in enumerate(replaced[:NOTICE_LIMIT], 1):
            more = len(replaced) - n if n == NOTICE_LIMIT and len(replaced) > n else None
            found.append(Notice("replaced", path, self.by(self.theirs(path)), more=more))
        if self.left:
            left = set(self.left)
            found.append(Notice("derived", min(left, key=byte_order), number=len(left)))
        return tuple(found)

    def listed_conflicts(self) -> tuple[Conflict, ...]:
        listed: list[Conflict] = []
        self.conflicts = self._with_units()
        torn = {unit.unit.root: unit for unit in self.units if unit.whose == CONFLICT}
        for path in sorted(self.conflicts):
            kind, hunks = self.conflicts[path]
            if kind == "parent" and any(a in self.conflicts for a in ancestors(path)):
                continue  # one conflict per lost subtree
            unit = torn.get(path) if kind == UNIT else None
            layer = self.theirs(path) if unit is None else self.theirs_of(unit.changed)
            listed_here = path in self.index and self.index[path].kind != WHITEOUT
            listed.append(
                Conflict(
                    path,
                    kind,
                    fingerprint(self.B.find(path)),
                    fingerprint(
                        self.tree.state(path) if listed_here else self.shown.find(path)
                    ),  # of a unit's root that ours left alone: the base's
                    fingerprint(self.H.find(path)),
                    self.by(layer),
                    hunks[:HUNK_LIMIT],
                    len(hunks) > HUNK_LIMIT,
                    None if unit is None else self._torn(unit),
                    self._renamed(path, kind),
                )
            )
        listed.sort(key=lambda c: c.path.encode("utf-8", "surrogateescape"))
        return tuple(listed)
