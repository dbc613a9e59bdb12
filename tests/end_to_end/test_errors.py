"""What a user meets when something is missing or broken: one error that names the thing and the next step, and nothing left behind."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from layerstack import linux
from tests import children
from tests.end_to_end.desk import Desk, Sandbox, in_engine, kill
from tests.eos_mcp import programs
from tests.people import Person

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

ORDINARY = pytest.param("ordinary", marks=pytest.mark.needs("uid"))
Desks = Callable[..., Desk]


@pytest.fixture
def desk(person: Callable[[str], Person], cache_of: Callable[[Person], Path]) -> Generator[Desks]:
    """desk("root", DOCKER_HOST=...): a person's desk, and the environment of the programs there."""

    made: list[Desk] = []

    def make(who: str, **env: str) -> Desk:
        one = person(who)
        made.append(Desk(one, cache_of(one), **env))
        return made[-1]

    yield make
    for one in made:
        one.destroy_all()


def assert_told(error: dict[str, Any], reason: str, *names: str, kind: str = "internal_error") -> None:
    """The reason, the thing itself in the text, and a next step beside it or in it."""
    assert (error["kind"], error["details"].get("reason")) == (kind, reason), error
    for name in names:
        assert name in error["message"], error
    assert "\n" not in error["message"] and "Traceback" not in str(error) and error["details"].get("hint"), error


# Docker


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_no_docker_names_the_engine_asked_for_and_local_sandboxes_work_on(desk: Desks, who: str) -> None:
    nowhere = "unix:///nonexistent/docker.sock"
    at = desk(who, DOCKER_HOST=nowhere)
    assert_told(at.refused_create("busybox"), "docker_unreachable", nowhere, "DOCKER_HOST")
    assert at.left_in_state() == [] and at.do("manager", "list_sandboxes") == {"sandboxes": []}
    sandbox = at.create("host")
    assert sandbox.shell("cat a.txt")["output"] == "base"
    sandbox.destroy()


@pytest.mark.needs("dockerd")
def test_an_image_that_the_engine_lacks_is_named_before_the_workspace_is_copied(
    person: Callable[[str], Person], short_dir: str, image: Callable[[str], str]
) -> None:
    at = Desk(person("root"), Path(short_dir) / "cache")
    assert_told(at.refused_create("eos-test/nobody-made-this:1"), "image_not_found", "eos-test/nobody-made-this:1")
    assert at.left_in_state() == [] and in_engine((at.state / "instance_id").read_text().strip()) == []
    assert not (Path(short_dir) / "cache" / "eos" / "bases").exists()


@pytest.mark.needs("dockerd")
def test_an_image_without_a_shell_says_so_and_its_files_can_be_used(desk: Desks, image: Callable[[str], str]) -> None:
    at = desk("root")
    sandbox = at.create(image("empty"))
    sandbox.write("kept.txt", "kept\n")
    for words in ((), ("--workspace-session-id", sandbox.session())):
        assert_told(sandbox.refused("exec_command", *words, "true"), "no_shell", "no shell", kind="operation_failed")
    (session,) = sandbox.do("list_workspace_sessions")["sessions"]
    assert session["finalize_policy"] == "no_op", "the refused one-shot left its session"
    assert sandbox.read("kept.txt", session["workspace_session_id"]) == "kept" == sandbox.read("kept.txt")
    sandbox.destroy()
    assert at.left_in_state() == []


# The kernel's refusals


def _alone(at: Desk, uid: int | None) -> Desk:
    """The same desk for a process that has become `uid` already."""
    return Desk(at.person._replace(uid=None), Path(at.env["XDG_CACHE_HOME"])) if uid is not None else at


def _refused_inside(
    at: Desk, enter: Callable[[], object], *, becomes: int | None = None
) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """In a child whose namespaces `enter` made: the error of a create, what it left, and what is listed afterwards. The gateway ends there."""

    def in_child() -> tuple[dict[str, Any], list[str], dict[str, Any]]:
        enter()
        inside = _alone(at, becomes)
        try:
            error = inside.refused_create("host")
            return error, inside.left_in_state(), inside.do("manager", "list_sandboxes")
        finally:
            inside.stop()

    return children.call(None, in_child)


