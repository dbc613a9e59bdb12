"""How sessions end or go on: their time to live, publish with keep_open, destroy with if_clean, an init that
does not answer.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes import children_of, mountinfo

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")


def refused(agent: Agent, op: str, /, **args: Any) -> Failed:
    with pytest.raises(Failed) as caught:
        agent.call(op, **args)
    return caught.value


def listed(agent: Agent) -> dict[str, dict[str, Any]]:
    return {row["workspace_session_id"]: row for row in agent.call("list_workspace_sessions")["sessions"]}


def until_gone(agent: Agent, session: str) -> None:
    """Asked again and again: listing a session is no use of it."""
    while session in listed(agent):
        threading.Event().wait(0.02)


def keep_open(agent: Agent, session: str, **args: Any) -> dict[str, Any]:
    return agent.call("publish_workspace_session", workspace_session_id=session, keep_open=True, **args)


# The time to live


def test_an_unused_session_becomes_a_draft_after_its_ttl_and_every_later_call_gets_the_id(
    agent: Agent,
) -> None:
    made = agent.call("create_workspace_session", ttl_s=1.0, agent="carol")
    session = made["workspace_session_id"]
    assert made["ttl_s"] == 1.0 and made["expires_unix_ms"] > 0
    agent.call("file_write", path="kept", content="precious\n", workspace_session_id=session)
    row = listed(agent)[session]
    assert row["ttl_s"] == 1.0 and row["expires_unix_ms"] == row["last_activity_unix_ms"] + 1000
    until_gone(agent, session)
    (draft,) = agent.call("list_drafts")["drafts"]
    assert (draft["reason"], draft["origin"], draft["agent"]) == (
        "expired",
        f"workspace_session:{session}",
        "carol",
    )
    for _ in range(2):  # reported by the agent that ended it, and by the next one
        for op, args in (
            ("file_read", {"path": "kept"}),
            ("exec_command", {"cmd": "true"}),
            ("publish_workspace_session", {}),
        ):
            error = refused(agent, op, workspace_session_id=session, **args)
            assert (error.kind, error.reason, error.details["draft_id"]) == (
                "operation_failed",
                "session_expired",
                draft["draft_id"],
            )
        assert agent.stop() == 0
        agent.start()
    assert agent.read("kept", workspace_session_id=agent.session(draft_id=draft["draft_id"])) == "precious"
    assert refused(agent, "file_read", path="kept").kind == "not_found"


def test_a_session_without_work_is_gone_after_its_ttl_and_so_is_one_that_shows_a_draft_as_it_is(
    agent: Agent,
) -> None:
    first = agent.session(ttl_s=0.2)
    until_gone(agent, first)
    assert agent.call("list_drafts")["drafts"] == []
    error = refused(agent, "file_read", path="README.md", workspace_session_id=first)
    assert (error.reason, error.details["draft_id"]) == ("session_expired", None)
    work = agent.session(ttl_s=1.0)
    agent.call("file_write", path="kept", content="x", workspace_session_id=work)
    until_gone(agent, work)
    (draft,) = agent.call("list_drafts")["drafts"]
    for base in ("own", "head"):
        until_gone(agent, agent.session(draft_id=draft["draft_id"], draft_base=base, ttl_s=0.2))
        assert agent.call("list_drafts")["drafts"] == [draft]
    changed = agent.session(draft_id=draft["draft_id"], ttl_s=1.0)
    agent.call("file_write", path="more", content="y", workspace_session_id=changed)
    until_gone(agent, changed)
    assert len(agent.call("list_drafts")["drafts"]) == 2
    assert agent.call("layerstack")["active_lease_count"] == 0


def test_a_session_with_a_running_command_outlives_its_ttl_and_each_use_begins_it_anew(agent: Agent) -> None:
    session = agent.session(ttl_s=0.3)
    command = agent.run("read go; echo done > f", session, yield_time_ms=0)["command_session_id"]
    assert listed(agent)[session]["expires_unix_ms"] is None
    until_gone(agent, agent.session(ttl_s=0.7))
    assert session in listed(agent)
    agent.call("write_command_stdin", command_session_id=command, stdin="x\n", yield_time_ms=20_000)
    expires = listed(agent)[session]["expires_unix_ms"]
    assert agent.read("f", workspace_session_id=session) == "done"
    assert listed(agent)[session]["expires_unix_ms"] >= expires
    until_gone(agent, session)
    assert [draft["reason"] for draft in agent.call("list_drafts")["drafts"]] == ["expired"]


@pytest.mark.parametrize("ttl_s", [0, -1, 1e12, "1"])
def test_a_ttl_that_makes_no_sense_is_refused_by_name(shared_agent: Agent, ttl_s: Any) -> None:
    error = refused(shared_agent, "create_workspace_session", ttl_s=ttl_s)
    assert (error.kind, error.details["argument"]) == ("invalid_request", "ttl_s")


# Publish and go on


def test_a_session_that_is_kept_open_goes_on_on_the_new_head_with_nothing_to_publish(agent: Agent) -> None:
    session = agent.session(agent="alice")
    agent.run("echo one > first; rm run.sh", session)
    agent.call("file_write", path="theirs", content="theirs\n")
    done = keep_open(agent, session)
    assert (done["destroyed"], done["kept_open"], done["base_version"]) == (False, True, 3)
    assert done["publish"]["route_summary"]["source_count"] == 2 and agent.read("first") == "one"
    assert agent.run("cat first theirs; ls run.sh", session)["output"].split("\n")[:2] == ["one", "theirs"]
    assert agent.call("preview_publish", workspace_session_id=session)["no_op"] is True
    assert listed(agent)[session]["base_version"] == 3 and listed(agent)[session]["agent"] == "alice"
    agent.call("file_write", path="theirs2", content="x")
    agent.run("echo two > second; echo more >> first", session)
    assert refused(agent, "file_read", path="theirs2", workspace_session_id=session).kind == "not_found"
    done = agent.call("publish_workspace_session", workspace_session_id=session)
    assert (
        done["destroyed"] is True
        and "kept_open" not in done
        and done["publish"]["route_summary"]["source_count"] == 2
    )
    assert (agent.read("first"), agent.read("second")) == ("one\nmore", "two")
    layers = agent.call("layerstack")
    assert layers["active_lease_count"] == 0 and layers["staging_entry_count"] == 0
    assert os.listdir(os.path.join(agent.store, "sessions")) == []
    assert {row["owner"] for row in agent.call("file_blame", path="first")["ranges"]} == {
        f"workspace_session:{session}"
    }


def test_a_session_is_kept_open_many_times_and_what_it_wrote_last_survives_a_killed_agent(
    agent: Agent,
) -> None:
    session = agent.session()
    for turn in range(5):
        agent.run(f"echo {turn} >> log.txt", session)
        assert keep_open(agent, session)["kept_open"] is True
    assert keep_open(agent, session)["publish"]["no_op"] is True
    agent.run("echo unpublished > last", session)
    agent.kill()
    agent.start()
    (draft,) = agent.call("list_drafts")["drafts"]
    assert agent.read("log.txt").split() == ["0", "1", "2", "3", "4"]
    assert (draft["base_version"], draft["paths"]) == (6, 1)


def test_a_session_in_which_something_lives_is_busy_by_name_and_stays_as_it_is(agent: Agent) -> None:
    session = agent.session()
    command = agent.run("echo mine > mine; read go", session, yield_time_ms=0)["command_session_id"]
    error = refused(agent, "publish_workspace_session", workspace_session_id=session, keep_open=True)
    assert (error.kind, error.reason, error.details["active_command_session_ids"]) == (
        "operation_failed",
        "session_busy",
        [command],
    )
    agent.call("write_command_stdin", command_session_id=command, stdin="x\n", yield_time_ms=20_000)
    agent.run("setsid sleep 1000 > log.txt 2>&1 < /dev/null &", session)
    error = refused(agent, "publish_workspace_session", workspace_session_id=session, keep_open=True)
    assert error.reason == "session_busy" and "sleep" in [one["name"] for one in error.details["processes"]]
    assert agent.version() == 1 and agent.read("mine", workspace_session_id=session) == "mine"
    agent.run("kill $(pidof sleep 2>/dev/null || pgrep sleep); while pgrep sleep; do :; done", session)
    assert keep_open(agent, session)["kept_open"] is True


def test_a_rejected_publish_with_keep_open_is_a_rejected_publish(agent: Agent) -> None:
    session = agent.session()
    agent.run("echo ours > README.md", session)
    agent.call("file_write", path="README.md", content="theirs\n")
    error = refused(agent, "publish_workspace_session", workspace_session_id=session, keep_open=True)
    assert (error.reason, error.details["session_retained"]) == ("source_conflict", True)
    assert agent.read("README.md", workspace_session_id=session) == "ours"


def test_a_draft_is_consumed_by_the_publish_of_a_session_that_goes_on(agent: Agent) -> None:
    command = agent.run("read go; echo losing > README.md; echo kept > kept", yield_time_ms=0)[
        "command_session_id"
    ]
    agent.call("file_write", path="README.md", content="winning\n")
    draft = agent.call("write_command_stdin", command_session_id=command, stdin="x\n", yield_time_ms=20_000)[
        "draft_id"
    ]
    session = agent.session(draft_id=draft)
    agent.run("echo winning > README.md", session)
    assert keep_open(agent, session)["kept_open"] is True
    assert agent.call("list_drafts")["drafts"] == [] and agent.read("kept") == "kept"
    assert "draft_id" not in listed(agent)[session]
    agent.call("destroy_workspace_session", workspace_session_id=session, if_clean=True)


# Destroy


def test_a_session_with_work_is_not_destroyed_with_if_clean_and_the_refusal_lists_the_work(
    agent: Agent,
) -> None:
    session = agent.session()
    agent.run("mkdir -p d/empty; printf 12345 > d/new; rm run.sh", session)
    error = refused(agent, "destroy_workspace_session", workspace_session_id=session, if_clean=True)
    assert (error.kind, error.reason) == ("operation_failed", "unpublished_work")
    found = error.details["unpublished"]
    assert (sorted(found["paths"]), found["count"], found["bytes"], found["truncated"]) == (
        ["d/empty", "d/new", "run.sh"],
        3,
        5,
        False,
    )
    assert agent.run("cat d/new", session)["output"] == "12345"
    gone = agent.call("destroy_workspace_session", workspace_session_id=session)
    assert gone["discarded"] == found
    many = agent.session()
    agent.run("for n in $(seq 300); do echo $n > n$n; done", many)
    discarded = agent.call("destroy_workspace_session", workspace_session_id=many)["discarded"]
    assert (len(discarded["paths"]), discarded["count"], discarded["truncated"]) == (100, 300, True)


def test_a_session_whose_files_are_as_they_were_is_clean_and_so_is_one_that_shows_a_draft(
    agent: Agent,
) -> None:
    session = agent.session()
    agent.run("cp -p README.md x; echo y > README.md; cp -p x README.md; rm x; echo t > t; rm t", session)
    assert (
        agent.call("destroy_workspace_session", workspace_session_id=session, if_clean=True)["destroyed"]
        is True
    )
    touched = agent.session()
    agent.run("chmod 600 src", touched)
    assert (
        refused(agent, "destroy_workspace_session", workspace_session_id=touched, if_clean=True).reason
        == "unpublished_work"
    )
    agent.call("file_write", path="kept", content="x", workspace_session_id=touched)
    agent.kill()
    agent.start()
    (draft,) = agent.call("list_drafts")["drafts"]
    for base in ("own", "head"):
        opened = agent.session(draft_id=draft["draft_id"], draft_base=base)
        assert (
            agent.call("destroy_workspace_session", workspace_session_id=opened, if_clean=True)["discarded"][
                "count"
            ]
            == 0
        )
        opened = agent.session(draft_id=draft["draft_id"], draft_base=base)
        agent.call("file_write", path="more", content="x", workspace_session_id=opened)
        assert (
            refused(agent, "destroy_workspace_session", workspace_session_id=opened, if_clean=True).reason
            == "unpublished_work"
        )
        assert agent.call("destroy_workspace_session", workspace_session_id=opened)["discarded"]["paths"] == [
            "more"
        ]
        opened = agent.session(draft_id=draft["draft_id"], draft_base=base)
        agent.run("chmod 711 .", opened)
        error = refused(agent, "destroy_workspace_session", workspace_session_id=opened, if_clean=True)
        assert error.reason == "unpublished_work", "no name tells that the workspace itself was changed"
        agent.call("destroy_workspace_session", workspace_session_id=opened)
    assert agent.call("list_drafts")["drafts"] == [draft]


def test_the_command_of_a_session_that_was_destroyed_before_it_could_publish_says_so_itself(
    agent: Agent,
) -> None:
    command = agent.run("read x; echo $x > f", yield_time_ms=0)
    connection = agent.connect()
    connection.socket.sendall(
        agent.line(
            "destroy_workspace_session",
            "their-request",
            workspace_session_id=command["workspace_session_id"],
            grace_s=600,
        )
    )
    agent.call(
        "write_command_stdin", command_session_id=command["command_session_id"], stdin="y\n", yield_time_ms=0
    )
    answer = json.loads(connection.file.readline())
    connection.close()
    assert answer["discarded"]["paths"] == ["f"]
    ended = agent.call("wait_command", command_session_id=command["command_session_id"], timeout_ms=60_000)
    assert (ended["status"], ended["publish"]["published"], ended["discarded"]["paths"]) == (
        "ok",
        False,
        ["f"],
    )
    assert (ended["discarded"]["by"], ended["discarded"]["request_id"]) == (
        "destroy_workspace_session",
        "their-request",
    )
    assert refused(agent, "file_read", path="f").kind == "not_found"


# What is too long, what does not answer


@pytest.mark.parametrize(
    ("op", "name", "longest"),
    [
        ("create_workspace_session", "agent", 256),
        ("create_workspace_session", "draft_id", 128),
        ("destroy_workspace_session", "workspace_session_id", 128),
        ("wait_command", "command_session_id", 128),
        ("list_commands", "after", 128),
    ],
)
def test_a_name_that_is_kept_and_shown_has_a_length_that_its_refusal_tells(
    shared_agent: Agent, op: str, name: str, longest: int
) -> None:
    error = refused(shared_agent, op, **{name: "\u00e9" * (longest // 2) + "x"})
    assert (error.kind, error.reason) == ("invalid_request", "too_long")
    assert (error.details["argument"], error.details["max_bytes"]) == (name, longest) and len(
        str(error)
    ) < 2000


def test_a_request_id_has_a_length_too(shared_agent: Agent) -> None:
    session = shared_agent.session(agent="\u00e9" * 128)
    shared_agent.call("destroy_workspace_session", "r" * 512, workspace_session_id=session)
    with pytest.raises(Failed) as caught:
        shared_agent.call("list_commands", "r" * 513)
    assert (caught.value.reason, caught.value.details["argument"]) == ("too_long", "request_id")
    answer = shared_agent.tcp_call("cancel_request", request_id="r" * 257)
    assert (answer["error"]["kind"], answer["error"]["details"]["reason"]) == ("invalid_request", "too_long")


def test_a_runner_that_does_not_answer_is_killed_and_its_work_is_a_draft(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(runtime={"workspace": {"runner_answer_s": 1}})
    session, other = agent.session(), agent.session()
    agent.run("echo precious > kept", session)
    command = agent.run("sleep 1000", session, yield_time_ms=0)["command_session_id"]
    (zygote,) = children_of(agent.pid)
    (init,) = [pid for pid in children_of(zygote) if session in mountinfo(pid)]
    os.kill(init, signal.SIGSTOP)
    error = refused(agent, "file_read", path="kept", workspace_session_id=session)
    assert (error.kind, error.reason, error.details["retryable"]) == (
        "operation_failed",
        "runner_stuck",
        True,
    )
    draft_id = error.details["draft_id"]
    assert refused(agent, "wait_command", command_session_id=command).reason == "runner_stuck"
    assert agent.run("echo fine", other)["output"] == "fine"
    assert agent.read("kept", workspace_session_id=agent.session(draft_id=draft_id)) == "precious"
    agent.stop()
    agent.start()
    assert refused(agent, "file_read", path="kept", workspace_session_id=session).reason == "runner_stuck"


# Many at once


def test_five_one_shot_commands_started_together_have_all_taken_their_snapshot_before_the_first_publishes(
    agent: Agent,
) -> None:
    barrier = threading.Barrier(5)

    def start(n: int) -> dict[str, Any]:
        barrier.wait(60)
        return agent.run(f"read go; echo {n} > README.md", yield_time_ms=0)

    def release(one: dict[str, Any]) -> dict[str, Any]:
        barrier.wait(60)
        return agent.call(
            "write_command_stdin",
            command_session_id=one["command_session_id"],
            stdin="x\n",
            yield_time_ms=60_000,
        )

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        started = list(pool.map(start, range(5)))
        assert [(row["base_version"], row["state"]) for row in listed(agent).values()] == [
            (1, "active")
        ] * 5, "nobody has published yet"
        results = list(pool.map(release, started))
    won = [n for n, result in enumerate(results) if result["publish"]["published"]]
    assert len(won) == 1 and agent.read("README.md") == str(won[0]) and agent.version() == 2
    assert sorted(result.get("publish_reject_class", "") for result in results) == [
        "",
        *["source_conflict"] * 4,
    ]


def test_fifty_sessions_created_at_once_all_live_and_so_do_two_hundred_in_one_sandbox(agent: Agent) -> None:
    def create(_number: int) -> str:
        return agent.session()

    def destroy(session: str) -> None:
        agent.call("destroy_workspace_session", workspace_session_id=session)

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        made = list(pool.map(create, range(50)))
        assert len(set(made)) == 50
        made += pool.map(create, range(150))
        assert set(listed(agent)) == set(made) and len(made) == 200
        agent.call("file_write", path="mine", content="first", workspace_session_id=made[0])
        agent.call("file_write", path="mine", content="last", workspace_session_id=made[-1])
        assert (
            agent.run("cat mine", made[-1])["output"] == "last"
            and agent.read("mine", workspace_session_id=made[0]) == "first"
        )
        assert refused(agent, "file_read", path="mine", workspace_session_id=made[100]).kind == "not_found"
        list(pool.map(destroy, made))
    assert listed(agent) == {} and agent.call("layerstack")["active_lease_count"] == 0


def test_a_working_directory_that_is_not_there_is_named_and_the_session_stays_usable(
    shared_agent: Agent,
) -> None:
    session = shared_agent.session()
    error = refused(shared_agent, "exec_command", cmd="true", cwd="missing/dir", workspace_session_id=session)
    assert (
        error.kind == "operation_failed"
        and error.reason == "cwd_not_found"
        and "missing/dir" in error.message
    )
    assert shared_agent.run("echo fine", session)["output"] == "fine"
    assert (
        refused(shared_agent, "exec_command", cmd="echo x > x11", cwd="missing/dir").reason == "cwd_not_found"
    )
    assert refused(shared_agent, "file_read", path="x11").kind == "not_found"
    shared_agent.call("destroy_workspace_session", workspace_session_id=session)
