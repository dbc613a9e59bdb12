"""Refs of three states merged one by one: each row of the table, in repositories of the real git."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from layerstack.git.ancestry import is_ancestor
from layerstack.git.ref_merge import RefMerge, RefRules, merge_refs
from layerstack.git.ref_results import RefMeeting, RefNotice
from layerstack.git.ref_store import RefValue, ref_files
from layerstack.git.reflog import LogMove, LogSides, merge_log, merge_logs, ref_of_log
from tests.git_trees import git, repository
from tests.layerstack.git.three_sides import (
    ROOT,
    Sides,
    add_objects,
    apply_files,
    commit,
    for_each_ref,
    rev,
    three_of,
    write,
)

ME = b"Ada <ada@example.org> 1700000000 +0100"


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    base = repository(tmp_path / "base")
    commit(base, "one", a="1")
    git(base, "branch", "topic")
    git(base, "branch", "dir/old")
    git(base, "tag", "v1")
    git(base, "update-ref", "refs/remotes/origin/main", "HEAD")
    commit(base, "two", a="2")
    return three_of(base)


def notes_of_ours(meeting: RefMeeting) -> bytes:
    return meeting.ours


def merge(sides: Sides, author: str = "bot", stash: str | None = None) -> RefMerge:
    base, ours, head = sides.refs
    log = None
    if any(sides.log(side, "refs/stash") is not None for side in sides):
        log = merge_log(*(sides.log(side, "refs/stash") for side in sides), chain=True)
    with sides.objects() as objects:

        def older(a: bytes, b: bytes) -> bool:
            return is_ancestor(objects, bytes.fromhex(a.decode()), bytes.fromhex(b.decode()))

        return merge_refs(base, ours, head, RefRules(author, older, notes_of_ours, log))


def written(sides: Sides, result: RefMerge) -> dict[bytes, bytes]:
    """Write the result into the head's repository, as a publication does, and list its refs with git."""
    add_objects(sides.head, sides.ours)
    head = sides.refs[2]
    logs = {
        name
        for side in sides
        for path in (side / ROOT / "logs").rglob("*")
        if path.is_file() and (name := ref_of_log(path.relative_to(side / ROOT).as_posix())) is not None
    }
    known = LogSides(*sides.trees, result.refs, result.renamed)
    moves = {
        meeting.name: LogMove(meeting.head, meeting.ours) for meeting in result.meetings
    }  # as if ours followed
    changes = merge_logs(ROOT, known, logs | set(result.renamed), moves, ME)
    apply_files(sides.head, ref_files(result.refs, head))
    apply_files(sides.head, changes)
    git(sides.head, "fsck", "--strict", "--no-dangling")
    git(sides.head, "reflog", "show", "--all")
    return for_each_ref(sides.head)


def test_what_one_side_did_is_in_the_result(sides: Sides) -> None:
    moved = commit(sides.ours, "ours", b="1")
    git(sides.ours, "branch", "-D", "topic")
    git(sides.ours, "tag", "v2")
    git(sides.head, "branch", "mine")
    git(sides.head, "tag", "-d", "v1")
    git(sides.head, "branch", "-D", "dir/old")
    result = merge(sides)
    assert result.meetings == () and result.renamed == {} and result.notices == ()
    assert written(sides, result) == {
        b"refs/heads/main": moved.encode(),
        b"refs/heads/mine": rev(sides.base, "main").encode(),
        b"refs/tags/v2": moved.encode(),
        b"refs/remotes/origin/main": rev(sides.base, "topic").encode(),
    }


def test_a_branch_that_both_moved_meets(sides: Sides) -> None:
    before = rev(sides.base, "main")
    ours, head = commit(sides.ours, "ours", b="1"), commit(sides.head, "head", c="1")
    result = merge(sides)
    assert result.meetings == (RefMeeting(b"refs/heads/main", before.encode(), ours.encode(), head.encode()),)
    assert result.refs[b"refs/heads/main"] == RefValue(head.encode())
    assert result.lost == {before.encode(): b"refs/heads/main"}, "an ancestor of both, as the caller finds"
    written(sides, result)
    lines = git(sides.head, "reflog", "show", "--format=%gs", "main").splitlines()
    assert lines == [
        b"publish: rebase",
        b"commit: ours",
        b"commit: head",
        b"commit: two",
        b"commit (initial): one",
    ]
    assert git(sides.head, "reflog", "show", "--format=%gs").splitlines()[:2] == [
        b"commit: ours",
        b"commit: head",
    ]


