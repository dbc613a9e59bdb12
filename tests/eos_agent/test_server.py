"""The raw line protocol of a real agent: one line each way, tokens, limits, scope, shutdown."""

from __future__ import annotations

import json
import os
import socket
import stat
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.wire.protocol import encode_request

from .agent_process import TOKEN, Agent, Connection

pytestmark = pytest.mark.needs("overlay")


def test_an_agent_that_serves_leaves_its_addresses_and_says_what_it_found(shared_agent: Agent) -> None:
    with open(shared_agent.settings["endpoint_path"]) as file:
        endpoint = json.load(file)
    assert endpoint["format"] == 1 and endpoint["pid"] == shared_agent.pid
    with open(shared_agent.settings["pid_path"]) as file:
        assert int(file.read()) == shared_agent.pid
    assert stat.S_IMODE(os.stat(shared_agent.settings["socket_path"]).st_mode) == 0o600
    boot = [line for line in shared_agent.log if not line.startswith("{")]
    assert [line.split(":")[0].split(" ")[0:3] for line in boot[:3]] == [
        ["live", "remount", "kernel"],
        ["boot", "reap", "removed"],
        ["boot", "storage", "sweep"],
    ]


def test_a_tcp_request_wants_the_token_and_the_answer_is_one_line(shared_agent: Agent) -> None:
    ready = {"status": "ready", "sandbox_id": "eos-test", "daemon": "sandbox-daemon"}
    assert shared_agent.tcp_call("sandbox_daemon_ready") == ready
    for token in ("", "wrong", TOKEN + "x", "\ud800"):
        raw = json.dumps(
            {
                "op": "x",
                "request_id": "r",
                "scope": {"kind": "system"},
                "args": {},
                "_sandbox_daemon_auth_token": token,
            }
        ).encode()
        assert shared_agent.tcp(raw + b"\n")["error"]["kind"] == "unauthorized"
    assert shared_agent.tcp(shared_agent.line("sandbox_daemon_ready"))["error"]["kind"] == "unauthorized"


def test_a_peer_that_has_half_closed_without_a_newline_still_gets_its_answer(shared_agent: Agent) -> None:
    raw = encode_request(
        "sandbox_daemon_ready",
        {},
        request_id="r",
        sandbox_id="eos-test",
        _sandbox_daemon_auth_token=TOKEN,
        some_future_key=[1],
    )
    assert shared_agent.tcp(raw.rstrip(b"\n"))["status"] == "ready"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"nonsense\n", "bad_json"),
        (b"[1]\n", "bad_json"),
        (b'{"op":"","request_id":"r","scope":{"kind":"system"},"args":{}}\n', "invalid_request"),
        (b'{"op":"x","request_id":7,"scope":{"kind":"system"},"args":{}}\n', "invalid_request"),
        (b'{"op":"x","request_id":"r","scope":{"kind":"galaxy"},"args":{}}\n', "invalid_request"),
        (b'{"op":"file_read","request_id":"r","scope":{"kind":"system"},"args":{}}\n', "invalid_request"),
        (
            b'{"op":"file_read","request_id":"r","scope":{"kind":"sandbox","sandbox_id":"other"},"args":{"path":"a"}}\n',
            "invalid_request",
        ),
        (
            b'{"op":"file_read","request_id":"r","scope":{"kind":"sandbox","sandbox_id":"eos-test"},"args":{}}\n',
            "invalid_request",
        ),
        (
            b'{"op":"no_such","request_id":"r","scope":{"kind":"sandbox","sandbox_id":"eos-test"},"args":{}}\n',
            "unknown_op",
        ),
        (
            b'{"op":"export_layerstack","request_id":"r","scope":{"kind":"sandbox","sandbox_id":"eos-test"},"args":{}}\n',
            "unknown_op",
        ),
    ],
)
def test_what_is_no_request_of_ours_gets_an_error_of_its_kind(
    shared_agent: Agent, line: bytes, kind: str
) -> None:
    connection = shared_agent.connect()
    answer = connection.line(line)
    connection.close()
    assert list(answer) == ["error"] and list(answer["error"]) == ["kind", "message", "details"]
    assert answer["error"]["kind"] == kind


