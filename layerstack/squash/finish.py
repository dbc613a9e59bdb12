"""Steps after the commit of a squash.

They close the versions inside its blocks and make other files name the new layers. The replaced layers can be
removed only afterwards. The disk may refuse any step: the store is then `cleanup_pending`, and the steps are
repeated later. The next open finishes those that a crash left undone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layerstack.errors import StoreCorrupt
from layerstack.history import pins
from layerstack.kernel import fsync, records
from layerstack.layers import version_files
from layerstack.layers.index import Layer
from layerstack.model.manifest import Manifest, reference
from layerstack.publish import drafts
from layerstack.tree.staging import Names

if TYPE_CHECKING:
    from layerstack.core.stack import Stack


def release_replaced(stack: Stack, squashed: Sequence[Layer], rewritten: Sequence[tuple[str, str]]) -> bool:
    """Close the versions inside the blocks; make other versions and drafts name the new layers.

    False: the disk refused a step, or a damaged file may name a replaced layer.
    """
    folders = [f"{stack.root}/manifests"]
    try:
        stack.step("squash.close_versions")
        for version in _versions(stack):
            if _is_inside(version, squashed):
                os.unlink(f"{stack.root}/manifests/{version}.json")
        for new, path in rewritten:
            stack.step("squash.rename_version")
            os.rename(new, path)
        pins.relist(stack)
        stack.step("squash.drafts")
        for draft in drafts.all_of(stack):
            ids = stack.layer_ids_at(draft.base_version)
            if draft.layer_ids != ids:
                drafts.rewrite(stack, draft, ids)
                folders.append(drafts.folder_of(stack, draft.draft_id))
        if stack.damaged:
            return False  # a file that was found damaged since the squash began may name any layer
        stack.step("squash.fsync")
        fsync.fsync_dirs(stack.root, folders, followed=True)
    except OSError:
        return False
    return True


def write_anew(
    stack: Stack, layers: Sequence[Layer], squashed: Sequence[Layer], last: int, new_name: Names
) -> list[tuple[str, str]]:
    """Write to staging the files of the versions up to `last` that name squashed layers.

    The versions are those that end with a block, and those whose files have the earlier format, which names
    each layer. The new files name the present layers and are not synced.
    """
    lowest = min(layer.version for layer in squashed)
    written: list[tuple[str, str]] = []
    for version in _versions(stack):
        at = version_files.place(layers, version)
        if not lowest <= version <= last or at is None:
            continue
        path, data = f"{stack.root}/manifests/{version}.json", version_files.dump(version, layers[at].id)
        if _content(path) != data:
            stack.step("squash.rewrite_version")
            new = new_name("manifest")
            fsync.write_new(new, data, sync=False)
            written.append((new, path))
    return written


def _content(path: str) -> bytes | None:
    """Read a file, to replace it if its content is not the expected one; None when it cannot be read."""
    try:
        return records.content(path)
    except (OSError, StoreCorrupt):
        return None


def version_of(layers: Sequence[Layer], version: int) -> Manifest:
    """Make the manifest of a version from the layers of the stack: those that are not newer than the
    version.
    """
    return Manifest(version, tuple(reference(layer.id) for layer in layers if layer.version <= version))


def finish(stack: Stack) -> None:
    """Finish the steps that were left undone between the commit of a squash and its end.

    Called at open, and again after the disk refused a step. While a damaged file is quarantined nothing is
    written, since a caller may still want to read the files that would be replaced.
    """
    if stack.damaged:
        stack.cleanup_pending = True
        return
    stack.cleanup_pending = False
    layers = stack.layers.of(stack.head)
    squashed = [layer for layer in layers if layer.id.startswith("S")]
    if not squashed:
        return
    if any(_is_inside(version, squashed) for version in _versions(stack)) or set(
        os.listdir(f"{stack.root}/layers")
    ) - set(stack.head.layer_ids):
        with stack.staging.temporary_names() as new_name:
            rewritten: list[tuple[str, str]] = []
            written = False
            with fsync.best_effort():  # on a full disk the versions are unchanged until the next try
                new = write_anew(stack, layers, squashed, stack.head.version - 1, new_name)
                fsync.sync_files(stack.root, [path for path, _ in new], (), followed=True)
                rewritten, written = new, True
            stack.cleanup_pending = not (release_replaced(stack, squashed, rewritten) and written)
    if not stack.cleanup_pending:
        stack.replaced |= stack.still_named
        stack.still_named.clear()


def _is_inside(version: int, squashed: Sequence[Layer]) -> bool:
    return any(layer.first_version <= version < layer.version for layer in squashed)


def _versions(stack: Stack) -> list[int]:
    stems = (name.partition(".json")[0] for name in os.listdir(f"{stack.root}/manifests"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())
