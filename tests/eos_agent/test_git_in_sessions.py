"""git in sessions: no rewrite of an unchanged index, other owners, refs of two sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.conftest import drop_dir, make_short_dir
from tests.eos_agent.internal_calls import squash

from .agent_process import Agent

pytestmark = pytest.mark.needs("overlay")


OPENS = """
import ctypes, os, select, struct, subprocess
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(fd, b".", 0x20) > 0, os.strerror(ctypes.get_errno())
def opens():
    found, at = 0, 0
    while select.select([fd], [], [], 0)[0]:
        data, at = os.read(fd, 1 << 20), 0
        while at < len(data):
            _, mask, _, size = struct.unpack_from("iIII", data, at)
            assert not mask & 0x4000, "overflow"
            found, at = found + (not mask & 0x40000000), at + 16 + size
    return found
subprocess.run(["git", "status", "--porcelain"], check=True)
print(opens())
open("f7").close()
print(opens())
"""
"""Prints how many files of the directory `git status` opens, by inotify(7), and that one open is seen."""
AUTHOR = ("-c", "user.name=x", "-c", "user.email=x@y")


def git(folder: str, *words: str) -> None:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
    subprocess.run(["git", *AUTHOR, *words], cwd=folder, env=env, check=True, capture_output=True)


@pytest.fixture
def prepared() -> Generator[Callable[[Callable[[str], None]], Agent]]:
    """prepared(fill): an agent on a base that `fill` was given as a directory before it started."""
    made: list[Agent] = []

    def prepare(fill: Callable[[str], None]) -> Agent:
        agent = Agent(make_short_dir("eos-a-"), {"README.md": b"hello\n"})
        made.append(agent)
        fill(os.path.join(agent.folder, "base", "B000001-base"))
        return agent.start()

    yield prepare
    for agent in made:
        agent.close()
        drop_dir(agent.folder)


def test_git_status_in_a_new_session_reads_no_file_of_an_unchanged_base_and_an_inode_survives_its_first_write(
    prepared: Callable[[Callable[[str], None]], Agent],
) -> None:
    def fill(base: str) -> None:
        for n in range(200):
            Path(base, f"f{n}").write_text(f"{n}\n" * 4096)
            os.utime(Path(base, f"f{n}"), ns=(10**18 + n, 10**18 + n))
        os.utime(Path(base, "README.md"), ns=(10**18, 10**18))  # as old as the index, it would be read
        git(base, "init", "-q")
        git(base, "add", ".")
        git(base, "commit", "-qm", "first")
        for n in range(200):  # another inode and another ctime, as in a copy
            os.rename(Path(base, f"f{n}"), Path(base, "was"))
            Path(base, f"f{n}").write_bytes(Path(base, "was").read_bytes())
            os.utime(Path(base, f"f{n}"), ns=(10**18 + n, 10**18 + n))
            os.unlink(Path(base, "was"))

    agent = prepared(fill)
    session = agent.session()
    opened = agent.run(f"{sys.executable} -c '{OPENS}'", session)
    assert opened["output"].split() == ["0", "1"], (
        "files of the work tree that the first status opens; one read"
    )
    look = "git status --porcelain | wc -l; grep rchar /proc/$$/io"
    for _ in range(2):
        changed, _, read = agent.run(look, session)["output"].split()
        assert changed == "0" and int(read) < 1_000_000, "of three megabytes"
    shown = agent.run(
        "stat -c %i f7; stat -c %.9Y f7; echo more >> f7; stat -c %i f7; git status --porcelain", session
    )["output"].split()
    assert shown[0] == shown[2] and shown[1] == "1000000000.000000007"
    assert shown[3:] == ["M", "f7"]
    for n in range(2):
        agent.call("file_write", path=f"f{n}", content="published\n")
    agent.call("destroy_workspace_session", workspace_session_id=session)
    assert [block["replaced_layers"] for block in squash(agent)["squashed_blocks"]] == ["reclaimed"]
    changed, _, read = agent.run(look, agent.session())["output"].split()
    assert (changed, int(read) < 1_000_000) == ("2", True), (
        "folded layers are links: times and sizes are those of the files"
    )


@pytest.mark.needs("root")
def test_git_takes_a_base_that_belongs_to_somebody_else(
    prepared: Callable[[Callable[[str], None]], Agent],
) -> None:
    def fill(base: str) -> None:
        git(base, "init", "-q")
        git(base, "add", ".")
        git(base, "commit", "-qm", "first")
        for directory, names, files in os.walk(base):
            for name in [*names, *files, "."]:
                os.lchown(os.path.join(directory, name), 1001, 1001)

    agent = prepared(fill)
    ran = agent.run("git status --porcelain && git log --oneline | wc -l")
    assert (ran["exit_code"], ran["output"]) == (0, "1")
    assert agent.run("echo more >> README.md; stat -c %u README.md")["output"] == "1001", (
        "an edited file keeps its owner"
    )


def test_sessions_in_one_repository_see_only_their_own_refs_and_both_are_published(
    prepared: Callable[[Callable[[str], None]], Agent],
) -> None:
    def fill(base: str) -> None:
        git(base, "init", "-q", "-b", "main")
        git(base, "add", ".")
        git(base, "commit", "-qm", "first")

    agent = prepared(fill)
    first = agent.session()
    as_x = "git " + " ".join(AUTHOR)
    waiting = agent.run(
        f"git checkout -q -b theirs; echo t > t; git add t; {as_x} stash -q; echo b > b; git add b; {as_x} "
        f"commit -qm B; read go; git branch",
        yield_time_ms=0,
        tty=True,
    )
    agent.run(
        f"git checkout -q -b ours; echo s > s; git add s; {as_x} stash -q; echo a > a; git add a; {as_x} "
        f"commit -qm A",
        first,
    )
    assert agent.run("git branch --format '%(refname:short)'; git stash list | wc -l", first)[
        "output"
    ].split() == ["main", "ours", "1"]
    agent.call("publish_workspace_session", workspace_session_id=first)
    ended = agent.call(
        "write_command_stdin",
        command_session_id=waiting["command_session_id"],
        stdin="\n",
        yield_time_ms=60_000,
    )
    assert "theirs" in ended["output"] and "ours" not in ended["output"]
    assert ended["publish"]["published"]
    assert ended["publish"]["notices"] == [
        {"kind": "branch_not_switched", "path": "HEAD", "detail": "refs/heads/ours"}
    ]
    assert agent.run(
        "git branch --format '%(refname:short)'; git log --format=%s -n 1 theirs; git log --format=%s -n 1; "
        "git stash list | wc -l; git status --porcelain; ls; git fsck 2>&1 | grep -cE 'error|missing|corrupt'"
    )["output"].split() == ["main", "ours", "theirs", "B", "A", "2", "README.md", "a", "0"]
