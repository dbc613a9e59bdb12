"""The power fails right after a draft was discarded: it does not come back."""

from __future__ import annotations

import os

import pytest

from layerstack.kernel import syscalls
from layerstack.kernel.xattrs import TRUSTED
from layerstack.store import Store
from tests import in_namespace
from tests.layerstack.power_cut import copy_disk, make_disk, mount_disk
from tests.layerstack.store_fixture import put


def cut_after_a_discard(folder: str) -> list[list[str]]:
    """The drafts that there are after a cut right before the discard is synced, and right after it
    returned.
    """
    syscalls.mount("tmpfs", folder, "tmpfs", 0, "mode=755")
    backing, disk, again = (os.path.join(folder, name) for name in ("backing", "disk", "again"))
    make_disk(backing)
    mount_disk(backing, disk)
    root = f"{disk}/store"
    os.makedirs(f"{root}/base/B000001-base")
    cuts: list[str] = []

    def cut(step: str) -> None:
        if step in ("draft.fsync_removed", "end"):
            cuts.append(f"{folder}/cut-{step}")
            copy_disk(backing, cuts[-1])

    Store.create(root, workspace_root="/workspace", base_root_hash="0" * 64, xattr_namespace=TRUSTED)
    store = Store.open(root, step=cut)
    upper = store.open_upper("a", origin="workspace_session:a")
    put(f"{upper.upperdir}/x")
    draft = upper.to_draft(reason="r")
    assert draft is not None
    store.discard_draft(draft.draft_id)
    cut("end")
    store.close()
    syscalls.umount(disk)
    left: list[list[str]] = []
    for copy in cuts:
        mount_disk(copy, again)
        store = Store.open(f"{again}/store")
        left.append([one.draft_id.partition("-")[0] for one in store.drafts()])
        store.close()
        syscalls.umount(again)
    return left


@pytest.mark.needs("loopfs", "overlay")
def test_a_draft_that_was_discarded_does_not_come_back_after_a_power_cut(short_dir: str) -> None:
    before, after = in_namespace.call("trusted", cut_after_a_discard, short_dir)
    assert (before, after) == (["draft"], []), "the first one proves that the sync is what does it"