def test_a_kept_connection_serves_many_requests_and_another_ends_after_its_answer(
    shared_agent: Agent,
) -> None:
    connection = shared_agent.connect()
    for number in range(5):
        raw = encode_request(
            "sandbox_daemon_ready", {}, request_id=str(number), sandbox_id="eos-test", _keep_alive=True
        )
        assert connection.line(raw)["status"] == "ready"
    error = encode_request(
        "file_read", {"path": "nope"}, request_id="e", sandbox_id="eos-test", _keep_alive=True
    )
    assert connection.line(error)["error"]["kind"] == "not_found"
    assert connection.line(shared_agent.line("sandbox_daemon_ready"))["status"] == "ready"
    assert connection.file.read() == b""
    connection.close()


def test_requests_that_come_in_one_piece_or_torn_apart_are_answered_one_by_one(shared_agent: Agent) -> None:
    connection = shared_agent.connect()
    raw = [
        encode_request(
            "file_read", {"path": f"no-{n}"}, request_id=str(n), sandbox_id="eos-test", _keep_alive=True
        )
        for n in range(3)
    ]
    torn = len(raw[0]) + len(raw[1]) // 2
    connection.socket.sendall(b"".join(raw)[:torn])
    assert '"no-0"' in connection.file.readline().decode()
    connection.socket.sendall(b"".join(raw)[torn:-1])
    assert '"no-1"' in connection.file.readline().decode()
    connection.socket.sendall(b"\n")
    assert '"no-2"' in connection.file.readline().decode()
    connection.close()


