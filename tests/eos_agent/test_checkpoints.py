"""checkpoint_session and restore_session: undo inside a session that lives on under its id."""

from __future__ import annotations

import time

import pytest

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")


def read(agent: Agent, session: str, path: str) -> str:
    found: str = agent.call("file_read", path=path, workspace_session_id=session)["content"]
    return found


def run(agent: Agent, session: str, text: str) -> str:
    found: str = agent.call("exec_command", cmd=text, workspace_session_id=session)["output"]
    return found


def rows(agent: Agent, session: str) -> list[dict[str, object]]:
    listed = agent.call("list_workspace_sessions")["sessions"]
    row = next(row for row in listed if row["workspace_session_id"] == session)
    return list(row.get("checkpoints", []))


@pytest.mark.parametrize("profile", ["shared", "isolated"])
def test_a_session_returns_to_a_checkpoint_and_the_return_is_undone(
    shared_agent: Agent, profile: str
) -> None:
    agent = shared_agent
    session = agent.session(network_profile=profile)
    begun = time.time_ns() // 1_000_000
    start = agent.call("checkpoint_session", workspace_session_id=session)
    assert (start["checkpoint_id"], start["changed_files"]) == ("checkpoint-1", 0)
    run(
        agent,
        session,
        "echo good > README.md; mkdir -p new && mkfifo new/pipe && ln README.md new/same; rm run.sh",
    )
    made = agent.call("checkpoint_session", workspace_session_id=session, label="it builds")
    assert (made["checkpoint_id"], made["label"], made["changed_files"]) == ("checkpoint-2", "it builds", 4)
    assert begun <= made["created_unix_ms"] <= time.time_ns() // 1_000_000
    run(agent, session, "echo bad > README.md; rm -r new src")
    done = agent.call("restore_session", workspace_session_id=session)
    assert (done["checkpoint_id"], done["label"], done["restored"]) == ("checkpoint-2", "it builds", True)
    assert run(
        agent, session, "cat README.md; ls src; test -p new/pipe && test README.md -ef new/same && echo same"
    ) == ("good\napp.py\nsame")
    undone = agent.call(
        "restore_session", workspace_session_id=session, checkpoint_id=done["undo_checkpoint_id"]
    )
    assert undone["undo_checkpoint_id"] == "checkpoint-2", "the state before is that checkpoint"
    assert run(agent, session, "cat README.md; ls -d src").startswith("bad\n")
    again = agent.call("restore_session", workspace_session_id=session, checkpoint_id="checkpoint-3")
    assert again["restored"] is False and "undo_checkpoint_id" not in again
    assert [(row["checkpoint_id"], row.get("label"), row.get("undoes")) for row in rows(agent, session)] == [
        ("checkpoint-1", None, None),
        ("checkpoint-2", "it builds", None),
        ("checkpoint-3", None, "checkpoint-2"),
    ]
    agent.call("restore_session", workspace_session_id=session, checkpoint_id="checkpoint-1")
    assert read(agent, session, "README.md") == "hello"
    kept = agent.call("publish_workspace_session", workspace_session_id=session, keep_open=True)
    assert kept["publish"]["no_op"] and kept["checkpoints_ended"][0] == "checkpoint-1"
    assert not rows(agent, session)
    agent.call("destroy_workspace_session", workspace_session_id=session)


def test_what_runs_is_named_and_nothing_of_it_ends(shared_agent: Agent, session: str) -> None:
    agent = shared_agent
    agent.call("checkpoint_session", workspace_session_id=session)
    running = agent.call("exec_command", cmd="cat", yield_time_ms=0, workspace_session_id=session)[
        "command_session_id"
    ]
    for operation in ("checkpoint_session", "restore_session"):
        with pytest.raises(Failed) as caught:
            agent.call(operation, workspace_session_id=session)
        assert caught.value.reason == "session_busy"
        assert caught.value.details["active_command_session_ids"] == [running]
    agent.call("close_stdin", command_session_id=running)
    agent.call("wait_command", command_session_id=running)
    assert agent.call("restore_session", workspace_session_id=session)["restored"] is False


