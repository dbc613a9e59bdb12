"""A rebase that resolves conflicts: what the session shows afterwards, at each path and beside it, and that
markers are not published by accident.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import textwrap

import pytest

from layerstack.errors import PublishRejected, UnresolvedConflicts
from layerstack.kernel.fsync import no_step
from layerstack.model.resolution import MARKERS, OURS, THEIRS, Choice, ResolvedConflict
from layerstack.session.rebase import Rebased
from tests.layerstack.store_fixture import Base, Session, Stack, get, on_a_stack, put, refusing

TEXT = "".join(f"line {n}\n" for n in range(1, 21))
BASE: Base = {
    "f": TEXT,
    "d/a": "a\n",
    "d/b": "b\n",
    "e/x": "x\n",
    "gone": "old\n",
    "bin": b"\0base",
    "link": "-> f",
    "run": "#!/bin/sh\n",
}
MARKED = textwrap.dedent("""\
    line 2
    <<<<<<< alice
    three
    ||||||| base version 1
    line 3
    =======
    tres
    >>>>>>> bob, version 2
    line 4
""")


def write(stack: Stack, path: str, text: str | bytes, agent: str = "bob") -> None:
    data = text if isinstance(text, bytes) else text.encode()
    stack.store.update_file(path, lambda _: data, owner="o", request_id="r", agent=agent)


def rebased(session: Session, on_conflict: str = MARKERS, **paths: str) -> Rebased:
    session.umount()
    found = session.upper.rebase(Choice(on_conflict, paths, "alice"))
    session.mount()
    return found


def listed(found: Rebased) -> dict[str, tuple[str, str | None]]:
    return {one.path: (one.resolution, one.kept_as) for one in found.resolved}


def conflicting(stack: Stack) -> Session:
    """A session with a new file and a text that the head has changed in the same line."""
    session = stack.session(agent="alice")
    put(session.at("f"), TEXT.replace("line 3\n", "three\n").replace("line 20\n", "twenty\n"))
    put(session.at("NEW"), "mine\n")
    write(stack, "f", TEXT.replace("line 3\n", "tres\n").replace("line 10\n", "ten\n"))
    return session


@on_a_stack(BASE)
def test_a_text_is_written_with_markers_and_all_else_stays(stack: Stack) -> None:
    session = conflicting(stack)
    found = rebased(session)
    assert found.resolved == (ResolvedConflict("f", "content", MARKERS, None, None, 2),)
    text = get(session.at("f"))
    assert MARKED in text and "ten\n" in text and "twenty\n" in text, "what merges is merged"
    assert get(session.at("NEW")) == "mine\n" and session.upper.snapshot.version == 2
    assert session.upper.unresolved == {
        "f": ("<<<<<<< alice", "||||||| base version 1", ">>>>>>> bob, version 2")
    }
    with pytest.raises(UnresolvedConflicts) as caught:
        session.publish()
    assert caught.value.details["paths"] == [{"path": "f", "lines": [3, 5, 9]}]
    session.mount()
    assert MARKED in get(session.at("f"))
    session.umount()
    preview = session.upper.preview()
    assert not preview.would_publish and preview.refused is not None
    assert preview.refused.reason == "unresolved_conflicts"
    session.mount()
    put(session.at("f"), text.replace(MARKED, "line 2\nthree tres\nline 4\n"))
    assert session.publish().source_count == 2
    assert "three tres" in str(stack.shows()["f"]) and stack.shows()["NEW"] == "mine\n"


@on_a_stack(BASE)
def test_markers_that_are_meant_are_published_and_a_deleted_file_has_none(stack: Stack) -> None:
    session = conflicting(stack)
    rebased(session)
    session.umount()
    stack.store.publish(session.upper, owner="o", request_id="r", allow_unresolved=True)
    assert MARKED in str(stack.shows()["f"])
    again = conflicting_again(stack)
    rebased(again)
    os.unlink(again.at("f"))
    again.publish()
    assert "f" not in stack.shows()


def conflicting_again(stack: Stack) -> Session:
    session = stack.session(agent="alice")
    put(session.at("f"), "mine\n")
    write(stack, "f", "theirs\n")
    return session


@on_a_stack(BASE)
def test_a_renamed_file_with_markers_is_found(stack: Stack) -> None:
    session = conflicting(stack)
    rebased(session)
    os.rename(session.at("f"), session.at("g"))
    with pytest.raises(UnresolvedConflicts) as caught:
        session.publish()
    assert [row["path"] for row in caught.value.details["paths"]] == ["g"]


@on_a_stack(BASE)
def test_lines_that_look_like_markers_make_longer_ones(stack: Stack) -> None:
    session = stack.session(agent="alice")
    put(session.at("f"), "Title\n=========\nmine\n")
    write(stack, "f", "Title\n=========\ntheirs\n")
    rebased(session)
    assert f"{'<' * 10} alice\nTitle\n" in get(session.at("f"))
    write(stack, "f", "Title\n=========\nthird\n")
    found = rebased(session)
    assert listed(found) == {"f": (MARKERS, None)}
    text = get(session.at("f"))
    assert f"{'<' * 10} alice\nTitle\n=========\n{'<' * 11} alice\nmine\n" in text
    assert len(session.upper.unresolved["f"]) == 6


@on_a_stack(BASE)
def test_a_marker_that_would_be_too_long_is_none(stack: Stack) -> None:
    session = stack.session(agent="alice")
    put(session.at("f"), "=" * 5000 + "\nmine\n")
    write(stack, "f", "theirs\n")
    found = rebased(session)
    assert found.resolved == (ResolvedConflict("f", "content", OURS, "f.theirs", "marker_length", 2),)
    assert get(session.at("f.theirs")) == "theirs\n"


@on_a_stack(BASE)
def test_a_text_that_is_too_large_for_lines_takes_a_side_and_says_so(stack: Stack) -> None:
    session = stack.session(agent="alice")
    put(session.at("f"), b"mine\n" * (2 << 20))
    write(stack, "f", "theirs\n")
    found = rebased(session)
    assert found.resolved == (ResolvedConflict("f", "binary", OURS, "f.theirs", "too_large", 2),)


@on_a_stack(BASE)
def test_markers_keep_both_sides_of_every_kind_of_conflict(stack: Stack) -> None:
    check_every_kind(stack, MARKERS)


@on_a_stack(BASE)
def test_ours_keeps_both_sides_of_every_kind_of_conflict(stack: Stack) -> None:
    check_every_kind(stack, OURS)


@on_a_stack(BASE)
def test_theirs_keeps_both_sides_of_every_kind_of_conflict(stack: Stack) -> None:
    check_every_kind(stack, THEIRS)


def check_every_kind(stack: Stack, side: str) -> None:
    session = stack.session(agent="alice")
    put(session.at("bin"), b"\0mine")
    os.unlink(session.at("link"))
    os.symlink("d/a", session.at("link"))
    put(session.at("gone"), "mine\n")
    os.unlink(session.at("d/a"))
    put(session.at("new"), b"\0new mine")
    os.chmod(session.at("run"), 0o700)
    shutil.rmtree(session.at("e"))
    put(session.at("e"), "a file now\n")
    other = stack.session(agent="bob")
    put(other.at("bin"), b"\0theirs")
    os.unlink(other.at("link"))
    os.symlink("d/b", other.at("link"))
    os.unlink(other.at("gone"))
    put(other.at("d/a"), "theirs\n")
    put(other.at("new"), b"\0new theirs")
    os.chmod(other.at("run"), 0o750)
    put(other.at("e/x"), "theirs\n")
    put(other.at("e/y"), "theirs too\n")
    other.publish()
    found = rebased(session, side)
    end, taken = (".ours", THEIRS) if side == THEIRS else (".theirs", OURS)
    mine, theirs = ("", ".theirs") if side != THEIRS else (".ours", "")
    want: dict[str, tuple[str, str | None]] = {
        "bin": (taken, f"bin{end}"),
        "link": (taken, f"link{end}"),
        "new": (taken, f"new{end}"),
        "run": (taken, f"run{end}"),
    }
    if side == THEIRS:
        want |= {"gone": (THEIRS, "gone.ours"), "d/a": (THEIRS, None), "e": (THEIRS, "e.ours")}
        want |= {"e/x": (THEIRS, None), "e/y": (THEIRS, None)}
    else:
        want |= {"gone": (OURS, None), "d/a": (OURS, "d/a.theirs")}
        want |= {"e/x": (OURS, "e.theirs/x"), "e/y": (OURS, "e.theirs/y")}
    assert listed(found) == want
    assert get(session.at(f"bin{mine}")) == "\0mine" and get(session.at(f"bin{theirs}")) == "\0theirs"
    assert (
        os.readlink(session.at(f"link{mine}")) == "d/a" and os.readlink(session.at(f"link{theirs}")) == "d/b"
    )
    assert get(session.at(f"gone{mine}")) == "mine\n"
    assert os.stat(session.at(f"run{mine}")).st_mode & 0o777 == 0o700
    assert os.stat(session.at(f"run{theirs}")).st_mode & 0o777 == 0o750
    assert get(session.at(f"e{mine}")) == "a file now\n"
    assert get(session.at(f"e{theirs}/x")) == "theirs\n" and get(session.at(f"e{theirs}/y")) == "theirs too\n"
    assert os.path.exists(session.at("d/a")) == (side == THEIRS)
    assert session.upper.unresolved == {}
    session.publish()


@on_a_stack(BASE)
def test_sides_of_single_paths_and_refusal_of_the_rest(stack: Stack) -> None:
    session = conflicting(stack)
    put(session.at("d/a"), "mine\n")
    write(stack, "d/a", "theirs\n")
    session.umount()
    with pytest.raises(PublishRejected) as caught:
        session.upper.rebase(Choice(paths={"d": THEIRS}))
    assert [one.path for one in caught.value.conflicts] == ["d/a", "f"]
    session.mount()
    assert get(session.at("d/a")) == "mine\n" and session.upper.snapshot.version == 1
    found = rebased(session, d=THEIRS)
    assert listed(found) == {"d/a": (THEIRS, "d/a.ours"), "f": (MARKERS, None)}
    assert get(session.at("d/a")) == "theirs\n" and get(session.at("d/a.ours")) == "mine\n"


@on_a_stack(BASE)
def test_one_deleted_directory_and_one_that_gave_way_to_a_file(stack: Stack) -> None:
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    put(session.at("d/a"), "mine\n")
    put(session.at("d/new"), "mine too\n")
    put(session.at("e/more/y"), "mine three\n")
    shutil.rmtree(other.at("d"))
    put(other.at("d"), "a file\n")
    shutil.rmtree(other.at("e"))
    other.publish()
    found = rebased(session, THEIRS)
    assert get(session.at("d")) == "a file\n" and not os.path.exists(session.at("e"))
    assert get(session.at("d.ours/a")) == "mine\n" and get(session.at("d.ours/new")) == "mine too\n"
    assert get(session.at("e.ours/more/y")) == "mine three\n"
    assert not os.path.exists(session.at("d.ours/b")), "what both left alone is in the base"
    assert {one.kept_as for one in found.resolved} >= {"d.ours", "d.ours/a", "d.ours/new"}


@on_a_stack({"x": "x\n"})
def test_a_database_is_taken_as_a_whole_and_the_other_opens_beside_it(stack: Stack) -> None:
    def run(path: str, sql: str) -> list[tuple[str]]:
        with sqlite3.connect(path) as db:
            rows = db.execute(sql).fetchall()
        db.close()
        return rows

    first = stack.session()
    run(first.at("app.db"), "create table t (v)")
    first.publish()
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    run(session.at("app.db"), "insert into t values ('mine')")
    run(other.at("app.db"), "insert into t values ('theirs')")
    other.publish()
    found = rebased(session)
    assert [(one.path, one.cls, one.resolution, one.kept_as, one.why) for one in found.resolved] == [
        ("app.db", "unit", OURS, "app.db.theirs", "not_text")
    ]
    assert run(session.at("app.db"), "select v from t") == [("mine",)]
    assert run(session.at("app.db.theirs"), "select v from t") == [("theirs",)]


@on_a_stack({"n" * 255: "base\n", "f": "f\n", "f.theirs": "there\n", "f.theirs.1": "there\n"})
def test_names_that_are_long_or_taken(stack: Stack) -> None:
    session = stack.session()
    long = "n" * 255
    put(session.at(long), b"\0mine")
    put(session.at("f"), b"\0mine")
    write(stack, long, b"\0theirs")
    write(stack, "f", b"\0theirs")
    found = rebased(session)
    assert listed(found) == {long: (OURS, "n" * 248 + ".theirs"), "f": (OURS, "f.theirs.2")}
    assert get(session.at("f.theirs")) == "there\n" and get(session.at("f.theirs.2")) == "\0theirs"


@on_a_stack(BASE)
def test_markers_are_remembered_by_a_draft_and_by_a_dead_session(stack: Stack) -> None:
    session = conflicting(stack)
    rebased(session)
    lines = session.upper.unresolved
    draft = session.keep()
    assert stack.store.draft(draft.draft_id).unresolved == lines
    preview = stack.store.preview_draft(draft.draft_id)
    assert preview.refused is not None and preview.refused.reason == "unresolved_conflicts"
    again = stack.session(draft_id=draft.draft_id)
    assert again.upper.unresolved == lines
    put(again.at("more"), "more\n")
    stack.reopen()
    (recovered,) = stack.store.recovered
    assert recovered.unresolved == lines
    write(stack, "other", "o\n")
    last = stack.session(draft_id=recovered.draft_id, draft_base="head")
    assert last.upper.unresolved == lines and MARKED in get(last.at("f"))
    with pytest.raises(UnresolvedConflicts):
        last.publish()


@on_a_stack(BASE)
def test_a_draft_is_opened_on_the_head_with_the_same_resolutions(stack: Stack) -> None:
    draft = conflicting(stack).keep()
    with pytest.raises(PublishRejected):
        stack.session(draft_id=draft.draft_id, draft_base="head")
    shutil.rmtree(f"{stack.folder}/s1", ignore_errors=True)
    session = stack.session(draft_id=draft.draft_id, draft_base="head", choice=Choice(MARKERS, label="alice"))
    assert [one.path for one in session.upper.resolved] == ["f"] and MARKED in get(session.at("f"))
    assert get(session.at("NEW")) == "mine\n"
    put(session.at("f"), "both\n")
    session.publish()
    assert stack.shows()["f"] == "both\n" and stack.store.drafts() == []


@on_a_stack(BASE)
def test_a_full_disk_on_the_way_changes_nothing(stack: Stack) -> None:
    session = conflicting(stack)
    put(session.at("bin"), b"\0mine")
    write(stack, "bin", b"\0theirs")
    session.umount()
    steps: list[str] = []

    def note(name: str) -> None:
        if name not in steps:
            steps.append(name)

    stack.store.step = note
    with pytest.raises(OSError, match="No space"):
        stack.store.step = refusing("session.exchange")
        session.upper.rebase(Choice(MARKERS))
    stack.store.step = no_step
    session.mount()
    assert get(session.at("bin")) == "\0mine" and session.upper.unresolved == {}
    assert sorted(os.listdir(session.view)) == ["NEW", "bin", "d", "e", "f", "gone", "link", "run"]
    assert listed(rebased(session)) == {"bin": (OURS, "bin.theirs"), "f": (MARKERS, None)}
