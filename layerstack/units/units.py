"""Units: paths that are one value to the program that writes them. This module decides the result for a unit
that both sides changed (ADR 0046); pure apart from reads of states.

- A side *changed* a unit when a member has another content, kind or presence than in the base. A change of
  attributes alone does not count, and neither does one of a *helper*: a lock, a cache or a log that its
  program makes again from the other members.
- Changed by one side: that side's unit as a whole, helpers included.
- Changed by both, and all members but helpers are alike: nothing to decide.
- Changed by both, differently: one conflict of class `unit` at the unit's root replaces all that the decision
  table says of its members. Where all changed members are ignored, the unit of the last writer is taken as a
  whole; below a derived directory that of the head, and likewise below one with a tag where all changed
  members are ignored.

A git repository is never classified as ignored, and has a rule of its own (`git_repository`).
"""

from __future__ import annotations

import abc
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from layerstack.layers.index_record import Index
from layerstack.model.paths import ancestors, byte_order, join, parent
from layerstack.text.wildmatch import Pattern, compile_pattern
from layerstack.tree.state import DIRECTORY, FILE, State, same
from layerstack.units import git_repository

Find = Callable[[str], State | None]
"""Function that reads one tree: path -> the state of its entry, None where the tree has no entry."""


class Kind(abc.ABC):
    """One kind of unit."""

    name: str = ""

    @abc.abstractmethod
    def roots_of(self, path: str) -> Sequence[str]:
        """List the roots of the units that a path of such a name may be a member of; nearly always 0 or 1."""

    @abc.abstractmethod
    def holds(self, root: str, path: str) -> bool:
        """Check whether the path is a member of the unit at `root`."""

    def helps(self, root: str, path: str) -> bool:
        """Check whether the member is a helper."""
        return False

    def members(self, root: str) -> Sequence[str] | None:
        """List all paths that can be members, where these are few; None: any path below the root."""
        return None

    @abc.abstractmethod
    def is_there(self, root: str, trees: Sequence[Find]) -> bool:
        """Check whether one of the trees has such a unit at `root`."""


class Unit(NamedTuple):
    """A unit by its kind and its root: a file, or the directory of its members."""

    kind: Kind
    root: str

    def holds(self, path: str) -> bool:
        return self.kind.holds(self.root, path)


def _head(state: State | None, size: int) -> bytes | None:
    """Read the first bytes of a file; None for anything else."""
    return state.data(size) if state is not None and state.kind == FILE else None


class _Sqlite(Kind):
    """A database file X, which is empty or begins with SQLite's header, with X-wal, X-journal and the helper
    X-shm. Source: sqlite.org/tempfiles.html.
    """

    name = "sqlite"
    HEADER = b"SQLite format 3\0"
    BESIDE = ("-wal", "-journal", "-shm")

    def roots_of(self, path: str) -> Sequence[str]:
        for end in self.BESIDE:
            if path.endswith(end) and not path.endswith("/" + end):
                return (path[: -len(end)],)
        return ()

    def holds(self, root: str, path: str) -> bool:
        return path == root or (path.startswith(root) and path[len(root) :] in self.BESIDE)

    def helps(self, root: str, path: str) -> bool:
        return path == root + "-shm"

    def members(self, root: str) -> Sequence[str]:
        return (root, *(root + end for end in self.BESIDE))

    def is_there(self, root: str, trees: Sequence[Find]) -> bool:
        found = [head for tree in trees if (head := _head(tree(root), len(self.HEADER))) is not None]
        return self.HEADER in found or (bool(found) and not any(found))

    def begins(self, path: str, trees: Sequence[Find]) -> bool:
        """Check whether one of the trees has a database there that is not empty, and none has a directory."""
        states = [tree(path) for tree in trees]
        return all(state is None or state.kind != DIRECTORY for state in states) and any(
            _head(state, 16) == self.HEADER for state in states
        )


