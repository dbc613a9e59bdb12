"""Work that was not published is kept: as the session's private layer, as a draft, through the death of the
process.
"""

from __future__ import annotations

import os
import shutil

import pytest

from layerstack.errors import Busy, Invalid, NotFound, PublishRejected
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put, refusing


def rejected(stack: Stack) -> Session:
    """A session whose publish was refused because of f; it also made n/x and removed d."""
    a, b = stack.session(), stack.session(agent="codex", request_id="req-1")
    put(a.at("f"), "theirs\n")
    put(b.at("f"), "ours\n")
    put(b.at("n/x"), "mine\n")
    shutil.rmtree(b.at("d"))
    a.publish()
    assert b.rejected() == {"f": "content"}
    return b


BASE: dict[str, str | bytes | None] = {"f": "base\n", "d/g": "g\n"}


@on_a_stack({**BASE})
def test_after_a_rejection_the_session_goes_on_with_the_same_view_and_can_publish_a_resolution(
    stack: Stack,
) -> None:
    b = rejected(stack)
    assert len(b.upper.snapshot.lowerdirs) == 2, "the work is a private layer on the base"
    b.mount()
    assert get(b.at("f")) == "ours\n" and get(b.at("n/x")) == "mine\n" and not os.path.exists(b.at("d"))
    put(b.at("f"), "base\n")
    b.umount()
    assert b.upper.preview().would_publish
    done = b.publish()
    assert not done.no_op and stack.shows() == {"f": "theirs\n", "n": "/", "n/x": "mine\n"}
    assert stack.store.drafts() == [] and os.listdir(f"{stack.root}/sessions") == []


@on_a_stack({**BASE})
def test_rejections_one_after_the_other_stack_up_and_the_view_stays(stack: Stack) -> None:
    b = rejected(stack)
    for i in range(4):
        b.mount()
        put(b.at(f"more/{i}"))
        if i:
            os.unlink(b.at(f"more/{i - 1}"))
        assert b.rejected() == {"f": "content"}
    b.mount()
    assert get(b.at("f")) == "ours\n" and os.listdir(b.at("more")) == ["3"]
    draft = b.keep()
    assert draft.paths == 6  # f, n, n/x, d, more, more/3
    assert stack.store.layer_stats()["draft_count"] == 1


@on_a_stack({**BASE})
def test_a_draft_says_where_it_comes_from_and_gives_the_losing_bytes_back(stack: Stack) -> None:
    b = rejected(stack)
    draft = b.keep(reason="source_conflict")
    assert draft.to_json() | {"created_unix_ms": 0} == {
        "draft_id": draft.draft_id,
        "origin": "workspace_session:s1",
        "agent": "codex",
        "request_id": "req-1",
        "reason": "source_conflict",
        "base_version": 1,
        "created_unix_ms": 0,
        "paths": 4,
        "bytes": 10,
    }
    stack.reopen()
    assert stack.store.drafts() == [draft] and stack.store.recovered == ()
    again = stack.session(draft_id=draft.draft_id)
    assert (
        get(again.at("f")) == "ours\n"
        and get(again.at("n/x")) == "mine\n"
        and not os.path.exists(again.at("d"))
    )
    assert again.upper.snapshot.version == 1


@on_a_stack({**BASE})
def test_a_session_on_a_draft_leaves_it_whole_when_it_is_thrown_away(stack: Stack) -> None:
    draft = rejected(stack).keep()
    again = stack.session(draft_id=draft.draft_id)
    put(again.at("f"), "scribble\n")
    shutil.rmtree(again.at("n"))
    with pytest.raises(Busy) as caught:
        stack.store.discard_draft(draft.draft_id)
    assert caught.value.reason == "draft_in_use"
    again.umount()
    assert again.upper.discard() == 9
    third = stack.session(draft_id=draft.draft_id)
    assert get(third.at("f")) == "ours\n" and get(third.at("n/x")) == "mine\n"
    third.umount()
    third.upper.discard()
    assert stack.store.discard_draft(draft.draft_id) == draft.bytes and stack.store.drafts() == []
    with pytest.raises(NotFound) as missing:
        stack.store.draft(draft.draft_id)
    assert missing.value.reason == "draft_not_found"
    assert os.listdir(f"{stack.root}/drafts") == os.listdir(f"{stack.root}/staging") == []


@on_a_stack({**BASE})
def test_a_draft_that_is_published_with_its_session_is_gone(stack: Stack) -> None:
    draft = rejected(stack).keep()
    first, second = stack.session(draft_id=draft.draft_id), stack.session(draft_id=draft.draft_id)
    put(first.at("f"), "base\n")
    first.publish()
    assert stack.shows()["n/x"] == "mine\n" and stack.store.drafts() == []
    assert get(second.at("n/x")) == "mine\n", "who still stands on it keeps it"
    second.umount()
    second.upper.discard()
    assert os.listdir(f"{stack.root}/drafts") == []


@on_a_stack({**BASE})
def test_a_draft_published_by_a_process_that_died_then_is_gone_at_the_next_open(stack: Stack) -> None:
    draft = rejected(stack).keep()
    first, second = stack.session(draft_id=draft.draft_id), stack.session(draft_id=draft.draft_id)
    put(first.at("f"), "base\n")
    put(second.at("late"))
    first.publish()
    stack.reopen()
    (recovered,) = stack.store.drafts()
    assert recovered.origin == "workspace_session:s3" and recovered.paths == 5, (
        "the work of the second, the draft's own included"
    )


