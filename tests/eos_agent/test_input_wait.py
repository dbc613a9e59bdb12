"""Programs that wait for input on their terminal are recognised by what the kernel says, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .agent_process import Agent, agent_of

pytestmark = pytest.mark.needs("overlay")

WAITING: dict[str, tuple[str, str, str]] = {
    "read of the shell": ("read -p 'Name: ' name; echo hello $name", "Name:", ""),
    "a pipeline's member": ("printf 'first\\n'; cat | sort", "first", ""),
    "python's input": ("python3 -c 'input(\"Go on? \")'", "Go on?", ""),
    "python's prompt, which selects": ("TERM=dumb python3 -q -i", ">>>", "each key"),
    "an interactive shell": ("PS1='> ' sh -i", ">", ""),
    "a password": ("printf 'Password: '; stty -echo; read secret", "Password:", "as for a password"),
    "/dev/tty": ("exec 3</dev/tty; read x <&3", "", ""),
    "a poll without limit": (
        "python3 -c 'import select; p = select.poll(); p.register(0, 1); p.poll()'",
        "",
        "",
    ),
    "an event loop": (
        "python3 -c 'import os, select; e = select.epoll(); e.register(0, 1); e.register(os.pipe()[0], 1); "
        "e.poll(30)'",
        "",
        "",
    ),
    "a thread": (
        "python3 -c 'import sys, threading; threading.Thread(target=sys.stdin.readline).start()'",
        "",
        "",
    ),
}
OTHERS = {
    "a sleep after a prompt": "printf 'Password: '; exec sleep 600",
    "a wait for a child": "printf 'Name: '; sleep 600; true",
    "a read of a pipe": "printf 'Name: '; sleep 600 | cat",
    "a computation": "printf 'Name: '; while :; do :; done",
    "a socket beside the terminal": (
        'python3 -c \'import select, socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); '
        'print("Name: ", end="", flush=True); select.select([0, s], [], [])\''
    ),
    "an event loop with a socket": (
        'python3 -c \'import select, socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); '
        "e = select.epoll(); e.register(0, 1); e.register(s, 1); "
        'print("Name: ", end="", flush=True); e.poll()\''
    ),
    "a poll with a limit": (
        'python3 -c \'import select\nprint("Name: ", end="", flush=True)\n'
        "while True: select.select([0], [], [], 600)'"
    ),
}


def begin(agent: Agent, session: str, cmd: str, **args: Any) -> str:
    return str(agent.run(cmd, session, yield_time_ms=0, **args)["command_session_id"])


def until_it_waits(agent: Agent, command: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(600):
        found = agent.call("read_command_lines", command_session_id=command, wait_ms=100)
        assert found["status"] == "running", found
        if found.get("waiting_for_input"):
            return found
    raise AssertionError(f"it does not wait: {found}")


@pytest.mark.parametrize(("cmd", "line", "hint"), WAITING.values(), ids=WAITING.keys())
def test_a_program_that_waits_for_the_terminal_is_told_with_its_last_line(
    shared_agent: Agent, session: str, cmd: str, line: str, hint: str
) -> None:
    command = begin(shared_agent, session, cmd)
    found = until_it_waits(shared_agent, command)
    assert found["last_line"].strip() == line or line == ">", found
    assert "write_command_stdin" in found["hint"] and hint in found["hint"]


@pytest.mark.parametrize("cmd", OTHERS.values(), ids=OTHERS.keys())
def test_what_looks_like_a_prompt_is_no_wait_for_input(shared_agent: Agent, session: str, cmd: str) -> None:
    command = begin(shared_agent, session, cmd)
    while not (found := shared_agent.call("read_command_lines", command_session_id=command))["output"]:
        pass
    found = shared_agent.call("read_command_lines", command_session_id=command, wait_ms=300)
    assert found["status"] == "running" and "waiting_for_input" not in found, found


def test_the_answer_of_each_operation_tells_it_and_an_answer_ends_it(
    shared_agent: Agent, session: str
) -> None:
    cmd = "read -p 'One: ' a; read -p 'Two: ' b; echo $a-$b; exec sleep 600"
    first: dict[str, Any] = {}
    for _ in range(20):  # on a busy machine it may not have begun to read
        first = shared_agent.run(cmd, session, yield_time_ms=250)
        if first.get("waiting_for_input"):
            break
    assert (first["waiting_for_input"], first["last_line"]) == (True, "One: ")
    command = str(first["command_session_id"])
    one: dict[str, Any] = {"command_session_id": command}
    typed = shared_agent.call("write_command_stdin", stdin="1\n", yield_time_ms=0, **one)
    assert "waiting_for_input" not in typed, "it may be about to read what was just typed"
    assert until_it_waits(shared_agent, command)["last_line"] == "Two: "
    again = shared_agent.call("wait_command", timeout_ms=1, **one)
    assert again["waiting_for_input"] is True
    shared_agent.call("write_command_stdin", stdin="2\n", yield_time_ms=0, **one)
    while "1-2" not in (done := shared_agent.call("read_command_lines", **one))["output"]:
        pass
    assert "waiting_for_input" not in shared_agent.call("wait_command", timeout_ms=100, **one), done


@pytest.mark.needs("userns", "uid")
def test_also_for_an_ordinary_users_sandbox_and_for_another_uid_of_a_command(
    start_agent: Callable[..., Agent], shared_agent: Agent, session: str
) -> None:
    agent = agent_of(start_agent, True)
    until_it_waits(agent, begin(agent, agent.session(), "read line"))
    until_it_waits(shared_agent, begin(shared_agent, session, "read line", user="65534"))
