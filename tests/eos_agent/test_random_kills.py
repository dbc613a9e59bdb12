"""Processes of a sandbox that are killed at any moment: what was acknowledged to a session is in it, or in
its draft, whole.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.end_to_end.cli_user import is_first
from tests.native import both as both
from tests.processes import children_of, cmdline

from .agent_process import Agent, Failed

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

ROUNDS = [pytest.param(2, id="twice"), pytest.param(60, id="long", marks=pytest.mark.soak)]
SIZE = 1 << 20
WAIT_S = 60
RETRIED = ("operation_killed", "no_file_helper")


def text(n: int) -> str:
    return f"{n:>9}\n" * (SIZE // 10)


class Writer(threading.Thread):
    """Writes one file of a session again and again until that is lost. `acknowledged`: the last version that
    was acknowledged; `tried`: the one after.
    """

    def __init__(self, agent: Agent, session: str, begin: int) -> None:
        super().__init__(daemon=True)
        self.agent, self.session = agent, session
        self.acknowledged, self.tried = begin, begin
        self.stop = threading.Event()
        self.ended: Failed | Exception | None = None

    def run(self) -> None:
        while not self.stop.is_set():
            self.tried += 1
            try:
                self.agent.call(
                    "file_write", path="f", content=text(self.tried), workspace_session_id=self.session
                )
                self.acknowledged = self.tried
            except Failed as error:
                if error.reason not in RETRIED:
                    self.ended = error
                    return
            except (OSError, ValueError) as error:  # the agent is gone
                self.ended = error
                return


def zygote_of(agent: Agent) -> int:
    return min(pid for pid in children_of(agent.pid) if b"recover" not in cmdline(pid))


def helpers_of(agent: Agent) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        zygote = zygote_of(agent)
        return [pid for pid in children_of(zygote) if not is_first(pid)]
    return []


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def whole(shown: str, acknowledged: int, tried: int, what: str) -> int:
    """The version that is there: one that was acknowledged, or the one that was being written; all of it."""
    n = int(shown[:9])
    assert shown.rstrip("\n") == text(n).rstrip("\n") and acknowledged <= n <= tried, (
        f"{what}: {n}, of {acknowledged} to {tried}, {len(shown)} characters"
    )
    return n


def shown(agent: Agent, session: str) -> str:
    ran = agent.run("cat f", session, yield_time_ms=WAIT_S * 1000, tty=False)
    command, found = ran.get("command_session_id"), str(ran["output"])
    if command is None:
        return found
    lines, at = list[str](), 0
    while True:
        page = agent.call("read_command_lines", command_session_id=command, start_offset=at, limit=1000)
        lines += page["output"].split("\n")
        at = page["end_offset"]
        if at >= page["total_lines"]:
            return "\n".join(lines)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_file_helper_that_is_killed_while_it_writes_leaves_the_old_or_the_new_file(
    start_agent: Callable[..., Agent], init: str, rounds: int
) -> None:
    agent, dice = start_agent({"f": text(0).encode()}), random.Random(rounds)
    session = agent.session()
    writer = Writer(agent, session, 0)
    writer.start()
    for _ in range(rounds):
        before = writer.acknowledged
        deadline = time.monotonic() + WAIT_S
        while writer.acknowledged == before or (init == "native" and not helpers_of(agent)):
            assert time.monotonic() < deadline and writer.is_alive(), writer.ended
        time.sleep(dice.random() * 0.02)  # anywhere in a write
        for pid in helpers_of(agent):
            kill(pid)
    writer.stop.set()
    writer.join(WAIT_S)
    assert writer.ended is None
    whole(shown(agent, session), writer.acknowledged, writer.tried, "the session")
    agent.call("publish_workspace_session", workspace_session_id=session)
    assert not [name for name in agent.run("ls -A")["output"].split() if name != "f"], (
        "nothing half done was published"
    )


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_zygote_and_a_recovery_that_are_killed_at_any_moment_lose_nothing_that_was_written(
    start_agent: Callable[..., Agent], rounds: int
) -> None:
    agent, dice = start_agent({"f": text(0).encode()}), random.Random(rounds)
    session, n = agent.session(), 0
    for _ in range(rounds):
        writer = Writer(agent, session, n)
        writer.start()
        deadline = time.monotonic() + WAIT_S
        while writer.acknowledged == n:
            assert time.monotonic() < deadline and writer.is_alive(), writer.ended
        time.sleep(dice.random() * 0.05)
        kill(zygote_of(agent))
        writer.join(WAIT_S)
        assert not writer.is_alive() and agent.wait() == 1
        agent.start()
        end = time.monotonic() + dice.random() * 0.3
        while time.monotonic() < end:  # the first try of the two that there are
            found = [pid for pid in children_of(agent.pid) if b"recover" in cmdline(pid)]
            if found:
                time.sleep(max(0.0, end - time.monotonic()))
                kill(found[0])
                break
        (draft,) = (
            one
            for one in agent.call("list_drafts")["drafts"]
            if one["origin"] == f"workspace_session:{session}"
        )
        session = agent.session(draft_id=draft["draft_id"])
        n = whole(shown(agent, session), writer.acknowledged, writer.tried, "the draft")
