"""Copies of workspaces whose repository lies elsewhere, or in which git works during the copy. The expected
value is what git says in the workspace itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.workspace import base, tree_index
from tests.eos_mcp.base_cache import cache as cache
from tests.git_trees import git

OLD_NS = 1_600_000_000_123_456_789
LOOKS = (
    ("status", "--porcelain", "--branch"),
    ("log", "--all", "--format=%H %d %s"),
    ("for-each-ref",),
    ("stash", "list"),
    ("rev-parse", "HEAD", "HEAD@{1}"),
    ("diff", "--cached", "--stat"),
)

CHANGES = """
import os, sys
folder, n = sys.argv[1], 0
head = open(f"{folder}/main").read()
while True:
    n += 1
    with open(f"{folder}/n{n}", "w") as file:
        file.write(head)
    if n == 1:
        print("works", flush=True)
    if n > 9:
        os.unlink(f"{folder}/n{n - 9}")
"""
"""Adds and removes refs in a directory until it is killed."""


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A repository with two commits, a packed and a loose branch, and a stash."""
    root = tmp_path / "main"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    commit(root, "a")
    git(root, "branch", "packed")
    git(root, "pack-refs", "--all")
    git(root, "repack", "-adq")
    commit(root, "b")
    git(root, "branch", "loose")
    (root / "a").write_text("stashed\n")
    git(root, "stash", "-q")
    return root


def commit(root: Path, name: str) -> None:
    (root / name).write_text(f"{name}\n")
    git(root, "add", name)
    git(root, "commit", "-qm", name)


def agree(copy: str, workspace: Path) -> None:
    """What git says of the copy is what it says of the workspace, and nothing is missing."""
    quiet = ("-c", "safe.directory=*", "-c", "core.checkStat=minimal", "-c", "core.trustctime=false")
    for words in LOOKS:
        assert git(copy, *quiet, *words) == git(workspace, *words), words
    assert git(copy, *quiet, "fsck", "--full", "--strict", "--no-dangling") == b""
    assert os.path.isdir(f"{copy}/.git") and not os.path.exists(f"{copy}/.git/objects/info/alternates")


def unfinished(root: Path) -> None:
    """Leave one file staged, one edited, one new."""
    commit(root, "own")
    commit(root, "own2")
    (root / "own").write_text("staged\n")
    git(root, "add", "own")
    (root / "a").write_text("edited\n")
    (root / "new").write_text("new\n")


def test_a_linked_worktree_comes_with_its_repository(main: Path, cache: Path, tmp_path: Path) -> None:
    tree = tmp_path / "wt"
    git(main, "worktree", "add", "-q", "-b", "work", str(tree))
    unfinished(tree)
    made = base.prepare(str(tree), str(cache))
    agree(made.source, tree)
    assert git(made.source, "worktree", "list").count(b"\n") == 1, "other worktrees are not there"
    assert [w for w in made.warnings if str(main) in w] == list(made.warnings) != []
    assert not tree_index.look(made.source).entries.keys() & {".git/gitdir", ".git/commondir"}
    again = base.prepare(str(tree), str(cache))
    assert again == made._replace(reused=True)
    commit(main, "elsewhere")  # a ref of the common directory
    agree(base.prepare(str(tree), str(cache)).source, tree)
    commit(tree, "here")
    agree(base.prepare(str(tree), str(cache)).source, tree)
    assert (tree / ".git").is_file()


def test_a_worktree_of_a_bare_repository_is_a_work_tree_in_the_copy(
    main: Path, cache: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(main), "bare.git")
    tree = tmp_path / "wt"
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tree), "loose")
    unfinished(tree)
    made = base.prepare(str(tree), str(cache))
    agree(made.source, tree)
    git(made.source, "-c", "user.name=x", "commit", "-qm", "in the copy")
    assert base.usable(str(cache), made.root_hash)
    assert tree_index.tree_hash(base.prepare(str(tree), str(cache)).source), "the appended lines count"


def test_the_hash_of_a_copy_is_that_of_its_files(main: Path, cache: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(main), "bare.git")
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "wt"), "loose")
    made = base.prepare(str(tmp_path / "wt"), str(cache))
    assert "bare = false" in Path(made.source, ".git/config").read_text()
    assert tree_index.tree_hash(made.source) == made.root_hash


