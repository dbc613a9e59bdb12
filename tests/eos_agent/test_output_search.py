"""Output read from its end, after a wait, and only the lines that match; an expression without an end."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")


def started(agent: Agent, session: str, cmd: str, **args: Any) -> str:
    return str(agent.run(cmd, session, yield_time_ms=0, **args)["command_session_id"])


def read(agent: Agent, command: str, **args: Any) -> dict[str, Any]:
    return agent.call("read_command_lines", command_session_id=command, **args)


def test_the_last_lines_come_by_a_negative_offset_or_as_tail(shared_agent: Agent, session: str) -> None:
    command = started(shared_agent, session, "seq 1000")
    found = read(shared_agent, command, start_offset=-3, wait_ms=60_000)
    assert found["status"] == "ok" and found["output"] == "998\n999\n1000" and found["start_offset"] == 997
    assert read(shared_agent, command, tail=2)["output"] == "999\n1000"
    whole = read(shared_agent, command, start_offset=-5000)
    assert whole["start_offset"] == 0 and whole["output"].startswith("1\n2\n")


def test_a_wait_ends_with_its_time_or_with_the_command(shared_agent: Agent, session: str) -> None:
    command = started(shared_agent, session, "read line; echo got $line", tty=True)
    assert read(shared_agent, command, wait_ms=50)["status"] == "running"
    shared_agent.call("write_command_stdin", command_session_id=command, stdin="x\n", yield_time_ms=0)
    assert read(shared_agent, command, wait_ms=60_000)["status"] == "ok"


def test_only_lines_that_match_come_with_their_numbers_and_those_around_them(
    shared_agent: Agent, session: str
) -> None:
    command = started(shared_agent, session, "seq 100000")
    found = read(shared_agent, command, pattern="^99(5|7)00$", context=1, wait_ms=60_000)
    assert found["output"].split("\n") == [
        "99498-99499",
        "99499:99500",
        "99500-99501",
        "--",
        "99698-99699",
        "99699:99700",
        "99700-99701",
    ]
    assert (found["match_count"], found["end_offset"], found["total_lines"]) == (2, 100_000, 100_000)
    assert "truncated" not in found


def test_a_line_matches_by_the_text_that_it_shows(shared_agent: Agent, session: str) -> None:
    """Without colours, and without what a carriage return has overwritten."""
    command = started(shared_agent, session, "printf '10%%\\r\\033[31merror\\033[0m: x\\n'")
    found = read(shared_agent, command, wait_ms=60_000, pattern="^error: x$")
    assert found["match_count"] == 1, found
    assert read(shared_agent, command, pattern="10%")["match_count"] == 0


def test_pages_of_matches_are_all_of_them_once(shared_agent: Agent, session: str) -> None:
    command = started(shared_agent, session, "seq 3000")
    seen: list[int] = []
    at = 0
    for _ in range(20):
        found = read(shared_agent, command, pattern="7$", start_offset=at, wait_ms=60_000)
        seen += [int(line.split(":")[1]) for line in found["output"].split("\n") if line]
        at = found["end_offset"]
        if at == found["total_lines"]:
            break
        assert found["stopped"] == "matches" and found["truncated"]
    assert seen == [n for n in range(1, 3001) if n % 10 == 7]


def test_matches_next_to_each_other_are_shown_once_each(shared_agent: Agent, session: str) -> None:
    command = started(shared_agent, session, "seq 6")
    found = read(shared_agent, command, pattern="[34]", context=1, wait_ms=60_000)
    assert found["output"].split("\n") == ["1-2", "2:3", "3:4", "4-5"]


@pytest.mark.parametrize("pattern", ["(", "x" * 1001, "(?P<a>x)(?P<a>y)"])
def test_what_is_no_expression_is_refused(shared_agent: Agent, session: str, pattern: str) -> None:
    command = started(shared_agent, session, "echo x")
    assert read(shared_agent, command, wait_ms=60_000)["status"] == "ok"
    with pytest.raises(Failed) as refused:
        read(shared_agent, command, pattern=pattern)
    assert refused.value.reason == "invalid_pattern"


def test_an_expression_without_an_end_is_stopped_and_the_agent_answers_meanwhile(
    shared_agent: Agent, session: str
) -> None:
    command = started(shared_agent, session, "printf 'a%.0s' $(seq 1900); echo b")
    read(shared_agent, command, wait_ms=60_000)
    with pytest.raises(Failed) as refused:
        read(shared_agent, command, pattern="(a+)+$")
    assert refused.value.reason == "search_too_slow"


def test_an_expression_that_is_slow_to_compile_costs_the_agent_nothing(
    shared_agent: Agent, session: str
) -> None:
    command = started(shared_agent, session, "echo x")
    read(shared_agent, command, wait_ms=60_000)
    before = processor_s(shared_agent.pid)
    with contextlib.suppress(Failed):  # search_too_slow on a slow processor
        read(shared_agent, command, pattern="(?i)" + "[a-\uffff]" * 140)
    assert processor_s(shared_agent.pid) - before < 0.5, "it needs some two seconds"


def processor_s(pid: int) -> float:
    """Processor time of a process without its children, in seconds."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_line_in_which_a_screen_begins_is_named_while_it_is_on(shared_agent: Agent, session: str) -> None:
    cmd = r"echo first; printf '\033[?10'; printf '49hscreen'; read a; printf '\033[?1049l'; read b"
    command = started(shared_agent, session, cmd, tty=True)
    found: dict[str, Any] = {}
    for _ in range(600):
        found = read(shared_agent, command, wait_ms=100)
        if "screen" in found["output"]:
            break
    assert found["screen_offset"] == 0 or found["screen_offset"] == 1
    shared_agent.call("write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=0)
    for _ in range(600):
        found = read(shared_agent, command, wait_ms=100)
        if "1049l" in found["output"]:
            break
    assert "screen_offset" not in found
    shared_agent.call("write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=0)
    assert read(shared_agent, command, wait_ms=60_000)["status"] == "ok"


def test_sessions_are_listed_with_what_runs_in_them(shared_agent: Agent, session: str) -> None:
    command = started(shared_agent, session, "read line", tty=True)
    (row,) = [
        one
        for one in shared_agent.call("list_workspace_sessions")["sessions"]
        if one["workspace_session_id"] == session
    ]
    assert [(c["command_session_id"], c["command"]) for c in row["commands"]] == [(command, "read line")]