@pytest.mark.needs("uid")
@pytest.mark.parametrize("errno_name", ["ENOSPC", "EPERM"])
def test_forbidden_user_namespaces_are_named_with_the_settings_that_allow_them(desk: Desks, errno_name: str) -> None:
    at = desk("ordinary")
    uid = children.ORDINARY_UID

    def limit_of_zero() -> None:
        children.become(uid)
        linux.unshare(linux.CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{uid} {uid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")

    def changed_root() -> None:
        """The kernel gives no user namespace to who lives in a chroot."""
        children.enter_mount_namespace()
        where = at.person.home / "root"
        where.mkdir()
        linux.mount("/", str(where), None, linux.MS_BIND | linux.MS_REC)
        os.chroot(where)
        os.chdir("/")
        children.become(uid)

    enter = limit_of_zero if errno_name == "ENOSPC" else changed_root
    error, left, listed = _refused_inside(at, enter, becomes=uid)
    assert_told(error, "userns_forbidden", "user namespaces", "max_user_namespaces")
    assert error["details"]["errno"] == errno_name
    assert left == [] and listed == {"sandboxes": []}


def test_root_without_the_right_to_mount_is_told_which_capability_is_missing(desk: Desks) -> None:
    at = desk("root")
    error, left, listed = _refused_inside(at, lambda: linux.prctl(linux.PR_CAPBSET_DROP, 21))
    assert_told(error, "mountns_forbidden", "CAP_SYS_ADMIN")
    assert left == [] and listed == {"sandboxes": []}


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_store_on_an_overlay_is_refused_with_the_variable_that_moves_it(desk: Desks, who: str, short_dir: str) -> None:
    at = desk(who)
    at.make_state()

    def enter() -> None:
        children.enter_mount_namespace()
        for name in ("upper", "work"):
            os.mkdir(f"{short_dir}/{name}")
        linux.mount("overlay", str(at.state), "overlay", 0, f"lowerdir={at.state},upperdir={short_dir}/upper,workdir={short_dir}/work")
        if at.person.uid is not None:
            os.chown(at.state, at.person.uid, at.person.uid)

    error, left, listed = _refused_inside(at, enter)
    assert_told(error, "store_on_overlay", str(at.state), "EOS_STATE_DIR")
    assert left == [] and listed == {"sandboxes": []}


def test_a_file_system_that_overlayfs_cannot_write_to_is_named(desk: Desks) -> None:
    at = desk("root")
    at.make_state()

    def enter() -> None:
        children.enter_mount_namespace()
        linux.mount("eos-ram", str(at.state), "ramfs", 0, "mode=0700")
        (at.state / ".probe-1-left-by-a-killed-gateway" / "work" / "work").mkdir(parents=True)

    error, left, listed = _refused_inside(at, enter)
    assert_told(error, "overlay_unsupported", str(at.state), "ramfs", "EOS_STATE_DIR")
    assert left == [] and listed == {"sandboxes": []}


# The workspace and the image of the host


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_workspace_that_is_missing_or_is_no_directory_is_named(desk: Desks, who: str) -> None:
    at = desk(who)
    for path in (at.person.home / "nowhere", at.give("plain", "text")):
        assert_told(at.refused_create("host", path), "workspace_missing", str(path), kind="invalid_request")
    assert_told(at.refused_create(f"rootfs:{at.person.home}/nowhere"), "image_not_found", f"{at.person.home}/nowhere")
    assert at.left_in_state() == [] and at.do("manager", "list_sandboxes") == {"sandboxes": []}


@pytest.mark.needs("uid")
@pytest.mark.parametrize("closed", ["", "sub", "sub/secret"])
def test_what_an_ordinary_user_may_not_read_of_a_workspace_is_named_and_no_copy_is_left(
    person: Callable[[str], Person], short_dir: str, closed: str
) -> None:
    who = person("ordinary")
    os.chown(short_dir, children.ORDINARY_UID, children.ORDINARY_UID)
    at = Desk(who, Path(short_dir))
    workspace = at.give("w2/sub/secret", "x").parent.parent
    os.chmod(workspace / closed, 0)
    error = at.refused_create("host", workspace)
    os.chmod(workspace / closed, 0o755)
    assert_told(error, "workspace_unreadable", str(workspace / closed), kind="operation_failed")
    assert at.left_in_state() == [] and at.do("manager", "list_sandboxes") == {"sandboxes": []}
    bases = Path(short_dir) / "eos" / "bases"
    assert not bases.exists() or [name for name in os.listdir(bases) if name.startswith(".building") or len(name) == 64] == []
    at.create("host").destroy()


# The gateway


def test_a_taken_port_is_named_and_no_socket_or_pid_stays(desk: Desks) -> None:
    at = desk("root")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = at.run("gateway", "serve", "--gateway-endpoint", f"127.0.0.1:{port}", "--auth-token", "t")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert port in line and "taken" in line and "--gateway-endpoint" in line and "Traceback" not in line
    assert not [name for name in os.listdir(at.state) if name in ("gateway.sock", "gateway.pid")]


def test_a_relative_state_directory_means_the_callers_directory(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path]
) -> None:
    who = person("root")
    at = Desk(who, cache_of(who), EOS_STATE_DIR="state")
    assert at.do("manager", "list_sandboxes") == {"sandboxes": []}
    assert {"gateway.sock", "gateway.token", "instance_id"} <= set(os.listdir(at.state))
    sandbox = at.create("host")
    assert sandbox.shell("cat a.txt")["output"] == "base"
    sandbox.destroy()
    at.stop()


def test_a_wrong_token_is_refused_by_every_program_and_changes_nothing(desk: Desks) -> None:
    at = desk("root")
    sandbox = at.create("host")
    sandbox.write("kept.txt", "kept\n")
    wrong = {"SANDBOX_GATEWAY_AUTH_TOKEN": "not-the-token"}
    for program, *words in (
        ("manager", "destroy_sandbox", "--sandbox-id", sandbox.id),
        ("runtime", "--sandbox-id", sandbox.id, "file_write", "--path", "kept.txt", "--content", "changed"),
        ("observability", "snapshot"),
    ):
        error = at.refused(program, *words, env=wrong)
        assert_told(error, "bad_token", "token", kind="unauthorized")
        assert "not-the-token" not in str(error)
    assert sandbox.read("kept.txt") == "kept"
    sandbox.destroy()


# A full disk


def on_a_small_disk(at: Desk, body: Callable[[Desk], None]) -> None:
    """body(at) in a mount namespace where the state lies on a tmpfs of 16 MB; the gateway and the sandboxes end with it."""

    def in_child() -> None:
        children.enter_mount_namespace()
        at.make_state()
        owner = at.person.uid or 0
        linux.mount("eos-small", str(at.state), "tmpfs", 0, f"size=16m,mode=0700,uid={owner},gid={owner}")
        try:
            body(at)
        finally:
            (at.state / "filler").unlink(missing_ok=True)
            at.destroy_all()
            at.stop()

    children.call(None, in_child)


def fill(at: Desk) -> Path:
    """Leaves no byte of the small disk."""
    path = at.state / "filler"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return path


def published(sandbox: Sandbox, session: str) -> None:
    sandbox.do("publish_workspace_session", "--workspace-session-id", session)
    assert sandbox.refused("file_list", "--workspace-session-id", session)["details"]["reason"] == "session_not_found"


def names_in_store(sandbox: Sandbox) -> dict[str, list[str]]:
    return {name: sorted(os.listdir(sandbox.store / name)) for name in ("layers", "staging", "drafts", "manifests")}


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_disk_that_is_full_while_publishing_loses_nothing_and_the_same_call_works_after_space_is_freed(desk: Desks, who: str) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        session = sandbox.session()
        sandbox.write("mine.txt", "mine\n", session)
        before = names_in_store(sandbox)
        filler = fill(at)
        error = sandbox.refused("publish_workspace_session", "--workspace-session-id", session)
        assert_told(error, "disk_full", kind="operation_failed")
        assert_told(sandbox.refused("file_write", "--path", "other.txt", "--content", "x"), "disk_full", kind="operation_failed")
        assert names_in_store(sandbox) == before
        assert sandbox.read("kept.txt") == "kept" and sandbox.read("mine.txt", session) == "mine"
        filler.unlink()
        published(sandbox, session)
        assert (sandbox.read("mine.txt"), sandbox.read("kept.txt")) == ("mine", "kept")
        assert names_in_store(sandbox)["staging"] == []
        sandbox.destroy()
        assert at.left_in_state() == []

    on_a_small_disk(desk(who), body)


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_one_shot_on_a_full_disk_publishes_nothing_by_half_and_its_work_is_there_after_space_is_freed(desk: Desks, who: str) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        running = sandbox.do("exec_command", "--yield-time-ms", "1", "echo mine > mine.txt; read line")
        assert running["status"] == "running"
        filler = fill(at)
        sandbox.do("write_command_stdin", "--command-session-id", running["command_session_id"], "--yield-time-ms", "1", "go on\n")
        ended = sandbox.do("wait_command", "--command-session-id", running["command_session_id"], "--timeout-ms", "30000")
        assert ended["status"] == "ok" and ended.get("publish", {}).get("published") is not True
        told = ended.get("publish_rejection", {}).get("error") or ended["finalization_error"]
        assert told["details"]["reason"] == "disk_full", ended
        assert sandbox.read("kept.txt") == "kept" and sandbox.refused("file_read", "--path", "mine.txt")["kind"] == "not_found"
        filler.unlink()
        sandbox.write("again.txt", "works\n")
        kill(sandbox.agent())
        assert sandbox.read("again.txt") == "works"
        (draft,) = sandbox.do("list_drafts")["drafts"]
        assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "mine"
        sandbox.destroy()

    on_a_small_disk(desk(who), body)


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_command_that_fills_the_disk_can_be_undone_from_its_session(desk: Desks, who: str) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        session = sandbox.session()
        full = sandbox.shell("echo mine > mine.txt; head -c 30000000 /dev/zero > big", session)
        assert full["exit_code"] == 1 and "No space left on device" in full["output"]
        assert sandbox.read("kept.txt") == "kept"
        assert sandbox.shell("rm big", session)["exit_code"] == 0
        published(sandbox, session)
        assert (sandbox.read("mine.txt"), sandbox.read("kept.txt")) == ("mine", "kept")
        other = sandbox.session()
        sandbox.shell("head -c 30000000 /dev/zero > big", other)
        assert sandbox.do("destroy_workspace_session", "--workspace-session-id", other)["destroyed"]
        assert sandbox.shell("echo fits > at.txt")["publish"]["published"] is True
        sandbox.destroy()

    on_a_small_disk(desk(who), body)


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_gateway_and_an_agent_started_on_a_full_disk_say_so_and_start_after_space_is_freed(desk: Desks, who: str) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.write("kept.txt", "kept\n")
        session = sandbox.session()
        sandbox.write("mine.txt", "mine\n", session)
        filler = fill(at)
        kill(programs.pid_of(str(at.state)))
        kill(sandbox.agent())
        answers = [at.run("runtime", "--sandbox-id", sandbox.id, "file_read", "--path", "kept.txt") for _ in range(2)]
        for answer in answers:  # what only reads may work, and whatever does not says why
            text = answer.stdout or answer.stderr
            assert "Traceback" not in text and (
                "No space left" in text or "disk_full" in text or json.loads(text).get("content") == "kept"
            ), text
        filler.unlink()
        assert sandbox.read("kept.txt") == "kept"
        (draft,) = sandbox.do("list_drafts")["drafts"]
        assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "mine"
        sandbox.destroy()

    on_a_small_disk(desk(who), body)


def test_a_sandbox_can_be_destroyed_to_free_a_full_disk_and_none_is_half_made_on_one(desk: Desks) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        sandbox.shell("echo kept > kept.txt")
        filler = fill(at)
        error = at.refused_create("host")
        assert error["kind"] == "internal_error" and error["details"]["reason"] == "disk_full" and error["details"]["hint"], error
        assert [record["id"] for record in at.do("manager", "list_sandboxes")["sandboxes"]] == [sandbox.id]
        assert os.listdir(at.state / "sandboxes") == [sandbox.id]
        assert sandbox.read("kept.txt") == "kept"
        sandbox.destroy()
        filler.unlink()
        assert at.left_in_state() == []
        at.create("host").destroy()

    on_a_small_disk(desk("root"), body)


# A session whose process is gone


@pytest.mark.parametrize("place", ["root", ORDINARY, pytest.param("docker", marks=pytest.mark.needs("dockerd"))])
def test_a_killed_runner_is_a_lost_session_whose_draft_holds_its_work(desk: Desks, place: str, image: Callable[[str], str]) -> None:
    at = desk("ordinary" if place == "ordinary" else "root")
    sandbox = at.create(image("busybox") if place == "docker" else "host")
    session = sandbox.session()
    sandbox.write("mine.txt", "mine\n", session)
    empty = sandbox.session()
    for one in (session, empty):
        kill(sandbox.runner(one))
    error = sandbox.refused("exec_command", "--workspace-session-id", session, "true")
    assert_told(error, "session_lost", session, error["details"]["draft_id"], kind="operation_failed")
    nothing = sandbox.refused("exec_command", "--workspace-session-id", empty, "true")
    assert (nothing["details"]["reason"], nothing["details"]["draft_id"]) == ("session_lost", None)
    opened = sandbox.session("--draft-id", error["details"]["draft_id"])
    assert sandbox.read("mine.txt", opened) == "mine"
    sandbox.destroy()
    assert at.left_in_state() == []
