"""What a session may use, how it is made to stand still and how all of it ends: real cgroups, real processes,
an agent of the local provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_agent.kernel import cgroup_fs, cgroups, oom
from eos_agent.kernel.harden import permitted_capabilities
from eos_agent.kernel.process_tag import ProcessTags
from eos_agent.kernel.session_cgroup import SessionGroup
from eos_mcp.config.model import BUILT_IN_PROFILES
from eos_mcp.providers.limits import of_profile
from tests import in_namespace
from tests.cgroup_tree import BOMB, folders_of, paths_of, wait_until_gone
from tests.processes import children_of, ended

from .agent_process import Agent, Failed

MIB = 1 << 20
WAIT_S = 30
CAP_SYS_RESOURCE = 24
SESSION = {"memory_max_bytes": 96 * MIB, "pids_max": 60}
LIMITS = {
    "workload": {"memory_max_bytes": 256 * MIB, "pids_max": 300, "nano_cpus": 1_500_000_000},
    "session": SESSION,
}
APPLIED = {
    "state": "applied",
    "nano_cpus": 1_500_000_000,
    "memory_high_bytes": None,
    **SESSION,
    "reason": None,
}

pytestmark = pytest.mark.needs("overlay", "cgroups")

DAEMONS = """
import os, signal, time
for turn in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.closerange(0, 64)
        while True:
            pass
    os.wait()
