"""Descriptors that lie in unix sockets are counted by user: one session that leaves many there keeps no other
one from running commands.
"""

from __future__ import annotations

import array
import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Generator

import pytest

from eos_agent.kernel import fd_limits
from tests import in_namespace
from tests.native import both as both

from .agent_process import Agent, Starter, agent_of, refused

pytestmark = pytest.mark.needs("overlay")
PEOPLE = pytest.mark.parametrize(
    "ordinary", [pytest.param(True, marks=pytest.mark.needs("userns", "uid")), False]
)
MOST = 300
HOARD = """
import array, os, signal, socket
held, left = [], 0
try:
    while True:
        one, other = socket.socketpair()
        one.setblocking(False)
        held += [one, other]
        while True:
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()] * 50))])
            left += 50
except BlockingIOError:
    pass
except OSError as error:
    print(error.errno, left, flush=True)
signal.pause()
"""  # noqa: E501


def hoard(agent: Agent, session: str) -> list[int]:
    agent.call("file_write", path="hoard.py", content=HOARD, workspace_session_id=session)
    done = agent.run("exec python3 hoard.py", session, tty=False, yield_time_ms=0)
    while not (
        lines := agent.call("read_command_lines", command_session_id=done["command_session_id"])[
            "output"
        ].split()
    ):
        pass
    return [int(word) for word in lines]


@PEOPLE
def test_what_a_session_leaves_in_sockets_keeps_no_other_from_commands_or_from_being_made(
    start_agent: Starter, ordinary: bool
) -> None:
    agent = agent_of(start_agent, ordinary, workspace={"max_open_files": MOST})
    other, bad = agent.session(), agent.session()
    errno, left = hoard(agent, bad)
    assert errno == 109 and MOST <= left <= MOST + 253  # ETOOMANYREFS
    assert agent.run("echo here", other, tty=False)["output"] == "here"
    assert agent.run("echo here", other, tty=True)["output"].strip() == "here"
    assert agent.run("echo new", agent.session(), tty=False)["output"] == "new"
    assert agent.run("echo one-shot")["output"].strip() == "one-shot"


@contextlib.contextmanager
def in_flight(count: int, uid: int | None) -> Generator[None]:
    """So many descriptors of another program of that user."""
    ready, go_on = os.pipe(), os.pipe()
    pid = in_namespace.fork()
    if pid == 0:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if uid is not None:
            in_namespace.become(uid)
        held: list[socket.socket] = []
        for _ in range(0, count, 250):
            one, other = socket.socketpair()
            held += [one, other]
            one.sendmsg(
                [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()] * 250))]
            )
        os.write(ready[1], b"x")
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        assert select.select([ready[0]], [], [], 60)[0] and os.read(ready[0], 1) == b"x"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in (*ready, *go_on):
            os.close(fd)


@PEOPLE
def test_where_others_left_too_many_a_command_is_refused_and_the_session_goes_on(
    start_agent: Starter, ordinary: bool
) -> None:
    agent = agent_of(start_agent, ordinary, workspace={"max_open_files": MOST})
    session = agent.session()
    assert agent.run("echo before", session, tty=False)["output"] == "before"
    with in_flight(MOST + fd_limits.MORE + 500, in_namespace.ORDINARY_UID if ordinary else None):
        error = refused(lambda: agent.run("echo meanwhile; sleep 1000", session, tty=False, yield_time_ms=0))
        assert (error.reason, error.details["retryable"]) == ("too_many_in_flight", True)
    assert agent.run("echo after", session, tty=False)["output"] == "after"
    assert agent.call("list_commands")["commands"] == [] or all(
        row["status"] != "running" for row in agent.call("list_commands")["commands"]
    )