def test_a_submodule_and_those_in_a_linked_worktree_are_repositories(
    main: Path, cache: Path, tmp_path: Path
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q", "-b", "main")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(main), "lib")
    git(outer, "commit", "-qm", "with lib")
    unfinished(outer / "lib")
    made = base.prepare(str(outer / "lib"), str(cache))
    agree(made.source, outer / "lib")
    whole = base.prepare(str(outer), str(cache))
    assert os.path.isfile(f"{whole.source}/lib/.git"), "it names a directory of the copy"
    git(outer, "worktree", "add", "-q", str(tmp_path / "wt"))
    init = ("submodule", "update", "-q", "--init")
    git(tmp_path / "wt", "-c", "protocol.file.allow=always", *init)
    unfinished(tmp_path / "wt/lib")
    linked = base.prepare(str(tmp_path / "wt"), str(cache))
    agree(linked.source, tmp_path / "wt")
    agree(f"{linked.source}/lib", tmp_path / "wt/lib")


def test_borrowed_objects_become_own(main: Path, cache: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--shared", "main", "middle")
    commit(tmp_path / "middle", "c")
    git(tmp_path, "clone", "-q", "--shared", "middle", "top")
    git(tmp_path / "top", "commit-graph", "write")
    unfinished(tmp_path / "top")
    made = base.prepare(str(tmp_path / "top"), str(cache))
    git(tmp_path, "-C", "top", "config", "user.name", "Ada")
    os.rename(main, tmp_path / "moved")
    assert git(made.source, "-c", "safe.directory=*", "fsck", "--full", "--no-dangling") == b""
    os.rename(tmp_path / "moved", main)
    agree(base.prepare(str(tmp_path / "top"), str(cache)).source, tmp_path / "top")
    assert [w.rpartition(" ")[2] for w in made.warnings] == [
        f"{tmp_path}/middle/.git/objects",
        f"{main}/.git/objects",
    ]
    refused = base.prepare(str(tmp_path / "top"), str(cache), refusal=lambda at, named: f"{at} {named}")
    assert refused.warnings == (
        f"objects that .git borrows are missing in the sandbox: {tmp_path}/middle/.git/objects False",
    )


def test_a_file_that_names_a_directory_which_does_not_name_it_copies_nothing(
    main: Path, cache: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "ws"
    tree.mkdir()
    for target in (main / ".git", tmp_path, tmp_path / "missing"):
        (tree / ".git").write_text(f"gitdir: {target}\n")
        made = base.prepare(str(tree), str(cache))
        assert os.path.isfile(f"{made.source}/.git")
        (warning,) = made.warnings
        assert str(target) in warning and warning.startswith("git does not work in the sandbox")
    (tree / ".git").write_text("gitdir")
    assert base.prepare(str(tree), str(cache)).warnings == ()


def test_a_moved_worktree_is_repaired_as_the_warning_says(main: Path, cache: Path, tmp_path: Path) -> None:
    git(main, "worktree", "add", "-q", str(tmp_path / "wt"))
    os.rename(tmp_path / "wt", tmp_path / "moved")
    (warning,) = base.prepare(str(tmp_path / "moved"), str(cache)).warnings
    assert "git worktree repair" in warning
    git(tmp_path / "moved", "worktree", "repair")
    agree(base.prepare(str(tmp_path / "moved"), str(cache)).source, tmp_path / "moved")


def test_a_directory_inside_a_repository_says_where_git_is(main: Path, cache: Path) -> None:
    (main / "sub/deep").mkdir(parents=True)
    (main / "sub/deep/f").write_text("f\n")
    (warning,) = base.prepare(str(main / "sub/deep"), str(cache)).warnings
    assert f"{main}/.git" in warning and f"choose {main}" in warning
    assert base.prepare(str(main), str(cache)).warnings == ()


def test_locks_and_half_written_files_of_git_stay_where_they_are(main: Path, cache: Path) -> None:
    made = base.prepare(str(main), str(cache))
    for name in (".git/index.lock", ".git/gc.pid", ".git/objects/pack/tmp_pack_x", ".git/refs/heads/m.lock"):
        (main / name).write_text("x")
    kept = (main / "yarn.lock", main / ".git/hooks/tmp_x")
    for path in kept:
        path.write_text("x")
    again = base.prepare(str(main), str(cache))
    added = tree_index.look(again.source).entries.keys() - tree_index.look(made.source).entries.keys()
    assert added == {"yarn.lock", ".git/hooks/tmp_x"}
    agree(again.source, main)


def test_a_repository_that_is_repacked_during_the_copy_is_copied_whole(main: Path, cache: Path) -> None:
    """Seen at commit 83e28fb: `files keep changing during the copy: special=0 [] unstable=0 []`."""
    started, done = threading.Event(), threading.Event()

    def collect() -> None:
        for n in range(15):
            git(main, "commit", "-qm", str(n), "--allow-empty")
            started.set()
            git(main, "repack", "-Adfq")
            git(main, "pack-refs", "--all")
        done.set()

    working = threading.Thread(target=collect)
    working.start()
    try:
        assert started.wait(60)
        before = done.is_set()
        made = base.prepare(str(main), str(cache))
    finally:
        working.join()
    assert not before
    assert git(made.source, "-c", "safe.directory=*", "fsck", "--full", "--strict", "--no-dangling") == b""
    assert int(git(made.source, "-c", "safe.directory=*", "rev-list", "--count", "HEAD")) >= 3


def test_a_workspace_that_keeps_changing_is_refused_by_the_paths(
    main: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "GIT_WAIT_S", 0.2)
    said: list[str] = []
    error: OperationError | None = None
    argv = [sys.executable, "-c", CHANGES, str(main / ".git/refs/heads")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as changing:
        try:
            assert changing.stdout is not None and changing.stdout.readline() == b"works\n"
            for _ in range(500):  # a busy machine may let the process wait while the copy is made
                try:
                    base.prepare(str(main), str(cache), progress=said.append)
                except OperationError as found:
                    error = found
                    break
        finally:
            changing.kill()
    assert error is not None and error.details["reason"] == "workspace_changing"
    assert any(path.startswith(".git/refs/heads/n") for path in error.details["unstable"])
    assert "unstable=0" not in error.message
    assert any(line.startswith("git works in") for line in said)
    assert [name for name in os.listdir(cache) if name.startswith(".building")] == []


def test_a_worktree_whose_refs_are_a_reftable_says_so(main: Path, cache: Path, tmp_path: Path) -> None:
    git(main, "worktree", "add", "-q", str(tmp_path / "wt"))
    (main / ".git/reftable").mkdir()
    (warning,) = base.prepare(str(tmp_path / "wt"), str(cache)).warnings
    assert "reftable" in warning
    assert subprocess.run(["test", "-f", f"{tmp_path}/wt/.git"], check=False).returncode == 0
