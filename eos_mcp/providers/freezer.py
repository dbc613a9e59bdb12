"""Find processes in a frozen cgroup (freezer of version 1, cgroup.freeze of version 2). They do not answer,
and their process state does not show it.

A frozen process of version 2 can be killed. With version 1 it dies only when its cgroup is thawed, so a
process to be killed must also be thawed.
Source: cgroups(7); the kernel's cgroup-v1/freezer-subsystem.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from typing import NamedTuple

_V1 = "/sys/fs/cgroup/freezer"
_V2 = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


class Frozen(NamedTuple):
    """A frozen cgroup, by its directory. `by`: the outermost cgroup above it, or itself, in which the freeze
    was set.
    """

    folder: str
    by: str
    killable: bool


def frozen(pid: int) -> Frozen | None:
    """Return the frozen cgroup of a process, as far as this process can see it."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file,
    ):
        for line in file:
            _, hierarchy, path = line.rstrip("\n").split(":", 2)
            if hierarchy == "freezer":
                if _read(f"{_V1}{path}/freezer.state") in ("FROZEN", "FREEZING"):
                    return Frozen(
                        f"{_V1}{path}", _directory_with(_V1, path, "freezer.self_freezing"), killable=False
                    )
            elif not hierarchy:
                for root in _V2:
                    if "frozen 1" in _read(f"{root}{path}/cgroup.events").splitlines():
                        return Frozen(
                            f"{root}{path}", _directory_with(root, path, "cgroup.freeze"), killable=True
                        )
    return None


def thaw(found: Frozen, own: Container[int]) -> bool:
    """Thaw a frozen cgroup of version 1 that has only the processes `own`, which have a SIGKILL pending.
    False: it stays frozen.
    """
    if any(
        int(pid) not in own
        for folder, _, _ in os.walk(found.by)
        for pid in _read(f"{folder}/cgroup.procs").split()
    ):
        return False
    try:
        with open(f"{found.by}/freezer.state", "w", encoding="ascii") as file:
            file.write("THAWED")
    except OSError:
        return False
    return True


def _directory_with(root: str, path: str, name: str) -> str:
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        folder = "/".join([root, *parts[:count]])
        if _read(f"{folder}/{name}") == "1":
            return folder
    return f"{root}{path}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
