"""What is only reported: where a renamed file is now, and which names of a hard link were parted."""

from __future__ import annotations

import os
import shutil

from layerstack.model.conflict import Renamed
from tests.layerstack.store_fixture import Session, Stack, on_a_stack, put


def published_notices(session: Session) -> list[tuple[str, str, dict[str, str]]]:
    """Notices of a publication, which a preview shows alike: kind, path, where which side has it."""
    before = session.upper.preview().notices
    done = session.publish()
    assert done.notices == before
    return [
        (notice.kind, notice.path, {renamed.by: renamed.to for renamed in notice.renamed})
        for notice in done.notices
        if notice.path
    ]


def renamed(session: Session) -> dict[str, tuple[str, Renamed | None]]:
    return {conflict.path: (conflict.cls, conflict.renamed) for conflict in session.conflicts()}


@on_a_stack({"d/f": "f\n", "d/g": "g\n", "e/x": "x\n"})
def test_a_rename_against_an_edit_says_where_the_file_went(stack: Stack) -> None:
    mover, editor, other = stack.session(), stack.session(), stack.session()
    os.rename(mover.at("d/f"), mover.at("e/f2"))
    put(editor.at("d/f"), "edited\n")
    put(other.at("d/f"), "edited too\n")
    editor.publish()
    assert renamed(mover) == {"d/f": ("delete_modify", Renamed("e/f2", "ours"))}
    conflict = mover.upper.preview().conflicts[0].to_json()
    assert conflict["renamed_to"] == {"path": "e/f2"} and conflict["renamed_by"] == "ours"
    again = stack.session()
    late = stack.session()
    os.rename(again.at("d/f"), again.at("moved"))
    put(late.at("d/f"), "late\n")
    again.publish()
    assert renamed(late) == {"d/f": ("modify_delete", Renamed("moved", "theirs"))}


@on_a_stack({"d/a": "a\n", "d/b": "b\n", "d/sub/c": "c\n", "x": "x\n"})
def test_a_renamed_directory_says_where_what_was_edited_or_added_in_it_would_be(stack: Stack) -> None:
    mover, editor = stack.session(), stack.session()
    shutil.move(mover.at("d"), mover.at("e"))  # without redirects a directory is copied
    put(mover.at("e/a"), "edited by the mover as well\n")
    put(editor.at("d/a"), "A\n")
    put(editor.at("d/sub/new"), "new\n")
    editor.publish()
    assert renamed(mover) == {
        "d/a": ("delete_modify", Renamed("e/a", "ours")),
        "d/sub/new": ("parent", Renamed("e/sub/new", "ours")),
    }


@on_a_stack({"f": "f\n", "d/a": "a\n", "d/b": "b\n", "same": "s\n", "gone": "g\n"})
def test_what_both_renamed_to_different_names_is_reported_and_there_twice(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    for session, to in ((a, "A"), (b, "B")):
        os.rename(session.at("f"), session.at(f"f{to}"))
        shutil.move(session.at("d"), session.at(f"d{to}"))
        os.rename(session.at("same"), session.at("alike"))
        os.unlink(session.at("gone"))
    a.publish()
    assert published_notices(b) == [
        ("rename_rename", "d", {"ours": "dB", "theirs": "dA"}),
        ("rename_rename", "f", {"ours": "fB", "theirs": "fA"}),
    ]
    assert {"dA/a", "dB/a", "fA", "fB", "alike"} <= set(stack.shows())


@on_a_stack({"x": "x\n"})
def test_a_name_of_a_published_hard_link_that_was_written_to_is_reported_with_the_names_that_were_not(
    stack: Stack,
) -> None:
    first = stack.session()
    put(first.at("d/one"), "old\n")
    for name in ("d/two", "three"):
        os.link(first.at("d/one"), first.at(name))
    first.publish()
    a, b, c = stack.session(), stack.session(), stack.session()
    with open(a.at("d/one"), "a") as file:
        file.write("new\n")
    before = a.upper.preview().notices
    assert [(notice.kind, notice.path, notice.others) for notice in before] == [
        ("split_link", "d/one", ("d/two", "three"))
    ]
    assert before[0].to_json()["others"] == [{"path": "d/two"}, {"path": "three"}]
    assert a.publish().notices == before
    assert stack.shows()["d/two"] == "old\n"
    for session in (b, c):
        os.unlink(session.at("d/two"))
    put(b.at("three"), "mine\n")
    os.unlink(b.at("d/one"))
    os.unlink(c.at("three"))
    os.link(c.at("d/one"), c.at("three"))
    assert [notice for notice in b.upper.preview().notices if notice.kind == "split_link"] == []
    assert [notice for notice in c.upper.preview().notices if notice.kind == "split_link"] == []
