"""Open a store again: check every file, remove the remains of a crash, recover dead sessions as drafts."""

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
    """Read and check every file of the store without a change.

    Damaged files that the head can do without are quarantined.
    Returns:
        The head; its layers, and those of drafts, are in memory afterwards.
    Raises:
        StoreCorrupt: a file that the head needs is missing, damaged or of an unknown format; details.file
            names it.
    """
    head = _manifest(f"{stack.root}/manifest.json")
    for layer in head.layers:  # newest first, so that adding an older layer never raises `touch` or `sub`
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
    """Check the file of each earlier version.

    The head determines the bytes of these files, unless a squash was cut short, so they are only compared;
    files of the earlier format list the end of the head's list of layers. Any other file is parsed.
    """
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
                raise StoreCorrupt(f"{path}: belongs to another version", details={"file": path})
            if (
                found.layers is None
                and not layers[at].id.startswith("S")
                and version_files.place(layers, version) is not None
            ):
                text = f"{path}: names {found.top} as its newest layer, the head has {layers[at].id}"
                raise StoreCorrupt(text, details={"file": path})
        except StoreCorrupt as error:
            stack.set_apart(error)


def _write_lost(stack: Stack) -> None:
    """Write again the version files that lost their bytes in a power cut.

    A file that the disk refuses stays lost until the next open.
    """
    layers = stack.layers.of(stack.head)
    for version in stack.lost:
        at = version_files.place(layers, version)
        if at is not None:
            with fsync.best_effort():
                data = version_files.dump(version, layers[at].id)
                fsync.write_file(f"{stack.root}/manifests/{version}.json", data)
    stack.lost.clear()


class _Before:
    """Version files of the earlier format, which list every layer and not only the newest."""

    def __init__(self, head: Manifest) -> None:
        lengths = [len(listed([ref])) + 1 for ref in head.layers]
        self._starts = list(itertools.accumulate(lengths, initial=0))
        self._whole = listed(head.layers)

    def lists(self, data: bytes, version: int, at: int) -> bool:
        """Return True for the manifest of the version with the head's layers from number `at` on."""
        return len(data) > self._starts[-1] - self._starts[at] and data == dump_listed(
            version, self._whole[self._starts[at] :]
        )


def _session(stack: Stack, name: str) -> dict[str, Any] | None:
    """Read session.json; a damaged one is quarantined, and the result is None."""
    path = f"{stack.root}/sessions/{name}/session.json"
    try:
        body = records.read_session(f"{stack.root}/sessions/{name}")
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
    """Remove what a crash left incomplete, and put the sessions of dead processes into `dead`.

    Called after `load_all`. No tree is walked where `store.staging.later` removes directories in another
    thread.
    """
    root = stack.root
    stack.step("open.sweep")
    stack.staging.sweep_all()
    gc.sweep_root(root)
    _write_lost(stack)
    gc.sweep_drafts(root)
    finish.finish(stack)
    gc.give_back(stack)
    gc.sweep_metadata(root)
    found = {name: _session(stack, name) for name in sorted(os.listdir(f"{root}/sessions"))}
    dead.begin({name: body for name, body in found.items() if body is not None})


def recover(dead: Dead) -> tuple[tuple[Draft, ...], tuple[tuple[str, str], ...]]:
    """Make drafts of the work of dead sessions in this call; quarantined sessions stay as they are.

    Returns:
        The new drafts; and the id of each session that is still dead, with the reason of its last failure,
        such as a full disk or a missing draft. These sessions keep their folder and a lease. Sessions whose
        session.json is quarantined are in neither.
    Raises:
        StoreBusy: an overlay is still mounted on the upperdir of a dead session.
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