print("started", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def limited(start_agent: Callable[..., Agent]) -> Callable[..., Agent]:
    """limited(limits): an agent whose sessions are limited."""

    def start(limits: dict[str, Any] | None = None) -> Agent:
        agent = start_agent()
        agent.stop()
        agent.settings["limits"] = LIMITS if limits is None else limits
        return agent.start()

    return start


def name_of(agent: Agent) -> str:
    return cgroups.folder_name(agent.sandbox_id, agent.store)


def starts_of(agent: Agent) -> set[str]:
    """The names of its folders: there is one for each start."""
    return {
        part
        for path in folders_of(name_of(agent))
        for part in path.split("/")
        if part.startswith(name_of(agent))
    }


def processes_of(agent: Agent, session: str) -> list[str]:
    """Names of what runs in a session beside its pid 1."""
    (found,) = [
        one for one in agent.call("topology")["topology"]["workspaces"] if one["workspace_id"] == session
    ]
    return [row["name"] for row in found["processes"] if row["kind"] == "process"]


def until_empty(agent: Agent, session: str) -> list[str]:
    end = time.monotonic() + WAIT_S
    while (left := processes_of(agent, session)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def test_a_session_says_what_it_is_held_to_and_is_held_to_it(limited: Callable[..., Agent]) -> None:
    agent = limited()
    made = agent.call("create_workspace_session")
    session = made["workspace_session_id"]
    held = made["limits"]
    assert {**held, "memory_high_bytes": None} == APPLIED
    assert agent.call("list_workspace_sessions")["sessions"][0]["limits"] == held
    (workspace,) = agent.call("topology")["topology"]["workspaces"]
    assert (workspace["workload_cgroup_state"], workspace["workload_cgroup_reason"]) == ("applied", None)
    assert workspace["applied_cgroup_limits"] == {
        key: held[key] for key in ("nano_cpus", "memory_high_bytes", "memory_max_bytes", "pids_max")
    }
    assert workspace["cgroup_path"] == paths_of(workspace["holder_pid"])[""]
    counted = agent.run(
        "exec python3 -c 'import os, signal; n = 1\ntry:\n while os.fork(): n += 1\n signal.pause()\n"
        "except OSError: print(n, flush=True); signal.pause()'",
        session, tty=False, timeout_ms=20_000, yield_time_ms=0,
    )  # fmt: skip
    shown = agent.call(
        "read_command_lines", command_session_id=counted["command_session_id"], start_offset=0, limit=5
    )
    end = time.monotonic() + WAIT_S
    while not shown["output"] and time.monotonic() < end:
        shown = agent.call(
            "read_command_lines", command_session_id=counted["command_session_id"], start_offset=0, limit=5
        )
    assert SESSION["pids_max"] - 2 <= int(shown["output"]) <= SESSION["pids_max"] + cgroups.OWN_PIDS


@pytest.mark.parametrize("ordinary", [True, False])
def test_what_cannot_be_enforced_is_said(start_agent: Callable[..., Agent], ordinary: bool) -> None:
    if ordinary:
        agent = start_agent(uid=in_namespace.ORDINARY_UID)
        agent.stop()
        agent.settings["limits"] = LIMITS
        agent.start()
        limits = agent.call("create_workspace_session")["limits"]
        if limits["state"] == "applied":
            pytest.skip("cgroups are delegated to the ordinary user here")
        assert limits["state"] == "unsupported" and limits["reason"].startswith("not enforced: ")
        for controller in cgroups.CONTROLLERS:
            assert f"{controller}: Permission denied" in limits["reason"], limits
    else:
        agent = start_agent()
        assert agent.call("create_workspace_session")["limits"]["state"] == "available_unprofiled"
        agent.stop()
        agent.settings["limits"] = {"none": "by choice"}
        agent.start()
        limits = agent.call("create_workspace_session")["limits"]
        assert (limits["state"], limits["reason"]) == ("not_configured", "by choice")
    assert [limits[key] for key in ("nano_cpus", "memory_high_bytes", "memory_max_bytes", "pids_max")] == [
        None
    ] * 4
    (workspace,) = agent.call("topology")["topology"]["workspaces"]
    assert (
        workspace["applied_cgroup_limits"] is None and workspace["workload_cgroup_reason"] == limits["reason"]
    )


def test_a_timeout_leaves_no_process_of_the_tree(limited: Callable[..., Agent]) -> None:
    agent = limited()
    session = agent.session()
    done = agent.run(
        "sh -c 'sleep 3000 & (setsid sh -c \"sleep 3000 & sleep 3000\" &) ; sleep 3000'",
        session,
        timeout_ms=500,
        tty=False,
    )
    assert (done["status"], done["exit_code"]) == ("timed_out", 124)
    assert until_empty(agent, session) == []
    assert agent.run("echo on", session)["output"].strip() == "on"


def test_a_cancel_ends_daemons_that_burn_processor_time_and_so_does_the_end_of_the_agent(
    limited: Callable[..., Agent],
) -> None:
    agent = limited()
    session = agent.session()
    agent.call("file_write", path="daemons.py", content=DAEMONS, workspace_session_id=session)
    command = agent.run("exec python3 daemons.py", session, tty=False, yield_time_ms=0)
    waited(agent, command, "started")
    assert processes_of(agent, session).count("python3") == 4
    agent.call(
        "signal_command", command_session_id=command["command_session_id"], signal="USR1"
    )  # ends the leader alone
    agent.call("wait_command", command_session_id=command["command_session_id"])
    assert processes_of(agent, session).count("python3") == 3  # left behind, as reported
    again = agent.run("exec python3 daemons.py", session, tty=False, yield_time_ms=0)
    waited(agent, again, "started")
    done = cancel(agent, again)
    assert done["status"] == "cancelled" and processes_of(agent, session).count("python3") == 3
    pids = [row["pid"] for row in agent.call("topology")["topology"]["workspaces"][0]["processes"]]
    agent.kill()
    assert all(ended(pid) for pid in pids)


def waited(agent: Agent, command: dict[str, Any], text: str) -> None:
    end = time.monotonic() + WAIT_S
    args: dict[str, Any] = {
        "command_session_id": command["command_session_id"],
        "start_offset": 0,
        "limit": 50,
    }
    while text not in (said := agent.call("read_command_lines", **args)["output"]):
        assert time.monotonic() < end, said


def cancel(agent: Agent, command: dict[str, Any]) -> dict[str, Any]:
    agent.call("write_command_stdin", command_session_id=command["command_session_id"], stdin="\x03")
    return agent.call(
        "wait_command", command_session_id=command["command_session_id"], timeout_ms=WAIT_S * 1000
    )


def test_five_hundred_orphans_leave_no_zombie_and_no_process(limited: Callable[..., Agent]) -> None:
    agent = limited()
    session = agent.session()
    done = agent.run(
        "for i in $(seq 500); do sh -c '(sleep 0.05 &)'; done", session, tty=False, yield_time_ms=0
    )
    for _ in range(6):  # a slow machine, more than a connection of ours waits
        if done["status"] == "running":
            done = agent.call(
                "wait_command", command_session_id=done["command_session_id"], timeout_ms=WAIT_S * 1000
            )
    assert done["status"] == "ok", done
    assert until_empty(agent, session) == []
    for _ in range(20):
        one = agent.run("sh -c '(sleep 0.05 &)'", session, tty=False)
        assert one["status"] == "ok", one
    assert until_empty(agent, session) == []
    assert agent.run("ls -d /proc/[0-9]* | wc -l", session, tty=False)["output"].strip() in (
        "3",
        "4",
    )  # pid 1, the shell, ls, wc


def test_a_fork_bomb_and_a_memory_hog_in_one_session_stop_nobody_else(limited: Callable[..., Agent]) -> None:
    agent = limited()
    bad, good = agent.session(), agent.session()
    agent.call("file_write", path="bomb.py", content=BOMB, workspace_session_id=bad)
    hog = agent.run("while :; do tail /dev/zero; done", bad, tty=False, yield_time_ms=200)
    bomb = agent.run("exec python3 bomb.py", bad, tty=False, yield_time_ms=0)
    waited(agent, bomb, "forking")
    assert {one["workspace_session_id"] for one in agent.call("list_workspace_sessions")["sessions"]} == {
        bad,
        good,
    }
    assert agent.run("echo fine", good, tty=False)["output"].strip() == "fine"
    assert agent.run("echo alone", tty=False)["output"].strip() == "alone"  # a session of its own, made now
    assert cancel(agent, bomb)["status"] == "cancelled" and cancel(agent, hog)["status"] == "cancelled"
    assert until_empty(agent, bad) == []
    assert agent.run("echo again", bad, tty=False)["output"].strip() == "again"
    assert agent.call("destroy_workspace_session", workspace_session_id=bad)["destroyed"]
    assert agent.run("echo fine", good, tty=False)["output"].strip() == "fine"


def test_a_process_that_memory_ran_out_for_is_reported_and_nothing_else_of_the_session_dies(
    limited: Callable[..., Agent],
) -> None:
    agent = limited()
    session = agent.session()
    waiting = agent.run("sleep 1000", session, tty=False, yield_time_ms=0)
    done = agent.run("exec python3 -c 'x = bytearray(200 << 20)'", session, tty=False)
    assert (done["status"], done["exit_code"], done["oom_kills"]) == ("error", 137, 1), done
    assert str(SESSION["memory_max_bytes"]) in done["hint"]
    inner = agent.run("python3 -c 'x = bytearray(200 << 20)'; echo $?; exit 3", session, tty=False)
    assert (inner["exit_code"], inner["oom_kills"], inner["output"].split()[-1]) == (3, 1, "137")
    assert "oom_kills" not in agent.run("exit 1", session, tty=False)
    assert (
        agent.call("wait_command", command_session_id=waiting["command_session_id"], timeout_ms=0)["status"]
        == "running"
    )


@pytest.mark.parametrize("ordinary", [False, True])
def test_commands_are_ended_before_their_pid_1_that_before_the_zygote_and_the_agent_last(
    start_agent: Callable[..., Agent], ordinary: bool
) -> None:
    agent = start_agent(uid=in_namespace.ORDINARY_UID) if ordinary else start_agent()
    started = int(Path("/proc/self/oom_score_adj").read_text())
    session = agent.session()
    lowered = (
        "for i in $(seq 3000); do read score < /proc/1/oom_score_adj; [ $score -lt $self ] && break; "
        "done; echo $score"
    )
    shown = agent.run(
        f"read self < /proc/self/oom_score_adj; {lowered}; cat /proc/self/oom_score_adj", session, tty=False
    )["output"]
    init, command = map(int, shown.split())
    (zygote,) = (pid for pid in children_of(agent.pid) if pid != agent.pid)
    values = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (agent.pid, zygote)]
    lowers = not ordinary and bool(permitted_capabilities() >> CAP_SYS_RESOURCE & 1)
    assert values == [started - 200 if lowers else started, started + 100]
    assert (init, command) == (started + 400, started + 800)
    holder = agent.call("topology")["topology"]["workspaces"][0]["holder_pid"]
    assert int(Path(f"/proc/{holder}/oom_score_adj").read_text()) == init


def test_every_kind_of_process_has_a_value_of_its_own_however_little_room_there_is() -> None:
    for own in range(-1000, 990):
        found = oom.Scores.above(own)
        assert list(found) == sorted(set(found)) and found.command <= 1000 and found.agent >= -1000, (
            own,
            found,
        )
    assert oom.Scores.above(0) == (-200, 100, 400, 800)


def test_a_session_stands_still_by_its_cgroup_and_jobs_that_were_stopped_stay_so(
    limited: Callable[..., Agent],
) -> None:
    agent = limited()
    session = agent.session()
    command = agent.run(
        "sleep 1000 & kill -STOP $!; echo stopped; exec sleep 1001", session, tty=False, yield_time_ms=0
    )
    waited(agent, command, "stopped")
    for _ in range(3):
        agent.call("preview_publish", workspace_session_id=session)
    stopped = agent.run("grep -l '^State:.T' /proc/[0-9]*/status | wc -l", session, tty=False)["output"]
    assert stopped.strip() == "1"


def test_a_session_that_was_frozen_dies_at_its_publication(limited: Callable[..., Agent]) -> None:
    agent = limited()
    session = agent.session()
    left = agent.run("echo new > new.txt; setsid sleep 1000 > /dev/null 2>&1 & sleep 0.2", session, tty=False)
    assert left["left_behind"], left
    pids = [row["pid"] for row in agent.call("topology")["topology"]["workspaces"][0]["processes"]]
    assert agent.call("publish_workspace_session", workspace_session_id=session)["publish"]["no_op"] is False
    assert all(ended(pid) for pid in pids)


def test_no_process_of_a_session_can_leave_its_cgroup(limited: Callable[..., Agent]) -> None:
    agent = limited()
    session = agent.session()
    tried = agent.run(
        "for f in $(find /sys/fs/cgroup -name cgroup.procs -o -name tasks -o -name pids.max -o -name "
        "memory.limit_in_bytes 2>/dev/null); do"
        " (echo $$ > $f) 2>/dev/null && echo got $f; done; mount -t cgroup2 x /tmp && echo mounted; true",
        session,
        tty=False,
    )
    assert "got" not in tried["output"] and "mounted\n" not in tried["output"]


def test_nothing_is_left_of_a_session_an_agent_or_an_agent_that_was_killed(
    limited: Callable[..., Agent],
) -> None:
    agent = limited()
    name = name_of(agent)
    session = agent.session()
    pid = agent.call("topology")["topology"]["workspaces"][0]["holder_pid"]
    leaf = "/".join(paths_of(pid)[""].split("/")[-2:])
    assert folders_of(f"{name}.")
    agent.call("destroy_workspace_session", workspace_session_id=session)
    assert wait_until_gone(leaf) == []
    agent.session()
    assert agent.stop() == 0
    assert folders_of(name) == [] and not os.path.exists(f"{agent.settings['runtime_dir']}/cgroups.json")

    agent.start()
    agent.session()
    agent.kill()
    left = starts_of(agent)
    assert len(left) == 1
    agent.start()
    now = starts_of(agent)
    assert len(now) == 1 and not now & left  # the next agent removed what the dead one left
    agent.kill()
    done = subprocess.run(
        [sys.executable, "-m", "eos_agent", "reap", "--settings", agent.settings_path],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, folders_of(name)) == (0, []), done.stderr


def test_sessions_of_an_agent_with_real_time_priority_live_and_say_what_does_not_limit_them(
    start_agent: Callable[..., Agent],
) -> None:
    """A kernel with CONFIG_RT_GROUP_SCHED lets them into no new cgroup of version 1's cpu."""
    agent = start_agent()
    agent.stop()
    agent.settings["limits"] = LIMITS
    agent.prefix = ["chrt", "--fifo", "1"]
    agent.start()
    held = agent.call("create_workspace_session")["limits"]
    assert (held["state"], held["memory_max_bytes"], held["pids_max"]) == (
        "applied",
        SESSION["memory_max_bytes"],
        SESSION["pids_max"],
    )
    (workspace,) = agent.call("topology")["topology"]["workspaces"]
    cpu = next((name for name in paths_of(os.getpid()) if "cpu" in name.split(",")), "")
    joined = f"/{name_of(agent)}." in paths_of(workspace["holder_pid"])[cpu]
    refused = (
        f"not enforced: cpu: Invalid argument ({cgroup_fs.name_of(cpu)}) for a process of real-time priority"
    )
    assert (held["nano_cpus"], held["reason"]) == (
        (LIMITS["workload"]["nano_cpus"], None) if joined else (None, refused)
    )
    assert agent.stop() == 0
    assert folders_of(name_of(agent)) == []


def test_two_may_remove_a_cgroup_at_once(tmp_path: Path) -> None:
    """An agent that cannot go on removes its folder while the zygote removes a leaf whose pid 1 it has just
    reaped.
    """
    for _ in range(12):
        groups = cgroups.open_groups("eos-unit", str(tmp_path), None)
        leaf, unified = groups.make(), groups.unified
        assert unified is not None
        pid = in_namespace.fork()
        if pid == 0:
            groups.join(leaf)
            signal.pause()
        while not cgroup_fs.members(unified.fd, leaf):
            pass

        def other(pid: int = pid, leaf: str = leaf, fd: int = os.dup(unified.fd)) -> None:
            os.waitpid(pid, 0)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(leaf, dir_fd=fd)
            os.close(fd)

        thread = threading.Thread(target=other)
        thread.start()
        assert cgroup_fs.remove_tree(unified.parent_fd, os.path.basename(unified.path))
        thread.join(WAIT_S)
        groups.close()


def test_an_agent_that_cannot_open_its_store_leaves_no_cgroup(limited: Callable[..., Agent]) -> None:
    agent = limited()
    assert agent.stop() == 0
    Path(agent.store, "workspace.json").write_text("no store")
    agent.start(wait=False)
    assert agent.wait() == 1
    assert folders_of(name_of(agent)) == []


def test_a_killed_zygote_takes_its_cgroups_along(limited: Callable[..., Agent]) -> None:
    agent = limited()
    agent.session()
    (zygote,) = map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())
    os.kill(zygote, signal.SIGKILL)
    assert agent.wait() == 1
    assert folders_of(name_of(agent)) == []


