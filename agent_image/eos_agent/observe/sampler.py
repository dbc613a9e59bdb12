"""Sample the usage of the sandbox, its sessions and its stack. Samples of the sandbox and the stack are kept
on disk, those of sessions in memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from eos_agent.base import log
from eos_agent.base.rotating_log import Segments, decode
from eos_agent.kernel import procfs
from eos_agent.observe.limits import MAX_BYTES, MAX_RECORDS
from eos_agent.observe.usage import Moved, Usage, of_cgroup, of_processes, point

if TYPE_CHECKING:
    from eos_agent.base.pool import Pool
    from eos_agent.base.settings import Settings
    from eos_agent.sessions.table import Sessions

KEPT_OF_SESSION = 32
"""Samples kept for each session: about a minute."""
SANDBOX, STACK = "sandbox", "stack"
NO_CGROUP = "the sandbox has no cgroup of its own: figures are sums over its processes"
FROM_CGROUP, FROM_PROCESSES = "sandbox_cgroup", "process_tree"


class UsageSample(NamedTuple):
    ts: int
    usage: Usage


class Sampler:
    """The sampler of an agent. `watch` starts it; with `observability.enabled: false` it takes no samples."""

    def __init__(
        self, settings: Settings, sessions: Sessions, pool: Pool, *, on_sample: Callable[[int], object]
    ) -> None:
        """on_sample: called with the time in ms after each sample, in the thread of the pool that took it."""
        self._sessions, self._pool, self._local = sessions, pool, settings.local
        self.enabled: bool = settings.get("observability.enabled", True) and settings.get(
            "observability.resource_stats.enabled", True
        )
        self._interval_s: float = settings.get("observability.resource_stats.sample_interval_ms", 2000) / 1000
        self._path = f"{settings.runtime_dir}/observability/resources.ndjson"
        self._max_bytes: int = settings.get("observability.resource_stats.max_disk_bytes", 1 << 20)
        self._window_ms: int = settings.get("observability.views.resource_window_ms", 600_000)
        self._segments: Segments | None = None
        self._last: UsageSample | None = None
        self._of_sessions: dict[str, deque[UsageSample]] = {}
        self._stack: tuple[tuple[int, int], dict[str, int]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._on_sample = on_sample
        self.latest: dict[str, Any] | None = None
        """The newest point of the sandbox."""

    def watch(self) -> None:
        """Start sampling, in a thread of the pool, since a sample waits for the disk."""
        if self.enabled:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._segments is not None:
            self._segments.close()

    async def _work(self) -> None:
        try:
            self._segments = await self._pool.run(lambda: Segments(self._path, self._max_bytes))
        except OSError as error:
            log.failure("sampler_off", error)
            self.enabled = False
            return
        while True:
            try:
                await self._pool.run(self.sample)
            except Exception as error:
                log.failure("sample_failed", error)
            await asyncio.sleep(self._interval_s)

    def sample(self) -> None:
        """Take one sample; blocking."""
        ts = int(time.time() * 1000)
        moved: Moved = {}
        everyone = procfs.tree_of(os.getpid()) if self._local or self._sessions.live else {}
        usage = None if self._local else of_cgroup()
        source = FROM_CGROUP
        if usage is None:
            source, usage = (
                FROM_PROCESSES,
                of_processes((everyone or procfs.tree_of(os.getpid())).values(), moved),
            )
        metrics: dict[str, Any] = {
            "metrics_source": source,
            "cgroup_path": "/",
            "cgroup_available": source == FROM_CGROUP,
        }
        if source == FROM_PROCESSES:
            metrics = {**metrics, "cgroup_path": None, "cgroup_error": NO_CGROUP}
        found = point(ts, usage, self._last, metrics, scope=SANDBOX)
        self._last, self.latest = UsageSample(ts, usage), found
        self._keep(found)
        self._keep(
            {
                "ts": ts,
                "scope": STACK,
                "metrics": self._stack_figures(),
                "deltas": {},
                "sample_delta_ms": found["sample_delta_ms"],
            }
        )
        live = {session.id: session.init.pid for session in list(self._sessions.live.values())}
        for session_id, pid in live.items():
            members = procfs.below(pid, everyone)
            if members:
                kept = self._of_sessions.setdefault(session_id, deque(maxlen=KEPT_OF_SESSION))
                kept.append(UsageSample(ts, of_processes(members, moved)))
        for session_id in list(self._of_sessions):
            if session_id not in live:
                del self._of_sessions[session_id]
        self._on_sample(ts)

    def _keep(self, found: dict[str, Any]) -> None:
        if self._segments is not None:
            self._segments.write([json.dumps(found, separators=(",", ":")).encode() + b"\n"])

    def _stack_figures(self) -> dict[str, int]:
        """Figures of the stack, cached until a publish, a squash or a change of leases."""
        store = self._sessions.store
        key = (store.head.version, len(store.leases.all()))
        if self._stack is None or self._stack[0] != key:
            stats = store.layer_stats()
            names = ("total_bytes", "total_allocated_bytes", "storage_allocated_bytes", "active_lease_count")
            self._stack = (
                key,
                {"layer_count": len(stats["layers"]), **{name: int(stats[name]) for name in names}},
            )
        return self._stack[1]

    # Reading

    def series(self, scope: str, window_ms: int) -> list[dict[str, Any]]:
        """The newest points of the sandbox or the stack that are within the window and fit into one answer,
        oldest first. Blocking.
        """
        segments = self._segments
        if segments is None:
            return []
        since = time.time() * 1000 - min(window_ms, self._window_ms)
        mark = f'"scope":"{scope}"'.encode()
        found: list[dict[str, Any]] = []
        size = 0
        for line in reversed(
            [line for data in segments.read() for line in data.split(b"\n") if mark in line]
        ):
            value = decode(line, ts=int, metrics=dict)
            if value is None or value.get("scope") != scope:
                continue
            size += len(line)
            if value["ts"] < since or len(found) >= MAX_RECORDS or size > MAX_BYTES:
                break
            found.append(value)
        return found[::-1]

    def of_session(self, session_id: str, window_ms: int) -> list[dict[str, Any]]:
        """Points of a live session: about the last minute."""
        since = time.time() * 1000 - min(window_ms, self._window_ms)
        samples = list(self._of_sessions.get(session_id, ()))
        found: list[dict[str, Any]] = []
        for before, sample in zip([None, *samples], samples, strict=False):
            if sample.ts >= since:
                found.append(
                    point(
                        sample.ts, sample.usage, before, {"metrics_source": FROM_PROCESSES}, scope=session_id
                    )
                )
        return found

    def now_of(self, session_id: str, pid: int) -> list[dict[str, Any]]:
        """Sample a session now; blocking."""
        members = procfs.below(pid, procfs.everybody())
        source = {"metrics_source": FROM_PROCESSES}
        return (
            [point(int(time.time() * 1000), of_processes(members), None, source, scope=session_id)]
            if members
            else []
        )

    def latest_of(self, session_id: str) -> dict[str, Any] | None:
        points = self.of_session(session_id, self._window_ms)
        return points[-1] if points else None
