"""Who commits in a session: the agent, unless the repository, the image or the user says otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eos_agent.base import git_identity
from tests.conftest import drop_dir, make_short_dir
from tests.git_trees import git

from .agent_process import Agent, agent_of
from .bare_zygote import Box, in_box

pytestmark = pytest.mark.needs("overlay")

COMMIT = "git init -q . && git commit -q --allow-empty -m x"
WHO = "git log -1 --format='%an <%ae>|%cn <%ce>'"


def agent_with(home: dict[str, bytes], identity: dict[str, object]) -> Agent:
    """An agent, not started, whose commands have a home directory with these files in the workspace."""
    agent = Agent(make_short_dir("eos-a-"), {f"home/{name}": text for name, text in home.items()})
    agent.settings["git_identity"] = identity
    agent.settings["container_env"] = {"HOME": f"{agent.workspace}/home"}
    return agent


@pytest.fixture(scope="module")
def plain() -> Generator[Agent]:
    """An agent on a machine on which git is not configured."""
    agent = agent_with({"x": b""}, {})
    yield agent.start()
    agent.close()
    drop_dir(agent.folder)


@pytest.fixture
def carried() -> Generator[Callable[..., Agent]]:
    made: list[Agent] = []

    def start(**identity: object) -> Agent:
        made.append(agent_with({".gitconfig": b"[user]\nname = H\n[alias]\nci = commit\n"}, identity))
        return made[-1].start()

    yield start
    for agent in made:
        agent.close()
        drop_dir(agent.folder)


def committed(where: Agent, before: str = COMMIT, **args: object) -> str:
    ran = where.run(f"cd $(mktemp -d) && {before} && {WHO}", **args)
    assert ran["exit_code"] == 0, ran["output"]
    author, committer = ran["output"].split("|")
    assert author == committer
    return str(author)


@pytest.mark.parametrize("agent", ["Ada", None])
def test_a_commit_without_an_identity_is_the_agents(plain: Agent, agent: str | None) -> None:
    args = {} if agent is None else {"agent": agent}
    for _ in range(2):  # the files are written once
        assert committed(plain, **args) == f"{agent or 'agent'} <agent@eos.invalid>"


def test_every_name_is_one_that_git_reads_back(tmp_path: Path) -> None:
    names = {
        'q"u\\o; #te\n[core]\n\tx = <y>': 'q"u\\o; #te [core] x = y',
        " .,<>;": "agent",
        "x" * 200: "x" * 100,
        "J\u00f6rg \u202e\x1b[1m": "J\u00f6rg [1m",
        "a\ud800b": "a b",
    }
    for agent, name in names.items():
        found = git_identity.identity_of({}, git_identity.name_of({}, agent), "0")
        (tmp_path / "s").write_text(found.files["0.system"])
        assert git(tmp_path, "config", "--file", "s", "user.name").decode() == name + "\n"


def test_every_other_identity_wins(plain: Agent) -> None:
    own = (
        "git config user.name Own && git config user.email own@x.invalid && git commit -q --allow-empty -m x"
    )
    assert committed(plain, f"git init -q . && {own}") == "Own <own@x.invalid>"
    home = "printf '[user]\\nname = Home\\n' > .gitconfig && export HOME=$PWD"
    assert committed(plain, f"{home} && {COMMIT}") == "Home <agent@eos.invalid>"
    given = ["GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=user.email", "GIT_CONFIG_VALUE_0=given@x.invalid"]
    assert committed(plain, env=given, agent="Ada") == "Ada <given@x.invalid>"
    system = (
        "printf '[user]\\nname = System\\n' > s && GIT_CONFIG_SYSTEM=$PWD/s git commit -q --allow-empty -m x"
    )
    assert committed(plain, f"git init -q . && {system}") == "System <agent@eos.invalid>"
    names = [f"GIT_{who}_{what}=me" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    assert committed(plain, env=names) == "me <me>"


def test_a_git_that_reads_no_such_file_takes_the_address(plain: Agent) -> None:
    """git before 2.32 knows no GIT_CONFIG_SYSTEM; NOSYSTEM makes this one ignore it."""
    author = committed(plain, env=["GIT_CONFIG_NOSYSTEM=1"], agent="Ada")
    assert author.endswith(" <agent@eos.invalid>")
    assert plain.run("echo $GIT_CONFIG_SYSTEM", env=["GIT_CONFIG_NOSYSTEM=1"])["output"] == ""


@pytest.mark.needs("userns")
def test_the_files_are_the_agents_alone(start_agent: Callable[..., Agent]) -> None:
    agent = agent_of(start_agent, ordinary=True)
    first = agent.session(agent="Ada")
    assert committed(agent, workspace_session_id=first) == "Ada <agent@eos.invalid>"
    tried = agent.run("for d in /dev/eos-git/ /dev/eos-git/0.system; do { echo > $d; } 2>&1; done", first)
    assert "ead-only" in tried["output"] or "is a directory" in tried["output"]
    assert agent.run("cat /dev/eos-git/0.system", first)["output"].count("Ada") == 1
    assert committed(agent, agent="Bob") == "Bob <agent@eos.invalid>"
    assert "Bob" in agent.run("cat /dev/eos-git/1.system", first)["output"], "sessions that were open see it"


def test_agents_whose_first_commands_start_at_once_commit_under_their_own_names(plain: Agent) -> None:
    names = [f"agent-{n}" for n in range(8)]
    together = threading.Barrier(len(names))

    def author(name: str) -> str:
        together.wait(60)
        return str(plain.run("git var GIT_AUTHOR_IDENT", agent=name, yield_time_ms=60_000)["output"])

    with ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(author, names))
    assert [one.partition(" <")[0] for one in found] == names


def test_the_users_identity_is_carried_in_and_the_homes_wins(carried: Callable[..., Agent]) -> None:
    agent = carried(name="Grace", email="grace@x.invalid")
    assert committed(agent, f"export HOME=/nonexistent && {COMMIT}", agent="Ada") == "Grace <grace@x.invalid>"
    assert committed(agent, agent="Ada") == "H <grace@x.invalid>"


def test_an_identity_that_must_not_count_is_replaced_and_nothing_else(carried: Callable[..., Agent]) -> None:
    agent = carried(replaces=True)
    assert committed(agent, agent="Ada") == "Ada <agent@eos.invalid>"
    assert committed(agent, "git init -q . && git ci -q --allow-empty -m x") == "agent <agent@eos.invalid>"


@pytest.mark.parametrize("mode", ["shared", "read_only"])
def test_every_view_shows_the_files(mode: str) -> None:
    async def scenario(box: Box) -> str:
        assert await box.zygote.write_git_files({"a": "one\n"})
        live = await box.session(rootfs_mode=mode)
        assert await box.zygote.write_git_files({"b": "two\n"})
        assert not await box.zygote.write_git_files({"no/such": "three\n"})
        return (await live.run("cat /dev/eos-git/*; (echo > /dev/eos-git/c) 2>&- || echo refused")).out

    assert in_box(scenario, provider="docker").split() == ["one", "two", "refused"]
