"""Cgroups of a sandbox in the kernel's trees, seen from the root of every hierarchy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from eos_agent.kernel import cgroup_fs, cgroups

WAIT_S = 30
BOMB = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("forking", flush=True)
said = False
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        if not said:
            print("full", flush=True)
        said = True
"""
"""A program that forks without end and leaves its group each time; when a fork fails, it reports this and
keeps trying.
"""


def limiting() -> list[str]:
    """Hierarchies in which sessions have cgroups: those with a limit, and version 2 ("")."""
    with open("/proc/self/cgroup") as file:
        names = [line.split(":")[1] for line in file]
    return [name for name in names if not name or set(name.split(",")) & set(cgroups.CONTROLLERS)]


def folders_of(text: str) -> list[str]:
    """Return `hierarchy:path` of every cgroup whose path contains `text`, outermost first."""
    found: list[str] = []
    for hierarchy in limiting():
        root = cgroup_fs.root_of(hierarchy)
        try:
            found += [f"{hierarchy}:{path}" for path in _below(root, ".") if text in path]
        finally:
            os.close(root)
    return found


def _below(root: int, path: str) -> Iterator[str]:
    try:
        names = [entry.name for entry in _entries(root, path)]
    except FileNotFoundError:
        return
    for name in names:
        yield f"{path}/{name}"
        yield from _below(root, f"{path}/{name}")


def _entries(root: int, path: str) -> list[os.DirEntry[str]]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=root)
    try:
        with os.scandir(fd) as found:
            return [entry for entry in found if entry.is_dir(follow_symlinks=False)]
    finally:
        os.close(fd)


def wait_until_gone(text: str) -> list[str]:
    """Wait until no cgroup's path contains `text`; return those that are left after the timeout."""
    end = time.monotonic() + WAIT_S
    while (found := folders_of(text)) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def paths_of(pid: int) -> dict[str, str]:
    """Return hierarchy -> path of a process."""
    return {
        hierarchy: path
        for _, hierarchy, path in (
            line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        )
    }
