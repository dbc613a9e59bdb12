"""References of sessions and readers to drafts, and the leases of drafts.

The counts belong to one process; the folders on disk are those of `layerstack.publish.drafts`.
"""

from __future__ import annotations

import os

from layerstack.core.stack import Stack
from layerstack.errors import Busy, NotFound, StoreCorrupt
from layerstack.kernel import fsync
from layerstack.layers.capture import capture_tree
from layerstack.layers.hard_links import split_links
from layerstack.layers.index import Layer
from layerstack.layers.index_file import build
from layerstack.model.lease import READER, Lease, lease_names
from layerstack.model.manifest import LayerId, Manifest, reference
from layerstack.publish import drafts, unresolved
from layerstack.publish.drafts import Draft
from layerstack.publish.outcome import Preview
from layerstack.publish.publish import preview as preview_tree
from layerstack.tree.disk import DiskTree
from layerstack.tree.memory import MemoryTree

LAYERS_KEPT = 2
"""Drafts whose list of paths is remembered, so that the pages of a comparison do not read each entry
again.
"""


def all_of(stack: Stack) -> list[Draft]:
    """List all drafts, oldest first."""
    return [draft for draft in drafts.all_of(stack) if draft.draft_id not in stack.draft_table.consumed]


def get(stack: Stack, draft_id: str) -> Draft:
    """Raises NotFound, reason draft_not_found."""
    if draft_id in stack.draft_table.consumed:
        raise NotFound(
            f"draft {draft_id!r} was published", reason="draft_not_found", details={"draft_id": draft_id}
        )
    return drafts.load(stack, draft_id)


def preview(stack: Stack, draft_id: str) -> Preview:
    """See `Store.preview_draft`. Raises NotFound."""
    manifest, layer, lease = stand_on(stack, draft_id, READER)
    try:
        base = stack.layers.chain(manifest)
        assert isinstance(layer.tree, DiskTree)
        tree = MemoryTree.load(layer.tree)
        dropped, linked, _ = capture_tree(tree, base)
        left = unresolved.refusal(get(stack, draft_id).unresolved, tree)
        found = preview_tree(
            stack,
            tree,
            base=base,
            version=manifest.version,
            dropped=dropped,
            leaving=lease_names(None, draft_id),
        )
        if left is not None and found.would_publish:
            found = found._replace(would_publish=False, refused=left)
        return found._replace(notices=(*found.notices, *split_links(tree, base, linked)))
    finally:
        stack.release(lease)
        leave(stack, draft_id)


def discard(stack: Stack, draft_id: str) -> int:
    """See `Store.discard_draft`."""
    with stack.lock:
        stack.check_open()
        size = _size(stack, draft_id)
        if stack.draft_table.users.get(draft_id):
            text = f"draft {draft_id}: a session or a reader uses it; end that first"
            raise Busy(text, reason="draft_in_use", details={"draft_id": draft_id})
        _remove(stack, draft_id)
        stack.damaged.pop(f"{drafts.folder_of(stack, draft_id)}/draft.json", None)
    stack.step("draft.fsync_removed")
    fsync.fsync_dir(f"{stack.root}/drafts")
    return size


def _size(stack: Stack, draft_id: str) -> int:
    """Give the bytes of a draft; those of a quarantined draft, which may be discarded too, are counted from
    its files.
    """
    try:
        return get(stack, draft_id).bytes
    except StoreCorrupt:
        found = os.walk(f"{drafts.folder_of(stack, draft_id)}/layer")
        return sum(
            os.lstat(os.path.join(folder, name)).st_size for folder, _, names in found for name in names
        )


def consume(stack: Stack, draft_id: str) -> None:
    """Mark a draft whose work was published by a session that used it. The draft is removed with its last
    reference, or at the next open.
    """
    with stack.lock, fsync.best_effort():
        if stack.draft_table.users.get(draft_id):
            stack.draft_table.consumed.add(draft_id)
        elif os.path.isdir(drafts.folder_of(stack, draft_id)):
            _remove(stack, draft_id)


def stand_on(stack: Stack, draft_id: str, lease_name: str) -> tuple[Manifest, Layer, Lease]:
    """Add a reference to the draft. Returns its base, its work as a pending layer, and a lease on the base.
    The caller ends both: `leave`, and the release of the lease.

    Raises NotFound. Cost: O(entries of the draft), outside the store's lock.
    """
    with stack.lock:
        draft = get(stack, draft_id)
        lease = stack.leases.acquire(lease_name, draft.base_version, draft.layer_ids)
        stack.draft_table.users[draft_id] = stack.draft_table.users.get(draft_id, 0) + 1
    try:
        manifest = Manifest(draft.base_version, tuple(reference(layer_id) for layer_id in draft.layer_ids))
        return manifest, layer_of(stack, draft, manifest), lease
    except BaseException:
        stack.release(lease)
        leave(stack, draft_id)
        raise


def layer_of(stack: Stack, draft: Draft, manifest: Manifest) -> Layer:
    """Make a pending layer of the draft's work on `manifest`, its base. Cost: O(entries of the draft), or a
    look-up for the last LAYERS_KEPT drafts.
    """
    key = (draft.draft_id, *manifest.layer_ids)
    with stack.lock:
        layer = stack.draft_table.layers.get(key)
    if layer is not None:
        return layer
    tree = DiskTree(f"{drafts.folder_of(stack, draft.draft_id)}/layer", stack.xattr_namespace)
    index = build(tree, stack.layers.chain(manifest), hashes=False).records
    layer = Layer(LayerId(draft.draft_id), tree, draft.base_version, index)
    with stack.lock:
        stack.draft_table.layers[key] = layer
        while len(stack.draft_table.layers) > LAYERS_KEPT:
            stack.draft_table.layers.popitem(last=False)
    return layer


def claim(stack: Stack, draft_id: str) -> None:
    """Add a reference to the draft without reading it, for a dead session. It counts until `leave`."""
    with stack.lock:
        stack.draft_table.users[draft_id] = stack.draft_table.users.get(draft_id, 0) + 1


def leave(stack: Stack, draft_id: str | None) -> None:
    """Remove one reference to the draft; the last one removes a published draft. None has no effect."""
    if draft_id is None:
        return
    with stack.lock:
        left = stack.draft_table.users.get(draft_id, 1) - 1
        if left:
            stack.draft_table.users[draft_id] = left
            return
        stack.draft_table.users.pop(draft_id, None)
        if draft_id in stack.draft_table.consumed:
            stack.draft_table.consumed.discard(draft_id)
            with fsync.best_effort():
                _remove(stack, draft_id)


def _remove(stack: Stack, draft_id: str) -> None:
    stack.step("draft.remove")
    stack.staging.discard_directory(drafts.folder_of(stack, draft_id))
    lease = stack.draft_table.leases.pop(draft_id, None)
    if lease is not None:
        stack.release(lease)
