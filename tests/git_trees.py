"""Trees of the room `layerstack.git` over plain directories: what a test sees of a repository that the real
git made.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from layerstack.kernel.xattrs import USER
from layerstack.tree.state import State

QUIET = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0100",
    "GIT_COMMITTER_DATE": "1700000000 +0100",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""Environment in which git gives the same ids at each run and reads no configuration but the repository's."""
GIT_S = 60
"""Seconds for one call of git."""


class DiskTree:
    """A `GitTree` of a plain directory: paths are relative to it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        self._namespace = USER

    def find(self, path: str) -> State | None:
        try:
            return State(os.path.join(self.folder, path), self._namespace)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, path: str) -> Iterable[str]:
        try:
            return sorted(os.listdir(os.path.join(self.folder, path)))
        except (FileNotFoundError, NotADirectoryError):
            return []


def git(folder: str | Path, *words: str, data: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    """Run git in a directory and return its standard output.

    Raises:
        subprocess.CalledProcessError: with git's own message as stderr.
    """
    return subprocess.run(
        ["git", *words],
        cwd=folder,
        input=data,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **QUIET, **(env or {})},
        capture_output=True,
        check=True,
        timeout=GIT_S,
    ).stdout


def repository(folder: str | Path, *, fmt: str = "sha1") -> Path:
    """Make an empty repository with the branch `main`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", f"--object-format={fmt}")
    return Path(folder)
