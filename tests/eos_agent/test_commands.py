"""Commands of a real agent: output, waiting, input, signals, limits, and how each of them ends."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import math
import os
import re
import select
import signal
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.handles.environment import EDITORS, with_git_config
from tests.eos_agent.internal_calls import cancel
from tests.in_namespace import ORDINARY_UID
from tests.native import both as both
from tests.processes import children_of, mountinfo

from .agent_process import Agent, Failed, refused

pytestmark = pytest.mark.needs("overlay")


class In:
    """Calls that name one command or session."""

    def __init__(self, agent: Agent, session: str) -> None:
        self.agent, self.session = agent, session

    def run(self, cmd: str, **args: Any) -> dict[str, Any]:
        return self.agent.run(cmd, self.session, **args)

    def start(self, cmd: str, **args: Any) -> str:
        return str(self.run(cmd, yield_time_ms=0, **args)["command_session_id"])

    def of(self, op: str, command: str, **args: Any) -> dict[str, Any]:
        return self.agent.call(op, command_session_id=command, **args)

    def wait(self, command: str) -> dict[str, Any]:
        return self.of("wait_command", command, timeout_ms=60_000)


@pytest.fixture
def here(shared_agent: Agent, session: str) -> In:
    return In(shared_agent, session)


def test_the_result_of_a_finished_command_has_the_contracts_fields(here: In) -> None:
    result = here.run("echo ready; echo again >&2")
    assert set(result) == {
        "status",
        "exit_code",
        "wall_time_seconds",
        "command_total_time_seconds",
        "start_offset",
        "end_offset",
        "total_lines",
        "original_token_count",
        "output",
        "workspace_session_id",
    }
    assert (result["status"], result["exit_code"], result["output"]) == ("ok", 0, "ready\nagain")
    assert (
        result["start_offset"],
        result["end_offset"],
        result["total_lines"],
        result["original_token_count"],
    ) == (0, 2, 2, 3)
    nothing = here.run("true")
    assert (nothing["output"], nothing["total_lines"], nothing["original_token_count"]) == ("", 0, 0)


@pytest.mark.parametrize(
    ("cmd", "status", "code"),
    [
        ("exit 0", "ok", 0),
        ("exit 3", "error", 3),
        ("kill -9 $$", "error", 137),
        ("kill -TERM $$", "error", 143),
        ("no-such-program", "error", 127),
        ("exit 300", "error", 44),
    ],
)
def test_the_exit_code_is_the_one_that_the_kernel_gave(here: In, cmd: str, status: str, code: int) -> None:
    for tty in (True, False):
        result = here.run(cmd, tty=tty)
        assert (result["status"], result["exit_code"]) == (status, code)


def test_a_heredoc_with_quotes_and_dollars_arrives_as_written(here: In) -> None:
    here.run("cat > f <<'E'\n$HOME `id` \"q\" 'q'\n\\n\nlast\nE\necho ok")
    assert here.agent.read("f", workspace_session_id=here.session) == "$HOME `id` \"q\" 'q'\n\\n\nlast"
    assert here.run("echo ok")["output"] == "ok"


def test_a_terminal_is_the_default_and_pipes_are_there_on_request(here: In) -> None:
    assert (
        here.run("test -t 0 && test -t 1 && test -t 2 && echo tty; echo $TERM")["output"]
        == "tty\nxterm-256color"
    )
    assert here.run("test -t 0 || test -t 1 || echo pipes; cat", tty=False)["output"] == "pipes"
    split = here.run("echo out; echo err >&2; printf more >&2", tty=False, split_output=True)
    assert (split["output"], split["stderr"]) == ("out", "err\nmore")
    merged = here.run("echo out; echo err >&2", tty=False)
    assert merged["output"] == "out\nerr" and "stderr" not in merged
    assert refused(lambda: here.run("true", split_output=True)).kind == "invalid_request"


def test_output_is_the_same_with_and_without_a_terminal(here: In) -> None:
    cmd = "i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); done"
    for tty in (True, False):
        first = here.run(cmd, tty=tty, timeout_ms=60_000)
        lines = first["output"].split("\n")
        assert first["status"] == "ok" and first["total_lines"] == 20_000
        at = first["end_offset"]
        while at < 20_000:
            page = here.of("read_command_lines", first["command_session_id"], start_offset=at, limit=1000)
            assert page["start_offset"] == at
            lines += page["output"].split("\n")
            at = page["end_offset"]
        assert lines == [f"line-{n}" for n in range(20_000)]


def test_a_long_output_is_cut_at_256_kib_and_keeps_its_id(here: In) -> None:
    result = here.run("yes 0123456789abcdef | head -n 100000", tty=False)
    assert result["status"] == "ok" and result["truncated"] is True
    assert len(result["output"]) <= 262144 and result["end_offset"] < result["total_lines"] == 100_000
    last = here.of("read_command_lines", result["command_session_id"], start_offset=99_999)
    assert (last["output"], last["end_offset"]) == ("0123456789abcdef", 100_000)


def test_a_running_command_answers_with_new_lines_each_time(here: In) -> None:
    command = here.start("echo one; read a; echo two; read b; echo three", tty=True)
    while here.of("read_command_lines", command)["total_lines"] < 1:
        pass
    first = here.of("wait_command", command, timeout_ms=0)
    assert (first["status"], first["exit_code"], first["output"]) == ("running", None, "one")
    second = here.of("write_command_stdin", command, stdin="x\n", yield_time_ms=0)
    rest = here.of("write_command_stdin", command, stdin="y\n", yield_time_ms=60_000)
    text = [
        line
        for line in (second["output"] + "\n" + rest["output"]).split("\n")
        if line in ("one", "two", "three")
    ]
    assert text == ["two", "three"]
    again = here.of("read_command_lines", command, start_offset=0)
    assert (
        again["output"].split("\n")[0] == "one"
        and again["status"] == "ok"
        and again["command_session_id"] == command
    )


def test_a_prompt_without_a_newline_is_shown_and_shown_whole_once_answered(here: In) -> None:
    command = here.start("printf 'name? '; read n; echo hello $n")
    while here.of("read_command_lines", command)["total_lines"] < 1:
        pass
    assert here.of("wait_command", command, timeout_ms=0)["output"] == "name? "
    assert here.of("wait_command", command, timeout_ms=0)["output"] == ""
    end = here.of("write_command_stdin", command, stdin="bob\n", yield_time_ms=60_000)
    assert end["output"] == "name? bob\nhello bob"


def test_yield_zero_answers_at_once_and_a_yield_counts_from_the_spawn(here: In) -> None:
    result = here.run("echo up; exec sleep 1000", yield_time_ms=500)
    assert (result["status"], result["output"]) == ("running", "up")
    assert here.run("sleep 1000", yield_time_ms=0)["status"] == "running"


def test_a_timeout_kills_the_whole_tree(here: In) -> None:
    result = here.run("sleep 1000 & setsid sleep 1001 & sleep 1000", timeout_ms=300)
    assert (result["status"], result["exit_code"]) == ("timed_out", 124)
    assert (
        here.run("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done | grep -c '^sleep 100'")[
            "output"
        ]
        == "0"
    )


def test_control_c_alone_cancels_and_any_other_text_that_holds_one_is_input(here: In) -> None:
    for text in ("\x03", "\x03\n"):
        command = here.start("sleep 1000")
        result = here.of("write_command_stdin", command, stdin=text)
        assert (result["status"], result["exit_code"]) == ("cancelled", 130)
    command = here.start("stty raw -echo; echo go; head -c 3 | od -An -tx1")
    while "go" not in here.of("read_command_lines", command)["output"]:
        pass
    assert here.of("write_command_stdin", command, stdin="a\x03b", yield_time_ms=60_000)["output"].split()[
        -3:
    ] == ["61", "03", "62"]


def test_a_cancel_is_answered_with_its_end_also_when_the_session_takes_long_to_kill(
    shared_agent: Agent,
) -> None:
    command = shared_agent.run("sleep 1000", yield_time_ms=0)
    (zygote,) = children_of(shared_agent.pid)
    (init,) = [pid for pid in children_of(zygote) if command["workspace_session_id"] in mountinfo(pid)]
    os.kill(init, signal.SIGSTOP)
    connection = shared_agent.connect()
    connection.socket.sendall(
        shared_agent.line(
            "write_command_stdin", command_session_id=command["command_session_id"], stdin="\x03"
        )
    )
    early = select.select([connection.socket], [], [], 1.5)[
        0
    ]  # longer than the second that the contract names
    os.kill(init, signal.SIGCONT)
    result = json.loads(connection.file.readline())
    connection.close()
    assert not early and (result["status"], result["exit_code"]) == ("cancelled", 130), result
    assert (
        refused(lambda: shared_agent.run("true", command["workspace_session_id"])).reason
        == "session_not_found"
    )


def test_close_stdin_ends_input_with_and_without_a_terminal(here: In) -> None:
    command = here.start("cat")
    here.of("write_command_stdin", command, stdin="text\n", yield_time_ms=0)
    result = here.of("close_stdin", command)
    assert here.wait(command)["status"] == "ok"
    assert "text" in here.of("read_command_lines", command)["output"]
    assert result["command_session_id"] == command
    assert here.run("cat", tty=False)["status"] == "ok"
    closed = here.start("sleep 1000", tty=False)
    assert refused(lambda: here.of("close_stdin", closed)).reason == "stdin_closed"


def test_two_megabytes_of_input_arrive_whole(here: In) -> None:
    assert here.run("wc -c; cat | wc -c", tty=False, stdin="x" * 2_000_000)["output"].split() == [
        "2000000",
        "0",
    ]
    assert here.run("echo does not read", tty=False, stdin="x" * 2_000_000)["status"] == "ok"


def test_input_that_nobody_reads_meets_a_deadline(shared_agent: Agent, here: In) -> None:
    command = here.start("stty raw -echo; echo ready; sleep 1000")
    while here.of("read_command_lines", command)["total_lines"] < 1:
        pass
    error = refused(lambda: here.of("write_command_stdin", command, stdin="x" * 1_000_000))
    assert error.kind == "operation_failed" and "stdin_backpressure" in error.message
    assert 0 < error.details["written_bytes"] < 1_000_000


def test_signals_reach_the_group(here: In) -> None:
    # sleep ends by itself: a signal that comes just before a builtin waits (read, wait) runs its trap only
    # after it
    command = here.start("trap 'echo got usr1' USR1; echo ready; while :; do sleep 0.01; done")
    while "ready" not in here.of("read_command_lines", command)["output"]:
        pass
    assert here.of("signal_command", command, signal="USR1")["status"] == "running"
    while "got usr1" not in here.of("read_command_lines", command)["output"]:
        pass
    assert here.of("signal_command", command, signal="KILL")["exit_code"] == 137
    assert refused(lambda: here.of("signal_command", command)).reason == "command_finished"
    assert refused(lambda: here.of("signal_command", command, signal="NOPE")).kind == "invalid_request"


def test_a_background_job_keeps_a_command_running_and_is_named(here: In) -> None:
    command = here.start("sleep 1000 & exit 7")
    found: dict[str, Any] = {}
    while [process["name"] for process in found.get("waiting_on", [])] != [
        "sleep"
    ]:  # at first it is a shell about to become one
        found = here.of("wait_command", command, timeout_ms=0)
        assert found["status"] == "running"
    assert (found["exit_code"], found["leader_exit_code"]) == (None, 7)
    here.of("signal_command", command, signal="KILL")
    assert here.wait(command)["exit_code"] == 7


def test_a_process_that_left_the_group_delays_nothing_and_is_listed(here: In) -> None:
    result = here.run("setsid sleep 1000 </dev/null & sleep 0.1; echo done", yield_time_ms=60_000)
    assert (result["status"], result["output"]) == ("ok", "done")
    assert [process["name"] for process in result["left_behind"]] == ["sleep"]


def test_the_working_directory_and_the_environment_are_arguments(here: In) -> None:
    assert here.run("pwd")["output"] == here.agent.workspace
    assert here.run("pwd", cwd="src")["output"] == here.agent.workspace + "/src"
    assert here.run("pwd", cwd="/")["output"] == "/"
    error = refused(lambda: here.run("pwd", cwd="missing/dir"))
    assert error.reason == "cwd_not_found" and "missing/dir" in error.message
    found = here.run(
        "echo $A:$B:$PAGER:$GIT_PAGER:$GIT_OPTIONAL_LOCKS:$EOS_WORKSPACE",
        env=["A=1", "B=x=y", "GIT_PAGER=less"],
    )
    assert found["output"] == f"1:x=y:cat:less:0:{here.agent.workspace}"
    assert refused(lambda: here.run("true", env=["novalue"])).details["argument"] == "env[0]"
    names = set(re.findall(r"(?m)^(\w+)=", here.run("env")["output"]))
    assert names <= {
        *(
            "PATH",
            "HOME",
            "USER",
            "LANG",
            "LC_ALL",
            "TERM",
            "TZ",
            "PAGER",
            "GIT_PAGER",
            "GIT_OPTIONAL_LOCKS",
            "GIT_TERMINAL_PROMPT",
            "EOS_WORKSPACE",
            "EMAIL",
            *EDITORS,
        ),
        *("GIT_CONFIG_COUNT", "GIT_CONFIG_SYSTEM"),
        *(f"GIT_CONFIG_{part}_{n}" for part in ("KEY", "VALUE") for n in range(11)),
        *("PWD", "OLDPWD", "SHLVL", "_"),
    }


def test_git_keeps_to_the_foreground_and_what_a_caller_configures_counts(here: In) -> None:
    ask = "; ".join(
        f"git config {key}"
        for key in ("gc.autoDetach", "maintenance.autoDetach", "safe.directory", "core.checkStat")
    )
    assert here.run(ask)["output"].split() == ["false", "false", "*", "minimal"]
    more = ("core.trustctime", "core.untrackedCache", "core.fsmonitor", "gc.auto", "maintenance.auto")
    shown = here.run(
        "; ".join(f"git config --type {'int' if key == 'gc.auto' else 'bool'} {key}" for key in more)
    )
    assert shown["output"].split() == ["false", "false", "false", "0", "false"]
    assert here.run("git config commit.gpgSign")["output"] == "false", "the user's keys are hidden here"
    own = ("user.name", "me"), ("gc.autodetach", "true")
    given = [
        f"GIT_CONFIG_{part}_{n}={text}"
        for n, pair in enumerate(own)
        for part, text in zip(("KEY", "VALUE"), pair, strict=True)
    ]
    ran = here.run(f"git config user.name; {ask}", env=["GIT_CONFIG_COUNT=2", *given])
    assert ran["output"].split() == ["me", "true", "false", "*", "minimal"]
    ran = here.run("git config commit.gpgSign; git config core.fsmonitor", env=["GIT_CONFIG_COUNT=2", *given])
    assert ran["output"].split() == ["false"] and ran["exit_code"] == 0, "all of ours follow"
    assert here.run("git config user.name || echo $?", env=["GIT_CONFIG_COUNT=none"])["output"].endswith(
        "128"
    )
    image = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "image"}
    found = with_git_config(image)
    assert image.items() <= {**found, "GIT_CONFIG_COUNT": "1"}.items() and found["GIT_CONFIG_COUNT"] == "10"
    assert with_git_config(found) == found


def test_empty_and_overlong_commands_are_refused_before_anything_starts(here: In) -> None:
    assert refused(lambda: here.run("")).kind == "invalid_request"
    assert refused(lambda: here.run("  \n")).kind == "operation_failed"
    error = refused(lambda: here.run("true " + "x" * 200_000))
    assert error.reason == "command_too_long" and error.details["max_bytes"] == 131071
    assert here.run("true " + "x" * 100_000)["status"] == "ok"


def test_an_empty_id_is_refused_as_such(shared_agent: Agent) -> None:
    error = refused(lambda: shared_agent.call("write_command_stdin", command_session_id="", stdin="x"))
    assert (error.kind, error.reason) == ("invalid_request", "empty_id")


def test_an_ended_command_takes_no_input(here: In) -> None:
    command = here.start("true")
    here.wait(command)
    error = refused(lambda: here.of("write_command_stdin", command, stdin="x"))
    assert error.kind == "operation_failed" and "already completed" in error.message


def test_admission_has_a_limit_that_the_refusal_names(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(runtime={"command": {"max_active": 2}})
    session = agent.session()
    running = [agent.run("read x", session, yield_time_ms=0)["command_session_id"] for _ in range(2)]
    error = refused(lambda: agent.run("true", session))
    assert (
        error.kind == "server_busy"
        and "admission refused" in error.message
        and error.details["max_active_commands"] == 2
    )
    agent.call("write_command_stdin", command_session_id=running[0], stdin="\x03")
    assert agent.run("true", session)["status"] == "ok"


def test_the_newest_ended_commands_are_kept_and_no_id_comes_twice_in_a_store(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(runtime={"namespace_execution": {"max_terminal_entries": 3}})
    session = agent.session()
    ids: list[str] = []
    for n in range(5):
        ids.append(
            agent.run(f"echo {n}; yes | head -c 100000", session, tty=False, yield_time_ms=0)[
                "command_session_id"
            ]
        )
        agent.call("wait_command", command_session_id=ids[-1], timeout_ms=60_000)
    assert [c["command_session_id"] for c in agent.call("list_commands")["commands"]] == ids[2:]
    assert refused(lambda: agent.call("read_command_lines", command_session_id=ids[0])).kind == "not_found"
    assert agent.call("read_command_lines", command_session_id=ids[2], limit=1)["output"] == "2"
    assert sorted(os.listdir(os.path.join(agent.settings["scratch_root"], "commands"))) == sorted(ids[2:])
    agent.kill()
    agent.start()
    assert os.listdir(os.path.join(agent.settings["scratch_root"], "commands")) == []
    fresh = agent.run("sleep 1000", yield_time_ms=0)["command_session_id"]
    assert int(fresh.rpartition("_")[2]) > int(ids[-1].rpartition("_")[2])


def test_commands_are_listed_in_pages(shared_agent: Agent, here: In) -> None:
    ids = [here.start(f"true {n}") for n in range(5)]
    for command in ids:
        here.wait(command)
    page = shared_agent.call("list_commands", workspace_session_id=here.session, limit=2)
    assert ([c["command_session_id"] for c in page["commands"]], page["next"]) == (ids[:2], ids[1])
    rest = shared_agent.call("list_commands", workspace_session_id=here.session, after=page["next"])
    assert ([c["command_session_id"] for c in rest["commands"]], rest["next"]) == (ids[2:], None)
    assert rest["commands"][0]["command"] == "true 2" and rest["commands"][0]["status"] == "ok"


def test_waiting_holds_nothing_that_others_need(shared_agent: Agent, here: In) -> None:
    command = here.start("read x")
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        waits = [pool.submit(here.of, "wait_command", command, timeout_ms=60_000) for _ in range(20)]
        assert shared_agent.read("README.md") == "hello"
        assert here.run("echo quick")["output"] == "quick"
        here.of("write_command_stdin", command, stdin="x\n", yield_time_ms=0)
        assert {wait.result()["status"] for wait in waits} == {"ok"}


def test_a_flood_of_output_neither_fills_memory_nor_blocks_others(here: In) -> None:
    def resident() -> int:
        with open(f"/proc/{here.agent.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096

    here.run("true")
    before = resident()
    command = here.start("yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c 150000000", tty=False)
    answers = 0
    while here.of("wait_command", command, timeout_ms=0)["status"] == "running":
        assert here.run("echo other")["output"] == "other"
        answers += 1
    assert answers > 3
    assert resident() - before < 20 << 20
    found = here.of("read_command_lines", command, start_offset=0, limit=1)
    assert found["output"] == "0123456789abcdefghijklmnopqrstuvwxyz"
    assert found["total_lines"] == -(-150_000_000 // 37)
    middle = here.of("read_command_lines", command, start_offset=found["total_lines"] // 2, limit=1)
    assert (
        "lines were dropped here" in middle["output"]
        and middle["dropped"]["end_offset"] == middle["end_offset"]
    )
    last = here.of("read_command_lines", command, start_offset=found["total_lines"] - 2, limit=1)
    assert last["output"] == "0123456789abcdefghijklmnopqrstuvwxyz"
    folder = os.path.join(here.agent.settings["scratch_root"], "commands", command)
    assert sum(os.stat(os.path.join(folder, name)).st_size for name in os.listdir(folder)) <= 66 << 20


def test_five_hundred_orphans_leave_no_zombie(here: In) -> None:
    result = here.run(
        "i=0; while [ $i -lt 500 ]; do sh -c '(sleep 0.01 &)'; i=$((i+1)); done; wait", yield_time_ms=100_000
    )
    assert result["status"] == "ok"
    assert here.run("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l", tty=False)["output"] == "0"


def test_file_operations_run_inside_the_mount_of_a_session(shared_agent: Agent, here: In) -> None:
    at: dict[str, Any] = {"workspace_session_id": here.session}
    assert (
        shared_agent.call("file_write", path="run.sh", content="#!/bin/sh\necho new\n", **at)["type"]
        == "update"
    )
    assert here.run("./run.sh")["output"] == "new"
    shared_agent.call("file_edit", path="crlf.txt", edits=[{"old_string": "b", "new_string": "B"}], **at)
    assert here.run("od -An -c crlf.txt | tr -d ' \\n'")["output"] == "357273277a\\r\\nB\\nc\\r\\n"
    here.run("mkdir -p deep/er; echo x > deep/er/f; ln -s deep link")
    assert shared_agent.call("file_list", path="deep", **at)["entries"] == [
        {"name": "er", "kind": "directory", "size": None}
    ]
    assert refused(lambda: shared_agent.read("link/er/f", **at)).details["target"] == "deep"
    assert refused(lambda: shared_agent.read("none", **at)).kind == "not_found"
    assert shared_agent.call("file_write", path="a/b/c", content="", **at) == {
        "type": "create",
        "path": "a/b/c",
        "bytes_written": 0,
    }
    assert refused(lambda: shared_agent.read("a/b/c")).kind == "not_found"
    here.run("rm -r src; mkdir src")
    assert shared_agent.call("file_list", path="src", **at)["entries"] == []


def test_the_settings_bound_one_answer_and_the_whole_transcript(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(runtime={"command": {"max_output_bytes": 1000, "max_transcript_bytes": 12 << 20}})
    session = agent.session()
    result = agent.run("i=0; while [ $i -lt 500 ]; do echo line-$i; i=$((i+1)); done", session)
    assert result["truncated"] is True and 900 < len(result["output"]) <= 1000
    long = agent.run("yes 0123456789abcdef | head -c 20000000", session, tty=False, yield_time_ms=60_000)
    assert long["status"] == "ok"
    page = agent.call(
        "read_command_lines",
        command_session_id=long["command_session_id"],
        start_offset=8 * (1 << 20) // 17 + 2,
        limit=1,
    )
    assert page["dropped"]["bytes"] >= 20_000_000 - (13 << 20)


def test_with_completion_leader_a_command_ends_with_its_own_process(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(runtime={"command": {"completion": "leader"}})
    session = agent.session()
    result = agent.run("echo begun; sleep 3600 & exit 3", session, yield_time_ms=60_000)
    assert (result["status"], result["exit_code"], result["output"]) == ("error", 3, "begun")
    assert (
        agent.run("grep -l sleep /proc/[0-9]*/comm", session)["status"] == "ok"
    )  # it goes on until its session ends
    agent.call("destroy_workspace_session", workspace_session_id=session)
    shot = agent.run("echo x > shot; sleep 3600 & exit 0", yield_time_ms=60_000)
    assert (shot["status"], shot.get("publish", {}).get("published")) == ("ok", True)
    assert agent.read("shot") == "x"
    assert agent.call("list_workspace_sessions")["sessions"] == []


# Cancelling a request


def in_background(agent: Agent, request_id: str, **args: Any) -> concurrent.futures.Future[dict[str, Any]]:
    """An exec_command with that request id, waited for in a thread."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        return pool.submit(agent.call, "exec_command", request_id, yield_time_ms=60_000, **args)
    finally:
        pool.shutdown(wait=False)


