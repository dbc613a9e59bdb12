"""The power fails at every step of a checkpoint and a restore: the draft of the session has the state before
or after, and after an acknowledged restore that one.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from layerstack.kernel import syscalls
from layerstack.kernel.fsync import no_step
from layerstack.kernel.xattrs import TRUSTED
from layerstack.session import checkpoints
from layerstack.store import Store
from tests import in_namespace
from tests.layerstack.power_cut import copy_disk, make_disk, mount_disk
from tests.layerstack.store_fixture import Session, get, lay, put

WRITTEN = ("0", "1", "2", "3")


def shown(session: Session) -> str:
    """The numbers of the files that it shows; the directory that was renamed has its file's bytes."""
    assert get(session.at("to/base")) == "base\n"
    return "".join(name for name in WRITTEN if os.path.exists(session.at(f"d/{name}")))


def cut(folder: str) -> dict[str, list[str]]:
    """Cut at each step. Returns what the draft showed, by step; `acknowledged` comes last."""
    checkpoints.DEPTH_MAX = 3  # in this child
    syscalls.mount("tmpfs", folder, "tmpfs", 0, "mode=755")
    backing, disk, view = (os.path.join(folder, name) for name in ("backing", "disk", "view"))
    os.mkdir(view)
    make_disk(backing)
    mount_disk(backing, disk)
    root = f"{disk}/store"
    lay(f"{root}/base/B000001-base", {"d/base": "x\n", "from/base": "base\n"})
    Store.create(root, workspace_root="/workspace", base_root_hash="0" * 64, xattr_namespace=TRUSTED)
    store = Store.open(root)
    session = Session(store, store.open_upper("s", origin="workspace_session:s"), view)
    os.rename(session.at("from"), session.at("to"))
    for name in WRITTEN:
        put(session.at(f"d/{name}"), "x\n")
        session.umount()
        if name != WRITTEN[-1]:
            session.upper.checkpoint()
        session.mount()
    session.umount()
    os.sync()
    cuts: list[tuple[str, str]] = []

    def note(where: str) -> None:
        if " seal." in where:
            return  # hard links in staging
        cuts.append((where, f"{folder}/cut-{len(cuts)}"))
        copy_disk(backing, cuts[-1][1])

    acts: dict[str, Callable[[], object]] = {
        "checkpoint": lambda: session.upper.checkpoint(),
        "restore": lambda: session.upper.restore("checkpoint-1"),
    }
    for act, call in acts.items():
        store.step = lambda name, act=act: note(f"{act} {name}")  # type: ignore[misc]
        call()
        note(f"{act} acknowledged")
        store.step = no_step
    session.mount()
    assert shown(session) == "0"
    session.umount()
    store.close()
    syscalls.umount(disk)
    found: dict[str, list[str]] = {}
    for where, copy in cuts:
        found.setdefault(where, []).append(_draft(copy, folder, view))
    return found


def _draft(copy: str, folder: str, view: str) -> str:
    disk = f"{folder}/again"
    mount_disk(copy, disk)
    try:
        store = Store.open(f"{disk}/store")
        (draft,) = store.recovered
        one = store.open_upper("look", origin="workspace_session:look", draft_id=draft.draft_id)
        session = Session(store, one, view)
        state = shown(session)
        session.umount()
        one.discard()
        store.gc()
        assert not os.listdir(f"{store.root}/sessions") and not os.listdir(f"{store.root}/staging")
        store.close()
        return state
    finally:
        syscalls.umount(disk)
        os.unlink(copy)


@pytest.mark.needs("loopfs", "overlay")
def test_a_power_cut_at_any_step_leaves_the_state_before_or_after(short_dir: str) -> None:
    found = in_namespace.call("trusted", cut, short_dir)
    assert {"checkpoint checkpoint.combined", "restore checkpoint.move"} <= found.keys()
    assert all(state == "0123" for where in found for state in found[where] if where.startswith("checkpoint"))
    assert {state for where in found for state in found[where]} == {"0123", "0"}, found
    assert found["restore acknowledged"] == ["0"], found
