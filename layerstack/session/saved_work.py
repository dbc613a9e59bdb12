"""Saved layers of a session on disk: made from its upperdir, mounted below the next one, read into memory.

sessions/<id>/saved/<n>/       a saved layer: an earlier upperdir, unchanged
session.json, `checkpoints`    see `checkpoints.SavedLayers`; such a file has format 2

The record is durable before the upperdir is renamed to the layer that the record calls `moving`. A crash in
between leaves the session as it was (`load`); a crash later leaves it changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.layers.capture import capture_tree
from layerstack.layers.chain import Chain
from layerstack.layers.flatten import flatten
from layerstack.layers.index import Layer
from layerstack.layers.index_file import build
from layerstack.model import cancel
from layerstack.model.manifest import LayerId
from layerstack.model.paths import join
from layerstack.session.checkpoints import SavedLayers, from_json
from layerstack.tree.disk import DiskTree
from layerstack.tree.fileops import make_directory
from layerstack.tree.memory import MemoryTree
from layerstack.tree.state import DIRECTORY


def folder(directory: str, number: int) -> str:
    """Path of a saved layer in the session's directory; shorter than that of any pending layer."""
    return f"{directory}/saved/{number:04d}"


def move(stack: Stack, directory: str, after: SavedLayers, *, durable: bool) -> None:
    """Write the record, then make the upperdir the layer `after.moving`, if there is one.

    Args:
        durable: sync the rename too, where the upperdir is not below the new one afterwards.
    Raises:
        OSError: nothing has changed if the layer does not exist; else only a sync failed.
    """
    path = f"{directory}/session.json"
    body = {**records.read_session(directory), "checkpoints": after.to_json()}
    os.makedirs(f"{directory}/saved", mode=0o700, exist_ok=True)
    stack.step("checkpoint.record")
    records.write(path, body, step=stack.step, name="checkpoint.session.json", number=records.SESSION_FORMAT)
    if after.moving:
        stack.step("checkpoint.move")
        fsync.rename_new(f"{directory}/upper", folder(directory, after.moving))
        if durable:
            stack.step("checkpoint.sync")
            fsync.fsync_dir(f"{directory}/saved")
            fsync.fsync_dir(directory)


def remove_others(stack: Stack, directory: str, saved: SavedLayers) -> None:
    """Remove, best effort, saved layers that the record does not name; the next change tries it again."""
    wanted = {os.path.basename(folder(directory, number)) for number in saved.parents}
    with fsync.best_effort():
        stack.step("checkpoint.remove")
        for name in os.listdir(f"{directory}/saved"):
            if name not in wanted:
                stack.staging.discard_directory(f"{directory}/saved/{name}")


def load(directory: str, body: dict[str, Any]) -> SavedLayers:
    """Read the saved layers of a session whose process died, without a change that did not happen.

    Raises:
        StoreCorrupt: the record or a saved layer is damaged or missing.
    """
    path = f"{directory}/session.json"
    found = from_json(body.get("checkpoints"), path)
    if found.moving and not os.path.isdir(folder(directory, found.moving)):
        found = found.without_moving()
    for number in found.present:
        if not os.path.isdir(folder(directory, number)):
            raise StoreCorrupt(
                f"{folder(directory, number)}: missing", details={"file": folder(directory, number)}
            )
    return found


def count_changes(tree: DiskTree) -> int:
    """Count the entries of an upperdir other than its directories; an empty directory counts.

    Raises:
        OSError: ENAMETOOLONG: an entry's path has no room at the place of a saved layer.
    """
    count = 0
    waiting = [""]
    while waiting:
        path = waiting.pop()
        entries = tree.scan(path)
        count += not entries and path != ""
        for name, kind in entries:
            cancel.check()
            if kind == DIRECTORY:
                waiting.append(join(path, name))
            else:
                count += 1
    return count


class SeenWork(NamedTuple):
    """Writes of a session in memory: those in the upperdir, on the saved layers below."""

    tree: MemoryTree
    chain: Chain
    """The chain below the upperdir: the saved layers are its topmost pending layers."""
    dropped: tuple[str, ...]
    """Special files that the capture left out."""
    linked: tuple[str, ...]


def capture_in_memory(
    trees: Sequence[DiskTree],
    chain: Chain,
    version: int,
    *,
    is_input: Callable[[str], bool] | None = None,
) -> SeenWork:
    """Capture the upperdir by reading alone.

    With saved layers, only renamed directories are expanded, and the caller captures the flattened result: an
    entry that equals the base may be one of two names of a file, and be renamed in a newer layer.

    Args:
        trees: the upperdir first, then the saved layers, the topmost first.
        chain: the chain below all of them.
        is_input: as of `capture_tree`.
    """
    block = expand(trees[1:], chain, version)
    if block:
        chain = chain.with_pending((*block, *chain.pending))
    tree = MemoryTree.load(trees[0])
    captured = capture_tree(tree, chain, is_input=is_input, exact=bool(block))
    return SeenWork(tree, chain, captured.dropped, captured.linked)


def expand(trees: Sequence[DiskTree], chain: Chain, version: int) -> list[Layer]:
    """Make layers of saved ones, in memory: renamed directories have their content. The topmost first."""
    block: list[Layer] = []
    for tree in reversed(trees):
        below = chain.with_pending((*block, *chain.pending))
        seen = MemoryTree.load(tree)
        capture_tree(seen, below, exact=True)
        index = build(seen, below, hashes=False).records
        block.insert(0, Layer(LayerId(f"saved-{len(block)}"), seen, version, index))
    return block


def combine(stack: Stack, directory: str, saved: SavedLayers, chain: Chain, version: int) -> SavedLayers:
    """Replace the present saved layers by one that shows the same on `chain`. The upperdir is not mounted.

    Layers that a checkpoint needs stay.
    Raises:
        OSError: nothing has changed.
    Cost: O(entries of the layers): hard links, and copies of files of the base in renamed directories.
    """
    xattr_namespace = stack.xattr_namespace
    trees = [DiskTree(folder(directory, number), xattr_namespace) for number in saved.present]
    block = expand(trees, chain, version)
    after = saved.combined(saved.last_layer + 1)
    with stack.staging.temporary_names() as new_name:
        target = DiskTree(new_name("combine"), xattr_namespace, aside=stack.staging.path)
        stack.step("checkpoint.combine")
        make_directory(target.root, block[0].tree.state(""))
        flatten(block, chain, target)
        indexed = build(target, chain, hashes=False)
        fsync.sync_files(stack.root, map(target.full, indexed.files()), map(target.full, indexed.folders()))
        stack.step("checkpoint.combined")
        fsync.rename_new(target.root, folder(directory, after.top))
    fsync.fsync_dir(f"{directory}/saved")
    move(stack, directory, after, durable=False)
    return after