def running_command(
    agent: Agent, request_id: str, answer: concurrent.futures.Future[dict[str, Any]]
) -> dict[str, Any]:
    """The row of the command of a request that `answer` waits for, once it runs. A request that failed is no
    reason to wait for it.
    """
    while not answer.done():
        for row in agent.call("list_commands", limit=1000)["commands"]:
            if row["request_id"] == request_id and row["status"] == "running":
                return dict(row)
    raise AssertionError(answer.result())


def test_a_cancelled_request_ends_with_its_process_tree_and_its_work_is_a_draft(shared_agent: Agent) -> None:
    answer = in_background(
        shared_agent,
        "to-cancel",
        cmd="echo half > work; setsid sleep 3600 & sleep 3600 & echo up > ready; wait",
    )
    row = running_command(shared_agent, "to-cancel", answer)
    session, head = row["workspace_session_id"], shared_agent.version()
    while "ready" not in [
        entry["name"] for entry in shared_agent.call("file_list", workspace_session_id=session)["entries"]
    ]:
        assert not answer.done(), answer.result()
    cancelled = cancel(shared_agent, "to-cancel")
    assert cancelled == {
        "request_id": "to-cancel",
        "cancelled": True,
        "command_session_id": row["command_session_id"],
    }
    result = answer.result(60)
    assert (result["status"], result["exit_code"]) == ("cancelled", 130)
    assert result["publish"] == {"published": False, "no_op": False}
    assert (
        result["publish_reject_class"] == "interrupted"
        and "cancelled" in result["publish_rejection"]["message"]
    )
    (draft,) = [d for d in shared_agent.call("list_drafts")["drafts"] if d["draft_id"] == result["draft_id"]]
    assert (draft["reason"], draft["request_id"]) == ("interrupted", "to-cancel")
    assert shared_agent.version() == head
    opened = shared_agent.session(draft_id=draft["draft_id"])
    assert shared_agent.read("work", workspace_session_id=opened) == "half"
    shared_agent.call("destroy_workspace_session", workspace_session_id=opened)
    shared_agent.call("discard_draft", draft_id=draft["draft_id"])
    assert refused(lambda: shared_agent.read("x", workspace_session_id=session)).reason == "session_not_found"
    assert cancel(shared_agent, "to-cancel")["cancelled"] is False  # it has ended


