"""Output and input of commands: floods, bars, terminals, cursors."""

from __future__ import annotations

import os
from typing import Any

import pytest

from eos_mcp.mcp import render

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")


def lines(agent: Agent, result: dict[str, Any]) -> list[str]:
    """All output of a command that has ended, by pages of its own numbers."""
    found: list[str] = result["output"].split("\n")
    at = result["end_offset"]
    while at < result["total_lines"]:
        page = agent.call(
            "read_command_lines",
            command_session_id=result["command_session_id"],
            start_offset=at,
            limit=1000,
            raw=True,
        )
        assert page["start_offset"] == at
        found += page["output"].split("\n")
        at = page["end_offset"]
    return found


@pytest.mark.parametrize("tty", [True, False])
def test_of_a_flood_head_and_tail_are_shown_with_its_size_and_where_to_go_on(
    shared_agent: Agent, session: str, tty: bool
) -> None:
    result = shared_agent.run("yes | head -c 5000000; echo the end", session, tty=tty, yield_time_ms=60_000)
    assert result["status"] == "ok" and result["truncated"] is True
    assert (result["total_lines"], result["total_bytes"]) == (2_500_001, 5_000_008)
    assert result["output"].startswith("y\ny\n") and len(result["output"]) <= 262_144
    assert result["tail"]["output"].endswith("\ny\nthe end") and len(result["tail"]["output"]) <= 8192
    assert result["tail"]["start_offset"] + result["tail"]["output"].count("\n") == 2_500_000
    page = shared_agent.call(
        "read_command_lines",
        command_session_id=result["command_session_id"],
        start_offset=result["end_offset"],
        limit=1,
    )
    assert (page["output"], page["start_offset"]) == ("y", result["end_offset"])
    text = render.result("exec_command", {"cmd": "yes"}, result)
    assert len(text) < 20_000 and "of 5000008 bytes in all" in text
    assert f"read_command_lines command_session_id={result['command_session_id']} start_offset=" in text
    assert "y\ny\n" in text and "the end" in text


def test_what_a_tail_shows_when_its_rows_are_long_or_the_middle_was_dropped(
    shared_agent: Agent, session: str
) -> None:
    result = shared_agent.run("head -c 440000 /dev/zero | tr '\\0' a; echo; echo last", session, tty=False)
    assert result["tail"] == {"start_offset": result["total_lines"] - 1, "output": "last"}
    result = shared_agent.run("echo; head -c 500000 /dev/zero | tr '\\0' b", session, tty=False)
    assert (
        set(result["tail"]["output"]) == {"b"} and result["tail"]["start_offset"] == result["total_lines"] - 1
    )


def test_two_hundred_kb_are_the_same_with_and_without_a_terminal(shared_agent: Agent, session: str) -> None:
    shared_agent.run("head -c 150000 /dev/urandom | base64 > text", session)
    with_terminal = shared_agent.run("cat text", session, yield_time_ms=60_000)
    without = shared_agent.run("cat text", session, tty=False, yield_time_ms=60_000)
    assert with_terminal["total_lines"] == without["total_lines"] > 2000
    assert lines(shared_agent, with_terminal) == lines(shared_agent, without)
    assert (
        "\n".join(lines(shared_agent, without)) + "\n"
        == shared_agent.run("cat text", session, tty=False)["output"] + "\n"
    )


@pytest.mark.parametrize("tty", [True, False])
def test_a_progress_bar_is_one_line_and_the_raw_view_has_all_of_it(
    shared_agent: Agent, session: str, tty: bool
) -> None:
    cmd = 'for i in $(seq 100); do printf "\\r%s%%" $i; done; echo; echo after'
    result = shared_agent.run(cmd, session, tty=tty)
    assert (result["output"], result["total_lines"]) == ("100%\nafter", 2)
    for start, shown in ((0, "100%\nafter"), (1, "after")):
        page = shared_agent.call(
            "read_command_lines", command_session_id=result["command_session_id"], start_offset=start
        )
        assert page["output"] == shown
    raw = shared_agent.call("read_command_lines", command_session_id=result["command_session_id"], raw=True)
    whole = "".join(f"\r{n}%" for n in range(1, 101)) + "\nafter"
    assert (raw["output"], raw["total_lines"]) == (whole, 2)
    assert shared_agent.run(cmd, session, tty=tty, raw=True)["output"] == whole
    plain = shared_agent.run("echo no bar", session, tty=tty)
    assert "command_session_id" not in plain  # its output is whole


