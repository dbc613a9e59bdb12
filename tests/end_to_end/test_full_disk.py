"""A disk that fills up while sandboxes live on it: nothing is half published, nothing is lost, and all goes
on after space is freed.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.end_to_end.cli_user import Desk, Desks, Sandbox, assert_error
from tests.end_to_end.small_disk import fill, names_in_store, on_a_small_disk
from tests.eos_mcp import programs
from tests.processes import kill

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

ORDINARY = pytest.param("ordinary", marks=pytest.mark.needs("uid"))


def published(sandbox: Sandbox, session: str) -> None:
    sandbox.do("publish_workspace_session", "--workspace-session-id", session)
    assert (
        sandbox.refused("file_list", "--workspace-session-id", session)["details"]["reason"]
        == "session_not_found"
    )


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_disk_that_is_full_while_publishing_loses_nothing_and_the_same_call_works_after_space_is_freed(
    desk: Desks, who: str
) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        session = sandbox.session()
        sandbox.write("mine.txt", "mine\n", session)
        before = names_in_store(sandbox)
        filler = fill(at)
        error = sandbox.refused("publish_workspace_session", "--workspace-session-id", session)
        assert_error(error, "disk_full", kind="operation_failed")
        assert_error(
            sandbox.refused("file_write", "--path", "other.txt", "--content", "x"),
            "disk_full",
            kind="operation_failed",
        )
        assert names_in_store(sandbox) == before
        assert sandbox.read("kept.txt") == "kept" and sandbox.read("mine.txt", session) == "mine"
        filler.unlink()
        published(sandbox, session)
        assert (sandbox.read("mine.txt"), sandbox.read("kept.txt")) == ("mine", "kept")
        assert names_in_store(sandbox)["staging"] == []
        sandbox.destroy()
        assert at.left_in_state() == []

    on_a_small_disk(desk(who), body)


def test_a_one_shot_on_a_full_disk_publishes_nothing_by_half_and_its_work_is_there_after_space_is_freed(
    desk: Desks,
) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        running = sandbox.do("exec_command", "--yield-time-ms", "1", "echo mine > mine.txt; read line")
        assert running["status"] == "running"
        filler = fill(at)
        sandbox.do(
            "write_command_stdin",
            "--command-session-id",
            running["command_session_id"],
            "--yield-time-ms",
            "1",
            "go on\n",
        )
        ended = sandbox.do(
            "wait_command", "--command-session-id", running["command_session_id"], "--timeout-ms", "30000"
        )
        assert ended["status"] == "ok" and ended.get("publish", {}).get("published") is not True
        failure = ended.get("publish_rejection", {}).get("error") or ended["finalization_error"]
        assert failure["details"]["reason"] == "disk_full", ended
        assert (
            sandbox.read("kept.txt") == "kept"
            and sandbox.refused("file_read", "--path", "mine.txt")["kind"] == "not_found"
        )
        filler.unlink()
        sandbox.write("again.txt", "works\n")
        kill(sandbox.agent())
        assert sandbox.read("again.txt") == "works"
        (draft,) = sandbox.do("list_drafts")["drafts"]
        assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "mine"
        sandbox.destroy()

    on_a_small_disk(desk("root"), body)


@pytest.mark.needs("uid")
def test_a_command_that_fills_the_disk_can_be_undone_from_its_session(desk: Desks) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        session = sandbox.session()
        full = sandbox.shell("echo mine > mine.txt; head -c 30000000 /dev/zero > big", session)
        assert full["exit_code"] == 1 and "No space left on device" in full["output"]
        assert sandbox.read("kept.txt") == "kept"
        assert sandbox.shell("rm big", session)["exit_code"] == 0
        published(sandbox, session)
        assert (sandbox.read("mine.txt"), sandbox.read("kept.txt")) == ("mine", "kept")
        other = sandbox.session()
        sandbox.shell("head -c 30000000 /dev/zero > big", other)
        assert sandbox.do("destroy_workspace_session", "--workspace-session-id", other)["destroyed"]
        assert sandbox.shell("echo fits > at.txt")["publish"]["published"] is True
        sandbox.destroy()

    on_a_small_disk(desk("ordinary"), body)


@pytest.mark.needs("uid")
def test_a_gateway_and_an_agent_started_on_a_full_disk_say_so_and_start_after_space_is_freed(
    desk: Desks,
) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        session = sandbox.session()
        sandbox.write("mine.txt", "mine\n", session)
        filler = fill(at)
        kill(programs.pid_of(str(at.state)))
        kill(sandbox.agent())
        answers = [
            at.run("runtime", "--sandbox-id", sandbox.id, "file_read", "--path", "kept.txt") for _ in range(2)
        ]
        for answer in answers:  # what only reads may work, and whatever does not says why
            text = answer.stdout or answer.stderr
            assert "Traceback" not in text and (
                "No space left" in text or "disk_full" in text or json.loads(text).get("content") == "kept"
            ), text
        filler.unlink()
        assert sandbox.read("kept.txt") == "kept"
        (draft,) = sandbox.do("list_drafts")["drafts"]
        assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "mine"
        sandbox.destroy()

    on_a_small_disk(desk("ordinary"), body)


def test_a_sandbox_can_be_destroyed_to_free_a_full_disk_and_none_is_half_made_on_one(desk: Desks) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.shell("echo kept > kept.txt")
        filler = fill(at)
        error = at.refused_create("host")
        assert (
            error["kind"] == "internal_error"
            and error["details"]["reason"] == "disk_full"
            and error["details"]["hint"]
        ), error
        assert [record["id"] for record in at.do("manager", "list_sandboxes")["sandboxes"]] == [sandbox.id]
        assert os.listdir(at.state / "sandboxes") == [sandbox.id]
        assert sandbox.read("kept.txt") == "kept"
        sandbox.destroy()
        filler.unlink()
        assert at.left_in_state() == []
        at.create("host").destroy()

    on_a_small_disk(desk("root"), body)