def test_a_cancelled_request_in_an_explicit_session_leaves_the_session_as_it_is(
    shared_agent: Agent, here: In
) -> None:
    answer = in_background(
        shared_agent, "in-session", cmd="echo kept > work; sleep 3600", workspace_session_id=here.session
    )
    running_command(shared_agent, "in-session", answer)
    while "work" not in [
        entry["name"]
        for entry in shared_agent.call("file_list", workspace_session_id=here.session)["entries"]
    ]:
        assert not answer.done(), answer.result()
    assert cancel(shared_agent, "in-session")["cancelled"] is True
    assert answer.result(60)["status"] == "cancelled"
    assert (
        here.run("cat work; grep -l sleep /proc/[0-9]*/comm 2>/dev/null || echo none")["output"]
        == "kept\nnone"
    )


def test_only_requests_that_started_a_command_can_be_cancelled(shared_agent: Agent) -> None:
    gone = refused(lambda: cancel(shared_agent, "never-sent"))
    assert (gone.kind, gone.reason) == ("not_found", "request_not_found")
    for wrong in (7, "", None, ["x"]):
        assert refused(lambda wrong=wrong: cancel(shared_agent, wrong)).kind == "invalid_request"  # type: ignore[misc]
    ended = shared_agent.call("exec_command", "has-ended", cmd="true", yield_time_ms=60_000)
    found = cancel(shared_agent, "has-ended")
    assert (found["cancelled"], ended["status"]) == (False, "ok")


