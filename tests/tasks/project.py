"""The project that the tasks work on, a sandbox's place on disk, and its end."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator
from typing import NamedTuple

from tests import processes
from tests.tasks.reader import Reader, connect

CALC = """\
def add(a, b):
    return a - b


def mul(a, b):
    return a * b
"""
TESTS = """\
import unittest

import calc


class Sum(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(2, 3), 5)

    def test_mul(self):
        self.assertEqual(calc.mul(2, 3), 6)
"""
FILES = {
    "README.md": "Tests: python3 -m unittest\n",
    "calc.py": CALC,
    "test_calc.py": TESTS,
    ".gitignore": "__pycache__/\n",
    "ask.sh": 'stty -echo; printf "Password: "; read word; stty echo\nprintf "\\nContinue? [y/N] "; read go\n'
    'echo "password of ${#word} characters, $go" > answers.txt\n',
}
HISTORY = ("one", "two", "three")


class Desk(NamedTuple):
    """Where the tasks are done. `other` is another agent's reader, whose calls count for no task."""

    reader: Reader
    other: Reader
    image: str
    project: str
    out: str

    def published(self, path: str) -> str:
        """The text of a published file, read by the other agent."""
        text = self.other.use("file_read", path=path)
        assert not self.other.failed, text
        return text


@contextlib.contextmanager
def desk(root: str, image: str = "host") -> Generator[Desk]:
    """A project in an empty directory, an MCP server, and two agents. The sandboxes that are left and the
    gateway end with the block.
    """
    project, out = os.path.join(root, "calc"), os.path.join(root, "out")
    for path in (project, out):
        os.mkdir(path)
    for name, text in FILES.items():
        with open(os.path.join(project, name), "w") as file:
            file.write(text)
    _make_history(project)
    env = {**os.environ, "EOS_STATE_DIR": os.path.join(root, "s")}
    words = ("--set", "agent", "--root", root)
    try:
        with connect(env, *words, log=os.path.join(root, "server.log")) as connection:
            reader, other = Reader(connection), Reader(connection, "bob")
            try:
                yield Desk(reader, other, image, project, out)
            finally:
                for line in other.use("list_sandboxes").split("\n")[1:]:
                    other.use("destroy_sandbox", sandbox_id=line.split()[0])
    finally:
        processes.stop_gateway(env)


def _make_history(project: str) -> None:
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]

    def git(*words: str) -> None:
        subprocess.run(
            ["git", *identity, *words],
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )

    git("init", "-q", "-b", "main")
    for number, name in enumerate(HISTORY):
        with open(os.path.join(project, "log.txt"), "a") as file:
            file.write(f"{name}\n")
        git("add", "-A")
        git("commit", "-q", "-m", f"step {number + 1}")
    git("config", "user.name", "ada")
    git("config", "user.email", "ada@example.org")
