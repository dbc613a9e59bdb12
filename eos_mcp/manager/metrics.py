"""Resource samples of each ready sandbox, read from the engine by a thread and kept in a ring per sandbox."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from eos_agent.wire.protocol import OperationError
from eos_mcp.config.load import Config, ConfigError
from eos_mcp.config.log import log
from eos_mcp.config.model import Observability
from eos_mcp.providers.provider import Provider
from eos_mcp.record.registry import SandboxRecord
from eos_mcp.record.sample_ring import EngineSample, Ring

COUNTERS = ("cpu_usec", "io_rbytes", "io_wbytes")
POINTS_MAX = 500
"""Limit of points in one answer."""
STALE_MS = 10_000
REST_S = 30.0
"""Seconds before the engine is asked again about a container for which it reports no figures."""
NOTHING = "the engine counts nothing of this sandbox"
OFF = "resource samples are switched off (observability.resource_stats.enabled)"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Metrics:
    """Rings of the sandboxes whose provider reports what they use. The thread is a daemon thread: an engine
    that hangs must not keep the gateway from ending.
    """

    def __init__(
        self,
        config: Config,
        directory: str,
        records: Callable[[], Iterable[SandboxRecord]],
        provider: Callable[[str], Provider],
    ) -> None:
        chosen = _chosen(config)
        stats = chosen.resource_stats
        self.enabled = chosen.enabled and stats.enabled
        self._interval_s = stats.sample_interval_ms / 1000
        self._directory = directory
        self._records, self._provider = records, provider
        self._rings: dict[str, Ring] = {}
        self._problems: dict[str, str] = {}
        self._rest_until: dict[str, float] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        if self.enabled:
            self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def _work(self) -> None:
        while not self._closing.wait(self._interval_s):
            for record in [record for record in self._records() if record.state == "ready"]:
                if self._closing.is_set():
                    return
                try:
                    self._sample(record)
                except Exception as error:  # the next sample may come
                    log("sample_failed", sandbox_id=record.id, error=type(error).__name__)

    def _sample(self, record: SandboxRecord) -> None:
        if time.monotonic() < self._rest_until.get(record.id, 0.0):
            return
        try:
            sample = self._provider(record.provider).usage(record)
        except OperationError as error:
            self._problems[record.id] = error.message[:1000]
            return
        if sample is None:
            self._problems[record.id] = NOTHING
            self._rest_until[record.id] = time.monotonic() + REST_S
            return
        with self._lock:
            now = next((each for each in self._records() if each.id == record.id), None)
            if now is None or now.state != "ready":
                return  # the sandbox was destroyed, with its ring
            try:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                self._ring(record.id).add(sample)
            except OSError as error:
                self._problems[record.id] = f"{self._directory}: {error.strerror}"
            else:
                self._problems.pop(record.id, None)

    def _ring(self, sandbox_id: str) -> Ring:
        if not _NAME.fullmatch(sandbox_id):
            raise FileNotFoundError(2, "no name for a file", sandbox_id)
        return self._rings.setdefault(sandbox_id, Ring(os.path.join(self._directory, f"{sandbox_id}.ring")))

    def forget(self, sandbox_id: str) -> None:
        """Remove the ring of a destroyed sandbox."""
        with self._lock, contextlib.suppress(OSError):
            self._problems.pop(sandbox_id, None)
            self._rest_until.pop(sandbox_id, None)
            ring = self._rings.pop(sandbox_id, None) or Ring(
                os.path.join(self._directory, f"{sandbox_id}.ring")
            )
            if _NAME.fullmatch(sandbox_id):
                os.unlink(ring.path)
            os.rmdir(self._directory)

    # Reading; blocking

    def series(self, sandbox_id: str, window_ms: int) -> tuple[str, list[str], list[dict[str, Any]]]:
        """Return (availability, errors, points within the window, oldest first)."""
        samples = self._samples(sandbox_id)
        since = time.time() * 1000 - window_ms
        points = [
            _point(sample, before)
            for before, sample in zip([None, *samples], samples, strict=False)
            if sample.ts >= since
        ]
        return *self._word(sandbox_id, samples), points[-POINTS_MAX:]

    def latest(self, sandbox_id: str) -> tuple[str, list[str], dict[str, Any] | None]:
        """Return (availability, errors, the newest point)."""
        samples = self._samples(sandbox_id)[-2:]
        point = _point(samples[-1], samples[0] if len(samples) > 1 else None) if samples else None
        return *self._word(sandbox_id, samples), point

    def _samples(self, sandbox_id: str) -> list[EngineSample]:
        with self._lock, contextlib.suppress(OSError):
            return self._ring(sandbox_id).read()
        return []

    def _word(self, sandbox_id: str, samples: list[EngineSample]) -> tuple[str, list[str]]:
        if not self.enabled:
            return "unavailable", [OFF]
        problem = self._problems.get(sandbox_id)
        if not samples:
            return "unavailable", [problem or "nothing was sampled yet"]
        age_ms = int(time.time() * 1000) - samples[-1].ts
        if problem or age_ms > max(STALE_MS, 3000 * self._interval_s):
            return "partial", [problem or f"the newest sample is {age_ms} ms old"]
        return "available", []


def _chosen(config: Config) -> Observability:
    """Return the section of the configuration; defaults for an invalid file, which create_sandbox reports."""
    try:
        return config.observability
    except ConfigError:
        return Observability()


def _point(sample: EngineSample, before: EngineSample | None) -> dict[str, Any]:
    """Return a series point in the form of contract 7.6."""
    values = {name: value for name, value in sample._asdict().items() if name != "ts" and value is not None}
    deltas: dict[str, int] = {}
    for name in COUNTERS:
        now, then = getattr(sample, name), getattr(before, name, None)
        if now is not None and then is not None:
            deltas[name] = max(0, now - then)  # the counters of a restarted container begin at 0
    return {
        "ts": sample.ts,
        "sample_delta_ms": None if before is None else sample.ts - before.ts,
        "metrics": {"metrics_source": "docker_engine", **values},
        "deltas": deltas,
    }
