"""Bounds of MCP servers and of the manager, with a real gateway and real sandboxes."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire import protocol
from tests.end_to_end.cli_user import Desk
from tests.eos_mcp.mcp_wire import Wire, call

pytestmark = pytest.mark.needs("overlay")
Desks = Callable[[str], Desk]


def server(desk: Desk, *words: str) -> Wire:
    env = {**os.environ, **desk.person.environment(**desk.env)}
    return Wire([sys.executable, "-m", "eos_mcp", "--set", "all", *words], env=env)


def use(wire: Wire, tool: str, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = wire.ask(call(f"{tool}-{os.urandom(4).hex()}", tool, arguments))["result"]
    return result


def reason(result: dict[str, Any]) -> str | None:
    return result["structuredContent"]["error"]["details"]["reason"] if result["isError"] else None


def test_a_server_copies_and_exports_below_its_roots_alone(shared_desk: Desks, tmp_path: Path) -> None:
    one = shared_desk("root")
    secret, outside = tmp_path / "secret", tmp_path / "outside"
    secret.mkdir()
    (secret / "key").write_text("PRIVATE\n")
    outside.mkdir()
    with server(one, "--root", str(one.workspace)) as wire:
        wire.open()
        assert (
            reason(use(wire, "create_sandbox", image="host", workspace_root=str(secret))) == "outside_roots"
        )
        assert (
            reason(use(wire, "create_sandbox", image="rootfs:/", workspace_root=str(one.workspace)))
            == "outside_roots"
        )
        assert use(wire, "list_workspace_directories")["structuredContent"]["directories"] == [
            {"name": os.path.realpath(one.workspace), "path": os.path.realpath(one.workspace)}
        ]
        assert reason(use(wire, "list_workspace_directories", path=str(secret))) == "outside_roots"
        sandbox = one.create("host")
        sandbox.write("f", "1\n")
        for dest in (outside, outside / "new", Path("/etc/cron.d"), one.workspace / "../outside"):
            assert (
                reason(use(wire, "export_changes", sandbox_id=sandbox.id, dest=str(dest))) == "outside_roots"
            ), dest
        assert not use(wire, "export_changes", sandbox_id=sandbox.id, dest=str(one.workspace / "out"))[
            "isError"
        ]
        assert (one.workspace / "out/f").read_text() == "1\n"
    assert os.listdir(outside) == []


def test_sensitive_places_are_refused_over_the_command_line_too(shared_desk: Desks) -> None:
    one = shared_desk("root")
    refused = one.refused_create("host", "/etc")
    assert refused["details"]["reason"] == "sensitive_place"
    assert "--allow-sensitive" in refused["details"]["hint"]


def test_no_more_sandboxes_than_the_limit(shared_desk: Desks) -> None:
    one = shared_desk("root")
    refused = one.refused(
        "manager",
        "create_sandbox",
        "--image",
        "host",
        "--workspace-bind-root",
        str(one.workspace),
        "--count",
        "65",
    )
    assert (refused["kind"], refused["details"]["reason"]) == ("invalid_request", "sandbox_limit")
    assert (refused["details"]["limit"], refused["details"]["count"]) == (64, 65)
    assert one.do("manager", "list_sandboxes")["sandboxes"] == []


def test_a_batch_ends_with_the_client_that_asked_for_it(desk: Desks) -> None:
    """The client hangs up once one sandbox is ready; that one stays, and no other is begun than the one under
    way.
    """
    one = desk("root")
    one.do("manager", "list_sandboxes")  # starts the gateway
    env = one.person.environment(**one.env)
    state = Path(env["EOS_STATE_DIR"])
    token = (state / "gateway.token").read_text().strip()
    args = {"image": "host", "workspace_root": str(one.workspace), "count": 40}
    line = protocol.encode_request(
        "create_sandbox",
        args,
        request_id="batch",
        sandbox_id=None,
        **{protocol.GATEWAY_TOKEN_KEY: token, protocol.STREAM_LOGS_KEY: True},
    )
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(120)
        client.connect(str(state / "gateway.sock"))
        client.sendall(line)
        received = b""
        while b"sandbox ready" not in received:
            received += client.recv(65536)
    settled = threading.Event()
    for _ in range(600):
        records = one.do("manager", "list_sandboxes")["sandboxes"]
        if all(record["state"] == "ready" for record in records):
            break
        settled.wait(0.1)
    assert 1 <= len(records) <= 3, records
    log = (state / "gateway.log").read_text()
    assert '"create_abandoned"' in log
    for record in records:
        one.do("manager", "destroy_sandbox", "--sandbox-id", record["id"])
