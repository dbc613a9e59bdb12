"""Conflicts that were made to do harm: links that lead outside, texts that would grow without a bound, names
that are not text. What is outside stays as it is, and both sides stay.
"""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc

import pytest

from layerstack.errors import UnresolvedConflicts
from layerstack.model.resolution import MARKERS, OURS, THEIRS, Choice, ResolvedConflict
from layerstack.publish import resolve
from layerstack.text import markers
from tests.layerstack.store_fixture import Base, Stack, get, on_a_stack, put

TREE: Base = {"d/f": "base\n", "d/sub/x": "base\n", "d/gone": "base\n", "other": "o\n"}


def outside(stack: Stack) -> dict[str, str]:
    """What a directory outside the store contains; it is made at the first call."""
    folder = f"{stack.folder}/outside"
    if not os.path.isdir(folder):
        for name in ("f", "sub/x", "gone"):
            put(f"{folder}/{name}", "outside\n")
    return {
        os.path.relpath(os.path.join(above, name), folder): get(os.path.join(above, name))
        for above, _, names in os.walk(folder)
        for name in names
    }


def session_made_a_link(stack: Stack, side: str) -> None:
    before = outside(stack)
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    shutil.rmtree(session.at("d"))
    os.symlink(f"{stack.folder}/outside", session.at("d"))
    put(other.at("d/f"), "theirs\n")
    put(other.at("d/sub/x"), "theirs\n")
    other.publish()
    session.umount()
    found = session.upper.rebase(Choice(side))
    session.mount()
    assert outside(stack) == before
    taken, kept = ("d", "d.theirs") if side != THEIRS else ("d.ours", "d")
    assert os.readlink(session.at(taken)) == f"{stack.folder}/outside"
    assert get(session.at(f"{kept}/f")) == get(session.at(f"{kept}/sub/x")) == "theirs\n"
    assert {one.path for one in found.resolved} >= {"d/f", "d/sub/x"}
    session.publish()
    assert outside(stack) == before


@on_a_stack(TREE)
def test_a_directory_that_the_session_made_a_link_is_not_entered_for_markers(stack: Stack) -> None:
    session_made_a_link(stack, MARKERS)


@on_a_stack(TREE)
def test_a_directory_that_the_session_made_a_link_is_not_entered_for_ours(stack: Stack) -> None:
    session_made_a_link(stack, OURS)


@on_a_stack(TREE)
def test_a_directory_that_the_session_made_a_link_is_not_entered_for_theirs(stack: Stack) -> None:
    session_made_a_link(stack, THEIRS)


@on_a_stack(TREE)
def test_a_directory_that_the_head_made_a_link_is_not_entered(stack: Stack) -> None:
    before = outside(stack)
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    put(session.at("d/f"), "mine\n")
    put(session.at("d/sub/x"), "mine\n")
    os.unlink(session.at("d/gone"))
    shutil.rmtree(other.at("d"))
    os.symlink(f"{stack.folder}/outside", other.at("d"))
    other.publish()
    session.umount()
    session.upper.rebase(Choice(MARKERS, {"d": THEIRS, "d/f": OURS, "d/gone": THEIRS}))
    session.mount()
    session.publish()
    assert outside(stack) == before
    texts = [text for path, text in stack.shows().items() if path.startswith("d")]
    assert texts.count("mine\n") == 2 and f"-> {stack.folder}/outside" in texts


@on_a_stack(TREE)
def test_markers_are_not_searched_behind_a_link(stack: Stack) -> None:
    outside(stack)
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    put(session.at("d/f"), "mine\n")
    put(other.at("d/f"), "theirs\n")
    other.publish()
    session.umount()
    session.upper.rebase(Choice(MARKERS, label="alice"))
    session.mount()
    put(f"{stack.folder}/outside/f", "\n".join(session.upper.unresolved["d/f"]))
    shutil.rmtree(session.at("d"))
    os.symlink(f"{stack.folder}/outside", session.at("d"))
    session.umount()
    assert session.upper.preview().refused is None
    session.publish()


@on_a_stack({"f": "".join(f"base {n}\nsame {n}\n" for n in range(100))})
def test_hunks_that_would_make_a_text_much_larger_take_a_side(stack: Stack) -> None:
    markers.MARKED_MAX = 5000
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    for one, name in ((session, "mine"), (other, "theirs")):
        put(one.at("f"), get(one.at("f")).replace("base", name))
    other.publish()
    session.umount()
    found = session.upper.rebase(Choice(MARKERS, label="alice"))
    session.mount()
    assert found.resolved == (ResolvedConflict("f", "content", OURS, "f.theirs", "too_large", 2),)
    assert "mine 99" in get(session.at("f")) and "theirs 99" in get(session.at("f.theirs"))


@on_a_stack({os.fsdecode(b"\xff\n"): "base\n"})
def test_a_name_that_is_no_text_is_refused_in_words_that_can_be_sent(stack: Stack) -> None:
    name = os.fsdecode(b"\xff\n")
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    put(session.at(name), "mine\n")
    put(other.at(name), "theirs\n")
    other.publish()
    session.umount()
    session.upper.rebase(Choice(MARKERS, label="alice"))
    with pytest.raises(UnresolvedConflicts) as caught:
        session.publish()
    said = json.dumps([str(caught.value), caught.value.details], ensure_ascii=False)
    assert said.encode() and "line 1" in said


@on_a_stack({"f": "base\n"})
def test_a_renamed_file_with_markers_is_found_among_thousands(stack: Stack) -> None:
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    put(session.at("f"), "mine\n")
    put(other.at("f"), "theirs\n")
    other.publish()
    session.umount()
    session.upper.rebase(Choice(MARKERS, label="alice"))
    session.mount()
    for number in range(1100):
        put(session.at(f"a/{number}"))
    os.rename(session.at("f"), session.at("z"))
    with pytest.raises(UnresolvedConflicts) as caught:
        session.publish()
    assert [row["path"] for row in caught.value.details["paths"]] == ["z"]


LARGE = "top\n" + "".join(f"{number:7}{'x' * 9992}\n" for number in range(100)) + "end\n"


@on_a_stack({f"f{number}": LARGE for number in range(16)})
def test_a_plan_does_not_keep_the_bytes_of_all_merged_files(stack: Stack) -> None:
    resolve.KEPT_MAX = 2 << 20
    session, other = stack.session(agent="alice"), stack.session(agent="bob")
    for number in range(16):
        put(session.at(f"f{number}"), LARGE.replace("top\n", f"mine {number}\n"))
        put(other.at(f"f{number}"), LARGE.replace("end\n", f"theirs {number}\n"))
    other.publish()
    session.umount()
    tracemalloc.start()
    assert session.upper.preview().would_publish
    assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.reset_peak()
    assert session.upper.rebase(Choice(MARKERS)).merged == 16
    assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.stop()
    session.mount()
    session.publish()
    shown = stack.shows()
    for number in range(16):
        assert shown[f"f{number}"] == LARGE.replace("top\n", f"mine {number}\n").replace(
            "end\n", f"theirs {number}\n"
        )
