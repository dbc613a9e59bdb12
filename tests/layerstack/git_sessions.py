"""Sessions that use the machine's git on one repository, and the repository that a new session finds."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator

from layerstack.core.publish_rules import PublishRules
from tests.git_trees import QUIET
from tests.layerstack.store_fixture import Session, Stack, put

SETTINGS = {
    "safe.directory": "*",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "core.trustctime": "false",
    "core.checkStat": "minimal",
    "core.fsync": "none",
}
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    **QUIET,
    "GIT_EDITOR": "true",
    "GIT_CONFIG_COUNT": str(len(SETTINGS)),
    **{f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(SETTINGS.values())},
}


def git(where: Session | str, *words: str, fails: bool = False, **environment: str) -> str:
    """Run git in a session or a directory; give its standard output without the last line end."""
    folder = where if isinstance(where, str) else where.view
    done = subprocess.run(
        ["git", "-C", folder, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**ENVIRONMENT, **environment},
    )
    assert fails or done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout.removesuffix("\n")


def commit(session: Session, *files: str, message: str | None = None, where: str = "", **texts: str) -> str:
    """Append a line to each file, or give it a text (`name__ext=...` is `name.ext`), commit all, and give the
    id.
    """
    for name in files:
        with open(session.at(f"{where}{name}"), "a") as file:
            file.write(f"line of {session.upper.session_id}\n")
    for name, text in texts.items():
        put(session.at(f"{where}{name.replace('__', '.')}"), text)
    git(session.at(where), "add", "-A")
    git(session.at(where), "commit", "-q", "-m", message or f"by {session.upper.session_id}")
    return git(session.at(where), "rev-parse", "HEAD")


def begin(stack: Stack, *, mode: str = "rebase", where: str = "", fmt: str = "sha1") -> str:
    """Make a repository of what the base has, publish it, and give its first commit."""
    stack.store.rules = PublishRules(git=mode)
    session = stack.session()
    git(session.at(where), "init", "-q", "-b", "main", f"--object-format={fmt}")
    git(session.at(where), "add", "-A")
    git(session.at(where), "commit", "-q", "-m", "first")
    first = git(session.at(where), "rev-parse", "HEAD")
    session.publish()
    return first


@contextlib.contextmanager
def head(stack: Stack, where: str = "") -> Generator[str]:
    """Mount the head for a look with git; its repository must be whole."""
    with stack.mounted() as view:
        folder = f"{view}/{where}".rstrip("/")
        assert git(folder, "fsck", "--full", "--strict", "--no-dangling") == ""
        yield folder


def status(folder: str) -> list[str]:
    """List what `git status` shows, and check that it agrees with a look at every file."""
    shown = git(folder, "--no-optional-locks", "status", "--porcelain", "-uall").split("\n")
    return [line for line in shown if line]


def subjects(folder: str, ref: str = "HEAD") -> list[str]:
    return git(folder, "log", "--format=%s", "--topo-order", ref).split("\n")
