"""`create_sandbox` with git_ref: a clean checkout, as `git clone` and `git switch` would make it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.workspace import base, tree_index
from tests.eos_mcp.base_cache import cache as cache
from tests.git_trees import git

QUIET = ("-c", "safe.directory=*", "-c", "core.checkStat=minimal", "-c", "core.trustctime=false")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, a tag, attributes, a link; and a working directory in the middle of a merge."""
    root = tmp_path / "r"
    (root / "d").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / ".gitattributes").write_text("*.crlf text eol=crlf\n*.up filter=up\n")
    (root / "d/a.crlf").write_bytes(b"one\r\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("d/a.crlf")
    (root / "x.up").write_text("x\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    git(root, "tag", "-a", "v1", "-m", "v1")
    (root / "run").write_text("#!/bin/sh\necho two\n")
    git(root, "commit", "-qam", "second")
    git(root, "switch", "-q", "-c", "other", "v1")
    (root / "run").write_text("#!/bin/sh\necho other\n")
    git(root, "commit", "-qam", "other")
    git(root, "switch", "-q", "main")
    subprocess.run(["git", "merge", "other"], cwd=root, capture_output=True, check=False)
    assert (root / ".git/MERGE_HEAD").exists()
    (root / "untracked").write_text("u\n")
    return root


def looks(copy: str, *words: str) -> str:
    return git(copy, *QUIET, *words).decode().strip()


@pytest.mark.parametrize(
    ("ref", "head"),
    [
        ("other", "refs/heads/other"),
        ("main", "refs/heads/main"),
        ("v1", ""),
        ("main~1", ""),
        ("refs/tags/v1", ""),
    ],
)
def test_the_copy_is_clean_and_at_the_ref(repository: Path, cache: Path, ref: str, head: str) -> None:
    before = tree_index.look(str(repository)).entries
    made = base.prepare(str(repository), str(cache), git_ref=ref)
    assert tree_index.look(str(repository)).entries == before, "the workspace is not touched"
    assert looks(made.source, "status", "--porcelain") == ""
    assert looks(made.source, "rev-parse", "HEAD") == looks(str(repository), "rev-parse", f"{ref}^{{commit}}")
    assert looks(made.source, "rev-parse", "--symbolic-full-name", "HEAD") == (head or "HEAD")
    assert looks(made.source, "for-each-ref") == looks(str(repository), "for-each-ref")
    assert looks(made.source, "fsck", "--full", "--strict", "--no-dangling") == ""
    twin = repository.parent / "twin"
    git(repository.parent, "clone", "-q", "--no-checkout", str(repository), str(twin))
    git(twin, "checkout", "-q", looks(made.source, "rev-parse", "HEAD"))
    files = {p for p in tree_index.look(str(twin)).entries if not f"{p}/".startswith(".git/")}
    assert files == {p for p in tree_index.look(made.source).entries if not f"{p}/".startswith(".git/")}
    for path in files:
        ours, theirs = Path(made.source, path), twin / path
        assert os.lstat(ours).st_mode == os.lstat(theirs).st_mode or ours.is_dir(), path
        if ours.is_file():
            assert ours.read_bytes() == theirs.read_bytes()
    assert made.warnings[0].startswith(f"a checkout of {ref}, commit ")
    assert tree_index.tree_hash(made.source) == made.root_hash and not made.reused
    assert not [name for name in os.listdir(f"{made.source}/.git") if name.startswith("MERGE")]


def test_nothing_that_the_repository_names_runs(repository: Path, cache: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        hook = repository / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        hook.chmod(0o755)
    touch = f"sh -c 'echo filter >> {ran}; cat'"
    for key in ("smudge", "clean"):
        git(repository, "config", f"filter.up.{key}", touch)
    git(repository, "config", "filter.up.required", "true")
    git(repository, "config", "filter.a.b=c.process", f"touch {ran}")
    git(repository, "config", "core.fsmonitor", f"touch {ran}")
    made = base.prepare(str(repository), str(cache), git_ref="main")
    assert Path(made.source, "x.up").read_text() == "x\n" and not ran.exists()
    git(repository, "checkout", "-qf", "other")
    assert ran.exists(), "they run in the workspace"


def test_the_present_state_and_a_checkout_are_different_bases(repository: Path, cache: Path) -> None:
    now = base.prepare(str(repository), str(cache))
    before = tree_index.tree_hash(now.source)
    made = base.prepare(str(repository), str(cache), git_ref="v1")
    assert made.root_hash != now.root_hash and tree_index.tree_hash(now.source) == before
    again = base.prepare(str(repository), str(cache))
    assert again.root_hash == now.root_hash and os.path.exists(f"{again.source}/untracked")


def test_a_linked_worktree_with_a_submodule_is_checked_out(
    repository: Path, cache: Path, tmp_path: Path
) -> None:
    git(repository, "merge", "--abort")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", f"{repository}/.git", "sub")
    git(repository, "commit", "-qm", "with sub")
    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "wt"))
    made = base.prepare(str(tmp_path / "wt"), str(cache), git_ref="main")
    assert looks(made.source, "status", "--porcelain") == ""
    assert looks(made.source, "rev-parse", "--symbolic-full-name", "HEAD") == "refs/heads/main"
    assert "a submodule, not checked out: sub" in made.warnings


@pytest.mark.parametrize("ref", ["missing", "-n1", "--all", "main:run", "", "HEAD^{tree}", "a b", "x" * 5000])
def test_a_ref_without_a_commit_is_refused(repository: Path, cache: Path, ref: str) -> None:
    with pytest.raises(OperationError) as caught:
        base.prepare(str(repository), str(cache), git_ref=ref)
    assert caught.value.details["reason"] == "git_ref_not_found" and caught.value.kind == "invalid_request"
    assert [name for name in os.listdir(cache) if name.startswith(".building")] == []


def test_a_directory_without_a_repository_and_a_machine_without_git_are_refused(
    repository: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OperationError) as caught:
        base.prepare(str(repository / "d"), str(cache), git_ref="main")
    assert caught.value.details["reason"] == "not_a_repository" and str(repository) in caught.value.message
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperationError) as caught:
        base.prepare(str(repository), str(cache), git_ref="main")
    assert caught.value.details["reason"] == "git_missing"
