"""Check memory and number of processes before a session is made, so that it does not take them from another
session.

The check reads every limit that applies to sessions: that of all sessions together, those of the agent's
cgroup and of the cgroups above it (a container's), and the free memory of the machine. Reclaimable memory
(file pages, in version 2 also kernel memory) counts as free; before a refusal the kernel is asked to reclaim
it. cgroup-v2.rst, cgroup-v1/memory.rst; proc(5), MemAvailable.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from eos_agent.kernel.cgroup_fs import descend, memberships, name_of, root_of, write
from eos_agent.kernel.cgroups import Groups
from eos_agent.wire.protocol import SERVER_BUSY, OperationError

SESSION_BYTES = 3 << 20
"""Memory of a session with its first command, in its cgroup and the zygote's: 2.6 MB measured, of which 0.25
MB are kernel memory."""
COMMANDS_BYTES = 16 << 20
"""Memory left for commands of the existing sessions."""
FIRST_COMMAND_BYTES = 128 << 10
"""Growth of a session with its first command; reserved for each session without a command so far."""
SESSION_PIDS = 8
"""Processes of a new session: its init and a small command."""
RECLAIM_EVERY_S = 1.0
_PUBLISH = "publish a session that has ended its work (publish_workspace_session), then repeat the call; "
NO_ROOM_HINT = _PUBLISH + "a sandbox with a larger resource_profile has room for more"
TOO_MANY_HINT = _PUBLISH + "runtime.workspace.max_sessions sets the limit of new sandboxes"


class Shortage(NamedTuple):
    """A limit without enough room: `unit` is bytes or processes."""

    limit: str
    where: str
    unit: str
    needed: int
    free: int
    value: int


class _Memory(NamedTuple):
    """A cgroup with a memory limit, by the descriptor of its directory."""

    where: str
    fd: int
    version_2: bool
    usage_fd: int

    @staticmethod
    def of(where: str, fd: int, *, version_2: bool) -> _Memory:
        return _Memory(
            where, fd, version_2, _open(fd, "memory.current" if version_2 else "memory.usage_in_bytes")
        )

    def limit(self) -> int | None:
        return _number(self.fd, "memory.max" if self.version_2 else "memory.limit_in_bytes")

    def usage(self) -> int:
        return int(os.pread(self.usage_fd, 32, 0))

    def reclaimable(self) -> int:
        names = (
            ("inactive_file", "active_file", "slab_reclaimable")
            if self.version_2
            else ("total_inactive_file", "total_active_file")
        )
        fd = _open(self.fd, "memory.stat")
        try:
            words = os.pread(fd, 65536, 0).decode().split()
        finally:
            os.close(fd)
        found = dict(zip(words[::2], words[1::2], strict=False))
        return sum(int(found.get(name, 0)) for name in names)

    def reclaim(self, amount: int) -> None:
        """Let the kernel reclaim up to `amount` bytes."""
        with contextlib.suppress(OSError):
            if self.version_2:
                write(self.fd, "memory.reclaim", str(amount))
            else:
                write(self.fd, "memory.force_empty", "0")


class Headroom:
    """The limits found by `open_headroom`. Methods may be called from any thread, one at a time."""

    def __init__(self, levels: list[_Memory], pids: list[tuple[int, int]], session_bytes: int) -> None:
        self._levels, self._pids = levels, pids  # pids: descriptors of pids.current and of its directory
        self.session_bytes = session_bytes
        self._reclaimed = -RECLAIM_EVERY_S
        self._meminfo = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        for level in self._levels:
            os.close(level.usage_fd)
            os.close(level.fd)
        for current, folder in self._pids:
            os.close(current)
            os.close(folder)
        os.close(self._meminfo)
        self._levels, self._pids = [], []

    def needed(self, making: int, fresh: int) -> int:
        """Bytes needed for one more session while `making` others are being made and `fresh` have had no
        command yet."""
        return self.session_bytes * (making + 1) + FIRST_COMMAND_BYTES * fresh + COMMANDS_BYTES

    def quick(self, making: int, fresh: int) -> bool:
        """Test for room without counting reclaimable memory. Cost: some microseconds for each limit."""
        needed = self.needed(making, fresh)
        for level in self._levels:
            limit = level.limit()
            if limit is not None and limit - level.usage() < needed:
                return False
        return self._available() >= needed and self._processes(making) is None

    def shortage(self, making: int, fresh: int) -> Shortage | None:
        """Return the limit without room, with reclaimable memory counted as free; None if there is room."""
        found = self._processes(making) or self._memory(making, fresh)
        if (
            found is not None
            and found.unit == "bytes"
            and time.monotonic() - self._reclaimed >= RECLAIM_EVERY_S
        ):
            self._reclaimed = time.monotonic()
            for level in self._levels:
                if level.where == found.where:
                    level.reclaim(found.needed)
            found = self._memory(making, fresh)
        return found

    def _memory(self, making: int, fresh: int) -> Shortage | None:
        needed = self.needed(making, fresh)
        for level in self._levels:
            limit = level.limit()
            if limit is None:
                continue
            free = limit - level.usage()
            if free < needed:
                free += level.reclaimable()
            if free < needed:
                return Shortage("memory", level.where, "bytes", needed, max(0, free), limit)
        available = self._available()
        if available < needed:
            return Shortage("memory", "the machine", "bytes", needed, available, _memory_of_machine())
        return None

    def _processes(self, making: int) -> Shortage | None:
        needed = SESSION_PIDS + making
        for current, folder in self._pids:
            limit = _number(folder, "pids.max")
            if limit is not None and limit - int(os.pread(current, 32, 0)) < needed:
                free = max(0, limit - int(os.pread(current, 32, 0)))
                return Shortage("pids", "all sessions together", "processes", needed, free, limit)
        return None

    def _available(self) -> int:
        for line in os.pread(self._meminfo, 512, 0).split(b"\n"):
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
        return 1 << 62  # a kernel without this figure


def open_headroom(groups: Groups, session_bytes: int = SESSION_BYTES) -> Headroom:
    """Find the limits of the sessions of `groups`. Never fails: a cgroup that cannot be read is left out."""
    levels: list[_Memory] = []
    pids: list[tuple[int, int]] = []
    for part in groups.parts:
        if "memory" in part.controllers:
            with contextlib.suppress(OSError):
                levels.append(
                    _Memory.of("all sessions together", os.dup(part.fd), version_2=not part.hierarchy)
                )
        if "pids" in part.controllers:
            with contextlib.suppress(OSError):
                pids.append((_open(part.fd, "pids.current"), os.dup(part.fd)))
    with contextlib.suppress(OSError):
        levels.extend(_above())
    return Headroom(levels, pids, session_bytes)


def _above() -> Iterator[_Memory]:
    """Yield the agent's cgroup and those above it, as far as they have a limit and this namespace shows
    them."""
    for hierarchy, own in memberships().items():
        if hierarchy and "memory" not in hierarchy.split(","):
            continue
        root = root_of(hierarchy)
        try:
            path = own
            while True:
                fd = descend(root, path)
                if _number(fd, "memory.limit_in_bytes" if hierarchy else "memory.max") is None:
                    os.close(fd)
                else:
                    yield _Memory.of(
                        "the sandbox" if path in ("/", own) else f"{name_of(hierarchy)} {path}",
                        fd,
                        version_2=not hierarchy,
                    )
                if path in ("/", ""):
                    break
                path = os.path.dirname(path)
        finally:
            os.close(root)


def refused(found: Shortage, sessions: int) -> OperationError:
    """The error for a session that has no room."""
    details: dict[str, Any] = {
        "limit": found.limit,
        "value": found.value,
        "where": found.where,
        f"needed_{found.unit}": found.needed,
        f"free_{found.unit}": found.free,
        "sessions": sessions,
        "retryable": True,
        "hint": NO_ROOM_HINT,
    }
    message = (
        f"no room for another session: it needs {found.needed} {found.unit} of {found.limit}, "
        f"{found.free} of {found.value} are free in {found.where}, with {sessions} sessions"
    )
    return OperationError(SERVER_BUSY, message, details, reason="sandbox_full")


def too_many(sessions: int, value: int) -> OperationError:
    """The error when the configured number of sessions is reached."""
    details = {
        "limit": "runtime.workspace.max_sessions",
        "value": value,
        "sessions": sessions,
        "retryable": True,
        "hint": TOO_MANY_HINT,
    }
    return OperationError(
        SERVER_BUSY,
        f"no room for another session: there are {sessions}, which is the limit",
        details,
        reason="sandbox_full",
    )


def _memory_of_machine() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _open(dir_fd: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)


def _number(dir_fd: int, name: str) -> int | None:
    """Read a limit; None means no limit: the file is absent, says `max`, or names more than the machine
    has."""
    try:
        fd = _open(dir_fd, name)
    except OSError:
        return None
    try:
        text = os.read(fd, 32).strip()
    finally:
        os.close(fd)
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None
