"""export_changes --format git: publications and agents' commits arrive at a ref of a person's repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import git_trees
from tests.end_to_end.cli_user import Desk, Desks, Sandbox

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]


def git(where: Path | str, *words: str) -> str:
    return os.fsdecode(git_trees.git(where, "-c", "safe.directory=*", *words)).rstrip("\n")


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


def listed(root: Path, tree: str) -> dict[str, str]:
    """List the files of a tree: path -> mode, kind and id."""
    rows = (row.split("\t", 1) for row in git(root, "ls-tree", "-r", "-z", tree).split("\0") if row)
    return {path: entry for entry, path in rows}


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


def test_agents_commits_arrive_as_they_are_and_the_rest_follows(shared_desk: Desks) -> None:
    desk = shared_desk("root")
    root = given(desk)
    first = git(root, "rev-parse", "HEAD")
    desk.give("w/a.txt", "dirty\n")
    desk.give("w/loose", "untracked\n")
    desk.give("w/ignored.log", "left out\n")
    sandbox = desk.create("host")
    commit = "git -c user.name=bob -c user.email=bob@x.org commit -q"
    sandbox.do("exec_command", f"echo c > c; git add c; {commit} -m 'add c'", "--agent", "bob")
    sandbox.do("exec_command", "echo d > dd", "--agent", "carol", "--message", "Add d\n\nBecause.")
    sandbox.do("file_write", "--path", "e", "--content", "e\n", "--agent", "dan", "--message", "Add e")
    status, reflog = git(root, "status", "--porcelain"), git(root, "reflog")
    dry = export(sandbox, "--dry-run")
    ref = f"refs/heads/eos/{sandbox.id}"
    assert git(root, "for-each-ref", ref) == ""
    done = export(sandbox)
    assert dry["commits"] == done["commits"] and dry["head"] == done["head"] and dry["dry_run"]
    assert subjects(root, ref) == [
        "dan: Add e",
        "carol: Add d",
        "eos: workspace as it was at creation",
        "bob: add c",
        "Ada: first",
    ]
    assert git(root, "show", "-s", "--format=%ae", ref) == "agent@eos.invalid"
    body = git(root, "show", "-s", "--format=%B", f"{ref}~1")
    assert body.startswith("Add d\n\nBecause.\n\nEos-Sandbox: ")
    trailers = git(root, "show", "-s", "--format=%(trailers:only,unfold)", f"{ref}~1").splitlines()
    assert [line.partition(":")[0] for line in trailers if line] == [
        "Eos-Sandbox",
        "Eos-Session",
        "Eos-Layer",
        "Eos-Request",
    ]
    assert git(root, "diff", "--name-status", f"{ref}~3", f"{ref}~2") == "M\ta.txt\nA\tloose"
    names = git(root, "ls-tree", "-r", "--name-only", ref).splitlines()
    assert names == [".gitignore", ".id", "a.txt", "c", "d/b.txt", "dd", "e", "loose"]
    assert (git(root, "status", "--porcelain"), git(root, "reflog"), git(root, "rev-parse", "HEAD")) == (
        status,
        reflog,
        first,
    )
    # again: nothing; then only what is new, behind what is there
    again = export(sandbox)
    assert again["commits"] == [] and again["head"] == done["head"]
    sandbox.do("exec_command", "echo more >> e", "--agent", "erin")
    assert [row["author"] for row in export(sandbox)["commits"]] == ["erin"]
    sandbox.do("exec_command", f"git add -A; {commit} -m 'all of it'; echo last > last", "--agent", "bob")
    third = export(sandbox)
    assert git(root, "merge-base", "--is-ancestor", done["head"], ref) == ""
    assert [row["subject"] for row in third["commits"]] == [
        "all of it",
        "merge the agents' commits with the work exported before",
        "change last",
    ]
    assert export(sandbox)["commits"] == []
    git(root, "fsck", "--full", "--strict")
    found = [row.get("message") for row in sandbox.do("list_versions")["versions"]]
    assert found[2:5] == ["Add e", "Add d\n\nBecause.", None]


def refused(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    """Return the details of the error."""
    words = ("--sandbox-id", sandbox.id, "--format", "git", *words)
    error = sandbox.desk.refused("manager", "export_changes", *words)
    details: dict[str, Any] = error["details"]
    return details


def test_what_is_refused_changes_nothing(shared_desk: Desks, tmp_path: Path) -> None:
    desk = shared_desk("root")
    root = given(desk)
    first = git(root, "rev-parse", "HEAD")
    sandbox = desk.create("host")
    sandbox.do("exec_command", "echo one > a.txt", "--agent", "alice")
    ref = f"refs/heads/eos/{sandbox.id}"
    before = git(root, "for-each-ref")
    assert refused(sandbox, "--ref", "refs/heads/main")["reason"] == "ref_checked_out"
    for name in ("main", "refs/heads/a..b", "HEAD"):
        assert refused(sandbox, "--ref", name)["reason"] == "bad_ref"
    other = tmp_path / "other"
    other.mkdir()
    assert refused(sandbox, "--dest", str(other))["reason"] == "not_a_repository"
    git(other, "init", "-q")
    found = refused(sandbox, "--dest", str(other))
    assert (found["reason"], found["parent"]) == ("parent_missing", first)
    assert git(root, "for-each-ref") == before and not os.path.exists(other / ".git/refs/heads/eos")
    head = export(sandbox)["head"]
    git(root, "update-ref", ref, first)  # an ancestor of the agents' tip: the export may go on from there
    sandbox.do("exec_command", "echo two > a.txt", "--agent", "alice")
    assert [row["subject"] for row in export(sandbox)["commits"]] == ["change a.txt"] * 2
    mine = git(root, "commit-tree", "-m", "mine", "-p", head, f"{first}^{{tree}}")
    git(root, "update-ref", ref, mine)
    found = refused(sandbox)
    assert found["reason"] == "ref_moved"
    assert found["found"] == mine and found["expected"] not in (None, mine)
    assert git(root, "rev-parse", ref) == mine


def test_kinds_of_entries_and_the_directory_export_agree(shared_desk: Desks, tmp_path: Path) -> None:
    desk = shared_desk("root")
    root = given(desk)
    for name in ("file", "tree/one", "tree/sub/two", "gone"):
        desk.give(f"w/{name}", f"{name}\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "second")
    # nothing of the destination runs
    for hook in ("reference-transaction", "post-update", "update", "pre-receive"):
        path = root / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        path.chmod(0o755)
    sandbox = desk.create("host")
    git(root, "config", "core.fsmonitor", f"touch {tmp_path}/ran; false")
    git(root, "config", "filter.lfs.clean", f"touch {tmp_path}/ran; cat")
    edits = """
    chmod 755 a.txt; ln -s a.txt link; rm gone; mkdir -p empty/deep
    rm file; mkdir file; echo in > file/in
    rm -r tree; echo flat > tree
    printf 'x\\r\\n' > crlf; echo '*.txt2 text' > .gitattributes; printf 'y\\r\\n' > n.txt2
    touch "$(printf 'odd \\377 name')" 'quote"d' ; echo x > .log.log; mkdir .GIT; echo no > .GIT/config
    head -c 300000 /dev/urandom > big
    git init -q nested; cd nested; echo n > n; git add n
    git -c user.name=n -c user.email=n@x commit -qm n
    """
    sandbox.do("exec_command", edits, "--agent", "alice")
    done = export(sandbox)
    ref = done["ref"]
    assert done["empty_directories"] == ["empty/deep"]
    assert done["left_out"]["paths"] == [".GIT", ".GIT/config"]
    assert done["ignored"]["files"] == 1
    rows = listed(root, ref)
    nested = sandbox.shell("git -C nested rev-parse HEAD")["output"].strip()
    assert rows["nested"] == f"160000 commit {nested}"
    assert rows["link"].startswith("120000") and rows["a.txt"].startswith("100755")
    assert "gone" not in rows and "file/in" in rows and "tree/one" not in rows and "tree" in rows
    assert git(root, "cat-file", "-s", f"{ref}:n.txt2") == "2"  # as git add makes it
    assert git(root, "cat-file", "-s", f"{ref}:crlf") == "3"
    assert not (tmp_path / "ran").exists()
    # the tree is that of the directory export
    git(root, "config", "--unset", "core.fsmonitor")
    copy = tmp_path / "copy"
    git(root, "clone", "-q", "-b", "main", ".", str(copy))
    words = ("--sandbox-id", sandbox.id, "--dest", str(copy), "--skip-unsafe")
    desk.do("manager", "export_changes", *words)
    for name in ("nested", ".GIT"):
        subprocess.run(["rm", "-rf", copy / name], check=True, timeout=60)
    git(copy, "add", "-A")
    mine = {path: row for path, row in rows.items() if path != "nested"}
    tree = git(copy, "write-tree")
    theirs = listed(copy, tree)
    assert mine == theirs


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ("session", ["bob: change c", "alice: change a.txt, b", "Ada: first"]),
        ("one", ["bob: change a.txt, b, c", "Ada: first"]),
    ],
)
def test_history_joins_publications(shared_desk: Desks, history: str, expected: list[str]) -> None:
    desk = shared_desk("root")
    root = given(desk)
    sandbox = desk.create("host")
    session = sandbox.do("create_workspace_session", "--agent", "alice")["workspace_session_id"]
    for name in ("a.txt", "b"):
        sandbox.shell(f"echo {name}{name} > {name}", session)
        sandbox.do("publish_workspace_session", "--workspace-session-id", session, "--keep-open=true")
    sandbox.do("exec_command", "echo c > c", "--agent", "bob")
    done = export(sandbox, "--history", history)
    assert subjects(root, done["ref"]) == expected
    assert export(sandbox, "--history", history)["commits"] == []


def test_after_a_squash_and_an_amended_commit_the_export_goes_on(shared_desk: Desks) -> None:
    desk = shared_desk("root")
    root = given(desk)
    sandbox = desk.create("host")
    commit = "git -c user.name=bob -c user.email=bob@x.org commit -q"
    sandbox.do("exec_command", f"echo c > c; git add c; {commit} -m 'add c'", "--agent", "bob")
    sandbox.do("exec_command", "echo 1 > one", "--agent", "alice", "--message", "one")
    first = export(sandbox)
    sandbox.do("exec_command", "echo 2 > two", "--agent", "carol", "--message", "two")
    desk.do("manager", "squash_layerstacks", "--sandbox-id", sandbox.id)
    sandbox.do("exec_command", f"{commit} --amend -m 'add c, amended'", "--agent", "bob")
    done = export(sandbox)
    ref = done["ref"]
    git(root, "merge-base", "--is-ancestor", first["head"], ref)
    assert "add c, amended" in git(root, "log", "--format=%s", ref)
    assert git(root, "ls-tree", "-r", "--name-only", ref).split() == [
        ".gitignore",
        ".id",
        "a.txt",
        "c",
        "d/b.txt",
        "one",
        "two",
    ]
    assert "Eos-Layer" in git(root, "show", "-s", "--format=%B", ref)
    assert export(sandbox)["commits"] == []
    git(root, "fsck", "--full", "--strict")


def test_branches_that_are_not_exported_are_named(shared_desk: Desks) -> None:
    desk = shared_desk("root")
    root = given(desk)
    sandbox = desk.create("host")
    commit = "git -c user.name=bob -c user.email=bob@x.org commit -q"
    sandbox.do(
        "exec_command", f"git switch -q -c topic; echo t > t; git add t; {commit} -m topic; git tag v1"
    )
    sandbox.do(
        "exec_command", f"git switch -q main; git branch same; echo m > m; git add m; {commit} -m main"
    )
    done = export(sandbox)
    assert [row["subject"] for row in done["commits"]] == ["main"]
    assert done["left_out"]["paths"] in (["refs/heads/topic"], ["refs/tags/v1"])
    assert "checked-out branch" in done["left_out"]["why"][0]["why"]
    sandbox.do("exec_command", "git -c user.name=bob -c user.email=bob@x.org merge -q -m merged topic")
    assert "left_out" not in export(sandbox)
    assert "topic" in git(root, "log", "--format=%s", done["ref"]).splitlines()
