"""Which sessions stand on which draft, and what drafts keep alive: the bookkeeping of a process over the folders of `layerstack.publish.drafts`."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from layerstack.errors import Busy, NotFound, StoreCorrupt
from layerstack.kernel import fsync
from layerstack.layers.capture import seal
from layerstack.layers.hard_links import split_links
from layerstack.layers.index import Layer
from layerstack.layers.index_file import build
from layerstack.model.lease import READER, Lease
from layerstack.model.manifest import LayerId, Manifest, reference
from layerstack.publish import drafts
from layerstack.publish.drafts import Draft
from layerstack.publish.publish import Preview, preview
from layerstack.publish.quota import holders
from layerstack.tree.disk import DiskTree
from layerstack.tree.memory import MemoryTree

if TYPE_CHECKING:
    from layerstack.store import Store


LAYERS_KEPT = 2
"""Drafts whose list of paths is remembered, so that the pages of a comparison do not look at each entry again."""


class DraftBook:
    """Changed and read under the store's lock; its methods may be called from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._users: dict[str, int] = {}
        self._leases: dict[str, Lease] = {}
        self._consumed: set[str] = set()
        self._layers: OrderedDict[tuple[str, ...], Layer] = OrderedDict()

    def all(self) -> list[Draft]:
        """Every draft, oldest first."""
        return [draft for draft in drafts.all_of(self._store) if draft.draft_id not in self._consumed]

    def get(self, draft_id: str) -> Draft:
        """Raises NotFound, reason draft_not_found."""
        if draft_id in self._consumed:
            raise NotFound(f"draft {draft_id!r} was published", reason="draft_not_found", details={"draft_id": draft_id})
        return drafts.load(self._store, draft_id)

    def hold(self, draft: Draft) -> None:
        """Lease the draft's base for as long as the draft is there; once more when its layers were replaced."""
        store = self._store
        with store.lock:
            held = self._leases.get(draft.draft_id)
            self._leases[draft.draft_id] = store.leases.take(f"draft {draft.draft_id}", draft.base_version, draft.layer_ids)
            if held is not None:
                store.release(held)

    def adopt(self, draft: Draft) -> None:
        """Lease the base of a new draft, by the layers that its version has now."""
        store = self._store
        with store.lock:
            ids = store.layer_ids_at(draft.base_version)
            if draft.layer_ids != ids:
                with fsync.best_effort():
                    drafts.rewrite(store, draft, ids)
                    return
            self.hold(draft)

    def preview(self, draft_id: str) -> Preview:
        """See `Store.preview_draft`. Raises NotFound."""
        store = self._store
        manifest, layer, lease = self.stand_on(draft_id, READER)
        try:
            base = store.layers.chain(manifest)
            assert isinstance(layer.tree, DiskTree)
            tree = MemoryTree.load(layer.tree)
            dropped, linked, _ = seal(tree, base)
            found = preview(store, tree, base=base, version=manifest.version, dropped=dropped, leaving=holders(None, draft_id))
            return found._replace(notices=(*found.notices, *split_links(tree, base, linked)))
        finally:
            store.release(lease)
            self.leave(draft_id)

    def discard(self, draft_id: str) -> int:
        """See `Store.discard_draft`."""
        store = self._store
        with store.lock:
            store.check_open()
            size = self._size(draft_id)
            if self._users.get(draft_id):
                text = f"draft {draft_id}: a session or a reader stands on it; end that first"
                raise Busy(text, reason="draft_in_use", details={"draft_id": draft_id})
            self._remove(draft_id)
            store.damaged.pop(f"{drafts.folder_of(store, draft_id)}/draft.json", None)
        store.step("draft.fsync_removed")
        fsync.fsync_dir(f"{store.root}/drafts")
        return size

    def _size(self, draft_id: str) -> int:
        """Bytes of a draft; of one that is set apart, by looking at its files: to discard it is a way to settle it."""
        try:
            return self.get(draft_id).bytes
        except StoreCorrupt:
            found = os.walk(f"{drafts.folder_of(self._store, draft_id)}/layer")
            return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in found for name in names)

    def consume(self, draft_id: str) -> None:
        """Its work was published with a session that stood on it: it goes with the last session that uses it, or at the next open."""
        with self._store.lock, fsync.best_effort():
            if self._users.get(draft_id):
                self._consumed.add(draft_id)
            elif os.path.isdir(drafts.folder_of(self._store, draft_id)):
                self._remove(draft_id)

    def stand_on(self, draft_id: str, holder: str) -> tuple[Manifest, Layer, Lease]:
        """The draft's base, its work as a private layer, and a lease on the base, for one user more; until `leave`, and the lease's release.

        Raises NotFound. Cost: O(entries of the draft), outside the store's lock.
        """
        store = self._store
        with store.lock:
            draft = self.get(draft_id)
            lease = store.leases.take(holder, draft.base_version, draft.layer_ids)
            self._users[draft_id] = self._users.get(draft_id, 0) + 1
        try:
            manifest = Manifest(draft.base_version, tuple(reference(layer_id) for layer_id in draft.layer_ids))
            return manifest, self.layer_of(draft, manifest), lease
        except BaseException:
            store.release(lease)
            self.leave(draft_id)
            raise

    def layer_of(self, draft: Draft, manifest: Manifest) -> Layer:
        """Its work as a private layer on `manifest`, its base. Cost: O(entries of the draft), but for the last few that were asked for."""
        store, key = self._store, (draft.draft_id, *manifest.layer_ids)
        with store.lock:
            layer = self._layers.get(key)
        if layer is not None:
            return layer
        tree = DiskTree(f"{drafts.folder_of(store, draft.draft_id)}/layer", store.form)
        index = build(tree, store.layers.chain(manifest), hashes=False).records
        layer = Layer(LayerId(draft.draft_id), tree, draft.base_version, index)
        with store.lock:
            self._layers[key] = layer
            while len(self._layers) > LAYERS_KEPT:
                self._layers.popitem(last=False)
        return layer

    def claim(self, draft_id: str) -> None:
        """One user more stands on it, who does not read it now: a dead session. Until `leave`."""
        with self._store.lock:
            self._users[draft_id] = self._users.get(draft_id, 0) + 1

    def leave(self, draft_id: str | None) -> None:
        """One user less stands on the draft; None is no draft."""
        if draft_id is None:
            return
        with self._store.lock:
            left = self._users.get(draft_id, 1) - 1
            if left:
                self._users[draft_id] = left
                return
            self._users.pop(draft_id, None)
            if draft_id in self._consumed:
                self._consumed.discard(draft_id)
                with fsync.best_effort():
                    self._remove(draft_id)

    def _remove(self, draft_id: str) -> None:
        store = self._store
        store.step("draft.remove")
        store.scrap.throw_away(drafts.folder_of(store, draft_id))
        lease = self._leases.pop(draft_id, None)
        if lease is not None:
            store.release(lease)
