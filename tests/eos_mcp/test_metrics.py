"""The manager's samples: the ring on disk, what an engine's answer means, and the points that are made of
them.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError
from eos_mcp.config import load
from eos_mcp.manager.metrics import NOTHING, OFF, Metrics
from eos_mcp.providers.docker import sample_of
from eos_mcp.providers.provider import Provider
from eos_mcp.record.registry import AgentEndpoint, SandboxRecord
from eos_mcp.record.sample_ring import SIZE_BYTES, SLOTS, EngineSample, Ring

BOUND = 64 * 1024


def sample(number: int) -> EngineSample:
    return EngineSample(number, number * 10, None, number, 5, None)


def test_a_ring_keeps_the_newest_in_64_kib_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    ring = Ring(str(path))
    assert ring.read() == []
    for number in range(1, SLOTS + 3):
        ring.add(sample(number))
    assert ring.read() == [sample(number) for number in range(3, SLOTS + 3)]
    assert path.stat().st_size == SIZE_BYTES == BOUND and path.stat().st_mode & 0o777 == 0o600
    again = Ring(str(path))
    again.add(sample(9999))
    assert Ring(str(path)).read()[-2:] == [sample(SLOTS + 2), sample(9999)]


def test_a_torn_slot_is_left_out_and_a_file_that_is_no_ring_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    ring = Ring(str(path))
    for number in (1, 2, 3):
        ring.add(sample(number))
    data = bytearray(path.read_bytes())
    data[64 + 64 + 9] ^= 1
    path.write_bytes(data)
    assert Ring(str(path)).read() == [sample(1), sample(3)]
    path.write_bytes(data[: 64 + 100])
    assert Ring(str(path)).read() == [sample(1)]
    path.write_bytes(b"something else")
    other = Ring(str(path))
    assert other.read() == []
    other.add(sample(7))
    assert Ring(str(path)).read() == [sample(7)]


def test_a_symlink_is_no_ring(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"keep")
    (tmp_path / "a.ring").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        Ring(str(tmp_path / "a.ring")).add(sample(1))
    assert (tmp_path / "target").read_bytes() == b"keep"


def test_an_engines_answer_in_both_spellings_is_a_sample() -> None:
    stats: dict[str, Any] = {
        "memory_stats": {"usage": 41943040, "limit": 536870912},
        "cpu_stats": {"cpu_usage": {"total_usage": 812345678}},
        "blkio_stats": {
            "io_service_bytes_recursive": [
                {"major": 8, "minor": 0, "op": "Read", "value": 100},
                {"major": 8, "minor": 0, "op": "write", "value": 4096},
                {"major": 8, "minor": 16, "op": "read", "value": 1},
                {"major": 8, "minor": 0, "op": "Total", "value": 4196},
            ]
        },
    }
    assert sample_of(stats, 5) == EngineSample(5, 812345, 101, 4096, 41943040, 536870912)
    assert sample_of({**stats, "blkio_stats": {"io_service_bytes_recursive": None}}, 5) == EngineSample(
        5, 812345, 0, 0, 41943040, 536870912
    )
    for empty in (
        {},
        {"memory_stats": {}, "cpu_stats": {"cpu_usage": {"total_usage": 0}}},
        {"memory_stats": None, "cpu_stats": None},
    ):
        assert sample_of(empty, 5) is None


class Engine:
    """What `Metrics` asks; it answers from a list, and tells each question."""

    def __init__(self, answers: list[EngineSample | OperationError | None]) -> None:
        self.answers, self.asked = answers, threading.Semaphore(0)

    def usage(self, record: SandboxRecord) -> EngineSample | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.asked.release()
        if isinstance(answer, OperationError):
            raise answer
        return None if answer is None else answer._replace(ts=int(time.time() * 1000))


def metrics(tmp_path: Path, engine: Engine, records: list[SandboxRecord], *, yaml: str = "") -> Metrics:
    path = tmp_path / "config.yml"
    path.write_text(yaml or "observability: {resource_stats: {sample_interval_ms: 250}}")
    provider: Any = engine
    found: Provider = provider
    return Metrics(load.load(str(path)), str(tmp_path / "rings"), lambda: records, lambda _: found)


def record(sandbox_id: str = "s", state: Any = "ready") -> SandboxRecord:
    return SandboxRecord(
        id=sandbox_id,
        workspace_root="/w",
        state=state,
        daemon=AgentEndpoint(host="127.0.0.1", port=1),
        provider="docker",
        image="i",
        token="t",
        created_unix_ms=0,
    )


def test_ready_sandboxes_are_sampled_until_they_are_gone(tmp_path: Path) -> None:
    engine, records = Engine([sample(1), sample(2), sample(1)]), [record(), record("half-made", "creating")]
    watched = metrics(tmp_path, engine, records)
    assert watched.latest("s") == ("unavailable", ["nothing was sampled yet"], None)
    watched.watch()
    for _ in range(4):
        assert engine.asked.acquire(timeout=30)
    availability, errors, series = watched.series("s", 600_000)
    assert (availability, errors) == ("available", []) and len(series) >= 3
    assert series[0]["deltas"] == {} and series[0]["sample_delta_ms"] is None
    assert series[1]["deltas"] == {"cpu_usec": 10, "io_wbytes": 1} and series[1]["sample_delta_ms"] > 0
    assert series[2]["deltas"] == {"cpu_usec": 0, "io_wbytes": 0}  # a restarted container counts from nothing
    assert series[0]["metrics"] == {
        "metrics_source": "docker_engine",
        "cpu_usec": 10,
        "io_wbytes": 1,
        "mem_cur": 5,
    }
    assert watched.series("s", 0)[2] == [] and watched.latest("s")[2] is not None
    assert [path.name for path in (tmp_path / "rings").iterdir()] == ["s.ring"]
    records.clear()
    watched.forget("s")
    assert not (tmp_path / "rings").exists()
    watched.close()


def test_what_an_engine_does_not_say_is_reported(tmp_path: Path) -> None:
    away = OperationError(INTERNAL_ERROR, "the engine hangs", reason="docker_failed")
    for answer, words in ((away, "the engine hangs"), (None, NOTHING)):
        engine = Engine([answer])
        watched = metrics(tmp_path, engine, [record()])
        watched.watch()
        assert engine.asked.acquire(timeout=30)
        end = time.monotonic() + 30
        while watched.latest("s") != ("unavailable", [words], None):
            assert time.monotonic() < end, watched.latest("s")
        watched.close()
    assert not (tmp_path / "rings").exists()


def test_samples_that_are_switched_off_are_reported_too(tmp_path: Path) -> None:
    engine = Engine([sample(1)])
    off = metrics(tmp_path, engine, [record()], yaml="observability: {enabled: false}")
    off.watch()
    assert off.series("s", 1000) == ("unavailable", [OFF], [])
    off.close()


def test_a_wrong_document_of_the_agents_keeps_no_gateway_from_starting(tmp_path: Path) -> None:
    assert metrics(tmp_path, Engine([None]), [], yaml="runtime: {workspace: {surprise: 1}}").enabled


def test_an_id_that_is_no_name_reaches_no_file(tmp_path: Path) -> None:
    watched = metrics(tmp_path, Engine([sample(1)]), [])
    (tmp_path / "x.ring").write_bytes(b"keep")
    watched.forget("../x")
    assert watched.series("../x", 1000)[2] == [] and (tmp_path / "x.ring").exists()
