"""Sandboxes and commands that end: killed, destroyed, published twice, pruned."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import engine
from tests.end_to_end.cli_user import (
    MODULES,
    Container,
    Desk,
    Desks,
    Sandbox,
    docker,
    in_engine,
    living,
    watch,
)
from tests.in_namespace import ORDINARY_UID
from tests.processes import WAIT_S, kill

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]
IN_DOCKER = pytest.mark.needs("dockerd")


def tree_hash(folder: Path) -> str:
    """Of every path, its mode, owner, time and content."""
    found = hashlib.sha256()
    for directory, names, files in os.walk(folder):
        for name in sorted([*names, *files, "."]):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content = Path(path).read_bytes() if os.path.isfile(path) else b""
            found.update(repr((path, status.st_mode, status.st_uid, status.st_mtime_ns, content)).encode())
    return found.hexdigest()


class Call:
    """A program that waits for its answer."""

    def __init__(self, sandbox: Sandbox, op: str, *words: str) -> None:
        at = sandbox.desk
        argv = [at.person.python, "-m", MODULES["runtime"], "--sandbox-id", sandbox.id, op, *words]
        self.process = at.person.popen(
            argv, env=at.person.environment(**at.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def refused(self) -> dict[str, Any]:
        """The error that it ends with, within the time that every wait of these tests has."""
        out, err = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 1, out
        return dict(json.loads(err)["error"])


def running(sandbox: Sandbox, cmd: str, *words: str) -> Call:
    """The call of a command that has begun."""
    before = len(sandbox.do("list_commands")["commands"])
    call = Call(sandbox, "exec_command", "--yield-time-ms", "100000", *words, cmd)
    while len(sandbox.do("list_commands")["commands"]) == before:
        pass
    return call


@pytest.fixture
def container(shared_desk: Desks, image: Callable[[str], str]) -> Generator[Container]:
    at = shared_desk("root")
    made = at.create(image("busybox"))
    assert isinstance(made, Container)
    yield made
    at.destroy_all()
    assert in_engine(made.id) == []
    engine.remove_volume(f"eos-shared-base-{made.base_hash}")


@IN_DOCKER
def test_a_command_whose_container_is_killed_from_outside_is_answered_and_the_sandbox_can_be_started_again(
    container: Container,
) -> None:
    container.write("published", "kept\n")
    session = container.session()
    container.write("mine", "unpublished\n", session)
    call = running(container, "sleep 60", "--workspace-session-id", session)
    docker("kill", container.id)
    error = call.refused()
    assert (error["kind"], error["details"]["reason"], error["details"]["retryable"]) == (
        "internal_error",
        "sandbox_gone",
        True,
    )
    refused = container.desk.refused("manager", "destroy_sandbox", "--sandbox-id", container.id, "--if-clean")
    assert refused["details"]["reason"] == "unpublished_unknown"
    for _ in range(2):  # the second finds it running and leaves it so
        record = container.desk.do("manager", "start_sandbox", "--sandbox-id", container.id)
        assert (record["id"], record["state"]) == (container.id, "ready") and record["daemon"]["port"] > 0
    assert container.read("published") == "kept"
    (draft,) = container.do("list_drafts")["drafts"]
    assert container.read("mine", container.session("--draft-id", draft["draft_id"])) == "unpublished"


@IN_DOCKER
def test_a_command_whose_agent_is_killed_in_its_container_learns_that_only_that_is_gone(
    container: Container,
) -> None:
    call = running(container, "sleep 60")
    kill(container.agent())
    error = call.refused()
    assert (error["kind"], error["details"]["reason"], error["details"]["retryable"]) == (
        "internal_error",
        "agent_gone",
        True,
    )
    assert container.shell("echo fine")["output"] == "fine"


def test_a_command_whose_runner_is_killed_learns_where_its_work_is(shared_desk: Desks) -> None:
    sandbox = shared_desk("root").create("host")
    session = sandbox.session()
    call = running(sandbox, "echo mine > mine; sleep 60", "--workspace-session-id", session)
    while "mine" not in {
        entry["name"] for entry in sandbox.do("file_list", "--workspace-session-id", session)["entries"]
    }:
        pass
    kill(sandbox.runner(session))
    error = call.refused()
    assert (error["kind"], error["details"]["reason"], error["details"]["retryable"]) == (
        "operation_failed",
        "session_lost",
        True,
    )
    assert sandbox.read("mine", sandbox.session("--draft-id", error["details"]["draft_id"])) == "mine"


@pytest.mark.parametrize("place", ["host", pytest.param("busybox", marks=IN_DOCKER)])
def test_a_sandbox_with_unpublished_work_is_not_destroyed_with_if_clean_and_otherwise_all_of_it_is_listed(
    shared_desk: Desks, image: Callable[[str], str], place: str
) -> None:
    at = shared_desk("root")
    sandbox = at.create(place if place == "host" else image(place))
    words = ("destroy_sandbox", "--sandbox-id", sandbox.id)
    sandbox.write("published", "x\n")
    empty, session = sandbox.session(), sandbox.session()
    sandbox.write("d/mine", "12345", session)
    error = at.refused("manager", *words, "--if-clean")
    assert (error["kind"], error["details"]["reason"]) == ("operation_failed", "unpublished_work")
    assert (error["details"]["unpublished"]["sessions"], error["details"]["unpublished"]["paths"]) == (
        [session],
        ["d/mine"],
    )
    assert sandbox.read("d/mine", session) == "12345"
    call = running(sandbox, "echo one-shot > one-shot; sleep 60")
    gone = at.do("manager", *words)
    found = gone["discarded"]
    assert gone["state"] == "stopped" and found["layers"] == 1 and {empty, session} < set(found["sessions"])
    assert (
        found["unpublished"]["count"] >= 1
        and "d/mine" in found["unpublished"]["paths"]
        and found["unpublished"]["bytes"] >= 5
    )
    error = call.refused()
    assert (error["kind"], error["details"]["reason"]) == ("operation_failed", "sandbox_destroyed")
    assert error["details"]["retryable"] is False and "unpublished" in error["message"]
    other = at.create(place if place == "host" else image(place))
    busy = ("--workspace-session-id", other.session(), "--yield-time-ms", "0")
    command = other.do("exec_command", *busy, "sleep 60")["command_session_id"]
    error = at.refused("manager", "destroy_sandbox", "--sandbox-id", other.id, "--if-clean")
    assert error["details"]["unpublished"]["count"] == 0 and "running commands" in error["message"]
    other.do("signal_command", "--command-session-id", command, "--signal", "KILL")
    other.do("wait_command", "--command-session-id", command)
    assert (
        at.do("manager", "destroy_sandbox", "--sandbox-id", other.id, "--if-clean")["discarded"][
            "unpublished"
        ]["count"]
        == 0
    )
    if isinstance(other, Container):
        engine.remove_volume(f"eos-shared-base-{other.base_hash}")


def test_a_draft_that_keeps_a_sandbox_from_being_destroyed_is_named_with_what_it_holds(
    shared_desk: Desks,
) -> None:
    at = shared_desk("root")
    sandbox = at.create("host")
    session = sandbox.session()
    sandbox.write("mine", "12345", session)
    sandbox.write("other", "678", session)
    kill(sandbox.runner(session))
    draft_id = sandbox.refused("file_read", "--workspace-session-id", session, "--path", "mine")["details"][
        "draft_id"
    ]
    error = at.refused("manager", "destroy_sandbox", "--sandbox-id", sandbox.id, "--if-clean")
    draft = {"draft_id": draft_id, "paths": 2, "bytes": 8}
    nothing: dict[str, Any] = {"sessions": [], "paths": [], "count": 0, "bytes": 0, "truncated": False}
    assert error["details"]["unpublished"] == {**nothing, "drafts": [draft]}
    assert at.do("manager", "destroy_sandbox", "--sandbox-id", sandbox.id)["discarded"]["unpublished"] == {
        **nothing,
        "drafts": [draft],
    }


def test_a_sandbox_is_destroyed_with_twenty_sessions_while_another_works_and_the_hosts_tree_is_as_it_was(
    shared_desk: Desks,
) -> None:
    at = shared_desk("root")
    before = tree_hash(at.workspace)
    one, other = at.create("host"), at.create("host")
    call = running(other, "echo here > here; read go")
    for n in range(20):
        session = one.session()
        if n % 4 == 0:
            one.shell(
                f"ln -s {at.workspace} to-host; ln -s {at.state} to-state; ln -s / root; rm -rf d a.txt; "
                f"echo {n} > n",
                session,
            )
    one.destroy()
    assert tree_hash(at.workspace) == before
    (command,) = other.do("list_commands")["commands"]
    other.do("write_command_stdin", "--command-session-id", command["command_session_id"], "\n")
    assert json.loads(call.process.communicate(timeout=WAIT_S)[0])["publish"]["published"] is True
    assert other.read("here") == "here" and other.read("a.txt") == "base"
    other.destroy()
    assert tree_hash(at.workspace) == before


@IN_DOCKER
def test_what_a_command_installs_in_the_system_is_there_for_the_next_session_and_in_no_publish(
    container: Container,
) -> None:
    installing = (
        "mkdir -p /usr/local/bin; printf '#!/bin/sh\\necho tool' > /usr/local/bin/tool; chmod +x "
        "/usr/local/bin/tool; echo w > w"
    )
    done = container.shell(installing)
    assert done["publish"]["route_summary"]["source_count"] == 1, "the workspace alone is published"
    assert container.shell("/usr/local/bin/tool")["output"] == "tool"
    session = container.session("--rootfs", "read_only")
    assert container.shell(
        "/usr/local/bin/tool; (echo x > /usr/local/bin/other) 2>/dev/null || echo refused", session
    )["output"].split() == [
        "tool",
        "refused",
    ]
    out = container.desk.person.home / "out"
    container.desk.do("manager", "export_changes", "--sandbox-id", container.id, "--dest", str(out))
    assert sorted(os.listdir(out)) == ["w"]


@pytest.mark.parametrize(
    "place", [pytest.param("host", marks=pytest.mark.needs("uid")), pytest.param("busybox", marks=IN_DOCKER)]
)
def test_a_base_of_another_owner_is_edited_and_its_export_belongs_to_the_caller(
    shared_desk: Desks, image: Callable[[str], str], place: str
) -> None:
    at = shared_desk("ordinary" if place == "host" else "root")
    for path in (at.workspace / "a.txt", at.workspace / "d/b.txt", at.workspace / "d", at.workspace):
        os.chown(path, 1001, 1001)
        path.chmod(0o755 if path.is_dir() else 0o644)
    sandbox = at.create(place if place == "host" else image(place))
    sandbox.write("a.txt", "edited\n")
    done = sandbox.shell("echo new > d/new; rm d/b.txt; echo more >> a.txt; mkdir made; echo x > made/x")
    assert done["publish"]["published"] is True and done["exit_code"] == 0, done
    out = at.person.home / "out"
    at.do("manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(out))
    wanted = ORDINARY_UID if place == "host" else os.geteuid()
    for name in ("a.txt", "d", "d/new", "made", "made/x"):
        assert (out / name).lstat().st_uid == wanted, name
    assert (out / "a.txt").read_text() == "edited\nmore\n"
    sandbox.destroy()


def test_a_base_that_changes_on_the_host_is_never_half_seen_and_the_drift_shows_in_its_hash(
    shared_desk: Desks,
) -> None:
    at = shared_desk("root")
    old = at.create("host")
    session = old.session()
    at.give("w/a.txt", "changed on the host\n")
    at.give("w/new.txt", "new on the host\n")
    for where in (session, old.session(), None):
        assert (
            old.read("a.txt", where) == "base" and "new.txt" not in old.shell("ls", where)["output"].split()
        )
    assert (
        at.do("manager", "inspect_sandbox", "--sandbox-id", old.id)["shared_base"]["root_hash"]
        == old.base_hash
    )
    new = at.create("host")
    assert new.base_hash != old.base_hash and new.read("a.txt") == "changed on the host"
    for one in (old, new):
        one.destroy()


# Starting again, and cleaning up


def test_a_sandbox_whose_agent_was_killed_is_started_again_and_one_that_is_gone_is_refused_by_name(
    shared_desk: Desks,
) -> None:
    at = shared_desk("root")
    sandbox = at.create("host")
    sandbox.write("published", "kept\n")
    kill(sandbox.agent())
    assert at.do("manager", "start_sandbox", "--sandbox-id", sandbox.id)["state"] == "ready"
    assert sandbox.agent() > 0 and sandbox.read("published") == "kept"
    error = at.refused("manager", "start_sandbox", "--sandbox-id", "eos-nothing")
    assert (error["kind"], error["details"]["reason"]) == ("invalid_request", "sandbox_not_found")
    sandbox.destroy()


def items(at: Desk, *words: str) -> set[tuple[str, str]]:
    found = at.do("manager", "prune", *words)
    assert (
        found["count"] == len(found["items"]) and found["dry_run"] is (not words) and found["warnings"] == []
    )
    return {(item["kind"], item["name"]) for item in found["items"]}


def test_prune_lists_and_removes_the_copy_of_a_workspace_once_no_sandbox_of_any_gateway_uses_it(
    desk: Desks, tmp_path: Path
) -> None:
    at, other = (
        desk("root", EOS_SHARED_BASE_CACHE=str(tmp_path)),
        desk("root", EOS_SHARED_BASE_CACHE=str(tmp_path)),
    )
    sandbox = at.create("host")
    mine = ("base", sandbox.base_hash)
    (other.workspace / ".id").write_text((at.workspace / ".id").read_text())
    theirs = other.create("host")
    assert theirs.base_hash == sandbox.base_hash
    assert mine not in items(at)
    sandbox.destroy()
    assert mine not in items(at) and mine not in items(other, "--dry-run=false")
    assert theirs.read("a.txt") == "base"
    theirs.destroy()
    (note,) = [
        path
        for path in (tmp_path / sandbox.base_hash / "users").iterdir()
        if path.read_text().startswith(str(other.state))
    ]
    os.utime(note, (0, 0))
    assert mine in items(at) and (tmp_path / sandbox.base_hash).is_dir(), "a dry run removes nothing"
    assert mine in items(at, "--dry-run=false")
    assert not (tmp_path / sandbox.base_hash).exists() and mine not in items(at)
    again = at.create("host")
    assert again.base_hash == sandbox.base_hash and again.read("a.txt") == "base"
    again.destroy()


@IN_DOCKER
def test_prune_removes_volumes_of_its_own_making_that_no_container_has(
    desk: Desks, image: Callable[[str], str]
) -> None:
    at, other = desk("root"), desk("root")
    sandbox = at.create(image("busybox"))
    volume = ("volume", f"eos-shared-base-{sandbox.base_hash}")
    assert volume not in items(at, "--dry-run=false") and sandbox.read("a.txt") == "base"
    at.do("manager", "destroy_sandbox", "--sandbox-id", sandbox.id)
    assert volume in items(at) and volume not in items(other, "--dry-run=false")
    assert docker("volume", "ls", "-q", "--filter", f"name={volume[1]}") == volume[1]
    assert volume in items(at, "--dry-run=false")
    assert docker("volume", "ls", "-q", "--filter", f"name={volume[1]}") == ""
    again = at.create(image("busybox"))
    assert again.read("a.txt") == "base"
    again.destroy()


def started(sandbox: Sandbox, *words: str) -> subprocess.Popen[str]:
    desk = sandbox.desk
    argv = [desk.person.python, "-m", MODULES["runtime"], "--sandbox-id", sandbox.id, *words]
    return desk.person.popen(
        argv, env=desk.person.environment(**desk.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    with process:
        out, err = process.communicate(timeout=WAIT_S)
    found: dict[str, Any] = json.loads(out or err)
    return found


def test_a_session_published_or_destroyed_twice_at_once_ends_once(sandbox: Sandbox) -> None:
    for op, other in (("publish", "publish"), ("publish", "destroy"), ("destroy", "destroy")):
        session = sandbox.session()
        sandbox.write(f"{op}-{other}.txt", "x\n", session)
        both = [
            started(sandbox, f"{verb}_workspace_session", "--workspace-session-id", session)
            for verb in (op, other)
        ]
        said = [ended(process) for process in both]
        good = [reply for reply in said if "error" not in reply]
        assert good and all(reply["destroyed"] for reply in good), said
        assert {reply["error"]["details"]["reason"] for reply in said if "error" in reply} <= {
            "session_not_found"
        }
        listed = {entry["name"] for entry in sandbox.do("file_list")["entries"]}
        assert (f"{op}-{other}.txt" in listed) is any("publish" in reply for reply in good)
        assert (
            sandbox.do("list_workspace_sessions")["sessions"] == []
            and sandbox.do("list_drafts")["drafts"] == []
        )


def test_a_process_that_left_its_group_and_ignores_signals_ends_with_the_session(sandbox: Sandbox) -> None:
    daemon = (
        "setsid sh -c \"trap '' TERM HUP INT; echo ready; while :; do sleep 1; done\" <fifo >fifo 2>&1 "
        "& head -n 1 <fifo; wait"
    )
    running = started(sandbox, "exec_command", "--yield-time-ms", "1", f"mkfifo fifo; exec 3<>fifo; {daemon}")
    first = ended(running)
    assert first["status"] == "running"
    members = watch(sandbox.members(first["workspace_session_id"]))
    sandbox.do("signal_command", "--command-session-id", first["command_session_id"], "--signal", "KILL")
    sandbox.do("wait_command", "--command-session-id", first["command_session_id"], "--timeout-ms", "30000")
    assert living(members) == []


def test_a_sandbox_is_destroyed_under_a_running_command_whose_caller_gets_an_error(sandbox: Sandbox) -> None:
    other = sandbox.desk.create("host")
    session = other.session()
    waiting = started(
        other,
        "exec_command",
        "--workspace-session-id",
        session,
        "--yield-time-ms",
        "50000",
        "trap '' TERM; sleep 1000",
    )
    while not other.do("list_commands")["commands"]:
        pass
    members = watch([other.agent(), other.zygote(), *other.members(session)])
    other.destroy()
    assert ended(waiting)["error"]["details"]["reason"] == "sandbox_destroyed"
    assert living(members) == []
