"""Services: when they are ready, how they fail, and what ends them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from .agent_process import Agent, Failed, agent_of, refused

pytestmark = pytest.mark.needs("overlay")

SERVER = """
import http.server, os, sys

class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/here" or os.path.exists("open") else 404)
        self.end_headers()

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Pages)
print("\\033[32mlistening\\033[0m on \\033[1mport\\033[0m", flush=True)
server.serve_forever()
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def serve(agent: Agent, session: str, cmd: str, name: str, ready: Any = None, **args: Any) -> dict[str, Any]:
    """The answer to the start of a service; the default of yield_time_ms counts."""
    if ready is not None:
        args["ready"] = ready
    return agent.call("exec_command", cmd=cmd, service=name, workspace_session_id=session, **args)


def end(agent: Agent, command: str) -> None:
    agent.call("signal_command", command_session_id=command, signal="KILL")
    agent.call("wait_command", command_session_id=command, timeout_ms=60_000)


@pytest.fixture
def server(shared_agent: Agent, session: str) -> str:
    shared_agent.call("file_write", path="server.py", content=SERVER, workspace_session_id=session)
    return f"exec python3 server.py {free_port()}"


def test_a_service_answers_when_its_port_does_and_is_shown_with_its_address(
    shared_agent: Agent, session: str, server: str
) -> None:
    port = int(server.split()[-1])
    up = serve(shared_agent, session, server, "web", {"port": port, "timeout_ms": 60_000})
    assert (up["status"], up["service"], up["ready"]) == ("running", "web", True)
    assert up["forward"] == f"/forward/shared/{port}/"
    command = up["command_session_id"]
    (row,) = shared_agent.call("list_commands", workspace_session_id=session)["commands"]
    assert (row["command_session_id"], row["service"], row["forward"]) == (command, "web", up["forward"])
    rows = shared_agent.call("list_workspace_sessions")["sessions"]
    (live,) = [row for row in rows if row["workspace_session_id"] == session]
    assert live["commands"][0]["service"] == "web"
    twice = refused(lambda: serve(shared_agent, session, "true", "web"))
    assert (twice.kind, twice.reason) == ("operation_failed", "service_running")
    assert twice.details["command_session_id"] == command
    taken = refused(lambda: serve(shared_agent, session, "true", "other", {"port": port}))
    assert (taken.kind, taken.reason) == ("operation_failed", "port_in_use")
    end(shared_agent, command)
    late = serve(shared_agent, session, server, "web", {"port": port, "timeout_ms": 60_000})
    assert late["ready"] is True, "a name is free once its service has ended"
    end(shared_agent, late["command_session_id"])


def test_a_url_and_a_line_of_coloured_output_are_conditions_too(
    shared_agent: Agent, session: str, server: str
) -> None:
    port = int(server.split()[-1])
    url = f"http://localhost:{port}/here"
    up = serve(shared_agent, session, server, "url", {"url": url, "timeout_ms": 60_000})
    assert up["ready"] is True and up["forward"] == f"/forward/shared/{port}/"
    end(shared_agent, up["command_session_id"])
    for pattern in ("listening on port", r"^listening .* p\w+$"):
        up = serve(shared_agent, session, server, "line", {"pattern": pattern, "timeout_ms": 60_000})
        assert up["ready"] is True and "forward" not in up
        end(shared_agent, up["command_session_id"])


def test_a_service_that_is_not_ready_in_time_runs_on_and_says_so(
    shared_agent: Agent, session: str, server: str
) -> None:
    port = int(server.split()[-1])
    ready = {"port": port, "url": "/closed", "timeout_ms": 3000}
    late = refused(lambda: serve(shared_agent, session, server, "late", ready))
    assert (late.kind, late.reason) == ("operation_failed", "service_not_ready")
    assert "3 s" in late.message and "404" in late.message
    assert late.details["last_lines"] == "listening on port"
    command = late.details["command_session_id"]
    shown = shared_agent.call("read_command_lines", command_session_id=command)
    assert (shown["status"], shown["ready"]) == ("running", False)
    end(shared_agent, command)
    soon = {"port": port, "url": "/closed", "timeout_ms": 60_000}
    starting = serve(shared_agent, session, server, "late", soon, yield_time_ms=0)
    assert (starting["status"], starting["ready"]) == ("running", False)
    shared_agent.call("file_write", path="open", content="", workspace_session_id=session)
    command = starting["command_session_id"]
    shown = shared_agent.call("read_command_lines", command_session_id=command, wait_ms=60_000)
    assert (shown["status"], shown["ready"]) == ("running", True)
    end(shared_agent, command)


