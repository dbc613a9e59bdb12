"""Whether a session is refused while memory for it is missing, by real cgroups: with numbers, with nothing
made, and only as long as that is so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.kernel import headroom
from tests import in_namespace

from .agent_process import Agent, Failed, refused

MIB = 1 << 20
MOST = 300
SMALL = 36 * MIB

Starter = Callable[[dict[str, Any]], Agent]


@pytest.fixture
def limited(start_agent: Callable[..., Agent]) -> Starter:
    """limited(workload): an agent whose sessions together are held to that."""

    def start(workload: dict[str, Any]) -> Agent:
        agent = start_agent()
        agent.stop()
        agent.settings["limits"] = {"workload": workload, "session": {}}
        return agent.start()

    return start


def fill(agent: Agent) -> tuple[list[str], Failed]:
    """Sessions until one is refused."""
    made: list[str] = []
    while len(made) < MOST:
        try:
            made.append(agent.session())
        except Failed as error:
            return made, error
    pytest.fail(f"{MOST} sessions were made, and none was refused")


def _refused_at_last(agent: Agent, made: list[str]) -> Failed:
    """The refusal of a command that would have a session of its own. The kernel may take pages back after the
    sandbox was full: then it runs, and a session more fills the sandbox again.
    """
    for _ in range(20):
        try:
            agent.run("true")
        except Failed as failed:
            return failed
        with contextlib.suppress(Failed):
            made.append(agent.session())
    raise AssertionError("never refused")


@pytest.mark.needs("overlay", "cgroups")
def test_sessions_are_refused_with_numbers_before_memory_runs_out_and_those_that_are_there_go_on(
    limited: Starter,
) -> None:
    agent = limited({"memory_max_bytes": SMALL})
    made, full = fill(agent)
    assert (full.kind, full.reason) == ("server_busy", "sandbox_full") and len(made) >= 2
    details = full.details
    assert (details["limit"], details["value"], details["sessions"]) == (
        "memory",
        SMALL,
        len(made),
    ) and details["retryable"] is True
    assert (
        details["needed_bytes"] > headroom.SESSION_BYTES
        and 0 <= details["free_bytes"] < details["needed_bytes"] < details["value"]
    )
    assert (
        str(details["needed_bytes"]) in full.message
        and str(details["free_bytes"]) in full.message
        and "publish_workspace_session" in details["hint"]
    )
    assert _refused_at_last(agent, made).reason == "sandbox_full"
    for session in made:
        done = agent.run("echo fine", session)
        assert (done["status"], done["output"].strip()) == ("ok", "fine") and "oom_kills" not in done
    rows = agent.call("list_workspace_sessions")["sessions"]
    assert {row["workspace_session_id"] for row in rows} == set(made)
    for session in made[: max(2, len(made) // 2)]:  # the hint
        agent.call("destroy_workspace_session", workspace_session_id=session)
    assert agent.run("echo fine", agent.session())["output"].strip() == "fine"


@pytest.mark.needs("overlay", "cgroups")
def test_what_the_kernel_can_take_back_is_no_reason_to_refuse(limited: Starter) -> None:
    agent = limited({"memory_max_bytes": 64 * MIB})
    session = agent.session()
    filled = agent.run(
        "head -c 150M /dev/zero > big; cat big big > /dev/null; echo read", session, tty=False
    )  # more than there is: all of it is cache
    assert filled["output"].strip() == "read", filled
    assert agent.run("echo fine", agent.session())["output"].strip() == "fine"


@pytest.mark.needs("overlay", "cgroups")
def test_sessions_are_refused_while_others_have_all_processes(limited: Starter) -> None:
    agent = limited({"pids_max": 20})
    made, full = fill(agent)
    details = full.details
    assert (full.reason, details["limit"], details["value"], details["sessions"]) == (
        "sandbox_full",
        "pids",
        20,
        len(made),
    )
    assert details["free_processes"] < details["needed_processes"] and 5 <= len(made) < 20
    assert agent.run("echo fine", made[0])["output"].strip() == "fine"


@pytest.mark.parametrize("ordinary", [pytest.param(True, marks=pytest.mark.needs("userns", "uid")), False])
@pytest.mark.needs("overlay")
def test_the_number_of_sessions_is_what_was_configured_and_the_answer_names_it(
    start_agent: Callable[..., Agent], ordinary: bool
) -> None:
    agent = start_agent(
        uid=in_namespace.ORDINARY_UID if ordinary else None, runtime={"workspace": {"max_sessions": 3}}
    )
    made, full = fill(agent)
    assert (full.kind, full.reason, len(made)) == ("server_busy", "sandbox_full", 3)
    assert (full.details["limit"], full.details["value"], full.details["sessions"]) == (
        "runtime.workspace.max_sessions",
        3,
        3,
    )
    agent.call("destroy_workspace_session", workspace_session_id=made.pop())
    made.append(agent.session())


@pytest.mark.parametrize("ordinary", [pytest.param(True, marks=pytest.mark.needs("userns", "uid")), False])
@pytest.mark.needs("overlay")
def test_without_cgroups_it_is_the_machine_that_has_no_memory_left(
    start_agent: Callable[..., Agent], ordinary: bool
) -> None:
    agent = start_agent(
        uid=in_namespace.ORDINARY_UID if ordinary else None,
        runtime={"workspace": {"session_memory_bytes": 1 << 50}},
    )
    full = refused(agent.session)
    assert (full.reason, full.details["limit"], full.details["where"]) == (
        "sandbox_full",
        "memory",
        "the machine",
    )
    assert 0 < full.details["free_bytes"] <= full.details["value"] < full.details["needed_bytes"]
    assert agent.call("list_workspace_sessions")["sessions"] == []