def test_refusals_name_what_there_is(shared_agent: Agent, session: str) -> None:
    agent = shared_agent

    def refused(operation: str, **args: str) -> Failed:
        with pytest.raises(Failed) as caught:
            agent.call(operation, **args)
        return caught.value

    none = refused("restore_session", workspace_session_id=session)
    assert (none.reason, none.details["checkpoint_ids"]) == ("checkpoint_not_found", [])
    agent.call("file_write", path="f", content="kept\n", workspace_session_id=session)
    agent.call("checkpoint_session", workspace_session_id=session)
    other = refused("restore_session", workspace_session_id=session, checkpoint_id="checkpoint-7")
    assert (other.reason, other.details["checkpoint_ids"], other.details["session_retained"]) == (
        "checkpoint_not_found",
        ["checkpoint-1"],
        True,
    )
    assert read(agent, session, "f") == "kept"
    assert refused("checkpoint_session", workspace_session_id="nobody").reason == "session_not_found"
    long = refused("checkpoint_session", workspace_session_id=session, label="x" * 257)
    assert long.reason == "too_long"
    ran = agent.call("exec_command", cmd="cat", yield_time_ms=0)
    assert refused("checkpoint_session", workspace_session_id=ran["workspace_session_id"]).reason == (
        "implicit_session"
    )
    agent.call("signal_command", command_session_id=ran["command_session_id"], signal="KILL")


def test_a_rebase_ends_checkpoints_and_destroy_tells_the_present_work_alone(agent: Agent) -> None:
    session = agent.session()
    agent.call("file_write", path="f", content="one\n", workspace_session_id=session)
    agent.call("checkpoint_session", workspace_session_id=session)
    agent.call("file_write", path="g", content="two\n", workspace_session_id=session)
    agent.call("restore_session", workspace_session_id=session)
    assert (
        agent.call("rebase_workspace_session", workspace_session_id=session).get("checkpoints_ended") is None
    )
    agent.call("file_write", path="elsewhere", content="x\n")
    done = agent.call("rebase_workspace_session", workspace_session_id=session)
    assert done["checkpoints_ended"] == ["checkpoint-1", "checkpoint-2"]
    assert read(agent, session, "f") == "one" and read(agent, session, "elsewhere") == "x"
    agent.call("checkpoint_session", workspace_session_id=session)
    agent.call("file_write", path="h", content="three\n", workspace_session_id=session)
    agent.call("restore_session", workspace_session_id=session)
    gone = agent.call("destroy_workspace_session", workspace_session_id=session)
    assert gone["discarded"]["paths"] == ["f"] and gone["evicted_upperdir_bytes"] >= len("one\nthree\n")


def test_a_restart_of_the_agent_leaves_a_draft_of_the_present_state(agent: Agent) -> None:
    session = agent.session()
    agent.call("file_write", path="f", content="one\n", workspace_session_id=session)
    agent.call("checkpoint_session", workspace_session_id=session)
    agent.call("file_write", path="f", content="two\n", workspace_session_id=session)
    agent.call("restore_session", workspace_session_id=session)
    agent.call("file_write", path="g", content="late\n", workspace_session_id=session)
    agent.kill()
    agent.start()
    with pytest.raises(Failed) as caught:
        agent.call("restore_session", workspace_session_id=session)
    assert caught.value.reason == "session_lost"
    draft = caught.value.details["draft_id"]
    again = agent.call("create_workspace_session", draft_id=draft)["workspace_session_id"]
    assert read(agent, again, "f") == "one" and read(agent, again, "g") == "late" and not rows(agent, again)


@pytest.mark.parametrize("profile", ["shared", "isolated"])
def test_a_tmp_of_its_own_goes_on_with_the_session(shared_agent: Agent, profile: str) -> None:
    agent = shared_agent
    session = agent.session(network_profile=profile, rootfs="read_only")
    text = "echo kept > /tmp/f; mkdir /tmp/d; echo shm > /dev/shm/g; echo new > w"
    run(agent, session, text)
    for operation in ("checkpoint_session", "restore_session"):
        agent.call(operation, workspace_session_id=session)
        assert run(
            agent, session, "cat /tmp/f /dev/shm/g w; ls -d /tmp/d; echo late >> w; echo more > /tmp/more"
        ) == ("kept\nshm\nnew\n/tmp/d")
    agent.call("publish_workspace_session", workspace_session_id=session, keep_open=True)
    agent.call("file_write", path="elsewhere", content=f"{profile}\n")
    agent.call("rebase_workspace_session", workspace_session_id=session)
    assert run(agent, session, "cat /tmp/f /tmp/more /dev/shm/g elsewhere; touch /tmp/writable x") == (
        f"kept\nmore\nshm\n{profile}"
    )
    other = agent.session(network_profile=profile, rootfs="read_only")
    assert run(agent, other, "ls /tmp/f /dev/shm/g 2> /dev/null; ls -d /tmp") == "/tmp"
    for one in (session, other):
        agent.call("destroy_workspace_session", workspace_session_id=one)
