"""What a crash left, and layers that nothing names. Nothing is deleted that a manifest, a lease or a draft may name.

Scrap that cannot be removed stays and stops nothing: it is tried again at the next open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.layers import version_files
from layerstack.model.manifest import listed, lists_the_end_of
from layerstack.tree.disk import discard

if TYPE_CHECKING:
    from layerstack.store import Store

SUFFIXES = (".json", ".index", ".digest", ".blame")


def sweep_root(root: str) -> None:
    """Delete half-written files of the store's top folder, its manifests and its pins."""
    for folder in (root, f"{root}/manifests", f"{root}/pins"):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(".") and name.endswith(".tmp"):
                os.unlink(f"{folder}/{name}")


def give_back(store: Store) -> None:
    """Layers that neither a manifest nor a draft names were renamed in by publishes that never finished, and go back or go.

    One whose own metadata is damaged may be the only copy of work: it is set apart.
    """
    named = named_by_history(store)
    for draft in store.drafts():
        named.update(draft.layer_ids)
    for name in sorted(os.listdir(f"{store.root}/layers")):
        if name in named:
            continue
        try:
            give_back_layer(store.root, name, keep=bool(store.damaged), remove=lambda path: _throw_away(store, path))
        except StoreCorrupt as error:
            store.set_apart(error)


def _throw_away(store: Store, path: str) -> None:
    """By a rename where there is somebody who removes it later: a copy may be as large as a workspace."""
    if store.scrap.later is None:
        discard(path)
        return
    with fsync.best_effort():
        store.scrap.throw_away(path)


def give_back_layer(root: str, layer_id: str, *, keep: bool = False, remove: Callable[[str], None] = discard) -> None:
    """If the layer, which no manifest names, is a session's only copy of its work, it goes back into that session's folder, where recovery
    makes a draft of it. Anything else is a copy made for the publish, and goes.

    Args:
        keep: nobody can say what is named: only a session's own work goes back.
        remove: how anything else goes.
    """
    path, home = f"{root}/layers/{layer_id}", owner_of(root, layer_id)
    if home is None:
        if not keep:
            remove(path)
    elif not os.path.lexists(f"{home}/upper"):
        fsync.rename_new(path, f"{home}/upper")
        fsync.fsync_dir(home)
        fsync.fsync_dir(f"{root}/layers")


def owner_of(root: str, layer_id: str) -> str | None:
    """The folder of the session whose only copy of its work this unnamed layer is, or None."""
    metadata = f"{root}/.layer-metadata/{layer_id}.json"
    about = records.read(metadata) if os.path.exists(metadata) else {}
    home = f"{root}/sessions/{about.get('session_id')}"
    if not about.get("moved") or not os.path.isdir(home):
        return None
    return home if records.read(f"{home}/session.json")["token"] == about["upper"] else None


def named_by_history(store: Store) -> set[str]:
    """Layers that the head and earlier versions name; manifests of versions that never came to be are deleted, damaged ones set apart."""
    root, head = store.root, store.head
    named, layers = set[str](head.layer_ids), listed(head.layers)
    for name in os.listdir(f"{root}/manifests"):
        stem, dot, suffix = name.partition(".")
        if not (stem.isdecimal() and dot and suffix == "json"):
            continue
        path = f"{root}/manifests/{name}"
        if int(stem) > head.version:
            os.unlink(path)
            continue
        try:
            data = records.content(path)
            if not version_files.lost(data) and not lists_the_end_of(data, layers):
                found = version_files.load(data, source=path)
                named.update([found.top] if found.layers is None else [layer.layer_id for layer in found.layers])
        except StoreCorrupt as error:
            store.set_apart(error)
    return named


def sweep_metadata(root: str) -> None:
    """Delete the metadata of layers that are not there."""
    there = set(os.listdir(f"{root}/layers"))
    for name in os.listdir(f"{root}/.layer-metadata"):
        stem, suffix = os.path.splitext(name)
        if suffix not in SUFFIXES or stem not in there:
            discard(f"{root}/.layer-metadata/{name}")


def sweep_drafts(root: str) -> None:
    """Delete folders of drafts whose work never arrived: it is still with its session."""
    for name in os.listdir(f"{root}/drafts"):
        if not os.path.isdir(f"{root}/drafts/{name}/layer"):
            discard(f"{root}/drafts/{name}")


def collect(store: Store) -> None:
    """Delete layers that neither the head, an openable version, a lease nor a draft names, and scrap of failed operations."""
    store.check_open()
    store.step("gc.sweep")
    store.scrap.sweep()
    with store.lock:
        keep = named_by_history(store)
        for lease in store.leases.all():
            keep.update(lease.layer_ids)
        for draft in store.drafts():
            keep.update(draft.layer_ids)
        for name in os.listdir(f"{store.root}/layers"):
            if name not in keep and not store.damaged and owner_of(store.root, name) is None:
                store.layers.forget([name])
                store.step("gc.remove_layer")
                discard(f"{store.root}/layers/{name}")
        store.step("gc.sweep_metadata")
        sweep_metadata(store.root)