class _Lmdb(Kind):
    """A directory with data.mdb, and the helper lock.mdb, which the next process that opens it makes
    again.
    """

    name = "lmdb"
    MAGIC = (b"\xde\xc0\xef\xbe", b"\xbe\xef\xc0\xde")

    def roots_of(self, path: str) -> Sequence[str]:
        return (parent(path),) if path.rpartition("/")[2] in ("data.mdb", "lock.mdb") else ()

    def holds(self, root: str, path: str) -> bool:
        return path in self.members(root)

    def helps(self, root: str, path: str) -> bool:
        return path == join(root, "lock.mdb")

    def members(self, root: str) -> Sequence[str]:
        return (join(root, "data.mdb"), join(root, "lock.mdb"))

    def is_there(self, root: str, trees: Sequence[Find]) -> bool:
        heads = [_head(tree(join(root, "data.mdb")), 20) for tree in trees]
        return any(head is not None and head[16:20] in self.MAGIC for head in heads)


class _LevelDb(Kind):
    """A directory whose CURRENT names an existing MANIFEST-*, of LevelDB or RocksDB, with the files that they
    write.
    """

    name = "leveldb"
    NAMES = re.compile(
        r"CURRENT|MANIFEST-\d+|IDENTITY|LOCK|LOG(\.old.*)?|OPTIONS-\d+|\d+\.(log|ldb|sst|blob|dbtmp)"
    )
    HELPERS = re.compile(r"LOCK|LOG(\.old.*)?")
    CURRENT = re.compile(rb"MANIFEST-\d+\n?")

    def roots_of(self, path: str) -> Sequence[str]:
        return (parent(path),) if self.NAMES.fullmatch(path.rpartition("/")[2]) else ()

    def holds(self, root: str, path: str) -> bool:
        return root in self.roots_of(path)

    def helps(self, root: str, path: str) -> bool:
        return self.HELPERS.fullmatch(path.rpartition("/")[2]) is not None

    def is_there(self, root: str, trees: Sequence[Find]) -> bool:
        for tree in trees:
            head = _head(tree(join(root, "CURRENT")), 64)
            if (
                head is not None
                and self.CURRENT.fullmatch(head)
                and tree(join(root, head.decode().strip())) is not None
            ):
                return True
        return False


class _Git(Kind):
    """A git directory: `.git`, those of its submodules, a bare repository. Files that people edit in it by
    hand are not members.
    """

    name = "git"

    def roots_of(self, path: str) -> Sequence[str]:
        return git_repository.roots_of(path)

    def holds(self, root: str, path: str) -> bool:
        return git_repository.holds(root, path)

    def is_there(self, root: str, trees: Sequence[Find]) -> bool:
        return any(git_repository.is_repository(root, tree) for tree in trees)


class NamedUnits(Kind):
    """Units of `runtime.layerstack.units`: directories that match `root`, with the paths below them that one
    of `members` matches.

    A path has one root, the outermost. Of the directories above it that match `root` the outermost
    `ROOTS_MAX` and as many of the innermost are tried, each with every member: a path may have two thousand
    directories. A directory is compared with `root` once while paths come in order.
    """

    ROOTS_MAX = 16

    def __init__(self, name: str, root: str, members: Sequence[str] = ("**",)) -> None:
        self.name = name
        self._root, self._members = _Glob(root), tuple(map(_Glob, members))
        self._last: tuple[str, tuple[int, ...]] | None = None
        """A directory, and the lengths of those at and above it that match; one value, since threads share
        it.
        """

    def roots_of(self, path: str) -> Sequence[str]:
        if not path:
            return ()
        sizes = self._matching(parent(path))
        if len(sizes) > 2 * self.ROOTS_MAX:
            sizes = (*sizes[: self.ROOTS_MAX], *sizes[-self.ROOTS_MAX :])
        return next(((path[:size],) for size in sizes if self.holds(path[:size], path)), ())

    def _matching(self, folder: str) -> tuple[int, ...]:
        """List the lengths of the directories that match `root`, down to this one, topmost first."""
        last = self._last
        if last is not None and last[0] == folder:
            return last[1]
        shared, sizes = -1, list[int]()
        if last is not None:
            both = os.path.commonprefix((f"{folder}/", f"{last[0]}/"))  # noqa: RUF071 - cut at a slash below
            shared = max(both.rfind("/"), 0)
            sizes += [size for size in last[1] if size <= shared]
        for above in (*ancestors(folder), folder):
            if len(above) > shared and self._root.matches(above or "."):
                sizes.append(len(above))
        self._last = folder, tuple(sizes)
        return self._last[1]

    def holds(self, root: str, path: str) -> bool:
        below = path[len(root) + 1 :] if root else path
        return (not root or path.startswith(root + "/")) and any(
            glob.matches(below) for glob in self._members
        )

    def is_there(self, root: str, trees: Sequence[Find]) -> bool:
        return True


