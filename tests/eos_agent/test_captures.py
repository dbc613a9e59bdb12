"""Captures, which look at every file of a session, take nothing from others, and can be stopped."""

from __future__ import annotations

import concurrent.futures
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import drop_dir, make_short_dir
from tests.eos_agent.internal_calls import cancel

from .agent_process import Agent, Failed
from .conftest import BASE

pytestmark = pytest.mark.needs("overlay")

HELD = """
import os, sys, threading
from layerstack.model import cancel as stopping
check, gate, inside = stopping.check, sys.argv[1], threading.local()
def held():
    check()
    if os.path.exists(gate) and os.path.exists(f"{gate}-of-{threading.current_thread().name}") is False:
        open(f"{gate}-of-{threading.current_thread().name}", "w").close()
    while os.path.exists(gate):
        check()
        threading.Event().wait(0.01)
stopping.check = held
starter = sys.argv[4]  # of `python -c starter program ...`, which this is the prefix of
del sys.argv[1:5]
exec(starter)
"""
"""The agent itself, each of whose captures waits at every look for as long as a file is there; the file's
name with the thread's says that it does.
"""

CAPTURES = 8


class Gate:
    """An agent whose captures can be held."""

    def __init__(self, agent: Agent, path: str) -> None:
        self.agent, self.path = agent, path

    def close(self) -> None:
        Path(self.path).touch()

    def open(self) -> None:
        os.unlink(self.path)

    def held(self) -> int:
        folder, name = os.path.split(self.path)
        return sum(found.startswith(f"{name}-of-") for found in os.listdir(folder))


@pytest.fixture
def gate() -> Generator[Gate]:
    folder = make_short_dir("eos-a-")
    agent = Agent(folder, BASE)
    path = os.path.join(folder, "gate")
    agent.prefix = [sys.executable, "-c", HELD, path]
    try:
        agent.start()
        yield Gate(agent, path)
    finally:
        agent.close()
        drop_dir(folder)


def wait_until(true: Callable[[], bool], jobs: list[concurrent.futures.Future[dict[str, Any]]]) -> None:
    """A job that ended before is no reason to wait on."""
    while not true():
        ended = [job for job in jobs if job.done()]
        assert not ended, ended[0].result()


def started(
    gate: Gate, pool: concurrent.futures.ThreadPoolExecutor, op: str
) -> list[concurrent.futures.Future[dict[str, Any]]]:
    """As many captures as the agent has threads for them, each of a session of its own, and all of them
    held.
    """
    sessions = [gate.agent.session() for _ in range(CAPTURES)]
    for session in sessions:
        gate.agent.run("echo x > new; truncate -s 1T huge", session)
    gate.close()
    jobs = [
        pool.submit(gate.agent.call, op, f"capture-{n}", workspace_session_id=session)
        for n, session in enumerate(sessions)
    ]
    wait_until(lambda: gate.held() == CAPTURES, jobs)
    return jobs


@pytest.mark.parametrize("op", ["preview_publish", "publish_workspace_session"])
def test_while_as_many_captures_as_there_are_threads_are_held_all_else_is_done(gate: Gate, op: str) -> None:
    """Finding 6: eight publishes of sparse files stopped exec_command, file_read, create_workspace_session
    and the lists.
    """
    agent = gate.agent
    other = agent.session()
    with concurrent.futures.ThreadPoolExecutor(CAPTURES) as pool:
        jobs = started(gate, pool, op)
        try:
            assert agent.read("README.md") == "hello"
            assert agent.read("README.md", workspace_session_id=other) == "hello"
            assert agent.run("echo here", other)["exit_code"] == 0
            assert agent.session()
            assert len(agent.call("list_workspace_sessions")["sessions"]) == CAPTURES + 2
            assert agent.call("list_drafts")["drafts"] == []
            assert agent.version() == 1
            assert not any(job.done() for job in jobs)
        finally:
            gate.open()
        for job in jobs:
            if op == "preview_publish":
                assert job.result()["would_publish"]
        if op == "publish_workspace_session":
            done = [job.exception() for job in jobs]
            assert done.count(None) == CAPTURES, "the same content is no conflict"


def test_a_capture_is_cancelled_by_its_request_and_the_session_is_as_it_was(gate: Gate) -> None:
    agent = gate.agent
    with concurrent.futures.ThreadPoolExecutor(CAPTURES) as pool:
        jobs = started(gate, pool, "publish_workspace_session")
        assert cancel(agent, "capture-3") == {"request_id": "capture-3", "cancelled": True}
        error = jobs[3].exception()
        assert (
            isinstance(error, Failed)
            and error.reason == "cancelled"
            and error.details["session_retained"] is True
        )
        session = error.details["workspace_session_id"]
        assert agent.run("cat new", session)["output"].strip() == "x"
        assert [job for n, job in enumerate(jobs) if job.done()] == [jobs[3]]
        gate.open()
        for n, job in enumerate(jobs):
            if n != 3:
                assert job.result()["destroyed"]
        assert agent.call("publish_workspace_session", workspace_session_id=session)["publish"]["no_op"]


def test_a_drain_does_not_wait_for_captures_and_the_next_start_has_the_work(gate: Gate) -> None:
    agent = gate.agent
    with concurrent.futures.ThreadPoolExecutor(CAPTURES) as pool:
        jobs = started(gate, pool, "preview_publish")
        assert agent.stop() == 0
        for job in jobs:
            assert job.exception() is not None or job.result()
    gate.open()
    agent.start()
    assert len(agent.call("list_drafts")["drafts"]) == CAPTURES
