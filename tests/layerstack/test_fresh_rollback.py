"""Builds after a rollback: inputs and outputs stand to each other in time as they did in the version that
came back.
"""

from __future__ import annotations

import os

from layerstack.layers.index_record import record
from tests.layerstack.builds import age, date, edit, run
from tests.layerstack.store_fixture import Base, Stack, get, on_a_stack

TEXT: Base = {
    "a": "a1\n",
    "b": "b1\n",
    ".gitignore": "out*\nhand\n",
    "Makefile": "outab: outa b\n\tcat outa b >$@\nouta: a\n\tcat a >$@\n",
}


def back(stack: Stack, version: int) -> bool:
    """-> did it change something?"""
    return not stack.store.rollback(version, owner="o", request_id="r").no_op


def check_builds(stack: Stack, text: str) -> None:
    session = stack.session()
    run(session, "make", "outab")
    assert get(session.at("outab")) == text


def times(stack: Stack) -> dict[str, int]:
    """What the head shows at the top."""
    with stack.mounted() as view:
        return {name: os.lstat(f"{view}/{name}").st_mtime_ns for name in ("", *os.listdir(view))}


def build(stack: Stack, *, ago: int, **texts: str) -> None:
    """Publish the outputs, made so many seconds ago of `texts`, if any, that are as old."""
    session = stack.session()
    for path, text in texts.items():
        edit(session, path, text, ago=ago)
    run(session, "make", "outab")
    for output, later in (("outa", 10), ("outab", 20)):
        date(session, output, ago=ago - later)
    session.publish()


def change(stack: Stack, text: str, *, ago: int) -> None:
    session = stack.session()
    edit(session, "a", text, ago=ago)
    session.publish()


@on_a_stack(TEXT)
def test_an_output_that_was_to_be_made_again_still_is_after_it_was_made_with_equal_bytes(
    stack: Stack,
) -> None:
    age(stack)
    build(stack, ago=400)
    change(stack, "a2\n", ago=300)
    wanted = times(stack)
    assert back(stack, 1)
    build(stack, ago=200)
    assert back(stack, 3) and times(stack) == wanted
    check_builds(stack, "a2\nb1\n")
    stack.store.squash()
    assert times(stack) == wanted
    check_builds(stack, "a2\nb1\n")


@on_a_stack(TEXT)
def test_an_input_that_was_only_touched_is_newer_than_what_was_made_of_the_edit(stack: Stack) -> None:
    age(stack)
    session = stack.session()
    edit(session, "a", "a2\n", ago=400)
    run(session, "make", "outab")
    for output, ago in (("outa", 390), ("outab", 380)):
        date(session, output, ago=ago)
    edit(session, "a", "a1\n", ago=300)
    session.publish()
    wanted = times(stack)
    change(stack, "a3\n", ago=200)
    assert back(stack, 1) and back(stack, 2) and times(stack) == wanted
    check_builds(stack, "a1\nb1\n")
    stack.store.squash()
    assert times(stack) == wanted
    check_builds(stack, "a1\nb1\n")


@on_a_stack({**TEXT, "Makefile": "outab: hand b\n\tcat hand b >$@\n"})
def test_an_ignored_file_that_was_written_by_hand_comes_back_as_an_input(stack: Stack) -> None:
    age(stack)
    for text in (b"1\n", b"2\n"):
        stack.store.update_file("hand", lambda _, new=text: new, owner="o", request_id="r")
    session = stack.session()
    run(session, "make", "outab")
    assert back(stack, 2)
    session.publish()
    check_builds(stack, "1\nb1\n")
    for text in (b"2\n", b"1\n"):
        stack.store.update_file("hand", lambda _, new=text: new, owner="o", request_id="r")
    assert back(stack, 2)
    top = stack.store.layers.get(stack.store.head.layer_ids[0])
    assert top.about["written"] == ["hand"] and top.get("hand") == record("f", quiet=True)


@on_a_stack(TEXT)
def test_times_alone_are_no_reason_for_a_version(stack: Stack) -> None:
    age(stack)
    for text, ago in (("a2\n", 200), ("a1\n", 100)):
        change(stack, text, ago=ago)
    assert not back(stack, 1)
    assert stack.store.head.version == 3
