"""What one session may have of what all share: terminals, commands, open files, output on disk. Another
session goes on meanwhile.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from .agent_process import Agent, Starter, agent_of, refused

MIB = 1 << 20


PEOPLE = pytest.mark.parametrize(
    "ordinary", [pytest.param(True, marks=pytest.mark.needs("userns", "uid")), False]
)
TTY_HOG = """
import os, signal
held = []
try:
    while True:
        held.append(os.openpty())
except OSError as error:
    print(len(held), error.errno, flush=True)
signal.pause()
"""

INOTIFY_HOG = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
held = 0
for child in range(4):
    readable, writable = os.pipe()
    if os.fork() == 0:
        mine = 0
        while libc.inotify_init1(0) >= 0:
            mine += 1
        os.write(writable, b"%d %d" % (mine, ctypes.get_errno()))
        signal.pause()
    found = os.read(readable, 64).split()
    held += int(found[0])
print(held, int(found[1]), flush=True)
signal.pause()
"""
INOTIFY_USER = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for turn in range({turns}):
    fd = libc.inotify_init1(0)
    assert fd >= 0, (turn, ctypes.get_errno())
    if {closes}:
        os.close(fd)
print("fine")
"""

pytestmark = pytest.mark.needs("overlay")


def said(agent: Agent, command: dict[str, Any]) -> str:
    """The first line of a command that goes on."""
    for _ in range(3000):
        found = agent.call(
            "read_command_lines", command_session_id=command["command_session_id"], start_offset=0, limit=5
        )
        if found["total_lines"]:
            return str(found["output"])
        agent.call("wait_command", command_session_id=command["command_session_id"], timeout_ms=20)
    pytest.fail("it said nothing")


@PEOPLE
def test_who_takes_all_terminals_of_a_session_leaves_others_theirs_and_gets_the_limit(
    start_agent: Starter, ordinary: bool
) -> None:
    agent = agent_of(start_agent, ordinary, workspace={"max_terminals": 9})
    bad, good = agent.session(), agent.session()
    agent.call("file_write", path="hog.py", content=TTY_HOG, workspace_session_id=bad)
    hog = agent.run("exec python3 hog.py", bad, tty=False, yield_time_ms=0)
    assert said(agent, hog).split() == ["9", "28"]  # ENOSPC
    full = refused(lambda: agent.run("tty", bad))
    assert (full.kind, full.reason) == ("server_busy", "no_terminal_left")
    assert (full.details["limit"], full.details["value"]) == (
        "runtime.workspace.max_terminals",
        9,
    ) and "9" in full.message
    assert agent.run("echo fine", bad, tty=False)["output"].strip() == "fine"  # the hint
    assert agent.run("tty", good, tty=True)["output"].strip().startswith("/dev/pts/")
    agent.call("write_command_stdin", command_session_id=hog["command_session_id"], stdin="\x03")
    assert agent.run("tty", bad, tty=True)["status"] == "ok"


@PEOPLE
def test_who_takes_all_inotify_instances_of_a_session_leaves_others_theirs(
    start_agent: Starter, ordinary: bool
) -> None:
    agent = agent_of(start_agent, ordinary, workspace={"max_inotify_instances": 9})
    bad, good = agent.session(), agent.session()
    agent.call("file_write", path="hog.py", content=INOTIFY_HOG, workspace_session_id=bad)
    hog = agent.run("exec python3 hog.py", bad, tty=False, yield_time_ms=0)
    assert said(agent, hog).split() == ["9", "24"]  # EMFILE, whichever process asks
    for session in (good, agent.session()):
        agent.call(
            "file_write",
            path="user.py",
            content=INOTIFY_USER.format(turns=9, closes=False),
            workspace_session_id=session,
        )
        assert agent.run("python3 user.py", session, tty=False)["output"].strip() == "fine"
    agent.call("write_command_stdin", command_session_id=hog["command_session_id"], stdin="\x03")
    agent.call(
        "file_write",
        path="user.py",
        content=INOTIFY_USER.format(turns=5, closes=False),
        workspace_session_id=bad,
    )
    again = "for i in $(seq 100); do python3 user.py 2> /dev/null && break; sleep 0.1; done"
    assert agent.run(again, bad, tty=False)["output"].strip() == "fine"


@PEOPLE
def test_inotify_instances_that_were_closed_count_no_more_and_a_childs_copy_counts_once(
    start_agent: Starter, ordinary: bool
) -> None:
    agent = agent_of(start_agent, ordinary, workspace={"max_inotify_instances": 4})
    session = agent.session()
    turns = (
        "import ctypes, os, time\nlibc = ctypes.CDLL(None)\nfor turn in range(12):\n    "
        "os.close(libc.inotify_init1(0))\n    time.sleep(0.1)\n"
    )
    copies = (
        "fds = [libc.inotify_init1(0) for _ in range(3)]\nfor _ in range(5):\n    if os.fork() == 0:\n "
        "       time.sleep(1000)\n"
    )
    more = "time.sleep(0.5)\nprint(libc.inotify_init1(0) >= 0, libc.inotify_init1(0) >= 0)\n"
    agent.call("file_write", path="a.py", content=turns + copies + more, workspace_session_id=session)
    command = agent.run("exec python3 a.py", session, tty=False, yield_time_ms=0)
    assert said(agent, command).split() == ["True", "False"]


def test_who_asks_for_inotify_instances_all_the_time_stops_nobody(start_agent: Starter) -> None:
    agent = agent_of(start_agent, False, workspace={"max_inotify_instances": 4})
    bad, good = agent.session(), agent.session()
    spin = (
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.inotify_init1(0)\nprint('on', flush=True)\nwhile "
        "True: libc.inotify_init1(0)"
    )
    agent.call("file_write", path="spin.py", content=spin, workspace_session_id=bad)
    spins = [agent.run("exec python3 spin.py", bad, tty=False, yield_time_ms=0) for _ in range(3)]
    for command in spins:
        assert said(agent, command).strip() == "on"
    for _ in range(20):
        assert agent.run("echo fine", good)["output"].strip() == "fine"
    assert agent.run("echo fine", bad)["output"].strip() == "fine"
    agent.call("preview_publish", workspace_session_id=bad)  # which has it stand still
    assert agent.call("destroy_workspace_session", workspace_session_id=good)["destroyed"]


@PEOPLE
def test_one_session_cannot_have_all_commands_of_the_sandbox(start_agent: Starter, ordinary: bool) -> None:
    agent = agent_of(start_agent, ordinary, command={"max_active": 4})
    bad, good = agent.session(), agent.session()
    running = [
        agent.run("sleep 1000", bad, tty=False, yield_time_ms=0)["command_session_id"] for _ in range(3)
    ]
    full = refused(lambda: agent.run("true", bad))
    assert (full.kind, full.reason) == ("server_busy", "max_active_commands_of_session")
    assert (full.details["limit"], full.details["value"]) == ("runtime.command.max_active_per_session", 3)
    assert full.details["active_command_session_ids"] == running
    assert agent.run("echo fine", good)["output"].strip() == "fine"
    assert agent.run("echo fine")["output"].strip() == "fine"
    agent.call("signal_command", command_session_id=running[0], signal="KILL")  # the hint
    agent.call("wait_command", command_session_id=running[0], timeout_ms=60_000)
    assert agent.run("echo fine", bad)["output"].strip() == "fine"


def test_the_number_of_commands_of_a_session_is_configured_apart_from_that_of_all(
    start_agent: Starter,
) -> None:
    agent = agent_of(start_agent, False, command={"max_active": 4, "max_active_per_session": 1})
    session = agent.session()
    agent.run("sleep 1000", session, tty=False, yield_time_ms=0)
    assert refused(lambda: agent.run("true", session)).details["value"] == 1
    others = [agent.session() for _ in range(3)]
    for other in others:
        agent.run("sleep 1000", other, tty=False, yield_time_ms=0)
    full = refused(lambda: agent.run("true"))
    assert full.reason == "max_active_commands"
    assert (full.details["limit"], full.details["value"]) == ("runtime.command.max_active", 4)


@PEOPLE
def test_a_process_has_a_limit_of_open_files_that_it_cannot_raise(
    start_agent: Starter, ordinary: bool
) -> None:
    agent = agent_of(start_agent, ordinary, workspace={"max_open_files": 300})
    session = agent.session()
    raised = (
        "import resource as r\ntry:\n r.setrlimit(r.RLIMIT_NOFILE, (301, 301))\nexcept ValueError: "
        "print('refused')"
    )
    done = agent.run(f'ulimit -Hn; ulimit -Sn; python3 -c "{raised}"', session, tty=False)
    assert done["output"].split() == ["300", "300", "refused"]


def test_a_flood_of_output_deletes_the_floods_own_and_not_that_of_another_session(
    start_agent: Starter,
) -> None:
    agent = agent_of(start_agent, False, command={"max_kept_output_bytes": 12 * MIB})
    quiet, loud = agent.session(), agent.session()

    def ended(cmd: str, session: str) -> str:
        command = str(agent.run(cmd, session, tty=False, yield_time_ms=0)["command_session_id"])
        assert agent.call("wait_command", command_session_id=command, timeout_ms=60_000)["status"] == "ok"
        return command

    kept = ended("echo first; yes | head -c 100000", quiet)
    floods = [ended(f"echo {n}; yes | head -c 5M", loud) for n in range(6)]
    assert agent.call("read_command_lines", command_session_id=kept, limit=1)["output"] == "first"
    assert [row["command_session_id"] for row in agent.call("list_commands")["commands"]] == [
        kept,
        *floods[-2:],
    ]
    assert (
        refused(lambda: agent.call("read_command_lines", command_session_id=floods[0])).reason
        == "command_not_found"
    )
    assert agent.call("read_command_lines", command_session_id=floods[-1], limit=1)["output"] == "5"
    folder = os.path.join(agent.settings["scratch_root"], "commands")
    assert sorted(os.listdir(folder)) == sorted([kept, *floods[-2:]])
