"""Opening a store again: every file is checked, then what a crash left is swept, then the work of dead sessions becomes drafts."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import time
from typing import TYPE_CHECKING, Any

from layerstack.errors import NotFound, StoreBusy, StoreCorrupt
from layerstack.kernel import fsync, overlay, records
from layerstack.layers import version_files
from layerstack.layers.index import Layer
from layerstack.model.lease import Lease
from layerstack.model.manifest import LayerId, Manifest, dump_listed, listed, reference
from layerstack.publish import drafts
from layerstack.publish.drafts import Draft
from layerstack.recovery import gc
from layerstack.session.upper import SessionIdentity, Upper
from layerstack.squash import finish

if TYPE_CHECKING:
    from layerstack.store import Store

FREE_TRIES, FREE_PAUSE_S = 100, 0.03
"""How long an open waits for the mounts of a dead process to go."""


def load_all(store: Store) -> Manifest:
    """Read and check every file of the store, changing nothing. Returns the head; its layers, and those of drafts, are in memory then.

    Damaged documents that the head does not need are set apart.
    Raises:
        StoreCorrupt: details.file names what is missing, damaged or of an unknown format, and the head cannot be without.
    """
    head = _manifest(f"{store.root}/manifest.json")
    for layer in head.layers:  # newest first: what an older one touched rises no mark of the shelf
        store.layers.get(layer.layer_id)
    _check_versions(store, head)
    kept = drafts.all_of(store)
    for draft in kept:
        for layer_id in draft.layer_ids:
            store.layers.get(layer_id)
    for name in os.listdir(f"{store.root}/sessions"):
        _session(store, name)
    for draft in kept:
        store.draft_book.hold(draft)
    return head


def _check_versions(store: Store, head: Manifest) -> None:
    """What the file of each earlier version must say is known, unless a squash was cut short, so reading all of them takes no longer than
    comparing them; those of before name the end of the head's list of layers. Any other one is read by itself."""
    layers = store.layers.of(head)
    before = _Before(head)
    for name in os.listdir(f"{store.root}/manifests"):
        stem, _, suffix = name.partition(".")
        if not stem.isdecimal() or suffix != "json" or int(stem) > head.version:
            continue
        path, version = f"{store.root}/manifests/{name}", int(stem)
        at = bisect.bisect_left(layers, -version, key=lambda layer: -layer.version)
        try:
            data = records.content(path)
            if data == version_files.dump(version, layers[at].id) or before.lists(data, version, at):
                continue
            if version_files.lost(data):
                store.lost.append(version)
                continue
            found = version_files.load(data, source=path)
            if found.version != version:
                raise StoreCorrupt(f"{path}: is of another version", details={"file": path})
            if found.layers is None and not layers[at].id.startswith("S") and version_files.place(layers, version) is not None:
                text = f"{path}: names {found.top} as its newest layer, the head has {layers[at].id}"
                raise StoreCorrupt(text, details={"file": path})
        except StoreCorrupt as error:
            store.set_apart(error)


def _write_lost(store: Store) -> None:
    """Write the files of versions that a power cut took the bytes of; one that the disk refuses stays lost until the next open."""
    layers = store.layers.of(store.head)
    for version in store.lost:
        at = version_files.place(layers, version)
        if at is not None:
            with fsync.best_effort():
                data = version_files.dump(version, layers[at].id)
                fsync.write_file(f"{store.root}/manifests/{version}.json", data)
    store.lost.clear()


class _Before:
    """What files of versions said before they named one layer alone."""

    def __init__(self, head: Manifest) -> None:
        lengths = [len(listed([ref])) + 1 for ref in head.layers]
        self._starts = list(itertools.accumulate(lengths, initial=0))
        self._whole = listed(head.layers)

    def lists(self, data: bytes, version: int, at: int) -> bool:
        """Is that a whole manifest of the version, whose layers begin with number `at` of the head's?"""
        return len(data) > self._starts[-1] - self._starts[at] and data == dump_listed(version, self._whole[self._starts[at] :])


def _session(store: Store, name: str) -> dict[str, Any] | None:
    """What session.json says; None when it is set apart."""
    path = f"{store.root}/sessions/{name}/session.json"
    try:
        body = records.read(path)
        if body.get("session_id") != name:
            raise StoreCorrupt(f"{path}: belongs to session {body.get('session_id')}", details={"file": path})
    except StoreCorrupt as error:
        store.set_apart(error)
        return None
    return body


def _manifest(path: str) -> Manifest:
    try:
        return Manifest.load(records.content(path), source=path)
    except FileNotFoundError:
        raise StoreCorrupt(f"{path}: missing", details={"file": path}) from None


def find_dead(store: Store) -> None:
    """After `load_all`: sweep what a crash left half done, and put the sessions of dead processes into `store.dead`. No tree is walked where
    `store.scrap.later` takes what is to be removed."""
    root = store.root
    store.step("open.sweep")
    store.scrap.sweep_all()
    gc.sweep_root(root)
    _write_lost(store)
    gc.sweep_drafts(root)
    finish.finish(store)
    gc.give_back(store)
    gc.sweep_metadata(root)
    found = {name: _session(store, name) for name in sorted(os.listdir(f"{root}/sessions"))}
    store.dead.begin({name: body for name, body in found.items() if body is not None})


def recover(store: Store) -> tuple[tuple[Draft, ...], tuple[tuple[str, str], ...]]:
    """Make drafts of the work of sessions that died with their process, here and now; quarantined ones stay as they are.

    Returns:
        The new drafts; and sessions that could not be made drafts for want of disk or of the draft that they stand on, with the reason.
        Sessions that are set apart are neither.
        Those keep their folder and a lease.
    Raises:
        StoreBusy: something still writes into the upperdir of a dead session.
    """
    recovered: list[Draft] = []
    for session in store.dead.all():
        if session.quarantined:
            continue
        with contextlib.suppress(OSError, NotFound, StoreCorrupt):
            draft = store.dead.attempt(session.session_id)
            if draft is not None:
                recovered.append(draft)
    return tuple(recovered), tuple((session.session_id, session.why or "") for session in store.dead.all())


def dead_upper(store: Store, session_id: str, body: dict[str, Any], lease: Lease) -> Upper:
    """The upper as its process left it. Raises NotFound, StoreCorrupt: what it stands on is not there; StoreBusy."""
    manifest = Manifest(lease.version, tuple(reference(LayerId(layer_id)) for layer_id in lease.layer_ids))
    identity = SessionIdentity(
        session_id, body["origin"], body["agent"], body["request_id"], body["draft_id"], body["token"], body.get("rebased", False)
    )
    private: list[Layer] = []
    if identity.draft_id is not None and not identity.rebased:
        private.append(store.draft_book.layer_of(drafts.load(store, identity.draft_id), manifest))
    upper = Upper(store, identity, manifest, store.layers.chain(manifest, private), lease)
    if os.path.isdir(upper.upperdir) and not _free(upper.upperdir):
        raise StoreBusy(f"{upper.upperdir}: a live overlay still writes into it", details={"upperdir": upper.upperdir})
    with contextlib.suppress(FileNotFoundError):
        upper.adopt(sorted(os.listdir(f"{upper.directory}/private")))
    return upper


def _free(upperdir: str) -> bool:
    """Is no overlay writing there? After a kill -9 the processes of a session, and with them its mount, take a moment to go."""
    for _ in range(FREE_TRIES):
        if not overlay.is_mounted(upperdir):
            return True
        time.sleep(FREE_PAUSE_S)
    return False
