"""Looking back through the programs: versions, patches, pins, rollback, blame; and what MCP says of a
draft.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.cli_user import Sandbox
from tests.eos_mcp.mcp_wire import Wire, call

pytestmark = [pytest.mark.needs("overlay")]


def test_a_person_goes_back_to_an_earlier_version_and_forth_again(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.write("a.txt", "base\nmore\n")
    sandbox.shell("rm -r d; echo new > made")
    listed = sandbox.do("list_versions")["versions"]
    assert [(v["version"], v["head"]) for v in listed] == [(3, True), (2, False), (1, False)]
    assert sandbox.do("file_blame", "--path", "a.txt")["ranges"] == [
        {"start_line": 1, "line_count": 1, "owner": "original"},
        {"start_line": 2, "line_count": 1, "owner": listed[1]["owner"]},
    ]
    assert sandbox.refused("file_blame", "--path", "d/b.txt")["kind"] == "not_found", (
        "deleted, and never changed by anybody"
    )

    found = sandbox.do("diff_versions", "--from", "1", "--to", "3")["entries"]
    assert {e["path"]: e["change"] for e in found} == {
        "a.txt": "modified",
        "d": "deleted",
        "d/b.txt": "deleted",
        "made": "added",
    }
    (tmp_path / "a.txt").write_text("base\n")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/b.txt").write_text("in a directory\n")
    patches = "".join(e.get("patch", "") for e in found)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patches, text=True, check=True)
    assert {p.name: p.read_text() for p in tmp_path.iterdir() if p.is_file()} == {
        "a.txt": "base\nmore\n",
        "made": "new\n",
    }

    assert sandbox.do("pin_version", "--version", "2")["pinned"] is True
    back = sandbox.do("rollback_to", "--version", "1")
    assert back["publish"]["revision"]["manifest_version"] == 4
    assert sandbox.read("a.txt") == "base" and sandbox.read("d/b.txt") == "in a directory"
    session = sandbox.session("--base-version", "2")
    assert sandbox.read("a.txt", session) == "base\nmore"
    sandbox.do("destroy_workspace_session", "--workspace-session-id", session)
    sandbox.desk.do("manager", "squash_layerstacks", "--sandbox-id", sandbox.id)
    left = [v["version"] for v in sandbox.do("list_versions")["versions"]]
    assert 2 in left and 3 not in left, "the pinned one is kept, others are folded"
    assert sandbox.refused("rollback_to", "--version", "3")["details"]["reason"] == "version_not_found"
    sandbox.do("rollback_to", "--version", "2")
    assert sandbox.read("a.txt") == "base\nmore" and sandbox.read("d/b.txt") == "in a directory"
    assert sandbox.do("unpin_version", "--version", "2")["was_pinned"] is True


def test_an_agent_over_mcp_sees_in_lines_what_its_draft_would_change(sandbox: Sandbox) -> None:
    env = sandbox.desk.person.environment(**sandbox.desk.env)
    with Wire(
        [sys.executable, "-m", "eos_mcp", "--sandbox-id", sandbox.id], env={**os.environ, **env}
    ) as wire:
        wire.open()
        begun = wire.ask(
            call(1, "exec_command", {"cmd": "read go; sed -i 's/base/ours/' a.txt", "yield_time_ms": 0})
        )["result"]["structuredContent"]
        wire.ask(call(2, "file_write", {"path": "a.txt", "content": "theirs\n"}))
        handle = begun["command_session_id"]
        wire.ask(
            call(
                3, "write_command_stdin", {"command_session_id": handle, "stdin": "go\n", "yield_time_ms": 0}
            )
        )
        read = {"command_session_id": handle, "wait_ms": 20_000}
        draft = wire.ask(call(4, "read_command_lines", read))["result"]["structuredContent"]["draft_id"]
        lines = wire.ask(call(5, "diff_session", {"draft_id": draft, "against": "head"}))["result"][
            "content"
        ][0]["text"]
        assert "M  a.txt" in lines and "-theirs\n+ours" in lines, lines
        assert not wire.ask(call(7, "file_read", {"path": "a.txt"}))["result"].get("isError")
