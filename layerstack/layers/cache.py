"""Layers of one open store in memory: each is read from disk and checked at its first use, and kept until no
record names it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from layerstack.errors import StoreCorrupt
from layerstack.kernel import records
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.layers.chain import Chain
from layerstack.layers.index import Index, Layer, PathIndex, base_layer
from layerstack.layers.index_file import load_file
from layerstack.model.manifest import BASE_ID, LayerId, Manifest, reference, squashed_id
from layerstack.tree.disk import DiskTree


class Layers:
    """The table of layers by id; its methods may be called from any thread."""

    def __init__(self, root: str, xattr_namespace: XattrNamespace, lock: threading.RLock) -> None:
        """`lock` is the store's lock, under which layers are renamed into `layers/` and added to this
        table.
        """
        self.path_index = PathIndex()
        self._root, self._xattr_namespace, self._lock = root, xattr_namespace, lock
        self._loaded: dict[str, Layer] = {}

    def get(self, layer_id: str) -> Layer:
        """Give the layer of that id. Raises StoreCorrupt, naming the file that is missing or damaged. Cost:
        at first use a read of its index.
        """
        found = self._loaded.get(layer_id)
        if found is not None:
            return found
        layer = self._read(layer_id)
        with self._lock:
            there = self._loaded.get(layer_id)
            if there is not None:
                return there
            if layer.index is not None:
                self.path_index.add(layer)
            self._loaded[layer_id] = layer
        return layer

    def of(self, manifest: Manifest) -> list[Layer]:
        """List the layers of a version, newest first. Raises StoreCorrupt."""
        return [self.get(layer_id) for layer_id in manifest.layer_ids]

    def chain(self, manifest: Manifest, pending: Sequence[Layer] = ()) -> Chain:
        """Make the chain of a version's layers with pending layers on top, the topmost first. Raises
        StoreCorrupt.
        """
        return Chain(self.of(manifest), self.path_index, self._xattr_namespace, pending)

    def all(self) -> tuple[Layer, ...]:
        """List the layers in memory: those of the head, and those that a draft, a session or a reader
        used.
        """
        return tuple(self._loaded.values())

    def new(self, layer_id: LayerId, version: int, index: Index, about: dict[str, Any]) -> Layer:
        """Make a layer that is about to be renamed into `layers/`; `put` adds it to the table."""
        return Layer(
            layer_id,
            DiskTree(f"{self._root}/layers/{layer_id}", self._xattr_namespace),
            version,
            index,
            about,
        )

    def put(self, layers: Iterable[Layer]) -> None:
        """Add layers that were renamed into `layers/` and are in the path index already; the caller holds the
        lock.
        """
        self._loaded.update((layer.id, layer) for layer in layers)

    def forget(self, layer_ids: Iterable[str]) -> None:
        """Drop layers from memory that no record names."""
        with self._lock:
            known = [self._loaded.pop(layer_id) for layer_id in layer_ids if layer_id in self._loaded]
            self.path_index.drop(*(layer for layer in known if layer.index is not None))

    def _read(self, layer_id: str) -> Layer:
        path = f"{self._root}/{reference(layer_id).path}"
        if not os.path.isdir(path):
            raise StoreCorrupt(f"{path}: missing", details={"file": path, "layer_id": layer_id})
        if layer_id == BASE_ID:
            # the root of the tree must not be a symlink
            return base_layer(DiskTree(os.path.realpath(path), self._xattr_namespace, linkable=False))
        if os.path.islink(path):
            raise StoreCorrupt(f"{path}: is a symlink", details={"file": path, "layer_id": layer_id})
        tree = DiskTree(path, self._xattr_namespace)
        stem = f"{self._root}/.layer-metadata/{layer_id}"
        about = records.read(f"{stem}.json")
        squashed = layer_id.startswith("S")
        try:
            index, found = load_file(f"{stem}.index")
            digest = about["digest"].encode() + b"\n" if squashed else records.content(f"{stem}.digest")
        except FileNotFoundError as error:
            raise StoreCorrupt(
                f"{error.filename}: missing", details={"file": error.filename, "layer_id": layer_id}
            ) from None
        mark = squashed_id(0, about["digest"], about["replaced"])[-8:] if squashed else about["digest"][:8]
        if digest != about["digest"].encode() + b"\n" or layer_id[-8:] != mark:
            wrong = f"{stem}.json" if squashed else f"{stem}.digest"
            raise StoreCorrupt(
                f"{wrong}: does not match the id of layer {layer_id}",
                details={"file": wrong, "layer_id": layer_id},
            )
        if about.get("index_sha256", found) != found:  # layers made before this key existed do not have it
            wrong = f"{stem}.index"
            raise StoreCorrupt(
                f"{wrong}: is the index of another layer", details={"file": wrong, "layer_id": layer_id}
            )
        version = about.get("version") or int(layer_id[1:].partition("-")[0])
        return Layer(LayerId(layer_id), tree, version, index, about)
