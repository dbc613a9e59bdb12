"""What the sessions of a sandbox may use, as a person gets it: containers with the standard profile and with
little memory, and this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.wire.protocol import is_error
from tests.cgroup_tree import BOMB, folders_of, paths_of, wait_until_gone
from tests.processes import kill

from .cli_user import Container, Desk, Desks, Sandbox, docker, living, watch
from .direct import Direct

MIB = 1 << 20
WAIT_S = 60
ENGINE_ID = 64

pytestmark = pytest.mark.needs("overlay", "cgroups")

IN_DOCKER = pytest.param("debian", marks=pytest.mark.needs("dockerd"))


def config(desk_of: Desks, text: str) -> Desk:
    """A root person's desk whose gateway has this configuration."""
    desk = desk_of("root")
    path = desk.give("limits.yml", text)
    desk.env["SANDBOX_GATEWAY_CONFIG_YAML"] = str(path)
    return desk


def started(sandbox: Sandbox, session: str, cmd: str, text: str = "") -> str:
    """The id of a command that runs and has said `text`."""
    found = sandbox.do(
        "exec_command", "--yield-time-ms", "1", "--tty=false", "--workspace-session-id", session, cmd
    )
    end = time.monotonic() + WAIT_S
    while (
        text
        not in sandbox.do("read_command_lines", "--command-session-id", found["command_session_id"])["output"]
    ):
        assert time.monotonic() < end
    return str(found["command_session_id"])


def cancelled(sandbox: Sandbox, command: str) -> dict[str, Any]:
    sandbox.do("write_command_stdin", "--command-session-id", command, "\x03")
    return sandbox.do("wait_command", "--command-session-id", command, "--timeout-ms", str(WAIT_S * 1000))


def alone(sandbox: Sandbox, session: str) -> bool:
    """Wait until nothing but pid 1 is in a session."""
    end = time.monotonic() + WAIT_S
    while len(sandbox.members(session)) > 1 and time.monotonic() < end:
        time.sleep(0.02)
    return len(sandbox.members(session)) == 1


def limits_of(sandbox: Sandbox) -> dict[str, Any]:
    made = sandbox.do("create_workspace_session")
    return {**made["limits"], "session": made["workspace_session_id"]}


@pytest.mark.parametrize("image_name", [IN_DOCKER, "host"])
def test_a_fork_bomb_and_a_memory_hog_leave_the_control_plane_and_other_sessions_working(
    desk: Desks, image: Callable[[str], str], image_name: str
) -> None:
    who = config(desk, "manager:\n  local_daemon:\n    resource_profile: standard\n")
    sandbox = who.create("host" if image_name == "host" else image(image_name))
    held = limits_of(sandbox)
    bad, good = held["session"], sandbox.session()
    assert (held["state"], held["memory_max_bytes"], held["pids_max"], held["reason"]) == (
        "applied",
        384 * MIB,
        224,
        None,
    )
    assert held["nano_cpus"] == 950_000_000
    sandbox.write("bomb.py", BOMB, bad)
    hog = started(sandbox, bad, "while :; do tail /dev/zero; done")
    bomb = started(sandbox, bad, "exec python3 bomb.py", "full")
    rows = sandbox.do("list_workspace_sessions")["sessions"]
    assert {row["workspace_session_id"] for row in rows} == {bad, good}
    assert sandbox.shell("echo fine", good)["output"].strip() == "fine"
    assert sandbox.shell("echo new")["output"].strip() == "new"
    assert cancelled(sandbox, bomb)["status"] == "cancelled"
    assert cancelled(sandbox, hog)["status"] == "cancelled"
    assert sandbox.shell("echo again", bad)["output"].strip() == "again"
    assert sandbox.do("destroy_workspace_session", "--workspace-session-id", bad)["destroyed"]
    assert sandbox.shell("echo fine", good)["output"].strip() == "fine"
    sandbox.destroy()
    assert wait_until_gone(sandbox.id) == []