@on_a_stack({**BASE})
def test_the_preview_of_a_draft_is_what_its_publish_would_say(stack: Stack) -> None:
    draft = rejected(stack).keep()
    preview = stack.store.preview_draft(draft.draft_id)
    assert {c.path: c.cls for c in preview.conflicts} == {"f": "content"} and preview.source_count == 4
    stack.store.update_file("f", lambda old: b"base\n", owner="o", request_id="r")
    preview = stack.store.preview_draft(draft.draft_id)
    assert preview.would_publish and preview.conflicts == () and stack.store.drafts() == [draft]


@on_a_stack({**BASE})
def test_a_session_that_changed_nothing_leaves_no_draft(stack: Stack) -> None:
    a = stack.session()
    os.utime(a.at("f"))
    a.umount()
    assert a.upper.to_draft(reason="r") is None
    assert os.listdir(f"{stack.root}/drafts") == os.listdir(f"{stack.root}/sessions") == []


@on_a_stack({**BASE})
def test_sessions_of_a_dead_process_become_drafts_with_origin_and_reason(stack: Stack) -> None:
    a, b, c = stack.session(agent="one"), stack.session(), stack.session()
    put(a.at("lost"), "not lost\n")
    put(c.at("f"), "c\n")
    draft = c.keep()
    d = stack.session(draft_id=draft.draft_id)
    put(d.at("on-top"))
    assert os.listdir(b.view)
    stack.reopen()
    got = {r.origin: (r.agent, r.reason, r.paths) for r in stack.store.recovered}
    assert got == {
        "workspace_session:s0": ("one", "recovered", 1),
        "workspace_session:s3": (None, "recovered", 2),
    }
    assert {r.draft_id for r in stack.store.recovered} | {draft.draft_id} == {
        r.draft_id for r in stack.store.drafts()
    }
    (lost,) = [r for r in stack.store.recovered if r.agent == "one"]
    again = stack.session(draft_id=lost.draft_id)
    assert get(again.at("lost")) == "not lost\n"
    assert os.listdir(f"{stack.root}/staging") == []


@on_a_stack({**BASE})
def test_a_session_that_was_rejected_before_its_process_died_is_recovered_whole(stack: Stack) -> None:
    b = rejected(stack)
    b.mount()
    put(b.at("after"))
    os.unlink(b.at("n/x"))
    stack.reopen()
    (draft,) = stack.store.recovered
    again = stack.session(draft_id=draft.draft_id)
    assert (
        get(again.at("f")) == "ours\n" and get(again.at("after")) == "x\n" and os.listdir(again.at("n")) == []
    )


@on_a_stack({**BASE})
def test_a_draft_keeps_its_base_alive_and_its_lease_does_not_count_as_a_sessions(stack: Stack) -> None:
    a = stack.session()
    put(a.at("x"))
    draft = a.keep()
    assert draft.layer_ids == stack.store.head.layer_ids
    stats = stack.store.layer_stats()
    assert (stats["draft_count"], stats["active_lease_count"]) == (1, 0)
    stack.store.gc()
    assert stack.session(draft_id=draft.draft_id)


@on_a_stack({**BASE})
def test_what_cannot_be_opened_is_refused_by_name_and_leaves_nothing(stack: Stack) -> None:
    a = stack.session()
    put(a.at("x"))
    a.keep()
    for draft_id in ("draft-0000000000000000", "../../etc", ""):
        with pytest.raises(NotFound):
            stack.store.open_upper("n", origin="t", draft_id=draft_id)
    with pytest.raises(NotFound) as version:
        stack.store.open_upper("n", origin="t", version=99)
    assert version.value.reason == "version_not_found"
    for name in ("", "..", "a/b", "x" * 200):
        with pytest.raises(Invalid):
            stack.store.open_upper(name, origin="t")
    stack.store.open_upper("n", origin="t")
    with pytest.raises(Invalid) as twice:
        stack.store.open_upper("n", origin="t")
    assert twice.value.reason == "session_exists"
    assert os.listdir(f"{stack.root}/staging") == [] and stack.store.layer_stats()["active_lease_count"] == 1
    with pytest.raises(Invalid):
        a.upper.publish(owner="o", request_id="r")


@on_a_stack({**BASE})
def test_a_publish_that_fails_leaves_the_upper_usable_and_the_head_old(stack: Stack) -> None:
    names: list[str] = []
    stack.store.step = names.append
    probe = stack.session()
    put(probe.at("probe"))
    probe.publish()
    for n, name in enumerate(
        dict.fromkeys(
            name for name in names if name != "commit.fsync_manifest" and not name.startswith("session.")
        )
    ):
        a = stack.session()
        put(a.at("n/x"), f"{n}\n")
        os.utime(a.at("f"))
        head = stack.store.head

        stack.store.step = refusing(name)
        with pytest.raises(OSError, match="No space"):
            a.publish()
        assert stack.store.head is head
        stack.store.step = names.append
        a.mount()
        assert get(a.at("n/x")) == f"{n}\n"
        a.publish()
        assert stack.shows()["n/x"] == f"{n}\n"
    assert os.listdir(f"{stack.root}/staging") == [] and stack.store.drafts() == []


@on_a_stack({**BASE})
def test_a_rejection_still_says_everything_when_the_disk_is_full_for_the_private_layer(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("f"), "theirs\n")
    put(b.at("f"), "ours\n")
    a.publish()
    b.umount()

    def fail(step: str) -> None:
        if step.startswith("upper."):
            raise OSError(28, "No space left on device")

    stack.store.step = fail
    with pytest.raises(PublishRejected):
        b.publish()
    with pytest.raises(OSError, match="No space"):
        b.mount()
    stack.store.step = lambda _: None
    b.mount()
    assert get(b.at("f")) == "ours\n"
