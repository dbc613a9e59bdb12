"""Objects of a repository in the union of several trees, and those that a merge adds.

An object is looked for in the pack that had the last one, then as a loose file, then in the other packs. Each
content is compared with its id, and a damaged copy is passed over when another tree has a good one, as git
itself passes over a damaged pack.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from layerstack.git.commits import (
    Commit,
    CommitLinks,
    TreeEntry,
    entry_named,
    parse_commit,
    parse_links,
    parse_tree,
    tag_target,
)
from layerstack.git.file_bytes import RepositoryFiles, SizedCache, inflate, inflate_start
from layerstack.git.object_format import (
    BLOB_MAX,
    KINDS,
    CorruptObject,
    MissingObject,
    ObjectFormat,
    ObjectTooLarge,
    Oid,
    loose_path,
)
from layerstack.git.packs import DeltaBases, Pack
from layerstack.tree.state import FILE, State

PACKS_MAX = 10_000
NEW_BYTES_MAX = 256 << 20
"""Bytes of all objects that one merge may add."""
LINKS_BYTES = 500
"""Memory of a commit's links, about."""
TAGS_MAX = 10
"""Tags of one another that are followed."""
_CACHE_BYTES = 16 << 20
_HEADER_BYTES = 32
SHALLOW_MAX = 16 << 20
ALTERNATES_MAX = 5
"""Repositories that lend their objects, one to another, as in git."""

T = TypeVar("T")


class GitTree(Protocol):
    """One of the trees base, ours and head."""

    def find(self, path: str) -> State | None:
        """Give the state of a path; None where there is none."""
        ...

    def names(self, path: str) -> Iterable[str]:
        """List the names in a directory; none where there is no directory."""
        ...


class ObjectHeader(NamedTuple):
    """Kind and size of an object."""

    kind: str
    size: int


class _Loose:
    """A loose object's file: its header, and the place of its content."""

    def __init__(self, files: RepositoryFiles, state: State) -> None:
        self._files, self._state = files, state
        self._start = files.read(state, 0, 4096)
        head, nul, _ = inflate_start(self._start, _HEADER_BYTES).partition(b"\0")
        kind, _, size = head.partition(b" ")
        if not nul or kind.decode("latin-1") not in KINDS or not size.isdigit() or len(size) > 19:
            raise CorruptObject(f"a loose object with the header {head!r}")
        if size != b"%d" % int(size):
            raise CorruptObject(f"a loose object with the size {size.decode()}")
        self.header = ObjectHeader(kind.decode(), int(size))
        self._skip = len(head) + 1

    def read(self) -> bytes:
        if self.header.size > BLOB_MAX:
            raise ObjectTooLarge(f"an object of {self.header.size} bytes, more than {BLOB_MAX}")
        whole = self._skip + self.header.size
        return inflate(self._files.reader(self._state), 0, whole, self._start)[self._skip :]


