"""One session's cgroup, used by the agent: freeze, thaw, kill a command's processes, count OOM kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import Any

from eos_agent.kernel import cgroup_fs
from eos_agent.kernel.cgroups import Groups
from eos_agent.kernel.process_tag import FREEZE_LIMIT_S
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError

_POLL_S = 0.0005


class SessionGroup:
    """A session's cgroup in `Groups`, "" without cgroups. All its processes, init included, are in the cgroup
    of that name in each hierarchy."""

    def __init__(self, groups: Groups, cgroup: str) -> None:
        self._groups, self._cgroup = groups, cgroup
        self._reported_kills = 0
        self._freezers = 0  # calls of freeze without a call of thaw so far

    @property
    def can_freeze(self) -> bool:
        return bool(self._cgroup) and self._groups.unified is not None

    @property
    def frozen(self) -> bool:
        """True while frozen: its init does not answer."""
        return self._freezers > 0

    def path(self) -> str | None:
        """Give the path of the cgroup in the hierarchy of version 2."""
        part = self._groups.unified
        return None if part is None or not self._cgroup else os.path.join(part.path, self._cgroup)

    async def freeze(self) -> None:
        """Freeze every process of the session, its init too; returns when all are frozen. A process that
        SIGSTOP had stopped stays stopped after `thaw`.

        Raises:
            OperationError: freeze_failed after 2 s; all processes run again.
        """
        part = self._groups.unified
        assert part is not None
        self._freezers += 1
        deadline = time.monotonic() + FREEZE_LIMIT_S
        try:
            cgroup_fs.write(part.fd, f"{self._cgroup}/cgroup.freeze", "1")
            while "frozen 1" not in cgroup_fs.read(part.fd, f"{self._cgroup}/cgroup.events"):
                if time.monotonic() > deadline:
                    moving = [
                        {"pid": pid, "name": _name(pid)} for pid in cgroup_fs.members(part.fd, self._cgroup)
                    ]
                    raise OperationError(
                        OPERATION_FAILED,
                        f"cannot freeze the session: processes {moving[:8]} still run",
                        {"processes": moving[:8]},
                        reason="freeze_failed",
                    )
                await asyncio.sleep(_POLL_S)
        except BaseException:
            self.thaw()
            raise

    def thaw(self) -> None:
        """Thaw, once each caller of `freeze` has called this. Does nothing if the session has ended."""
        part = self._groups.unified
        assert part is not None
        self._freezers -= 1
        if self._freezers > 0:
            return
        with contextlib.suppress(FileNotFoundError, OSError):
            cgroup_fs.write(part.fd, f"{self._cgroup}/cgroup.freeze", "0")

    async def kill_command(self, tag: int, leader: int) -> int:
        """Send SIGKILL to all descendants of one command, while the session is frozen; return their number.

        Args:
            tag: the tag of its processes (process_tag.py). leader: its process group, by its number in the
                session's pid namespace.
        """
        part = self._groups.unified
        assert part is not None
        await self.freeze()
        try:
            found = [
                pid
                for pid in cgroup_fs.members(part.fd, self._cgroup)
                if command_member(pid, tag, leader) is not None
            ]
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return len(found)
        finally:
            self.thaw()

    def new_oom_kills(self) -> int:
        """Number of processes of the session that the kernel killed for lack of memory since the last
        call."""
        if not self._cgroup:
            return 0
        for part in self._groups.parts:
            if "memory" in part.controllers:
                name = "memory.oom_control" if part.hierarchy else "memory.events"
                with contextlib.suppress(OSError, ValueError):
                    words = cgroup_fs.read(part.fd, f"{self._cgroup}/{name}").split()
                    count = int(words[words.index("oom_kill") + 1])
                    new, self._reported_kills = count - self._reported_kills, count
                    return new
        return 0

    def limits(self) -> dict[str, Any]:
        """The `limits` object of answers: the session's enforced limits."""
        return self._groups.to_json()

    def memory_max_bytes(self) -> int | None:
        return self._groups.applied.memory_max_bytes


def _name(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().rstrip("\n")
    return "?"


def command_member(pid: int, tag: int, leader: int) -> int | None:
    """Pid in its own namespace of a process that has the tag or is in the group; None for any other, and for
    init, which is in a group of its own.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file if b":" in line)
        inner = int(fields[b"NSpid"].split()[-1])
        if inner == 1:
            return None
        if leader and int(fields[b"NSpgid"].split()[-1]) == leader:
            return inner
        if not tag:
            return None
        with open(f"/proc/{pid}/limits", "rb") as file:
            tagged = any(
                line.startswith(b"Max msgqueue size") and line.split()[3] == b"%d" % tag for line in file
            )
        return inner if tagged else None
    except (OSError, KeyError, ValueError, IndexError):
        return None
