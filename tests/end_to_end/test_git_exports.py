"""export_changes --format git: publications and agents' commits arrive at a ref of a person's repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cli_user import Desk, Desks, Sandbox

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

QUIET = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


def git(where: Path | str, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", *words],
        cwd=where,
        env=QUIET,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


def given(desk: Desk) -> Path:
    """Make the workspace a repository with one commit; all of it is the person's."""
    root = desk.workspace
    desk.give("w/.gitignore", "*.log\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def export(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    return sandbox.desk.do("manager", "export_changes", "--sandbox-id", sandbox.id, "--format", "git", *words)


def subjects(root: Path, ref: str) -> list[str]:
    return git(root, "log", "--format=%an: %s", ref).splitlines()


def test_a_publication_becomes_a_commit_of_its_agent(shared_desk: Desks) -> None:
    desk = shared_desk("root")
    root = given(desk)
    first = git(root, "rev-parse", "HEAD")
    sandbox = desk.create("host")
    sandbox.do("exec_command", "echo one > a.txt; echo two > new; echo x > x.log", "--agent", "alice")
    done = export(sandbox)
    ref = f"refs/heads/eos/{sandbox.id}"
    assert done["ref"] == ref and done["parent"] == first
    assert [(row["author"], row["paths"]) for row in done["commits"]] == [("alice", ["a.txt", "new"])]
    assert git(root, "rev-parse", ref) == done["head"] == done["commits"][0]["oid"]
    assert subjects(root, ref) == ["alice: change a.txt, new", "Ada: first"]
    assert git(root, "show", f"{ref}:a.txt") == "one"
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "rev-parse", "HEAD") == first
    git(root, "fsck", "--full", "--strict")
    assert export(sandbox)["commits"] == []
