"""The one moment of a publish that everybody waits for: a prepared layer is renamed in, and the manifest that names it becomes the head."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from layerstack import durable
from layerstack.index import Layer
from layerstack.manifest import Manifest
from layerstack.tree import discard

if TYPE_CHECKING:
    from layerstack.publish import Published
    from layerstack.store import Store

METADATA_SUFFIXES = (".json", ".index", ".digest")


class CommitUnsynced(OSError):
    """The head names the layer, but the directory that says so could not be synced: a power cut may still undo it."""

    published: Published


def commit(store: Store, manifest: Manifest, layer: Layer, tree_root: str, stem: str, *, written: bool) -> None:
    """Rename a prepared layer in and make `manifest` the head; the caller holds the store's lock. On an error everything is renamed back.

    Args:
        tree_root: where the layer's tree lies now, on the store's file system, synced.
        stem: where its metadata lies in staging, synced: `<stem>.json`, `.index`, `.digest`, `.manifest`.
        written: `<stem>.manifest` holds this very manifest; else it is written here.
    Raises:
        CommitUnsynced: the head has changed; only its last fsync failed.
        OSError: the disk refused; the head is as before.
    Cost: seven renames and links, and on ext4 one fsync.
    """
    root, step = store.root, store.step
    temporary = f"{root}/.manifest.json.tmp"
    numbered = f"{root}/manifests/{manifest.version}.json"
    store.check_open()
    if os.path.lexists(f"{root}/layers/{layer.id}"):
        # A publish of equal content failed here and could not be undone: that may be the only copy of its session's work, and the metadata
        # says so. The next open gives it back; until then this content waits for another version.
        raise FileExistsError(errno.EEXIST, "a failed publish left a layer of this id", f"{root}/layers/{layer.id}")
    with contextlib.ExitStack() as undo:
        step("commit.rename_metadata")
        undo.callback(_metadata_back, root, layer.id, stem)
        for suffix in METADATA_SUFFIXES:
            os.rename(stem + suffix, f"{root}/.layer-metadata/{layer.id}{suffix}")
        durable.fsync_dirs(root, [f"{root}/.layer-metadata"], followed=True)  # it says whose work an unnamed layer is
        step("commit.rename_layer")
        durable.rename_new(tree_root, f"{root}/layers/{layer.id}")
        undo.callback(_back, f"{root}/layers/{layer.id}", tree_root)
        if not written:
            step("commit.write_manifest")
            os.unlink(f"{stem}.manifest")
            durable.write_before(f"{stem}.manifest", manifest.dump(), root=root)
        step("commit.link_manifest")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        os.link(f"{stem}.manifest", temporary)
        undo.callback(discard, temporary)
        step("commit.number_manifest")
        os.rename(f"{stem}.manifest", numbered)
        undo.callback(_back, numbered, f"{stem}.manifest")
        step("commit.fsync_layer")
        durable.fsync_dirs(root, [f"{root}/layers", f"{root}/manifests"], followed=True)
        step("commit.rename_manifest")
        os.rename(temporary, f"{root}/manifest.json")
        undo.pop_all()
    store.become(manifest, layer)
    try:
        step("commit.fsync_manifest")
        durable.fsync_dir(root)
    except OSError as error:
        raise CommitUnsynced(error.errno, f"{error.strerror}: the head is version {manifest.version}, not yet synced", root) from error


def _metadata_back(root: str, layer_id: str, stem: str) -> None:
    """Only when the layer is back: while it is in `layers/` they say whose work it is."""
    if not os.path.lexists(f"{root}/layers/{layer_id}"):
        for suffix in METADATA_SUFFIXES:
            _back(f"{root}/.layer-metadata/{layer_id}{suffix}", stem + suffix)


def _back(new: str, old: str) -> None:
    """Undo a rename, best effort: what cannot be undone is found at the next open."""
    with durable.suppress_errno(*range(1, 134)):
        os.rename(new, old)
