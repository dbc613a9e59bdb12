"""What an open makes of a dead process's leavings when the open itself is cut off, refused by the disk, or finds something missing."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from layerstack.durable import no_step
from layerstack.store import Store
from tests.layerstack.stack import Stack, get, on_a_stack, put, refusing
from tests.trees import read_tree

BASE: dict[str, str | bytes | None] = {"f": "base\n", "d/g": "g\n"}


class Killed(BaseException):
    """The process ends here: nothing catches it."""


@on_a_stack({**BASE}, forms=("trusted",))
def test_an_open_that_is_cut_off_while_it_removes_a_published_session_is_done_by_the_next(stack: Stack) -> None:
    a = stack.session()
    for n in range(5):
        put(a.at(f"new/{n}"))
    shutil.copytree(a.upper.directory, f"{stack.folder}/left", symlinks=True)
    a.publish()
    stack.store.close()
    removed = 0
    for kill_at in range(40):
        if not os.path.exists(f"{stack.root}/sessions/s0"):
            shutil.copytree(f"{stack.folder}/left", f"{stack.root}/sessions/s0", symlinks=True)
        removed = 0
        real_unlink, real_rmdir = os.unlink, os.rmdir

        def counted(real: object) -> object:
            def call(path: str, **how: object) -> None:
                nonlocal removed
                if "form-" not in str(path):
                    if removed == kill_at:  # noqa: B023
                        raise Killed
                    removed += 1
                real(path, **how)  # type: ignore[operator]

            return call

        os.unlink, os.rmdir = counted(real_unlink), counted(real_rmdir)  # type: ignore[assignment]
        try:
            Store.open(stack.root).close()
        except Killed:
            pass
        finally:
            os.unlink, os.rmdir = real_unlink, real_rmdir
        store = Store.open(stack.root)
        assert store.recovered == () and os.listdir(f"{stack.root}/sessions") == [] and os.listdir(store.scrap.path) == []
        store.close()
    assert removed < 40, "the last rounds were not cut off at all"
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, forms=("trusted",))
def test_a_published_draft_stays_while_a_dead_session_that_stands_on_it_cannot_be_recovered(stack: Stack) -> None:
    a = stack.session()
    put(a.at("mine"), "work\n")
    draft = a.keep()
    b, c = stack.session(draft_id=draft.draft_id), stack.session(draft_id=draft.draft_id)
    put(c.at("more"), "more\n")
    b.publish()

    stack.step = refusing("draft.mkdir")
    stack.reopen()
    assert [name for name, _ in stack.store.unrecovered] == ["s2"]
    stack.reopen()
    assert [name for name, _ in stack.store.unrecovered] == ["s2"]
    stack.step = no_step
    stack.reopen()
    (kept,) = stack.store.recovered
    assert stack.store.drafts() == [kept]
    assert get(stack.session(draft_id=kept.draft_id).at("more")) == "more\n"


@on_a_stack({**BASE}, forms=("trusted",))
def test_a_dead_session_whose_draft_is_missing_keeps_its_folder_and_the_store_opens(stack: Stack) -> None:
    a = stack.session()
    put(a.at("mine"))
    draft = a.keep()
    b = stack.session(draft_id=draft.draft_id)
    put(b.at("more"), "more\n")
    b.umount()
    stack.store.close()
    os.rename(f"{stack.root}/drafts/{draft.draft_id}", f"{stack.folder}/aside")
    stack.store = Store.open(stack.root)
    ((name, why),) = stack.store.unrecovered
    assert name == "s1" and draft.draft_id in why
    assert get(f"{stack.root}/sessions/s1/upper/more") == "more\n"
    os.rename(f"{stack.folder}/aside", f"{stack.root}/drafts/{draft.draft_id}")
    stack.reopen()
    assert stack.store.unrecovered == () and len(stack.store.recovered) == 1


@on_a_stack({**BASE}, forms=("trusted",))
def test_scrap_that_cannot_be_removed_does_not_keep_a_store_from_opening(stack: Stack) -> None:
    stack.store.close()
    put(f"{stack.root}/staging/scrap/file")
    real = os.rmdir

    def refuse(path: str, **how: Any) -> None:
        if str(path).endswith("/scrap"):
            raise OSError(5, "Input/output error", path)
        real(path, **how)

    os.rmdir = refuse  # type: ignore[assignment]
    try:
        stack.store = Store.open(stack.root)
    finally:
        os.rmdir = real
    stack.store.gc()
    assert os.listdir(stack.store.scrap.path) == []


@on_a_stack({"f": "base\n"}, forms=("trusted",))
def test_an_upper_that_is_made_anew_has_the_attributes_of_the_root_or_is_not_there(stack: Stack) -> None:
    """The disk fills up between mkdir and chmod of the new upperdir: the half-made one would publish its mode as the session's."""
    os.chmod(stack.base, 0o750)
    a, b = stack.session(), stack.session()
    put(a.at("f"), "theirs\n")
    put(b.at("f"), "ours\n")
    a.publish()
    real = os.chmod

    def refuse(path: str, mode: int, **how: Any) -> None:
        if mode == 0o750:
            raise OSError(28, "No space left on device", path)
        real(path, mode, **how)

    os.chmod = refuse  # type: ignore[assignment]
    try:
        assert b.rejected() == {"f": "content"}
    finally:
        os.chmod = real
    b.mount()
    assert os.stat(b.view).st_mode & 0o7777 == 0o750
    put(b.at("f"), "theirs\n")
    assert b.publish().no_op
    assert read_tree(stack.store.snapshot().lowerdirs[0])[""].meta[0] == 0o750


@on_a_stack({"f": "base\n"}, forms=("trusted",))
def test_a_second_publish_on_a_disk_that_is_still_full_does_not_end_the_upper(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("f"), "theirs\n")
    put(b.at("f"), "ours\n")
    a.publish()
    b.umount()

    stack.store.step = refusing("upper.renew")
    assert b.rejected() == {"f": "content"}
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            b.upper.publish(owner="o", request_id="r")
    stack.store.step = no_step
    b.mount()
    assert get(b.at("f")) == "ours\n"
