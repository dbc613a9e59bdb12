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
"""When each process first asked: every test of a stack runs in one of its own, which may be long after the
modules were imported.
"""


def _start() -> int:
    return _begun.setdefault(os.getpid(), time.time_ns())


def age(stack: Stack, *, seconds: int = 1000) -> None:
    """The base is so old, and the store a little younger: what sessions write is newer than both, whatever
    the clock's grain.
    """
    when = _start() - seconds * SECOND
    for folder, names, files in os.walk(stack.base, topdown=False):
        for name in (*names, *files):
            os.utime(os.path.join(folder, name), ns=(when, when), follow_symlinks=False)
    os.utime(stack.base, ns=(when, when))
    os.utime(f"{stack.root}/workspace.json", ns=(when + SECOND, when + SECOND))


def edit(session: Session, path: str, text: str | bytes, *, ago: int = 0) -> None:
    """Write a file, so many seconds before the test or, with 0, now."""
    put(session.at(path), text)
    if ago:
        date(session, path, ago=ago)


def date(session: Session, path: str, *, ago: int) -> None:
    """So many seconds before the test; a negative number is from now on."""
    when = (_start() if ago > 0 else time.time_ns()) - ago * SECOND
    os.utime(session.at(path), ns=(when, when))


def run(session: Session, *argv: str, env: dict[str, str] | None = None) -> str:
    """What a command in a session's workspace prints; it must succeed."""
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
