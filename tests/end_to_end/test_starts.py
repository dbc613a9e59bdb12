"""A start depends on nothing that a session left: hostile uppers, full disks, frozen agents. Published work
is there from the first call on.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerstack.kernel import syscalls
from tests import in_namespace
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.cli_user import Desk, Desks, Sandbox, assert_error, docker
from tests.end_to_end.places import DOCKER, ORDINARY_IN_A_SOAK, ROOT, in_places
from tests.layerstack.power_cut import run
from tests.processes import kill
from tests.users import Person

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

TRIES = 200
TOO_DEEP = (
    "echo important > important.txt; i=0; while [ $i -lt 40 ]; do n="
    + "d" * 200
    + "; mkdir $n; cd $n; i=$((i+1)); done; : > work"
)


def dead(sandbox: Sandbox) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sandbox.do("list_workspace_sessions").get("dead_sessions", [])
    return found


def quarantined(sandbox: Sandbox, session: str) -> dict[str, Any]:
    for _ in range(TRIES):
        (row,) = [row for row in dead(sandbox) if row["workspace_session_id"] == session]
        if row["state"] == "quarantined":
            return row
    raise AssertionError(row)


@in_places(ROOT, ORDINARY_IN_A_SOAK, DOCKER)
def test_a_sandbox_whose_dead_session_cannot_become_a_draft_is_not_clean_and_serves_all_else(
    sandbox: Sandbox,
) -> None:
    at = sandbox.desk
    sandbox.write("published.txt", "kept\n")
    session = sandbox.session()
    made = sandbox.shell(TOO_DEEP, session)
    assert made["exit_code"] == 0, made
    kill(sandbox.agent())
    assert sandbox.read("published.txt") == "kept"
    row = quarantined(sandbox, session)
    assert row["tries"] == 2 and row["bytes"] == 10
    error = sandbox.refused("file_read", "--path", "important.txt", "--workspace-session-id", session)
    assert (error["details"]["reason"], error["details"]["quarantined"]) == ("session_lost", True)
    words = ("destroy_sandbox", "--sandbox-id", sandbox.id, "--if-clean")
    refused = at.refused("manager", *words)
    assert refused["details"]["reason"] == "unpublished_work", refused
    (listed,) = refused["details"]["unpublished"]["dead_sessions"]
    assert (listed["workspace_session_id"], listed["state"], listed["bytes"]) == (session, "quarantined", 10)
    assert (sandbox.store / "sessions" / session / "upper" / "important.txt").read_text() == "important\n"
    out = at.workspace.parent / "out"
    at.do("manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(out))
    assert (out / "published.txt").read_text() == "kept\n"
    kill(sandbox.agent())
    assert sandbox.read("published.txt") == "kept" and dead(sandbox)[0]["state"] == "quarantined"
    gone = sandbox.do("destroy_workspace_session", "--workspace-session-id", session)
    assert gone["destroyed"] and "important.txt" in gone["discarded"]["paths"] and dead(sandbox) == []
    other = sandbox.session()
    sandbox.write("more.txt", "more\n", other)
    assert at.refused("manager", *words)["details"]["reason"] == "unpublished_work"
    sandbox.do("publish_workspace_session", "--workspace-session-id", other)


@in_places(ROOT, DOCKER)
def test_a_sparse_file_of_eight_terabytes_in_a_dead_session_keeps_nobody_from_what_is_published(
    sandbox: Sandbox,
) -> None:
    sandbox.write("published.txt", "kept\n")
    session = sandbox.session()
    assert sandbox.shell(f"truncate -s {8 << 40} huge", session)["exit_code"] == 0
    kill(sandbox.agent())
    assert sandbox.read("published.txt") == "kept"
    other = sandbox.session()
    sandbox.write("more.txt", "more\n", other)
    sandbox.do("publish_workspace_session", "--workspace-session-id", other)
    out = sandbox.desk.workspace.parent / "out"
    sandbox.desk.do("manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(out))
    assert (out / "published.txt").read_text() == "kept\n" and (out / "more.txt").read_text() == "more\n"
    kept = [row["bytes"] for row in (*dead(sandbox), *sandbox.do("list_drafts")["drafts"])]
    assert kept == [8 << 40], "it is a draft by now, or on the way to be one"


@in_places(ROOT, DOCKER)
def test_a_frozen_agent_is_marked_after_a_missed_answer_and_start_sandbox_replaces_it(
    sandbox: Sandbox,
) -> None:
    at = sandbox.desk
    sandbox.write("published.txt", "kept\n")
    session = sandbox.session()
    sandbox.write("mine.txt", "unpublished\n", session)
    assert "silent_since_unix_ms" not in at.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)
    before = sandbox.agent()
    os.kill(before, signal.SIGSTOP)
    try:
        seen = at.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)
        assert seen["state"] == "ready" and seen["silent_since_unix_ms"] > 0
        (listed,) = at.do("manager", "list_sandboxes")["sandboxes"]
        assert listed["silent_since_unix_ms"] == seen["silent_since_unix_ms"]
        assert (
            at.refused("manager", "destroy_sandbox", "--sandbox-id", sandbox.id, "--if-clean")["details"][
                "reason"
            ]
            == "unpublished_unknown"
        )
        record = at.do("manager", "start_sandbox", "--sandbox-id", sandbox.id)
        assert record["state"] == "ready" and sandbox.agent() != before
    finally:
        if Path(f"/proc/{before}").exists():
            os.kill(before, signal.SIGCONT)
    assert sandbox.read("published.txt") == "kept"
    assert "silent_since_unix_ms" not in at.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)
    (draft,) = sandbox.do("list_drafts")["drafts"]
    assert draft["origin"] == f"workspace_session:{session}"
    assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "unpublished"
    running = sandbox.agent()
    assert at.do("manager", "start_sandbox", "--sandbox-id", sandbox.id)["state"] == "ready"
    assert sandbox.agent() == running, "one that answers is left alone"


def freezers() -> list[tuple[Path, str, str, str]]:
    """A cgroup of this test's own in each hierarchy that can freeze one: its folder, the file to say so in,
    and what to write for both ways.
    """
    name = f"eos-freeze-{os.getpid()}"
    found: list[tuple[Path, str, str, str]] = []
    for root, file, freeze, thaw in (
        ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
        ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
        ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
    ):
        if any(
            line.split()[1] == root and line.split()[2].startswith("cgroup")
            for line in Path("/proc/mounts").read_text().splitlines()
        ):
            found.append((Path(root, name), file, freeze, thaw))
    return found


@in_places(ROOT)
def test_an_agent_that_a_cgroup_holds_is_marked_and_replaced_and_its_sessions_work_is_kept(
    sandbox: Sandbox,
) -> None:
    at, held = sandbox.desk, freezers()
    assert held, "no hierarchy can freeze"
    for n, (folder, file, freeze, thaw) in enumerate(held):
        session = sandbox.session()
        sandbox.write(f"mine{n}.txt", "unpublished\n", session)
        before = sandbox.agent()
        folder.mkdir()
        try:
            (folder / "cgroup.procs").write_text(str(before))
            (folder / file).write_text(freeze)
            assert at.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)["silent_since_unix_ms"] > 0
            assert at.do("manager", "list_sandboxes")["sandboxes"][0]["silent_since_unix_ms"] > 0
            assert (
                at.do("manager", "start_sandbox", "--sandbox-id", sandbox.id)["state"] == "ready"
                and sandbox.agent() != before
            )
        finally:
            (folder / file).write_text(thaw)
            if Path(f"/proc/{before}").exists():
                kill(before)
            folder.rmdir()
        assert "silent_since_unix_ms" not in at.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)
        (draft,) = [
            one
            for one in sandbox.do("list_drafts")["drafts"]
            if one["origin"] == f"workspace_session:{session}"
        ]
        assert sandbox.read(f"mine{n}.txt", sandbox.session("--draft-id", draft["draft_id"])) == "unpublished"


@in_places(DOCKER)
def test_a_container_that_is_paused_is_marked_and_start_sandbox_lets_it_go_on(sandbox: Sandbox) -> None:
    at = sandbox.desk
    session = sandbox.session()
    sandbox.write("mine.txt", "unpublished\n", session)
    before = sandbox.agent()
    docker("pause", sandbox.id)
    assert at.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)["silent_since_unix_ms"] > 0
    assert at.do("manager", "list_sandboxes")["sandboxes"][0]["silent_since_unix_ms"] > 0
    assert (
        at.do("manager", "start_sandbox", "--sandbox-id", sandbox.id)["state"] == "ready"
        and sandbox.agent() == before
    )
    assert "silent_since_unix_ms" not in at.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)
    assert sandbox.read("mine.txt", session) == "unpublished", "nothing of it has ended"


def on_a_small_ext4(at: Desk, body: Callable[[Desk], None]) -> None:
    """body(at) in a mount namespace where the state lies on an ext4 of 64 MB; the gateway and the sandboxes
    end with it.
    """
    disk = make_short_dir("eos-d-")

    def in_child() -> None:
        in_namespace.enter_mount_namespace()
        at.make_state()
        image = f"{disk}/disk"
        with open(image, "wb") as file:
            file.truncate(64 << 20)
        run("mkfs.ext4", "-q", "-F", "-m", "0", image)
        run("mount", "-o", "loop", image, str(at.state))
        try:
            body(at)
        finally:
            (at.state / "filler").unlink(missing_ok=True)
            at.destroy_all()
            at.stop()
            syscalls.umount(str(at.state), 2)

    try:
        in_namespace.call(None, in_child)
    finally:
        drop_dir(disk)


def fill(at: Desk) -> Path:
    """Leaves no block of the small disk."""
    path = at.state / "filler"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(bytes(size)):
                    os.fsync(file.fileno())
            except OSError:
                continue
    return path


@pytest.mark.needs("loopfs")
def test_a_full_disk_takes_no_session_and_when_it_is_freed_all_come_back_without_a_restart(
    desk: Desks,
) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        alive, lost = sandbox.session(), sandbox.session()
        sandbox.write("alive.txt", "alive\n", alive)
        sandbox.write("lost.txt", "lost\n", lost)
        command = sandbox.do(
            "exec_command", "--yield-time-ms", "1", "echo one-shot > one-shot.txt; read line"
        )
        agent = sandbox.agent()
        filler = fill(at)
        error = sandbox.refused("publish_workspace_session", "--workspace-session-id", alive)
        assert_error(error, "disk_full", kind="operation_failed")
        assert error["details"]["session_retained"] is True
        assert sandbox.read("alive.txt", alive) == "alive", "the session goes on"
        kill(sandbox.runner(lost))
        error = sandbox.refused("file_read", "--path", "lost.txt", "--workspace-session-id", lost)
        assert (
            error["details"]["reason"],
            error["details"]["draft_pending"],
            error["details"]["retryable"],
        ) == (
            "session_lost",
            True,
            True,
        )
        assert "free space" in error["details"]["hint"]
        sandbox.do(
            "write_command_stdin",
            "--command-session-id",
            command["command_session_id"],
            "--yield-time-ms",
            "1",
            "go on\n",
        )
        ended = sandbox.do(
            "wait_command", "--command-session-id", command["command_session_id"], "--timeout-ms", "30000"
        )
        assert ended["status"] == "ok" and ended.get("publish", {}).get("published") is not True, ended
        refused = at.refused("manager", "destroy_sandbox", "--sandbox-id", sandbox.id, "--if-clean")
        assert refused["details"]["reason"] == "unpublished_work"
        assert lost in [
            row["workspace_session_id"] for row in refused["details"]["unpublished"]["dead_sessions"]
        ]
        filler.unlink()
        error = sandbox.refused("file_read", "--path", "lost.txt", "--workspace-session-id", lost)
        assert error["details"]["draft_id"].startswith("draft-"), "the call that names it tries again"
        for _ in range(TRIES):  # the one-shot comes back by itself
            if not dead(sandbox):
                break
        drafts = {
            draft["origin"].partition(":")[2]: draft["draft_id"]
            for draft in sandbox.do("list_drafts")["drafts"]
        }
        assert drafts[lost] == error["details"]["draft_id"] and len(drafts) == 2 and dead(sandbox) == []
        assert sandbox.read("lost.txt", sandbox.session("--draft-id", drafts[lost])) == "lost"
        (one,) = [draft for session, draft in drafts.items() if session != lost]
        assert sandbox.read("one-shot.txt", sandbox.session("--draft-id", one)) == "one-shot"
        sandbox.do("publish_workspace_session", "--workspace-session-id", alive)
        assert sandbox.read("alive.txt") == "alive" and sandbox.agent() == agent, "no restart was needed"

    on_a_small_ext4(desk("root"), body)


@pytest.mark.needs("loopfs")
def test_a_dead_agent_on_a_full_disk_is_reported_with_the_path_and_all_is_there_when_it_is_freed(
    desk: Desks,
) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        session = sandbox.session()
        sandbox.write("mine.txt", "mine\n", session)
        kill(sandbox.agent())
        sandbox.wipe_run_directories()  # else the agent goes on in the blocks of its last start, and serves
        (at.state / "sandboxes" / sandbox.id / "endpoint.json").unlink()
        filler = fill(at)
        for op in ("file_read", "file_stat"):
            error = sandbox.refused(op, "--path", "kept.txt")
            assert_error(error, "disk_full")
            assert error["details"]["path"].startswith(str(at.state)) and isinstance(
                error["details"]["free_bytes"], int
            )
            assert str(error["details"]["free_bytes"]) in error["message"]
        error = at.refused("manager", "start_sandbox", "--sandbox-id", sandbox.id)
        assert_error(error, "disk_full")
        filler.unlink()
        assert sandbox.read("kept.txt") == "kept"
        (draft,) = sandbox.do("list_drafts")["drafts"]
        assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "mine"

    on_a_small_ext4(desk("root"), body)


def test_an_agent_that_is_late_is_not_ended_and_the_next_calls_wait_for_the_same_one(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path]
) -> None:
    who = person("root")
    config = who.home / "gateway.yml"
    at = Desk(who, cache_of(who), SANDBOX_GATEWAY_CONFIG_YAML=str(config))
    config.write_text("")
    sandbox = at.create("host")
    sandbox.write("published.txt", "kept\n")
    session = sandbox.session()
    sandbox.write("mine.txt", "mine\n", session)
    kill(sandbox.agent())
    at.stop()
    config.write_text("manager: {local_daemon: {ready_timeout_s: 0.001}}\n")
    late = 0
    for _ in range(TRIES):
        answer = at.run("runtime", "--sandbox-id", sandbox.id, "file_read", "--path", "published.txt")
        if answer.returncode == 0:
            break
        error = json.loads(answer.stderr)["error"]
        assert (error["details"]["reason"], error["details"]["retryable"]) == ("agent_starting", True), error
        late += 1
    assert late and sandbox.read("published.txt") == "kept"
    assert sandbox.log().count('"event": "ready"') == 2, "one at its creation, one after the kill"
    (draft,) = sandbox.do("list_drafts")["drafts"]
    assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "mine"
    at.destroy_all()
