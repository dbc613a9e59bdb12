"""A session carried over to the head: what it sees, publishes and leaves behind there; what is refused
changes nothing.
"""

from __future__ import annotations

import os
import shutil

import pytest

from layerstack.errors import PublishRejected
from layerstack.kernel.fsync import no_step
from layerstack.model.conflict import Notice
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put, refusing

TEXT = "".join(f"line {n}\n" for n in range(1, 21))
MERGED = TEXT.replace("line 3\n", "three\n").replace("line 15\n", "fifteen\n")
BASE: dict[str, str | bytes | None] = {"f": TEXT, "d/a": "a\n", "gone": "x\n", "link": "-> f"}


def write(stack: Stack, path: str, text: str) -> None:
    stack.store.update_file(path, lambda _: text.encode(), owner="o", request_id="r")


def theirs(stack: Stack) -> None:
    """What the others publish meanwhile."""
    write(stack, "f", TEXT.replace("line 15\n", "fifteen\n"))
    write(stack, "theirs/new", "theirs\n")


def ours(session: Session) -> None:
    put(session.at("f"), TEXT.replace("line 3\n", "three\n"))
    put(session.at("mine/x"), "mine\n")
    os.unlink(session.at("gone"))


def look(session: Session) -> dict[str, str | None]:
    names = ("f", "d/a", "gone", "mine/x", "theirs/new")
    return {name: get(session.at(name)) if os.path.exists(session.at(name)) else None for name in names}


@on_a_stack(BASE)
def test_it_goes_on_with_both_sides_and_publishes_its_own_alone(stack: Stack) -> None:
    session = stack.session(agent="alice")
    ours(session)
    theirs(stack)
    session.umount()
    done = session.upper.rebase()
    assert (done.from_version, done.to_version, done.merged) == (1, 3, 1) and done.updated == 2, (
        "theirs/ and theirs/new"
    )
    session.mount()
    assert look(session) == {
        "f": MERGED,
        "d/a": "a\n",
        "gone": None,
        "mine/x": "mine\n",
        "theirs/new": "theirs\n",
    }
    assert session.upper.snapshot.version == 3 and os.listdir(f"{stack.root}/staging") == []
    assert stack.store.layer_stats()["active_lease_count"] == 1
    put(session.at("mine/y"), "late\n")
    published = session.publish()
    assert published.layer_id is not None
    listed = stack.store.layers.get(published.layer_id).index
    assert (
        listed is not None and "theirs/new" not in listed and {"f", "gone", "mine/x", "mine/y"} <= set(listed)
    )
    shows = stack.shows()
    assert shows["f"] == MERGED and "gone" not in shows and shows["mine/y"] == "late\n"
    assert os.listdir(f"{stack.root}/sessions") == [] and stack.store.layer_stats()["active_lease_count"] == 0


@on_a_stack(BASE)
def test_a_conflict_is_reported_with_all_others_and_the_session_stands_where_it_stood(stack: Stack) -> None:
    session = stack.session()
    ours(session)
    before = look(session)
    write(stack, "f", TEXT.replace("line 3\n", "tres\n"))
    write(stack, "gone", "still here\n")
    session.umount()
    with pytest.raises(PublishRejected) as caught:
        session.upper.rebase()
    assert {conflict.path for conflict in caught.value.conflicts} == {"f", "gone"}
    session.mount()
    assert look(session) == before and session.upper.snapshot.version == 1
    assert stack.store.layer_stats()["active_lease_count"] == 1 and os.listdir(f"{stack.root}/staging") == []
    put(session.at("f"), TEXT)
    put(session.at("gone"), "x\n")
    session.umount()
    assert session.upper.rebase().to_version == 3, "once the reason is gone it can be done"
    session.mount()
    assert get(session.at("gone")) == "still here\n" and get(session.at("mine/x")) == "mine\n"


@on_a_stack(BASE)
def test_again_and_again_and_with_nothing_of_its_own(stack: Stack) -> None:
    session = stack.session()
    session.umount()
    assert session.upper.rebase()[:4] == (1, 1, 0, 0)
    write(stack, "f", "2\n")
    assert session.upper.rebase()[:4] == (1, 2, 1, 0)
    session.mount()
    assert get(session.at("f")) == "2\n" and get(session.at("link")) == "2\n"
    for n in range(3, 6):
        put(session.at(f"own/{n}"), f"{n}\n")
        write(stack, "f", f"{n}\n")
        session.umount()
        assert session.upper.rebase()[:4] == (n - 1, n, 1, 0)
        session.mount()
        assert get(session.at("f")) == f"{n}\n" and sorted(os.listdir(session.at("own"))) == [
            str(m) for m in range(3, n + 1)
        ]
    assert len(os.listdir(f"{session.upper.directory}/private")) == 1, "one layer of its own, however often"


