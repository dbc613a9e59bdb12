"""Write a file about the agent's process if its CPU time or memory stays high for a whole window, then
pause."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eos_agent.base.settings import Settings

CPU, MEMORY, UNREAPED = "cpu", "anonymous_memory", "exited_unreaped_holder"


class SelfDiagnostics:
    """Checks each sample. A trigger that holds for the whole window writes `daemon-diagnostic.json`, then a
    cooldown begins.

    The memory threshold counts growth since the first sample: an interpreter alone exceeds any useful
    threshold.
    """

    def __init__(self, settings: Settings) -> None:
        on = (
            settings.get(f"observability.{key}", True)
            for key in ("enabled", "resource_stats.enabled", "diagnostics.enabled")
        )
        self.enabled = all(on)
        self._path = f"{settings.runtime_dir}/observability/daemon-diagnostic.json"
        self._cpu_percent: float = settings.get("observability.diagnostics.cpu_threshold_percent", 2.0)
        self._memory_bytes: int = settings.get(
            "observability.diagnostics.anonymous_memory_threshold_bytes", 16 << 20
        )
        self._window_ms: int = settings.get("observability.diagnostics.sustained_window_ms", 30_000)
        self._cooldown_ms: int = settings.get("observability.diagnostics.cooldown_ms", 300_000)
        self._max_bytes: int = settings.get("observability.diagnostics.max_artifact_bytes", 1 << 20)
        self._before: tuple[int, int] | None = None
        self._first_memory: int | None = None
        self._since: dict[str, int] = {}
        self._until = 0
        self._now = 0
        self._count = 0
        self._latest: dict[str, Any] | None = None
        self._error: str | None = None

    def look(
        self, ts: int, *, cpu_us: int, memory_bytes: int, unreaped: int, about: Callable[[], dict[str, Any]]
    ) -> None:
        """Check one sample of the agent's process; blocking if it writes the file. about: returns the
        `daemon` object of the file.
        """
        if not self.enabled:
            return
        before, self._before, self._now = self._before, (ts, cpu_us), ts
        if self._first_memory is None:
            self._first_memory = memory_bytes
        busy = (
            before is not None
            and ts > before[0]
            and (cpu_us - before[1]) / (ts - before[0]) / 10 > self._cpu_percent
        )
        for trigger, holds in (
            (CPU, busy),
            (MEMORY, memory_bytes - self._first_memory > self._memory_bytes),
            (UNREAPED, unreaped > 0),
        ):
            if holds:
                self._since.setdefault(trigger, ts)
            else:
                self._since.pop(trigger, None)
        due = next((trigger for trigger, since in self._since.items() if ts - since >= self._window_ms), None)
        if due is not None and ts >= self._until:
            self._write(due, ts, about())

    def _write(self, trigger: str, ts: int, about: dict[str, Any]) -> None:
        self._count += 1
        self._until = ts + self._cooldown_ms
        self._latest = {
            "trigger": trigger,
            "written_at_unix_ms": ts,
            "sustained_ms": ts - self._since[trigger],
        }
        data = json.dumps({"schema_version": 1, **self._latest, "daemon": about}).encode() + b"\n"
        try:
            if len(data) > self._max_bytes:
                raise OSError(f"the file would have {len(data)} bytes, at most {self._max_bytes} are allowed")
            with open(
                self._path + ".new", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)
            ) as file:
                file.write(data)
            os.replace(self._path + ".new", self._path)
            self._error = None
        except OSError as error:
            self._error = error.strerror or str(error)

    def to_json(self) -> dict[str, Any]:
        """The `diagnostics` object."""
        oldest = min(self._since.items(), key=lambda item: item[1], default=None)
        left = max(0, self._until - self._now)
        return {
            "enabled": self.enabled,
            "max_artifact_bytes": self._max_bytes,
            "trigger_count": self._count,
            "active_window": oldest
            and {"trigger": oldest[0], "started_at_unix_ms": oldest[1], "elapsed_ms": self._now - oldest[1]},
            "cooldown": {
                "active": left > 0,
                "until_unix_ms": self._until if left else None,
                "remaining_ms": left,
            },
            "latest": self._latest,
            "last_error": self._error,
        }
