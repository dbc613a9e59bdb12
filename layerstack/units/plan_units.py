"""Find the units that both sides of a publication may have changed, and let `units` decide each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.layers.index_record import Index
from layerstack.model.paths import ancestors, parent
from layerstack.tree.state import DIRECTORY
from layerstack.units.units import (
    BUILT_IN,
    GIT,
    SQLITE,
    Candidates,
    Decided,
    Kind,
    Sides,
    Unit,
    decide,
    named_in,
    units_of,
)


def named_by(layer: Layer, kinds: Sequence[Kind]) -> frozenset[Unit]:
    """Find the units that the paths of a layer may be members of; done once per layer."""
    known = layer.named_units
    if known is None or known[0] is not kinds:
        known = layer.named_units = kinds, named_in(layer.index or {}, kinds)
    return known[1]


NONE: Mapping[tuple[str, str], str] = MappingProxyType({})


def decided_units(
    own: Layer,
    newer: Sequence[Layer],
    base: Chain,
    kinds: Sequence[Kind],
    sides: Callable[[], Sides],
    taken: Mapping[tuple[str, str], str] = NONE,
    without: str = "",
) -> list[Decided]:
    """Decide the units that a merge path by path would mix from parts of both sides.

    Args:
        own: the captured work.
        newer: the layers of the head since `base`.
        taken: (kind's name, root) of units in conflict -> the side that they are taken from.
        without: name of a kind that is decided elsewhere.
    Cost: a search of the names, once per layer; the rest only where a name may be that of a member.
    """
    named = named_in(own.index or {}, kinds).union(
        *(named_by(layer, kinds) for layer in newer), _unnamed(own, newer, base)
    )
    if not named:
        return []
    found = [
        decide(unit, _candidates(unit, own, newer, base), sides(), taken.get((unit.kind.name, unit.root)))
        for unit in sorted(named, key=lambda unit: (unit.root, unit.kind.name))
        if unit.kind.name != without
    ]
    return [one for one in found if one is not None]


def repositories(own: Layer, newer: Sequence[Layer], kinds: Sequence[Kind]) -> list[str]:
    """List the roots of the git repositories that the paths of the layers may belong to, by their names."""
    named = named_in(own.index or {}, kinds).union(*(named_by(layer, kinds) for layer in newer))
    return sorted({unit.root for unit in named if unit.kind is GIT})


def may_have_repositories(index: Index) -> bool:
    """Check whether a listed path may belong to a git repository, by its name."""
    return any(unit.kind is GIT for unit in named_in(index))


def changed_below(layer: Layer, root: str, base: Chain) -> set[str]:
    """List the paths at and below `root` that a layer lists or deletes, unchanged containers left out."""
    return _listed(layer, root)[0] | set(_hidden(layer, root, base))


def _unnamed(own: Layer, newer: Sequence[Layer], base: Chain) -> Iterator[Unit]:
    """Find the databases that no listed name reveals: one side lists the file alone, the other deleted its
    directory, with the other files that the base had there.
    """
    listed: set[str] = set()
    hidden: dict[str, bool] = {}
    for path, rec in (own.index or {}).items():
        if rec.masks and base.path_index.touched(path, own.version):
            found = base.find(path)
            if found is not None and found.kind == DIRECTORY:
                listed.update(below for layer in newer for below in layer.under(path))
        if rec.kind == DIRECTORY:
            continue
        folder = parent(path)
        if folder not in hidden:
            hidden[folder] = any(base.path_index.masked(above, own.version) for above in ancestors(path))
        if hidden[folder]:
            listed.add(path)
    for path in listed:
        beside = (member for member in SQLITE.members(path) if member != path)
        if any(base.find(member) is not None for member in beside):
            yield Unit(SQLITE, path)


def _candidates(unit: Unit, own: Layer, newer: Sequence[Layer], base: Chain) -> Candidates:
    if unit.kind.members(unit.root) is not None:
        return Candidates(())
    ours, again_ours = _listed(own, unit.root)
    theirs, again_theirs = set[str](), set[str]()
    for layer in newer:
        paths, again = _listed(layer, unit.root)
        theirs |= paths
        again_theirs |= again
    hidden = {path for layer in (own, *newer) for path in _hidden(layer, unit.root, base)}
    return Candidates(ours | theirs | hidden, again_ours, again_theirs)


def _hidden(layer: Layer, root: str, base: Chain) -> Iterator[str]:
    """List the paths of the base at or below `root` that the layer deleted without listing them: with a
    directory.
    """
    above = any((rec := layer.get(path)) is not None and rec.masks for path in (*ancestors(root), root))
    for path in (
        [root]
        if above
        else [path for path in layer.under(root) if (rec := layer.get(path)) is not None and rec.masks]
    ):
        found = base.find(path)
        if found is not None and found.kind == DIRECTORY:
            yield from base.walk(path)


def _listed(layer: Layer, root: str) -> tuple[set[str], set[str]]:
    """List the paths of a layer at and below `root`, unchanged containers left out, and those of them that
    are directories deleted and made again.
    """
    paths = {
        path for path in (root, *layer.under(root)) if (rec := layer.get(path)) is not None and not rec.quiet
    }
    return paths, {
        path
        for path in paths
        if (rec := layer.get(path)) is not None and rec.kind == DIRECTORY and rec.opaque
    }


def meet(own: Iterable[Index], newer: Sequence[Layer], kinds: Sequence[Kind]) -> bool:
    """Check whether a newer layer may concern a unit that the work concerns, though they have no path in
    common. False is certain.
    """
    for index in own:
        named = named_in(index, kinds)
        for layer in newer:
            theirs = named_by(layer, kinds)
            if not named.isdisjoint(theirs):
                return True
            if any(path in index for unit in theirs for path in unit.kind.members(unit.root) or ()):
                return True
            if any(
                layer.get(path) is not None for unit in named for path in unit.kind.members(unit.root) or ()
            ):
                return True
    return False


def unit_at(path: str, kinds: Sequence[Kind], sides: Sides) -> Unit | None:
    """Find the unit that the path is a member of in any of the trees; also for a database file alone, which
    no name shows.
    """
    for unit in units_of(path, (*kinds, *BUILT_IN)):
        if unit.holds(path) and unit.kind.is_there(unit.root, sides.trees):
            few = unit.kind.members(unit.root) or ()
            if not any(
                (state := tree(member)) is not None and state.kind == DIRECTORY
                for tree in sides.trees
                for member in few
            ):
                return unit
    return Unit(SQLITE, path) if SQLITE.begins(path, sides.trees) else None
