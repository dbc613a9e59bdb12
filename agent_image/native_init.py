"""Compile the native init of sessions (eos_agent/init/init.c, ADR 0042), if this machine has a compiler.

Without it the agent uses its init in Python.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

COMPILERS = ("musl-gcc", "cc", "gcc", "clang")
"""Compilers in order; the first whose static program runs is used. musl: 60 kB, glibc: 700 kB, some 10 pages
touched."""
FLAGS = ("-std=gnu11", "-static", "-Os", "-s", "-fno-ident", "-Wl,--build-id=none")
NAME = f"eos-init-{platform.machine()}"
SOURCE = "init.c"
SAYS = b"eos-init 1\n"
LIMIT_S = 60


def key(source: str) -> str:
    """A key of the inputs of the program: the installed compilers, by size and time, and the source."""
    parts: list[str] = []
    for path in _compilers():
        found = os.stat(path)
        parts.append(f"{path} {found.st_size} {found.st_mtime_ns}")
    with open(source, encoding="utf-8") as file:
        return "\n".join([*parts, *FLAGS, file.read()])


def make(source: str, target: str) -> bool:
    """Compile `source` to `target`, a static program that runs here. False, and no file, if no compiler
    can."""
    if sys.platform != "linux":
        return False
    for compiler in _compilers():
        done = _run([compiler, *FLAGS, "-o", target, os.path.basename(source)], cwd=os.path.dirname(source))
        if done is not None and (said := _run([target, "--version"], cwd="/")) is not None and said == SAYS:
            os.chmod(target, 0o755)
            return True
        if os.path.exists(target):
            os.unlink(target)
    return False


def _compilers() -> list[str]:
    return [path for path in map(shutil.which, COMPILERS) if path is not None]


def _run(argv: list[str], *, cwd: str) -> bytes | None:
    """Run a command; return its standard output, or None if it failed."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
