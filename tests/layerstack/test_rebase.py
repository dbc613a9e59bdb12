"""A draft carried over to the head: what a session on it sees, publishes and leaves behind; what is refused
changes nothing.
"""

from __future__ import annotations

import os
import shutil

import pytest

from layerstack.errors import PublishRejected
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put, refusing

TEXT = "".join(f"line {n}\n" for n in range(1, 21))
BASE: dict[str, str | bytes | None] = {"f": TEXT, "d/a": "a\n", "gone": "x\n"}


def work(stack: Stack) -> tuple[str, str]:
    """A draft on version 1 and what it did to f; the head has moved elsewhere since."""
    a = stack.session(agent="alice")
    put(a.at("f"), TEXT.replace("line 3\n", "three\n"))
    put(a.at("new/x"), "mine\n")
    shutil.rmtree(a.at("d"))
    draft = a.keep().draft_id
    stack.store.update_file(
        "f", lambda _: TEXT.replace("line 15\n", "fifteen\n").encode(), owner="o", request_id="r"
    )
    stack.store.update_file("theirs", lambda _: b"theirs\n", owner="o", request_id="r")
    return draft, TEXT.replace("line 3\n", "three\n").replace("line 15\n", "fifteen\n")


@on_a_stack(BASE)
def test_a_session_on_it_sees_both_and_publishes_only_the_drafts_part(stack: Stack) -> None:
    draft, merged = work(stack)
    session = stack.session(draft_id=draft, draft_base="head")
    assert session.upper.snapshot.version == stack.store.head.version == 3
    assert (
        get(session.at("f")) == merged
        and get(session.at("theirs")) == "theirs\n"
        and get(session.at("new/x")) == "mine\n"
    )
    assert not os.path.exists(session.at("d"))
    put(session.at("new/y"), "late\n")
    preview = session.upper.preview()
    assert preview.would_publish and preview.conflicts == ()
    published = session.publish()
    assert published.manifest.version == 4 and published.layer_id is not None
    listed = stack.store.layers.get(published.layer_id).index
    assert listed is not None and "theirs" not in listed
    shows = stack.shows()
    assert (
        shows["f"] == merged
        and shows["new/y"] == "late\n"
        and shows["theirs"] == "theirs\n"
        and "d/a" not in shows
    )
    assert stack.store.drafts() == [] and os.listdir(f"{stack.root}/staging") == []


@on_a_stack(BASE)
def test_throwing_the_session_away_leaves_the_draft_as_it_was(stack: Stack) -> None:
    draft, _ = work(stack)
    before = stack.store.draft(draft)
    session = stack.session(draft_id=draft, draft_base="head")
    put(session.at("f"), "scribble\n")
    session.umount()
    session.upper.discard()
    assert stack.store.drafts() == [before]
    own = stack.session(draft_id=draft)
    assert get(own.at("f")) == TEXT.replace("line 3\n", "three\n") and not os.path.exists(own.at("theirs"))


@on_a_stack(BASE)
def test_conflicts_are_all_reported_and_nothing_has_happened(stack: Stack) -> None:
    draft, _ = work(stack)
    stack.store.update_file(
        "f", lambda _: TEXT.replace("line 3\n", "tres\n").encode(), owner="o", request_id="r"
    )
    stack.store.update_file("d/a", lambda _: b"changed\n", owner="o", request_id="r")
    wanted = stack.store.preview_draft(draft).conflicts
    with pytest.raises(PublishRejected) as caught:
        stack.store.open_upper("again", origin="t", draft_id=draft, draft_base="head")
    assert caught.value.conflicts == wanted and {c.path for c in wanted} == {"f", "d/a"}
    for folder in ("sessions", "staging"):
        assert os.listdir(f"{stack.root}/{folder}") == []
    assert stack.store.layer_stats()["active_lease_count"] == 0
    assert stack.store.discard_draft(draft) > 0


@on_a_stack(BASE)
def test_what_the_head_has_already_leaves_a_clean_session(stack: Stack) -> None:
    a = stack.session()
    put(a.at("f"), "same\n")
    draft = a.keep().draft_id
    stack.store.update_file("f", lambda _: b"same\n", owner="o", request_id="r")
    session = stack.session(draft_id=draft, draft_base="head")
    assert get(session.at("f")) == "same\n"
    assert session.publish().no_op
    assert [d.draft_id for d in stack.store.drafts()] == [draft]


@on_a_stack(BASE)
def test_a_session_on_it_that_dies_is_recovered_with_all_that_it_showed(stack: Stack) -> None:
    draft, merged = work(stack)
    session = stack.session(draft_id=draft, draft_base="head")
    put(session.at("late"), "late\n")
    stack.reopen()
    (recovered,) = stack.store.recovered
    assert recovered.base_version == 3 and {d.draft_id for d in stack.store.drafts()} == {
        draft,
        recovered.draft_id,
    }
    again = stack.session(draft_id=recovered.draft_id)
    assert (
        get(again.at("f")) == merged
        and get(again.at("late")) == "late\n"
        and get(again.at("new/x")) == "mine\n"
    )


@on_a_stack(BASE)
def test_a_session_on_it_that_is_refused_once_more_goes_on_and_can_be_carried_over_again(
    stack: Stack,
) -> None:
    draft, merged = work(stack)
    session = stack.session(draft_id=draft, draft_base="head")
    put(session.at("late"), "ours\n")
    stack.store.update_file("late", lambda _: b"theirs\n", owner="o", request_id="r")
    assert session.rejected() == {"late": "add_add"}
    session.mount()
    assert get(session.at("f")) == merged and get(session.at("late")) == "ours\n"
    os.unlink(session.at("late"))
    second = session.keep().draft_id
    again = stack.session(draft_id=second, draft_base="head")
    assert get(again.at("late")) == "theirs\n" and get(again.at("f")) == merged


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_full_disk_on_the_way_leaves_no_session_and_the_draft(stack: Stack) -> None:
    draft, merged = work(stack)
    names: list[str] = []
    stack.store.step = names.append
    first = stack.session(draft_id=draft, draft_base="head")
    assert {"rebase.plan", "rebase.clone", "rebase.sync"} <= set(names)
    first.umount()
    first.upper.discard()
    for name in dict.fromkeys(name for name in names if name != "session.end"):
        stack.store.step = refusing(name)
        with pytest.raises(OSError, match="No space"):
            stack.store.open_upper("n", origin="t", draft_id=draft, draft_base="head")
        assert os.listdir(f"{stack.root}/staging") == os.listdir(f"{stack.root}/sessions") == []
    stack.store.step = names.append
    assert get(stack.session(draft_id=draft, draft_base="head").at("f")) == merged