def test_the_first_commit_of_both_meets_without_a_base(tmp_path: Path) -> None:
    sides = three_of(repository(tmp_path / "base"))
    ours, head = commit(sides.ours, "ours", b="1"), commit(sides.head, "head", c="1")
    result = merge(sides)
    assert result.meetings == (RefMeeting(b"refs/heads/main", None, ours.encode(), head.encode()),)


def test_a_move_stays_where_the_other_side_deleted(sides: Sides) -> None:
    git(sides.ours, "branch", "-D", "topic")
    git(sides.head, "branch", "-f", "topic", "main")
    git(sides.head, "tag", "-d", "v1")
    git(sides.ours, "tag", "-f", "v1", "main")
    result = merge(sides)
    assert set(result.notices) == {
        RefNotice("ref_kept", b"refs/heads/topic", "theirs"),
        RefNotice("ref_kept", b"refs/tags/v1", "ours"),
    }
    refs = written(sides, result)
    assert refs[b"refs/heads/topic"] == refs[b"refs/tags/v1"] == rev(sides.base, "main").encode()
    assert (sides.head / ".git/logs/refs/heads/topic").exists()


@pytest.mark.parametrize("author", ["bot", "A b~c..lock"])
def test_a_name_that_both_created_is_the_heads_and_ours_gets_another(sides: Sides, author: str) -> None:
    git(sides.ours, "branch", "new", "main")
    git(sides.head, "branch", "new", "topic")
    git(sides.ours, "tag", "-f", "v1", "main")
    git(sides.head, "tag", "-f", "-m", "x", "v1", "topic")
    git(sides.head, "branch", "new-bot")
    result = merge(sides, author)
    word = b"bot" if author == "bot" else b"A-b-c"
    number = b"-2" if author == "bot" else b""
    refs = written(sides, result)
    assert result.renamed[b"refs/heads/new"] == b"refs/heads/new-" + word + number
    assert refs[b"refs/heads/new"] == rev(sides.base, "topic").encode()
    assert refs[b"refs/heads/new-" + word + number] == rev(sides.base, "main").encode()
    assert refs[b"refs/tags/v1-" + word] == rev(sides.base, "main").encode()
    assert [one.kind for one in result.notices] == ["ref_renamed"] * 2


def test_names_that_collide_as_directory_and_file_are_both_there(sides: Sides) -> None:
    git(sides.ours, "branch", "x", "main")
    git(sides.head, "branch", "x/y", "main")
    git(sides.ours, "branch", "p/q", "main")
    git(sides.head, "branch", "p", "main")
    result = merge(sides)
    assert result.renamed == {b"refs/heads/x": b"refs/heads/x-bot", b"refs/heads/p/q": b"refs/heads/p-bot/q"}
    refs = written(sides, result)
    assert {b"refs/heads/" + name for name in (b"x-bot", b"x/y", b"p", b"p-bot/q")} <= set(refs)


def test_a_directory_that_became_a_branch_leaves_no_log_in_its_way(sides: Sides) -> None:
    git(sides.ours, "branch", "-D", "dir/old")
    git(sides.ours, "branch", "dir", "main")
    git(sides.head, "branch", "other")
    result = merge(sides)
    assert b"refs/heads/dir" in written(sides, result)
    git(sides.head, "switch", "-q", "dir")
    commit(sides.head, "more", z="z")
    assert len(git(sides.head, "reflog", "show", "dir").splitlines()) == 2


