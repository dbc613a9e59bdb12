"""Where the reference is wrong or loses something, and a command or a session is needed to show that we are
not; see docs/reference-faults.md.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable

import pytest

from .agent_process import Agent, refused

pytestmark = pytest.mark.needs("overlay")

LINES = "".join(f"line {n}\n" for n in range(1, 31))


def lines_until(agent: Agent, command: str, text: str) -> None:
    """Until the command has printed it: it ends with the command, or with the test's time."""
    while text not in agent.call("read_command_lines", command_session_id=command)["output"]:
        pass


def test_a_write_and_an_edit_of_the_head_or_in_a_session_keep_the_execute_bit(agent: Agent) -> None:
    session = agent.session()
    for where in ({}, {"workspace_session_id": session}):
        agent.call("file_write", path="run.sh", content="#!/bin/sh\necho one\n", **where)
        agent.call("file_edit", path="run.sh", edits=[{"old_string": "one", "new_string": "two"}], **where)
        assert (
            agent.run("./run.sh && stat -c %a run.sh", where.get("workspace_session_id"))["output"]
            == "two\n755"
        )


def test_an_id_that_nobody_knows_is_not_found_and_no_success(shared_agent: Agent) -> None:
    for op in ("read_command_lines", "wait_command"):
        error = refused(lambda op=op: shared_agent.call(op, command_session_id="namespace_execution_424242"))  # type: ignore[misc]
        assert (error.kind, error.details["command_session_id"]) == (
            "not_found",
            "namespace_execution_424242",
        )


def test_control_characters_inside_text_are_input_and_the_end_of_input_and_signals_have_operations(
    shared_agent: Agent,
) -> None:
    session = shared_agent.session()
    raw = shared_agent.run("stty raw -echo; echo ready; head -c 5 | od -An -tx1", session, yield_time_ms=0)[
        "command_session_id"
    ]
    lines_until(shared_agent, raw, "ready")
    shared_agent.call("write_command_stdin", command_session_id=raw, stdin="a\x03\x04b\n", yield_time_ms=0)
    ended = shared_agent.call("wait_command", command_session_id=raw, timeout_ms=60_000)
    assert (
        ended["status"] == "ok"
        and "61 03 04 62 0a" in shared_agent.call("read_command_lines", command_session_id=raw)["output"]
    )
    cat = shared_agent.run("cat", session, yield_time_ms=0)["command_session_id"]
    shared_agent.call("write_command_stdin", command_session_id=cat, stdin="to the end\n", yield_time_ms=0)
    shared_agent.call("close_stdin", command_session_id=cat)
    assert shared_agent.call("wait_command", command_session_id=cat, timeout_ms=60_000)["exit_code"] == 0
    sleeper = shared_agent.run("sleep 1000", session, yield_time_ms=0)["command_session_id"]
    shared_agent.call("signal_command", command_session_id=sleeper, signal="TERM")
    assert (
        shared_agent.call("wait_command", command_session_id=sleeper, timeout_ms=60_000)["exit_code"] == 143
    )


def test_a_daemon_with_every_descriptor_open_delays_no_result_and_dies_with_its_session(
    shared_agent: Agent,
) -> None:
    session = shared_agent.session()
    ran = shared_agent.run(
        "setsid sh -c 'echo started; exec sleep 1000' & read x < /dev/null; sleep 0.2; exit 5", session
    )
    assert (ran["status"], ran["exit_code"]) == ("error", 5)
    assert [process["name"] for process in ran["left_behind"]] == ["sleep"]
    assert shared_agent.run("echo goes on", session)["output"] == "goes on"
    gone = shared_agent.call("destroy_workspace_session", workspace_session_id=session)
    assert gone["destroyed"] is True


def test_no_descriptor_of_a_command_leads_to_its_own_result(shared_agent: Agent) -> None:
    """What it could write to is its terminal or its pipes, and nothing else is open."""
    session = shared_agent.session()
    for how in ({"tty": True}, {"tty": False}):
        found = shared_agent.run(
            "ls /proc/self/fd; for n in 3 4 5 6 7 8 9; do echo forged >&$n; done 2>/dev/null; exit 0",
            session,
            **how,
        )
        assert (found["output"].split(), found["exit_code"]) == (["0", "1", "2", "3"], 0), (
            how
        )  # 3 is how ls looks


def test_a_one_shot_command_that_is_refused_names_every_path_and_keeps_all_its_work(agent: Agent) -> None:
    agent.call("file_write", path="long", content=LINES)
    slow = agent.run(
        "read go; sed -i 's/line 9$/mine/' long; echo mine > README.md; rm run.sh; echo kept > extra",
        yield_time_ms=0,
    )
    agent.call("file_write", path="README.md", content="theirs\n")
    agent.call("file_write", path="run.sh", content="theirs\n")
    agent.call("file_edit", path="long", edits=[{"old_string": "line 9\n", "new_string": "theirs\n"}])
    ended = agent.call(
        "write_command_stdin",
        command_session_id=slow["command_session_id"],
        stdin="go\n",
        yield_time_ms=60_000,
    )
    conflicts = {conflict["path"]: conflict["class"] for conflict in ended["publish_rejection"]["conflicts"]}
    assert conflicts == {"README.md": "content", "long": "content", "run.sh": "delete_modify"}
    assert ended["publish_rejection"]["conflict_count"] == 3
    session = agent.session(draft_id=ended["draft_id"])
    assert (
        agent.run("cat README.md extra; grep -c mine long; test -e run.sh || echo gone", session)["output"]
        == "mine\nkept\n1\ngone"
    )


