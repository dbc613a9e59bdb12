"""Read processes from /proc (proc(5)). A process that ends during a scan counts as absent."""

from __future__ import annotations

import os
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000


class ProcessStat(NamedTuple):
    """A process from /proc/PID/stat, with CPU times of the process and of children that it waited for."""

    pid: int
    name: str
    state: str
    parent: int
    cpu_us: int
    children_cpu_us: int
    threads: int
    started_ticks: int
    virtual_bytes: int
    resident_bytes: int


def look(pid: int) -> ProcessStat | None:
    """Read one process; None if it does not exist."""
    raw = read(f"/proc/{pid}/stat")
    if raw is None:
        return None
    try:
        begin, end = raw.index(b"("), raw.rindex(b")")
        name = raw[begin + 1 : end].decode("utf-8", "replace")
        fields = raw[end + 2 :].split()
        user, system, user_below, system_below = (int(field) for field in fields[11:15])
        return ProcessStat(
            pid,
            name,
            fields[0].decode("ascii"),
            int(fields[1]),
            (user + system) * TICK_US,
            (user_below + system_below) * TICK_US,
            int(fields[17]),
            int(fields[19]),
            int(fields[20]),
            int(fields[21]) * PAGE,
        )
    except (ValueError, IndexError):
        return None


def everybody() -> dict[int, ProcessStat]:
    """Read all visible processes, by pid."""
    found: dict[int, ProcessStat] = {}
    for name in entries("/proc") or ():
        if name.isdigit():
            seen = look(int(name))
            if seen is not None:
                found[seen.pid] = seen
    return found


def tree_of(root: int) -> dict[int, ProcessStat]:
    """Read `root` and its descendants through /proc/PID/task/TID/children: on a busy machine a tenth of the
    work of reading all processes.

    A child that begins or ends during the scan may be missing, with its descendants. If the kernel lacks
    these files all processes are read.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return {seen.pid: seen for seen in below(root, everybody())}
    found: dict[int, ProcessStat] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        seen = None if pid in found else look(pid)
        if seen is None:
            continue
        found[pid] = seen
        threads = [str(pid)] if seen.threads == 1 else entries(f"/proc/{pid}/task") or []
        for thread in threads:
            waiting += [int(child) for child in (read(f"/proc/{pid}/task/{thread}/children") or b"").split()]
    return found


def below(root: int, everyone: dict[int, ProcessStat]) -> list[ProcessStat]:
    """Select `root` and its descendants, by pid; empty if `root` has ended."""
    children: dict[int, list[int]] = {}
    for seen in everyone.values():
        children.setdefault(seen.parent, []).append(seen.pid)
    found: set[int] = set()
    waiting = [root] if root in everyone else []
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return [everyone[pid] for pid in sorted(found)]


def read(path: str) -> bytes | None:
    """Read a file of /proc or /sys; None on any error: an ending process gives ENOENT, ESRCH or EACCES."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = b""
            while piece := os.read(fd, 1 << 16):
                content += piece
            return content
        finally:
            os.close(fd)
    except OSError:
        return None


def link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def entries(path: str) -> list[str] | None:
    try:
        return os.listdir(path)
    except OSError:
        return None


def fields(raw: bytes | None) -> dict[str, str]:
    """Parse `Name:   value` lines."""
    pairs = (line.partition(":") for line in (raw or b"").decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def number(text: str | None) -> int | None:
    """Parse the leading number of a value such as `12 kB`."""
    word = (text or "").split(" ")[0]
    return int(word) if word.isdecimal() else None


def kilobytes(text: str | None) -> int | None:
    found = number(text)
    return None if found is None else found * 1024


def cgroups(pid: int | str) -> list[str] | None:
    """Read the lines of /proc/PID/cgroup."""
    raw = read(f"/proc/{pid}/cgroup")
    return None if raw is None else raw.decode("utf-8", "replace").splitlines()


def cgroup_path(lines: list[str] | None) -> str | None:
    """The path in the version 2 hierarchy; without controllers in it, that of the memory controller in
    version 1."""
    found: dict[str, str] = {}
    for line in lines or []:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for name in controllers.split(","):
            found.setdefault(name, path)
    second = found.get("")
    return found.get("memory", second) if second in (None, "/") else second
