"""The three programs as processes: envelopes, exit statuses, discovery, acceptance vectors 1-4, output
options.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire import protocol
from eos_mcp.cli import output
from eos_mcp.gateway_client import sync
from tests.eos_mcp.programs import argv, error, no_gateway_left, result, run
from tests.processes import WAIT_S

NOWHERE = ("--gateway-socket", "127.0.0.1:1", "--gateway-auth-token", "t")


class OneAnswer:
    """A listening TCP port that says fixed bytes to each request and keeps what it was asked."""

    def __init__(self, *replies: bytes) -> None:
        self.replies, self.requests, self.port = list(replies), list[dict[str, Any]](), 0
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(30)

    def _run(self) -> None:
        async def serve() -> None:
            server = await asyncio.start_server(self._answer, "127.0.0.1", 0, limit=1 << 25)
            self.port = int(server.sockets[0].getsockname()[1])
            self._stop = asyncio.Event()
            self._ready.set()
            await self._stop.wait()
            server.close()
            await server.wait_closed()

        self._loop.run_until_complete(serve())
        self._loop.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(json.loads(await reader.readline()))
        writer.write(self.replies.pop(0))
        await writer.drain()
        writer.close()

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--gateway-socket", f"127.0.0.1:{self.port}", "--gateway-auth-token", "t")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@pytest.fixture
def answers() -> Generator[Any]:
    made: list[OneAnswer] = []

    def make(*replies: bytes) -> OneAnswer:
        made.append(OneAnswer(*replies))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_vector_1_an_unknown_operation_is_exactly_one_line(state_dir: str) -> None:
    done = run("manager", *NOWHERE, "nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == '{"error":{"kind":"invalid_request","message":"unknown operation: nope","details":{}}}\n'
    )


def test_an_operation_of_another_program_is_sent_there(state_dir: str) -> None:
    for words in (("squash_layerstacks",), ("help", "squash_layerstacks")):
        found = error(run("runtime", *NOWHERE, "--sandbox-id", "s", *words), 2)
        assert found["message"].startswith(
            "unknown operation: squash_layerstacks; sandbox-manager-cli has it"
        )


def test_vector_2_nobody_there_is_a_connection_error(state_dir: str) -> None:
    found = error(run("manager", *NOWHERE, "list_sandboxes"), 1)
    assert (found["kind"], found["details"]) == ("connection_error", {})


def test_vector_3_a_blank_token_of_the_environment_is_a_config_error(state_dir: str) -> None:
    blank = {"SANDBOX_GATEWAY_AUTH_TOKEN": " "}
    assert error(run("manager", "list_sandboxes", env=blank), 2)["kind"] == "config_error"
    assert error(run("manager", "--gateway-auth-token", "", "list_sandboxes"), 2)["kind"] == "config_error"
    assert (
        error(run("manager", *NOWHERE, "list_sandboxes", env=blank), 1)["kind"] == "connection_error"
    )  # a flag wins


def test_vector_4_the_runtime_program_wants_a_sandbox(state_dir: str) -> None:
    found = error(run("runtime", "exec_command", "pwd"), 2)
    assert found["kind"] == "invalid_request" and "--sandbox-id" in found["message"]
    assert error(run("runtime", "--sandbox-id", " ", "exec_command", "pwd"), 2)["kind"] == "invalid_request"


def test_a_bad_endpoint_is_reported_before_a_bad_operation_and_a_bad_request_id_before_both(
    state_dir: str,
) -> None:
    bad = ("--sandbox-id", "s", "--gateway-endpoint", "nonsense")
    assert error(run("runtime", *bad, "nope"), 2)["kind"] == "config_error"
    assert "1-128" in error(run("runtime", *bad, "--request-id", "a b", "nope"), 2)["message"]
    assert "--sandbox-id" in error(run("runtime", "--gateway-endpoint", "nonsense", "nope"), 2)["message"]


def test_help_needs_neither_sandbox_nor_gateway(state_dir: str) -> None:
    for words in ((), ("help",), ("--help",), ("help", "file_read"), ("file_read", "--help"), ("--version",)):
        done = run("runtime", *words, env={"SANDBOX_GATEWAY_AUTH_TOKEN": " "})
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("\n")
    assert error(run("runtime", "help", "a", "b"), 2)["kind"] == "invalid_request"
    assert "Did you mean" in error(run("runtime", "help", "stdin"), 2)["message"]
    assert run("manager", "--version").stdout == "sandbox-manager-cli 0.1.0\n"
    assert not os.listdir(state_dir)


def test_an_endpoint_has_one_of_four_forms() -> None:
    assert sync.parse_endpoint("127.0.0.1:7878") == sync.GatewayEndpoint("tcp", host="127.0.0.1", port=7878)
    assert sync.parse_endpoint("tcp://[::1]:1") == sync.GatewayEndpoint("tcp", host="::1", port=1)
    assert (
        sync.parse_endpoint("unix:///a/b")
        == sync.parse_endpoint("/a/b")
        == sync.GatewayEndpoint("unix", path="/a/b")
    )
    for bad in (
        "",
        "a",
        "a:",
        ":1",
        "a:x",
        "a:70000",
        "::1:5",
        "unix://a",
        "unix:///",
        "npipe://./pipe/x",
        "http://a:1",
        "/" + "x" * 100,
    ):
        with pytest.raises(ValueError):
            sync.parse_endpoint(bad)


def test_the_request_is_the_contracts_envelope(state_dir: str, answers: Any) -> None:
    peer = answers(b'{"path":"a"}\n', b"{}\n")
    result(run("runtime", "--sandbox-id", "s", "--request-id", "-x", *peer.flags, "file_read", "--path", "a"))
    assert peer.requests[0] == {
        "op": "file_read",
        "request_id": "-x",
        "scope": {"kind": "sandbox", "sandbox_id": "s"},
        "args": {"path": "a", "offset": 1, "limit": 2000},
        "_sandbox_gateway_auth_token": "t",
        "_stream_logs": False,
    }
    result(run("manager", *peer.flags, "inspect_sandbox", "--sandbox-id", "s", "--progress"))
    assert peer.requests[1]["scope"] == {"kind": "system"} and peer.requests[1]["args"] == {"sandbox_id": "s"}
    assert peer.requests[1]["_stream_logs"] is True
    assert re.fullmatch(
        "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", peer.requests[1]["request_id"]
    )


def test_the_sandbox_may_come_from_the_environment_with_the_lowest_priority(
    state_dir: str, answers: Any
) -> None:
    peer = answers(b"{}\n", b"{}\n")
    run("runtime", *peer.flags, "list_drafts", env={"SANDBOX_ID": "from-env"})
    run("runtime", *peer.flags, "--sandbox-id", "flag", "list_drafts", env={"SANDBOX_ID": "from-env"})
    assert [request["scope"]["sandbox_id"] for request in peer.requests] == ["from-env", "flag"]


def test_large_and_odd_arguments_pass_untouched(state_dir: str, answers: Any) -> None:
    texts = ["x" * 98304, "\x03", "a\nb", "é\u2028", "--not-a-flag"]
    peer = answers(*[b"{}\n"] * (len(texts) + 1))
    for text in texts:
        run("runtime", "--sandbox-id", "s", *peer.flags, "exec_command", "--", text)
    run(
        "runtime",
        "--sandbox-id",
        "s",
        *peer.flags,
        "file_write",
        "--path",
        "a",
        "--content-file",
        "-",
        stdin="y" * 2_000_000,
    )
    assert [request["args"].get("cmd") for request in peer.requests[:-1]] == texts
    assert peer.requests[-1]["args"]["content"] == "y" * 2_000_000


def test_a_remote_error_keeps_its_own_words(state_dir: str, answers: Any) -> None:
    peer = answers(b'{"error":{"kind":"not_found","message":"m \xc3\xa9","details":{"path":"p"}}}\n')
    found = error(run("runtime", "--sandbox-id", "s", *peer.flags, "file_read", "--path", "p"), 1)
    assert found == {"kind": "not_found", "message": "m é", "details": {"path": "p"}}


@pytest.mark.parametrize("reply", [b"", b"{}", b"nonsense\n", b"[1]\n", b"\xff\n"])
def test_an_unusable_answer_is_a_protocol_error(state_dir: str, answers: Any, reply: bytes) -> None:
    peer = answers(reply)
    assert error(run("manager", *peer.flags, "list_sandboxes"), 1)["kind"] == "protocol_error"


@pytest.mark.parametrize("reply", [b"", b'cli_log("one")\n', b'{"id":'])
def test_a_gateway_that_went_away_before_its_reply_was_whole_is_reported_by_that_reason(
    state_dir: str, answers: Any, reply: bytes
) -> None:
    found = error(run("eos", "manager", *answers(reply).flags, "list_sandboxes"), 1)
    assert (found["kind"], found["details"]["reason"]) == ("protocol_error", "gateway_lost") and found[
        "details"
    ]["hint"]


def test_an_answer_without_end_is_given_up_at_the_cap(state_dir: str, answers: Any) -> None:
    peer = answers(b"x" * (protocol.MAX_LINE_BYTES + (1 << 20)))
    assert error(run("manager", *peer.flags, "list_sandboxes"), 1)["kind"] == "protocol_error"


def test_progress_goes_to_standard_error_and_precedes_the_output_mark(state_dir: str, answers: Any) -> None:
    peer = answers(
        b'cli_log("one")\ncli_log("two \\"x\\"")\n{"id":"s"}\n',
        b'cli_log("one")\n{"error":{"kind":"k","message":"m","details":{}}}\n',
    )
    words = ("create_sandbox", "--image", "i", "--workspace-root", "/w")
    done = run("manager", *peer.flags, *words, "--progress")
    assert (done.returncode, done.stdout) == (0, '{"id":"s"}\n')
    lines = done.stderr.splitlines()
    assert [re.sub(r"\d+\.\d{3}s", "T", line) for line in lines] == [
        "[progress T] one",
        '[progress T] two "x"',
        "[Output]",
    ]
    failed = run("manager", *peer.flags, "--progress", *words)
    assert failed.returncode == 1 and "[Output]" not in failed.stderr


def test_whoever_looks_on_at_a_terminal_sees_progress_without_asking(state_dir: str, answers: Any) -> None:
    peer = answers(b'cli_log("one")\n{"id":"s"}\n')
    ours, theirs = pty.openpty()
    try:
        words = argv("manager", *peer.flags, "create_sandbox", "--image", "i", "--workspace-root", "/w")
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True
        )
        os.close(theirs)
        theirs = -1
        said = os.read(ours, 4096)
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    assert done.stdout == b'{"id":"s"}\n' and re.fullmatch(rb"\[progress \d+\.\d{3}s\] one\r\n", said), said
    assert peer.requests[0]["_stream_logs"] is True


def test_results_are_compact_unless_asked_otherwise(state_dir: str, answers: Any) -> None:
    value = b'{"a":{"b":["x","\xc3\xa9"]},"n":1}\n'
    peer = answers(*[value] * 5)
    assert run("manager", *peer.flags, "list_sandboxes").stdout.encode() == value
    assert (
        run("manager", *peer.flags, "list_sandboxes", "--pretty").stdout
        == json.dumps(json.loads(value), indent=2, ensure_ascii=False) + "\n"
    )
    assert run("manager", *peer.flags, "--field", "a.b.1", "list_sandboxes").stdout == "é\n"
    assert run("manager", *peer.flags, "--field=a", "list_sandboxes").stdout == '{"b":["x","é"]}\n'
    assert (
        error(run("manager", *peer.flags, "--field", "a.c", "list_sandboxes"), 1)["message"]
        == "the result has no field a.c"
    )


@pytest.mark.parametrize(
    ("reply", "plain", "propagated", "rejecting"),
    [
        ({"status": "ok", "exit_code": 0}, 0, 0, 0),
        ({"status": "error", "exit_code": 7}, 0, 7, 0),
        ({"status": "running", "exit_code": None}, 0, 0, 0),
        ({"status": "error", "exit_code": -9}, 0, 137, 0),
        ({"status": "ok", "exit_code": 0, "publish_rejected": True}, 0, 0, 3),
        (protocol.error_envelope("operation_failed", "m", {"publish_rejection": {"path": "a"}}), 1, 1, 3),
        (protocol.error_envelope("not_found", "m"), 1, 1, 1),
    ],
)
def test_exit_statuses_of_ours_are_opt_in(
    reply: dict[str, Any], plain: int, propagated: int, rejecting: int
) -> None:
    assert output.exit_status(reply, propagate=False, fail_on_reject=False) == plain
    assert output.exit_status(reply, propagate=True, fail_on_reject=False) == propagated
    assert output.exit_status(reply, propagate=False, fail_on_reject=True) == rejecting


def test_the_umbrella_delegates_and_shows_details(state_dir: str) -> None:
    assert "eos gateway start|stop|status" in run("eos").stdout
    assert run("eos", "manager", "help").stdout.endswith("Use:\n  eos manager OPERATION\n")
    found = error(run("eos", "manager", *NOWHERE, "sandboxes"), 2)
    assert (
        found["message"] == "unknown operation: sandboxes"
        and "list_sandboxes" in found["details"]["suggestions"]
    )
    assert run("eos", "nope").returncode == 2
    assert run("eos", "--version").stdout == "eos 0.1.0\n"


@pytest.mark.parametrize("name", ["claude-code", "cursor", "vscode", "gemini", "zed"])
def test_a_clients_snippet_is_its_configuration(state_dir: str, name: str) -> None:
    done = run("eos", "mcp-config", name)
    document = json.loads(done.stdout)
    (servers,) = document.values()
    assert os.path.isabs(servers["eos"]["command"]) and done.stderr.startswith("# goes into ")


def test_codex_gets_toml(state_dir: str) -> None:
    import tomllib

    server = tomllib.loads(run("eos", "mcp-config", "codex").stdout)["mcp_servers"]["eos"]
    assert os.path.isabs(server["command"]) and server["tool_timeout_sec"] == 600
    assert run("eos", "mcp-config", "emacs").returncode == 2


@pytest.mark.parametrize("name", ["claude-code", "cursor", "vscode", "gemini", "zed", "codex"])
def test_a_clients_snippet_leads_to_the_gateway_that_this_environment_means(
    state_dir: str, name: str
) -> None:
    import tomllib

    where = {
        "EOS_STATE_DIR": os.path.relpath(state_dir),
        "SANDBOX_GATEWAY_SOCKET": 'unix:///a "b"',
        "SANDBOX_GATEWAY_AUTH_TOKEN": "secret",
    }
    done = run("eos", "mcp-config", name, env=where)
    servers: dict[str, Any] = next(iter((tomllib if name == "codex" else json).loads(done.stdout).values()))
    carried = servers["eos"]["env"]
    assert (carried["EOS_STATE_DIR"], carried["SANDBOX_GATEWAY_SOCKET"]) == (state_dir, 'unix:///a "b"')
    assert "secret" not in done.stdout + done.stderr
    if " mcp add " in done.stderr:
        words = shlex.split(done.stderr[done.stderr.index("mcp add") :])
        assert (
            words[2:5] == ["eos", "--env", f"EOS_STATE_DIR={state_dir}"]
            and words[words.index("--") + 1] == servers["eos"]["command"]
        )


def test_the_doctor_tries_things_and_names_next_steps(state_dir: str) -> None:
    done = run("eos", "doctor", env={"DOCKER_HOST": f"unix://{state_dir}/no-engine.sock"})
    assert (
        "platform" in done.stdout and "gateway" in done.stdout and f"{state_dir}/gateway.sock" in done.stdout
    )
    docker = done.stdout[done.stdout.index("FAIL docker") :]
    first, second = docker.splitlines()[:2]
    assert (
        f"{state_dir}/no-engine.sock (from DOCKER_HOST): nothing listens there" in first
        and "-> start Docker" in second
    )
    assert not os.listdir(state_dir)  # a check-up starts and makes nothing


def test_the_doctor_looks_at_the_engine_that_a_gateway_would_take(state_dir: str) -> None:
    done = run("eos", "doctor", env={"DOCKER_HOST": "", "DOCKER_CONTEXT": "elsewhere"})
    assert (
        "FAIL docker          DOCKER_CONTEXT names the docker context elsewhere, which does not exist"
        in done.stdout
    )


def test_the_doctor_promises_only_what_the_back_end_that_was_chosen_can_make(state_dir: str) -> None:
    done = run("eos", "doctor", env={"EOS_GATEWAY_BACKEND": "none"})
    assert (
        done.stdout.splitlines()[-1]
        == "sandboxes can be made on: nothing yet; see FAIL above (EOS_GATEWAY_BACKEND=none)"
    )
    assert done.returncode == 1
    last = run("eos", "doctor", env={"EOS_GATEWAY_BACKEND": "local"}).stdout.splitlines()[-1]
    assert "Docker" not in last and last.endswith("(EOS_GATEWAY_BACKEND=local)")


def _interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Press Ctrl-C, and again while the process waits: a signal that comes between the interpreter's last
    look and its recv(2) is seen only after the next one.
    """
    for _ in range(int(WAIT_S) // 5):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=5)
    process.kill()
    raise AssertionError(f"not interrupted: {process.communicate(timeout=WAIT_S)}")


def test_ctrl_c_says_that_the_call_goes_on_and_where_to_look(state_dir: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        where = ("--gateway-socket", f"127.0.0.1:{gateway.getsockname()[1]}", "--gateway-auth-token", "t")
        for words, expected in (
            (("runtime", *where, "--sandbox-id", "s", "exec_command", "sleep 9"), "list_commands shows it"),
            (
                ("manager", *where, "create_sandbox", "--image", "host", "--workspace-root", "/x"),
                "list_sandboxes shows it",
            ),
            (("manager", *where, "list_sandboxes"), None),
        ):
            process = subprocess.Popen(
                argv(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            connection, _ = gateway.accept()
            with connection, connection.makefile("rb") as lines:
                assert lines.readline()
                out, err = _interrupted(process)
            found = error(subprocess.CompletedProcess(words, process.returncode, out, err), 130)
            assert expected in found["message"] if expected else found["message"] == "interrupted"


def test_a_slip_of_the_keys_gets_the_operation_that_was_meant(state_dir: str) -> None:
    for typed, meant in (("exec_comand", "exec_command"), ("file-raed", "file_read")):
        found = error(run("runtime", *NOWHERE, "--sandbox-id", "s", typed), 2)
        assert found == {
            "kind": "invalid_request",
            "message": f"unknown operation: {typed}; did you mean {meant}?",
            "details": {},
        }
        assert (
            error(run("eos", "runtime", *NOWHERE, "--sandbox-id", "s", typed), 2)["details"]["suggestions"][0]
            == meant
        )
        assert f"Did you mean:\n  {meant}\n" in error(run("runtime", "help", typed), 2)["message"]


def test_the_doctor_promises_no_sandbox_where_state_or_cache_cannot_be_made(state_dir: str) -> None:
    for variable, name in (("XDG_CACHE_HOME", "cache"), ("EOS_STATE_DIR", "state")):
        done = run("eos", "doctor", env={variable: "/proc/nowhere"})
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"FAIL {name} ")]
        assert "/proc/nowhere" in line and "cannot be made" in line
        assert f"-> set {variable} to" in done.stdout
        assert done.returncode == 1 and "sandboxes can be made on: nothing yet" in done.stdout


def test_the_catalog_export_is_the_document() -> None:
    from eos_mcp import catalog

    done = run("catalog_export")
    assert json.loads(done.stdout) == json.loads(json.dumps(catalog.document()))
    assert run("catalog_export", "x").returncode == 2


def test_a_reader_that_leaves_early_is_no_traceback(state_dir: str, answers: Any) -> None:
    import shlex
    import subprocess

    peer = answers(b'{"a":"' + b"x" * 5_000_000 + b'"}\n')
    words = " ".join(("-m", "eos_mcp.cli.sandbox_manager", *peer.flags, "list_sandboxes"))
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} {words} | head -c 1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("{", "")


def test_nothing_is_left_when_a_call_cannot_start_a_gateway(state_dir: str, tmp_path: Path) -> None:
    with no_gateway_left(state_dir):
        bad = tmp_path / "bad.yml"
        bad.write_text("gateway: {nope: 1}\n")
        found = error(run("manager", "list_sandboxes", env={"SANDBOX_GATEWAY_CONFIG_YAML": str(bad)}), 1)
        assert found["kind"] == "operation_failed" and "gateway.nope" in found["message"]
        assert not os.path.exists(os.path.join(state_dir, "gateway.sock"))


def test_a_command_line_imports_nothing_that_costs_more_than_its_own_modules() -> None:
    """Each of these is a tenth of the whole life of `list_sandboxes`."""
    code = (
        "import sys; import eos_mcp.cli.sandbox_manager; print(*sorted({'typing', 'contextlib', "
        "'dataclasses', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_a_light_named_tuple_is_what_typing_makes() -> None:
    from typing import NamedTuple

    from eos_agent.wire import namedtuple

    def made(base: Any) -> Any:
        body = {
            "__module__": __name__,
            "__qualname__": "Point",
            "__doc__": "A point.",
            "__annotations__": {"x": int, "y": str},
            "y": "b",
        }
        body["twice"] = lambda self: (*self, *self)
        return type(base)("Point", (base,), body) if base is namedtuple.NamedTuple else base

    class Point(NamedTuple):
        """A point."""

        x: int
        y: str = "b"

        def twice(self) -> tuple[Any, ...]:
            return (*self, *self)

    own = made(namedtuple.NamedTuple)
    for kind in (own, Point):
        one = kind(1)
        assert (one, one.y, one.twice(), repr(one)) == ((1, "b"), "b", (1, "b", 1, "b"), "Point(x=1, y='b')")
        assert (kind.__doc__, kind._fields, kind._field_defaults, one._replace(x=2)) == (
            "A point.",
            ("x", "y"),
            {"y": "b"},
            (2, "b"),
        )
    with pytest.raises(TypeError):
        own()
