"""Agents of one sandbox that commit: each in its own session or by a single command, all at once, over MCP.
Every commit arrives with its message and author, the repository stays whole, and no publication is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from tests import processes
from tests.conftest import drop_dir, make_short_dir
from tests.eos_mcp.mcp_wire import Wire, call

pytestmark = pytest.mark.needs("overlay")

HOST = pytest.param("host", id="machine")
DOCKER = pytest.param("debian", id="docker", marks=pytest.mark.needs("dockerd"))
ROUNDS = [
    pytest.param({2: 4, 8: 4}, id="40-commits"),
    pytest.param({2: 100, 8: 225}, id="2000-commits", marks=pytest.mark.soak),
]
"""Number of agents -> commits of each."""
DEADLINE_S = 3600.0
IDENTITY = "git -c user.name={agent} -c user.email={agent}@example.com"


class Refused(Exception):
    """Error for a result that is an error, with its text."""


class Agent:
    """One client with a server process of its own."""

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        argv = [sys.executable, "-m", "eos_mcp", "--set", "agent", "--sandbox-id", place.sandbox]
        self.wire = Wire(argv, env=place.env)
        self.wire.open()

    def use(self, tool: str, **arguments: Any) -> dict[str, Any]:
        message = call(f"{tool}-{os.urandom(4).hex()}", tool, arguments)
        result = self.wire.ask(message)["result"]
        if result["isError"]:
            raise Refused(result["content"][0]["text"])
        structure: dict[str, Any] = result["structuredContent"]
        return structure

    def run(self, cmd: str, session: str | None = None) -> dict[str, Any]:
        where = {} if session is None else {"workspace_session_id": session}
        done = self.use("exec_command", cmd=cmd, agent=self.name, tty=False, yield_time_ms=60_000, **where)
        assert done["exit_code"] == 0, done
        return done


class Place(NamedTuple):
    env: dict[str, str]
    sandbox: str
    workspace: str


def git(folder: str, *words: str) -> str:
    identity = ("-c", "user.name=person", "-c", "user.email=person@example.com")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


@pytest.fixture(params=[HOST, DOCKER])
def place(request: pytest.FixtureRequest, image: Callable[[str], str]) -> Generator[Place]:
    root = make_short_dir("eos-git-")
    workspace = os.path.join(root, "w")
    os.mkdir(workspace)
    git(workspace, "init", "-q", "-b", "main")
    for name in ("README", "shared"):
        with open(os.path.join(workspace, name), "w") as file:
            file.writelines(f"{name} {n}\n" for n in range(200))
    git(workspace, "add", ".")
    git(workspace, "commit", "-q", "-m", "begin")
    env = {**os.environ, "EOS_STATE_DIR": os.path.join(root, "s")}
    name = "host" if request.param == "host" else image(request.param)
    with Wire([sys.executable, "-m", "eos_mcp", "--set", "all", "--root", root], env=env) as wire:
        wire.open()
        message = call("make", "create_sandbox", {"image": name, "workspace_root": workspace})
        made = wire.ask(message)["result"]
        assert not made["isError"], made
        sandbox = made["structuredContent"]["id"]
        yield Place(env, sandbox, workspace)
        assert not wire.ask(call("end", "destroy_sandbox", {"sandbox_id": sandbox}))["result"]["isError"]
    processes.stop_gateway(env)
    drop_dir(root)


def edit_and_commit(agent: Agent, number: int) -> str:
    subject = f"{agent.name} {number}"
    path = f"of-{agent.name}/file-{number % 5}"
    return (
        f"mkdir -p of-{agent.name} && echo '{subject}' >> {path} && git add {path} && "
        f"{IDENTITY.format(agent=agent.name)} commit -q -m '{subject}'"
    )


def work(agent: Agent, numbers: range, begin: threading.Barrier, seed: int) -> list[str]:
    """Make a commit for each number, published by itself, at the same time as those of all other agents."""
    choice = random.Random(seed)
    try:
        for number in numbers:
            command = edit_and_commit(agent, number)
            if choice.random() < 0.4:
                begin.wait(DEADLINE_S)
                agent.run(command)
                continue
            session = agent.use("create_workspace_session", agent=agent.name)["workspace_session_id"]
            agent.run(command, session)
            if choice.random() < 0.5:
                agent.run("git status --short", session)
            begin.wait(DEADLINE_S)
            agent.use("publish_workspace_session", workspace_session_id=session)
    except BaseException:
        begin.abort()
        raise
    return [f"{agent.name}|{agent.name} {number}" for number in numbers]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_every_commit_of_agents_that_publish_at_once_arrives(place: Place, rounds: dict[int, int]) -> None:
    wanted, agents = ["person|begin"], list[Agent]()
    with contextlib.ExitStack() as ends, ThreadPoolExecutor(max(rounds)) as pool:
        for size, count in rounds.items():
            begin = threading.Barrier(size)
            while len(agents) < size:
                agents.append(Agent(f"a{len(agents)}", place))
                ends.enter_context(agents[-1].wire)
            numbers = range(size * 1000, size * 1000 + count)
            begun = [pool.submit(work, one, numbers, begin, size + n) for n, one in enumerate(agents[:size])]
            errors = [error for one in begun if (error := one.exception()) is not None]
            refused = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
            assert not errors, refused or errors
            wanted += [line for one in begun for line in one.result()]
        check(agents[0], wanted)


def check(reader: Agent, wanted: list[str]) -> None:
    """Compare by digests: a long history is more than one page of output."""
    session = reader.use("create_workspace_session")["workspace_session_id"]
    lines = [line.partition("|")[2] for line in wanted[1:]]
    for command, found in (("git log --format='%an|%s'", wanted), ("cat of-*/file-*", lines)):
        text = "".join(f"{line}\n" for line in sorted(found))
        shown = reader.run(
            f"{command} | LC_ALL=C sort | tee found | sha256sum; wc -l < found; rm found", session
        )
        assert shown["output"].split() == [hashlib.sha256(text.encode()).hexdigest(), "-", str(len(found))]
    assert reader.run("git fsck --full --strict 2>&1", session)["output"] == ""
    assert reader.run("git status --porcelain", session)["output"] == ""
