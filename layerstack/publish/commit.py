"""Commit of a publish or a squash, under the store's lock: layers are renamed in, and the manifest that names
them becomes the head.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from layerstack.core.stack import Stack
from layerstack.kernel import fsync, records
from layerstack.layers import version_files
from layerstack.layers.index import Layer
from layerstack.model.manifest import Manifest
from layerstack.publish.outcome import Published
from layerstack.tree.disk import discard

METADATA_SUFFIXES = (".json", ".index", ".digest")
HEAD, NUMBERED = ".manifest", ".version"
"""Suffixes of the files that become manifest.json and manifests/<version>.json."""


class CommitUnsynced(OSError):
    """The head names the layer, but the directory of the manifest could not be synced: a power cut may still
    undo the commit.
    """

    published: Published


class Arrival(NamedTuple):
    """A prepared layer. Its tree and its metadata are on the store's file system, synced."""

    layer: Layer
    tree_root: str
    """Present path of its tree."""
    stem: str
    """Path of its metadata in staging, to which each file adds one of the suffixes."""
    suffixes: tuple[str, ...] = METADATA_SUFFIXES


def write_new(stem: str, manifest: Manifest) -> None:
    """Write the two files of a version that will be the head. The write-out of HEAD is started; that of
    NUMBERED is left to the kernel: see `layerstack.layers.version_files`.

    Raises OSError.
    """
    fsync.write_new(stem + HEAD, manifest.dump(), sync=False)
    fsync.write_unsynced(stem + NUMBERED, version_files.dump(manifest.version, manifest.layers[0].layer_id))


def commit(
    stack: Stack, manifest: Manifest, arrivals: Sequence[Arrival], stem: str, *, written: bool
) -> None:
    """Rename prepared layers in and make `manifest` the head; the caller holds the store's lock. On an error
    everything is renamed back.

    Args:
        stem: a path in staging, with HEAD and NUMBERED for the files that `write_new` writes.
        written: the files exist, HEAD synced; else they are written here.
    Raises:
        CommitUnsynced: the head has changed; only its last fsync failed.
        OSError: the disk refused; the head is as before.
    Cost: three renames, four more per layer, and on ext4 one fsync.
    """
    root, step = stack.root, stack.step
    temporary = f"{root}/.manifest.json.tmp"
    numbered = f"{root}/manifests/{manifest.version}.json"
    stack.check_open()
    for layer, *_ in arrivals:
        if os.path.lexists(f"{root}/layers/{layer.id}"):
            give_back_layer(root, layer.id)  # a failed publish of equal content left it
    with contextlib.ExitStack() as undo:
        step("commit.rename_metadata")
        for arrival in arrivals:
            undo.callback(_metadata_back, root, arrival)
            for suffix in arrival.suffixes:
                os.rename(arrival.stem + suffix, f"{root}/.layer-metadata/{arrival.layer.id}{suffix}")
        fsync.fsync_dirs(
            root, [f"{root}/.layer-metadata"], followed=True
        )  # metadata tells whose work an unnamed layer is
        for layer, tree_root, *_ in arrivals:
            step("commit.rename_layer")
            fsync.rename_new(tree_root, f"{root}/layers/{layer.id}")
            undo.callback(_back, f"{root}/layers/{layer.id}", tree_root)
        if not written:
            step("commit.write_manifest")
            for suffix in (HEAD, NUMBERED):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(stem + suffix)
            write_new(stem, manifest)
            fsync.sync_files(root, [stem + HEAD], (), followed=True)
        step("commit.place_manifest")
        os.rename(stem + HEAD, temporary)
        undo.callback(_back, temporary, stem + HEAD)
        step("commit.number_manifest")
        os.rename(stem + NUMBERED, numbered)
        undo.callback(_back, numbered, stem + NUMBERED)
        step("commit.fsync_layer")
        fsync.fsync_dirs(root, [f"{root}/layers", f"{root}/manifests"], followed=True)
        step("commit.rename_manifest")
        os.rename(temporary, f"{root}/manifest.json")
        undo.pop_all()
    stack.become(manifest, [arrival.layer for arrival in arrivals])
    stack.unsynced = True
    try:
        step("commit.fsync_manifest")
        stack.sync_head()
    except OSError as error:
        raise CommitUnsynced(
            error.errno, f"{error.strerror}: the head is version {manifest.version}, not yet synced", root
        ) from error


def give_back_layer(
    root: str, layer_id: str, *, keep: bool = False, remove: Callable[[str], None] = discard
) -> None:
    """Move a layer that no manifest names back into the folder of its session if it is the only copy of the
    session's work; recovery then makes a draft of it. Any other such layer is a copy that was made for a
    publish, and is removed.

    Args:
        keep: remove nothing, since it is not known which layers are named.
        remove: function that removes a copy.
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
    """Find the session whose only copy of its work is this unnamed layer: the folder of the session, or
    None.
    """
    metadata = f"{root}/.layer-metadata/{layer_id}.json"
    about = records.read(metadata) if os.path.exists(metadata) else {}
    home = f"{root}/sessions/{about.get('session_id')}"
    if not about.get("moved") or not os.path.isdir(home):
        return None
    return home if records.read_session(home)["token"] == about["upper"] else None


def _metadata_back(root: str, arrival: Arrival) -> None:
    """Rename the metadata back, once the layer was: while the layer is in `layers/`, its metadata tells whose
    work it is.
    """
    if not os.path.lexists(f"{root}/layers/{arrival.layer.id}"):
        for suffix in arrival.suffixes:
            _back(f"{root}/.layer-metadata/{arrival.layer.id}{suffix}", arrival.stem + suffix)


def _back(new: str, old: str) -> None:
    """Undo a rename, best effort: the next open finds an entry that stays at its new path."""
    with fsync.best_effort():
        os.rename(new, old)