def test_a_request_that_was_cancelled_before_it_arrived_runs_nothing(shared_agent: Agent) -> None:
    assert cancel(shared_agent, "late", in_flight=True) == {"request_id": "late", "cancelled": True}
    head = shared_agent.version()
    refusal = refused(lambda: shared_agent.call("exec_command", "late", cmd="echo no > no"))
    assert (refusal.kind, refusal.reason) == ("operation_failed", "cancelled")
    assert shared_agent.version() == head
    assert shared_agent.call("list_workspace_sessions")["sessions"] == []


def test_a_request_that_is_cancelled_while_its_command_starts_publishes_nothing(shared_agent: Agent) -> None:
    head = shared_agent.version()
    for number in range(20):  # each finds the start at another point
        name = f"starting-{number}"
        connection = shared_agent.connect()
        connection.socket.sendall(
            shared_agent.line("exec_command", name, cmd=f"echo x > {name}; sleep 3600", yield_time_ms=60_000)
        )
        assert cancel(shared_agent, name, in_flight=True)["cancelled"] is True
        answer = json.loads(connection.file.readline())
        connection.close()
        assert answer.get("status") == "cancelled" or answer["error"]["details"]["reason"] == "cancelled"
        if "draft_id" in answer:
            shared_agent.call("discard_draft", draft_id=answer["draft_id"])
    assert shared_agent.version() == head


