"""Logs of refs: merged by lines, and read by git afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerstack.git.object_format import GitRefused
from layerstack.git.reflog import LOG_MAX, ids_of, lines_of, log_line, log_path, merge_log, ref_of_log
from tests.git_trees import git, repository
from tests.layerstack.git.three_sides import commit, rev, three_of

ME = b"Ada <ada@example.org> 1700000000 +0100"
A, B, C, D = (b"%x" % n * 40 for n in (10, 11, 12, 13))


def line(new: bytes, message: str, old: bytes = A) -> bytes:
    return log_line(old, new, ME, message)


def test_lines_that_one_side_removed_stay_removed_and_ours_follow_the_heads() -> None:
    base = line(A, "1") + line(B, "2") + line(C, "3")
    ours = line(A, "1") + line(C, "3", A) + line(D, "ours")
    head = line(B, "2") + line(C, "3") + line(A, "head")
    assert merge_log(base, ours, head) == line(C, "3") + line(A, "head") + line(D, "ours")
    assert merge_log(base, head, ours) == line(C, "3", A) + line(D, "ours") + line(A, "head")


def test_a_line_that_both_added_is_there_once_and_a_repeated_one_as_often_as_it_is() -> None:
    base = line(A, "same") * 2
    ours = base + line(B, "both") + line(A, "same")
    head = base + line(B, "both")
    assert merge_log(base, ours, head) == base + line(B, "both") + line(A, "same")
    assert merge_log(base, base[: len(base) // 2], head) == line(A, "same") + line(B, "both")


def test_one_changed_side_is_taken_and_what_is_no_line_is_left_out() -> None:
    base = line(A, "1")
    assert merge_log(base, base, base + line(B, "2")) == base + line(B, "2")
    assert merge_log(None, None, base) == base
    assert lines_of(b"garbage\n" + base + b"cut") == [base]
    assert ids_of(base + log_line(None, B, ME, "x")) == {A, B}


def test_the_log_of_a_repository_that_git_shortened_is_merged_and_read(tmp_path: Path) -> None:
    base = repository(tmp_path / "base")
    for n in range(4):
        commit(base, str(n), a=str(n))
    sides = three_of(base)
    git(sides.ours, "reflog", "delete", "--rewrite", "main@{1}")
    commit(sides.head, "more", a="more")
    merged = merge_log(*(sides.log(side, "refs/heads/main") for side in sides))
    (sides.head / ".git/logs/refs/heads/main").write_bytes(merged)
    shown = git(sides.head, "reflog", "show", "--format=%gs", "main").splitlines()
    assert shown == [b"commit: more", b"commit: 3", b"commit: 1", b"commit (initial): 0"]
    assert rev(sides.head, "main@{0}") == rev(sides.head, "main")
    git(sides.head, "fsck", "--strict")


def test_a_message_is_one_line() -> None:
    assert log_line(None, B, ME, "a\nb\tc  d\n").endswith(b"\ta b c d\n")


def test_the_file_of_a_log_and_its_ref_are_found_from_each_other() -> None:
    for name, path in (
        (b"HEAD", "logs/HEAD"),
        (b"refs/heads/a/b", "logs/refs/heads/a/b"),
        (b"worktrees/w/HEAD", "worktrees/w/logs/HEAD"),
        (b"worktrees/w/refs/bisect/bad", "worktrees/w/logs/refs/bisect/bad"),
    ):
        assert log_path(name) == path and ref_of_log(path) == name
    assert ref_of_log("worktrees/w/HEAD") is None


def test_a_log_beyond_the_limit_is_refused_with_its_size() -> None:
    with pytest.raises(GitRefused, match="reflog expire"):
        merge_log(b"", b"x" * (LOG_MAX + 1), line(A, "1"))
