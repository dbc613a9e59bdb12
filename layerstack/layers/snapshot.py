"""Read, list and stat a path of a version without a mount."""

from __future__ import annotations

import heapq
import itertools
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from layerstack.errors import NotAFile, NotFound
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.layers.packed_index import SMALL, PackedIndex
from layerstack.model.manifest import Manifest
from layerstack.model.paths import ancestors, byte_order, check, join
from layerstack.tree.disk import DiskTree
from layerstack.tree.state import DIRECTORY, FILE, LINK, State, equal

_KINDS = {FILE: "file", DIRECTORY: "directory", LINK: "symlink"}


class Entry(NamedTuple):
    """An entry of a version."""

    path: str
    kind: str
    """`file`, `directory`, `symlink` or `other`."""
    mode: int
    """Permission bits with setuid, setgid and sticky."""
    uid: int
    gid: int
    size: int
    mtime_ns: int
    layer_id: str
    """The layer whose entry it is."""
    real_path: str
    """Absolute, inside that layer; immutable as long as a lease holds the version."""


def not_a_file(path: str, kind: str, *, parent: str | None = None) -> NotAFile:
    """Make the error for a path that is not a regular file; `kind` as the wire names it: Directory, Symlink,
    Other.
    """
    where = (
        f"{path}: its directory {parent!r} is a symlink"
        if parent is not None
        else f"{path}: is a {kind.lower()}"
    )
    return NotAFile(
        f"{where}; links are never followed" if kind == "Symlink" else where,
        details={"path": path, "kind": kind},
    )


_DELETED, _OPAQUE, _CONTAINER, _SHOWN = "deleted", "opaque", "container", "shown"


def _raw_paths(layer: Layer) -> Iterator[bytes]:
    """Give the paths that it lists, in byte order."""
    if isinstance(layer.index, PackedIndex):
        return (raw for raw, _ in layer.index.walk())
    return iter(sorted(map(byte_order, layer.index or ())))