@pytest.mark.needs("dockerd")
def test_a_sandbox_of_256_mib_works_and_memory_runs_out_for_commands_alone(
    desk: Desks, image: Callable[[str], str]
) -> None:
    who = config(desk, f"manager:\n  docker:\n    memory_bytes: {256 * MIB}\n")
    sandbox = who.create(image("debian"))
    assert isinstance(sandbox, Container)
    held = limits_of(sandbox)
    session, agent = held["session"], sandbox.agent()
    assert held["memory_max_bytes"] == 192 * MIB
    waiting = started(sandbox, session, "sleep 1000")
    done = sandbox.shell("exec python3 -c 'x = bytearray(240 << 20)'", session, "--tty=false")
    assert (done["exit_code"], done["oom_kills"]) == (137, 1) and "memory" in done["hint"], done
    fits = sandbox.shell(
        "exec python3 -c 'x = bytearray(120 << 20); print(len(x) >> 20)'", session, "--tty=false"
    )
    assert fits["output"].strip() == "120"
    others = [sandbox.session() for _ in range(4)]
    hogs = [
        started(
            sandbox,
            other,
            "exec python3 -c 'x = bytearray(150 << 20); import time; print(1, flush=True); time.sleep(1000)'",
        )
        for other in others
    ]
    ends = [sandbox.do("wait_command", "--command-session-id", hog, "--timeout-ms", "1500") for hog in hogs]
    assert any(
        end["status"] == "error" and end["exit_code"] == 137 for end in ends
    )  # together they are more than the sandbox has
    assert (
        sandbox.do("wait_command", "--command-session-id", waiting, "--timeout-ms", "0")["status"]
        == "running"
    )
    assert sandbox.agent() == agent and sandbox.read("a.txt") == "base"
    assert docker("inspect", "--format", "{{.State.OOMKilled}} {{.RestartCount}}", sandbox.id).endswith(" 0")
    sandbox.destroy()
    assert wait_until_gone(sandbox.id) == []


@pytest.mark.needs("dockerd")
def test_what_a_command_of_a_container_started_ends_with_it_and_orphans_are_reaped(
    shared_desk: Desks, image: Callable[[str], str]
) -> None:
    sandbox = shared_desk("root").create(image("debian"))
    session = sandbox.session()
    tree = "sleep 3000 & (setsid sh -c 'trap : TERM; sleep 3000 & while :; do :; done' &) ; sleep 3000"
    timed = sandbox.shell(tree, session, "--tty=false", "--timeout-ms", "500")
    assert (timed["status"], timed["exit_code"]) == ("timed_out", 124)
    assert alone(sandbox, session)
    command = started(sandbox, session, f"echo on; {tree}", "on")
    burning = watch(sandbox.members(session)[1:])
    assert len(burning) >= 4 and cancelled(sandbox, command)["status"] == "cancelled"
    assert living(burning) == []
    done = sandbox.shell("for i in $(seq 500); do sh -c '(sleep 0.05 &)'; done", session, "--tty=false")
    assert done["status"] == "ok"
    assert alone(sandbox, session)  # no zombie either: each is a process of the tree until it is reaped
    sandbox.destroy()


@pytest.mark.needs("dockerd")
def test_no_cgroup_of_a_container_is_left_when_its_agent_was_killed(
    shared_desk: Desks, image: Callable[[str], str]
) -> None:
    sandbox = shared_desk("root").create(image("debian"))
    session = sandbox.session()
    container = docker("inspect", "--format", "{{.Id}}", sandbox.id)
    assert len(container) == ENGINE_ID
    assert any(sandbox.id in path for path in folders_of(container))
    first = {
        path for pid in sandbox.members(session) for path in paths_of(pid).values() if sandbox.id in path
    }
    kill(sandbox.agent())
    end = time.monotonic() + WAIT_S
    while docker("inspect", "--format", "{{.RestartCount}} {{.State.Running}}", sandbox.id) != "1 true":
        assert time.monotonic() < end
    again = sandbox.session()
    now = {path for pid in sandbox.members(again) for path in paths_of(pid).values() if sandbox.id in path}
    assert now and not now & first
    sandbox.destroy()
    assert wait_until_gone(container) == [] and folders_of(sandbox.id) == []


def test_no_cgroup_of_this_machine_is_left_when_a_sandbox_with_a_dead_agent_is_destroyed(
    shared_desk: Desks,
) -> None:
    sandbox = shared_desk("root").create("host")
    limits = limits_of(sandbox)
    assert limits["state"] == "applied" and limits["pids_max"] == 4096 and limits["nano_cpus"] is None
    assert folders_of(sandbox.id)
    kill(sandbox.agent())
    assert folders_of(sandbox.id)
    sandbox.destroy()
    assert wait_until_gone(sandbox.id) == []


@pytest.mark.needs("dockerd")
def test_a_profile_without_a_workload_cgroup_says_so(desk: Desks, image: Callable[[str], str]) -> None:
    profile = (
        "{nano_cpus: 1000000000, memory_high_bytes: 402653184, memory_max_bytes: 536870912, pids_max: "
        "256, separate_workload_cgroup: false}"
    )
    who = config(
        desk,
        f"manager:\n  docker:\n    resource_profile: plain\n    resource_profiles:\n      plain: {profile}\n",
    )
    sandbox = who.create(image("busybox"))
    held = limits_of(sandbox)
    assert (
        held["state"] == "not_configured"
        and "separate_workload_cgroup" in held["reason"]
        and held["pids_max"] is None
    )
    assert docker("inspect", "--format", "{{.HostConfig.PidsLimit}}", sandbox.id) == "256"
    sandbox.destroy()


