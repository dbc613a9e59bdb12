"""Trees deeper than any path: published, removed, refused whole."""

from __future__ import annotations

import errno
import os

import pytest

from layerstack.kernel import fsync
from tests.end_to_end.cli_user import Sandbox
from tests.processes import kill

pytestmark = [pytest.mark.needs("overlay", "userns")]


GO_DOWN = (
    f"mkdir x; echo bottom > x/f; for i in $(seq 60); do mkdir y && mv x y/{'n' * 100} && mv y x || "
    f"exit 1; done; echo down"
)
"""Makes x/nnn.../.../f, whose path no system call takes."""


def test_a_session_with_a_tree_deeper_than_any_path_is_refused_whole_and_can_be_mended_or_destroyed(
    sandbox: Sandbox,
) -> None:
    sessions = [sandbox.session(), sandbox.session()]
    for session in sessions:
        sandbox.write("mine.txt", "mine\n", session)
        assert sandbox.shell(GO_DOWN, session)["output"] == "down"
    refused = sandbox.refused("publish_workspace_session", "--workspace-session-id", sessions[0])
    assert refused["kind"] == "operation_failed" and refused["details"]["errno"] == "ENAMETOOLONG"
    assert sandbox.read("mine.txt", sessions[0]) == "mine"
    assert sandbox.refused("file_read", "--path", "mine.txt")["kind"] == "not_found"
    assert sandbox.shell("rm -r x", sessions[0])["exit_code"] == 0
    sandbox.do("publish_workspace_session", "--workspace-session-id", sessions[0])
    assert sandbox.read("mine.txt") == "mine"
    gone = sandbox.do("destroy_workspace_session", "--workspace-session-id", sessions[1])
    assert gone["destroyed"] and "mine.txt" in gone["discarded"]["paths"]
    assert os.listdir(sandbox.store / "sessions") == []


def test_a_one_shot_with_such_a_tree_says_where_its_files_are_and_is_a_draft_once_that_is_mended(
    sandbox: Sandbox,
) -> None:
    ran = sandbox.shell(f"echo mine > mine.txt; {GO_DOWN}")
    assert (
        ran["finalization_failed"] is True and ran["finalization_error"]["details"]["errno"] == "ENAMETOOLONG"
    )
    session = ran["workspace_session_id"]
    folder = sandbox.store / "sessions" / session / "upper"
    assert str(folder) in ran["hint"]
    for _ in range(2):  # reported by the agent that saw it, and by the next one
        error = sandbox.refused("exec_command", "--workspace-session-id", session, "true")
        assert (error["details"]["reason"], error["details"]["draft_pending"]) == ("session_lost", True)
        assert os.strerror(errno.ENAMETOOLONG) in error["message"]
        assert str(folder) in error["details"]["hint"] and (folder / "mine.txt").read_text() == "mine\n"
        kill(sandbox.agent())
    sandbox.refused("exec_command", "--workspace-session-id", session, "true")
    fsync.remove_tree(str(folder / "x"))
    recovered = sandbox.do("recover_workspace_session", "--workspace-session-id", session)
    (draft,) = sandbox.do("list_drafts")["drafts"]
    assert recovered["draft_id"] == draft["draft_id"]
    assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "mine"


def test_a_thousand_directories_in_one_another_are_published_and_removed(sandbox: Sandbox) -> None:
    made = sandbox.shell('mkdir -p "$(printf "a/%.0s" $(seq 1200))" && echo made')
    assert made["output"] == "made" and made["publish"]["published"] is True
    assert sandbox.shell("find a | wc -l")["output"] == "1200"
    assert sandbox.shell("rm -r a && echo a file > a")["publish"]["published"] is True
    assert sandbox.read("a") == "a file"
