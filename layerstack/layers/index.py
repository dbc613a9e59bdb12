"""The index of a layer: what it lists at each path, in memory; and the shelf, what all layers together list at a path.

Sizes and digests are in the index file only. The index of a large layer is packed (`packed_index`), and its paths are in no table of the shelf: it is asked itself.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from layerstack.layers.index_record import Index as Index
from layerstack.layers.index_record import IndexRecord as IndexRecord
from layerstack.layers.index_record import record as record
from layerstack.layers.packed_index import PackedIndex
from layerstack.model.manifest import BASE_ID, LayerId
from layerstack.model.paths import ancestors
from layerstack.tree.disk import DiskTree, Tree
from layerstack.tree.state import DIRECTORY, FILE, LINK, kind_of

if TYPE_CHECKING:
    from layerstack.core.layer_times import LayerTimes

MEMBER_KEYS = ("layer_id", "version", "owner", "agent", "request_id", "draft_id", "upper", "created_unix_ms")


class Layer:
    """One layer of a chain. `index` is None for the base: it is asked by lstat, so a big base costs no memory."""

    def __init__(self, layer_id: LayerId, tree: Tree, version: int, index: Index | None, about: Mapping[str, Any] | None = None) -> None:
        self.id, self.tree, self.version, self.index = layer_id, tree, version, index
        self.about: Mapping[str, Any] = about or {}  # the layer's metadata: owner, agent, request_id, base_version, bytes
        self.times: LayerTimes | None = None
        """As `layer_times.times_of` found it."""
        self.gone = False
        """Nothing names it any more, its tree may be removed: whoever still looks for it must be told."""
        self.names_of: dict[tuple[int, int], list[str]] | None = None
        """By inode the names of files that have several; `hard_links` alone writes it."""
        self.named_units: tuple[object, frozenset[Any]] | None = None
        """For whom, and which: see `unit_plan.named_by`, which alone writes it."""
        self._keys: list[str] | None = None
        self._directories: dict[str, bool] = {}

    def at(self, root: str) -> Layer:
        """The same layer when its tree has moved to `root`."""
        return Layer(self.id, DiskTree(root, self.tree.form), self.version, self.index, self.about)

    @property
    def is_base(self) -> bool:
        return self.index is None

    @property
    def first_version(self) -> int:
        """The oldest version that this layer has something of: its own, but for a squashed one."""
        return int(self.about.get("first_version") or self.version)

    @property
    def members(self) -> list[dict[str, Any]]:
        """What was published in this layer, newest first: itself, or what a squash folded into it. Keys as in MEMBER_KEYS."""
        if "members" in self.about:
            return list(self.about["members"])
        return [{"layer_id": self.id, "version": self.version, **{key: self.about.get(key) for key in MEMBER_KEYS[2:]}}]

    def paths(self) -> Iterator[str]:
        """The listed paths in some fixed order of text or bytes; of a large layer none is in memory but the present one."""
        return iter(self.index) if isinstance(self.index, PackedIndex) else iter(self.keys)

    @property
    def keys(self) -> list[str]:
        """The listed paths in order of their text."""
        if self._keys is None:
            self._keys = sorted(self.index or ())
        return self._keys

    def get(self, path: str) -> IndexRecord | None:
        if self.index is not None:
            return self.index.get(path)
        directory = path.rpartition("/")[0]
        if directory and not self._is_directory(directory):
            return None  # lstat of a joined path would walk through a symlink of the base
        assert isinstance(self.tree, DiskTree)
        try:
            status = os.lstat(self.tree.full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        kind = kind_of(status.st_mode)
        return None if kind not in (FILE, LINK, DIRECTORY) else record(kind)

    def _is_directory(self, path: str) -> bool:
        known = self._directories.get(path)
        if known is None:
            if len(self._directories) > 20_000:
                self._directories = {}
            found = self.get(path)
            known = self._directories[path] = found is not None and found.kind == DIRECTORY
        return known

    def meets(self, index: Index) -> bool:
        """May this layer bear on the entries of `index`, which lists every directory that its entries are in? False is certain."""
        assert self.index is not None
        if len(index) > len(self.index):  # the shorter one is walked
            return any(path in index and not (found.quiet and not index[path].covers) for path, found in self.index.items())
        for path, rec in index.items():
            found = self.index.get(path)
            if found is not None and not (found.quiet and not rec.covers):
                return True
        return False

    def under(self, path: str) -> Iterator[str]:
        """The listed paths strictly below `path`, those that are only containers left out, in some fixed order."""
        if isinstance(self.index, PackedIndex):
            yield from (each for each, rec in self.index.below(path) if not rec.quiet)
            return
        assert self.index is not None
        prefix, keys = path + "/" if path else "", self.keys
        at = bisect_left(keys, prefix)
        while at < len(keys) and keys[at].startswith(prefix):
            if keys[at] and not self.index[keys[at]].quiet:
                yield keys[at]
            at += 1

    def below(self, path: str) -> list[str]:
        """All of `under`."""
        return list(self.under(path))


def base_layer(tree: DiskTree) -> Layer:
    return Layer(BASE_ID, tree, 0, None)


def _placed(layer: Layer, held: tuple[Layer, ...] | None) -> tuple[Layer, ...]:
    """The layers with one more, newest first. A layer is nearly always newer than all others, at open older."""
    if not held:
        return (layer,)
    v = layer.version
    if held[0].version <= v:
        return (layer, *held)
    if held[-1].version > v:
        return (*held, layer)
    at = next(n for n, other in enumerate(held) if other.version <= v)
    return (*held[:at], layer, *held[at:])


class Shelf:
    """All indexed layers of a store by path, and which version touched what. Readers take no lock: values are replaced, never edited.

    touch[p] is the newest version with a record at p that is no mere container, sub[p] the newest at or below p, cover[p] the newest that
    changed everything below p without listing it. They give candidates; an entry that is too new costs a look, never a wrong answer.
    """

    def __init__(self) -> None:
        self.by_path: dict[str, tuple[Layer, ...]] = {}
        """Newest first, by their own versions; so is `by_cover`."""
        self.by_cover: dict[str, tuple[Layer, ...]] = {}
        self.touch: dict[str, int] = {}
        self.sub: dict[str, int] = {}
        self.drops = 0
        """Rises before a layer is dropped: a chain that sees it unchanged after a look-up has seen all its layers."""
        self.cover: dict[str, int] = {}
        self.large: tuple[Layer, ...] = ()
        """Layers with a packed index, newest first: none of the tables above has their paths."""
        self._lock = threading.Lock()

    def add(self, layer: Layer) -> None:
        """List a layer, before the head that names it exists: no chain asks for it until then."""
        assert layer.index is not None
        v = layer.version
        with self._lock:
            if isinstance(layer.index, PackedIndex):
                self.large = _placed(layer, self.large)
                return
            for path, rec in layer.index.items():
                self.by_path[path] = _placed(layer, self.by_path.get(path))
                if rec.covers:
                    self.by_cover[path] = _placed(layer, self.by_cover.get(path))
                    if self.cover.get(path, 0) < v:
                        self.cover[path] = v
                if rec.quiet:
                    continue
                if self.touch.get(path, 0) < v:
                    self.touch[path] = v
                if self.sub.get(path, 0) < v:
                    self.sub[path] = v
                at = path
                while at:
                    at = at.rpartition("/")[0]
                    if self.sub.get(at, 0) >= v:
                        break  # whoever wrote v here has gone on to the root
                    self.sub[at] = v

    def drop(self, *layers: Layer) -> None:
        """Forget layers that no chain names; what they marked as touched may stay."""
        gone, paths = set(layers), set[str]()
        with self._lock:
            for layer in layers:
                assert layer.index is not None
                layer.gone = True
                if not isinstance(layer.index, PackedIndex):
                    paths.update(layer.index)
            self.drops += 1
            self.large = tuple(layer for layer in self.large if layer not in gone)
            for path in paths:
                for table in (self.by_path, self.by_cover):
                    held = table.get(path, ())
                    left = tuple(layer for layer in held if layer not in gone)
                    if left:
                        table[path] = left
                    elif held:
                        del table[path]

    def listing(self, path: str) -> tuple[Layer, ...]:
        """The layers that list the path, newest first, by their own versions."""
        found = self.by_path.get(path, ())
        for layer in self.large:
            if layer.get(path) is not None:
                found = _placed(layer, found)
        return found

    def covering(self, path: str) -> tuple[Layer, ...]:
        """Those that change everything below it without listing it, newest first."""
        found = self.by_cover.get(path, ())
        for layer in self.large:
            rec = layer.get(path)
            if rec is not None and rec.covers:
                found = _placed(layer, found)
        return found

    def touched(self, path: str, version: int) -> bool:
        """May a layer newer than `version` have changed something at or below `path`? False is certain."""
        if self.sub.get(path, 0) > version:
            return True
        return bool(self.large) and any(layer.version > version and layer.get(path) is not None for layer in self.large)

    def covered(self, path: str, version: int) -> bool:
        """May a layer newer than `version` have changed everything below `path` without listing it? False is certain."""
        if self.cover.get(path, 0) > version:
            return True
        return bool(self.large) and any(
            layer.version > version and (rec := layer.get(path)) is not None and rec.covers for layer in self.large
        )

    def untouched(self, path: str, version: int) -> bool:
        """Is nothing at, below or covering `path` newer than `version`? True is certain."""
        return not self.touched(path, version) and not any(self.covered(a, version) for a in ancestors(path))
