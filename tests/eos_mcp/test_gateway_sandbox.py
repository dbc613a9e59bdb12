"""A real sandbox without a container, through the programs and the gateway: what survives when a process in
the middle is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

from tests import one_bundle
from tests.conftest import drop_dir, make_short_dir
from tests.eos_mcp.programs import argv, error, many, no_gateway_left, pid_of, result, run
from tests.processes import WAIT_S, kill

pytestmark = pytest.mark.needs("overlay")

WAIT = ("--yield-time-ms", "60000")


class Sandbox(NamedTuple):
    state_dir: str
    id: str

    def do(self, *words: str) -> dict[str, Any]:
        return result(run("runtime", "--sandbox-id", self.id, *words))

    @property
    def agent_pid(self) -> int:
        with open(f"{self.state_dir}/sandboxes/{self.id}/endpoint.json") as file:
            return int(json.load(file)["pid"])


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    """One sandbox for the module: what a test kills is started again by that test."""
    state_dir, short_dir = make_short_dir("eos-s-"), make_short_dir()
    os.chmod(state_dir, 0o700)
    workspace = os.path.join(short_dir, "ws")
    os.mkdir(workspace)
    with open(os.path.join(workspace, "a.txt"), "w") as file:
        file.write("base\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EOS_STATE_DIR", state_dir)
        patch.setenv("XDG_CACHE_HOME", str(one_bundle.root_cache()))
        patch.setenv("EOS_GATEWAY_BACKEND", "local")
        with no_gateway_left(state_dir):
            words = ("--image", "host", "--workspace-bind-root", workspace)
            made = result(run("manager", "create_sandbox", *words))
            assert made["state"] == "ready"
            try:
                yield Sandbox(state_dir, made["id"])
            finally:
                gone = result(run("manager", "destroy_sandbox", "--sandbox-id", made["id"]))
                assert gone["state"] == "stopped"
                assert run("manager", "list_sandboxes").stdout == '{"sandboxes":[]}\n'
    drop_dir(state_dir)
    drop_dir(short_dir)


def test_a_call_works_after_the_gateway_or_the_agent_was_killed_and_what_was_published_is_there(
    sandbox: Sandbox,
) -> None:
    ran = sandbox.do("exec_command", *WAIT, "printf 'ready\\n' > status.txt; cat a.txt")
    assert (ran["status"], ran["exit_code"], ran["output"]) == ("ok", 0, "base")
    read = sandbox.do("file_read", "--path", "status.txt")
    assert (read["content"], read["bytes_read"], read["total_bytes"]) == ("ready", 5, 6)
    for pid in (pid_of(sandbox.state_dir), sandbox.agent_pid):
        kill(pid)
        assert sandbox.do("exec_command", *WAIT, "cat status.txt")["output"] == "ready"
    kill(sandbox.agent_pid)
    said = many(5, "runtime", "--sandbox-id", sandbox.id, "file_read", "--path", "status.txt")
    assert [(status, json.loads(out)["content"]) for status, out, _ in said] == [(0, "ready")] * 5


def test_a_command_whose_agent_is_killed_is_answered_at_once_as_agent_gone(sandbox: Sandbox) -> None:
    words = argv(
        "runtime", "--sandbox-id", sandbox.id, "exec_command", "--yield-time-ms", "50000", "echo up; sleep 60"
    )
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        while not any(command["status"] == "running" for command in sandbox.do("list_commands")["commands"]):
            pass
        killer = threading.Thread(target=os.kill, args=(sandbox.agent_pid, signal.SIGKILL))
        killer.start()
        out, err = waiting.communicate(timeout=WAIT_S)
        killer.join()
    found = json.loads(err)["error"]
    assert (waiting.returncode, out, found["kind"]) == (1, "", "internal_error")
    assert (found["details"]["reason"], found["details"]["retryable"]) == ("agent_gone", True)
    assert sandbox.do("exec_command", *WAIT, "cat a.txt")["output"] == "base"


def test_the_activity_revision_counts_changes_that_went_through(sandbox: Sandbox) -> None:
    def revision() -> int:
        return int(
            run(
                "manager", "inspect_sandbox", "--sandbox-id", sandbox.id, "--field", "activity_revision"
            ).stdout
        )

    before = revision()
    sandbox.do("file_read", "--path", "a.txt")
    error(run("runtime", "--sandbox-id", sandbox.id, "file_write", "--path", "../x", "--content", "x"), 1)
    assert revision() == before
    sandbox.do("file_write", "--path", "b", "--content", "x")
    assert revision() == before + 1


def test_exit_statuses_of_commands_and_refusals_can_be_passed_on(sandbox: Sandbox) -> None:
    runtime = ("--sandbox-id", sandbox.id)
    assert run("runtime", *runtime, "exec_command", "exit 7").returncode == 0
    assert run("runtime", *runtime, "--propagate-exit", "exec_command", "exit 7").returncode == 7
    session = sandbox.do("create_workspace_session")["workspace_session_id"]
    sandbox.do("file_write", "--path", "a.txt", "--content", "mine\n", "--workspace-session-id", session)
    sandbox.do("file_write", "--path", "a.txt", "--content", "theirs\n")
    refused = run(
        "runtime",
        *runtime,
        "publish_workspace_session",
        "--workspace-session-id",
        session,
        "--fail-on-reject",
    )
    found = error(refused, 3)
    assert found["details"]["publish_rejection"]["conflicts"][0]["path"] == "a.txt"


def test_a_raw_request_for_a_sandbox_that_does_not_exist_is_refused_by_name(sandbox: Sandbox) -> None:
    found = error(run("runtime", "--sandbox-id", "nope", "file_read", "--path", "a"), 1)
    assert found["kind"] == "invalid_request" and "sandbox not found" in found["message"]


def test_the_last_progress_line_comes_before_the_result(sandbox: Sandbox) -> None:
    workspace = str(result(run("manager", "inspect_sandbox", "--sandbox-id", sandbox.id))["workspace_root"])
    made = run(
        "manager", "--progress", "create_sandbox", "--image", "host", "--workspace-bind-root", workspace
    )
    record = result(made)
    try:
        said = [line.partition("] ")[2] for line in made.stderr.splitlines() if line.startswith("[progress ")]
        assert said[-3:] == ["waiting for readiness", "ready", f"sandbox ready: {record['id']}"]
    finally:
        result(run("manager", "destroy_sandbox", "--sandbox-id", record["id"]))