def crowd(sandbox: Container, most: int) -> tuple[list[str], dict[str, Any]]:
    """Sessions until one is refused or there are `most`; what the refusal said. Then a command in each: the
    agent lives, and nobody dies.
    """
    direct, agent = Direct(sandbox), sandbox.agent()
    made: list[str] = []
    refusal: dict[str, Any] = {}
    while len(made) < most and not refusal:
        reply = direct.ask("create_workspace_session")
        if is_error(reply):
            refusal = reply["error"]
        else:
            made.append(str(reply["workspace_session_id"]))
    for session in made:
        done = direct.do(
            "exec_command", cmd="echo $((6 * 7))", workspace_session_id=session, yield_time_ms=60_000
        )
        assert (done["status"], done["output"].strip(), "oom_kills" in done) == ("ok", "42", False), done
    assert {row["workspace_session_id"] for row in direct.do("list_workspace_sessions")["sessions"]} == set(
        made
    )
    assert sandbox.agent() == agent
    assert docker("inspect", "--format", "{{.RestartCount}}", sandbox.id) == "0"
    return made, refusal


@pytest.mark.needs("dockerd")
def test_a_container_takes_as_many_sessions_as_it_has_memory_for_and_a_command_runs_in_each(
    desk: Desks, image: Callable[[str], str]
) -> None:
    who = config(desk, f"manager:\n  docker:\n    memory_bytes: {64 * MIB}\n")
    sandbox = who.create(image("debian"))
    assert isinstance(sandbox, Container)
    made, refusal = crowd(sandbox, 200)
    details = refusal["details"]
    assert (refusal["kind"], details["reason"], details["limit"], details["sessions"]) == (
        "server_busy",
        "sandbox_full",
        "memory",
        len(made),
    )
    assert len(made) >= 5 and details["free_bytes"] < details["needed_bytes"] < details["value"] <= 64 * MIB
    direct = Direct(sandbox)
    for session in made[: len(made) // 2]:
        direct.do("destroy_workspace_session", workspace_session_id=session)
    assert direct.do("exec_command", cmd="echo again", yield_time_ms=60_000)["output"].strip() == "again"
    sandbox.destroy()


@pytest.mark.soak
@pytest.mark.needs("dockerd")
def test_two_hundred_sessions_and_a_command_in_each_fit_the_standard_profile(
    desk: Desks, image: Callable[[str], str]
) -> None:
    sandbox = desk("root").create(image("debian"))
    assert isinstance(sandbox, Container)
    made, refusal = crowd(sandbox, 200)
    assert (len(made), refusal) == (200, {})
    sandbox.destroy()


@pytest.mark.parametrize("image_name", [IN_DOCKER, "host"])
def test_who_allocates_without_bound_in_every_session_never_ends_the_agent_or_what_another_one_runs(
    desk: Desks, image: Callable[[str], str], image_name: str
) -> None:
    who = config(desk, "manager:\n  local_daemon:\n    resource_profile: standard\n")
    sandbox = who.create("host" if image_name == "host" else image(image_name))
    agent, direct = sandbox.agent(), Direct(sandbox)
    quiet = sandbox.session()
    waiting = started(sandbox, quiet, "sleep 1000")
    bad = [sandbox.session() for _ in range(3)]
    grab = "exec python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'"
    first = sandbox.shell(grab, bad[0], "--tty=false")
    assert (first["exit_code"], first["oom_kills"]) == (137, 1) and "memory" in first["hint"], first
    hogs = [started(sandbox, session, "while :; do tail /dev/zero; done") for session in bad]
    for _ in range(5):
        done = direct.do("exec_command", cmd="echo fine", workspace_session_id=quiet, yield_time_ms=60_000)
        assert done["output"].strip() == "fine", done
    for hog in hogs:
        assert cancelled(sandbox, hog)["status"] == "cancelled"
    assert {row["workspace_session_id"] for row in direct.do("list_workspace_sessions")["sessions"]} == {
        quiet,
        *bad,
    }
    assert (
        sandbox.do("wait_command", "--command-session-id", waiting, "--timeout-ms", "0")["status"]
        == "running"
    )
    assert sandbox.agent() == agent
    sandbox.destroy()


def test_a_hundred_megabytes_of_output_are_read_by_their_last_rows(sandbox: Sandbox) -> None:
    row = "0123456789abcdef" * 4
    ran = sandbox.shell(f"yes {row} | head -n 1500000; echo the end")
    assert (ran["status"], ran["total_lines"]) == ("ok", 1500001)
    tail = sandbox.do(
        "read_command_lines", "--command-session-id", ran["command_session_id"], "--start-offset", "1499999"
    )
    assert tail["output"] == f"{row}\nthe end"
