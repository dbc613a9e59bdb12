"""A call answers when the command itself has ended, whatever it left in the background; what that writes
later is there to read.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.native import both as both

from .agent_process import Agent

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

TTY = pytest.mark.parametrize("tty", [True, False], ids=["pty", "pipes"])
LONG_MS = 600_000
"""No test waits for so long."""
WAITS = "(read x < gate; echo later; read x < next; echo last) & echo first; exit 3"


@TTY
def test_a_call_answers_with_what_is_left_in_the_background(shared_agent: Agent, tty: bool) -> None:
    session = shared_agent.session()
    shared_agent.run("mkfifo gate next", session)
    ran = shared_agent.run(WAITS, session, yield_time_ms=LONG_MS, tty=tty)
    assert (ran["status"], ran["exit_code"], ran["leader_exit_code"], ran["output"]) == (
        "running",
        None,
        3,
        "first",
    )
    assert ran["left_behind"] == ran["waiting_on"] and [
        process["name"] for process in ran["left_behind"]
    ] in (["sh"], ["bash"])
    command = ran["command_session_id"]
    shared_agent.run("echo > gate", session)
    while "later" not in shared_agent.call("read_command_lines", command_session_id=command)["output"]:
        pass
    shared_agent.run("echo > next", session)
    ended = shared_agent.call("wait_command", command_session_id=command, timeout_ms=LONG_MS)
    assert (ended["status"], ended["exit_code"]) == ("error", 3) and "left_behind" not in ended
    assert (
        shared_agent.call("read_command_lines", command_session_id=command)["output"] == "first\nlater\nlast"
    )
    shared_agent.call("destroy_workspace_session", workspace_session_id=session)


def test_input_that_ends_the_command_itself_is_answered_as_soon(shared_agent: Agent) -> None:
    session = shared_agent.session()
    command = shared_agent.run("sleep 1000 & read x", session, yield_time_ms=0)["command_session_id"]
    ran = shared_agent.call(
        "write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=LONG_MS
    )
    assert (ran["status"], ran["waiting_on"][0]["name"]) == ("running", "sleep")
    shared_agent.call("signal_command", command_session_id=command, signal="KILL")
    shared_agent.call("destroy_workspace_session", workspace_session_id=session, grace_s=60)


def test_what_ends_within_the_grace_is_waited_for(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(runtime={"command": {"leader_grace_s": 60}})
    ran = agent.run("(sleep 0.3; echo done > done) & exit 4", yield_time_ms=LONG_MS)
    assert (ran["status"], ran["exit_code"]) == ("error", 4) and ran["publish"]["published"]
    assert agent.read("done") == "done"


def test_a_one_shot_publishes_when_its_background_has_ended(shared_agent: Agent) -> None:
    text = (
        "(: > opened; read x; echo $x > heard) < /dev/tty & until [ -e opened ]; do :; "
        "done; echo up"
    )  # no terminal is opened after its leader
    ran = shared_agent.run(text, yield_time_ms=LONG_MS)
    assert (ran["status"], ran["leader_exit_code"], ran["output"]) == ("running", 0, "up")
    ended = shared_agent.call(
        "write_command_stdin",
        command_session_id=ran["command_session_id"],
        stdin="word\n",
        yield_time_ms=LONG_MS,
    )
    assert ended["status"] == "ok" and ended["publish"]["published"] and shared_agent.read("heard") == "word"