class _Glob:
    """A pattern over whole paths, as in `.gitignore`."""

    def __init__(self, text: str) -> None:
        self._pattern: Pattern | None = compile_pattern(text.strip("/").encode(), whole=True)

    def matches(self, path: str) -> bool:
        pattern, raw = self._pattern, byte_order(path)
        if pattern is not None and pattern.name_only:
            raw = raw.rpartition(b"/")[2]
        return pattern is not None and (
            pattern.literal == raw if pattern.literal is not None else pattern.matches(raw)
        )


SQLITE, GIT = _Sqlite(), _Git()
BUILT_IN: tuple[Kind, ...] = (GIT, _Lmdb(), _LevelDb(), SQLITE)

_NEEDLES = (
    "-wal\n",
    "-shm\n",
    "-journal\n",
    ".mdb\n",
    "CURRENT\n",
    "MANIFEST-",
    ".log\n",
    ".ldb\n",
    ".sst\n",
    *git_repository.NEEDLES,
)
"""Substrings, one of which is in `<path>LF` of each path for which a built-in kind gives a root."""
_BATCH = 4096


def named_in(index: Index, kinds: Sequence[Kind] = ()) -> frozenset[Unit]:
    """Find the units that the listed paths may be members of, by their names alone; `kinds` beside those
    built in.

    Cost: a search of the joined names, where no name may be that of a member and no `kinds` are given.
    """
    paths: Iterator[str] = iter(index)
    found: set[Unit] = set()
    while batch := tuple(itertools.islice(paths, _BATCH)):
        text = "\n".join((*batch, ""))
        asked = (*kinds, *BUILT_IN) if any(needle in text for needle in _NEEDLES) else tuple(kinds)
        if asked:
            found.update(unit for path in batch for unit in units_of(path, asked))
    return frozenset(found)


def units_of(path: str, kinds: Iterable[Kind]) -> Iterator[Unit]:
    """List the units that a path of such a name may be a member of."""
    for kind in kinds:
        for root in kind.roots_of(path):
            yield Unit(kind, root)


def held_by(units: Iterable[Unit]) -> Callable[[str], bool]:
    """Give a function that checks whether a path is a member of one of the units. Cost of a path: its depth,
    however many units there are.
    """
    few, wide = set[str](), dict[str, list[Unit]]()
    for unit in units:
        members = unit.kind.members(unit.root)
        if members is None:
            wide.setdefault(unit.root, []).append(unit)
        else:
            few.update(members)
    return lambda path: (
        path in few or any(unit.holds(path) for at in (*ancestors(path), path) for unit in wide.get(at, ()))
    )


# ---- the decision

CONFLICT, OURS, HEAD = "conflict", "ours", "head"


class Decided(NamedTuple):
    """A unit with something to decide, and the side that it is taken from: `conflict`, or `ours` or `head` as
    a whole.
    """

    unit: Unit
    whose: str
    changed: tuple[str, ...]
    """Members that one side or both changed, in byte order."""
    forced: frozenset[str] = frozenset()
    """Members, helpers included, that are taken from that side, whatever the decision table says."""
    replaced: bool = False
    """True when both sides changed it, so that one side's change is lost."""


