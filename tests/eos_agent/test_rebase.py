"""rebase_workspace_session: a session continues, under its id, on the newest version; or every conflict is
reported and nothing has happened.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")

TEXT = "".join(f"line {n}\n" for n in range(1, 21))


def refused(agent: Agent, session: str) -> Failed:
    with pytest.raises(Failed) as caught:
        rebase(agent, session)
    return caught.value


def rebase(agent: Agent, session: str) -> dict[str, Any]:
    return agent.call("rebase_workspace_session", workspace_session_id=session)


def opened(agent: Agent, **args: Any) -> str:
    """A session on a version with twenty lines, one of which it has changed; the head has changed another
    since.
    """
    agent.call("file_write", path="twenty", content=TEXT)
    session: str = agent.call("create_workspace_session", agent="carol", **args)["workspace_session_id"]
    agent.call(
        "file_write", path="twenty", content=TEXT.replace("line 3\n", "three\n"), workspace_session_id=session
    )
    agent.call("file_write", path="twenty", content=TEXT.replace("line 15\n", "fifteen\n"))
    agent.call("file_write", path="other", content="theirs\n")
    return session


def listed(agent: Agent, session: str) -> dict[str, Any]:
    return next(
        row
        for row in agent.call("list_workspace_sessions")["sessions"]
        if row["workspace_session_id"] == session
    )


@pytest.mark.parametrize("profile", ["shared", "isolated"])
def test_a_session_sees_what_others_published_beside_its_own_work_and_publishes_its_own(
    agent: Agent, profile: str
) -> None:
    session = opened(agent, network_profile=profile)
    start = listed(agent, session)["base_version"]
    done = rebase(agent, session)
    assert {key: done[key] for key in ("from_version", "to_version", "updated", "merged")} == {
        "from_version": start,
        "to_version": start + 2,
        "updated": 1,
        "merged": 1,
    }
    row = listed(agent, session)
    assert (row["state"], row["base_version"], row["agent"], row.get("address")) == (
        "active",
        start + 2,
        "carol",
        done.get("address"),
    )
    ran = agent.call(
        "exec_command",
        cmd="sed -n '3p;15p' twenty; cat other; echo late > late",
        workspace_session_id=session,
    )
    assert ran["output"] == "three\nfifteen\ntheirs"
    assert rebase(agent, session) == {
        "from_version": start + 2,
        "to_version": start + 2,
        "updated": 0,
        "merged": 0,
        **({"address": done["address"]} if "address" in done else {}),
    }
    published = agent.call("publish_workspace_session", workspace_session_id=session)["publish"]
    assert published["route_summary"] == {"source_count": 2, "ignored_count": 0}, "twenty and late"
    assert agent.call("file_read", path="late")["content"] == "late"
    owners = {
        part["owner"]
        for part in agent.call("file_blame", path="twenty")["ranges"]
        if part["start_line"] <= 3 <= part["start_line"] + part["line_count"] - 1
    }
    assert owners == {f"workspace_session:{session}"}


def test_a_rejection_names_every_conflict_and_the_session_goes_on(agent: Agent) -> None:
    session = opened(agent)
    agent.call("file_write", path="twenty", content=TEXT.replace("line 3\n", "tres\n"))
    error = refused(agent, session)
    assert (error.kind, error.reason, error.details["stage"], error.details["session_retained"]) == (
        "operation_failed",
        "source_conflict",
        "rebase",
        True,
    )
    (conflict,) = error.details["publish_rejection"]["conflicts"]
    assert (conflict["path"], conflict["class"]) == ("twenty", "content")
    assert error.details["publish_rejection"] == {
        **error.details["publish_rejection"],
        "conflicts": agent.call("preview_publish", workspace_session_id=session)["conflicts"],
    }
    assert "three" in agent.call("file_read", path="twenty", workspace_session_id=session)["content"]
    agent.call("file_write", path="twenty", content=TEXT, workspace_session_id=session)
    assert rebase(agent, session)["merged"] == 0
    assert "tres" in agent.call("file_read", path="twenty", workspace_session_id=session)["content"]


def test_what_runs_in_a_session_is_named_and_nothing_of_it_ends(agent: Agent) -> None:
    session = opened(agent)
    running = agent.call("exec_command", cmd="cat", yield_time_ms=0, workspace_session_id=session)[
        "command_session_id"
    ]
    error = refused(agent, session)
    assert (error.reason, error.details["active_command_session_ids"]) == ("session_busy", [running])
    agent.call("close_stdin", command_session_id=running)
    agent.call("wait_command", command_session_id=running)
    text = "setsid sh -c ': > up; exec sleep 600' > /dev/null 2>&1 & until [ -e up ]; do :; done; rm up"
    agent.call("exec_command", cmd=text, workspace_session_id=session)
    error = refused(agent, session)
    assert error.reason == "session_busy" and [one["name"] for one in error.details["processes"]] in (
        ["sleep"],
        ["sh"],
    )
    pid = error.details["processes"][0]["pid"]
    text = f"mkfifo pipe; kill {pid}; while kill -0 {pid} 2> /dev/null; do :; done"
    agent.call("exec_command", cmd=text, workspace_session_id=session)
    done = rebase(agent, session)
    assert (done["merged"], done["dropped"]) == (1, [{"path": "pipe"}]), (
        "what a session has no more is reported"
    )


def test_an_unknown_or_implicit_session_is_refused(agent: Agent) -> None:
    error = refused(agent, "nobody")
    assert (error.kind, error.reason, error.details["workspace_session_id"]) == (
        "not_found",
        "session_not_found",
        "nobody",
    )
    ran = agent.call("exec_command", cmd="cat", yield_time_ms=0)
    assert refused(agent, ran["workspace_session_id"]).reason == "implicit_session"
    agent.call("signal_command", command_session_id=ran["command_session_id"], signal="KILL")


def test_publishes_on_every_side_leave_each_session_with_all_of_its_own(agent: Agent) -> None:
    sessions = [agent.call("create_workspace_session")["workspace_session_id"] for _ in range(4)]
    together, failed = threading.Barrier(8), list[BaseException]()

    def carry(number: int) -> None:
        try:
            together.wait(30)
            for turn in range(4):
                agent.call(
                    "file_write",
                    path=f"own/{number}/{turn}",
                    content="x\n",
                    workspace_session_id=sessions[number],
                )
                rebase(agent, sessions[number])
        except BaseException as error:
            failed.append(error)

    def publish(number: int) -> None:
        try:
            together.wait(30)
            for turn in range(4):
                agent.call("file_write", path=f"theirs/{number}", content=f"{turn}\n")
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=(number,)) for work in (carry, publish) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for number, session in enumerate(sessions):
        rebase(agent, session)
        for there in range(4):
            assert (
                agent.call("file_read", path=f"theirs/{there}", workspace_session_id=session)["content"]
                == "3"
            )
        assert (
            len(agent.call("file_list", path=f"own/{number}", workspace_session_id=session)["entries"]) == 4
        )
        agent.call("publish_workspace_session", workspace_session_id=session)
    assert len(agent.call("file_list", path="own")["entries"]) == 4


def test_a_session_on_a_draft_tells_all_of_its_work_as_discarded_and_leaves_the_draft(agent: Agent) -> None:
    ran = agent.call("exec_command", cmd="cat; echo mine > clash; echo mine > kept", yield_time_ms=0)[
        "command_session_id"
    ]
    agent.call("file_write", path="clash", content="theirs\n")
    agent.call("close_stdin", command_session_id=ran)
    draft = agent.call("wait_command", command_session_id=ran)["draft_id"]
    session = agent.call("create_workspace_session", draft_id=draft)["workspace_session_id"]
    agent.call("file_delete", path="clash", workspace_session_id=session)
    agent.call("file_write", path="late", content="late\n", workspace_session_id=session)
    assert rebase(agent, session)["merged"] == 0
    assert agent.call("file_read", path="clash", workspace_session_id=session)["content"] == "theirs"
    gone = agent.call("destroy_workspace_session", workspace_session_id=session)
    assert gone["discarded"]["paths"] == ["kept", "late"]
    assert [row["draft_id"] for row in agent.call("list_drafts")["drafts"]] == [draft]


def in_conflict(agent: Agent, **args: Any) -> str:
    """A session whose text and whose other files the head has changed too."""
    session = opened(agent, **args)
    agent.call("file_write", path="sub/new", content="mine\n", workspace_session_id=session)
    agent.call("file_write", path="twenty", content=TEXT.replace("line 3\n", "tres\n"), agent="bob")
    agent.call("file_write", path="sub/new", content="a\0b", agent="bob")
    return session


def test_conflicts_are_resolved_as_asked_and_the_session_goes_on(agent: Agent) -> None:
    session = in_conflict(agent)
    done = agent.call(
        "rebase_workspace_session",
        workspace_session_id=session,
        on_conflict="markers",
        paths={"sub": "theirs"},
    )
    assert done["conflict_count"] == 2
    assert [(row["path"], row["resolution"], row.get("kept_as")) for row in done["conflicts"]] == [
        ("sub/new", "theirs", "sub/new.ours"),
        ("twenty", "markers", None),
    ]
    read = agent.call("exec_command", cmd="cat sub/new.ours; head -9 twenty", workspace_session_id=session)
    assert read["output"].startswith("mine\nline 1\nline 2\n<<<<<<< carol\nthree\n||||||| base version ")
    with pytest.raises(Failed) as caught:
        agent.call("publish_workspace_session", workspace_session_id=session)
    assert (caught.value.reason, caught.value.details["session_retained"]) == ("unresolved_conflicts", True)
    assert [row["path"] for row in caught.value.details["paths"]] == ["twenty"]
    refused = agent.call("preview_publish", workspace_session_id=session)["refused"]
    assert refused["reason"] == "unresolved_conflicts"
    again = rebase(agent, session)
    assert again["from_version"] == again["to_version"] == done["to_version"]
    assert ([row["path"] for row in again["unresolved"]], again["unresolved_count"]) == (["twenty"], 1)
    published = agent.call("publish_workspace_session", workspace_session_id=session, allow_unresolved=True)
    assert published["publish"]["no_op"] is False


def test_sides_that_are_none_are_refused(agent: Agent) -> None:
    session = in_conflict(agent)
    for paths, reason in (
        ({"twenty": "mine"}, "bad_choice"),
        ({"twenty": "refuse"}, "bad_choice"),
        ({"../x": "ours"}, "invalid_path"),
        ({"twenty": 1}, "bad_choice"),
        (["twenty"], "wrong_type"),
        ({f"p{n}": "ours" for n in range(10_001)}, "too_long"),
    ):
        with pytest.raises(Failed) as caught:
            agent.call("rebase_workspace_session", workspace_session_id=session, paths=paths)
        assert caught.value.details["argument"] == "paths"
        assert (caught.value.kind, caught.value.reason) == ("invalid_request", reason), paths
    with pytest.raises(Failed) as caught:
        agent.call("create_workspace_session", on_conflict="markers")
    assert caught.value.reason == "missing_argument"


def test_hunks_have_the_texts_of_all_sides(agent: Agent) -> None:
    session = in_conflict(agent)
    (conflict,) = (
        row
        for row in refused(agent, session).details["publish_rejection"]["conflicts"]
        if row["path"] == "twenty"
    )
    (hunk,) = conflict["hunks"]
    assert (hunk["base_text"], hunk["ours_text"], hunk["theirs_text"]) == ("line 3\n", "three\n", "tres\n")
