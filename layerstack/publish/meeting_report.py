"""Report of the walk over three trees: conflicts, each with the layer of the other side, and notices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from layerstack.layers.index import Layer
from layerstack.layers.renames import Renames
from layerstack.model.conflict import HUNK_TEXT_MAX, Conflict, Hunk, Notice, Renamed, TheirsLayer, TornUnit
from layerstack.model.paths import ancestors, byte_order
from layerstack.publish.edits import Edit
from layerstack.publish.git_outcome import NO_GIT, GitOutcome
from layerstack.publish.three_trees import Trees
from layerstack.text.lines import lines_at, numbering, scan_lines
from layerstack.tree.state import FILE, WHITEOUT, fingerprint
from layerstack.units.git_repository import commit_of
from layerstack.units.plan_units import unit_at
from layerstack.units.units import CONFLICT, HEAD, OURS, Decided, Kind, Unit, differs, held_by

NOTICE_LIMIT = 100
"""Replaced paths that are named; the last notice has the number of all others."""
RENAMES_MAX = 100
"""Paths removed by both sides for which renames are searched."""
UNIT = "unit"
TEXTS_MAX = 32 * 1024
"""Characters of the texts of all hunks; the hunks of further conflicts have none."""
HUNK_LIMIT = 100
"""Hunks listed per conflict; the conflict reports that others were cut."""

Found = tuple[str, tuple[Hunk, ...]]
"""A conflict: its class, and its hunks."""


class Findings(NamedTuple):
    """Results of a walk; the lists grow while it runs."""

    edits: list[Edit]
    conflicts: dict[str, Found]
    notices: list[Notice]
    replaced: list[str]
    """Ignored paths whose change in the head is lost."""
    left: list[str]
    """Derived paths where the head's entry replaces ours."""
    both_removed: list[str]
    units: Sequence[Decided]
    git: GitOutcome = NO_GIT


