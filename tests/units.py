"""Units and derived files on plain trees: publish-rules 15 and the ADRs 0046 and 0047, restated.

A unit is the paths that are one value to the program that writes them. A side changed it when a member has
another content, kind or presence than in the base; *helpers* (locks, caches, logs that are made again) count
for nothing but go with the side whose the unit is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tests.trees import DIRECTORY, FILE, Entry, Tree, ancestors

HEADER = b"SQLite format 3\0"
MAGIC = b"\xde\xc0\xef\xbe"
BESIDE = ("-wal", "-journal", "-shm")
LEVELDB = re.compile(
    r"CURRENT|MANIFEST-\d+|IDENTITY|LOCK|LOG(\.old.*)?|OPTIONS-\d+|\d+\.(log|ldb|sst|blob|dbtmp)"
)
BOX = "box"
"""Name of directories that are units by the configuration of the tests, with all their contents, nested ones
included.
"""
CONFLICT, OURS, HEAD = "conflict", "ours", "head"


class Unit(NamedTuple):
    """One of them: its root, its members that some tree has, and which of these are helpers."""

    root: str
    members: frozenset[str]
    helpers: frozenset[str] = frozenset()


class Decided(NamedTuple):
    """The outcome of a unit: one conflict at its root, or the members that come from one side, regardless of
    the table.
    """

    unit: Unit
    whose: str
    forced: frozenset[str] = frozenset()


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def differs(one: Entry | None, other: Entry | None) -> bool:
    """Another content, kind or presence; attributes aside."""
    if one is None or other is None:
        return one is not other
    return (one.kind, one.body) != (other.kind, other.body)


def body(tree: Tree, path: str) -> bytes | None:
    entry = tree.get(path)
    return entry.body if entry is not None and entry.kind == FILE else None


def is_database(path: str, trees: Sequence[Tree]) -> bool:
    """One of the trees has a file with the header there, or all that have a file have an empty one."""
    found = [text[: len(HEADER)] for tree in trees if (text := body(tree, path)) is not None]
    return HEADER in found or (bool(found) and not any(found))


def is_database_alone(path: str, trees: Sequence[Tree]) -> bool:
    """Return True for a database that is recognised by its header alone, without files beside it."""
    return all(path not in tree or not tree[path].is_dir for tree in trees) and any(
        (body(tree, path) or b"").startswith(HEADER) for tree in trees
    )


def units_in(trees: Sequence[Tree], *, boxes: bool) -> list[Unit]:
    """Those that any of the trees has; a database without files beside it is none that its name tells."""
    paths = {path for tree in trees for path in tree}
    found: set[Unit] = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        for end in BESIDE:
            root = path.removesuffix(end)
            if root != path and name != end and is_database(root, trees):
                found.add(few(root, [root, *(root + e for e in BESIDE)], [root + "-shm"], trees))
        if name in ("data.mdb", "lock.mdb") and any(
            (text := body(tree, join(folder, "data.mdb"))) and text[16:20] == MAGIC for tree in trees
        ):
            found.add(
                few(
                    folder,
                    [join(folder, "data.mdb"), join(folder, "lock.mdb")],
                    [join(folder, "lock.mdb")],
                    trees,
                )
            )
        if name == "CURRENT" and any(names_its_manifest(tree, folder) for tree in trees):
            inside = {p for p in paths if parent(p) == folder and LEVELDB.fullmatch(p.rpartition("/")[2])}
            helpers = {p for p in inside if re.fullmatch(r"LOCK|LOG(\.old.*)?", p.rpartition("/")[2])}
            found.add(Unit(folder, frozenset(inside), frozenset(helpers)))
    if boxes:
        named = {path for path in paths if path.rpartition("/")[2] == BOX}
        for root in (path for path in named if named.isdisjoint(ancestors(path))):  # the outermost
            found.add(Unit(root, frozenset(p for p in paths if p.startswith(root + "/"))))
    return sorted((unit for unit in found if unit.members), key=lambda unit: unit.root)


def few(root: str, members: Iterable[str], helpers: Iterable[str], trees: Sequence[Tree]) -> Unit:
    """One of few members, which are files: with a directory among them it is none."""
    there = [path for path in members if any(path in tree for tree in trees)]
    if any(path in tree and tree[path].is_dir for path in there for tree in trees):
        there = []
    return Unit(root, frozenset(there), frozenset(set(there).intersection(helpers)))


def names_its_manifest(tree: Tree, folder: str) -> bool:
    text = body(tree, join(folder, "CURRENT"))
    return (
        text is not None
        and re.fullmatch(rb"MANIFEST-\d+\n?", text) is not None
        and join(folder, text.decode().strip()) in tree
    )


def decide(
    unit: Unit,
    base: Tree,
    ours: Tree,
    head: Tree,
    *,
    loose: Callable[[str], bool],
    derived: Callable[[str, bool], bool],
) -> Decided:
    """Without forced members and conflicts, the table decides for each member."""

    def state(tree: Tree, path: str) -> Entry | None:
        entry = tree.get(path)
        return None if entry is not None and entry.is_dir and path not in base else entry

    own = {path for path in unit.members if differs(base.get(path), state(ours, path))}
    other = {path for path in unit.members if differs(base.get(path), state(head, path))}
    unlike = {path for path in unit.members if differs(state(ours, path), state(head, path))}
    helpers = {
        path
        for path in unit.helpers
        if not any(path in tree and tree[path].is_dir for tree in (base, ours, head))
    }
    true = own - helpers, other - helpers
    if true[0] and true[1] and (true[0] | true[1]) & unlike:
        ignored = all(loose(path) for path in unit.members - helpers) and all(
            loose(path) for path in true[0] | true[1]
        )
        if derived(unit.root, ignored):
            return Decided(unit, HEAD, frozenset(own & unlike))
        if ignored:
            return Decided(unit, OURS, frozenset(other & unlike))
        return Decided(unit, CONFLICT)
    if true[0] and not true[1]:
        return Decided(unit, OURS, frozenset(other & unlike))
    return Decided(
        unit, HEAD, frozenset((own if true[1] and not true[0] else own & other) & helpers & unlike)
    )


# Derived files

CACHES = (".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".sass-cache", ".parcel-cache")
TAG = b"Signature: 8a477f597d28d172789f06886806bc55"


class Derived:
    """What no side need have written: in a directory that is known to be a tool's cache, byte code that is
    compared with its source, and what is ignored in a directory with a tag; or such a directory itself.
    """

    def __init__(self, trees: Sequence[Tree], ignored: Callable[[str, bool], bool]) -> None:
        self.trees, self.ignored = trees, ignored

    def tagged(self, folder: str) -> bool:
        having = [tree for tree in self.trees if folder in tree and tree[folder].kind == DIRECTORY]
        return bool(having) and all(
            (body(tree, f"{folder}/CACHEDIR.TAG") or b"").startswith(TAG) for tree in having
        )

    def within(self, folder: str, ignored: bool) -> bool:
        """`ignored`: True if all paths in question are ignored."""
        return any(
            at.rpartition("/")[2] in CACHES
            or at.endswith("node_modules/.cache")
            or (ignored and self.tagged(at))
            for at in (*ancestors(folder)[1:], folder)
            if at
        )

    def __call__(self, path: str) -> bool:
        there = [tree[path] for tree in self.trees if path in tree]
        ignored = all(self.ignored(path, entry.is_dir) for entry in there)
        folder, _, name = path.rpartition("/")
        if there and all(entry.is_dir for entry in there):
            return name == "__pycache__" or self.within(path, ignored)
        if re.fullmatch(r"\.eslintcache|\.stylelintcache|.*\.tsbuildinfo", name):
            return True
        byte_code = (
            re.fullmatch(r".*\.pyc(\.\d+)?", name) is not None and folder.rpartition("/")[2] == "__pycache__"
        )
        return (byte_code and all(map(compared, there))) or self.within(folder, ignored)


def compared(entry: Entry) -> bool:
    """Byte code that an interpreter compares with its source."""
    return (
        entry.kind == FILE
        and len(entry.body) >= 8
        and entry.body[2:4] == b"\r\n"
        and entry.body[4:8] in (bytes(4), b"\3\0\0\0")
    )
