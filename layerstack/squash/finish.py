"""What follows the commit of a squash: versions inside its blocks are closed, other files name the new layers, replaced layers are removed.

The disk may refuse any of it: the store is then `unsettled`, and it is done again later. What a crash leaves of it the next open finishes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.layers import version_files
from layerstack.layers.index import Layer
from layerstack.model.manifest import Manifest, reference
from layerstack.publish import drafts
from layerstack.tree.staging import Names

if TYPE_CHECKING:
    from layerstack.core.stack import Stack
    from layerstack.store import Store


def settle(store: Store, squashed: Sequence[Layer], rewritten: Sequence[tuple[str, str]]) -> bool:
    """Close the versions inside the blocks; let other versions and drafts name the new layers. False: the disk refused a part of it."""
    folders = [f"{store.root}/manifests"]
    try:
        store.step("squash.close_versions")
        for version in _versions(store):
            if _is_inside(version, squashed):
                os.unlink(f"{store.root}/manifests/{version}.json")
        for new, path in rewritten:
            store.step("squash.rename_version")
            os.rename(new, path)
        store.pins.relist()
        store.step("squash.drafts")
        for draft in drafts.all_of(store):
            ids = store.layer_ids_at(draft.base_version)
            if draft.layer_ids != ids:
                drafts.rewrite(store, draft, ids)
                folders.append(drafts.folder_of(store, draft.draft_id))
        if store.damaged:
            return False  # one that was damaged meanwhile may name any layer
        store.step("squash.fsync")
        fsync.fsync_dirs(store.root, folders, followed=True)
    except OSError:
        return False
    return True


def write_anew(store: Store, layers: Sequence[Layer], squashed: Sequence[Layer], last: int, scrap: Names) -> list[tuple[str, str]]:
    """Write the files of the versions up to `last` that name what was folded to staging, by the layers of now. Not synced.

    These are the versions that end with a block, and files of before, which name each layer.
    """
    lowest = min(layer.version for layer in squashed)
    written: list[tuple[str, str]] = []
    for version in _versions(store):
        at = version_files.place(layers, version)
        if not lowest <= version <= last or at is None:
            continue
        path, data = f"{store.root}/manifests/{version}.json", version_files.dump(version, layers[at].id)
        if _content(path) != data:
            store.step("squash.rewrite_version")
            new = scrap("manifest")
            fsync.write_new(new, data, sync=False)
            written.append((new, path))
    return written


def _content(path: str) -> bytes | None:
    """Of a file that will be replaced if it is not as it should be: that it cannot be read is nothing to stop for."""
    try:
        return records.content(path)
    except (OSError, StoreCorrupt):
        return None


def version_of(layers: Sequence[Layer], version: int) -> Manifest:
    """An openable version of the stack of these layers: those that are not newer."""
    return Manifest(version, tuple(reference(layer.id) for layer in layers if layer.version <= version))


def is_closed(stack: Stack, version: int) -> bool:
    """Does the version lie inside a squashed block?"""
    return version_files.place(stack.layers.of(stack.head), version) is None


def finish(store: Store) -> None:
    """At open, and after a disk that refused it: what was left undone between the commit of a squash and its end.

    Not while damaged work is set apart: files would be replaced that somebody may still want to look at.
    """
    if store.damaged:
        store.unsettled = True
        return
    store.unsettled = False
    layers = store.layers.of(store.head)
    squashed = [layer for layer in layers if layer.id.startswith("S")]
    if not squashed:
        return
    if any(_is_inside(version, squashed) for version in _versions(store)) or set(os.listdir(f"{store.root}/layers")) - set(
        store.head.layer_ids
    ):
        with store.scrap.scrap() as scrap:
            rewritten: list[tuple[str, str]] = []
            written = False
            with fsync.best_effort():  # on a full disk the versions stay as they are until it is tried again
                new = write_anew(store, layers, squashed, store.head.version - 1, scrap)
                fsync.sync_files(store.root, [path for path, _ in new], (), followed=True)
                rewritten, written = new, True
            store.unsettled = not (settle(store, squashed, rewritten) and written)
    if not store.unsettled:
        store.replaced |= store.withheld
        store.withheld.clear()


def reclaim(stack: Stack) -> None:
    """Remove the replaced layers that nobody holds any more."""
    with stack.lock:
        held: set[str] = set()
        for lease in stack.leases.all():
            held.update(lease.layer_ids)
        free = stack.replaced - held
        stack.replaced -= free
        stack.layers.forget(free)
    if free:
        _remove(stack, sorted(free))


def _remove(stack: Stack, layer_ids: Sequence[str]) -> None:
    """Best effort: what stays is named by nothing, and gc or the next open takes it. Metadata goes after its layer."""
    folder = stack.scrap.name("replaced")
    metadata: list[str] = []
    with fsync.best_effort():
        stack.step("squash.remove_layers")
        os.mkdir(folder)
        for layer_id in layer_ids:
            stack.step("squash.remove_layer")
            os.rename(f"{stack.root}/layers/{layer_id}", f"{folder}/{layer_id}")
            suffixes = (".json", ".index", ".blame" if layer_id.startswith("S") else ".digest")
            metadata.extend(f"{stack.root}/.layer-metadata/{layer_id}{suffix}" for suffix in suffixes)
    with fsync.best_effort():
        stack.scrap.throw_away(folder, metadata)
    stack.scrap.forget(folder)


def _is_inside(version: int, squashed: Sequence[Layer]) -> bool:
    return any(layer.first_version <= version < layer.version for layer in squashed)


def _versions(store: Store) -> list[int]:
    stems = (name.partition(".json")[0] for name in os.listdir(f"{store.root}/manifests"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())
