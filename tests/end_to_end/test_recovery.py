"""Killed at every place: the gateway, the agent, the zygote, a runner, the container. The next call works and
no work is lost.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eos_mcp.providers.volumes import HELPER_LABEL
from layerstack.kernel import fsync
from tests.end_to_end.cli_user import MODULES, Container, Desk, Sandbox, Watched, docker, living, watch
from tests.end_to_end.places import DOCKER, ORDINARY, ROOT, in_places
from tests.eos_mcp import programs
from tests.processes import WAIT_S, kill, mounts_that_name
from tests.users import Person

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]


class Work(NamedTuple):
    """A live session with a rejected change of a.txt, an unpublished mine.txt, and a command that runs."""

    session: str
    command: str
    members: list[Watched]
    upper: str


def prepared(sandbox: Sandbox) -> Work:
    """Published content, then a session with work of each kind; proves that the probes used afterwards do
    find a live session.
    """
    sandbox.write("published.txt", "kept\n")
    session = sandbox.session("--agent", "tester")
    sandbox.write("a.txt", "losing bytes\n", session)
    sandbox.write("a.txt", "winning bytes\n")
    refused = sandbox.refused("publish_workspace_session", "--workspace-session-id", session)
    assert [conflict["path"] for conflict in refused["details"]["publish_rejection"]["conflicts"]] == [
        "a.txt"
    ]
    sandbox.write("mine.txt", "unpublished\n", session)
    started = sandbox.do(
        "exec_command",
        "--workspace-session-id",
        session,
        "--yield-time-ms",
        "20000",
        "mkdir new && echo by command > new/c.txt && echo up; true",
    )
    assert started["output"] == "up"
    command = sandbox.do(
        "exec_command",
        "--workspace-session-id",
        session,
        "--yield-time-ms",
        "1",
        "sleep 1000 & echo $!; wait",
    )
    upper = str(sandbox.store / "sessions" / session / "upper")
    members = sandbox.members(session)
    assert command["status"] == "running" and len(members) >= 2
    assert mounts_that_name(session) != [] and upper in sandbox.uppers_in_use()
    return Work(session, command["command_session_id"], watch(members), upper)


def assert_published_is_intact(sandbox: Sandbox) -> None:
    assert sandbox.read("published.txt") == "kept"
    assert sandbox.read("a.txt") == "winning bytes"
    assert sandbox.shell("cat a.txt d/b.txt; ls")["output"].split() == [
        "winning",
        "bytes",
        "in",
        "a",
        "directory",
        "a.txt",
        "d",
        "published.txt",
    ]


def assert_nothing_of_it_lives(sandbox: Sandbox, work: Work) -> None:
    assert living(work.members) == []
    assert mounts_that_name(work.session) == []
    assert sandbox.do("list_workspace_sessions")["sessions"] == []
    assert sandbox.uppers_in_use() == []


def assert_its_work_is_in_a_draft(sandbox: Sandbox, work: Work) -> None:
    """The losing bytes are read back from a session that the draft was opened in."""
    (draft,) = sandbox.do("list_drafts")["drafts"]
    assert (draft["origin"], draft["agent"]) == (f"workspace_session:{work.session}", "tester")
    for op, *words in (
        ("file_read", "--path", "mine.txt"),
        ("exec_command", "true"),
        ("publish_workspace_session",),
    ):
        error = sandbox.refused(op, *words, "--workspace-session-id", work.session)
        assert (error["kind"], error["details"]["reason"], error["details"]["draft_id"]) == (
            "operation_failed",
            "session_lost",
            draft["draft_id"],
        )
        assert draft["draft_id"] in error["message"] and "draft_id" in error["details"]["hint"]
    opened = sandbox.session("--draft-id", draft["draft_id"])
    assert [sandbox.read(path, opened) for path in ("a.txt", "mine.txt", "new/c.txt")] == [
        "losing bytes",
        "unpublished",
        "by command",
    ]
    assert sandbox.do("preview_publish", "--draft-id", draft["draft_id"])["conflict_count"] == 1
    discarded = sandbox.do("destroy_workspace_session", "--workspace-session-id", opened)
    assert discarded["destroyed"] and sandbox.do("list_drafts")["drafts"] == [draft]


def assert_recovered(sandbox: Sandbox, work: Work) -> None:
    assert_published_is_intact(sandbox)
    assert_nothing_of_it_lives(sandbox, work)
    assert_its_work_is_in_a_draft(sandbox, work)
    assert_nothing_of_it_lives(sandbox, work._replace(members=[]))


@in_places(ROOT, DOCKER)
def test_a_killed_gateway_takes_nothing_with_it(sandbox: Sandbox) -> None:
    work = prepared(sandbox)
    kill(programs.pid_of(str(sandbox.desk.state)))
    assert_published_is_intact(sandbox)
    assert sandbox.read("a.txt", work.session) == "losing bytes"
    assert sandbox.do("read_command_lines", "--command-session-id", work.command)["status"] == "running"
    assert sorted(sandbox.members(work.session)) == sorted(one.pid for one in work.members)
    sandbox.do("signal_command", "--command-session-id", work.command, "--signal", "KILL")
    gone = sandbox.do("destroy_workspace_session", "--workspace-session-id", work.session, "--grace-s", "30")
    assert gone["destroyed"]
    assert_nothing_of_it_lives(sandbox, work)


@in_places(ROOT, ORDINARY, DOCKER)
def test_after_a_killed_runner_the_session_is_lost_by_name_and_its_work_is_in_a_draft(
    sandbox: Sandbox,
) -> None:
    work = prepared(sandbox)
    kill(sandbox.runner(work.session))
    error = sandbox.refused("file_read", "--path", "mine.txt", "--workspace-session-id", work.session)
    assert (error["kind"], error["details"]["reason"]) == ("operation_failed", "session_lost")
    assert error["details"]["draft_id"].startswith("draft-")
    command = sandbox.refused("wait_command", "--command-session-id", work.command)
    assert (command["details"]["reason"], command["details"]["draft_id"]) == (
        "session_lost",
        error["details"]["draft_id"],
    )
    assert_recovered(sandbox, work)


@in_places(ROOT, ORDINARY, DOCKER)
def test_after_a_killed_agent_the_next_call_works_and_the_work_is_in_a_draft(sandbox: Sandbox) -> None:
    work = prepared(sandbox)
    kill(sandbox.agent())
    assert_recovered(sandbox, work)


@in_places(ROOT, DOCKER)
def test_after_a_killed_zygote_the_next_call_works_and_the_work_is_in_a_draft(sandbox: Sandbox) -> None:
    work = prepared(sandbox)
    kill(sandbox.zygote())
    assert_recovered(sandbox, work)


@in_places(DOCKER)
def test_after_a_restart_of_the_container_the_next_call_works_and_the_work_is_in_a_draft(
    sandbox: Container,
) -> None:
    work = prepared(sandbox)
    sandbox.restart()
    assert_recovered(sandbox, work)


@in_places(
    ROOT, pytest.param("busybox", id="docker-busybox", marks=[pytest.mark.needs("dockerd"), pytest.mark.soak])
)
def test_after_a_power_cut_of_the_host_the_work_of_all_twenty_sessions_is_in_drafts_and_nothing_else_of_them_is_left(  # noqa: E501
    sandbox: Sandbox,
) -> None:
    """Everything is killed at once, the gateway too; what lies in run directories is gone, registry and store
    are as they were.
    """
    work = prepared(sandbox)

    def begin(number: int) -> str:
        session = sandbox.session("--agent", f"agent {number}")
        sandbox.shell(
            f"echo work of {number} > n{number}; rm -r d; mkdir -p dir/n{number}; setsid sleep 1000 > "
            f"/dev/null 2>&1 < /dev/null &",
            session,
        )
        return session

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(begin, range(19)))
    clean = sandbox.session()
    runners = watch([sandbox.runner(session) for session in (*sessions, clean)])
    for pid in (programs.pid_of(str(sandbox.desk.state)), *sandbox.everything()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert living([*runners, *work.members]) == []
    sandbox.wipe_run_directories()
    assert sandbox.read("published.txt") == "kept", "the next call starts all of it again"
    drafts = {draft["origin"]: draft for draft in sandbox.do("list_drafts")["drafts"]}
    assert set(drafts) == {f"workspace_session:{session}" for session in (*sessions, work.session)}
    assert {draft["reason"] for draft in drafts.values()} == {"recovered"}
    for number in (0, 18):
        draft = drafts[f"workspace_session:{sessions[number]}"]
        assert draft["agent"] == f"agent {number}"
        changes = {
            entry["path"]: entry
            for entry in sandbox.do("diff_draft", "--draft-id", draft["draft_id"])["entries"]
        }
        assert {f"n{number}", "d/b.txt"} <= set(changes) and f"+work of {number}\n" in changes[f"n{number}"][
            "patch"
        ]
    assert (
        sandbox.refused("exec_command", "--workspace-session-id", clean, "true")["details"]["reason"]
        == "session_not_found"
    )
    for session in (*sessions, work.session, clean):
        assert mounts_that_name(session) == []
    assert os.listdir(sandbox.store / "sessions") == [] and sandbox.uppers_in_use() == []
    assert sandbox.do("list_workspace_sessions")["sessions"] == []
    assert "boot storage sweep done: 20 sessions of an earlier agent became drafts" in sandbox.log()
    assert sandbox.shell("cat d/b.txt")["output"] == "in a directory"


@in_places(ROOT, DOCKER)
def test_a_rejected_one_shot_is_kept_as_a_draft_with_the_losing_bytes(sandbox: Sandbox) -> None:
    running = sandbox.do("exec_command", "--yield-time-ms", "1", "echo losing > a.txt; cat > new.txt")
    sandbox.write("a.txt", "winning\n")
    sandbox.do(
        "write_command_stdin",
        "--command-session-id",
        running["command_session_id"],
        "--yield-time-ms",
        "1",
        "typed\n\x04",
    )
    ended = sandbox.do(
        "wait_command", "--command-session-id", running["command_session_id"], "--timeout-ms", "30000"
    )
    assert (ended["publish_rejected"], ended["publish_reject_class"]) == (True, "source_conflict")
    opened = sandbox.session("--draft-id", ended["draft_id"])
    assert (sandbox.read("a.txt", opened), sandbox.read("new.txt", opened)) == ("losing", "typed")
    sandbox.do("destroy_workspace_session", "--workspace-session-id", opened)
    sandbox.do("discard_draft", "--draft-id", ended["draft_id"])
    assert sandbox.read("a.txt") == "winning" and sandbox.uppers_in_use() == []
    assert sandbox.refused("file_read", "--path", "new.txt")["kind"] == "not_found"


@pytest.mark.needs("dockerd")
def test_a_gateway_killed_while_it_fills_a_volume_leaves_no_container(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path], image: Callable[[str], str]
) -> None:
    who = person("root")
    desk = Desk(who, cache_of(who))
    assert desk.do("manager", "list_sandboxes") == {"sandboxes": []}
    (desk.workspace / "large").write_bytes(os.urandom(48 << 20))
    words = ("create_sandbox", "--image", image("busybox"), "--workspace-bind-root", str(desk.workspace))
    argv = [who.python, "-m", MODULES["manager"], *words]
    label = f"label={HELPER_LABEL}={(desk.state / 'instance_id').read_text().strip()}"
    with who.popen(
        argv, env=who.environment(**desk.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as creating:
        found = ""
        while not found and creating.poll() is None:
            found = docker("ps", "-aq", "--filter", label)
        assert found, "the volume was filled before it was seen"
        kill(programs.pid_of(str(desk.state)))
        creating.communicate(timeout=60)
    made = desk.create(image("busybox"))
    assert docker("ps", "-aq", "--filter", label) == ""
    assert made.shell("ls large")["output"] == "large"
    made.destroy()
    assert desk.left_in_state() == []


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    with process:
        out, err = process.communicate(timeout=WAIT_S)
    found: dict[str, Any] = json.loads(out or err)
    return found


def test_a_second_gateway_for_the_same_state_is_refused_and_the_first_serves_on(sandbox: Sandbox) -> None:
    done = sandbox.desk.run("gateway", "serve", "--gateway-endpoint", "127.0.0.1:0", "--auth-token", "t")
    pid = programs.pid_of(str(sandbox.desk.state))
    assert (done.returncode, done.stdout) == (1, "")
    assert str(pid) in done.stderr and "eos gateway stop" in done.stderr
    assert sandbox.read("a.txt") == "base" and programs.pid_of(str(sandbox.desk.state)) == pid


def test_a_gateway_killed_while_it_exports_leaves_the_destination_as_it_was(sandbox: Sandbox) -> None:
    sandbox.shell("mkdir m; i=0; while [ $i -lt 3000 ]; do echo $i > m/$i; i=$((i+1)); done")
    out = sandbox.desk.person.home / "out"
    out.mkdir()
    (out / "old").write_text("old")
    desk = sandbox.desk
    argv = [
        desk.person.python,
        "-m",
        MODULES["manager"],
        "export_changes",
        "--sandbox-id",
        sandbox.id,
        "--dest",
        str(out),
    ]
    exporting = desk.person.popen(
        argv, env=desk.person.environment(**desk.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    stages: list[Path] = []
    while not stages and exporting.poll() is None:
        stages = [*desk.person.home.glob(".eos-export-*"), *out.glob(".eos-export-*")]
    assert stages, "the export was over before it was seen"
    kill(programs.pid_of(str(desk.state)))
    assert ended(exporting)["error"]["kind"] == "protocol_error"
    assert not (out / "m").exists() and (out / "old").read_text() == "old"
    again = desk.do("manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(out))
    assert again["files_written"] == 3000 and len(os.listdir(out / "m")) == 3000
    assert [*desk.person.home.glob(".eos-export-*"), *out.glob(".eos-export-*")] == []
    fsync.remove_tree(str(out))
