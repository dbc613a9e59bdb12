"""The observability program on real sandboxes, in Docker and without: traces by request id, topology beside
the kernel's, samples, the fleet.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_mcp.manager.metrics import NOTHING
from eos_mcp.record.sample_ring import SIZE_BYTES
from tests.end_to_end.cli_user import Container, Desk, Sandbox, docker
from tests.end_to_end.places import DOCKER, ROOT, in_places
from tests.users import Person

pytestmark = pytest.mark.needs("overlay")
SAMPLE_WAIT_S = 10.0  # the contract's, for the first one


def look(sandbox: Sandbox, op: str, *words: str) -> dict[str, Any]:
    return sandbox.desk.do("observability", op, "--sandbox-id", sandbox.id, *words)


def until(
    sandbox: Sandbox,
    op: str,
    enough: Callable[[dict[str, Any]], bool],
    *words: str,
    wait_s: float = SAMPLE_WAIT_S,
) -> dict[str, Any]:
    end = time.monotonic() + wait_s
    while True:
        found = look(sandbox, op, *words)
        if enough(found):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.1)


@in_places(ROOT, DOCKER)
def test_what_the_programs_show_of_one_sandbox(sandbox: Sandbox) -> None:
    desk, in_docker = sandbox.desk, isinstance(sandbox, Container)
    desk.do(
        "runtime",
        "--sandbox-id",
        sandbox.id,
        "--request-id",
        "mine",
        "exec_command",
        "--yield-time-ms",
        "30000",
        "echo hi > made",
    )
    found = look(sandbox, "trace", "--trace-id", "mine")
    (root,) = found["spans"]
    assert (root["span"]["name"], root["span"]["attrs"]["op"], root["span"]["status"]) == (
        "daemon.dispatch",
        "exec_command",
        "completed",
    )
    assert [child["span"]["name"] for child in root["children"]] == [
        "workspace_session.create",
        "command.exec",
    ]
    assert look(sandbox, "trace")["trace"] == "mine"
    events = look(sandbox, "events", "--name", "lease.acquired", "--last-n", "1")["events"]
    assert [(one["trace"], one["attrs"]["holder"]) for one in events] == [("mine", "session")]

    session = sandbox.session()
    sandbox.do("exec_command", "--yield-time-ms", "1", "--workspace-session-id", session, "sleep 1000")
    tree = until(sandbox, "topology", lambda seen: "sleep" in json.dumps(seen))["topology"]
    (workspace,) = tree["workspaces"]
    assert (workspace["workspace_id"], workspace["state"], tree["truncated"], tree["warnings"]) == (
        session,
        "active",
        False,
        [],
    )
    real = {os.readlink(f"/proc/{pid}/ns/mnt") for pid in sandbox.members(session)}
    assert real == {workspace["mount_namespace"]}
    assert {os.readlink(f"/proc/{pid}/ns/pid") for pid in sandbox.members(session)} == {
        workspace["pid_namespace"]
    }
    if in_docker:
        shown = docker(
            "exec",
            sandbox.id,
            "readlink",
            *(f"/proc/{row['pid']}/ns/mnt" for row in workspace["processes"] if row["kind"] == "process"),
        )
        assert set(shown.split()) == real
        own = docker("exec", sandbox.id, "cat", f"/proc/{workspace['processes'][-1]['pid']}/cgroup")
        assert workspace["processes"][-1]["cgroup_memberships"] == own.splitlines()
    else:
        assert [row["pid"] for row in workspace["processes"]] == sorted(sandbox.members(session))
        assert workspace["holder_pid"] == sandbox.runner(session)
    daemon = look(sandbox, "daemon")["daemon"]
    assert daemon["available"] and daemon["ownership"]["open_workspaces"] == 1 and daemon["warnings"] == []
    assert tree["daemon"].keys() == daemon.keys()

    sampled = until(sandbox, "cgroup", lambda seen: len(seen["series"]) >= 2, "--window-ms", "600000")
    assert (sampled["view"], sampled["scope"]) == ("cgroup", "sandbox") and sampled["topology"]["workspaces"][
        0
    ]["workspace_id"] == session
    newest = sampled["series"][-1]
    assert (
        newest["metrics"]["cpu_usec"] > 0
        and newest["metrics"]["mem_cur"] > 1 << 20
        and newest["sample_delta_ms"] > 0
    )
    assert set(newest["deltas"]) == {"cpu_usec", "io_rbytes", "io_wbytes"}
    source = newest["metrics"]["metrics_source"]
    assert source in (("docker_engine", "sandbox_cgroup") if in_docker else ("process_tree",))
    counted = (
        source == "docker_engine"
    )  # an engine in a nested cgroup tree may count nothing, and the answer says so
    assert (sampled["availability"], sampled["errors"] == []) == (
        ("available", True) if counted else ("partial", False)
    )
    if in_docker:
        assert newest["metrics"]["mem_max"] == 512 << 20
    if counted:
        (ring,) = (sandbox.desk.state / "observability-resources").iterdir()
        assert ring.name == f"{sandbox.id}.ring" and ring.stat().st_size <= SIZE_BYTES == 65536
    elif in_docker:
        assert NOTHING in sampled["errors"]
    own_samples = look(sandbox, "resources")
    assert own_samples["series"][-1]["metrics"]["metrics_source"] == (
        "sandbox_cgroup" if in_docker else "process_tree"
    )
    assert own_samples["availability"] == ("available" if in_docker else "partial")
    if in_docker:
        assert (
            own_samples["series"][-1]["metrics"]["mem_max"] == 512 << 20
            and own_samples["series"][-1]["metrics"]["cgroup_available"]
        )
    of_session = look(sandbox, "cgroup", "--scope", session)
    assert of_session["scope"] == session and of_session["series"][-1]["metrics"]["pids_cur"] >= 2
    for op in ("cgroup", "resources", "layerstack"):
        refused = desk.refused("observability", op, "--sandbox-id", sandbox.id, "--window-ms", "600001")
        assert refused["kind"] == "invalid_request"
    assert (
        desk.refused("observability", "cgroup", "--sandbox-id", sandbox.id, "--scope", "nobody")["kind"]
        == "invalid_request"
    )
    assert (
        desk.refused("observability", "cgroup", "--sandbox-id", "no-such-sandbox")["kind"]
        == "invalid_request"
    )
    assert look(sandbox, "layerstack")["trend"][-1]["metrics"]["layer_count"] >= 1

    fleet = desk.do("observability", "resources")
    assert (fleet["scope"], list(fleet["sandboxes"])) == ("fleet", [sandbox.id])
    assert fleet["sandboxes"][sandbox.id]["current"]["metrics"]["cpu_usec"] > 0
    assert (
        fleet["availability"]
        == fleet["sandboxes"][sandbox.id]["availability"]
        == ("available" if counted else "partial")
    )
    (node,) = desk.do("observability", "snapshot")["sandboxes"]
    assert node["resources"]["latest"]["metrics"]["metrics_source"] == source

    (command,) = sandbox.do("list_commands", "--workspace-session-id", session)["commands"]
    sandbox.do("signal_command", "--command-session-id", command["command_session_id"], "--signal", "KILL")
    sandbox.do("destroy_workspace_session", "--workspace-session-id", session)
    assert look(sandbox, "topology")["topology"]["workspaces"] == []


@pytest.mark.needs("dockerd")
def test_a_restarted_container_goes_on_with_its_traces(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path], image: Callable[[str], str]
) -> None:
    who = person("root")
    sandbox = Desk(who, cache_of(who)).create(image("busybox"))
    assert isinstance(sandbox, Container)
    sandbox.write("a", "1")
    before = look(sandbox, "trace")["trace"]
    sandbox.restart()
    assert look(sandbox, "trace", "--trace-id", before)["spans"][0]["span"]["attrs"] == {"op": "file_write"}
    kept = docker("exec", sandbox.id, "ls", "/eos/runtime/daemon/observability").split()
    assert "observability.ndjson" in kept and "resources.ndjson" in kept
    sandbox.destroy()
    assert sandbox.desk.left_in_state() == []