def test_a_remote_branch_is_the_descendant_else_the_last_writers(sides: Sides) -> None:
    one = commit(sides.ours, "up", u="1")
    git(sides.ours, "update-ref", "refs/remotes/origin/main", one)
    git(sides.head, "update-ref", "refs/remotes/origin/main", "main")
    assert merge(sides).refs[b"refs/remotes/origin/main"] == RefValue(one.encode())
    swapped = Sides(sides.base, sides.head, sides.ours)
    assert merge(swapped).refs[b"refs/remotes/origin/main"] == RefValue(one.encode())
    other = commit(sides.head, "apart", w="1")
    git(sides.head, "update-ref", "refs/remotes/origin/main", other)
    result = merge(sides)
    assert result.refs[b"refs/remotes/origin/main"] == RefValue(one.encode())
    assert result.notices == ()


def test_a_fetch_that_turned_a_remote_branch_into_a_directory_is_the_last_writers(sides: Sides) -> None:
    git(sides.head, "update-ref", "refs/remotes/origin/feat", "topic")
    git(sides.ours, "update-ref", "refs/remotes/origin/feat/one", "main")
    result = merge(sides)
    refs = written(sides, result)
    assert b"refs/remotes/origin/feat/one" in refs and b"refs/remotes/origin/feat" not in refs


def test_both_stashes_are_there_and_a_popped_one_stays_popped(sides: Sides) -> None:
    for n in ("first", "second"):
        write(sides.base, a=n)
        git(sides.base, "stash", "push", "-m", n)
    sides = renewed(sides)
    git(sides.ours, "stash", "drop", "stash@{1}")
    write(sides.ours, a="ours")
    git(sides.ours, "stash", "push", "-m", "ours")
    write(sides.head, a="head")
    git(sides.head, "stash", "push", "-m", "head")
    git(sides.head, "branch", "other")
    result = merge(sides)
    refs = written(sides, result)
    shown = [line.partition(b": On main: ")[2] for line in git(sides.head, "stash", "list").splitlines()]
    assert shown == [b"ours", b"head", b"second"]
    assert refs[b"refs/stash"] == rev(sides.ours, "stash@{0}").encode()
    assert result.lost == {}
    raw = (sides.head / ".git/logs/refs/stash").read_text().splitlines()
    assert raw[0].startswith("0" * 40) and all(
        b.split()[0] == a.split()[1] for a, b in itertools.pairwise(raw)
    )
    git(sides.head, "reset", "-q", "--hard")
    git(sides.head, "stash", "pop")
    assert (sides.head / "a").read_text() == "ours"


def renewed(sides: Sides) -> Sides:
    """Copy the base once more."""
    for copy in (sides.ours, sides.head):
        shutil.rmtree(copy)
    return three_of(sides.base)


def test_the_last_stash_popped_on_one_side_is_gone(sides: Sides) -> None:
    write(sides.base, a="x")
    git(sides.base, "stash")
    sides = renewed(sides)
    git(sides.ours, "stash", "pop")
    git(sides.head, "branch", "other")
    result = merge(sides)
    assert b"refs/stash" not in written(sides, result) and result.lost == {}
    assert not (sides.head / ".git/logs/refs/stash").exists()


def test_a_stash_of_one_side_is_there_when_the_other_popped_all(sides: Sides) -> None:
    write(sides.base, a="x")
    git(sides.base, "stash", "push", "-m", "old")
    sides = renewed(sides)
    git(sides.ours, "stash", "pop")
    write(sides.head, a="y")
    git(sides.head, "stash", "push", "-m", "new")
    written(sides, merge(sides))
    assert git(sides.head, "stash", "list") == b"stash@{0}: On main: new\n"


HEADS = ["ours switches", "head moves", "both", "head switches", "same", "detached", "renamed"]