# Another user


@pytest.mark.needs("root")
def test_a_command_runs_as_a_user_of_the_session_by_name_or_number(here: In) -> None:
    by_name = here.run("id -un; id -u; id -G; echo $USER $HOME", user="nobody")
    name, uid, groups, variables = by_name["output"].split("\n")
    home = here.run("grep ^nobody: /etc/passwd | cut -d: -f6")["output"]
    assert (name, variables) == ("nobody", f"nobody {home}") and groups.isdigit()
    assert here.run("id -u; tty >/dev/null && echo x > /dev/tty", user=uid)["output"] == f"{uid}\nx"
    assert (
        here.run("id -u; echo $HOME", user="54321", env=["HOME=/elsewhere"])["output"] == "54321\n/elsewhere"
    )
    assert here.run("id -u; cat", user="nobody", tty=False, stdin="in")["output"] == f"{uid}\nin"
    denied = here.run("echo x > owned", user="nobody")
    assert denied["status"] == "error" and "denied" in denied["output"]
    assert here.run("id -u", user="root")["output"] == "0"
    cancelled = here.start("sleep 3600", user="nobody")
    assert here.of("signal_command", cancelled, signal="KILL")["exit_code"] == 137


@pytest.mark.parametrize("user", ["no-such-user", "", "-1", "4294967295", "nobody:x"])
def test_a_user_that_the_session_does_not_have_is_refused_by_name(here: In, user: str) -> None:
    refusal = refused(lambda: here.run("true", user=user))
    assert (refusal.kind, refusal.reason, refusal.details["value"]) == (
        "invalid_request",
        "user_not_found",
        user,
    )


