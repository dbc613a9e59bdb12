"""Usage of a sandbox or a session: read from its cgroup if it has one of its own, else summed over its
processes.

cgroups(7); the kernel's cgroup-v2.rst for `cpu.stat`, `memory.*`, `io.stat`, `pids.current`; v1's
cpuacct.rst, memory.rst, blkio-controller.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from eos_agent.kernel.procfs import ProcessStat, fields, number, read

MOUNT = "/sys/fs/cgroup"
COUNTERS = ("cpu_usec", "io_rbytes", "io_wbytes")
UNLIMITED = 1 << 60
"""Smallest value that means unlimited: without a limit v1 shows the largest page-aligned number."""


class Usage(NamedTuple):
    """Counters since the start, and levels. None: unknown."""

    cpu_usec: int | None
    io_rbytes: int | None
    io_wbytes: int | None
    mem_cur: int | None
    mem_max: int | None
    pids_cur: int | None


def of_cgroup(mount: str = MOUNT) -> Usage | None:
    """Read the cgroup at the root of the hierarchies mounted below `mount`, which is the container's own in a
    private cgroup namespace. None without a cgroup.
    """
    if os.path.exists(f"{mount}/cgroup.controllers"):
        found = _second_version(mount)
    else:
        found = _first_version(mount)
    return None if found.cpu_usec is None and found.mem_cur is None else found


def _second_version(mount: str) -> Usage:
    cpu = dict(line.split(" ", 1) for line in _text(f"{mount}/cpu.stat").splitlines() if " " in line)
    reads, writes = _sums(_text(f"{mount}/io.stat"), ("rbytes=", "wbytes="))
    return Usage(
        number(cpu.get("usage_usec")),
        reads,
        writes,
        number(_text(f"{mount}/memory.current").strip()),
        _limit(_text(f"{mount}/memory.max")),
        number(_text(f"{mount}/pids.current").strip()),
    )


def _first_version(mount: str) -> Usage:
    nanoseconds = number(_text(f"{mount}/cpuacct/cpuacct.usage").strip())
    reads = writes = 0
    for line in _text(f"{mount}/blkio/blkio.throttle.io_service_bytes").splitlines():
        words = line.split()
        if len(words) == 3 and words[2].isdecimal():
            reads += int(words[2]) if words[1] == "Read" else 0
            writes += int(words[2]) if words[1] == "Write" else 0
    return Usage(
        None if nanoseconds is None else nanoseconds // 1000,
        reads,
        writes,
        number(_text(f"{mount}/memory/memory.usage_in_bytes").strip()),
        _limit(_text(f"{mount}/memory/memory.limit_in_bytes")),
        number(_text(f"{mount}/pids/pids.current").strip()),
    )


def _text(path: str) -> str:
    return (read(path) or b"").decode("ascii", "replace")


def _sums(text: str, names: tuple[str, ...]) -> list[int]:
    words = [word for line in text.splitlines() for word in line.split()]
    return [sum(number(word[len(name) :]) or 0 for word in words if word.startswith(name)) for name in names]


def _limit(text: str) -> int | None:
    found = number(text.strip())
    return None if found is None or found >= UNLIMITED else found


Moved = dict[int, tuple[int, int, int]]
"""pid -> bytes read, bytes written and private memory, for each process that was read already."""


def of_processes(members: Iterable[ProcessStat], known: Moved | None = None) -> Usage:
    """Sum over live processes. The CPU time of an ended process counts if a live one has waited for it.

    known: figures of processes read so far; this call adds to it, so that a process in several groups is read
    once.
    """
    some = list(members)
    reads = writes = memory = 0
    known = {} if known is None else known
    for seen in some:
        if seen.pid not in known:
            io = fields(read(f"/proc/{seen.pid}/io"))
            known[seen.pid] = (
                number(io.get("read_bytes")) or 0,
                number(io.get("write_bytes")) or 0,
                _private(seen.pid),
            )
        read_bytes, written, private = known[seen.pid]
        reads += read_bytes
        writes += written
        memory += private
    return Usage(
        sum(seen.cpu_us + seen.children_cpu_us for seen in some),
        reads,
        writes,
        memory,
        None,
        sum(seen.threads for seen in some),
    )


def _private(pid: int) -> int:
    """Resident memory of a process without pages of files, in bytes."""
    words = _text(f"/proc/{pid}/statm").split()
    return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE") if len(words) > 2 else 0


def point(
    ts: int,
    usage: Usage,
    before: tuple[int, Usage] | None,
    metrics: dict[str, Any],
    *,
    scope: str | None = None,
) -> dict[str, Any]:
    """A series point of contract 7.1: `metrics` and the usage. Counters are also given as differences from
    the previous point.
    """
    deltas: dict[str, int] = {}
    if before is not None:
        for name in COUNTERS:
            now, then = getattr(usage, name), getattr(before[1], name)
            if now is not None and then is not None:
                deltas[name] = max(0, now - then)
    measured = {name: value for name, value in usage._asdict().items() if value is not None}
    return {
        "ts": ts,
        **({"scope": scope} if scope else {}),
        "metrics": {**metrics, **measured, "mem_max_unlimited": usage.mem_max is None},
        "deltas": deltas,
        "sample_delta_ms": None if before is None else ts - before[0],
    }
