"""A project that is really built in sessions: texts of a given age, and make."""

from __future__ import annotations

import os
import subprocess
import time

from tests.layerstack.store_fixture import Session, Stack, put

SECOND = 1_000_000_000
TOOLS = {
    "PATH": os.environ.get("PATH", os.defpath),
    "LC_ALL": "C.UTF-8",
    "HOME": "/nonexistent",
    "PYTHONDONTWRITEBYTECODE": "",
}

_begun: dict[int, int] = {}
"""Time of the first use in each process: every test of a stack runs in a new process, perhaps long after the
modules were imported.
"""


def _start() -> int:
    return _begun.setdefault(os.getpid(), time.time_ns())


def age(stack: Stack, *, seconds: int = 1000) -> None:
    """Set the age of the base, and make the store a little younger: files that sessions write are then newer
    than both, for any granularity of the clock.
    """
    when = _start() - seconds * SECOND
    for folder, names, files in os.walk(stack.base, topdown=False):
        for name in (*names, *files):
            os.utime(os.path.join(folder, name), ns=(when, when), follow_symlinks=False)
    os.utime(stack.base, ns=(when, when))
    os.utime(f"{stack.root}/workspace.json", ns=(when + SECOND, when + SECOND))


def edit(session: Session, path: str, text: str | bytes, *, ago: int = 0) -> None:
    """Write a file with a time so many seconds before the test, or now for 0."""
    put(session.at(path), text)
    if ago:
        date(session, path, ago=ago)


def date(session: Session, path: str, *, ago: int) -> None:
    """Set a file's time to so many seconds before the test; a negative number counts from now."""
    when = (_start() if ago > 0 else time.time_ns()) - ago * SECOND
    os.utime(session.at(path), ns=(when, when))


def run(session: Session, *argv: str, env: dict[str, str] | None = None) -> str:
    """Return the output of a command in a session's workspace, which must succeed."""
    done = subprocess.run(
        argv,
        cwd=session.view,
        env={**TOOLS, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def mtime(session: Session, path: str) -> int:
    return os.lstat(session.at(path)).st_mtime_ns