@pytest.mark.needs("userns", "uid")
def test_an_ordinary_users_sandbox_has_no_other_users_and_says_so(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(uid=ORDINARY_UID)
    refusal = refused(lambda: agent.run("true", user="nobody"))
    assert (refusal.kind, refusal.reason) == ("operation_failed", "user_not_mapped")
    assert agent.run("echo same", user="0")["output"] == "same"
    assert agent.call("list_workspace_sessions")["sessions"] == []


def test_output_that_is_no_text_comes_whole_in_base64(here: In) -> None:
    every = b"".join(bytes([n]) for n in range(256) if n not in (10, 13))
    written = base64.b64encode(every + b"\n1\r2\n").decode()
    here.agent.call(
        "file_write", path="every", content=written, encoding="base64", workspace_session_id=here.session
    )
    done = here.run("cat every; printf '\\377' >&2", encoding="base64", tty=False, split_output=True)
    assert base64.b64decode(done["output"]) == every + b"\n1\r2", "nothing is collapsed or replaced"
    assert (base64.b64decode(done["stderr"]), done["encoding"], done["total_lines"]) == (b"\xff", "base64", 2)
    assert done["original_token_count"] == math.ceil(len(done["output"]) / 4)
    assert "command_session_id" not in done
    flood = here.run(
        "head -c 400000 /dev/zero | tr '\\0' '\\377'", encoding="base64", tty=False, yield_time_ms=30000
    )
    command = flood["command_session_id"]
    tail = base64.b64decode(flood["tail"]["output"])
    assert set(tail) == {0xFF} and 1024 < len(tail) <= 8192 and flood["truncated"] is True
    rows: list[bytes] = []
    while len(rows) < flood["total_lines"]:
        page = here.of("read_command_lines", command, start_offset=len(rows), encoding="base64")
        assert page["end_offset"] > page["start_offset"] and len(page["output"]) <= 360_000
        rows += base64.b64decode(page["output"]).split(b"\n")
    assert b"".join(rows) == b"\xff" * 400_000
    assert set(here.of("read_command_lines", command)["output"]) == {"\ufffd"}
    with pytest.raises(Failed) as caught:
        here.run("true", encoding="latin-1")
    assert (caught.value.kind, caught.value.reason) == ("invalid_request", "bad_choice")