def test_a_full_session_refuses_the_next_command_by_name(limited: Callable[..., Agent]) -> None:
    agent = limited()
    session = agent.session()
    agent.call("file_write", path="bomb.py", content=BOMB, workspace_session_id=session)
    bomb = agent.run("exec python3 bomb.py", session, tty=False, yield_time_ms=0)
    waited(agent, bomb, "forking")
    end = time.monotonic() + WAIT_S
    while True:
        try:
            agent.run("true", session, tty=False, yield_time_ms=0)
        except Failed as error:
            assert error.reason == "exec_failed" and error.details["errno"] == "EAGAIN"
            assert str(SESSION["pids_max"]) in error.details["hint"]
            break
        assert time.monotonic() < end
    cancel(agent, bomb)


def mounted_second_version() -> Path | None:
    """Where an ordinary user finds version 2."""
    found = [
        Path(path)
        for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
        if os.path.exists(f"{path}/cgroup.controllers")
    ]
    return found[0] if found else None


@pytest.mark.needs("uid")
def test_an_ordinary_user_has_what_was_delegated_to_it(start_agent: Callable[..., Agent]) -> None:
    mounted = mounted_second_version()
    if mounted is None:
        pytest.skip("cgroups of version 2 are mounted nowhere")
    agent = start_agent(uid=in_namespace.ORDINARY_UID)
    agent.stop()
    own = mounted / paths_of(os.getpid())[""].lstrip("/")
    delegated = own / f"eos-delegated-{os.path.basename(agent.folder)}"
    delegated.mkdir()
    try:
        for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(delegated / name, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)
        (delegated / "cgroup.procs").write_text(str(os.getpid()))  # what we start is in it
        try:
            agent.start()
        finally:
            (own / "cgroup.procs").write_text(str(os.getpid()))
        session = agent.session()
        (workspace,) = agent.call("topology")["topology"]["workspaces"]
        assert (
            f"/{delegated.name}/{name_of(agent)}."
            in workspace["cgroup_path"]
            == paths_of(workspace["holder_pid"])[""]
        )
        command = agent.run(
            "sleep 1000 & kill -STOP $!; echo stopped; exec sleep 1001", session, tty=False, yield_time_ms=0
        )
        waited(agent, command, "stopped")
        agent.call("preview_publish", workspace_session_id=session)
        assert (
            agent.run("grep -l '^State:.T' /proc/[0-9]*/status | wc -l", session, tty=False)["output"].strip()
            == "1"
        )
        assert agent.stop() == 0
        assert folders_of(name_of(agent)) == []
    finally:
        agent.close()
        delegated.rmdir()


