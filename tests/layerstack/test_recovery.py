"""What an open makes of a dead process's leavings when the open itself is cut off, refused by the disk, or
finds something missing.
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import Any

import pytest

from layerstack.errors import Busy, Invalid, NotFound
from layerstack.kernel import records
from layerstack.kernel.fsync import no_step
from layerstack.recovery.dead_sessions import DIED, DeadSession
from layerstack.store import Store
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put, refusing
from tests.trees import read_tree

BASE: dict[str, str | bytes | None] = {"f": "base\n", "d/g": "g\n"}


class Killed(BaseException):
    """The process ends here: nothing catches it."""


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_an_open_that_is_cut_off_while_it_removes_a_published_session_is_done_by_the_next(
    stack: Stack,
) -> None:
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
        assert (
            store.recovered == ()
            and os.listdir(f"{stack.root}/sessions") == []
            and os.listdir(store.staging.path) == []
        )
        store.close()
    assert removed < 40, "the last rounds were not cut off at all"
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_published_draft_stays_while_a_dead_session_that_stands_on_it_cannot_be_recovered(
    stack: Stack,
) -> None:
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


@on_a_stack({**BASE}, namespaces=("trusted",))
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


@on_a_stack({**BASE}, namespaces=("trusted",))
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
    assert os.listdir(stack.store.staging.path) == []


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_an_upper_that_is_made_anew_has_the_attributes_of_the_root_or_is_not_there(stack: Stack) -> None:
    """The disk fills up between mkdir and chmod of the new upperdir: the half-made one would publish its mode
    as the session's.
    """
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


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
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


def opened_later(stack: Stack) -> list[DeadSession]:
    """The store again, as an agent opens it: nothing is recovered yet."""
    stack.store.close()
    stack.store = Store.open(stack.root, step=stack.step, recover=False)
    return stack.store.dead.all()


def marker(stack: Stack, session: str) -> dict[str, Any]:
    return records.read(f"{stack.root}/sessions/{session}/recovery.json")


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_an_open_without_recovery_serves_everything_and_holds_the_base_of_each_dead_session(
    stack: Stack,
) -> None:
    for n in range(3):
        stack.store.update_file(f"s{n}", lambda old: b"s\n", owner="o", request_id="r")
    a = stack.session()
    put(a.at("work"), "of the dead\n")
    shows = read_tree(a.view)
    a.umount()
    for n in range(3):
        stack.store.update_file(f"t{n}", lambda old: b"t\n", owner="o", request_id="r")
    put(f"{stack.root}/staging/scrap/file")
    (dead,) = opened_later(stack)
    assert (dead.session_id, dead.tries, dead.quarantined, dead.base_version) == ("s0", 0, False, 4)
    assert os.path.exists(f"{stack.root}/staging/scrap/file"), "what takes long is left for later"
    for removal in stack.store.behind:
        removal()
    assert os.listdir(stack.store.staging.path) == []
    b = stack.session()
    put(b.at("later"), "later\n")
    assert b.publish().manifest.version == 8
    assert [len(block.replaced_layer_ids) for block in stack.store.squash().blocks] == [4, 2], (
        "its base is not folded"
    )
    stack.store.gc()
    with pytest.raises(Invalid):
        stack.store.open_upper("s0", origin="t")
    draft = stack.store.dead.attempt("s0")
    assert draft is not None and stack.store.dead.all() == [] and stack.store.drafts() == [draft]
    assert read_tree(stack.session(draft_id=draft.draft_id).view) == shows


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_two_tries_that_fail_quarantine_a_session_over_opens_of_either_kind_until_it_is_asked_for(
    stack: Stack,
) -> None:
    a = stack.session()
    put(a.at("work"), "of the dead\n")
    a.umount()
    stack.step = refusing("draft.sync_work", code=errno.EIO)
    stack.reopen()
    ((name, why),) = stack.store.unrecovered
    assert name == "s0" and "Input/output" in why and marker(stack, "s0")["tries"] == 1
    (dead,) = opened_later(stack)
    assert (dead.tries, dead.quarantined) == (1, False)
    with pytest.raises(OSError, match="Input/output"):
        stack.store.dead.attempt("s0")
    stack.step = no_step
    (dead,) = opened_later(stack)
    assert (dead.tries, dead.quarantined) == (2, True)
    stack.reopen()
    assert [name for name, _ in stack.store.unrecovered] == ["s0"] and stack.store.recovered == (), (
        "nobody has asked for it"
    )
    stack.store.dead.again("s0")
    assert stack.store.dead.attempt("s0") is not None and os.listdir(f"{stack.root}/sessions") == []


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_try_that_ends_its_process_is_counted_by_what_was_written_before_it(stack: Stack) -> None:
    a = stack.session()
    put(a.at("work"), "of the dead\n")
    a.umount()
    for tries in (1, 2):

        def die(name: str) -> None:
            if name == "draft.sync_work":
                raise Killed

        stack.step = die
        opened_later(stack)
        with pytest.raises(Killed):
            stack.store.dead.attempt("s0")
        before = None if tries == 1 else DIED
        assert marker(stack, "s0") == {"session_id": "s0", "tries": tries, "why": None, "before": before}
    stack.step = no_step
    (dead,) = opened_later(stack)
    assert dead.quarantined and dead.why == DIED


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_full_disk_is_no_try_and_a_marker_that_is_damaged_is_one(stack: Stack) -> None:
    a = stack.session()
    put(a.at("work"), "of the dead\n")
    a.umount()
    stack.step = refusing("draft.mkdir")
    opened_later(stack)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            stack.store.dead.attempt("s0")
        dead = stack.store.dead.get("s0")
        assert (dead.tries, dead.no_space, dead.quarantined) == (0, True, False)
        assert not os.path.exists(f"{stack.root}/sessions/s0/recovery.json")
    stack.step = no_step
    put(f"{stack.root}/sessions/s0/recovery.json", "half of")
    (dead,) = opened_later(stack)
    assert dead.tries == 1 and not dead.quarantined
    assert stack.store.dead.attempt("s0") is not None


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_live_session_that_is_abandoned_is_recovered_without_a_new_open(stack: Stack) -> None:
    a = stack.session()
    put(a.at("mine"), "work\n")
    draft = a.keep()
    b = stack.session(draft_id=draft.draft_id)
    put(b.at("more"), "more\n")
    b.umount()
    stack.store.step = refusing("draft.mkdir")
    with pytest.raises(OSError, match="No space") as caught:
        b.upper.to_draft(reason="put aside")
    dead = stack.store.dead.abandon(b.upper, caught.value)
    assert dead.no_space and dead.draft_id == draft.draft_id
    with pytest.raises(Busy):
        stack.store.discard_draft(draft.draft_id)
    with pytest.raises(Invalid):
        b.upper.mount()
    stack.store.step = no_step
    kept = stack.store.dead.attempt(dead.session_id)
    assert kept is not None and stack.store.dead.all() == []
    stack.store.discard_draft(draft.draft_id)
    assert get(stack.session(draft_id=kept.draft_id).at("more")) == "more\n"


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_dead_session_that_is_given_up_leaves_nothing_and_holds_nothing(stack: Stack) -> None:
    a = stack.session()
    put(a.at("work"), "of the dead\n")
    a.umount()
    opened_later(stack)
    stack.store.give_up_session("s0")
    assert (
        stack.store.dead.all() == []
        and os.listdir(f"{stack.root}/sessions") == []
        and stack.store.leases.all() == ()
    )
    with pytest.raises(NotFound):
        stack.store.give_up_session("s0")
