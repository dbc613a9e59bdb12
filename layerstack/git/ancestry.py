"""Histories: ancestors, the commits between two, and what a history lacks.

Walks go by date, newest first, as those of git, and cost the difference of two histories where dates rise
from parent to child. Source: commit-reach.c, commit.c of git.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator

from layerstack.git.commits import GITLINK, CommitLinks, tag_target
from layerstack.git.object_format import CorruptObject, MissingObject, ObjectTooLarge, Oid
from layerstack.git.objects import Objects

WALK_MAX = 500_000
"""Commits that one walk reads."""
OBJECTS_MAX = 2_000_000
"""Objects that a search for missing ones visits."""
SLOP = 256
"""Commits that `between` reads beyond the last one that its dates demand, for histories with wrong clocks."""
_ONE, _TWO, _STALE, _BELOW = 1, 2, 4, 8


class _Walk:
    """Commits by date, each with flags that its ancestors inherit."""

    def __init__(self, objects: Objects) -> None:
        self.flags: dict[Oid, int] = {}
        self._objects, self._links = objects, dict[Oid, CommitLinks]()
        self._queue: list[tuple[int, int, Oid]] = []
        self._queued: dict[Oid, int] = {}
        self._count = self.fresh = 0
        """`fresh`: the entries of the queue that are not stale."""

    def links(self, oid: Oid) -> CommitLinks:
        found = self._links.get(oid)
        if found is None:
            if len(self._links) >= WALK_MAX:
                raise ObjectTooLarge(f"{self._objects.root}: a walk of more than {WALK_MAX} commits")
            found = self._links[oid] = self._objects.links(oid)
        return found

    def put(self, oid: Oid, flags: int) -> None:
        """Give a commit flags, and queue it if it lacked one of them."""
        had = self.flags.get(oid, 0)
        if had & flags == flags:
            return
        self.flags[oid] = had | flags
        waiting = oid in self._queued
        if waiting and not had & _STALE and (had | flags) & _STALE:
            self.fresh -= 1
        if not waiting:
            self._count += 1
            self._queued[oid] = self._count
            self.fresh += not (had | flags) & _STALE
            heapq.heappush(self._queue, (-self.links(oid).committed, self._count, oid))

    def pop(self) -> tuple[Oid, int] | None:
        """Take the newest commit with its flags."""
        if not self._queue:
            return None
        oid = heapq.heappop(self._queue)[2]
        del self._queued[oid]
        self.fresh -= not self.flags[oid] & _STALE
        return oid, self.flags[oid]


def _paint(objects: Objects, one: Oid, two: Oid) -> tuple[_Walk, list[Oid]]:
    """Walk from two commits until what remains is common; candidates for the merge bases."""
    walk, found = _Walk(objects), dict[Oid, None]()
    walk.put(one, _ONE)
    walk.put(two, _TWO)
    while walk.fresh and (item := walk.pop()) is not None:
        oid, flags = item
        if flags & (_ONE | _TWO) == _ONE | _TWO:
            if not flags & _STALE:
                found[oid] = None
            flags |= _STALE
        for parent in walk.links(oid).parents:
            walk.put(parent, flags & (_ONE | _TWO | _STALE))
    return walk, [oid for oid in found if not walk.flags[oid] & _STALE]


def is_ancestor(objects: Objects, a: Oid, b: Oid) -> bool:
    """Check whether commit `a` is `b` or one of its ancestors.

    Raises:
        MissingObject, CorruptObject: a commit on the way.
        ObjectTooLarge: a walk of more than WALK_MAX commits.
    """
    return a == b or bool(_paint(objects, a, b)[0].flags[a] & _TWO)


def merge_bases(objects: Objects, a: Oid, b: Oid) -> list[Oid]:
    """List the best common ancestors as `git merge-base --all` does, the newest first. Raises as
    is_ancestor.
    """
    if a == b:
        return [a]
    found = _paint(objects, a, b)[1]
    if len(found) > 1:
        found = [x for x in found if not any(x != y and is_ancestor(objects, x, y) for y in found)]
    return found


def unreached(objects: Objects, tips: Iterable[Oid], refs: Iterable[Oid]) -> set[Oid]:
    """Find the commits among `tips` that no commit of `refs` and no other tip has in its history. One walk,
    whatever the number of both; parents that no tree has are passed over. Where clocks were wrong for more
    than SLOP commits, a tip that is reached may be among the result.

    Raises:
        CorruptObject: a commit on the way.
        ObjectTooLarge: a walk of more than WALK_MAX commits.
    """
    walk, wanted = _Walk(objects), list(tips)
    for oid in wanted:
        walk.put(oid, _ONE)
    for oid in refs:
        walk.put(oid, _TWO)
    lost, slop = set(wanted), SLOP
    while lost and (walk.fresh or slop > 0) and (item := walk.pop()) is not None:
        oid, flags = item
        if flags & (_TWO | _BELOW):
            lost.discard(oid)
        slop = SLOP if walk.fresh else slop - 1
        if flags & (_ONE | _TWO) == _ONE | _TWO:
            flags |= _STALE
        inherited = flags & (_ONE | _TWO | _STALE) | (_BELOW if flags & _ONE else 0)
        for parent in walk.links(oid).parents:
            if objects.has(parent):
                walk.put(parent, inherited)
    return lost


def between(objects: Objects, base: Oid | None, tip: Oid) -> list[Oid]:
    """List the commits of `tip` that `base` does not have, parents first, in the order of `git rev-list
    --topo-order --reverse base..tip`; all of them without a base.

    Raises:
        MissingObject, CorruptObject: a commit on the way.
        ObjectTooLarge: a walk of more than WALK_MAX commits.
    """
    walk = _Walk(objects)
    walk.put(tip, _ONE)
    if base is not None:
        walk.put(base, _TWO | _STALE)
    mine: dict[Oid, None] = {}
    oldest, slop, asked = 1 << 62, SLOP, -1

    def chosen() -> list[Oid]:
        return _sorted({oid for oid in mine if not walk.flags[oid] & _STALE}, tip, walk.links)

    while slop > 0 or walk.fresh:
        if not walk.fresh and asked != len(mine):
            asked = len(mine)
            if _all_descend(order := chosen(), base, walk.links):
                return order
        item = walk.pop()
        if item is None:
            break
        oid, flags = item
        if flags & _STALE:
            mine.pop(oid, None)
            slop = slop - 1 if not walk.fresh and walk.links(oid).committed < oldest else SLOP
        else:
            mine[oid] = None
            oldest = min(oldest, walk.links(oid).committed)
        for parent in walk.links(oid).parents:
            if not flags & _STALE or objects.has(parent):
                walk.put(parent, flags & (_ONE | _TWO | _STALE))
    return chosen()


def _all_descend(order: list[Oid], base: Oid | None, links: Callable[[Oid], CommitLinks]) -> bool:
    """Check whether all commits descend from `base`: then none of them is one of its ancestors, whatever the
    dates are.
    """
    good = {base}
    for oid in order:
        if good.isdisjoint(links(oid).parents):
            return False
        good.add(oid)
    return True


def _sorted(chosen: Collection[Oid], tip: Oid, links: Callable[[Oid], CommitLinks]) -> list[Oid]:
    """Order commits, each after its parents; a line of history stays together, and the first parent's side is
    the older one.
    """
    if tip not in chosen:
        return []
    waiting = dict.fromkeys(chosen, 0)
    for oid in chosen:
        for parent in links(oid).parents:
            if parent in waiting:
                waiting[parent] += 1
    stack, order = [tip], list[Oid]()
    while stack:
        oid = stack.pop()
        order.append(oid)
        for parent in links(oid).parents:
            if parent in waiting:
                waiting[parent] -= 1
                if not waiting[parent]:
                    stack.append(parent)
    order.reverse()
    return order


def missing(
    objects: Objects, tips: Iterable[Oid], known: Iterable[Oid] = (), *, most: int = 100
) -> list[Oid]:
    """List objects that the tips need and no tree has, at most `most` of them.

    Args:
        tips: commits, tags, trees or blobs.
        known: commits that are complete, with all their ancestors; their trees are not read where a newer
            tree has the same entry.

    Raises:
        CorruptObject: an object that is not what its parent says it is.
        ObjectTooLarge: more than WALK_MAX commits or OBJECTS_MAX other objects.
    """
    lacking: dict[Oid, None] = {}
    seen: set[Oid] = set()
    walk = _Walk(objects)
    roots: list[tuple[Oid, str]] = []
    for oid in known:
        if objects.has(oid) and objects.header(oid).kind == "commit":
            walk.put(oid, _TWO | _STALE)
    for oid in tips:
        _peel(objects, oid, walk, roots, lacking)
    new: list[Oid] = []
    while walk.fresh and (item := walk.pop()) is not None and len(lacking) < most:
        oid, flags = item
        if not flags & _STALE:
            new.append(oid)
        for parent in walk.links(oid).parents:
            if objects.has(parent):
                walk.put(parent, flags & (_ONE | _TWO | _STALE))
            elif not flags & _STALE:
                lacking[parent] = None
    for oid in new:
        for parent in walk.links(oid).parents:
            if walk.flags.get(parent, 0) & _STALE and len(lacking) < most:
                _compare(objects, walk.links(oid).tree, walk.links(parent).tree, seen)
    for oid, kind in [*((walk.links(oid).tree, "tree") for oid in reversed(new)), *roots]:
        for absent in _below(objects, oid, kind, seen):
            lacking[absent] = None
            if len(lacking) >= most:
                return list(lacking)
    return list(lacking)


def _peel(
    objects: Objects, oid: Oid, walk: _Walk, roots: list[tuple[Oid, str]], lacking: dict[Oid, None]
) -> None:
    """Follow tags to what they name, and queue it."""
    for _ in range(100):
        if not objects.has(oid):
            lacking[oid] = None
            return
        kind, _size = objects.header(oid)
        if kind == "commit":
            walk.put(oid, _ONE)
        elif kind != "tag":
            roots.append((oid, kind))
        if kind != "tag":
            return
        oid = tag_target(objects.read(oid, "tag")[1], objects.fmt)[0]
    raise CorruptObject(f"{objects.root}: more than 100 tags, one of another, at {oid.hex()}")


def _compare(objects: Objects, new: Oid, old: Oid, seen: set[Oid]) -> None:
    """Add to `seen` the entries of the old tree, on the way that the new tree differs from it."""
    pairs = [(new, old)]
    while pairs:
        a, b = pairs.pop()
        if a == b:
            seen.add(a)
            continue
        if not objects.has(a) or not objects.has(b):
            continue
        theirs = {entry.name: entry for entry in objects.tree(b)}
        seen.update(entry.oid for entry in theirs.values() if not entry.is_tree)
        for entry in objects.tree(a):
            other = theirs.get(entry.name)
            if other is not None and other.is_tree and entry.is_tree:
                pairs.append((entry.oid, other.oid))
        _bound(objects, len(seen))


def _below(objects: Objects, oid: Oid, kind: str, seen: set[Oid]) -> Iterator[Oid]:
    """Yield the missing objects of a tree, or of a single blob."""
    stack = [(oid, kind == "tree")]
    while stack:
        at, is_tree = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        _bound(objects, len(seen))
        if not is_tree:
            if not objects.has(at):
                yield at
            elif (kind := objects.header(at).kind) != "blob":
                raise CorruptObject(f"{objects.root}: {at.hex()} is a {kind}, a tree has it as a file")
            continue
        try:
            entries = objects.tree(at)
        except MissingObject:
            yield at
            continue
        stack += [(entry.oid, entry.is_tree) for entry in reversed(entries) if entry.mode != GITLINK]


def _bound(objects: Objects, count: int) -> None:
    if count > OBJECTS_MAX:
        raise ObjectTooLarge(f"{objects.root}: more than {OBJECTS_MAX} objects to visit")
