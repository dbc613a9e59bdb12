"""A configured quota: what the answer of create_sandbox promises of it, and that it is kept. No work that it
refuses is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cli_user import Desk, Sandbox
from tests.users import Person

pytestmark = pytest.mark.needs("overlay")

QUOTA = "runtime: {layerstack: {quota_bytes: 1500, quota_layers: 3}}\n"


def quota_of(sandbox: Sandbox) -> dict[str, Any]:
    """The quota as the sandbox's own figures show it, which is the same in both views."""
    desk = sandbox.desk
    quota = desk.do("observability", "layerstack", "--sandbox-id", sandbox.id)["quota"]
    assert desk.do("observability", "snapshot", "--sandbox-id", sandbox.id)["stack"]["quota"] == quota
    return dict(quota)


def layers(sandbox: Sandbox) -> list[str]:
    return sorted(os.listdir(sandbox.store / "layers"))


def refusal(error: dict[str, Any]) -> tuple[str, str, int, int, int]:
    details = error["details"]
    assert details["retryable"] is True
    return error["kind"], details["reason"], details["limit"], details["used"], details["wanted"]


def test_a_quota_is_kept_for_what_is_published_and_said_not_to_hold_for_sessions(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path]
) -> None:
    who = person("root")
    config = who.home / "quota.yml"
    config.write_text(QUOTA)
    desk = Desk(who, cache_of(who), SANDBOX_GATEWAY_CONFIG_YAML=str(config))
    sandbox = desk.create("host")
    try:
        record = desk.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)["quota"]
        unsupported = record.pop("sessions")
        assert record == {"bytes": 1500, "layers": 3, "published": "enforced"} and unsupported.startswith(
            "unsupported: "
        )
        desk.stop()
        (desk.state / "registry.json").unlink()  # adopted by what lies on disk, it says the same
        assert desk.do("manager", "list_sandboxes")["sandboxes"][0]["quota"] == {
            **record,
            "sessions": unsupported,
        }
        found = quota_of(sandbox)
        assert found.pop("sessions").startswith(unsupported + "; this ")
        assert found == {**record, "used_bytes": 0, "used_layers": 0}

        sandbox.write("kept", "k" * 600)
        before = layers(sandbox)
        over = ("operation_failed", "quota_bytes", 1500, 600, 1000)
        error = sandbox.refused("file_write", "--path", "more", "--content", "m" * 1000)
        assert refusal(error) == over and "squash_layerstacks" in error["details"]["hint"]

        never = sandbox.refused("file_write", "--path", "more", "--content", "m" * 1501)["details"]
        assert never["retryable"] is False and "squash_layerstacks" not in never["hint"]

        session = sandbox.session()
        sandbox.shell(
            "setsid sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid; head -c 1000 /dev/zero > mine", session
        )
        assert (
            sandbox.do("preview_publish", "--workspace-session-id", session)["refused"]["reason"]
            == "quota_bytes"
        )
        error = sandbox.refused("publish_workspace_session", "--workspace-session-id", session)
        assert refusal(error) == over
        assert (
            error["details"]["session_retained"] is True and "squash_layerstacks" in error["details"]["hint"]
        )
        assert "processes_ended" not in error["details"]
        looked = sandbox.shell(
            "kill -0 $(cat /tmp/pid) && stat -c %s mine", session
        )  # its processes go on: nothing was captured
        assert (looked["exit_code"], looked["output"].strip()) == (0, "1000")

        ran = sandbox.shell("head -c 950 /dev/zero > once")
        assert (ran["exit_code"], ran["publish_rejected"], ran["publish_reject_class"]) == (
            0,
            True,
            "publish_error",
        )
        assert ran["publish_rejection"]["error"]["details"]["reason"] == "quota_bytes"
        assert layers(sandbox) == before and quota_of(sandbox)["used_bytes"] == 600

        sandbox.shell("truncate -s 400 mine", session)
        sandbox.do("publish_workspace_session", "--workspace-session-id", session)
        assert quota_of(sandbox)["used_bytes"] == 1000
        removed = sandbox.shell("rm kept")  # takes no bytes
        assert removed["publish"]["published"], removed
        draft = sandbox.session("--draft-id", ran["draft_id"])
        sandbox.shell("truncate -s 450 once", draft)
        error = sandbox.refused("publish_workspace_session", "--workspace-session-id", draft)
        assert refusal(error) == ("operation_failed", "quota_layers", 3, 3, 1)
        assert refusal(sandbox.refused("rollback_to", "--version", "2"))[1] == "quota_layers"
        desk.do("manager", "squash_layerstacks", "--sandbox-id", sandbox.id)
        sandbox.do("publish_workspace_session", "--workspace-session-id", draft)
        assert quota_of(sandbox)["used_bytes"] == 600 + 400 + 450  # the draft stood on the first
        desk.do("manager", "squash_layerstacks", "--sandbox-id", sandbox.id)
        assert (quota_of(sandbox)["used_bytes"], quota_of(sandbox)["used_layers"]) == (400 + 450, 1)
        assert sandbox.do("list_drafts")["drafts"] == []
    finally:
        sandbox.destroy()


def test_a_closed_reader_sees_no_quota(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path]
) -> None:
    who = person("root")
    config = who.home / "quota.yml"
    config.write_text(QUOTA + "gateway: {results: contract}\n")
    desk = Desk(who, cache_of(who), SANDBOX_GATEWAY_CONFIG_YAML=str(config))
    made = desk.do(
        "manager", "create_sandbox", "--image", "host", "--workspace-bind-root", str(desk.workspace)
    )
    try:
        listed = desk.do("manager", "list_sandboxes")["sandboxes"]
        assert all("quota" not in record for record in (made, *listed))
        assert "quota" not in desk.do("observability", "layerstack", "--sandbox-id", made["id"])
        assert "quota" not in desk.do("observability", "snapshot", "--sandbox-id", made["id"])["stack"]
    finally:
        desk.do("manager", "destroy_sandbox", "--sandbox-id", made["id"])
