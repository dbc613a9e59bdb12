"""A layer with its index in memory; and the path index over all layers of a store.

Sizes and digests are in the index file only. The index of a large layer is packed (`packed_index`); its paths
are in none of the path index's tables, and it is queried itself.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from layerstack.layers.index_record import Index as Index
from layerstack.layers.index_record import IndexRecord as IndexRecord
from layerstack.layers.index_record import record as record
from layerstack.layers.packed_index import PackedIndex
from layerstack.model.manifest import BASE_ID, LayerId
from layerstack.model.paths import ancestors
from layerstack.tree.disk import DiskTree, Tree
from layerstack.tree.state import DIRECTORY, FILE, LINK, kind_of

MEMBER_KEYS = ("layer_id", "version", "owner", "agent", "request_id", "draft_id", "upper", "created_unix_ms")
"""Keys that each member has; `message` is there where its author gave one."""


class LayerTimes(NamedTuple):
    """Times of a layer's changes, in ns since the epoch."""

    oldest_input: int | None
    """Oldest time of an input whose content the layer changed; None without such a file."""
    newest: int
    """Newest time of its changes; 0 without a change."""
    removes: bool
    """True when it may delete an input, or replace one by an entry whose time has no meaning (a symlink)."""

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class Layer:
    """One layer of a chain. `index` is None for the base, which is queried by lstat, so that a large base
    takes no memory.
    """

    def __init__(
        self,
        layer_id: LayerId,
        tree: Tree,
        version: int,
        index: Index | None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.id, self.tree, self.version, self.index = layer_id, tree, version, index
        self.about: Mapping[str, Any] = about or {}
        """Metadata: owner, agent, request_id, base_version, bytes."""
        self.times: LayerTimes | None = None
        """Filled by `layer_times.times_of`."""
        self.gone = False
        """True once no record names the layer: its tree may be removed, and a chain that still uses it must
        raise.
        """
        self.names_of: dict[tuple[int, int], list[str]] | None = None
        """inode -> names of a file that has several; written by `hard_links` only."""
        self.named_units: tuple[object, frozenset[Any]] | None = None
        """(kinds, units): written by `plan_units.named_by` only."""
        self._keys: list[str] | None = None
        self._directories: dict[str, bool] = {}

    def at(self, root: str) -> Layer:
        """Give the same layer after its tree was moved to `root`."""
        return Layer(self.id, DiskTree(root, self.tree.xattr_namespace), self.version, self.index, self.about)

    @property
    def is_base(self) -> bool:
        return self.index is None

    @property
    def first_version(self) -> int:
        """The oldest version with changes in this layer: its own, except for a squashed one."""
        return int(self.about.get("first_version") or self.version)

    @property
    def members(self) -> list[dict[str, Any]]:
        """The publications in this layer, newest first: itself, or those that a squash merged into it. Keys
        as in MEMBER_KEYS.
        """
        if "members" in self.about:
            return list(self.about["members"])
        return [
            {
                "layer_id": self.id,
                "version": self.version,
                **{key: self.about.get(key) for key in MEMBER_KEYS[2:]},
                **({"message": self.about["message"]} if "message" in self.about else {}),
            }
        ]

    def paths(self) -> Iterator[str]:
        """Iterate over the listed paths in a fixed order of text or bytes; of a large layer one path at a
        time is in memory.
        """
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
        """Check whether this layer may concern entries of `index`, which lists every directory that its
        entries are in. False is certain.
        """
        assert self.index is not None
        if len(index) > len(self.index):  # the shorter one is walked
            return any(
                path in index and not (found.quiet and not index[path].masks)
                for path, found in self.index.items()
            )
        for path, rec in index.items():
            found = self.index.get(path)
            if found is not None and not (found.quiet and not rec.masks):
                return True
        return False

    def under(self, path: str) -> Iterator[str]:
        """Iterate over the listed paths strictly below `path`, unchanged containers left out, in a fixed
        order.
        """
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
        """List all of `under`."""
        return list(self.under(path))


def base_layer(tree: DiskTree) -> Layer:
    return Layer(BASE_ID, tree, 0, None)


def _placed(layer: Layer, held: tuple[Layer, ...] | None) -> tuple[Layer, ...]:
    """Insert a layer, newest first: nearly always at the front, at open also after newer ones."""
    if not held:
        return (layer,)
    v = layer.version
    if held[0].version <= v:
        return (layer, *held)
    if held[-1].version > v:
        return (*held, layer)
    at = next(n for n, other in enumerate(held) if other.version <= v)
    return (*held[:at], layer, *held[at:])


class PathIndex:
    """All indexed layers of a store by path, and the newest version that changed it. Readers take no lock:
    values are replaced, never edited.

    touch[p] is the newest version with a record at p other than an unchanged container, sub[p] the newest at
    or below p, mask[p] the newest that changed everything below p without listing it. They give candidates:
    a value that is too new costs a look-up, never a wrong answer.
    """

    def __init__(self) -> None:
        self.by_path: dict[str, tuple[Layer, ...]] = {}
        """Newest first, by the layers' own versions; `by_mask` likewise."""
        self.by_mask: dict[str, tuple[Layer, ...]] = {}
        self.touch: dict[str, int] = {}
        self.sub: dict[str, int] = {}
        self.drops = 0
        """Incremented before a layer is dropped: a chain that finds it unchanged after a look-up has seen all
        its layers.
        """
        self.mask: dict[str, int] = {}
        self.large: tuple[Layer, ...] = ()
        """Layers with a packed index, newest first: their paths are in none of the tables above."""
        self._lock = threading.Lock()

    def add(self, layer: Layer) -> None:
        """Add a layer before the head that names it exists: no chain uses it until then."""
        assert layer.index is not None
        v = layer.version
        with self._lock:
            if isinstance(layer.index, PackedIndex):
                self.large = _placed(layer, self.large)
                return
            for path, rec in layer.index.items():
                self.by_path[path] = _placed(layer, self.by_path.get(path))
                if rec.masks:
                    self.by_mask[path] = _placed(layer, self.by_mask.get(path))
                    if self.mask.get(path, 0) < v:
                        self.mask[path] = v
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
                        break  # the loop that wrote v here continued to the root
                    self.sub[at] = v

    def count_as_touched(self, paths: Iterable[str], version: int) -> None:
        """Count paths as changed by a version, so that publications compare them: their base may differ from
        the head although no layer of the head lists them.
        """
        with self._lock:
            for path in paths:
                if self.touch.get(path, 0) < version:
                    self.touch[path] = version
                for at in (path, *ancestors(path)):
                    if self.sub.get(at, 0) < version:
                        self.sub[at] = version

    def drop(self, *layers: Layer) -> None:
        """Drop layers that no chain names; their versions may stay in `touch`, `sub` and `mask`."""
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
                for table in (self.by_path, self.by_mask):
                    held = table.get(path, ())
                    left = tuple(layer for layer in held if layer not in gone)
                    if left:
                        table[path] = left
                    elif held:
                        del table[path]

    def listing(self, path: str) -> tuple[Layer, ...]:
        """List the layers that have a record of the path, newest first, by their own versions."""
        found = self.by_path.get(path, ())
        for layer in self.large:
            if layer.get(path) is not None:
                found = _placed(layer, found)
        return found

    def masking(self, path: str) -> tuple[Layer, ...]:
        """List the layers that change everything below the path without listing it, newest first."""
        found = self.by_mask.get(path, ())
        for layer in self.large:
            rec = layer.get(path)
            if rec is not None and rec.masks:
                found = _placed(layer, found)
        return found

    def touched(self, path: str, version: int) -> bool:
        """Check whether a layer newer than `version` may have changed an entry at or below `path`. False is
        certain.
        """
        if self.sub.get(path, 0) > version:
            return True
        return bool(self.large) and any(
            layer.version > version and layer.get(path) is not None for layer in self.large
        )

    def masked(self, path: str, version: int) -> bool:
        """Check whether a layer newer than `version` may have changed everything below `path` without listing
        it. False is certain.
        """
        if self.mask.get(path, 0) > version:
            return True
        return bool(self.large) and any(
            layer.version > version and (rec := layer.get(path)) is not None and rec.masks
            for layer in self.large
        )

    def untouched(self, path: str, version: int) -> bool:
        """Check that no layer newer than `version` changed an entry at or below `path`, or masks it. True is
        certain.
        """
        return not self.touched(path, version) and not any(self.masked(a, version) for a in ancestors(path))