def test_sessions_that_a_killed_agent_had_are_drafts_of_the_next_with_every_byte(agent: Agent) -> None:
    sessions = [agent.session() for _ in range(3)]
    for n, session in enumerate(sessions):
        agent.run(f"head -c 100000 /dev/zero | tr '\\0' {n} > big; rm README.md", session)
    agent.kill()
    agent.start()
    drafts = agent.call("list_drafts")["drafts"]
    assert sorted(draft["origin"] for draft in drafts) == sorted(
        f"workspace_session:{session}" for session in sessions
    )
    for draft in drafts:
        n = sessions.index(draft["origin"].partition(":")[2])
        again = agent.session(draft_id=draft["draft_id"])
        assert agent.run(f"tr -d {n} < big | wc -c; wc -c < big; ls README.md 2>/dev/null", again)[
            "output"
        ].split() == ["0", "100000"]


def test_a_publish_holds_one_moment_of_what_a_process_left_behind_is_writing(agent: Agent) -> None:
    """Two files that get the same number one after the other: a copy that takes its time would catch them far
    apart.
    """
    session = agent.session()
    writer = "n=0; while :; do n=$((n+1)); echo $n > a/first; echo $n > z/second; done"
    agent.run(
        f"mkdir a z pad; for i in $(seq 400); do echo $i > pad/$i; done; setsid sh -c '{writer}' </dev/null "
        f">/dev/null 2>&1 &",
        session,
    )
    while not agent.run("cat z/second 2>/dev/null", session)["output"]:
        pass
    preview = agent.call("preview_publish", workspace_session_id=session)
    assert preview["would_publish"] is True
    agent.call("publish_workspace_session", workspace_session_id=session)
    first, second = (agent.run(f"cat {name}")["output"] for name in ("a/first", "z/second"))
    one_is_being_written = {first, second} & {""}
    assert one_is_being_written or int(first) - int(second) in (0, 1), (first, second)


def test_an_edit_changes_no_line_end_but_its_own(agent: Agent) -> None:
    mixed = b"\xef\xbb\xbfone\r\ntwo\nthree\r\nfour"
    session = agent.session()
    for where in ({}, {"workspace_session_id": session}):
        made = "printf '\\357\\273\\277one\\r\\ntwo\\nthree\\r\\nfour' > mixed"
        agent.run(made, where.get("workspace_session_id"))
        agent.call("file_edit", path="mixed", edits=[{"old_string": "two", "new_string": "2"}], **where)
        shown = agent.run("od -An -v -tx1 mixed | tr -d ' \\n'", where.get("workspace_session_id"))["output"]
        assert bytes.fromhex(shown) == mixed.replace(b"two", b"2")


def test_edits_of_one_file_in_one_session_at_once_lose_nothing_of_each_other_and_of_a_command(
    agent: Agent,
) -> None:
    session = agent.session()
    agent.call(
        "file_write",
        path="many",
        content="".join(f"<{n}>\n" for n in range(40)),
        workspace_session_id=session,
    )
    beside = agent.run("for n in $(seq 300); do echo $n >> log; done; read x", session, yield_time_ms=0)[
        "command_session_id"
    ]

    def edit(n: int) -> None:
        change = [{"old_string": f"<{n}>", "new_string": f"({n})"}]
        agent.call("file_edit", path="many", edits=change, workspace_session_id=session)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(edit, range(40)))
    assert agent.read("many", workspace_session_id=session).split() == [f"({n})" for n in range(40)]
    agent.call("write_command_stdin", command_session_id=beside, stdin="\n", yield_time_ms=60_000)
    assert agent.run("wc -l < log", session)["output"].strip() == "300"
    assert not [
        name
        for name in os.listdir(os.path.join(agent.store, "sessions", session, "upper"))
        if name.startswith(".eos-")
    ]


def test_each_choice_that_restores_the_references_commands_and_merges_is_heard_by_the_agent(
    start_agent: Callable[..., Agent],
) -> None:
    runtime = {
        "command": {"unknown_id": "empty_ok", "stdin_control": "anywhere", "environment": "allow_list"},
        "layerstack": {"merge_adjacent": "merge"},
    }
    agent = start_agent(runtime=runtime)
    unknown = agent.call("read_command_lines", command_session_id="namespace_execution_424242")
    assert (unknown["status"], unknown["exit_code"], unknown["output"]) == ("ok", None, "")
    command = agent.run("cat", yield_time_ms=0)["command_session_id"]
    assert (
        agent.call("write_command_stdin", command_session_id=command, stdin="a\x03b")["status"] == "cancelled"
    )
    session = agent.session()
    path = "src/app.py"
    agent.call(
        "file_edit", path=path, edits=[{"old_string": "two", "new_string": "2"}], workspace_session_id=session
    )
    agent.call("file_edit", path=path, edits=[{"old_string": "three", "new_string": "3"}])
    agent.call("publish_workspace_session", workspace_session_id=session)
    assert agent.read(path).split()[:4] == ["one", "2", "3", "four"]
