"""The text of an export to git."""

from __future__ import annotations

from typing import Any

from eos_mcp.mcp import render

REPLY: dict[str, Any] = {
    "format": "git",
    "dest": "/home/ada/shop",
    "ref": "refs/heads/eos/s1",
    "parent": "a" * 40,
    "head": "b" * 40,
    "manifest_version": 3,
    "commits": [{"oid": "b" * 40, "layer_id": None, "author": "bob", "subject": "Add\nx", "paths": ["x"]}],
    "commit_count": 1,
    "left_out": {"count": 1, "paths": ["refs/heads/topic"], "why": [{"count": 1, "why": "elsewhere"}]},
}


def test_an_export_to_git_shows_its_commits_and_how_to_take_them() -> None:
    assert render.result("export_changes", {}, REPLY).split("\n") == [
        "exported 1 commit to eos/s1 in /home/ada/shop",
        '  bbbbbbbbbb bob: "Add\\nx"',
        'left out (elsewhere): ["refs/heads/topic"]',
        "working tree, index and checked-out branch are as they were; `git log --graph eos/s1` shows it, "
        "`git merge eos/s1` takes it",
    ]
    many = [{**REPLY["commits"][0], "subject": f"n{n}"} for n in range(40)]
    lines = render.result("export_changes", {}, {**REPLY, "commits": many, "commit_count": 40}).split("\n")
    assert lines[1].endswith("n30") and lines[11] == "  and 30 before these"
    again = render.result("export_changes", {}, {**REPLY, "commits": [], "commit_count": 0, "dry_run": True})
    assert again.startswith("dry run, nothing was written; it would have added 0 commits to eos/s1")
    assert "eos/s1 has everything already" in again and "git merge" not in again
