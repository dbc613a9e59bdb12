"""Squashes that nobody asks for: with a policy, when so many layers can be folded, and never in the way of a
publish.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.sessions.squash import Policy
from layerstack.squash.depth import Depth
from tests.eos_agent.agent_process import WAIT_S, Agent, Failed
from tests.eos_agent.internal_calls import squash

pytestmark = pytest.mark.needs("overlay")

POLICY: dict[str, Any] = {"layerstack": {"autosquash_policies": {"squash_at_n_layers": 3}}}


def write(agent: Agent, *names: str) -> None:
    for name in names:
        agent.call("file_write", path=name, content=f"{name}\n")


def squashed(agent: Agent, times: int = 1) -> None:
    """Wait until it has happened so often."""
    until = time.monotonic() + WAIT_S
    while len(events(agent, "completed")) < times:
        assert time.monotonic() < until, agent.log
        threading.Event().wait(0.02)


def events(agent: Agent, name: str) -> list[dict[str, Any]]:
    """What the agent's log says of squashes by themselves."""
    lines = [json.loads(line) for line in agent.log if '"event": "layerstack.autosquash.' in line]
    return [line for line in lines if line["event"] == f"layerstack.autosquash.{name}"]


def layer_ids(agent: Agent) -> str:
    return "".join(str(layer["layer_id"])[0] for layer in agent.call("layerstack")["layers"])


def test_as_many_layers_as_the_policy_says_are_folded_without_being_asked(
    start_agent: Callable[..., Agent],
) -> None:
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
    first, second = events(agent, "triggered")
    assert (first["why"], first["layers"], first["foldable"]) == ("layers", 4, 3) and second["foldable"] >= 3
    assert [event["due"] for event in events(agent, "evaluate")].count(True) == 2
    done = events(agent, "completed")[0]
    assert (done["why"], done["version"], done["blocks"], done["replaced"]) == ("layers", 5, 1, 3) and done[
        "dur_ms"
    ] > 0
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


def test_at_its_start_the_agent_folds_what_has_piled_up_and_without_a_policy_nothing(
    start_agent: Callable[..., Agent],
) -> None:
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


def test_two_that_are_asked_for_at_once_are_one_and_a_refusal_that_may_be_repeated(
    start_agent: Callable[..., Agent],
) -> None:
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


def test_layers_that_touch_one_directory_are_folded_by_the_number_of_these(
    start_agent: Callable[..., Agent],
) -> None:
    base = {f"{name}/0": b"0" for name in ("a", "a/x", "b", "c", "d")}
    agent = start_agent(
        base, runtime={"layerstack": {"autosquash_policies": {"squash_at_shared_directory_layers": 3}}}
    )
    write(
        agent, "a/1", "b/1", "c/1", "d/1", "a/x/1", "a/2", "b/2"
    )  # two entries of "a": what holds it on the way to "a/x" does not count
    assert layer_ids(agent) == "LLLLLLLB"
    write(agent, "b/3")
    squashed(agent)
    assert layer_ids(agent) == "SB"
    (triggered,) = events(agent, "triggered")
    assert (triggered["why"], triggered["sharing"], triggered["foldable"]) == ("shared_directory", 3, 8)


@pytest.mark.parametrize(
    ("depth", "due"),
    [
        (Depth(17, 16, 16 * 256, "d", 15), None),
        (Depth(17, 16, 16 * 256, "d", 16), "shared_directory"),
        (
            Depth(17, 16, 16 * 256 + 1, "d", 16),
            None,
        ),  # one of them is big: it is not folded for the sake of fifteen small ones
        (Depth(41, 40, 40 * 256, "d", 16), "shared_directory"),
        (Depth(101, 100, 10**6, "", 0), "layers"),
    ],
)
def test_a_directory_is_no_reason_for_a_fold_that_costs_more_than_its_layers_did(
    depth: Depth, due: str | None
) -> None:
    assert Policy(100, 16).due(depth) == due


def test_a_squash_that_fails_says_so_and_the_next_one_goes_on_from_there(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(runtime=POLICY)
    write(agent, "a", "b")
    folder = f"{agent.store}/.layer-metadata"
    (index,) = (
        f"{folder}/{name}"
        for name in os.listdir(folder)
        if name.startswith("L000002") and name.endswith(".index")
    )
    os.rename(index, index + ".elsewhere")  # a squash reads it, a publish does not
    write(agent, "c")
    until = time.monotonic() + WAIT_S
    while not events(agent, "failed"):
        assert time.monotonic() < until, agent.log
        threading.Event().wait(0.02)
    os.rename(index + ".elsewhere", index)
    (failed,) = events(agent, "failed")
    assert (failed["why"], failed["error"], failed["errno"]) == ("layers", "FileNotFoundError", "ENOENT")
    assert layer_ids(agent) == "LLLB"
    write(agent, "d")
    squashed(agent)
    assert layer_ids(agent) == "SB" and [agent.read(name) for name in "abcd"] == ["a", "b", "c", "d"]


def test_with_a_policy_a_publish_that_finds_the_quota_of_layers_used_up_folds_first(
    start_agent: Callable[..., Agent],
) -> None:
    policy = {"autosquash_policies": {"squash_at_n_layers": 400}, "quota_layers": 2}
    agent = start_agent(runtime={"layerstack": policy})
    session = agent.session()
    agent.call("file_write", path="mine", content="mine\n", workspace_session_id=session)
    write(agent, "a", "b")
    published = agent.call("publish_workspace_session", workspace_session_id=session)
    assert published["publish"]["revision"]["layer_count"] == 3 and layer_ids(agent) == "LSB"
    write(agent, "c")
    assert layer_ids(agent) == "LSB"
    assert [event["why"] for event in events(agent, "completed")] == ["quota_layers", "quota_layers"]
    keeper = agent.session()
    write(agent, "c")  # the same bytes: nothing to publish
    with pytest.raises(Failed) as caught:
        write(agent, "d")
    assert caught.value.reason == "quota_layers"
    agent.call("destroy_workspace_session", workspace_session_id=keeper)
    write(agent, "d")
    assert layer_ids(agent) == "LSB"
