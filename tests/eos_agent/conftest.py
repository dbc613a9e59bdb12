"""Agents for the tests of this folder: one per test, or one per module for tests that leave it unchanged."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import drop_dir, make_short_dir

from .agent_process import Agent, running

BASE = {
    "README.md": b"hello\n",
    "src/app.py": b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n",
    "run.sh": b"#!/bin/sh\necho run\n",
    "crlf.txt": b"\xef\xbb\xbfa\r\nb\nc\r\n",
    ".gitignore": b"*.log\n",
}


@pytest.fixture(scope="module")
def init() -> str:
    """The pid 1 of sessions; a module that tests both has its own fixture (tests/native.py)."""
    return "native"


@pytest.fixture
def start_agent(init: str) -> Generator[Callable[..., Agent]]:
    """start_agent(base, uid=..., runtime={...}): a started agent on a store of its own, gone after the
    test.
    """
    with ExitStack() as stack:

        def start(base: dict[str, bytes] | None = None, **config: Any) -> Agent:
            folder = make_short_dir("eos-a-")
            stack.callback(drop_dir, folder)
            return stack.enter_context(running(folder, BASE if base is None else base, **config))

        yield start


@pytest.fixture
def agent(start_agent: Callable[..., Agent]) -> Agent:
    """An agent for this test only."""
    return start_agent()


@pytest.fixture(scope="module")
def shared_agent(init: str) -> Generator[Agent]:
    """An agent that the tests of a module share: a test may depend only on what it made itself."""
    folder = make_short_dir("eos-a-")
    try:
        with running(folder, BASE) as started:
            yield started
    finally:
        drop_dir(folder)


@pytest.fixture
def session(shared_agent: Agent) -> Generator[str]:
    """A session in the shared agent; processes left in it are killed afterwards."""
    made = shared_agent.session()
    yield made
    for command in shared_agent.call("list_commands", workspace_session_id=made)["commands"]:
        if command["status"] == "running":
            shared_agent.call(
                "signal_command", command_session_id=command["command_session_id"], signal="KILL"
            )
    shared_agent.call("destroy_workspace_session", workspace_session_id=made, grace_s=60)
