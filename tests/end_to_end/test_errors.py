"""What a user meets when something is missing or broken: one error that names the thing and the next step,
and nothing left behind.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerstack.kernel import syscalls
from tests import in_namespace
from tests.end_to_end.cli_user import Desk, Desks, assert_error, in_engine
from tests.processes import kill
from tests.users import Person

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

ORDINARY = pytest.param("ordinary", marks=pytest.mark.needs("uid"))


# Docker


def test_no_docker_names_the_engine_asked_for_and_local_sandboxes_work_on(desk: Desks) -> None:
    nowhere = "unix:///nonexistent/docker.sock"
    at = desk("root", DOCKER_HOST=nowhere)
    assert_error(at.refused_create("busybox"), "docker_unreachable", nowhere, "DOCKER_HOST")
    assert at.left_in_state() == [] and at.do("manager", "list_sandboxes") == {"sandboxes": []}
    sandbox = at.create("host")
    assert sandbox.shell("cat a.txt")["output"] == "base"
    sandbox.destroy()


@pytest.mark.needs("dockerd")
def test_an_image_that_the_engine_lacks_is_named_before_the_workspace_is_copied(
    person: Callable[[str], Person], short_dir: str, image: Callable[[str], str]
) -> None:
    at = Desk(person("root"), Path(short_dir) / "cache")
    assert_error(
        at.refused_create("eos-test/nobody-made-this:1"), "image_not_found", "eos-test/nobody-made-this:1"
    )
    assert at.left_in_state() == [] and in_engine((at.state / "instance_id").read_text().strip()) == []
    assert not (Path(short_dir) / "cache" / "eos" / "bases").exists()


@pytest.mark.needs("dockerd")
def test_an_image_without_a_shell_says_so_and_its_files_can_be_used(
    shared_desk: Desks, image: Callable[[str], str]
) -> None:
    at = shared_desk("root")
    sandbox = at.create(image("empty"))
    sandbox.write("kept.txt", "kept\n")
    for words in ((), ("--workspace-session-id", sandbox.session())):
        assert_error(
            sandbox.refused("exec_command", *words, "true"), "no_shell", "no shell", kind="operation_failed"
        )
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
    """In a child whose namespaces `enter` made: the error of a create, what it left, and what is listed
    afterwards. The gateway ends there.
    """

    def in_child() -> tuple[dict[str, Any], list[str], dict[str, Any]]:
        enter()
        inside = _alone(at, becomes)
        try:
            error = inside.refused_create("host")
            return error, inside.left_in_state(), inside.do("manager", "list_sandboxes")
        finally:
            inside.stop()

    return in_namespace.call(None, in_child)


@pytest.mark.needs("uid")
@pytest.mark.parametrize("errno_name", ["ENOSPC", "EPERM"])
def test_forbidden_user_namespaces_are_named_with_the_settings_that_allow_them(
    desk: Desks, errno_name: str
) -> None:
    at = desk("ordinary")
    uid = in_namespace.ORDINARY_UID

    def limit_of_zero() -> None:
        in_namespace.become(uid)
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{uid} {uid} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(text)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")

    def changed_root() -> None:
        """The kernel gives no user namespace to who lives in a chroot."""
        in_namespace.enter_mount_namespace()
        where = at.person.home / "root"
        where.mkdir()
        syscalls.mount("/", str(where), None, syscalls.MS_BIND | syscalls.MS_REC)
        os.chroot(where)
        os.chdir("/")
        in_namespace.become(uid)

    enter = limit_of_zero if errno_name == "ENOSPC" else changed_root
    error, left, listed = _refused_inside(at, enter, becomes=uid)
    assert_error(error, "userns_forbidden", "user namespaces", "max_user_namespaces")
    assert error["details"]["errno"] == errno_name
    assert left == [] and listed == {"sandboxes": []}


def test_root_without_the_right_to_mount_learns_which_capability_is_missing(desk: Desks) -> None:
    at = desk("root")
    error, left, listed = _refused_inside(at, lambda: syscalls.prctl(syscalls.PR_CAPBSET_DROP, 21))
    assert_error(error, "mountns_forbidden", "CAP_SYS_ADMIN")
    assert left == [] and listed == {"sandboxes": []}


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_store_on_an_overlay_is_refused_with_the_variable_that_moves_it(
    desk: Desks, who: str, short_dir: str
) -> None:
    at = desk(who)
    at.make_state()

    def enter() -> None:
        in_namespace.enter_mount_namespace()
        for name in ("upper", "work"):
            os.mkdir(f"{short_dir}/{name}")
        syscalls.mount(
            "overlay",
            str(at.state),
            "overlay",
            0,
            f"lowerdir={at.state},upperdir={short_dir}/upper,workdir={short_dir}/work",
        )
        if at.person.uid is not None:
            os.chown(at.state, at.person.uid, at.person.uid)

    error, left, listed = _refused_inside(at, enter)
    assert_error(error, "store_on_overlay", str(at.state), "EOS_STATE_DIR")
    assert left == [] and listed == {"sandboxes": []}


def test_a_file_system_that_overlayfs_cannot_write_to_is_named(desk: Desks) -> None:
    at = desk("root")
    at.make_state()

    def enter() -> None:
        in_namespace.enter_mount_namespace()
        syscalls.mount("eos-ram", str(at.state), "ramfs", 0, "mode=0700")
        (at.state / ".probe-1-left-by-a-killed-gateway" / "work" / "work").mkdir(parents=True)

    error, left, listed = _refused_inside(at, enter)
    assert_error(error, "overlay_unsupported", str(at.state), "ramfs", "EOS_STATE_DIR")
    assert left == [] and listed == {"sandboxes": []}


# The workspace and the image of the host


@pytest.mark.parametrize("who", ["root", ORDINARY])
def test_a_workspace_that_is_missing_or_is_no_directory_is_named(shared_desk: Desks, who: str) -> None:
    at = shared_desk(who)
    for path in (at.person.home / "nowhere", at.give("plain", "text")):
        assert_error(at.refused_create("host", path), "workspace_missing", str(path), kind="invalid_request")
    assert_error(
        at.refused_create(f"rootfs:{at.person.home}/nowhere"),
        "image_not_found",
        f"{at.person.home}/nowhere",
        kind="invalid_request",
    )
    without = at.give("tree/etc/hostname", "x").parent.parent
    assert_error(
        at.refused_create(f"rootfs:{without}"), "no_shell", str(without), "/bin/sh", kind="invalid_request"
    )
    assert at.left_in_state() == [] and at.do("manager", "list_sandboxes") == {"sandboxes": []}


@pytest.mark.needs("uid")
def test_what_an_ordinary_user_may_not_read_of_a_workspace_is_named_and_no_copy_is_left(
    person: Callable[[str], Person], short_dir: str
) -> None:
    who = person("ordinary")
    os.chown(short_dir, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)
    at = Desk(who, Path(short_dir))
    bases = Path(short_dir) / "eos" / "bases"
    workspace = at.give("w2/sub/secret", "x").parent.parent
    for closed in ("", "sub", "sub/secret"):
        os.chmod(workspace / closed, 0)
        error = at.refused_create("host", workspace)
        os.chmod(workspace / closed, 0o755)
        assert_error(error, "workspace_unreadable", str(workspace / closed), kind="operation_failed")
        assert at.left_in_state() == [] and at.do("manager", "list_sandboxes") == {"sandboxes": []}
        copies = os.listdir(bases) if bases.exists() else []
        assert [name for name in copies if name.startswith(".building") or len(name) == 64] == [], closed
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


def test_a_wrong_token_is_refused_by_every_program_and_changes_nothing(shared_desk: Desks) -> None:
    at = shared_desk("root")
    sandbox = at.create("host")
    sandbox.write("kept.txt", "kept\n")
    wrong = {"SANDBOX_GATEWAY_AUTH_TOKEN": "not-the-token"}
    for program, *words in (
        ("manager", "destroy_sandbox", "--sandbox-id", sandbox.id),
        ("runtime", "--sandbox-id", sandbox.id, "file_write", "--path", "kept.txt", "--content", "changed"),
        ("observability", "snapshot"),
    ):
        error = at.refused(program, *words, env=wrong)
        assert_error(error, "bad_token", "token", kind="unauthorized")
        assert "not-the-token" not in str(error)
    assert sandbox.read("kept.txt") == "kept"
    sandbox.destroy()


# A session whose process is gone


@pytest.mark.parametrize(
    "place", ["root", ORDINARY, pytest.param("docker", marks=pytest.mark.needs("dockerd"))]
)
def test_a_killed_runner_is_a_lost_session_whose_draft_holds_its_work(
    shared_desk: Desks, place: str, image: Callable[[str], str]
) -> None:
    at = shared_desk("ordinary" if place == "ordinary" else "root")
    sandbox = at.create(image("busybox") if place == "docker" else "host")
    session = sandbox.session()
    sandbox.write("mine.txt", "mine\n", session)
    empty = sandbox.session()
    for one in (session, empty):
        kill(sandbox.runner(one))
    error = sandbox.refused("exec_command", "--workspace-session-id", session, "true")
    assert_error(error, "session_lost", session, error["details"]["draft_id"], kind="operation_failed")
    nothing = sandbox.refused("exec_command", "--workspace-session-id", empty, "true")
    assert (nothing["details"]["reason"], nothing["details"]["draft_id"]) == ("session_lost", None)
    opened = sandbox.session("--draft-id", error["details"]["draft_id"])
    assert sandbox.read("mine.txt", opened) == "mine"
    sandbox.destroy()
    assert at.left_in_state() == []
