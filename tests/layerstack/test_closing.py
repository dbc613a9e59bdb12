"""What follows a squash: versions inside its blocks are closed, drafts and dead sessions go on with the new
layer, whatever the disk refuses.
"""

from __future__ import annotations

import contextlib
import errno
import os

import pytest

from layerstack.errors import NotFound
from tests.layerstack.kill_harness import tapped
from tests.layerstack.squashing import BASE, counts, ids, openable, publish, squash
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put


def three_layers(s: Stack) -> None:
    publish(s, a="a\n")
    publish(s, b="b\n")
    publish(s, c="c\n")


@on_a_stack(BASE)
def test_a_version_inside_a_block_is_closed_even_if_somebody_keeps_its_layers(s: Stack) -> None:
    """Pitfall 15: version 2 makes a file, version 3 deletes it; a session on 4 keeps the layers of both, yet
    2 is gone for good.
    """
    publish(s, made="x\n")
    two = s.session()
    os.unlink(two.at("made"))
    two.publish()
    publish(s, top="top\n")
    publish(s, after="x\n")
    keeper = s.session()  # on 5: its layer is the boundary
    squash(s)
    assert openable(s) == [1, 4, 5, 6]
    assert any(layer_id.startswith("L000002-") for layer_id in s.layer_dirs()), "the session is mounted on it"
    for version in (2, 3):
        with pytest.raises(NotFound):
            s.store.open_upper(f"inside-{version}", origin="test", version=version)
    s.reopen()
    assert openable(s) == [1, 4, 5, 6]
    with pytest.raises(NotFound):
        s.store.snapshot(2)
    keeper.umount()


@on_a_stack(BASE)
def test_a_draft_keeps_no_replaced_layer_and_opens_as_before(s: Stack) -> None:
    three_layers(s)
    session = s.session()
    put(session.at("d/f"), "work\n")
    draft = session.keep()
    publish(s, later="e\n")
    (block,) = squash(s).blocks
    assert block.reclaimed and len(block.replaced_layer_ids) == 2
    assert ids(s) == "LLSB"
    now = s.store.draft(draft.draft_id)
    assert now.layer_ids == s.store.head.layer_ids[1:] and now.base_version == draft.base_version
    again = s.session(draft_id=draft.draft_id)
    assert get(again.at("d/f")) == "work\n" and get(again.at("b")) == "b\n"
    assert not os.path.exists(again.at("later"))
    again.publish()
    assert s.shows()["d/f"] == "work\n"
    s.reopen()
    assert s.store.drafts() == []


@on_a_stack(BASE)
def test_the_draft_of_a_session_on_replaced_layers_names_the_new_one(s: Stack) -> None:
    three_layers(s)
    session = s.session()
    put(session.at("work"), "work\n")
    s.store.squash()
    draft = session.keep()
    assert draft.layer_ids == s.store.head.layer_ids
    assert len(s.layer_dirs()) == 2, "the replaced ones went with the session"


@on_a_stack(BASE)
def test_a_session_that_died_on_replaced_layers_is_recovered(s: Stack) -> None:
    three_layers(s)
    session = s.session()
    put(session.at("work"), "work\n")
    s.store.squash()
    s.reopen()
    (draft,) = s.store.recovered
    assert s.layer_dirs() == sorted(s.store.head.layer_ids[:-1])
    again = s.session(draft_id=draft.draft_id)
    assert (get(again.at("work")), get(again.at("b"))) == ("work\n", "b\n")


@on_a_stack(BASE)
def test_a_crash_between_commit_and_end_is_finished_by_the_next_open(s: Stack) -> None:
    three_layers(s)
    session = s.session()
    put(session.at("work"), "work\n")
    draft = session.keep()

    class Cut(BaseException):
        pass

    def step(name: str) -> None:
        if name == "squash.close_versions":
            raise Cut

    publish(s, e2="e\n")
    publish(s, f2="f\n")
    head = s.tree()
    s.store.step = step
    with pytest.raises(Cut):
        s.store.squash()
    assert 2 in openable(s)
    s.reopen()
    assert ids(s) == "SLSB" and s.tree() == head
    assert openable(s) == [1, 3, 4, 6, 7]
    assert s.layer_dirs() == sorted(s.store.head.layer_ids[:-1])
    assert s.store.draft(draft.draft_id).layer_ids == s.store.head.layer_ids[1:]
    assert s.shows(3).keys() == {*s.shows(1), "a", "b"}


def refuse_at_each_act(s: Stack, code: int) -> int:
    """A squash for each system call that it makes to change the disk, which fails in it. Returns how many
    there are.
    """
    left, acting = -1, False

    def tick(name: str) -> None:
        nonlocal left
        if acting:
            left -= 1
            if left == 0:
                raise OSError(code, os.strerror(code), name)

    tapped(tick)
    keeper = s.session()
    put(keeper.at("kept"), "kept\n")
    draft = keeper.keep()
    number = 0
    while left <= 0:
        number += 1
        for n in range(3):
            s.store.update_file(f"n{n}", counts(number), owner="o", request_id="r")
        tree, version = s.tree(), s.store.head.version
        left, acting = number, True
        with contextlib.suppress(OSError):
            s.store.squash()
        acting = False
        assert s.tree() == tree and s.store.head.version in (version, version + 1)
        if number % 3 == 0:
            s.reopen()
            assert s.tree() == tree and s.store.recovered == ()
        s.store.squash()
        s.store.gc()
        assert s.tree() == tree and len(s.store.head.layers) == 2, "a retry works"
        assert s.layer_dirs() == sorted(s.store.head.layer_ids[:-1]) and os.listdir(f"{s.root}/staging") == []
        assert s.store.draft(draft.draft_id).base_version == 1
    return number


@on_a_stack(BASE)
def test_a_disk_that_is_full_at_any_act_of_a_squash_leaves_the_old_head_or_the_new(s: Stack) -> None:
    assert refuse_at_each_act(s, errno.ENOSPC) > 30


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_disk_that_fails_at_any_act_of_a_squash_leaves_the_old_head_or_the_new(s: Stack) -> None:
    assert refuse_at_each_act(s, errno.EIO) > 30