class Snapshot:
    """One version, read-only, a value that never changes. Its layers stay on disk while a lease holds it."""

    def __init__(self, manifest: Manifest, chain: Chain) -> None:
        self.manifest, self.chain = manifest, chain

    @property
    def version(self) -> int:
        """The number of the version."""
        return self.manifest.version

    @property
    def xattr_namespace(self) -> XattrNamespace:
        """The xattr namespace that overlayfs uses in its layers."""
        return self.chain.xattr_namespace

    @property
    def lowerdirs(self) -> tuple[str, ...]:
        """Absolute, topmost first, pending layers included: ready for `overlay.create`."""
        found: list[str] = []
        for layer in self.chain.layers:
            assert isinstance(layer.tree, DiskTree)
            found.append(layer.tree.root)
        return tuple(found)

    def _entry(self, path: str, shown_by: Layer) -> Entry:
        assert isinstance(shown_by.tree, DiskTree)
        full = shown_by.tree.full(path)
        s = os.lstat(full)
        kind = (
            "file"
            if stat.S_ISREG(s.st_mode)
            else "directory"
            if stat.S_ISDIR(s.st_mode)
            else "symlink"
            if stat.S_ISLNK(s.st_mode)
            else "other"
        )
        return Entry(
            path,
            kind,
            stat.S_IMODE(s.st_mode),
            s.st_uid,
            s.st_gid,
            s.st_size,
            s.st_mtime_ns,
            shown_by.id,
            full,
        )

    def stat(self, path: str) -> Entry | None:
        """Give the entry at `path` itself, or None.

        Raises:
            InvalidPath: not a path of a tree.
            NotAFile: a directory of the path is a symlink (details.kind Symlink).
        """
        check(path)
        shown_by = self.chain.layer_of(path)
        if shown_by is not None:
            return self._entry(path, shown_by)
        for ancestor in ancestors(path):
            state = self.chain.find(ancestor)
            if state is None:
                return None
            if state.kind == LINK:
                raise not_a_file(path, "Symlink", parent=ancestor)
        return None

    def list(self, path: str) -> list[Entry]:
        """List one directory, sorted by the bytes of the names.

        Raises:
            NotFound: the path does not exist.
            NotAFile: it is not a directory, or a directory of the path is a symlink.
        """
        entry = self.stat(path)
        if entry is None:
            raise NotFound(f"{path}: no such directory in version {self.version}", details={"path": path})
        if entry.kind != "directory":
            raise NotAFile(
                f"{path}: is a {entry.kind}, not a directory",
                details={"path": path, "kind": entry.kind.capitalize()},
            )
        found: list[Entry] = []
        for name in sorted(self.chain.names(path), key=byte_order):
            child = join(path, name)
            shown_by = self.chain.layer_of(child)
            if shown_by is not None:
                found.append(self._entry(child, shown_by))
        return found

    def read_bytes(self, path: str, limit: int | None = None) -> bytes:
        """Read a regular file, at most `limit` bytes.

        Raises:
            NotFound: the path does not exist.
            NotAFile: a directory, a symlink, a special file, or below a symlink; details.kind says which.
        """
        entry = self.stat(path)
        if entry is None:
            raise NotFound(f"{path}: no such file in version {self.version}", details={"path": path})
        if entry.kind != "file":
            raise not_a_file(path, entry.kind.capitalize())
        with open(os.open(entry.real_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", 0) as file:
            if limit is None:
                return file.readall()
            pieces: list[bytes] = []
            while limit > 0 and (piece := file.read(min(limit, 1 << 20))):
                pieces.append(piece)
                limit -= len(piece)
            return b"".join(pieces)

    def changed(self) -> Iterator[tuple[str, Entry | None, bool]]:
        """Iterate over every path that the layers above the base decide, in byte order: (path, entry or None
        for deleted, is it an opaque directory?).

        An unchanged container, with the attributes of the base, is included when an entry in it is: every
        directory of an included path is included. Opaque: the base has a directory of that name, and none of
        its entries is visible unless it is included too. Paths below a deleted one are not included.
        """
        layers = self.chain.layers[:-1]
        if (
            any(isinstance(layer.index, PackedIndex) for layer in layers)
            or sum(len(layer.index or ()) for layer in layers) > SMALL
        ):
            yield from self._changed_one_by_one()
            return
        chain = self.chain
        paths: set[str] = set()
        for layer in chain.layers[:-1]:
            paths.update(layer.index or ())
        verdicts: dict[str, str] = {}
        needed: set[str] = set()
        for path in sorted(paths, key=byte_order):
            verdict = self._verdict(path)
            if verdict is None:
                continue
            verdicts[path] = verdict
            if verdict != _CONTAINER:
                for ancestor in reversed(ancestors(path)):
                    if ancestor in needed:
                        break
                    needed.add(ancestor)
        for path, verdict in verdicts.items():
            if verdict != _CONTAINER or path in needed:
                yield self._decided(path, verdict)

    def _changed_one_by_one(self) -> Iterator[tuple[str, Entry | None, bool]]:
        """`changed` without a list of all paths: the content of a container is searched when it is met, up to
        the first change.
        """
        last: bytes | None = None
        for raw in heapq.merge(*(_raw_paths(layer) for layer in self.chain.layers[:-1])):
            if raw == last:
                continue
            last = raw
            found = self.decided(os.fsdecode(raw))
            if found is not None:
                yield found

    def decided(self, path: str) -> tuple[str, Entry | None, bool] | None:
        """Give the item of `changed` for a path that a layer above the base lists; None: it is not
        included.
        """
        verdict = self._verdict(path)
        if verdict == _CONTAINER:
            inside = itertools.chain.from_iterable(layer.under(path) for layer in self.chain.layers[:-1])
            if all(self._verdict(each) in (None, _CONTAINER) for each in inside):
                return None
        return None if verdict is None else self._decided(path, verdict)

    def _verdict(self, path: str) -> str | None:
        """Classify a path that one of the layers above the base lists; None: no visible change."""
        chain, base = self.chain, self.chain.base
        shown_by = chain.layer_of(path)
        if shown_by is None:
            return _DELETED if self._base_shows(path) else None
        if shown_by is base:
            return None
        state = shown_by.tree.state(path)
        if state.kind == DIRECTORY:
            below = self._base_state(path)
            if below is not None and below.kind == DIRECTORY and base not in chain.directories(path):
                return _OPAQUE
            if equal(below, state):
                return _CONTAINER
        return _SHOWN

    def _decided(self, path: str, verdict: str) -> tuple[str, Entry | None, bool]:
        if verdict == _DELETED:
            return path, None, False
        shown_by = self.chain.layer_of(path)
        assert shown_by is not None
        return path, self._entry(path, shown_by), verdict == _OPAQUE

    def earlier(self, path: str) -> tuple[tuple[int, int], ...]:
        """List size and mtime_ns of the file of each layer above the base at `path`, newest first, without
        the one that this version shows.

        Files that a squash removed are not included.
        """
        shown, found = self.chain.layer_of(path), tuple[tuple[int, int], ...]()
        for layer in self.chain.layers[:-1]:
            record = layer.get(path)
            if layer is not shown and record is not None and record.kind == FILE:
                assert isinstance(layer.tree, DiskTree)
                status = os.lstat(layer.tree.full(path))
                found += ((status.st_size, status.st_mtime_ns),)
        return found

    def in_base(self, path: str) -> Entry | None:
        """Give the base's entry at `path`, whether or not this version shows it."""
        return None if self.chain.base.get(path) is None else self._entry(path, self.chain.base)

    def below_in_base(self, path: str) -> Iterator[Entry]:
        """Iterate over everything that the base has below one of its directories."""
        waiting = [path]
        while waiting:
            directory = waiting.pop()
            for name, kind in self.chain.base.tree.scan(directory):
                child = join(directory, name)
                if kind == DIRECTORY:
                    waiting.append(child)
                yield self._entry(child, self.chain.base)

    def _base_state(self, path: str) -> State | None:
        return None if self.chain.base.get(path) is None else self.chain.base.tree.state(path)

    def _base_shows(self, path: str) -> bool:
        """Check whether the base's entry at `path` would be visible without a whiteout at that path."""
        if self.chain.base.get(path) is None:
            return False
        return all(self.chain.base in self.chain.directories(ancestor) for ancestor in ancestors(path)[-1:])
