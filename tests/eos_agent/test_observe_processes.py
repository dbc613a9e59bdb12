"""`topology`, `daemon`, `resources`, `cgroup` and the layers of `layerstack`, beside what the kernel says of
the same agent.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_agent.base.settings import Settings, parse
from eos_agent.kernel import procfs
from eos_agent.observe.diagnostics import SelfDiagnostics
from eos_agent.observe.layerstack import changed_paths
from eos_agent.observe.usage import Usage, of_cgroup, of_processes, point
from layerstack.kernel.xattrs import TRUSTED
from layerstack.layers.index import Layer, record
from layerstack.model.manifest import LayerId
from layerstack.tree.disk import DiskTree

from .agent_process import WAIT_S, Agent, Failed

Start = Callable[..., Agent]
needs_overlay = pytest.mark.needs("overlay")


def workspaces(agent: Agent) -> dict[str, dict[str, Any]]:
    found = agent.call("topology")
    assert (found["view"], found["scope"]) == ("topology", "sandbox")
    tree = found["topology"]
    assert (tree["schema_version"], tree["available"], tree["source"], tree["error"], tree["truncated"]) == (
        2,
        True,
        "proc_namespaces",
        None,
        False,
    )
    assert tree["warnings"] == [] and [one["workspace_id"] for one in tree["workspaces"]] == sorted(
        one["workspace_id"] for one in tree["workspaces"]
    )
    return {one["workspace_id"]: one for one in tree["workspaces"]}


def pids(workspace: dict[str, Any], kind: str = "process") -> list[int]:
    return [row["pid"] for row in workspace["processes"] if row["kind"] == kind]


@needs_overlay
def test_each_session_shows_its_own_processes_and_only_those(agent: Agent) -> None:
    assert workspaces(agent) == {}
    first, second = agent.session(), agent.session()
    for session in (first, second):
        agent.run("sleep 1000 & sleep 1000", session, yield_time_ms=0)
    idle = agent.session()
    agent.run("true", idle)
    end = time.monotonic() + WAIT_S
    while True:
        found = workspaces(agent)
        if [row["name"] for one in found.values() for row in one["processes"]].count("sleep") == 4:
            break
        assert time.monotonic() < end, found
    assert set(found) == {first, second, idle}
    assert [found[one]["state"] for one in (first, second, idle)] == ["active", "active", "idle"]
    namespaces: set[str] = set()
    for one in found.values():
        assert pids(one, "namespace_init") == [one["holder_pid"]]
        rows = one["processes"]
        assert [row["pid"] for row in rows] == sorted(row["pid"] for row in rows)
        for row in rows:
            if row["kind"] == "namespace_init":
                assert row["namespace_pid"] == 1
            else:
                assert os.readlink(f"/proc/{row['pid']}/ns/mnt") == one["mount_namespace"]
                assert os.readlink(f"/proc/{row['pid']}/ns/pid") == one["pid_namespace"]
                assert row["namespace_pid"] > 1
            assert row["cgroup_memberships"] == Path(f"/proc/{row['pid']}/cgroup").read_text().splitlines()
            assert Path(f"/proc/{row['pid']}/comm").read_text().strip() == row["name"]
            seen = procfs.look(row["pid"])
            assert seen is not None and (seen.parent, seen.started_ticks) == (
                row["parent_pid"],
                row["start_time_ticks"],
            )
            assert row["resident_memory_bytes"] > 0 and row["cpu_time_us"] >= 0
        namespaces |= {one["mount_namespace"], one["pid_namespace"]}
    assert len(namespaces) == 6
    assert set(pids(found[first])).isdisjoint(pids(found[second])) and len(pids(found[first])) >= 2


@needs_overlay
def test_what_ended_is_gone_at_the_next_call_and_its_neighbours_stay(agent: Agent) -> None:
    stays, goes = agent.session(), agent.session()
    command = agent.run("exec sleep 1000", goes, yield_time_ms=0)["command_session_id"]
    before = workspaces(agent)
    (pid,) = pids(before[goes])
    agent.call("signal_command", command_session_id=command, signal="KILL")
    agent.call("wait_command", command_session_id=command, timeout_ms=WAIT_S * 1000)
    assert pids(workspaces(agent)[goes]) == [] and not os.path.exists(f"/proc/{pid}")
    agent.call("destroy_workspace_session", workspace_session_id=goes)
    after = workspaces(agent)
    assert after == {stays: after[stays]} and after[stays]["holder_pid"] == before[stays]["holder_pid"]


@needs_overlay
def test_processes_that_end_while_they_are_looked_at_are_no_error_and_a_crowd_is_cut(agent: Agent) -> None:
    session = agent.session()
    churn = agent.run("while :; do (true); done", session, yield_time_ms=0)["command_session_id"]
    for _ in range(40):
        workspaces(agent)
    agent.call("signal_command", command_session_id=churn, signal="KILL")
    agent.run(
        "i=0; while [ $i -lt 520 ]; do sleep 1000 & i=$((i+1)); done; wait",
        session,
        yield_time_ms=0,
        tty=False,
    )
    end = time.monotonic() + WAIT_S
    while not (tree := agent.call("topology")["topology"])["truncated"]:
        assert time.monotonic() < end, tree
    assert sum(len(one["processes"]) for one in tree["workspaces"]) == 512
    agent.kill()


@needs_overlay
def test_the_agents_own_figures_are_those_of_the_kernel(shared_agent: Agent) -> None:
    session = shared_agent.session()
    command = shared_agent.run("sleep 1000", session, yield_time_ms=0)["command_session_id"]
    found = shared_agent.call("daemon")
    daemon = found["daemon"]
    assert (found["view"], found["scope"], daemon["available"], daemon["error"], daemon["pid"]) == (
        "daemon",
        "sandbox",
        True,
        None,
        shared_agent.pid,
    )
    assert daemon["warnings"] == []
    numbers = [
        *[
            "virtual_memory_bytes",
            "resident_memory_bytes",
            "peak_resident_memory_bytes",
            "proportional_set_size_bytes",
            "unique_set_size_bytes",
        ],
        *[
            "private_dirty_bytes",
            "anonymous_memory_bytes",
            "file_memory_bytes",
            "data_memory_bytes",
            "cpu_time_us",
            "start_time_ticks",
            "thread_count",
        ],
        *["file_descriptor_count", "read_syscalls", "write_syscalls", "voluntary_context_switches"],
    ]
    assert all(daemon[name] > 0 for name in numbers), daemon
    for name in [
        "anonymous_huge_pages_bytes",
        "shared_memory_bytes",
        "swap_bytes",
        "io_read_bytes",
        "io_write_bytes",
        "involuntary_context_switches",
    ]:
        assert daemon[name] >= 0
    assert daemon["cgroup_memberships"] == Path(f"/proc/{shared_agent.pid}/cgroup").read_text().splitlines()
    assert abs(daemon["file_descriptor_count"] - len(os.listdir(f"/proc/{shared_agent.pid}/fd"))) <= 4
    assert (
        daemon["runtime_config"]["max_active_commands"] == 32
        and daemon["runtime_config"]["max_concurrent_connections"] == 64
    )
    assert (
        daemon["runtime_usage"]["active_commands"] == 1
        and daemon["runtime_usage"]["connection_admission_in_use"] == 1
    )
    assert (
        daemon["ownership"]["open_workspaces"]
        == daemon["ownership"]["live_holders"]
        == daemon["ownership"]["active_layer_leases"]
        == 1
    )
    assert daemon["allocator"]["supported"] is False and set(daemon["allocator"].values()) == {False, None}
    shared_agent.call("signal_command", command_session_id=command, signal="KILL")
    shared_agent.call("destroy_workspace_session", workspace_session_id=session, grace_s=WAIT_S)
    lifecycle = shared_agent.call("daemon")["daemon"]["lifecycle"]
    assert (
        lifecycle["holder_exit_total"]
        == lifecycle["cleanup_attempt_total"]
        == lifecycle["cleanup_terminal_total"]
        == 1
    )
    assert (lifecycle["cleanup_failure_total"], lifecycle["last_cleanup_result"]) == (0, "completed")
    assert lifecycle["retained_event_count"] > 0 == lifecycle["dropped_event_total"]


@needs_overlay
def test_a_session_that_lost_its_first_process_is_counted(agent: Agent) -> None:
    session = agent.session()
    os.kill(workspaces(agent)[session]["holder_pid"], signal.SIGKILL)
    with pytest.raises(Failed):
        agent.call("file_read", path="README.md", workspace_session_id=session)
    assert agent.call("daemon")["daemon"]["lifecycle"]["last_holder_exit_reason"] == "killed by SIGKILL"
    assert workspaces(agent) == {}


@needs_overlay
def test_samples_of_sandbox_sessions_and_stack_come_at_their_interval(start_agent: Start) -> None:
    agent = start_agent(observability={"resource_stats": {"sample_interval_ms": 250}})
    session = agent.session()
    agent.run("while :; do :; done", session, yield_time_ms=0)
    agent.call("file_write", path="more", content="x" * 5000)

    def enough() -> bool:
        return (
            len(agent.call("resources")["series"]) >= 4
            and len(agent.call("cgroup", scope=session)["series"]) >= 3
        )

    end = time.monotonic() + WAIT_S
    while not enough():
        assert time.monotonic() < end
        time.sleep(0.05)
    found = agent.call("resources")
    assert (found["view"], found["scope"], found["sandbox_id"], found["source"]) == (
        "resources",
        "sandbox",
        agent.sandbox_id,
        "daemon_disk",
    )
    assert found["availability"] == "partial" and "no cgroup of its own" in found["errors"][0]
    first, *others = found["series"]
    assert (first["deltas"], first["sample_delta_ms"]) == ({}, None)
    for before, one in zip([first, *others], others, strict=False):
        assert one["ts"] - before["ts"] == one["sample_delta_ms"] > 0
        assert one["deltas"]["cpu_usec"] == one["metrics"]["cpu_usec"] - before["metrics"]["cpu_usec"] >= 0
        assert (
            one["metrics"]["mem_cur"] > 1 << 20
            and one["metrics"]["pids_cur"] >= 3
            and one["metrics"]["mem_max_unlimited"]
        )
    busy = agent.call("cgroup", scope=session)
    assert (
        "availability" not in busy
        and busy["scope"] == session
        and busy["topology"]["workspaces"][0]["workspace_id"] == session
    )
    assert sum(one["deltas"].get("cpu_usec", 0) for one in busy["series"]) > 0
    whole = agent.call("cgroup", scope="sandbox")
    assert whole["availability"] == "partial" and len(whole["series"]) >= 4
    trend = agent.call("layerstack")["trend"]
    assert trend[-1]["metrics"]["layer_count"] == 2 and trend[-1]["metrics"]["total_bytes"] == 5000
    snapshot = agent.call("snapshot")
    assert (
        snapshot["resources"]["latest"]["metrics"]["cpu_usec"] > 0 and snapshot["resources"]["history"] == []
    )
    assert snapshot["workspaces"][0]["resources"]["latest"]["metrics"]["pids_cur"] >= 2
    assert agent.call("resources", window_ms=0)["series"] == []
    for op in ("resources", "cgroup", "layerstack"):
        with pytest.raises(Failed) as caught:
            agent.call(op, window_ms=600_001)
        assert caught.value.kind == "invalid_request"
    with pytest.raises(Failed) as caught:
        agent.call("cgroup", scope="nobody")
    assert (caught.value.kind, caught.value.reason) == ("invalid_request", "session_not_found")
    folder = Path(agent.settings["runtime_dir"], "observability")
    assert (folder / "resources.ndjson").stat().st_mode & 0o777 == 0o600


@needs_overlay
def test_a_session_that_was_not_sampled_yet_has_one_point_of_now(start_agent: Start) -> None:
    agent = start_agent(observability={"resource_stats": {"sample_interval_ms": 600_000}})
    session = agent.session()
    (only,) = agent.call("cgroup", scope=session)["series"]
    assert only["metrics"]["pids_cur"] == 1 and only["sample_delta_ms"] is None


@needs_overlay
def test_what_a_layer_lists_is_reported_by_kind_and_page(agent: Agent) -> None:
    agent.run(
        "rm README.md; ln -s x link; mkdir new; echo 1 > new/f; rm -r src; mkdir src; echo 2 > src/other"
    )
    layer_id = agent.call("layerstack")["layers"][0]["layer_id"]
    found = agent.call("layerstack", layer_id=layer_id)
    assert found == {
        "view": "layerstack",
        "layer_id": layer_id,
        "entries": [
            {"path": "README.md", "kind": "delete"},
            {"path": "link", "kind": "symlink"},
            {"path": "new", "kind": "directory"},
            {"path": "new/f", "kind": "file"},
            {"path": "src/app.py", "kind": "delete"},
            {"path": "src/other", "kind": "file"},
        ],
        "truncated": False,
    }
    part = agent.call("layerstack", layer_id=layer_id, limit=2)
    assert part["entries"] == found["entries"][:2] and part["truncated"]
    base = agent.call("layerstack", layer_id="B000001-base")["entries"]
    assert {"path": "src/app.py", "kind": "file"} in base and {"path": "src", "kind": "directory"} in base
    refused: list[tuple[dict[str, Any], str]] = [
        ({"layer_id": "L000099-00000000"}, "layer not found"),
        ({"layer_id": "../../etc"}, "layer not found"),
        ({"layer_id": layer_id, "limit": 5001}, "limit exceeds max"),
        ({"layer_id": layer_id, "limit": 0}, "limit"),
        ({"layer_id": layer_id, "limit": True}, "limit"),
    ]
    for args, words in refused:
        with pytest.raises(Failed) as caught:
            agent.call("layerstack", **args)
        assert caught.value.kind == "invalid_request" and words in caught.value.message


# Without an agent


def test_an_opaque_directory_is_an_entry_and_one_on_the_way_is_none(tmp_path: Path) -> None:
    index = {
        "": record("d", quiet=True),
        "a": record("d", quiet=True),
        "a/b": record("d", opaque=True),
        "a/b/c": record("w"),
    }
    layer = Layer(LayerId("L000002-00000000"), DiskTree(str(tmp_path), TRUSTED), 2, index)
    assert list(changed_paths(layer)) == [("a/b", "opaque_dir"), ("a/b/c", "delete")]


def test_both_versions_of_cgroups_are_read(tmp_path: Path) -> None:
    second, first = tmp_path / "v2", tmp_path / "v1"
    for path, text in (
        ("v2/cgroup.controllers", "cpu memory\n"),
        ("v2/cpu.stat", "usage_usec 812345\nuser_usec 1\n"),
        ("v2/io.stat", "8:0 rbytes=100 wbytes=4096 rios=1\n8:16 rbytes=1 wbytes=1\n"),
        ("v2/memory.current", "41943040\n"),
        ("v2/memory.max", "max\n"),
        ("v2/pids.current", "9\n"),
        ("v1/cpuacct/cpuacct.usage", "812345678\n"),
        (
            "v1/blkio/blkio.throttle.io_service_bytes",
            "8:0 Read 100\n8:0 Write 4096\n8:0 Total 4196\nTotal 4196\n",
        ),
        ("v1/memory/memory.usage_in_bytes", "41943040\n"),
        ("v1/memory/memory.limit_in_bytes", "536870912\n"),
        ("v1/pids/pids.current", "9\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert of_cgroup(str(second)) == Usage(812345, 101, 4097, 41943040, None, 9)
    assert of_cgroup(str(first)) == Usage(812345, 100, 4096, 41943040, 536870912, 9)
    (first / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    found = of_cgroup(str(first))
    assert found is not None and found.mem_max is None
    assert of_cgroup(str(tmp_path / "none")) is None


def test_a_counter_that_began_anew_has_no_negative_difference() -> None:
    before, now = Usage(100, 5, None, 1, None, 1), Usage(40, 8, None, 1, 2, 1)
    found = point(3000, now, (1000, before), {"metrics_source": "x"})
    assert found["deltas"] == {"cpu_usec": 0, "io_rbytes": 3} and found["sample_delta_ms"] == 2000
    assert found["metrics"] == {
        "metrics_source": "x",
        "cpu_usec": 40,
        "io_rbytes": 8,
        "mem_cur": 1,
        "mem_max": 2,
        "pids_cur": 1,
        "mem_max_unlimited": False,
    }


def test_sums_over_processes_are_of_those_that_can_be_seen() -> None:
    everyone = procfs.everybody()
    assert os.getpid() in everyone and everyone[os.getpid()] in procfs.below(os.getpid(), everyone)
    assert procfs.below(2**22 + 1, everyone) == [] and procfs.look(2**22 + 1) is None
    measured = of_processes([everyone[os.getpid()], everyone[os.getpid()]._replace(pid=2**22 + 1)])
    assert measured.mem_cur is not None and measured.mem_cur > 1 << 20 and measured.cpu_usec


def settings(folder: Path, **config: Any) -> Settings:
    texts = (
        "workspace_root",
        "layer_stack_root",
        "scratch_root",
        "base_root_hash",
        "token_file",
        "tcp_host",
        "http_host",
    )
    paths = ("socket_path", "pid_path", "endpoint_path")
    known: dict[str, Any] = {**dict.fromkeys((*texts, *paths), "/x"), "tcp_port": 0, "http_port": 0}
    return parse(
        {
            "format": 1,
            "sandbox_id": "s",
            "provider": "local",
            "runtime_dir": str(folder),
            **known,
            "config": {"observability": config},
        }
    )


def test_diagnostics_tell_what_lasts_once_and_then_are_quiet_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "observability").mkdir()
    diagnostics = SelfDiagnostics(
        settings(tmp_path, diagnostics={"sustained_window_ms": 1000, "cooldown_ms": 5000})
    )
    path = tmp_path / "observability" / "daemon-diagnostic.json"

    def look(ts: int, cpu_us: int, memory: int = 50 << 20) -> dict[str, Any]:
        diagnostics.look(ts, cpu_us=cpu_us, memory_bytes=memory, unreaped=0, about=lambda: {"pid": 7})
        return diagnostics.to_json()

    look(0, 0)
    assert look(1000, 500_000)["active_window"] == {
        "trigger": "cpu",
        "started_at_unix_ms": 1000,
        "elapsed_ms": 0,
    }
    assert look(1500, 500_000)["active_window"] is None and not path.exists()  # it did not last
    look(2000, 900_000)
    busy = look(3000, 1_900_000)
    assert (busy["trigger_count"], busy["latest"]["trigger"], busy["cooldown"]["active"]) == (1, "cpu", True)
    assert json.loads(path.read_text())["daemon"] == {"pid": 7} and path.stat().st_mode & 0o777 == 0o600
    assert look(4000, 2_900_000)["trigger_count"] == 1
    assert look(9000, 7_900_000)["trigger_count"] == 2
    grown = look(10_000, 7_900_000, 70 << 20)
    assert grown["active_window"]["trigger"] == "anonymous_memory"


def test_diagnostics_that_are_off_or_cannot_write_say_so(tmp_path: Path) -> None:
    off = SelfDiagnostics(settings(tmp_path, diagnostics={"enabled": False}))
    off.look(0, cpu_us=0, memory_bytes=0, unreaped=9, about=dict)
    assert off.to_json()["enabled"] is False and off.to_json()["active_window"] is None
    nowhere = SelfDiagnostics(settings(tmp_path, diagnostics={"sustained_window_ms": 1}))
    for ts in (0, 1000):
        nowhere.look(ts, cpu_us=0, memory_bytes=0, unreaped=1, about=dict)
    assert (
        nowhere.to_json()["trigger_count"] == 1
        and nowhere.to_json()["last_error"] == "No such file or directory"
    )
