"""Writes that failed half way: work in layers, links that run out, a closed store."""

from __future__ import annotations

import errno
import os

import pytest

from layerstack.errors import Invalid
from layerstack.kernel.fsync import no_step
from layerstack.store import Store
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put, refusing

BASE: dict[str, str | bytes | None] = {"f": "base\n", "d/g": "g\n"}


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_the_only_copy_of_work_that_a_failed_publish_left_in_layers_survives_the_same_publish_by_another(
    stack: Stack,
) -> None:
    """The first publish fails at its manifest, and the rename back fails too; the second has the same
    content, so the same layer id.
    """
    a, b = stack.session(), stack.session()
    for session in (a, b):
        put(session.at("x"), "the work\n")
        os.utime(session.at("x"), (1, 1))
        session.umount()
    real = os.rename

    def rename(old: str, new: str) -> None:
        if new == a.upper.upperdir:
            raise OSError(5, "Input/output error", old)
        real(old, new)

    stack.store.step = refusing("commit.rename_manifest", code=errno.EIO)
    os.rename = rename  # type: ignore[assignment]
    try:
        with pytest.raises(OSError, match="Input/output"):
            a.upper.publish(owner="a", request_id="r")
    finally:
        os.rename = real
    stack.store.step = no_step
    assert not os.path.exists(a.upper.upperdir)
    b.upper.publish(owner="b", request_id="r")
    stack.reopen()
    (draft,) = stack.store.recovered
    assert draft.origin == "workspace_session:s0" and stack.shows()["x"] == "the work\n"
    assert get(stack.session(draft_id=draft.draft_id).at("x")) == "the work\n"


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_write_that_failed_and_could_not_be_undone_can_be_done_again(stack: Stack) -> None:
    real = os.rename

    def rename(old: str, new: str) -> None:
        if old.startswith(f"{stack.root}/layers/"):
            raise OSError(5, "Input/output error", old)
        real(old, new)

    stack.store.step = refusing("commit.rename_manifest", code=errno.EIO)
    os.rename = rename  # type: ignore[assignment]
    try:
        with pytest.raises(OSError, match="Input/output"):
            stack.store.update_file("f", lambda old: b"new\n", owner="o", request_id="r")
    finally:
        os.rename = real
    stack.store.step = no_step
    assert len(stack.layer_dirs()) == 1
    done = stack.store.update_file("f", lambda old: b"new\n", owner="o", request_id="r")
    assert stack.layer_dirs() == [done.layer_id] and stack.shows()["f"] == "new\n"
    stack.reopen()
    assert stack.store.head == done.manifest


@on_a_stack({"d/big": b"\1" * 4096, "d/other": "o\n"}, namespaces=("trusted",))
def test_a_renamed_directory_whose_files_cannot_be_linked_is_copied_whole_or_not_at_all(stack: Stack) -> None:
    """A file has 65,000 names at most. A copy that was cut off must not be taken for the session's own file
    when capturing is done again.
    """
    stack.store.update_file("d/big", lambda old: b"\2" * 100_000, owner="o", request_id="r")
    a = stack.session()
    os.rename(a.at("d"), a.at("e"))
    a.umount()
    link, sendfile = os.link, os.sendfile

    def no_links(*args: object, **how: object) -> None:
        raise OSError(31, "Too many links")

    def cut_off(*args: object) -> int:
        raise OSError(28, "No space left on device")

    os.link = no_links
    os.sendfile = cut_off  # type: ignore[assignment]
    try:
        with pytest.raises(OSError, match="No space"):
            a.upper.to_draft(reason="r")
    finally:
        os.link, os.sendfile = link, sendfile
    a.publish()
    assert stack.shows()["e/big"] == "\2" * 100_000


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_nothing_is_written_to_a_store_that_was_closed(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("x"))
    put(b.at("x"))
    a.umount()
    b.umount()
    stack.store.close()
    other = Store.open(stack.root)
    try:
        assert len(other.recovered) == 2
        before = sorted(os.walk(stack.root))
        calls = (
            lambda: stack.store.update_file("f", lambda old: b"late\n", owner="o", request_id="r"),
            lambda: stack.store.open_upper("late", origin="t"),
            lambda: stack.store.discard_draft(other.recovered[0].draft_id),
            stack.store.gc,
            lambda: a.upper.publish(owner="o", request_id="r"),
            lambda: b.upper.to_draft(reason="r"),
        )
        for call in calls:
            with pytest.raises(Invalid) as caught:
                call()
            assert caught.value.reason == "store_closed"
        assert sorted(os.walk(stack.root)) == before and other.head.version == 1
    finally:
        other.close()
    stack.store = Store.open(stack.root)
