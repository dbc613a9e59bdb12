"""Times of directories: capturing, merging and folding a layer change none; what gives a directory a name or
takes one does.
"""

from __future__ import annotations

import os
import time

from layerstack.publish.publish import Author
from tests.layerstack.builds import age, date, edit, mtime
from tests.layerstack.store_fixture import Base, Stack, on_a_stack, put

TREE: Base = {"d/a": "a\n", "d/b": "b\n", "d/in/c": "c\n", "e/x": "x\n", "o/old": "o\n"}
FOLDERS = ("", "d", "d/in", "e", "o")


def shown(stack: Stack, *folders: str) -> dict[str, int]:
    with stack.mounted() as view:
        return {folder: os.lstat(f"{view}/{folder}").st_mtime_ns for folder in folders}


@on_a_stack(TREE)
def test_a_squash_changes_no_time_of_a_directory(stack: Stack) -> None:
    """A name comes in one layer and goes in the next: what is left of the directory is its time."""
    age(stack)
    for turn in range(3):
        a = stack.session()
        if turn % 2:
            os.unlink(a.at("d/in/new"))
        else:
            put(a.at("d/in/new"), f"{turn}\n")
        date(a, "d/in", ago=100 - 10 * turn)
        edit(a, "e/x", f"{turn}\n", ago=50)
        a.publish()
    last = stack.session()
    os.unlink(last.at("d/in/new"))
    date(last, "d/in", ago=30)
    last.publish()
    wanted = shown(stack, *FOLDERS)
    assert len(stack.store.squash().blocks) == 1
    assert shown(stack, *FOLDERS) == wanted
    stack.reopen()
    assert shown(stack, *FOLDERS) == wanted and stack.store.squash().blocks == ()


@on_a_stack(TREE)
def test_capturing_gives_back_the_times_that_the_session_saw(stack: Stack) -> None:
    age(stack)
    a = stack.session()
    edit(a, "d/a", "changed\n", ago=20)
    edit(a, "d/b", "b\n", ago=20)
    edit(a, "d/in/c", "c\n")
    os.mkfifo(a.at("e/pipe"))
    edit(a, "e/x", "changed\n", ago=20)
    date(a, "e", ago=15)
    seen = {folder: mtime(a, folder) for folder in FOLDERS}
    a.publish()
    assert shown(stack, *FOLDERS) == seen


@on_a_stack(TREE)
def test_merging_with_a_head_that_moved_leaves_the_times_of_containers(stack: Stack) -> None:
    age(stack)
    a, b = stack.session(), stack.session()
    edit(a, "d/a", "same\n", ago=20)
    edit(b, "d/a", "same\n", ago=10)
    edit(b, "d/b", "changed\n", ago=10)
    before = {folder: mtime(a, folder) for folder in FOLDERS}
    a.publish()
    b.publish()
    assert shown(stack, *FOLDERS) == before


@on_a_stack(TREE)
def test_a_deletion_and_a_move_without_a_session_give_their_directories_the_time_of_now(stack: Stack) -> None:
    age(stack)
    before, start = shown(stack, *FOLDERS), time.time_ns() - 1_000_000_000
    stack.store.delete_path("d/in/c", Author("o", "r", None), recursive=False)
    after = shown(stack, *FOLDERS)
    assert after["d/in"] >= start and {f: t for f, t in after.items() if f != "d/in"} == {
        f: t for f, t in before.items() if f != "d/in"
    }
    stack.store.move_path("e/x", "o/x", Author("o", "r", None), overwrite=False)
    moved = shown(stack, *FOLDERS)
    assert min(moved["e"], moved["o"]) >= start and (moved[""], moved["d"], moved["d/in"]) == (
        before[""],
        before["d"],
        after["d/in"],
    )
    assert stack.store.snapshot().chain.find("o/x") is not None
