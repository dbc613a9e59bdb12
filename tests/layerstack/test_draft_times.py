"""A session on a draft: what it leaves as it is stays one draft, and the times that it gives are
published.
"""

from __future__ import annotations

import os
import shutil
import time

from layerstack.errors import PublishRejected
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put

NS = time.time_ns() + 3600 * 10**9
"""Later than what a session had seen: an input of a time from before that gets another one (ADR 0048)."""


def mtimes(stack: Stack, *paths: str) -> list[int]:
    return [entry.mtime_ns for path in paths if (entry := stack.store.snapshot().stat(path)) is not None]


def touch(session: Session, *paths: str) -> None:
    for path in paths:
        os.utime(session.at(path), ns=(NS, NS))


@on_a_stack({"f": "f\n"})
def test_a_draft_that_is_opened_and_left_as_it_was_stays_one_draft_however_the_session_ends(
    stack: Stack,
) -> None:
    first = stack.session()
    put(first.at("d/new"), "work\n")
    draft = first.keep()
    left = stack.session(draft_id=draft.draft_id)
    assert get(left.at("d/new")) == "work\n"
    assert left.keep() == draft, "put aside as the draft that it is"
    stack.session(draft_id=draft.draft_id)
    stack.reopen()
    assert stack.store.drafts() == [draft] and stack.store.recovered == () and stack.store.dead.all() == []
    assert os.listdir(f"{stack.root}/sessions") == []
    changed = stack.session(draft_id=draft.draft_id)
    put(changed.at("d/more"), "more\n")
    stack.reopen()
    assert len(stack.store.drafts()) == 2 and len(stack.store.recovered) == 1
    assert stack.store.discard_draft(draft.draft_id) > 0


@on_a_stack({"f": "f\n", "g": "g\n"})
def test_times_that_a_session_on_a_draft_gives_are_published(stack: Stack) -> None:
    first = stack.session()
    put(first.at("d/new"), "work\n")
    os.symlink("new", first.at("d/link"))
    put(first.at("f"), "changed\n")
    draft = first.keep()
    session = stack.session(draft_id=draft.draft_id)
    touch(session, "d/new", "f", "g")
    os.utime(session.at("d/link"), ns=(NS, NS), follow_symlinks=False)
    touch(session, "d")
    kept = session.keep()
    assert kept.draft_id != draft.draft_id, "times are work too"
    last = stack.session(draft_id=kept.draft_id)
    assert not last.publish().no_op
    assert mtimes(stack, "d/new", "f", "d/link", "d") == [NS] * 4
    assert mtimes(stack, "g") != [NS], "what is only touched is the base's"


@on_a_stack({"f": "f\n"})
def test_and_those_that_it_gives_after_a_rejection(stack: Stack) -> None:
    session, other = stack.session(), stack.session()
    put(session.at("mine"), "mine\n")
    put(session.at("f"), "ours\n")
    put(other.at("f"), "theirs\n")
    other.publish()
    try:
        session.publish()
    except PublishRejected:
        session.mount()
    put(session.at("f"), "f\n")
    touch(session, "mine")
    assert session.upper.preview().would_publish
    session.publish()
    assert mtimes(stack, "mine") != [NS], "on a head that moved it is the time of the publication"
    assert stack.shows()["f"] == "theirs\n"


@on_a_stack({"f": "f\n"})
def test_a_draft_carried_over_and_left_as_it_was_stays_one_draft(stack: Stack) -> None:
    first = stack.session()
    put(first.at("d/new"), "work\n")
    draft = first.keep()
    stack.store.update_file("f", lambda _: b"2\n", owner="o", request_id="r")
    stack.session(draft_id=draft.draft_id, draft_base="head")
    stack.reopen()
    assert stack.store.drafts() == [draft]
    published = stack.session(draft_id=draft.draft_id)
    shutil.rmtree(published.at("d"))
    assert published.publish().no_op
