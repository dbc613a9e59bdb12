"""Opening a store again: every file is checked, then what a crash left is swept, then the work of dead sessions becomes drafts."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from typing import Any

from layerstack.core.stack import Stack
from layerstack.errors import NotFound, StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.layers import version_files
from layerstack.model.manifest import Manifest, dump_listed, listed
from layerstack.publish import drafts
from layerstack.publish.drafts import Draft
from layerstack.recovery import gc
from layerstack.recovery.dead_sessions import Dead
from layerstack.squash import finish


def load_all(stack: Stack) -> Manifest:
    """Read and check every file of the store, changing nothing. Returns the head; its layers, and those of drafts, are in memory then.

    Damaged documents that the head does not need are set apart.
    Raises:
        StoreCorrupt: details.file names what is missing, damaged or of an unknown format, and the head cannot be without.
    """
    head = _manifest(f"{stack.root}/manifest.json")
    for layer in head.layers:  # newest first: what an older one touched rises no mark of the shelf
        stack.layers.get(layer.layer_id)
    _check_versions(stack, head)
    kept = drafts.all_of(stack)
    for draft in kept:
        for layer_id in draft.layer_ids:
            stack.layers.get(layer_id)
    for name in os.listdir(f"{stack.root}/sessions"):
        _session(stack, name)
    for draft in kept:
        drafts.hold(stack, draft)
    return head


def _check_versions(stack: Stack, head: Manifest) -> None:
    """What the file of each earlier version must say is known, unless a squash was cut short, so reading all of them takes no longer than
    comparing them; those of before name the end of the head's list of layers. Any other one is read by itself."""
    layers = stack.layers.of(head)
    before = _Before(head)
    for name in os.listdir(f"{stack.root}/manifests"):
        stem, _, suffix = name.partition(".")
        if not stem.isdecimal() or suffix != "json" or int(stem) > head.version:
            continue
        path, version = f"{stack.root}/manifests/{name}", int(stem)
        at = bisect.bisect_left(layers, -version, key=lambda layer: -layer.version)
        try:
            data = records.content(path)
            if data == version_files.dump(version, layers[at].id) or before.lists(data, version, at):
                continue
            if version_files.lost(data):
                stack.lost.append(version)
                continue
            found = version_files.load(data, source=path)
            if found.version != version:
                raise StoreCorrupt(f"{path}: is of another version", details={"file": path})
            if found.layers is None and not layers[at].id.startswith("S") and version_files.place(layers, version) is not None:
                text = f"{path}: names {found.top} as its newest layer, the head has {layers[at].id}"
                raise StoreCorrupt(text, details={"file": path})
        except StoreCorrupt as error:
            stack.set_apart(error)


def _write_lost(stack: Stack) -> None:
    """Write the files of versions that a power cut took the bytes of; one that the disk refuses stays lost until the next open."""
    layers = stack.layers.of(stack.head)
    for version in stack.lost:
        at = version_files.place(layers, version)
        if at is not None:
            with fsync.best_effort():
                data = version_files.dump(version, layers[at].id)
                fsync.write_file(f"{stack.root}/manifests/{version}.json", data)
    stack.lost.clear()


class _Before:
    """What files of versions said before they named one layer alone."""

    def __init__(self, head: Manifest) -> None:
        lengths = [len(listed([ref])) + 1 for ref in head.layers]
        self._starts = list(itertools.accumulate(lengths, initial=0))
        self._whole = listed(head.layers)

    def lists(self, data: bytes, version: int, at: int) -> bool:
        """Is that a whole manifest of the version, whose layers begin with number `at` of the head's?"""
        return len(data) > self._starts[-1] - self._starts[at] and data == dump_listed(version, self._whole[self._starts[at] :])


def _session(stack: Stack, name: str) -> dict[str, Any] | None:
    """What session.json says; None when it is set apart."""
    path = f"{stack.root}/sessions/{name}/session.json"
    try:
        body = records.read(path)
        if body.get("session_id") != name:
            raise StoreCorrupt(f"{path}: belongs to session {body.get('session_id')}", details={"file": path})
    except StoreCorrupt as error:
        stack.set_apart(error)
        return None
    return body


def _manifest(path: str) -> Manifest:
    try:
        return Manifest.load(records.content(path), source=path)
    except FileNotFoundError:
        raise StoreCorrupt(f"{path}: missing", details={"file": path}) from None


def find_dead(stack: Stack, dead: Dead) -> None:
    """After `load_all`: sweep what a crash left half done, and put the sessions of dead processes into `dead`. No tree is walked where
    `store.scrap.later` takes what is to be removed."""
    root = stack.root
    stack.step("open.sweep")
    stack.scrap.sweep_all()
    gc.sweep_root(root)
    _write_lost(stack)
    gc.sweep_drafts(root)
    finish.finish(stack)
    gc.give_back(stack)
    gc.sweep_metadata(root)
    found = {name: _session(stack, name) for name in sorted(os.listdir(f"{root}/sessions"))}
    dead.begin({name: body for name, body in found.items() if body is not None})


def recover(dead: Dead) -> tuple[tuple[Draft, ...], tuple[tuple[str, str], ...]]:
    """Make drafts of the work of sessions that died with their process, here and now; quarantined ones stay as they are.

    Returns:
        The new drafts; and sessions that could not be made drafts for want of disk or of the draft that they stand on, with the reason.
        Sessions that are set apart are neither.
        Those keep their folder and a lease.
    Raises:
        StoreBusy: something still writes into the upperdir of a dead session.
    """
    recovered: list[Draft] = []
    for session in dead.all():
        if session.quarantined:
            continue
        with contextlib.suppress(OSError, NotFound, StoreCorrupt):
            draft = dead.attempt(session.session_id)
            if draft is not None:
                recovered.append(draft)
    return tuple(recovered), tuple((session.session_id, session.why or "") for session in dead.all())