@on_a_stack({**BASE, ".gitignore": "*.o\n", "s/x": "x\n"})
def test_what_it_had_and_has_no_more_is_reported_once(stack: Stack) -> None:
    session = stack.session()
    os.mkfifo(session.at("pipe"))
    shutil.rmtree(session.at("s"))
    write(stack, "s/theirs.o", "theirs\n")
    session.umount()
    done = session.upper.rebase()
    assert done.dropped == ("pipe",) and done.notices == (Notice("dropped", "s/theirs.o"),)
    session.mount()
    assert not os.path.exists(session.at("s")) and not os.path.lexists(session.at("pipe"))
    write(stack, "theirs/new", "theirs\n")
    session.umount()
    done = session.upper.rebase()
    assert done.dropped == () and done.notices == ()
    assert session.upper.preview().notices == (Notice("dropped", "s/theirs.o"),)
    published = session.publish()
    assert published.dropped == ("pipe",) and published.notices == (Notice("dropped", "s/theirs.o"),)


@on_a_stack({**BASE, ".gitignore": "*.o\n", "s/x": "x\n"}, namespaces=("user",))
def test_the_publication_of_a_draft_that_was_carried_over_tells_what_went_then(stack: Stack) -> None:
    session = stack.session()
    shutil.rmtree(session.at("s"))
    draft = session.keep()
    write(stack, "s/theirs.o", "theirs\n")
    assert stack.session(draft_id=draft.draft_id, draft_base="head").publish().notices == (
        Notice("dropped", "s/theirs.o"),
    )


@on_a_stack(BASE)
def test_one_that_dies_afterwards_is_recovered_on_its_new_version(stack: Stack) -> None:
    session = stack.session()
    ours(session)
    theirs(stack)
    session.umount()
    session.upper.rebase()
    session.mount()
    put(session.at("late"), "late\n")
    stack.reopen()
    (draft,) = stack.store.recovered
    assert draft.base_version == 3
    again = stack.session(draft_id=draft.draft_id)
    assert (
        get(again.at("f")) == MERGED
        and get(again.at("late")) == "late\n"
        and get(again.at("mine/x")) == "mine\n"
    )


@on_a_stack(BASE)
def test_one_that_stands_on_a_draft_leaves_the_draft_and_settles_it_by_its_publication(stack: Stack) -> None:
    first = stack.session()
    ours(first)
    draft = first.keep()
    theirs(stack)
    session = stack.session(draft_id=draft.draft_id)
    put(session.at("late"), "late\n")
    session.umount()
    session.upper.rebase()
    session.mount()
    assert look(session)["f"] == MERGED and get(session.at("late")) == "late\n"
    assert stack.store.drafts() == [draft]
    stack.reopen()
    (recovered,) = stack.store.recovered
    session = stack.session(draft_id=recovered.draft_id)
    assert look(session)["f"] == MERGED and get(session.at("late")) == "late\n"
    session.publish()
    assert stack.store.drafts() == [draft] and stack.shows()["late"] == "late\n"
    own = stack.session(draft_id=draft.draft_id)
    write(stack, "elsewhere", "x\n")
    own.umount()
    own.upper.rebase()
    own.mount()
    put(own.at("more"), "more\n")
    own.publish()
    assert stack.store.drafts() == []


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_full_disk_at_any_step_leaves_the_session_as_it_was(stack: Stack) -> None:
    def moved(name: str) -> Session:
        session = stack.session()
        ours(session)
        put(session.at(f"own-{name}"), "x\n")
        write(stack, "theirs/new", f"{name}\n")
        session.umount()
        return session

    names: list[str] = []
    session = moved("first")
    stack.store.step = names.append
    session.upper.rebase()
    assert {"rebase.plan", "rebase.clone", "rebase.sync", "session.write", "session.exchange"} <= set(names)
    session.upper.discard()
    for name in dict.fromkeys(name for name in names if name != "session.end"):
        stack.store.step = no_step
        session = moved(name)
        version, leases = session.upper.snapshot.version, stack.store.layer_stats()["active_lease_count"]
        stack.store.step = refusing(name)
        with pytest.raises(OSError, match="No space"):
            session.upper.rebase()
        assert (
            stack.store.layer_stats()["active_lease_count"] == leases
            and os.listdir(f"{stack.root}/staging") == []
        )
        stack.store.step = no_step
        session.mount()
        assert (
            session.upper.snapshot.version == version
            and get(session.at(f"own-{name}")) == "x\n"
            and get(session.at("mine/x")) == "mine\n"
        )
        session.umount()
        assert session.upper.rebase().to_version == stack.store.head.version
        session.mount()
        assert get(session.at("theirs/new")) == f"{name}\n" and get(session.at(f"own-{name}")) == "x\n"
        session.umount()
        session.upper.discard()
    assert os.listdir(f"{stack.root}/sessions") == []