def test_a_request_over_the_limit_is_refused_in_words_and_one_below_it_served(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(daemon={"server": {"max_request_bytes": 65536}})
    answer = agent.tcp_call("file_write", path="big", content="x" * 70_000)
    assert answer["error"]["kind"] == "request_too_large"
    assert "exceeds" in answer["error"]["message"] and "byte limit" in answer["error"]["message"]
    assert answer["error"]["details"]["fields"] == {"limit": 65536}
    assert agent.tcp_call("file_write", path="big", content="x" * 60_000)["bytes_written"] == 60_000


def test_a_kept_connection_answers_in_order_and_to_the_end_what_came_while_it_waited_for_a_command(
    shared_agent: Agent,
) -> None:
    session = shared_agent.session()
    ready = encode_request(
        "sandbox_daemon_ready", {}, request_id="k", sandbox_id="eos-test", _keep_alive=True
    )
    slow = encode_request(
        "exec_command",
        {"cmd": "read go; echo $go", "workspace_session_id": session, "yield_time_ms": 30_000},
        request_id="s",
        sandbox_id="eos-test",
        _keep_alive=True,
    )
    for behind in (
        ready,
        ready[:20],
        ready + ready[:-1],
        b"",
    ):  # a line, a part of one, one and one without its end, nothing
        connection = shared_agent.connect()
        assert connection.line(ready)["status"] == "ready"
        connection.socket.sendall(slow)
        while (
            not (found := shared_agent.call("list_commands", workspace_session_id=session)["commands"])[-1:]
            or found[-1]["exit_code"] is not None
        ):
            pass
        connection.socket.sendall(behind)
        if behind == ready[:20]:
            connection.socket.sendall(ready[20:])
        connection.socket.shutdown(socket.SHUT_WR)
        shared_agent.call(
            "write_command_stdin",
            command_session_id=found[-1]["command_session_id"],
            stdin="went\n",
            yield_time_ms=0,
        )
        answers = [json.loads(line) for line in connection.file]
        assert answers[0]["output"].splitlines() == ["went", "went"]  # the terminal's echo, and the command's
        assert [answer["status"] for answer in answers[1:]] == ["ready"] * (
            0 if not behind else 2 if len(behind) > len(ready) else 1
        )
        connection.close()


def test_who_waits_over_a_kept_connection_when_the_agent_ends_gets_an_error(agent: Agent) -> None:
    command = agent.run("echo precious; sleep 1000", yield_time_ms=0)["command_session_id"]
    waiting = agent.connect()
    args = {"command_session_id": command, "timeout_ms": 60_000}
    waiting.line(
        encode_request("sandbox_daemon_ready", {}, request_id="k", sandbox_id="eos-test", _keep_alive=True)
    )
    waiting.socket.sendall(
        encode_request("wait_command", args, request_id="w", sandbox_id="eos-test", _keep_alive=True)
    )
    while agent.call("daemon")["daemon"]["runtime_usage"]["connection_admission_in_use"] < 2:
        pass
    assert agent.stop() == 0
    assert (
        json.loads(waiting.file.readline())["error"]["kind"] == "server_shutting_down"
        and waiting.file.read() == b""
    )
    waiting.close()


def test_connections_over_the_limit_get_an_error_and_idle_kept_ones_do_not_count(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(daemon={"server": {"max_concurrent_connections": 2}})
    kept: list[Connection] = []
    for _ in range(3):
        connection = agent.connect()
        kept.append(connection)
        raw = encode_request(
            "sandbox_daemon_ready", {}, request_id="k", sandbox_id="eos-test", _keep_alive=True
        )
        assert connection.line(raw)["status"] == "ready"
    session = agent.session()
    go = agent.call("exec_command", cmd="read x", workspace_session_id=session, yield_time_ms=0)[
        "command_session_id"
    ]
    wait = agent.line("wait_command", command_session_id=go, timeout_ms=60_000)
    busy = [agent.connect() for _ in range(2)]
    for connection in busy:
        connection.socket.sendall(wait)
    answer: dict[str, Any] = {}
    for _ in range(200):
        connection = agent.connect()
        answer = connection.line(agent.line("sandbox_daemon_ready"))
        connection.close()
        if "error" in answer:
            break
    assert answer["error"]["kind"] == "server_busy"
    assert answer["error"]["details"]["fields"] == {"max_concurrent_connections": 2}
    ended = encode_request(
        "write_command_stdin",
        {"command_session_id": go, "stdin": "x\n", "yield_time_ms": 0},
        request_id="w",
        sandbox_id="eos-test",
        _keep_alive=True,
    )
    kept[0].line(ended)
    for connection in busy:
        assert json.loads(connection.file.readline())["status"] == "ok"
    for connection in [*kept, *busy]:
        connection.close()


def test_a_dropped_connection_cancels_nothing(shared_agent: Agent) -> None:
    session = shared_agent.session()
    connection = shared_agent.connect()
    raw = shared_agent.line(
        "exec_command", cmd="read go; echo went > proof", workspace_session_id=session, yield_time_ms=30_000
    )
    connection.socket.sendall(raw)
    while not (found := shared_agent.call("list_commands", workspace_session_id=session)["commands"]):
        pass
    connection.close()
    command = found[0]["command_session_id"]
    shared_agent.call("write_command_stdin", command_session_id=command, stdin="go\n")
    assert shared_agent.call("wait_command", command_session_id=command)["status"] == "ok"
    assert shared_agent.read("proof", workspace_session_id=session) == "went"
    shared_agent.call("destroy_workspace_session", workspace_session_id=session)


def test_a_silent_connection_is_closed_and_a_kept_one_that_rests_is_not(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(daemon={"server": {"request_read_timeout_s": 0.2}})
    kept = agent.connect()
    raw = encode_request("sandbox_daemon_ready", {}, request_id="k", sandbox_id="eos-test", _keep_alive=True)
    assert kept.line(raw)["status"] == "ready"
    silent, half = agent.connect(), agent.connect()
    half.socket.sendall(b'{"op":')
    assert silent.file.read() == b"" and half.file.read() == b""
    assert kept.line(raw)["status"] == "ready"
    for connection in (kept, silent, half):
        connection.close()


def test_who_waits_when_the_agent_ends_gets_an_error(agent: Agent) -> None:
    session = agent.session()
    command = agent.run("echo precious > kept; sleep 1000", session, yield_time_ms=0)["command_session_id"]
    waiting = agent.connect()
    waiting.socket.sendall(agent.line("wait_command", command_session_id=command, timeout_ms=60_000))
    while "kept" not in str(agent.call("file_list", workspace_session_id=session)):
        pass
    assert agent.stop() == 0
    answer = json.loads(waiting.file.readline())
    waiting.close()
    assert (
        answer["error"]["kind"] == "server_shutting_down" and answer["error"]["details"]["retryable"] is True
    )


def test_sigterm_ends_an_agent_and_what_it_had_is_there_for_the_next(agent: Agent) -> None:
    agent.call("file_write", path="published", content="yes")
    session = agent.session()
    agent.run("echo precious > kept; rm README.md", session)
    assert agent.stop() == 0
    assert not os.path.exists(agent.settings["endpoint_path"]) and not os.path.exists(
        agent.settings["socket_path"]
    )
    agent.start()
    assert agent.read("published") == "yes"
    (draft,) = agent.call("list_drafts")["drafts"]
    assert draft["origin"] == f"workspace_session:{session}"
    again = agent.session(draft_id=draft["draft_id"])
    assert agent.read("kept", workspace_session_id=again) == "precious"


def test_a_second_agent_on_the_same_store_is_refused(agent: Agent) -> None:
    second = Agent.__new__(Agent)
    second.__dict__.update(agent.__dict__)
    second.log = []
    second.settings = {
        **agent.settings,
        "socket_path": agent.settings["socket_path"] + "2",
        "pid_path": agent.settings["pid_path"] + "2",
    }
    second.settings["endpoint_path"] += "2"
    second.settings_path = agent.settings_path + "2"
    second.start(wait=False)
    assert second.wait() == 1
    assert any("store_busy" in line or "StoreBusy" in line for line in second.log)
    assert agent.read("README.md") == "hello"


# HTTP


def http(
    agent: Agent, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    with open(agent.settings["endpoint_path"]) as file:
        host, port = json.load(file)["http"]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{host}:{port}{path}", data=body, method=method, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_health_needs_no_token_and_files_list_of_the_local_provider_does(shared_agent: Agent) -> None:
    status, body = http(shared_agent, "GET", "/health")
    assert (
        status == 200 and json.loads(body)["status"] == "ok" and json.loads(body)["service"] == "daemon_http"
    )
    assert http(shared_agent, "POST", "/files/list", b"{}")[0] == 401
    bearer = f"Bearer {TOKEN}"
    status, body = http(shared_agent, "POST", "/files/list", b'{"path":"src"}', Authorization=bearer)
    assert (status, json.loads(body)) == (200, shared_agent.call("file_list", path="src"))
    status, body = http(shared_agent, "POST", "/files/list", b'{"path":"none"}', Authorization=bearer)
    assert status == 200 and json.loads(body)["error"]["kind"] == "not_found"
    assert http(shared_agent, "POST", "/files/list", b"nonsense", Authorization=bearer)[0] == 400
    assert http(shared_agent, "GET", "/files/list", Authorization=bearer)[0] == 405
    for path in ("/", "/files/list/extra", "/files/read", "/healthy"):
        assert http(shared_agent, "POST", path, b"{}", Authorization=bearer) == (404, b"not found")


def test_http_answers_no_page_that_came_by_a_name(shared_agent: Agent) -> None:
    for headers in ({"Host": "evil.example:80"}, {"Origin": "http://evil.example"}):
        assert http(shared_agent, "GET", "/health", None, **headers)[0] == 403
    assert http(shared_agent, "GET", "/health", Origin="http://127.0.0.1:9")[0] == 200


def test_no_command_reaches_the_agents_socket_or_its_token(shared_agent: Agent) -> None:
    paths = [shared_agent.settings["socket_path"], shared_agent.settings["endpoint_path"], shared_agent.store]
    found = shared_agent.run("; ".join(f"ls -A {path}" for path in paths) + "; env", None)
    found["output"] += shared_agent.run(
        "cat /proc/*/environ /proc/*/cmdline /proc/net/unix /proc/self/mountinfo 2>/dev/null | tr '\\0' ' '"
    )["output"]
    assert (
        shared_agent.run(f"cat {shared_agent.settings['token_file']} 2>/dev/null | grep -c .")["output"]
        == "0"
    )
    assert TOKEN not in found["output"] and "manifest" not in found["output"]
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(shared_agent.settings["socket_path"])