def test_a_bar_that_is_still_moving_is_shown_as_it_stands(shared_agent: Agent, session: str) -> None:
    started = shared_agent.run(
        "stty -echo; printf 'a 10%%\\ra 20%%'; read x; printf '\\ra 90%%\\n'; read y",
        session,
        yield_time_ms=0,
    )
    command = started["command_session_id"]
    seen = started
    while "20%" not in seen["output"]:
        seen = shared_agent.call("wait_command", command_session_id=command, timeout_ms=50)
    assert seen["output"] == "a 20%"
    seen = shared_agent.call("write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=0)
    while "90%" not in seen["output"]:
        seen = shared_agent.call("wait_command", command_session_id=command, timeout_ms=50)
    assert seen["output"] == "a 90%"
    assert shared_agent.call("write_command_stdin", command_session_id=command, stdin="\n")["status"] == "ok"


def test_a_command_of_200_kb_is_refused_before_it_starts_and_one_of_120_kb_runs(
    shared_agent: Agent, session: str
) -> None:
    with pytest.raises(Failed) as caught:
        shared_agent.run("echo " + "x" * 200_000, session)
    error = caught.value
    assert (error.kind, error.reason, error.details["max_bytes"]) == (
        "invalid_request",
        "command_too_long",
        131_071,
    )
    assert "file_write" in error.details["hint"]
    assert shared_agent.run("echo " + "x" * 120_000 + " | wc -c", session, tty=False)["output"] == "120001"


def test_two_megabytes_of_input_arrive_at_the_start_and_on_the_way(shared_agent: Agent, session: str) -> None:
    text = "0123456789abcde\n" * 131_072
    result = shared_agent.run("wc -c", session, tty=False, stdin=text, yield_time_ms=60_000)
    assert result["output"].strip() == str(len(text))
    script = "#!/bin/sh\n: " + "x" * 300_000 + "\necho ran a script that no command line holds\n"
    assert shared_agent.run("sh", session, tty=False, stdin=script, yield_time_ms=60_000)["output"].endswith(
        "command line holds"
    )


@pytest.mark.soak
def test_a_gibibyte_of_output_neither_fills_memory_nor_disk_nor_blocks_others(
    shared_agent: Agent, session: str
) -> None:
    def resident() -> int:
        with open(f"/proc/{shared_agent.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    result = shared_agent.run(
        "yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c 1073741824", session, tty=False, yield_time_ms=0
    )
    command = result["command_session_id"]
    most = answers = 0
    while shared_agent.call("wait_command", command_session_id=command, timeout_ms=0)["status"] == "running":
        assert shared_agent.run("echo other", session)["output"] == "other"
        most = max(most, resident() - before)
        answers += 1
    assert answers > 20 and most < 40 << 20
    folder = os.path.join(shared_agent.settings["scratch_root"], "commands", command)
    assert sum(os.stat(os.path.join(folder, name)).st_size for name in os.listdir(folder)) <= 66 << 20
    total = -(-(1 << 30) // 37)
    for start in (0, total // 2, total - 2):
        page = shared_agent.call(
            "read_command_lines", command_session_id=command, start_offset=start, limit=1
        )
        assert page["total_lines"] == total
        assert (
            "lines were dropped here" in page["output"]
            if start == total // 2
            else page["output"] == "0123456789abcdefghijklmnopqrstuvwxyz"
        )


def test_a_background_command_is_found_by_its_id_and_no_line_is_lost_or_repeated_across_cursors(
    shared_agent: Agent,
) -> None:
    started = shared_agent.run(
        "seq 75; stty -echo; echo half; read go; seq 76 150; echo end", yield_time_ms=0
    )
    command = started["command_session_id"]
    first: list[str] = started["output"].split() if started["output"] else []
    while "half" not in first:  # the shared cursor
        first += shared_agent.call("wait_command", command_session_id=command, timeout_ms=100)[
            "output"
        ].split()
    assert command in [row["command_session_id"] for row in shared_agent.call("list_commands")["commands"]]
    last = shared_agent.call(
        "write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=30_000
    )
    second = last["output"].split()
    wanted = [*map(str, range(1, 76)), "half", *map(str, range(76, 151)), "end"]
    assert [line for line in first + second if line] == wanted
    pages: list[str] = []
    at = 0
    while at < last["total_lines"]:
        page = shared_agent.call("read_command_lines", command_session_id=command, start_offset=at, limit=7)
        pages += page["output"].split("\n")
        at = page["end_offset"]
    assert [line for line in pages if line] == wanted