class Report:
    """Conflicts and notices, made from the findings."""

    def __init__(self, trees: Trees, found: Findings, kinds: Sequence[Kind]) -> None:
        """`kinds`: of units, in addition to the built-in ones."""
        self._trees, self._found, self._kinds = trees, found, kinds
        self.below: list[str] = []
        """Paths in conflict that `conflicts` left out, since it lists one above them."""
        self._renames = {
            "ours": Renames(trees.base, lambda path: trees.shown.find(path), lambda: iter(trees.index)),
            "theirs": Renames(
                trees.base,
                trees.head.find,
                lambda: (path for layer in trees.newer for path in layer.under("")),
            ),
        }

    def conflicts(self) -> tuple[Conflict, ...]:
        """List all conflicts, in byte order of paths."""
        listed: list[Conflict] = []
        left = TEXTS_MAX
        conflicts, torn = self._with_units()
        by_git = {one.path: one for one in self._found.git.conflicts}
        for path in sorted(conflicts):
            kind, hunks = conflicts[path]
            hunks = hunks[: HUNK_LIMIT + 1]
            if hunks and left > 0:
                hunks = self._with_texts(path, hunks, left)
                left -= sum(len(text) for hunk in hunks for text in hunk.texts or ())
            if kind == "parent" and any(a in conflicts for a in ancestors(path)):
                self.below.append(path)  # one conflict per lost subtree
                continue
            unit = torn.get(path) if kind == UNIT else None
            layer = self._theirs(path) if unit is None else self._theirs_of(unit.changed)
            listed_here = path in self._trees.index and self._trees.index[path].kind != WHITEOUT
            listed.append(
                Conflict(
                    path,
                    kind,
                    fingerprint(self._trees.base.find(path)),
                    fingerprint(
                        self._trees.tree.state(path) if listed_here else self._trees.shown.find(path)
                    ),  # the base's state for a unit's root that ours did not change
                    fingerprint(self._trees.head.find(path)),
                    self._by(layer),
                    hunks[:HUNK_LIMIT],
                    len(hunks) > HUNK_LIMIT,
                    None if unit is None else self._torn(unit),
                    self._renamed(path, kind),
                )
            )
            if path in by_git:
                listed[-1] = by_git[path].completed(listed[-1])
        listed.sort(key=lambda c: c.path.encode("utf-8", "surrogateescape"))
        return tuple(listed)

    def _with_texts(self, path: str, hunks: tuple[Hunk, ...], limit: int) -> tuple[Hunk, ...]:
        """Add the texts to the hunks of a file, up to `limit` characters."""
        trees, found = self._trees, list[Hunk]()
        states = (trees.base.find(path), trees.shown.find(path), trees.head.find(path))
        texts = [b"" if state is None or state.kind != FILE else state.data() for state in states]
        starts = [scan_lines(text, numbering())[1] for text in texts]
        for hunk in hunks:
            if limit > 0:
                base, ours, theirs = (
                    lines_at(text, at, *span, 4 * HUNK_TEXT_MAX + 1)[: HUNK_TEXT_MAX + 1]
                    for text, at, span in zip(texts, starts, hunk[:3], strict=True)
                )
                hunk = hunk._replace(texts=(base, ours, theirs))
                limit -= len(base) + len(ours) + len(theirs)
            found.append(hunk)
        return tuple(found)

    def notices(self) -> tuple[Notice, ...]:
        """List the notices: decisions other than conflicts."""
        found, left = [*self._found.notices, *self._renamed_twice()], set(self._found.left)
        found += self._found.git.notices
        for unit in self._found.units:
            if unit.replaced and unit.whose == OURS:
                found.append(
                    Notice(
                        "replaced",
                        unit.unit.root,
                        self._by(self._theirs_of(unit.changed)),
                        unit.unit.kind.name,
                    )
                )
            elif unit.replaced and unit.whose == HEAD:
                left |= unit.forced
        replaced = sorted(self._found.replaced, key=byte_order)
        for n, path in enumerate(replaced[:NOTICE_LIMIT], 1):
            more = len(replaced) - n if n == NOTICE_LIMIT and len(replaced) > n else None
            found.append(Notice("replaced", path, self._by(self._theirs(path)), more=more))
        if left:
            found.append(Notice("derived", min(left, key=byte_order), number=len(left)))
        return tuple(found)

    def _theirs(self, path: str) -> Layer | None:
        """Find the newest layer that changed `path` since the base."""
        above = ancestors(path)
        for layer in self._trees.newer:
            found = layer.get(path)
            if found is not None and not found.quiet:
                return layer
            if any((a := layer.get(x)) is not None and a.masks for x in above):
                return layer
        return None

    def _theirs_of(self, paths: Iterable[str]) -> Layer | None:
        """Find the newest layer that changed one of the paths."""
        found = [layer for path in paths if (layer := self._theirs(path)) is not None]
        return max(found, key=lambda layer: layer.version, default=None)

    def _with_units(self) -> tuple[dict[str, Found], dict[str, Decided]]:
        """List the conflicts, with those of a unit's members combined at its root; and the torn units by
        their roots.
        """
        torn = [one for one in self._found.units if one.whose == CONFLICT]
        alone: dict[Unit, list[str]] = {}
        held = held_by(one.unit for one in torn)
        for path in sorted(self._found.conflicts, key=byte_order):
            if held(path):
                continue
            b, o, h = self._trees.base.find(path), self._trees.shown.find(path), self._trees.head.find(path)
            if differs(b, h) and differs(b, o) and differs(o, h):
                unit = unit_at(path, self._kinds, self._trees.sides())
                if unit is not None:
                    alone.setdefault(unit, []).append(path)
        torn += [Decided(unit, CONFLICT, tuple(paths)) for unit, paths in alone.items()]
        held = held_by(one.unit for one in torn)
        left = {path: what for path, what in self._found.conflicts.items() if not held(path)}
        return {**left, **{one.unit.root: (UNIT, ()) for one in torn}}, {one.unit.root: one for one in torn}

    def _renamed(self, path: str, kind: str) -> Renamed | None:
        """Find the new path of an entry on the side that has nothing at the old path."""
        if kind not in ("delete_modify", "modify_delete", "parent"):
            return None
        by = "ours" if self._trees.shown.find(path) is None else "theirs"
        to = self._renames[by].find(path)
        return None if to is None else Renamed(to, by)

    def _renamed_twice(self) -> Iterator[Notice]:
        """Yield a notice for each path that both sides renamed, to different paths."""
        for path in self._found.both_removed[:RENAMES_MAX]:
            ours, theirs = (self._renames[by].find(path) for by in ("ours", "theirs"))
            if ours is not None and theirs is not None and ours != theirs:
                yield Notice(
                    "rename_rename",
                    path,
                    self._by(self._theirs(path)),
                    renamed=(Renamed(ours, "ours"), Renamed(theirs, "theirs")),
                )

    def _torn(self, unit: Decided) -> TornUnit:
        commit = commit_of(unit.unit.root, self._trees.base.find) if unit.unit.kind.name == "git" else None
        return TornUnit(unit.unit.kind.name, unit.changed, commit)

    def _by(self, layer: Layer | None) -> TheirsLayer | None:
        """Describe a layer and its author; None if there is no layer."""
        return None if layer is None else self._trees.describe(layer)