@pytest.mark.needs("uid", "cgroups2")
def test_an_ordinary_user_whose_cgroup_was_delegated_with_controllers_has_limits(
    start_agent: Callable[..., Agent],
) -> None:
    """As a service with User= and Delegate=yes: nothing above it is the user's, so what is in it makes
    room.
    """
    agent = start_agent(uid=in_namespace.ORDINARY_UID)
    agent.stop()
    agent.settings["limits"] = LIMITS
    mounted = mounted_second_version()
    assert mounted is not None
    own = mounted / paths_of(os.getpid())[""].lstrip("/")
    above = next(path for path in own.parents if "memory" in (path / "cgroup.subtree_control").read_text())
    delegated = above / f"eos-delegated-{os.path.basename(agent.folder)}"
    delegated.mkdir()
    try:
        for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(delegated / name, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)
        (delegated / "cgroup.procs").write_text(str(os.getpid()))
        try:
            agent.start()
        finally:
            (own / "cgroup.procs").write_text(str(os.getpid()))
        made = agent.call("create_workspace_session")
        session, held = made["workspace_session_id"], made["limits"]
        assert {"state": "applied", **SESSION}.items() <= held.items()
        (workspace,) = agent.call("topology")["topology"]["workspaces"]
        assert f"/{delegated.name}/{name_of(agent)}." in paths_of(workspace["holder_pid"])[""]
        assert paths_of(agent.pid)[""].endswith(f"/{delegated.name}/{cgroups.CONTROL_LEAF}")
        assert agent.run("exec python3 -c 'x = bytearray(200 << 20)'", session, tty=False)["oom_kills"] == 1
        agent.kill()
        agent.start()  # from without: nothing was delegated to it here, and what the dead one left is gone
        assert agent.call("create_workspace_session")["limits"]["state"] == "unsupported"
        assert agent.stop() == 0
        assert folders_of(name_of(agent)) == []
    finally:
        agent.close()
        for path in (delegated / cgroups.CONTROL_LEAF, delegated):
            if path.exists():
                path.rmdir()


