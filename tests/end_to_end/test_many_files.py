"""Six hundred thousand empty files in a sandbox of the standard profile, whose 512 MiB hold agent and
sessions: the agent outlives each step.
"""

from __future__ import annotations

import os

import pytest

from tests.end_to_end.cli_user import Container, Sandbox
from tests.end_to_end.places import DOCKER, in_places

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400), pytest.mark.needs("dockerd", "root")]

COUNT = 600_000
MOST_KIB = 100 << 10


def fill(upper: str) -> None:
    """As a command of the session would: nobody looks at the session meanwhile."""
    for number in range(COUNT):
        folder = f"{upper}/dir-{number // 500:05d}"
        if number % 500 == 0:
            os.mkdir(folder)
        os.close(os.open(f"{folder}/file-number-{number:07d}", os.O_CREAT | os.O_WRONLY, 0o644))


class Watched:
    """The agent, and by how much its peak rose."""

    def __init__(self, pid: int) -> None:
        self.pid, self.grown = pid, dict[str, int]()

    def read(self, key: str) -> int:
        with open(f"/proc/{self.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(key))

    def begin(self) -> int:
        with open(f"/proc/{self.pid}/clear_refs", "w") as file:
            file.write("5")  # the peak is what is there now
        return self.read("VmRSS")

    def step(self, sandbox: Sandbox, op: str, *words: str) -> None:
        before = self.begin()
        if op == "squash_layerstacks":
            sandbox.desk.do("manager", op, "--sandbox-id", sandbox.id)
        else:
            sandbox.do(op, *words)
        assert sandbox.agent() == self.pid, f"{op} ended the agent"
        self.grown[op] = self.read("VmHWM") - before


@in_places(DOCKER)
def test_an_agent_of_512_mib_previews_publishes_squashes_and_restarts_with_so_many_files(
    sandbox: Container,
) -> None:
    sandbox.desk.patience_s = 600
    session = sandbox.session()
    fill(f"{sandbox.store}/sessions/{session}/upper")
    agent = Watched(sandbox.agent())
    agent.step(sandbox, "preview_publish", "--workspace-session-id", session)
    agent.step(sandbox, "publish_workspace_session", "--workspace-session-id", session)
    for number in range(2):
        sandbox.write(f"more-{number}", "x\n")
    agent.step(sandbox, "squash_layerstacks")
    late = sandbox.session()
    sandbox.write("work", "x\n", late)
    upper = f"{sandbox.store}/sessions/{late}/upper"
    os.mkdir(f"{upper}/more")
    fill(f"{upper}/more")
    sandbox.restart()
    assert sandbox.read("more-1") == "x"
    after = sandbox.agent()
    sandbox.do("list_drafts")
    assert sandbox.agent() == after and max(agent.grown.values()) < MOST_KIB, agent.grown
