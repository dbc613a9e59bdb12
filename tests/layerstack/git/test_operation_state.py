"""Operations under way, made by the real git, and the classes of the files in a repository."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from layerstack.git import entry_class
from layerstack.git.entry_class import class_of, split_worktree
from layerstack.git.git_index import GitIndex
from layerstack.git.object_format import SHA1
from layerstack.git.operation_state import GitOperation, operations
from layerstack.tree.state import DIRECTORY, FILE
from tests.git_trees import QUIET, DiskTree, git, repository
from tests.layerstack.git.three_sides import ROOT, commit, write


def split(folder: Path) -> None:
    """Two branches that do not merge; `main` is checked out."""
    repository(folder)
    commit(folder, "base", a="base\n")
    git(folder, "branch", "other")
    commit(folder, "main", a="main\n")
    git(folder, "switch", "-q", "other")
    commit(folder, "other", a="other\n")
    git(folder, "format-patch", "-1", "-o", ".git/patch")
    git(folder, "switch", "-q", "main")


def fail(folder: Path, *words: str) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        git(folder, *words)


def stash(folder: Path) -> None:
    write(folder, a="edited\n")
    git(folder, "stash")
    commit(folder, "more", a="more\n")
    fail(folder, "stash", "pop")


def notes(folder: Path) -> None:
    git(folder, "notes", "add", "-m", "one")
    git(folder, "notes", "--ref", "x", "add", "-m", "two")
    fail(folder, "notes", "merge", "x")


def bisect(folder: Path) -> None:
    git(folder, "bisect", "start")
    git(folder, "bisect", "bad")


START: dict[str, Callable[[Path], None]] = {
    "merge": lambda folder: fail(folder, "merge", "other"),
    "rebase": lambda folder: fail(folder, "rebase", "other"),
    "rebase --apply": lambda folder: fail(folder, "rebase", "--apply", "other"),
    "am": lambda folder: fail(folder, "am", "-3", *map(str, (folder / ".git/patch").iterdir())),
    "cherry-pick": lambda folder: fail(folder, "cherry-pick", "other"),
    "revert": lambda folder: fail(folder, "revert", "--no-edit", "HEAD~1"),
    "bisect": bisect,
    "notes merge": notes,
    "unmerged paths": stash,
}


def under_way(folder: Path) -> tuple[GitOperation, ...]:
    index = GitIndex.parse((folder / ".git/index").read_bytes(), SHA1)
    return operations(ROOT, DiskTree(folder), {"": sorted(index.unmerged)})


@pytest.mark.parametrize("which", START)
def test_an_operation_is_named_and_the_command_that_is_said_ends_it(tmp_path: Path, which: str) -> None:
    folder = tmp_path / "r"
    split(folder)
    assert under_way(folder) == ()
    START[which](folder)
    found = under_way(folder)
    assert [one.name for one in found] == [which.partition(" -")[0]]
    program, *words = found[0].abort.split()
    assert program == "git"
    git(folder, *words)
    assert under_way(folder) == ()


@pytest.mark.parametrize("which", ["merge", "rebase", "cherry-pick", "unmerged paths"])
def test_the_command_that_finishes_an_operation_ends_it_too(tmp_path: Path, which: str) -> None:
    folder = tmp_path / "r"
    split(folder)
    START[which](folder)
    finish = under_way(folder)[0].finish
    if which != "unmerged paths":
        write(folder, a="resolved\n")
        git(folder, "add", "a")
    git(folder, *finish.split()[1:], env={"GIT_EDITOR": "true"})
    assert under_way(folder) == ()


def test_a_sequence_that_stopped_between_two_commits_is_under_way(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    split(folder)
    commit(folder, "extra", b="b")
    git(folder, "switch", "-q", "other")
    fail(folder, "cherry-pick", "main~1", "main")
    write(folder, a="resolved\n")
    git(folder, "add", "a")
    git(folder, "commit", "-qm", "resolved")
    assert not (folder / ".git/CHERRY_PICK_HEAD").exists()
    assert [one.name for one in under_way(folder)] == ["cherry-pick"]


def test_operations_of_a_linked_worktree_are_named_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    split(folder)
    git(folder, "worktree", "add", "-q", "wt", "other")
    fail(folder / "wt", "merge", "main")
    (found,) = under_way(folder)
    assert (found.name, found.worktree) == ("merge", "wt")
    assert found.text == "merge in the worktree wt: `git merge --continue` or `git merge --abort`"
    git(folder / "wt", "merge", "--abort")
    assert under_way(folder) == ()


def test_odd_names_are_quoted_for_a_shell(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    (one,) = operations(ROOT, DiskTree(folder), {"": [b"a b'c; $x"] * 30})
    words = subprocess.run(
        ["sh", "-c", one.finish.replace("git add", "printf '%s\\n'")],
        capture_output=True,
        check=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **QUIET},
    ).stdout.splitlines()
    assert words[:20] == [b"a b'c; $x"] * 20 and one.finish.endswith(" and 10 more")


CLASSES = {
    entry_class.OBJECT: [
        "objects/ab/cd",
        "objects/pack/pack-1.pack",
        "objects/pack/pack-1.idx",
        "objects/info/alternates",
    ],
    entry_class.DERIVED: [
        "objects/info/commit-graph",
        "objects/info/commit-graphs/commit-graph-chain",
        "objects/pack/multi-pack-index",
        "objects/pack/multi-pack-index-12.bitmap",
        "objects/info/packs",
        "info/refs",
    ],
    entry_class.REF: ["refs/heads/main", "refs/stash", "worktrees/a/refs/bisect/bad"],
    entry_class.PACKED_REFS: ["packed-refs"],
    entry_class.HEAD: ["HEAD", "worktrees/a/HEAD"],
    entry_class.LOG: ["logs/HEAD", "logs/refs/heads/main", "worktrees/a/logs/HEAD"],
    entry_class.INDEX: ["index", "sharedindex.0123", "worktrees/a/index"],
    entry_class.CONFIG: ["config", "config.worktree", "worktrees/a/config.worktree"],
    entry_class.LAST_WRITER: [
        "COMMIT_EDITMSG",
        "ORIG_HEAD",
        "worktrees/a/ORIG_HEAD",
        "NOTES_EDITMSG",
        "gc.log",
    ],
    entry_class.OPERATION: [
        "MERGE_HEAD",
        "rebase-merge/done",
        "rebase-apply",
        "BISECT_LOG",
        "NOTES_MERGE_WORKTREE/x",
    ],
    entry_class.JUNK: [
        "index.lock",
        "refs/heads/main.lock",
        "gc.pid",
        "objects/ab/tmp_obj_x",
        "objects/pack/tmp_pack_x",
    ],
    entry_class.ORDINARY: [
        "info/exclude",
        "hooks/a.lock",
        "shallow",
        "description",
        "worktrees/a/gitdir",
        "lfs/objects/x",
    ],
}


def test_each_file_has_the_class_by_which_it_is_merged() -> None:
    for expected, paths in CLASSES.items():
        for path in paths:
            assert class_of(path) == expected, path
    assert class_of("objects/pack/tmp_objdir-1", DIRECTORY) == entry_class.JUNK
    assert split_worktree("worktrees/a/refs/x") == ("worktrees/a/", "refs/x")
    assert split_worktree("worktrees/a") == ("", "worktrees/a")


def test_the_files_of_a_repository_at_work_all_have_a_class_of_git(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    split(folder)
    git(folder, "tag", "v1")
    git(folder, "gc", "-q")
    git(folder, "commit-graph", "write")
    git(folder, "multi-pack-index", "write")
    git(folder, "worktree", "add", "-q", "wt", "other")
    fail(folder, "merge", "other")
    rest = set[str]()
    for path in (folder / ".git").rglob("*"):
        below = path.relative_to(folder / ".git").as_posix()
        if path.is_file() and class_of(below, FILE) == entry_class.ORDINARY:
            rest.add(below.partition("/")[0])
    assert rest == {"description", "hooks", "info", "patch", "worktrees"}
