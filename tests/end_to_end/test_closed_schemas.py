"""With `gateway.results: contract` a reader that refuses unknown keys can read every result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.users import Person

from .cli_user import Desk

pytestmark = pytest.mark.needs("overlay")

TIMES = {"wall_time_seconds", "command_total_time_seconds"}
ROWS = {"start_offset", "end_offset", "total_lines", "original_token_count", "output"}
COMMAND = {"status", "exit_code", "workspace_session_id", *TIMES, *ROWS}
PUBLISH = {"no_op", "revision", "route_summary"}
EXPORT = {
    "manifest_version",
    "format",
    "layers_exported",
    "files_written",
    "symlinks_written",
    "bytes_written",
}
SNAPSHOT = {
    "sandbox_id", "lifecycle_state", "availability", "sampled_at_unix_ms", "errors", "daemon", "resources", "workspaces", "stack",  # noqa: E501
}  # fmt: skip
STACK = {
    "layer_count", "layers_bytes", "layers_allocated_bytes", "storage_allocated_bytes", "staging_entry_count", "active_leases",  # noqa: E501
}  # fmt: skip


def test_a_closed_reader_reads_every_result_and_finds_only_what_the_contract_has(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path]
) -> None:
    who = person("root")
    config = who.home / "contract.yml"
    config.write_text("gateway:\n  results: contract\n")
    desk = Desk(who, cache_of(who), SANDBOX_GATEWAY_CONFIG_YAML=str(config))
    sandbox = desk.create("host")
    try:
        ran = sandbox.do(
            "exec_command",
            "--yield-time-ms",
            "30000",
            "--tty=false",
            "--split-output",
            "echo x > a.txt; mkfifo pipe; echo e >&2",
        )
        assert set(ran) == COMMAND
        assert set(sandbox.do("exec_command", "--yield-time-ms", "30000", "exit 3")) == COMMAND
        assert set(sandbox.do("file_write", "--path", "caf\udce9", "--content", "x")) == {
            "type",
            "path",
            "bytes_written",
        }
        made = sandbox.do("create_workspace_session", "--network-profile", "isolated")
        assert set(made) == {"workspace_session_id", "network_profile", "finalize_policy"}
        session = made["workspace_session_id"]
        sandbox.do(
            "exec_command",
            "--yield-time-ms",
            "30000",
            "--workspace-session-id",
            session,
            "mkfifo pipe; echo y > b.txt",
        )
        state: dict[str, Any] = desk.do("observability", "snapshot", "--sandbox-id", sandbox.id)
        assert (set(state), set(state["stack"])) == (SNAPSHOT, STACK)
        (node,) = desk.do("observability", "snapshot")["sandboxes"]
        assert (set(node), set(node["stack"])) == (SNAPSHOT, STACK)
        published = sandbox.do("publish_workspace_session", "--workspace-session-id", session)
        assert set(published) == {"workspace_session_id", "publish", "destroyed", "evicted_upperdir_bytes"}
        assert set(published["publish"]) == PUBLISH
        other = sandbox.do("create_workspace_session")["workspace_session_id"]
        gone = sandbox.do("destroy_workspace_session", "--workspace-session-id", other)
        assert set(gone) == {"workspace_session_id", "destroyed", "evicted_upperdir_bytes"}
        tar = who.home / "delta.tar"
        exported = desk.do(
            "manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(tar), "--format", "tar"
        )
        assert set(exported) == {*EXPORT, "whiteouts_emitted"}
        exported = desk.do(
            "manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(who.home / "out")
        )
        assert set(exported) == {*EXPORT, "deletes_applied", "opaque_clears", "skipped_unchanged"}
        record = {
            "id", "workspace_root", "state", "activity_revision", "daemon", "daemon_http", "shared_base", "resource_profile",  # noqa: E501
        }  # fmt: skip
        (listed,) = desk.do("manager", "list_sandboxes")["sandboxes"]
        assert set(listed) <= record
    finally:
        removed = desk.do("manager", "destroy_sandbox", "--sandbox-id", sandbox.id)
    assert set(removed) <= record
