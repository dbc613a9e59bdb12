"""Garbage collection: delete the remains of a crash, and layers without a reference.

A layer that a manifest, a lease or a draft may name is never deleted. Remains that cannot be removed do not
stop the opening: their removal is tried again at the next open.
"""

from __future__ import annotations

import os

from layerstack.core.stack import Stack
from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.layers import version_files
from layerstack.model.manifest import listed, lists_the_end_of
from layerstack.publish import draft_refs
from layerstack.publish.commit import give_back_layer, owner_of
from layerstack.tree.disk import discard

SUFFIXES = (".json", ".index", ".digest", ".blame")


def sweep_root(root: str) -> None:
    """Delete half-written files of the store's top folder, its manifests and its pins."""
    for folder in (root, f"{root}/manifests", f"{root}/pins"):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(".") and name.endswith(".tmp"):
                os.unlink(f"{folder}/{name}")


def give_back(stack: Stack) -> None:
    """Give back or remove the layers that neither a manifest nor a draft names.

    Publishes that never finished renamed them in. A layer that is the only copy of a session's work is moved
    back to the session; any other is removed, unless a damaged file is quarantined. A layer whose own
    metadata is damaged may be the only copy of work: it is quarantined.
    """
    named = named_by_history(stack)
    for draft in draft_refs.all_of(stack):
        named.update(draft.layer_ids)
    for name in sorted(os.listdir(f"{stack.root}/layers")):
        if name in named:
            continue
        try:
            give_back_layer(
                stack.root, name, keep=bool(stack.damaged), remove=lambda path: _throw_away(stack, path)
            )
        except StoreCorrupt as error:
            stack.set_apart(error)


def _throw_away(stack: Stack, path: str) -> None:
    """Remove a directory, which may be as large as a workspace; it is only renamed if another thread then
    deletes it.
    """
    if stack.staging.later is None:
        discard(path)
        return
    with fsync.best_effort():
        stack.staging.discard_directory(path)


def named_by_history(stack: Stack) -> set[str]:
    """Ids of the layers that the head and earlier versions name.

    Deletes the manifests of versions that were never committed, and quarantines damaged ones.
    """
    root, head = stack.root, stack.head
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
                named.update(
                    [found.top] if found.layers is None else [layer.layer_id for layer in found.layers]
                )
        except StoreCorrupt as error:
            stack.set_apart(error)
    return named


def sweep_metadata(root: str) -> None:
    """Delete the metadata of layers that do not exist."""
    there = set(os.listdir(f"{root}/layers"))
    for name in os.listdir(f"{root}/.layer-metadata"):
        stem, suffix = os.path.splitext(name)
        if suffix not in SUFFIXES or stem not in there:
            discard(f"{root}/.layer-metadata/{name}")


def sweep_drafts(root: str) -> None:
    """Delete folders of drafts without a layer: the work is still with its session."""
    for name in os.listdir(f"{root}/drafts"):
        if not os.path.isdir(f"{root}/drafts/{name}/layer"):
            discard(f"{root}/drafts/{name}")


def collect(stack: Stack) -> None:
    """Delete the layers without a reference, and what failed operations left in staging.

    A reference is the head, an openable version, a lease or a draft. A layer that is a session's only copy of
    its work stays, and no layer is deleted while a damaged file is quarantined.
    """
    stack.check_open()
    stack.step("gc.sweep")
    stack.staging.sweep()
    with stack.lock:
        keep = named_by_history(stack)
        for lease in stack.leases.all():
            keep.update(lease.layer_ids)
        for draft in draft_refs.all_of(stack):
            keep.update(draft.layer_ids)
        for name in os.listdir(f"{stack.root}/layers"):
            if name not in keep and not stack.damaged and owner_of(stack.root, name) is None:
                stack.layers.forget([name])
                stack.step("gc.remove_layer")
                discard(f"{stack.root}/layers/{name}")
        stack.step("gc.sweep_metadata")
        sweep_metadata(stack.root)
