"""An agent that finds the work of dead sessions: it serves first, each of them costs only itself, and what
fails twice is set aside by name.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from layerstack.kernel import records
from tests.eos_agent.agent_process import WAIT_S, Agent, Failed, refused

pytestmark = [pytest.mark.needs("overlay", "root")]

FAR = "d" * 200


def dead(agent: Agent) -> dict[str, dict[str, Any]]:
    """What list_workspace_sessions says of dead ones, by id."""
    return {
        row["workspace_session_id"]: row
        for row in agent.call("list_workspace_sessions").get("dead_sessions", [])
    }


def until(agent: Agent, session: str, state: str | None) -> dict[str, Any]:
    """The row of that session once it is in that state; None: once it is no dead session any more."""
    deadline = time.monotonic() + WAIT_S
    while True:
        row = dead(agent).get(session, {})
        if row.get("state") == state:
            return row
        assert time.monotonic() < deadline, (row, agent.log[-20:])


def too_far(agent: Agent, session: str) -> str:
    """In the session's upperdir, a path that is longer than any call takes: no capture can name it. Returns
    the upperdir.
    """
    upper = os.path.join(agent.store, "sessions", session, "upper")
    here = os.open(upper, os.O_DIRECTORY | os.O_RDONLY)
    for _ in range(30):
        os.mkdir(FAR, dir_fd=here)
        below = os.open(FAR, os.O_DIRECTORY | os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("work.txt", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    return upper


def bring_near(upper: str) -> None:
    """Undo what makes it too long."""
    from layerstack.kernel import fsync

    fsync.remove_tree(os.path.join(upper, FAR))


def hostile(agent: Agent) -> str:
    session = agent.session(agent="hostile")
    agent.run("echo important > important.txt", session)
    agent.kill()
    too_far(agent, session)
    return session


def test_a_session_that_fails_twice_is_quarantined_and_the_others_become_drafts_and_all_else_is_served(
    agent: Agent,
) -> None:
    agent.call("file_write", path="published.txt", content="kept\n")
    good = agent.session(agent="good")
    agent.run("echo good > good.txt", good)
    bad = hostile(agent)
    agent.start()
    assert agent.read("published.txt") == "kept"
    row = until(agent, bad, "quarantined")
    assert (row["tries"], row["agent"], row["bytes"], row["base_version"]) == (2, "hostile", 10, 2)
    assert "too long" in row["reason"]
    (draft,) = agent.call("list_drafts")["drafts"]
    assert draft["agent"] == "good"
    error = refused(lambda: agent.read("important.txt", workspace_session_id=bad))
    assert (
        error.reason == "session_lost"
        and error.details["quarantined"] is True
        and "retryable" not in error.details
    )
    marker = records.read(f"{agent.store}/sessions/{bad}/recovery.json")
    assert (marker["session_id"], marker["tries"]) == (bad, 2) and "too long" in marker["why"]
    with open(f"{agent.store}/sessions/{bad}/recovery.json") as file:
        assert json.load(file)["format"] == 1


def test_a_quarantined_session_is_not_tried_by_a_later_start_but_when_it_is_asked_for(agent: Agent) -> None:
    bad = hostile(agent)
    agent.start()
    until(agent, bad, "quarantined")
    agent.stop()
    upper = f"{agent.store}/sessions/{bad}/upper"
    bring_near(upper)
    agent.start()
    assert dead(agent)[bad]["state"] == "quarantined", "it could be recovered by now, and nobody has asked"
    assert agent.call("list_drafts")["drafts"] == []
    found = agent.call("recover_workspace_session", workspace_session_id=bad)
    assert found["draft_id"].startswith("draft-") and dead(agent) == {}
    opened = agent.session(draft_id=found["draft_id"])
    assert agent.read("important.txt", workspace_session_id=opened) == "important"
    assert (
        refused(lambda: agent.read("important.txt", workspace_session_id=bad)).details["draft_id"]
        == found["draft_id"]
    )
    assert os.listdir(f"{agent.store}/sessions") == [opened]


def test_a_try_of_a_quarantined_session_that_fails_loses_nothing_and_it_can_be_given_up(agent: Agent) -> None:
    bad = hostile(agent)
    agent.start()
    until(agent, bad, "quarantined")
    error = refused(lambda: agent.call("recover_workspace_session", workspace_session_id=bad))
    assert error.reason == "session_lost"
    until(agent, bad, "quarantined")
    assert os.path.exists(f"{agent.store}/sessions/{bad}/upper/important.txt")
    assert (
        refused(
            lambda: agent.call("destroy_workspace_session", workspace_session_id=bad, if_clean=True)
        ).reason
        == "session_lost"
    )
    gone = agent.call("destroy_workspace_session", workspace_session_id=bad)
    assert gone["destroyed"] is True and "important.txt" in gone["discarded"]["paths"]
    assert dead(agent) == {} and os.listdir(f"{agent.store}/sessions") == []
    assert (
        refused(lambda: agent.read("important.txt", workspace_session_id=bad)).reason == "session_not_found"
    )
    assert (
        refused(lambda: agent.call("recover_workspace_session", workspace_session_id=bad)).reason
        == "session_not_found"
    )
    holders = [lease["holder"] for lease in agent.call("layerstack").get("leases", [])]
    assert not any(bad in holder for holder in holders)


def test_its_base_is_not_folded_away_while_it_is_quarantined(agent: Agent) -> None:
    for number in range(3):
        agent.call("file_write", path=f"before-{number}", content="x\n")
    bad = hostile(agent)
    agent.start()
    until(agent, bad, "quarantined")
    for number in range(3):
        agent.call("file_write", path=f"after-{number}", content="x\n")
    agent.tcp_call("squash_layerstack")
    bring_near(f"{agent.store}/sessions/{bad}/upper")
    draft_id = agent.call("recover_workspace_session", workspace_session_id=bad)["draft_id"]
    opened = agent.session(draft_id=draft_id)
    names = agent.run("ls", opened)["output"].split()
    assert {"important.txt", "before-0"} <= set(names) and "after-0" not in names


def test_an_agent_that_dies_while_it_recovers_a_session_counts_that_as_a_try(agent: Agent) -> None:
    """As if it had been killed in the middle of it, twice: the marker that it writes before each try is all
    that is left.
    """
    session = agent.session()
    agent.run("echo mine > mine.txt", session)
    agent.kill()
    for tries in (1, 2):
        records.write(
            f"{agent.store}/sessions/{session}/recovery.json",
            {"session_id": session, "tries": tries, "why": None},
        )
        if tries == 2:
            agent.start()
    row = until(agent, session, "quarantined")
    assert row["tries"] == 2 and "died" in row["reason"]
    assert agent.call("recover_workspace_session", workspace_session_id=session)["draft_id"]


def test_a_recovery_that_takes_too_long_is_ended_and_everything_is_served_meanwhile(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(runtime={"workspace": {"recovery_timeout_s": 0.001}})
    session = agent.session()
    agent.run("mkdir many && cd many && seq 1 4000 | xargs touch", session)
    agent.call("file_write", path="published.txt", content="kept\n")
    agent.kill()
    agent.start()
    assert agent.read("published.txt") == "kept"
    other = agent.session()
    agent.run("echo other > other.txt", other)
    assert agent.call("publish_workspace_session", workspace_session_id=other)["destroyed"] is True
    row = until(agent, session, "quarantined")
    assert "took longer than" in row["reason"] and row["paths"] == 4000
    agent.settings["config"]["runtime"]["workspace"]["recovery_timeout_s"] = 60
    agent.stop()
    agent.start()
    assert agent.call("recover_workspace_session", workspace_session_id=session)["draft_id"]


def test_a_process_that_is_killed_while_it_recovers_takes_nobody_with_it(agent: Agent) -> None:
    """Large enough that it is seen in the middle of it; whatever kills it, the session is recovered by the
    second try or set aside.
    """
    session = agent.session()
    assert agent.run("mkdir many && cd many && seq 1 4000 | xargs touch", session)["status"] == "ok"
    agent.kill()
    agent.start()
    killed = False
    deadline = time.monotonic() + WAIT_S
    while not killed and time.monotonic() < deadline:
        for pid in children_of(agent.pid):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"recover" in file.read().split(b"\0"):
                    os.kill(pid, 9)
                    killed = True
    assert killed and agent.read("README.md") == "hello"
    until(agent, session, None)
    (draft,) = agent.call("list_drafts")["drafts"]
    assert draft["paths"] >= 4000
    assert any('"draft_pending"' in line and "signal 9" in line for line in agent.log)


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
        except FileNotFoundError:
            continue
    return found


def test_an_agent_that_is_stopped_while_it_recovers_has_not_tried(agent: Agent) -> None:
    sessions = [agent.session() for _ in range(3)]
    for session in sessions:
        agent.run("mkdir many && cd many && seq 1 3000 | xargs touch", session)
    agent.kill()
    for _ in range(4):  # more often than it may fail
        agent.start()
        agent.stop()
    agent.start()
    for session in sessions:
        until(agent, session, None)
    assert len(agent.call("list_drafts")["drafts"]) == 3
    assert not any("quarantined" in line for line in agent.log)


def test_a_tree_ten_thousand_levels_deep_and_modes_that_nobody_may_read_keep_no_agent_from_its_work(
    agent: Agent,
) -> None:
    session = agent.session()
    agent.run("mkdir closed && echo x > closed/f && chmod 000 closed/f closed", session)
    agent.kill()
    here = os.open(f"{agent.store}/sessions/{session}/upper", os.O_DIRECTORY | os.O_RDONLY)
    for _ in range(10_000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_DIRECTORY | os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    agent.start()
    assert agent.read("README.md") == "hello"
    until(agent, session, "quarantined")
    assert agent.call("destroy_workspace_session", workspace_session_id=session)["destroyed"] is True
    assert dead(agent) == {}


def test_unpublished_work_tells_dead_sessions_and_damaged_drafts(agent: Agent) -> None:
    kept = agent.session()
    agent.run("echo kept > kept.txt", kept)
    bad = hostile(agent)
    agent.start()
    until(agent, bad, "quarantined")
    (draft,) = agent.call("list_drafts")["drafts"]
    agent.stop()
    path = f"{agent.store}/drafts/{draft['draft_id']}/draft.json"
    with open(path, "r+b") as file:
        file.truncate(20)
    agent.start()
    found = agent.tcp_call("unpublished_work", clean=True)
    assert [(row["workspace_session_id"], row["state"], row["bytes"]) for row in found["dead_sessions"]] == [
        (bad, "quarantined", 10)
    ]
    assert [(row["draft_id"], row["reason"]) for row in found["drafts"]] == [(draft["draft_id"], "damaged")]


def test_a_call_that_names_a_session_under_recovery_gets_its_draft(agent: Agent) -> None:
    session = agent.session()
    agent.run("echo mine > mine.txt", session)
    agent.kill()
    agent.start()
    error: Failed = refused(lambda: agent.read("mine.txt", workspace_session_id=session))
    assert error.reason == "session_lost"
    assert error.details.get("recovering") is True or error.details["draft_id"].startswith("draft-")
    until(agent, session, None)
    assert (
        refused(lambda: agent.read("mine.txt", workspace_session_id=session))
        .details["draft_id"]
        .startswith("draft-")
    )


def test_a_draft_that_was_open_and_left_as_it_was_stays_one_draft_and_its_dead_session_names_it(
    agent: Agent,
) -> None:
    first = agent.session()
    agent.call("file_write", path="new.txt", content="work\n", workspace_session_id=first)
    agent.kill()
    agent.start()
    until(agent, first, None)
    (draft,) = agent.call("list_drafts")["drafts"]
    session = agent.call("create_workspace_session", draft_id=draft["draft_id"])["workspace_session_id"]
    agent.kill()
    agent.start()
    until(agent, session, None)
    assert [row["draft_id"] for row in agent.call("list_drafts")["drafts"]] == [draft["draft_id"]]
    error = refused(lambda: agent.call("file_read", path="new.txt", workspace_session_id=session))
    assert error.reason == "session_lost" and error.details["draft_id"] == draft["draft_id"]