class Objects:
    """The objects of a repository. For one thread; closed by `close`, by `with`, or with the last reference.

    Args:
        root: the repository's directory in each tree, such as `src/.git`.
        trees: where to look; a repository in one of them is enough.
        mount: the absolute path at which the trees are mounted in a session, for alternates.
    """

    def __init__(
        self, root: str, trees: Sequence[GitTree], fmt: ObjectFormat, *, mount: str | None = None
    ) -> None:
        self.root, self.fmt = root, fmt
        self._trees, self._files, self._mount = tuple(trees), RepositoryFiles(), mount
        self._bases: DeltaBases = SizedCache(_CACHE_BYTES)
        self._trees_read: SizedCache[Oid, list[TreeEntry]] = SizedCache(_CACHE_BYTES)
        self._commits_read: SizedCache[Oid, Commit] = SizedCache(_CACHE_BYTES // 4)
        self._links_read: SizedCache[Oid, CommitLinks] = SizedCache(_CACHE_BYTES)
        self._packs_read: list[Pack] | None = None
        self._stores_read: tuple[tuple[GitTree, str], ...] | None = None
        self._shallow: frozenset[Oid] | None = None
        self._new: dict[Oid, tuple[str, bytes]] = {}
        self._new_bytes = 0
        self.damaged: dict[str, str] = {}
        """Packs that were passed over -> what was wrong."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; they are opened again when they are needed."""
        self._files.close()

    @property
    def new(self) -> Mapping[Oid, tuple[str, bytes]]:
        """Objects that were written and that no tree has: kind and bytes, in the order of writing."""
        return MappingProxyType(self._new)

    @property
    def shallow(self) -> frozenset[Oid]:
        """Commits whose parents may be missing, of all trees."""
        if self._shallow is None:
            found = set[Oid]()
            for tree in self._trees:
                state = tree.find(f"{self.root}/shallow")
                if state is not None and state.kind == FILE:
                    if state.size > SHALLOW_MAX:
                        raise ObjectTooLarge(f"{self.root}/shallow of {state.size} bytes")
                    found.update(filter(None, map(self.fmt.from_hex, state.data(SHALLOW_MAX).split())))
            self._shallow = frozenset(found)
        return self._shallow

    def has(self, oid: Oid) -> bool:
        """Check whether one of the trees has the object, or it was written. Its content is not read."""
        return oid in self._new or oid == self.fmt.empty_tree or any(True for _ in self._places(oid))

    def header(self, oid: Oid) -> ObjectHeader:
        """Give kind and size. Raises MissingObject, CorruptObject."""
        new = self._new.get(oid)
        if new is not None:
            return ObjectHeader(new[0], len(new[1]))
        return self._first(oid, lambda place: place.header, lambda pack, at: ObjectHeader(*pack.header(at)))

    def size(self, oid: Oid) -> int:
        return self.header(oid).size

    def read(self, oid: Oid, kind: str | None = None) -> tuple[str, bytes]:
        """Read an object whole.

        Args:
            kind: what it must be.

        Raises:
            MissingObject, ObjectTooLarge
            CorruptObject: no copy is good, or it is of another kind.
        """
        found = self._new.get(oid)
        if found is None:
            if oid == self.fmt.empty_tree:
                found = "tree", b""
            else:
                found = self._first(
                    oid,
                    lambda loose: self._checked(oid, (loose.header.kind, loose.read())),
                    lambda pack, at: self._checked(oid, pack.read(at)),
                )
        if kind is not None and found[0] != kind:
            raise CorruptObject(f"{self.root}: the object {oid.hex()} is a {found[0]}, not a {kind}")
        return found

    def _checked(self, oid: Oid, found: tuple[str, bytes]) -> tuple[str, bytes]:
        if (real := self.fmt.oid_of(*found)) != oid:
            raise CorruptObject(f"content whose id is {real.hex()}")
        return found

    def commit(self, oid: Oid) -> Commit:
        found = self._commits_read.get(oid)
        if found is None:
            data = self.read(oid, "commit")[1]
            found = self._parsed(oid, parse_commit, data)
            self._commits_read.put(oid, found, 2 * len(data) + 1000)
        return found

    def links(self, oid: Oid) -> CommitLinks:
        """Give tree, parents and date of a commit, even of one with an odd header. Parents that a shallow
        repository lacks are left out.
        """
        found = self._links_read.get(oid)
        if found is None:
            found = self._parsed(oid, parse_links, self.read(oid, "commit")[1])
            if oid in self.shallow and not all(self.has(parent) for parent in found.parents):
                found = found._replace(parents=tuple(p for p in found.parents if self.has(p)))
            self._links_read.put(oid, found, LINKS_BYTES)
        return found

    def peel(self, oid: Oid) -> tuple[Oid, str | None]:
        """Follow tags, at most TAGS_MAX of one another, to an object; give its id and kind, None: missing."""
        followed = 0
        while self.has(oid):
            kind = self.header(oid).kind
            if kind != "tag" or followed == TAGS_MAX:
                return oid, kind
            oid = tag_target(self.read(oid, "tag")[1], self.fmt)[0]
            followed += 1
        return oid, None

    def tree(self, oid: Oid) -> list[TreeEntry]:
        """Read a tree; the caller does not change the list."""
        found = self._trees_read.get(oid)
        if found is None:
            data = self.read(oid, "tree")[1]
            found = self._parsed(oid, parse_tree, data)
            self._trees_read.put(oid, found, 6 * len(data) + 200)
        return found

    def entry_at(self, tree: Oid | None, path: bytes) -> TreeEntry | None:
        """Find the entry of a path in a tree; None: no tree, or no such entry in it."""
        *folders, name = path.split(b"/")
        for step in folders:
            above = None if tree is None else entry_named(self.tree(tree), step)
            tree = above.oid if above is not None and above.is_tree else None
        return None if tree is None else entry_named(self.tree(tree), name)

    def _parsed(self, oid: Oid, parse: Callable[[bytes, ObjectFormat], T], data: bytes) -> T:
        try:
            return parse(data, self.fmt)
        except CorruptObject as error:
            raise CorruptObject(f"{self.root}: the object {oid.hex()} is {error.message}") from None

    def write(self, kind: str, data: bytes) -> Oid:
        """Add an object, unless a tree has it, and give its id. Raises ObjectTooLarge."""
        oid = self.fmt.oid_of(kind, data)
        if oid not in self._new and not any(True for _ in self._places(oid)):
            self._new_bytes += len(data)
            if len(data) > BLOB_MAX or self._new_bytes > NEW_BYTES_MAX:
                raise ObjectTooLarge(
                    f"{self.root}: a merge that writes an object of {len(data)} bytes and"
                    f" {self._new_bytes} in all; the limits are {BLOB_MAX} and {NEW_BYTES_MAX}"
                )
            self._new[oid] = kind, data
        return oid

    def _first(self, oid: Oid, of_loose: Callable[[_Loose], T], of_pack: Callable[[Pack, int], T]) -> T:
        """Ask the copies of an object one after another, until one is good."""
        wrong: list[str] = []
        for place in self._places(oid):
            try:
                if isinstance(place, State):
                    return of_loose(_Loose(self._files, place))
                return of_pack(*place)
            except ObjectTooLarge as error:
                raise ObjectTooLarge(f"{self.root}: the object {oid.hex()}: {error.message}") from None
            except CorruptObject as error:
                wrong.append(error.message)
        if wrong:
            raise CorruptObject(f"{self.root}: the object {oid.hex()} is damaged: {'; '.join(wrong[:4])}")
        passed = "".join(f"; passed over {name}: {why}" for name, why in list(self.damaged.items())[:4])
        raise MissingObject(f"{self.root}: the object {oid.hex()} is missing{passed}")

    def _places(self, oid: Oid) -> Iterator[State | tuple[Pack, int]]:
        """Yield the copies of an object: loose files, and places in packs."""
        packs = self._packs_read
        if packs and (found := self._in_pack(packs[0], oid)) is not None:
            yield packs[0], found
        path = loose_path(oid)
        for tree, folder in self._stores():
            state = tree.find(f"{folder}/{path.removeprefix('objects/')}")
            if state is not None and state.kind == FILE:
                yield state
        for n, pack in enumerate(tuple(self._packs())):
            if pack is (packs or (None,))[0]:
                continue
            if (found := self._in_pack(pack, oid)) is not None:
                there = self._packs()
                there.insert(0, there.pop(n))
                yield pack, found

    def _in_pack(self, pack: Pack, oid: Oid) -> int | None:
        try:
            return pack.index.find(oid)
        except CorruptObject as error:
            self.damaged[pack.name] = error.message
            return None

    def _packs(self) -> list[Pack]:
        if self._packs_read is None:
            found: dict[tuple[object, ...], Pack] = {}
            for tree, folder in self._stores():
                for name in tree.names(f"{folder}/pack"):
                    if not name.endswith(".idx"):
                        continue
                    path = f"{folder}/pack/{name}"
                    index, pack = tree.find(path), tree.find(f"{path[:-4]}.pack")
                    if index is None or pack is None or not index.kind == pack.kind == FILE:
                        continue
                    key = (name, index.inode, pack.inode)
                    if key not in found:
                        try:
                            found[key] = Pack(pack.path, self._files, index, pack, self.fmt, self._bases)
                        except CorruptObject as error:
                            self.damaged[path] = error.message
                    if len(found) > PACKS_MAX:
                        raise ObjectTooLarge(f"{self.root}: more than {PACKS_MAX} packs")
            self._packs_read = list(found.values())
        return self._packs_read

    def _stores(self) -> tuple[tuple[GitTree, str], ...]:
        """List the directories of objects: the repository's own in each tree, and those that it borrows."""
        if self._stores_read is None:
            found: dict[tuple[int, str], None] = {}
            level = [(n, f"{self.root}/objects") for n in range(len(self._trees))]
            for _ in range(ALTERNATES_MAX + 1):
                found.update(dict.fromkeys(level))
                level = [
                    (n, folder)
                    for n, of in level
                    for folder in self._alternates(self._trees[n], of)
                    if (n, folder) not in found
                ]
            self._stores_read = tuple((self._trees[n], folder) for n, folder in found)
        return self._stores_read

    def _alternates(self, tree: GitTree, folder: str) -> Iterator[str]:
        """Yield the directories in the workspace that `info/alternates` names. Others cannot be read."""
        state = tree.find(f"{folder}/info/alternates")
        if state is None or state.kind != FILE:
            return
        for line in os.fsdecode(state.data(1 << 16)).split("\n")[:100]:
            if not line or line.startswith(("#", '"')):
                continue
            if line.startswith("/"):
                mount = (self._mount or "").rstrip("/") + "/"
                if len(mount) < 2 or not os.path.normpath(line).startswith(mount):
                    continue
                path = os.path.normpath(line)[len(mount) :]
            else:
                path = os.path.normpath(f"{folder}/{line}")
            if path not in ("", ".", "..") and not path.startswith(("../", "/")):
                yield path
