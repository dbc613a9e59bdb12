"""The process that recovers dead sessions, spoken to as the agent does: its limits, and what it does when it
reaches them.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from eos_agent.sessions import recovery_child
from eos_agent.sessions.recovery_child import EXIT_MEMORY, MEMORY
from layerstack.recovery import opening
from tests.eos_agent.agent_process import WAIT_S, Agent

pytestmark = [pytest.mark.needs("overlay", "root")]

# in one directory, with long names: its listing needs several MB, more than an allocator holds free
FILES = 20_000


class Spoken:
    """The child, with this process in the place of the agent."""

    def __init__(self, agent: Agent, memory_bytes: int) -> None:
        self.lock_fd = opening.lock(agent.store)
        argv = [sys.executable, "-m", "eos_agent", "recover", "--settings", agent.settings_path]
        self.staging = os.path.join(agent.store, "staging", "recovery-test")
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(self.lock_fd,)
        )
        self.say(
            {
                "parent": os.getpid(),
                "memory_bytes": memory_bytes,
                "staging": self.staging,
                "lock_fd": self.lock_fd,
            }
        )

    def say(self, value: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value).encode() + b"\n")
        self.process.stdin.flush()

    def recover(self, session: str) -> dict[str, Any]:
        self.say({"session_id": session, "version": 1, "layers": ["B000001-base"]})
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(WAIT_S)
        self.process.stdout.close()
        os.close(self.lock_fd)
        return code


def left_dead(agent: Agent, files: int = 100) -> str:
    session = agent.session()
    made = agent.run(f"mkdir m && cd m && seq 1 {files} | sed 's/^/{'n' * 200}/' | xargs touch", session)
    assert made["exit_code"] == 0
    agent.kill()
    base = os.path.join(agent.store, "base", "B000001-base")  # the agent sees it by a mount of its own
    if not os.path.exists(os.path.join(base, "README.md")):
        os.rmdir(base) if os.path.isdir(base) else None
        os.symlink(os.path.join(agent.folder, "base", "B000001-base"), base)
    return session


def data_bytes(pid: int) -> int:
    """What RLIMIT_DATA counts."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))


def test_a_session_that_takes_more_memory_than_it_may_costs_only_that_process_and_nothing_of_its_work(
    agent: Agent,
) -> None:
    session = left_dead(agent, FILES)
    idle = Spoken(agent, 1 << 30)
    assert idle.recover("stranger")["error"]
    own = data_bytes(idle.process.pid)
    assert idle.end() == 0
    child = Spoken(agent, own + (512 << 10))
    answer = child.recover(session)
    assert (answer["error"], answer["draft_id"]) == (MEMORY, None)
    assert child.end() == EXIT_MEMORY
    again = Spoken(agent, own + (256 << 20))
    answer = again.recover(session)
    assert answer["error"] is None and answer["draft_id"].startswith("draft-")
    assert again.end() == 0
    agent.start()
    (draft,) = agent.call("list_drafts")["drafts"]
    assert draft["draft_id"] == answer["draft_id"] and draft["paths"] >= FILES


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "m1")])
def test_memory_that_python_or_a_c_library_does_not_get_is_one_failure(error: Exception) -> None:
    class Full:
        def recover(self, *asked: object) -> None:
            raise error

    answer = recovery_child._answer(Full(), {"session_id": "s", "version": 1, "layers": []})
    assert (answer.error, answer.no_space, answer.draft_id) == (MEMORY, False, None)


def test_it_holds_the_store_for_as_long_as_it_lives_and_tells_what_it_cannot_do(agent: Agent) -> None:
    session = left_dead(agent)
    child = Spoken(agent, 1 << 30)
    assert "session.json" in child.recover("stranger")["error"]
    os.close(child.lock_fd)
    from layerstack.errors import StoreBusy

    with pytest.raises(StoreBusy):
        opening.lock(agent.store)
    assert child.recover(session)["draft_id"]
    child.lock_fd = os.open("/dev/null", os.O_RDONLY)
    assert child.end() == 0
    os.close(opening.lock(agent.store))


def test_it_does_nothing_for_a_process_that_did_not_start_it(agent: Agent) -> None:
    session = left_dead(agent)
    child = Spoken.__new__(Spoken)
    child.lock_fd = opening.lock(agent.store)
    argv = [sys.executable, "-m", "eos_agent", "recover", "--settings", agent.settings_path]
    hello = {
        "parent": 1,
        "memory_bytes": 1 << 30,
        "staging": f"{agent.store}/staging/x",
        "lock_fd": child.lock_fd,
    }
    asked = {"session_id": session, "version": 1, "layers": ["B000001-base"]}
    said = "".join(json.dumps(one) + "\n" for one in (hello, asked)).encode()
    done = subprocess.run(argv, input=said, capture_output=True, pass_fds=(child.lock_fd,), timeout=WAIT_S)
    os.close(child.lock_fd)
    assert (done.returncode, done.stdout) == (0, b"") and os.path.isdir(
        f"{agent.store}/sessions/{session}/upper"
    )