def test_a_service_that_ends_before_it_is_ready_is_an_error_with_its_last_lines(
    shared_agent: Agent, session: str
) -> None:
    cmd = "printf '\\033[31mno config\\033[0m\\n'; exit 3"
    gone = refused(lambda: serve(shared_agent, session, cmd, "gone", {"port": free_port()}))
    assert (gone.kind, gone.reason, gone.details["exit_code"]) == ("operation_failed", "service_ended", 3)
    assert "exit code 3" in gone.message and gone.details["last_lines"] == "no config"
    killed = refused(lambda: serve(shared_agent, session, "kill -9 $$", "gone", {"pattern": "never"}))
    assert (killed.reason, killed.details["signal"], killed.details["last_lines"]) == (
        "service_ended",
        "KILL",
        "",
    )
    wrong = refused(lambda: serve(shared_agent, session, "echo ran > ran", "gone", {"pattern": "("}))
    assert wrong.reason == "invalid_pattern"
    plain = serve(shared_agent, session, "test ! -e ran", "short", yield_time_ms=60_000)
    assert (plain["status"], plain["service"], "ready" in plain) == ("ok", "short", False)


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "without a session": ({"service": "web"}, "operation_failed", "service_needs_session"),
    "a name with a blank": ({"service": "my web"}, "invalid_request", "bad_service"),
    "ready alone": ({"ready": {"port": 80}}, "invalid_request", "missing_argument"),
    "no condition": ({"service": "w", "ready": {"timeout_ms": 5}}, "invalid_request", "bad_ready"),
    "an unknown condition": ({"service": "w", "ready": {"prot": 80}}, "invalid_request", "bad_ready"),
    "a port as text": ({"service": "w", "ready": {"port": "80"}}, "invalid_request", "bad_ready"),
    "a port of 70000": ({"service": "w", "ready": {"port": 70000}}, "invalid_request", "bad_ready"),
    "another host": ({"service": "w", "ready": {"url": "http://a.example/"}}, "invalid_request", "bad_ready"),
    "a URL with a line end": (
        {"service": "w", "ready": {"url": "/a\r\nX: y", "port": 80}},
        "invalid_request",
        "bad_ready",
    ),
    "a path without a port": ({"service": "w", "ready": {"url": "/a"}}, "invalid_request", "bad_ready"),
    "two ports": (
        {"service": "w", "ready": {"url": "http://localhost:81/", "port": 80}},
        "invalid_request",
        "bad_ready",
    ),
    "an empty expression": ({"service": "w", "ready": {"pattern": ""}}, "invalid_request", "invalid_pattern"),
    "hours": ({"service": "w", "ready": {"port": 80, "timeout_ms": 10**9}}, "invalid_request", "bad_ready"),
}


@pytest.mark.parametrize(("args", "kind", "reason"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_a_service_is_refused_before_anything_starts(
    args: dict[str, Any], kind: str, reason: str, shared_agent: Agent
) -> None:
    before = shared_agent.call("list_commands", limit=1000)["commands"]
    error = refused(lambda: shared_agent.call("exec_command", cmd="echo ran", **args))
    assert (error.kind, error.reason) == (kind, reason)
    assert shared_agent.call("list_commands", limit=1000)["commands"] == before


CLEANS_UP = "trap 'echo tidy > tidy.txt; exit 0' TERM; echo up; while :; do sleep 0.01; done"


def stopped(agent: Agent, answer: dict[str, Any], command: str, by: str) -> dict[str, Any]:
    """The end of a service that an operation has ended and listed."""
    assert answer["services_stopped"] == [{"service": "web", "command_session_id": command}]
    ended = agent.call("wait_command", command_session_id=command, timeout_ms=60_000)
    assert ended["stopped_by"] == by
    return ended


@pytest.mark.parametrize("ordinary", [False, pytest.param(True, marks=pytest.mark.needs("userns", "uid"))])
def test_services_do_not_hold_up_the_end_of_a_session_and_get_sigterm_and_a_grace(
    start_agent: Callable[..., Agent], ordinary: bool
) -> None:
    agent = agent_of(start_agent, ordinary)

    def up(session: str, cmd: str = CLEANS_UP) -> str:
        ready = {"pattern": "up", "timeout_ms": 60_000}
        return str(serve(agent, session, cmd, "web", ready)["command_session_id"])

    session = agent.session()
    command = up(session)
    done = agent.call("publish_workspace_session", workspace_session_id=session)
    ended = stopped(agent, done, command, "publish_workspace_session")
    assert (ended["status"], ended["exit_code"]) == ("ok", 0)
    assert agent.read("tidy.txt") == "tidy", "what it wrote at the end is published"

    session = agent.session()
    command = up(session)
    kept = agent.call("publish_workspace_session", workspace_session_id=session, keep_open=True)
    assert kept["kept_open"] is True
    stopped(agent, kept, command, "publish_workspace_session")
    agent.run("setsid sleep 600 </dev/null >/dev/null 2>&1 &", session)
    command = up(session)
    busy = refused(
        lambda: agent.call("publish_workspace_session", workspace_session_id=session, keep_open=True)
    )
    assert busy.reason == "session_busy"
    assert [one["name"] for one in busy.details["processes"]] == ["sleep"], "the service is not named"
    agent.run(f"kill {busy.details['processes'][0]['pid']}", session)
    agent.call("file_write", path="elsewhere", content="x")
    moved = agent.call("rebase_workspace_session", workspace_session_id=session)
    stopped(agent, moved, command, "rebase_workspace_session")


def test_a_service_that_ignores_sigterm_is_killed_after_the_grace(shared_agent: Agent) -> None:
    session = shared_agent.session()
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.01; done"
    command = serve(shared_agent, session, stubborn, "web", {"pattern": "up"})["command_session_id"]
    done = shared_agent.call("destroy_workspace_session", workspace_session_id=session)
    ended = stopped(shared_agent, done, command, "destroy_workspace_session")
    assert (ended["status"], ended["exit_code"], ended["signal"]) == ("error", 137, "KILL")


def test_a_rejected_publish_leaves_the_service_running(shared_agent: Agent) -> None:
    session = shared_agent.session()
    shared_agent.call("file_write", path="both", content="mine\n", workspace_session_id=session)
    up = serve(shared_agent, session, "echo up; exec sleep 600", "web", {"pattern": "up"})
    shared_agent.call("file_write", path="both", content="theirs\n")
    with pytest.raises(Failed):
        shared_agent.call("publish_workspace_session", workspace_session_id=session)
    command = up["command_session_id"]
    assert shared_agent.call("read_command_lines", command_session_id=command)["status"] == "running"
    shared_agent.call("rebase_workspace_session", workspace_session_id=session, on_conflict="theirs")
    assert shared_agent.call("read_command_lines", command_session_id=command)["status"] == "error"
    shared_agent.call("publish_workspace_session", workspace_session_id=session)
