"""Sessions of a real agent: private views, publication, rejection, drafts, and what is kept when something is
killed.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes import children_of, mountinfo

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")


def refused(call: Callable[[], Any]) -> Failed:
    with pytest.raises(Failed) as caught:
        call()
    return caught.value


def publish(agent: Agent, session: str, **args: Any) -> dict[str, Any]:
    return agent.call("publish_workspace_session", workspace_session_id=session, **args)


def destroy(agent: Agent, session: str, **args: Any) -> dict[str, Any]:
    return agent.call("destroy_workspace_session", workspace_session_id=session, **args)


def inits(agent: Agent) -> list[int]:
    """Pid 1 of each session, as this test sees it; a spare of the zygote shows no workspace, whatever else is
    mounted on this machine.
    """
    (zygote,) = children_of(agent.pid)
    return [pid for pid in children_of(zygote) if f" {agent.workspace} " in mountinfo(pid)]


def test_a_session_is_private_until_it_is_published(agent: Agent) -> None:
    found = agent.call("create_workspace_session", agent="alice")
    session = found["workspace_session_id"]
    assert re.fullmatch(r"[0-9a-f]{22}", session)
    assert (found["network_profile"], found["finalize_policy"], found["base_version"]) == (
        "shared",
        "no_op",
        1,
    )
    agent.run("echo ready > status.txt; chmod 750 run.sh; rm README.md; ln -s run.sh link", session)
    assert refused(lambda: agent.read("status.txt")).kind == "not_found"
    assert agent.read("README.md") == "hello"
    result = publish(agent, session)
    assert result == {
        "workspace_session_id": session,
        "publish": {
            "no_op": False,
            "revision": {
                "manifest_version": 2,
                "root_hash": result["publish"]["revision"]["root_hash"],
                "layer_count": 2,
            },
            "route_summary": {"source_count": 4, "ignored_count": 0},
        },
        "destroyed": True,
        "evicted_upperdir_bytes": result["evicted_upperdir_bytes"],
    }
    assert result["evicted_upperdir_bytes"] > 0
    assert agent.read("status.txt") == "ready"
    assert refused(lambda: agent.read("README.md")).kind == "not_found"
    kinds = {e["name"]: e["kind"] for e in agent.call("file_list")["entries"]}
    assert kinds["link"] == "symlink"
    stats = agent.call("layerstack")
    assert (stats["manifest_version"], stats["active_lease_count"], stats["staging_entry_count"]) == (2, 0, 0)


def test_a_session_sees_one_version_for_its_whole_life(agent: Agent) -> None:
    session = agent.session()
    agent.call("file_write", path="README.md", content="changed\n")
    assert agent.run("cat README.md", session)["output"] == "hello"
    assert agent.read("README.md", workspace_session_id=session) == "hello"
    assert publish(agent, session)["publish"]["no_op"] is True
    assert agent.version() == 2


def test_a_dead_id_is_refused_in_the_words_of_each_operation(agent: Agent) -> None:
    session = agent.session()
    destroy(agent, session)
    for call in (
        lambda: agent.run("true", session),
        lambda: destroy(agent, session),
        lambda: publish(agent, session),
    ):
        error = refused(call)
        assert (error.kind, error.reason, error.details["workspace_session_id"]) == (
            "operation_failed",
            "session_not_found",
            session,
        )
        assert f"workspace session not found: {session}" in error.message
    for op in ("file_read", "file_list", "file_write"):
        error = refused(lambda op=op: agent.call(op, path="a", workspace_session_id=session))  # type: ignore[misc]  # pyright: ignore
        assert (error.kind, error.details["workspace_session_id"]) == ("not_found", session)


def test_destroy_says_what_it_discards(agent: Agent) -> None:
    session = agent.session()
    agent.run("mkdir d; printf 12345 > d/new; rm run.sh", session)
    result = destroy(agent, session)
    assert (result["destroyed"], result["evicted_upperdir_bytes"]) == (True, 5)
    assert result["discarded"] == {"paths": ["run.sh", "d/new"], "count": 2, "bytes": 5, "truncated": False}
    assert agent.version() == 1


def test_running_commands_hold_a_session_open_and_grace_waits_for_them(agent: Agent) -> None:
    session = agent.session()
    running = agent.run("read go; echo $go > done", session, yield_time_ms=0)["command_session_id"]
    for operation in (destroy, publish):
        error = refused(lambda operation=operation: operation(agent, session))  # type: ignore[misc]
        assert error.kind == "operation_failed" and "active command sessions" in error.message
        assert error.details["active_command_session_ids"] == [running]
    assert refused(lambda: destroy(agent, session, grace_s=-1)).kind == "invalid_request"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(publish, agent, session, grace_s=60)
        agent.call("write_command_stdin", command_session_id=running, stdin="now\n", yield_time_ms=0)
        assert waiting.result()["publish"]["no_op"] is False
    assert agent.read("done") == "now"


def test_a_rejected_explicit_publish_changes_nothing_and_names_every_conflict(agent: Agent) -> None:
    first, second = agent.session(agent="alice"), agent.session(agent="bob")
    agent.run("sed -i 's/two/TWO/' src/app.py; echo a > both", first)
    agent.run(
        "sed -i 's/two/zwei/' src/app.py; echo b > both; echo c > free; sleep 1000 >/dev/null 2>&1 & setsid "
        "sleep 1000 & wait %2",
        second,
        yield_time_ms=0,
    )
    publish(agent, first)
    for command in agent.call("list_commands", workspace_session_id=second)["commands"]:
        agent.call("signal_command", command_session_id=command["command_session_id"], signal="KILL")
    preview = agent.call("preview_publish", workspace_session_id=second)
    assert (preview["would_publish"], preview["conflict_count"], preview["head_version"]) == (False, 2, 2)
    error = refused(lambda: publish(agent, second))
    assert (error.kind, error.message) == ("operation_failed", "workspace session publish was rejected")
    details = error.details
    assert (details["workspace_session_id"], details["stage"], details["session_retained"]) == (
        second,
        "publish",
        True,
    )
    rejection = details["publish_rejection"]
    assert (
        rejection["reason"],
        rejection["conflict_count"],
        rejection["protected_drop"],
        rejection["message"],
    ) == (
        "source_conflict",
        2,
        None,
        None,
    )
    assert rejection["conflicts"] == preview["conflicts"]
    by_path = {conflict["path"]: conflict for conflict in rejection["conflicts"]}
    assert set(by_path) == {"both", "src/app.py"}
    assert by_path["both"]["class"] == "add_add"
    assert by_path["src/app.py"]["theirs_layer"]["owner"] == f"workspace_session:{first}"
    assert by_path["src/app.py"]["theirs_layer"]["agent"] == "alice"
    assert rejection["path"] == rejection["source_conflict"]["path"] == rejection["conflicts"][0]["path"]
    assert agent.version() == 2
    # the session goes on, and can be mended
    agent.run(
        "git --version >/dev/null 2>&1; rm both; printf 'one\\nTWO\\nthree\\nfour\\nfive\\nsix\\nseven\\n' "
        "> src/app.py",
        second,
    )
    assert publish(agent, second)["publish"]["revision"]["manifest_version"] == 3
    assert agent.read("free") == "c"


def test_a_refused_one_shot_command_keeps_its_work_as_a_draft_that_can_be_reopened(agent: Agent) -> None:
    slow = agent.run("read go; echo mine > README.md; echo kept > extra", None, yield_time_ms=0)
    agent.call("file_write", path="README.md", content="theirs\n")
    result = agent.call(
        "write_command_stdin",
        command_session_id=slow["command_session_id"],
        stdin="go\n",
        yield_time_ms=60_000,
    )
    assert (result["status"], result["exit_code"], result["publish_rejected"]) == ("ok", 0, True)
    assert result["publish_reject_class"] == "source_conflict"
    assert result["publish_rejection"]["conflicts"][0]["path"] == "README.md"
    assert result["publish"] == {"published": False, "no_op": False}
    assert agent.read("README.md") == "theirs" and agent.version() == 2
    (draft,) = agent.call("list_drafts")["drafts"]
    assert draft["draft_id"] == result["draft_id"]
    assert (draft["origin"], draft["base_version"]) == (
        f"workspace_session:{result['workspace_session_id']}",
        1,
    )
    assert agent.call("preview_publish", draft_id=draft["draft_id"])["conflict_count"] == 1
    error = refused(lambda: agent.session(draft_id=draft["draft_id"], draft_base="head"))
    assert error.message.startswith(f"draft {draft['draft_id']} cannot be carried over to the head")
    assert error.details["draft_id"] == draft["draft_id"] and "draft_base own" in error.details["hint"]
    assert error.details["publish_rejection"]["conflict_count"] == 1
    session = agent.session(draft_id=draft["draft_id"])
    assert agent.read("README.md", workspace_session_id=session) == "mine"
    assert agent.run("cat README.md extra", session)["output"] == "mine\nkept"
    assert refused(lambda: agent.call("discard_draft", draft_id=draft["draft_id"])).reason == "draft_in_use"
    destroy(agent, session)
    assert agent.call("discard_draft", draft_id=draft["draft_id"])["discarded"] is True
    assert agent.call("list_drafts") == {"drafts": []}
    assert refused(lambda: agent.session(draft_id=draft["draft_id"])).reason == "draft_not_found"
    dead = refused(lambda: agent.run("true", result["workspace_session_id"]))
    assert dead.reason == "session_not_found"


def test_a_command_without_a_session_publishes_before_its_end_is_reported(agent: Agent) -> None:
    result = agent.run("printf 'ready\\n' > status.txt")
    assert result["publish"]["published"] is True and "command_session_id" not in result
    found = agent.call("file_read", path="status.txt")
    assert (found["content"], found["total_bytes"], found["bytes_read"]) == ("ready", 6, 5)
    assert refused(lambda: agent.run("true", result["workspace_session_id"])).kind == "operation_failed"
    assert agent.run("touch x && rm x")["publish"]["no_op"] is True
    assert agent.version() == 2
    failed = agent.run("echo half > half; exit 3")
    assert (failed["status"], failed["exit_code"], failed["publish"]["published"]) == ("error", 3, True)
    assert agent.call("list_workspace_sessions") == {"sessions": []}


def test_a_one_shot_session_can_be_joined_and_publishes_after_its_last_command(agent: Agent) -> None:
    first = agent.run("read go; echo 1 > one", yield_time_ms=0)
    session = first["workspace_session_id"]
    second = agent.run("read go; echo 2 > two", session, yield_time_ms=0)
    agent.call("file_write", path="three", content="3", workspace_session_id=session)
    ended = agent.call(
        "write_command_stdin",
        command_session_id=first["command_session_id"],
        stdin="x\n",
        yield_time_ms=60_000,
    )
    assert ended["status"] == "ok" and "publish" not in ended
    assert agent.version() == 1
    ended = agent.call(
        "write_command_stdin",
        command_session_id=second["command_session_id"],
        stdin="x\n",
        yield_time_ms=60_000,
    )
    assert ended["publish"]["route_summary"]["source_count"] == 3
    assert [agent.read(name) for name in ("one", "two", "three")] == ["1", "2", "3"]


def test_one_shot_commands_started_together_share_a_base_and_exactly_one_wins(agent: Agent) -> None:
    started = [agent.run(f"read go; echo {n} > README.md", yield_time_ms=0) for n in range(5)]

    def release(one: dict[str, Any]) -> dict[str, Any]:
        return agent.call(
            "write_command_stdin",
            command_session_id=one["command_session_id"],
            stdin="x\n",
            yield_time_ms=60_000,
        )

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        results = list(pool.map(release, started))
    won = [n for n, result in enumerate(results) if result["publish"]["published"]]
    assert len(won) == 1 and agent.read("README.md") == str(won[0])
    assert all(
        result.get("publish_reject_class") == "source_conflict"
        for n, result in enumerate(results)
        if n not in won
    )
    assert len(agent.call("list_drafts")["drafts"]) == 4


def test_explicit_sessions_published_at_once_let_one_win_and_the_others_go_on(agent: Agent) -> None:
    """Those that lose only at the commit, after a clean preview, get a new mount on their captured work."""
    sessions = [agent.session() for _ in range(6)]
    for number, session in enumerate(sessions):
        agent.run(
            f"echo {number} > README.md; mkdir -p made/deep; echo {number} > made/deep/n{number}; rm run.sh",
            session,
        )

    def attempt(session: str) -> Failed | None:
        try:
            publish(agent, session)
        except Failed as error:
            return error
        return None

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        errors = list(pool.map(attempt, sessions))
    (winner,) = [n for n, error in enumerate(errors) if error is None]
    assert agent.read("README.md") == str(winner) and agent.version() == 2
    for number, (session, error) in enumerate(zip(sessions, errors, strict=True)):
        if error is None:
            continue
        assert (error.reason, error.details["session_retained"]) == ("source_conflict", True)
        assert (
            agent.run("cat README.md made/deep/*; test ! -e run.sh && echo gone", session)["output"]
            == f"{number}\n{number}\ngone"
        )
        agent.run("echo after >> README.md; rm -r made", session)
        assert agent.read("README.md", workspace_session_id=session) == f"{number}\nafter"
        again = agent.call("preview_publish", workspace_session_id=session)
        assert [conflict["path"] for conflict in again["conflicts"]] == ["README.md"]
        agent.run(f"echo {winner} > README.md; echo {number} > mine{number}", session)
        assert publish(agent, session)["publish"]["no_op"] is False
    assert sorted(e["name"] for e in agent.call("file_list")["entries"] if e["name"].startswith("mine")) == [
        f"mine{n}" for n in range(6) if n != winner
    ]
    assert agent.call("list_drafts") == {"drafts": []}


def test_a_killed_runner_leaves_a_draft_and_the_next_call_names_it(agent: Agent) -> None:
    session = agent.session(agent="carol")
    agent.run("echo precious > kept", session)
    waiting = agent.run("sleep 1000", session, yield_time_ms=0)["command_session_id"]
    (pid,) = inits(agent)
    os.kill(pid, signal.SIGKILL)
    error = refused(lambda: agent.read("kept", workspace_session_id=session))
    assert (error.kind, error.reason, error.details["workspace_session_id"]) == (
        "operation_failed",
        "session_lost",
        session,
    )
    draft = error.details["draft_id"]
    for call in (
        lambda: agent.run("true", session),
        lambda: destroy(agent, session),
        lambda: publish(agent, session),
    ):
        assert refused(call).details["draft_id"] == draft
    assert (
        refused(lambda: agent.call("wait_command", command_session_id=waiting)).details["draft_id"] == draft
    )
    read = agent.call("read_command_lines", command_session_id=waiting)
    assert (read["status"], read["exit_code"], read["draft_id"]) == ("error", None, draft)
    (kept,) = agent.call("list_drafts")["drafts"]
    assert (kept["draft_id"], kept["agent"]) == (draft, "carol")
    again = agent.session(draft_id=draft)
    assert agent.read("kept", workspace_session_id=again) == "precious"
    assert publish(agent, again)["publish"]["no_op"] is False
    assert agent.read("kept") == "precious"
    assert agent.call("list_drafts") == {"drafts": []}
    assert refused(lambda: agent.run("true", session)).reason == "session_not_found"


def test_a_killed_agent_loses_nothing_and_its_sessions_are_known_by_their_drafts(agent: Agent) -> None:
    agent.call("file_write", path="published", content="yes")
    session = agent.session()
    agent.run("echo precious > kept; mkdir -m 000 locked", session)
    one_shot = agent.run("echo half > half; sleep 1000", yield_time_ms=500)
    pids = inits(agent)
    assert len(pids) == 2
    agent.kill()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            while True:  # it dies with the agent; the kernel sends that signal as the agent ends
                os.kill(pid, 0)
    agent.start()
    assert agent.read("published") == "yes"
    drafts = {
        draft["origin"].partition(":")[2]: draft["draft_id"] for draft in agent.call("list_drafts")["drafts"]
    }
    assert set(drafts) == {session, one_shot["workspace_session_id"]}
    error = refused(lambda: agent.run("true", session))
    assert (error.reason, error.details["draft_id"]) == ("session_lost", drafts[session])
    again = agent.session(draft_id=drafts[session])
    assert agent.read("kept", workspace_session_id=again) == "precious"
    later = agent.run("true")
    assert later["workspace_session_id"] not in drafts
    assert any("boot storage sweep" in line and "2 sessions" in line for line in agent.log)


def test_an_agent_whose_zygote_is_killed_ends_and_keeps_the_work(agent: Agent) -> None:
    session = agent.session()
    agent.run("echo precious > kept", session)
    (zygote,) = children_of(agent.pid)
    os.kill(zygote, signal.SIGKILL)
    assert agent.wait() == 1
    agent.start()
    (draft,) = agent.call("list_drafts")["drafts"]
    again = agent.session(draft_id=draft["draft_id"])
    assert agent.read("kept", workspace_session_id=again) == "precious"


def test_what_asks_for_a_session_while_the_zygote_is_killed_is_asked_to_try_again(agent: Agent) -> None:
    (zygote,) = children_of(agent.pid)
    os.kill(zygote, signal.SIGSTOP)  # the orders lie in its socket
    waiting = [agent.connect() for _ in range(3)]
    for connection, op, args in zip(
        waiting,
        ("create_workspace_session", "exec_command", "create_workspace_session"),
        ({}, {"cmd": "true"}, {}),
        strict=True,
    ):
        connection.socket.sendall(agent.line(op, **args))
    while len(os.listdir(os.path.join(agent.store, "sessions"))) < len(waiting):
        pass
    os.kill(zygote, signal.SIGKILL)
    for connection in waiting:
        error = json.loads(connection.file.readline())["error"]
        assert (error["kind"], error["details"]["reason"], error["details"]["retryable"]) == (
            "server_shutting_down",
            "draining",
            True,
        ), error
        connection.close()
    assert agent.wait() == 1
    agent.start()
    assert (
        agent.call("list_drafts")["drafts"] == [] and os.listdir(os.path.join(agent.store, "sessions")) == []
    )


def test_sessions_and_their_commands_are_listed(agent: Agent) -> None:
    session = agent.session(agent="alice", network_profile="isolated")
    command = agent.run("sleep 1000", session, yield_time_ms=0)["command_session_id"]
    (row,) = agent.call("list_workspace_sessions")["sessions"]
    assert row["workspace_session_id"] == session and row["state"] == "active" and row["agent"] == "alice"
    assert row["network_profile"] == "isolated" and row["active_command_session_ids"] == [command]
    assert row["base_version"] == 1 and row["upper_bytes"] == 0
    snapshot = agent.call("snapshot")
    assert (snapshot["sandbox_id"], snapshot["availability"], snapshot["errors"]) == (
        "eos-test",
        "available",
        [],
    )
    (workspace,) = snapshot["workspaces"]
    assert workspace["workspace_id"] == session and workspace["layers"]["layer_count"] == 1
    assert [e["namespace_execution_id"] for e in workspace["active_namespace_executions"]] == [command]
    assert snapshot["stack"]["active_leases"] == 1
    mounts = agent.call("layerstack", workspace_id=session)
    assert mounts["workspace"] == session and [m["layer_id"] for m in mounts["mounts"]] == ["B000001-base"]
    assert refused(lambda: agent.call("layerstack", workspace_id="nope")).kind == "invalid_request"


def test_arguments_that_make_no_sense_are_refused_by_name(shared_agent: Agent) -> None:
    error = refused(lambda: shared_agent.session(network_profile="galactic"))
    assert error.kind == "invalid_request" and "shared" in error.message and "isolated" in error.message
    unknown = refused(lambda: shared_agent.session(draft_id="draft-0000000000000000"))
    assert (unknown.reason, "list_workspace_sessions" in unknown.details["hint"]) == ("draft_not_found", True)
    assert "list_versions" in refused(lambda: shared_agent.session(base_version=99999)).details["hint"]
    assert "draft_id" in refused(lambda: shared_agent.session(draft_base="head")).message
    assert refused(lambda: shared_agent.call("preview_publish")).kind == "invalid_request"
    assert (
        refused(lambda: shared_agent.call("discard_draft", draft_id="draft-0000000000000000")).kind
        == "not_found"
    )


def test_special_files_are_left_out_and_listed(agent: Agent) -> None:
    session = agent.session()
    agent.run("mkfifo pipe; echo x > file", session)
    assert agent.call("preview_publish", workspace_session_id=session)["dropped"] == [{"path": "pipe"}]
    assert publish(agent, session)["publish"]["dropped"] == [{"path": "pipe"}]
    assert agent.read("file") == "x"


def test_many_threads_create_run_and_destroy_without_one_unexpected_error(agent: Agent) -> None:
    def work(number: int) -> None:
        for turn in range(4):
            session = agent.session()
            assert agent.run(f"echo {number} > n{number}; cat n{number}", session)["output"] == str(number)
            if turn % 2:
                destroy(agent, session)
            else:
                publish(agent, session)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    stats = agent.call("layerstack")
    assert stats["active_lease_count"] == 0 and stats["staging_entry_count"] == 0
    assert agent.call("list_workspace_sessions") == {"sessions": []}
    assert sorted(agent.read(f"n{n}") for n in range(8)) == [str(n) for n in range(8)]
    assert inits(agent) == []


@pytest.mark.needs("root")
def test_a_full_disk_refuses_by_name_and_everything_that_was_there_stays(short_dir: str) -> None:
    agent = Agent(short_dir, {"README.md": b"hello\n"})
    agent.prefix = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs -o size=2m none "$0" && exec "$@"',
        agent.store,
    ]
    try:
        agent.start()
        session = agent.session()
        agent.run("head -c 3000000 /dev/zero > big", session)
        error = refused(lambda: publish(agent, session))
        assert (error.kind, error.reason, error.details["errno"], error.details["session_retained"]) == (
            "operation_failed",
            "disk_full",
            "ENOSPC",
            True,
        )
        assert refused(lambda: agent.call("file_write", path="new", content="x")).reason == "disk_full"
        assert (agent.version(), agent.read("README.md")) == (1, "hello")
        assert agent.run("test -s big", session)["exit_code"] == 0
        assert destroy(agent, session)["evicted_upperdir_bytes"] > 1_000_000
        assert agent.call("file_write", path="new", content="x")["type"] == "create"
        assert agent.call("layerstack")["staging_entry_count"] == 0
    finally:
        agent.close()


@pytest.mark.needs("uid", "userns")
def test_an_ordinary_user_gets_the_same(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(uid=65534)
    session = agent.session()
    assert agent.run("id -u; cat README.md; echo mine > mine; rm run.sh", session)["output"] == "0\nhello"
    assert publish(agent, session)["publish"]["route_summary"]["source_count"] == 2
    assert agent.read("mine") == "mine"
    assert agent.run("echo shot > shot")["publish"]["published"] is True
    kept = agent.session()
    agent.run("echo precious > kept", kept)
    agent.kill()
    agent.start()
    (draft,) = agent.call("list_drafts")["drafts"]
    assert agent.read("kept", workspace_session_id=agent.session(draft_id=draft["draft_id"])) == "precious"
    assert agent.stop() == 0


def test_grace_ends_with_the_commands_also_of_a_session_that_would_settle_itself(agent: Agent) -> None:
    command = agent.run("read x; echo $x > f", yield_time_ms=0)
    session = command["workspace_session_id"]
    error = refused(
        lambda: agent.call("publish_workspace_session", workspace_session_id=session, grace_s=1e300)
    )
    assert (error.kind, error.reason) == ("operation_failed", "implicit_session"), "refused before it waits"
    connection = agent.connect()
    connection.socket.sendall(
        agent.line("destroy_workspace_session", workspace_session_id=session, grace_s=1e300)
    )
    agent.call(
        "write_command_stdin", command_session_id=command["command_session_id"], stdin="y\n", yield_time_ms=0
    )
    answer = json.loads(connection.file.readline())
    connection.close()
    assert answer["destroyed"] is True and answer["discarded"]["paths"] == ["f"]
    assert agent.call("wait_command", command_session_id=command["command_session_id"])["exit_code"] == 0


def test_a_set_up_that_takes_too_long_says_so(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(runtime={"workspace": {"setup_timeout_s": 1e-9}})
    error = refused(lambda: agent.run("true"))
    assert (
        error.kind == "operation_failed"
        and "workspace setup failed" in error.message
        and "timed out" in error.message
    )
    assert error.details["retryable"] is True  # a machine that has more time makes it