class Sides(NamedTuple):
    """The three trees of a publication, and predicates for their paths."""

    base: Find
    ours: Find
    head: Find
    unmoved: Callable[[str], bool]
    """Predicate: base and head share one entry at the path. False may be wrong, True never is."""
    loose: Callable[[str], bool]
    """Predicate: the path is ignored."""
    derived: Callable[[str, bool], bool]
    """Predicate (path, whether all changes at and below it are ignored): the path is in a derived
    directory.
    """

    @property
    def trees(self) -> tuple[Find, Find, Find]:
        return self.base, self.ours, self.head


class Candidates(NamedTuple):
    """Paths at and below a unit's root where a side may differ from the base."""

    paths: Collection[str]
    made_again_ours: Collection[str] = ()
    """Directories that ours removed and made again."""
    made_again_theirs: Collection[str] = ()


def differs(x: State | None, y: State | None) -> bool:
    """Compare content, kind and presence, not attributes."""
    return x is not y if x is None or y is None else not same(x, y)


def decide(unit: Unit, at: Candidates, sides: Sides, named: str | None = None) -> Decided | None:
    """Decide a unit; None: the decision table decides its members. `named`: the side, OURS or HEAD, that the
    unit is taken from if it is a conflict otherwise.
    """
    kind, root = unit
    if not kind.is_there(root, sides.trees):
        return None
    few = kind.members(root)
    ours, theirs, unlike, folders = set[str](), set[str](), set[str](), set[str]()
    for path in few or at.paths:
        if not kind.holds(root, path):
            continue
        b, o, h = (tree(path) for tree in sides.trees)
        if any(state is not None and state.kind == DIRECTORY for state in (b, o, h)):
            if few:
                return None
            folders.add(path)
        if b is None:  # a directory that a side adds is not a change: its entries may be
            o, h = (None if state is not None and state.kind == DIRECTORY else state for state in (o, h))
        again = path in at.made_again_ours, path in at.made_again_theirs
        if again[0] or differs(b, o):
            ours.add(path)
        if again[1] or (not sides.unmoved(path) and differs(b, h)):
            theirs.add(path)
        if any(again) or differs(o, h):
            unlike.add(path)
    helpers = {
        path for path in ours | theirs if path not in folders and kind.helps(root, path)
    }  # a directory may contain anything
    own, other = ours - helpers, theirs - helpers
    changed = tuple(sorted(own | other, key=byte_order))
    if not (own and other and (own | other) & unlike):
        if own and not other:
            whose, forced = OURS, theirs & unlike
        else:
            whose, forced = HEAD, (ours if other and not own else ours & theirs) & helpers & unlike
        return Decided(unit, whose, changed, frozenset(forced)) if forced else None
    if isinstance(kind, _Git):
        mixed = git_repository.united(root, own, other, unlike, *sides.trees)
        return None if mixed else _conflict(unit, changed, ours & unlike, theirs & unlike, named)
    there = [
        path
        for path in few or ()
        if not kind.helps(root, path) and any(tree(path) is not None for tree in sides.trees)
    ]
    ignored = all(map(sides.loose, {*changed, *there}))
    if sides.derived(root, ignored):
        return Decided(unit, HEAD, changed, frozenset(ours & unlike), True)
    if ignored:
        return Decided(unit, OURS, changed, frozenset(theirs & unlike), True)
    return _conflict(unit, changed, ours & unlike, theirs & unlike, named)


def _conflict(
    unit: Unit, changed: tuple[str, ...], ours: set[str], theirs: set[str], named: str | None
) -> Decided:
    """Decide a unit that both sides changed: a conflict or, if a side is named, that side's unit as a
    whole.
    """
    if named is None:
        return Decided(unit, CONFLICT, changed)
    return Decided(unit, named, changed, frozenset(theirs if named == OURS else ours))