@pytest.mark.needs("cgroups2")
def test_a_command_that_needs_nearly_all_that_its_session_may_have_is_not_put_to_sleep(
    limited: Callable[..., Agent],
) -> None:
    """`memory.high` would: ADR 0031."""
    profile = BUILT_IN_PROFILES["standard"]
    agent = limited(of_profile(profile, profile.nano_cpus))
    session = agent.session()
    fits = agent.run(
        f"exec python3 -c 'x = bytearray({profile.memory_high_bytes - 32 * MIB}); print(1)'",
        session,
        tty=False,
    )
    assert fits["output"].strip() == "1"
    assert (
        agent.run(f"exec python3 -c 'x = bytearray({profile.memory_high_bytes})'", session, tty=False)[
            "oom_kills"
        ]
        == 1
    )


def test_what_is_frozen_moves_only_when_all_have_thawed_it_and_a_command_is_killed_by_its_mark(
    tmp_path: Path,
) -> None:
    groups = cgroups.open_groups("eos-unit", str(tmp_path), None)
    leaf = groups.make()
    pids: list[int] = []
    readers: list[int] = []
    limits = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    marks = [ProcessTags().set_next(), 0]
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, limits)
    for mark in marks:
        readable, writable = os.pipe()
        pid = in_namespace.fork()
        if pid == 0:
            groups.join(leaf)
            resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, limits[1]))
            while True:
                os.write(writable, b"x")
        os.close(writable)
        assert os.read(readable, 1) == b"x"
        pids.append(pid)
        readers.append(readable)

    def stands_still() -> bool:
        assert groups.unified is not None
        return "frozen 1" in cgroup_fs.read(groups.unified.fd, f"{leaf}/cgroup.events")

    async def scenario() -> None:
        group = SessionGroup(groups, leaf)
        await group.freeze()
        await group.freeze()
        group.thaw()
        assert group.frozen and stands_still()
        for pid in pids:
            assert os.waitpid(pid, os.WNOHANG | os.WUNTRACED) == (0, 0)  # no signal stopped it
        assert await group.kill_command(marks[0], 0) == 1
        assert os.waitpid(pids[0], 0)[1] == signal.SIGKILL  # it dies while the other stands still
        assert group.frozen and stands_still()
        group.thaw()
        assert not group.frozen and os.read(readers[1], 1) == b"x"

    try:
        asyncio.run(scenario())
    finally:
        groups.close()  # kills what is left
        assert os.waitpid(pids[1], 0)[1] == signal.SIGKILL
        for reader in readers:
            os.close(reader)
    assert folders_of(cgroups.folder_name("eos-unit", str(tmp_path))) == []
