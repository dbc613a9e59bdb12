"""One-off commands that do not finish: their work is a draft, and the answer says how to publish it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.handles.environment import EDITORS, without_editor

from .agent_process import Agent, refused

pytestmark = pytest.mark.needs("overlay")


def written(agent: Agent, name: str, cmd: str, **args: Any) -> str:
    """Id of a running one-off command that has written the file `name`."""
    row = agent.run(f"echo half > {name}; echo up; {cmd}", yield_time_ms=0, **args)
    while (
        "up" not in agent.call("read_command_lines", command_session_id=row["command_session_id"])["output"]
    ):
        pass
    return str(row["command_session_id"])


def ended(agent: Agent, command: str) -> dict[str, Any]:
    return agent.call("wait_command", command_session_id=command, timeout_ms=60_000)


def kept_as_draft(agent: Agent, result: dict[str, Any], name: str, how: str) -> None:
    """The head lacks the file, and doing what the hint says publishes it."""
    assert result["publish_rejected"] is True and result["publish_reject_class"] == "interrupted", result
    assert how in result["publish_rejection"]["message"]
    assert refused(lambda: agent.read(name)).kind == "not_found"
    (draft,) = [d for d in agent.call("list_drafts")["drafts"] if d["draft_id"] == result["draft_id"]]
    assert draft["reason"] == "interrupted"
    assert "create_workspace_session with draft_id, then publish_workspace_session" in result["hint"]
    opened = agent.session(draft_id=result["draft_id"])
    agent.call("publish_workspace_session", workspace_session_id=opened)
    assert agent.read(name) == "half"


def test_a_signal_keeps_the_work_of_a_one_off_command_as_a_draft_and_names_itself(
    shared_agent: Agent,
) -> None:
    for name, code in (("TERM", 143), ("KILL", 137), ("INT", 130)):
        command = written(shared_agent, f"by-{name}", "exec sleep 3600")
        shared_agent.call("signal_command", command_session_id=command, signal=name)
        result = ended(shared_agent, command)
        assert (result["status"], result["exit_code"], result["signal"]) == ("error", code, name)
        (row,) = [
            row
            for row in shared_agent.call("list_commands", limit=1000)["commands"]
            if row["command_session_id"] == command
        ]
        assert (row["exit_code"], row["signal"]) == (code, name)
        kept_as_draft(shared_agent, result, f"by-{name}", f"signal {name}")


def test_a_timeout_and_a_typed_control_c_keep_the_work_as_a_draft_too(shared_agent: Agent) -> None:
    result = ended(shared_agent, written(shared_agent, "late", "sleep 3600", timeout_ms=3000))
    assert (result["status"], result["exit_code"], "signal" in result) == ("timed_out", 124, False)
    kept_as_draft(shared_agent, result, "late", "timeout_ms")
    command = written(shared_agent, "typed", "sleep 3600")
    result = shared_agent.call("write_command_stdin", command_session_id=command, stdin="\x03")
    assert (result["status"], result["exit_code"]) == ("cancelled", 130)
    kept_as_draft(shared_agent, result, "typed", "cancelled")


def test_a_command_that_exits_by_itself_is_published_whatever_its_code(shared_agent: Agent) -> None:
    assert shared_agent.run("echo 1 > failed; exit 3")["publish"]["published"] is True
    shell = shared_agent.run("echo 1 > child; sh -c 'kill -9 $$'; exit $?")
    assert (shell["exit_code"], shell["publish"]["published"], "signal" in shell) == (137, True, False)
    trap = written(shared_agent, "trapped", "trap 'exit 0' TERM; while :; do read -t 1 x; done")
    shared_agent.call("signal_command", command_session_id=trap, signal="TERM")
    assert ended(shared_agent, trap)["publish"]["published"] is True


def test_publish_interrupted_and_publish_on_failure_change_that_for_one_call(shared_agent: Agent) -> None:
    command = written(shared_agent, "asked", "exec sleep 3600", publish_interrupted=True)
    shared_agent.call("signal_command", command_session_id=command)
    assert ended(shared_agent, command)["publish"]["published"] is True
    result = shared_agent.run("echo 1 > unwanted; exit 7", publish_on_failure=False)
    assert (result["publish_reject_class"], result["exit_code"]) == ("command_failed", 7)
    assert "code 7" in result["publish_rejection"]["message"] and result["draft_id"]
    assert refused(lambda: shared_agent.read("unwanted")).kind == "not_found"
    assert shared_agent.run("echo 1 > wanted", publish_on_failure=False)["publish"]["published"] is True


def test_an_interrupted_command_that_changed_nothing_leaves_no_draft(shared_agent: Agent) -> None:
    before = len(shared_agent.call("list_drafts")["drafts"])
    result = shared_agent.run("kill -TERM $$")
    assert (result["exit_code"], result["publish"]["no_op"], "publish_rejected" in result) == (
        143,
        True,
        False,
    )
    assert len(shared_agent.call("list_drafts")["drafts"]) == before


def test_the_configuration_gives_back_what_the_reference_does(start_agent: Callable[..., Agent]) -> None:
    runtime = {
        "publish": {"interrupted": "publish"},
        "command": {"signal_exit_code": "negative", "stdin_control": "exact", "editor": "inherit"},
    }
    agent = start_agent(runtime=runtime)
    result = agent.run("echo 1 > as-before; kill -TERM $$")
    assert (result["exit_code"], result["publish"]["published"]) == (-15, True)
    command = agent.run("cat", yield_time_ms=0)["command_session_id"]
    cancelled = agent.call("write_command_stdin", command_session_id=command, stdin="\x04")
    assert cancelled["status"] == "cancelled"
    assert agent.run("echo ${GIT_EDITOR-none}")["output"] == "none"


def test_control_d_alone_is_the_end_of_input(shared_agent: Agent, session: str) -> None:
    for text, end in (("b\na\n", "\x04"), ("b\na", "\x04\n")):
        command = shared_agent.run("cat | sort", session, yield_time_ms=0)["command_session_id"]
        shared_agent.call("write_command_stdin", command_session_id=command, stdin=text, yield_time_ms=0)
        result = shared_agent.call(
            "write_command_stdin", command_session_id=command, stdin=end, yield_time_ms=60_000
        )
        assert (result["status"], result["exit_code"]) == ("ok", 0)
        output = shared_agent.call("read_command_lines", command_session_id=command)["output"]
        assert output.endswith("a\nb")  # before it the terminal's echo


def test_an_editor_fails_with_a_sentence_and_git_asks_nothing(shared_agent: Agent, session: str) -> None:
    shared_agent.run(
        "git init -q repo && cd repo && git config user.name a && git config user.email a@b && echo 1 > f "
        "&& git add f",
        session,
    )
    result = shared_agent.run("cd repo && git commit", session, yield_time_ms=60_000)
    assert result["exit_code"] == 1 and "no editor runs here" in result["output"], result
    done = shared_agent.run("cd repo && git commit -q -m one && git log --format=%s", session)
    assert done["output"] == "one"
    env = shared_agent.run("echo $GIT_TERMINAL_PROMPT ${LANG:-$LC_ALL}", session)["output"].split()
    assert env[0] == "0" and len(env) == 2


def test_an_editor_that_the_image_or_the_caller_names_is_used(shared_agent: Agent, session: str) -> None:
    assert without_editor({"EDITOR": "vi"}) == {"EDITOR": "vi"}
    assert set(without_editor({})) == set(EDITORS)
    shown = shared_agent.run("$EDITOR", session, env=["EDITOR=echo mine"])
    assert shown["output"] == "mine"
    shared_agent.run("git init -q e && cd e && git config user.name a && git config user.email a@b", session)
    commit = "git commit -q --allow-empty 2>&-"  # git writes to the terminal while an editor is open
    for name in ("EDITOR", "VISUAL", "GIT_EDITOR"):
        shared_agent.run(f"cd e && {commit}", session, env=[f"{name}=printf '%s' {name} >"])
        inline = f"{name}=\"printf '%s' inline-{name} >\""
        shown = shared_agent.run(f"cd e && {inline} {commit}; git log --format=%s", session)
        assert shown["output"].split()[:2] == [f"inline-{name}", name], shown
    todo = "cd e && git rebase -q -i HEAD~2 2>&- && git log --format=%s"
    squashed = shared_agent.run(todo, session, env=["EDITOR=sed -i -e '2s/^pick/fixup/'"])
    assert squashed["output"].split()[0] == "GIT_EDITOR" and len(squashed["output"].split()) == 5, squashed