@pytest.mark.parametrize("case", HEADS)
def test_head_is_the_stores(sides: Sides, case: str) -> None:
    notices: list[RefNotice] = []
    expected = RefValue(None, b"refs/heads/main")
    if case in ("ours switches", "both", "head moves"):
        git(sides.ours, "switch", "-q", "-c", "feature")
        commit(sides.ours, "ours", f="1")
    if case == "ours switches":
        git(sides.head, "branch", "unrelated")
        expected = RefValue(None, b"refs/heads/feature")
    elif case == "head moves":
        commit(sides.head, "head", h="1")
        notices = [RefNotice("branch_not_switched", b"HEAD", "refs/heads/main")]
    elif case == "both":
        git(sides.head, "switch", "-q", "topic")
        expected = RefValue(None, b"refs/heads/topic")
        notices = [RefNotice("branch_not_switched", b"HEAD", "refs/heads/topic")]
    elif case == "head switches":
        git(sides.head, "switch", "-q", "topic")
        commit(sides.ours, "ours", f="1")
        expected = RefValue(None, b"refs/heads/topic")
        notices = [RefNotice("branch_not_switched", b"HEAD", "refs/heads/topic")]
    elif case == "same":
        for side in (sides.ours, sides.head):
            git(side, "switch", "-q", "topic")
        expected = RefValue(None, b"refs/heads/topic")
    elif case == "detached":
        git(sides.ours, "switch", "-q", "--detach", "topic")
        git(sides.head, "branch", "unrelated")
        expected = RefValue(rev(sides.base, "topic").encode())
    elif case == "renamed":
        for side in (sides.ours, sides.head):
            git(side, "switch", "-q", "-c", "feature")
            commit(side, str(side), f=str(side))
        expected = RefValue(None, b"refs/heads/feature")
        notices = [
            RefNotice("ref_renamed", b"refs/heads/feature", "refs/heads/feature-bot"),
            RefNotice("branch_not_switched", b"HEAD", "refs/heads/feature"),
        ]
    result = merge(sides)
    assert result.refs[b"HEAD"] == expected and list(result.notices) == notices
    written(sides, result)
    assert rev(sides.head, "HEAD")


def test_a_detached_head_that_both_moved_meets(sides: Sides) -> None:
    for side in sides:
        git(side, "switch", "-q", "--detach")
    before = rev(sides.base, "HEAD")
    ours, head = commit(sides.ours, "ours", b="1"), commit(sides.head, "head", c="1")
    result = merge(sides)
    assert result.meetings == (RefMeeting(b"HEAD", before.encode(), ours.encode(), head.encode()),)
    git(sides.head, "switch", "-q", "--detach", before)
    git(sides.head, "branch", "x")
    assert merge(sides).refs[b"HEAD"] == RefValue(ours.encode())


def test_a_branch_that_the_result_has_checked_out_is_not_deleted(sides: Sides) -> None:
    git(sides.ours, "switch", "-q", "topic")
    git(sides.head, "branch", "-D", "topic")
    result = merge(sides)
    assert result.refs[b"HEAD"] == RefValue(None, b"refs/heads/topic")
    assert RefNotice("ref_kept", b"refs/heads/topic", "ours") in result.notices
    assert written(sides, result)[b"refs/heads/topic"] == rev(sides.base, "topic").encode()


def test_ids_that_no_ref_of_the_result_has_are_listed(sides: Sides) -> None:
    git(sides.head, "commit", "-q", "--amend", "-m", "amended")
    git(sides.ours, "branch", "side", "topic")
    git(sides.ours, "update-ref", "refs/remotes/origin/main", "main")
    result = merge(sides)
    old = rev(sides.base, "main").encode()
    assert result.refs[b"refs/remotes/origin/main"] == RefValue(old) and result.lost == {}
    git(sides.ours, "update-ref", "-d", "refs/remotes/origin/main")
    assert merge(sides).lost == {old: b"refs/heads/main"}


def test_heads_of_linked_worktrees_are_merged_alike(sides: Sides) -> None:
    git(sides.base, "worktree", "add", "-q", "--detach", "wt", "main")
    sides = renewed(sides)
    for side in (sides.ours, sides.head):
        (side / "wt/.git").write_text(f"gitdir: {side}/.git/worktrees/wt\n")
        (side / ".git/worktrees/wt/gitdir").write_text(f"{side}/wt/.git\n")
    ours = commit(sides.ours / "wt", "in the worktree", w="1")
    commit(sides.head, "head", h="1")
    assert merge(sides).refs[b"worktrees/wt/HEAD"] == RefValue(ours.encode())
    head = commit(sides.head / "wt", "there too", v="1")
    (meeting,) = merge(sides).meetings
    assert meeting[0] == b"worktrees/wt/HEAD" and meeting[2:] == (ours.encode(), head.encode())
