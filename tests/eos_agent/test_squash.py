"""Squashes that nobody asks for: with a policy, when so many layers can be folded, and never in the way of a publish."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.eos_agent.agent_process import WAIT_S, Agent

pytestmark = pytest.mark.needs("overlay")

POLICY: dict[str, Any] = {"layerstack": {"autosquash_policies": {"squash_at_n_layers": 3}}}


def write(agent: Agent, *names: str) -> None:
    for name in names:
        agent.call("file_write", path=name, content=f"{name}\n")


def squashed(agent: Agent, times: int = 1) -> None:
    """Wait until it has happened so often."""
    until = time.monotonic() + WAIT_S
    while sum('"event": "squashed"' in line for line in agent.log) < times:
        assert time.monotonic() < until, agent.log
        threading.Event().wait(0.02)


def squash(agent: Agent) -> dict[str, Any]:
    """The reply to the internal operation that the manager forwards."""
    connection = agent.connect()
    try:
        return connection.line(agent.line("squash_layerstack"))
    finally:
        connection.close()


def layer_ids(agent: Agent) -> str:
    return "".join(str(layer["layer_id"])[0] for layer in agent.call("layerstack")["layers"])


def test_as_many_layers_as_the_policy_says_are_folded_without_being_asked(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(runtime=POLICY)
    write(agent, "a", "b")
    assert layer_ids(agent) == "LLB"
    write(agent, "c")
    squashed(agent)
    assert layer_ids(agent) == "SB" and agent.version() == 5
    assert [agent.read(name) for name in "abc"] == ["a", "b", "c"]
    write(agent, "d", "e")
    squashed(agent, 2)
    assert layer_ids(agent) == "SB"
    assert squash(agent) == {"manifest_version": 8, "squashed_blocks": [], "swept_sessions": []}


def test_layers_that_a_session_keeps_apart_do_not_count(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(runtime=POLICY)
    sessions: list[str] = []
    for name in "abcd":
        write(agent, name)
        sessions.append(agent.session())
    write(agent, "e", "f")
    assert layer_ids(agent) == "LLLLLLB"
    for session in sessions:
        agent.call("destroy_workspace_session", workspace_session_id=session)
    write(agent, "g")
    squashed(agent)
    assert layer_ids(agent) == "SB"


def test_at_its_start_the_agent_folds_what_has_piled_up_and_without_a_policy_nothing(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent()
    write(agent, *"abcd")
    assert layer_ids(agent) == "LLLLB"
    agent.stop()
    agent.log.clear()
    agent.settings["config"] = {"runtime": POLICY}
    agent.start()
    squashed(agent)
    assert layer_ids(agent) == "SB"
    assert agent.stop() == 0


def test_two_that_are_asked_for_at_once_are_one_and_a_refusal_that_may_be_repeated(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent()
    for round_ in range(20):
        write(agent, *(f"{round_}-{n}" for n in range(3)))
        answers: list[dict[str, Any]] = []

        def ask(answers: list[dict[str, Any]] = answers) -> None:
            answers.append(squash(agent))

        askers = [threading.Thread(target=ask) for _ in range(2)]
        for one in askers:
            one.start()
        for one in askers:
            one.join()
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert len(answers) == 2 and len(refused) < 2
        for error in refused:
            assert (error["kind"], error["details"]["reason"]) == ("operation_failed", "squash_in_flight")
            assert error["details"]["retryable"] and "in flight" in error["message"]
        assert layer_ids(agent) == "SB"
