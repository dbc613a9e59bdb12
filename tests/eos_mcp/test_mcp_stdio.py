"""The stdio runner against the defects that users of Python MCP servers meet. Real processes and pipes."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eos_mcp.mcp.server_options import MAX_MESSAGE_BYTES
from tests.eos_mcp.mcp_wire import END_S, FIXTURE, Wire, call, discover, fixture, initialize


def text(answer: dict[str, Any]) -> str:
    return str(answer["result"]["structuredContent"]["text"])


def test_what_tools_children_and_modules_print_goes_to_standard_error_and_never_into_the_protocol() -> None:
    with fixture() as wire:
        wire.open()
        assert text(wire.ask(call(1, "noisy"))) == "noisy"
        for printed in ("PRINTED", "RAW", "CHILD", "A MODULE PRINTS"):
            wire.says(printed)
        wire.close_input()
        assert wire.ends() == 0
        assert wire.rest() == []


def test_a_child_that_reads_its_standard_input_finds_it_empty_and_eats_no_request() -> None:
    with fixture() as wire:
        wire.open()
        wire.send(call(1, "cat"), call(2, "fast", {"text": "still here"}))
        answers = wire.answers(2)
        assert text(answers[1]) == ""
        assert text(answers[2]) == "still here"


UNPARSABLE = {
    "a lone surrogate": b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fast","arguments":{"text":"\\ud800"}}}',  # noqa: E501
    (
        "bytes that are not UTF-8"
    ): b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fast","arguments":{"text":"\xff"}}}',
    "a batch": b'[{"jsonrpc":"2.0","id":7,"method":"ping"}]',
    "broken JSON, id first": b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":',
    "broken JSON, id last": b'{"method":"ping","params":{,"jsonrpc":"2.0","id":7}',
    "another version": b'{"jsonrpc":"1.0","id":7,"method":"ping"}',
    "a method that is no string": b'{"jsonrpc":"2.0","id":7,"method":5}',
    "params that are no object": b'{"jsonrpc":"2.0","id":7,"method":"ping","params":3}',
    "very deep nesting": b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}}",
}


@pytest.fixture(scope="module")
def shared() -> Any:
    with fixture() as wire:
        wire.open()
        yield wire
        wire.close_input()
        assert wire.ends() == 0


@pytest.mark.parametrize("line", UNPARSABLE.values(), ids=UNPARSABLE.keys())
def test_a_request_that_cannot_be_parsed_is_answered_with_its_id_and_the_next_one_works(
    shared: Wire, line: bytes
) -> None:
    shared.send(line + b"\n")
    answer = shared.answers(1)[7]
    assert answer["error"]["code"] in (-32600, -32700)
    assert text(shared.ask(call(8, "fast", {"text": "next"}))) == "next"


NO_ID = (
    b"\n",
    b"   \r\n",
    b"garbage\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b'"text"\n',
    b"\x00\n",
)


def test_lines_without_an_id_are_dropped_without_an_answer_and_without_harm(shared: Wire) -> None:
    shared.send(*NO_ID, call("after", "fast", {"text": "alive"}))
    assert text(shared.answers(1)["after"]) == "alive"


@pytest.mark.parametrize(
    "first",
    [b"garbage\n", UNPARSABLE["a batch"] + b"\n", b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}\n'],
)
def test_a_strange_first_message_does_not_end_the_server(first: bytes) -> None:
    with fixture() as wire:
        wire.send(first, initialize("init"))
        while wire.receive().get("id") != "init":
            pass
        assert text(wire.ask(call(2, "fast", {"text": "alive"}))) == "alive"


@pytest.mark.parametrize("id_first", [True, False])
def test_a_message_above_the_limit_is_refused_by_id_and_the_next_one_works(
    shared: Wire, id_first: bool
) -> None:
    long = "x" * (MAX_MESSAGE_BYTES + 1)
    message = {
        "method": "tools/call",
        "params": {"name": "fast", "arguments": {"text": long}},
        "jsonrpc": "2.0",
        "id": 7,
    }
    if id_first:
        message = {"jsonrpc": "2.0", "id": 7, **{key: message[key] for key in ("method", "params")}}
    answer = shared.ask(message)
    assert answer["error"]["data"] == {"limit": MAX_MESSAGE_BYTES}
    assert text(shared.ask(call(8, "fast", {"text": "next"}))) == "next"


def test_a_message_of_ten_megabytes_passes_both_ways(shared: Wire) -> None:
    long = "é" * (5 << 20)
    line = json.dumps(call(1, "fast", {"text": long}), ensure_ascii=False).encode() + b"\n"
    shared.send(line)
    assert text(shared.answers(1)[1]) == long


def test_unicode_comes_back_as_it_went_whatever_the_code_page_and_line_ends() -> None:
    odd = "\u2028\u2029\x00\x7f é 漢 🜚 \ufeff"
    with fixture(env={"PYTHONIOENCODING": "cp1252", "LC_ALL": "C"}) as wire:
        wire.send(json.dumps(initialize()).encode() + b"\r\n")
        wire.answers(1)
        wire.send(json.dumps(call(1, "fast", {"text": odd})).encode() + b"\r\n")
        assert text(wire.answers(1)[1]) == odd
        wire.send(json.dumps(call(2, "fast", {"text": odd}), ensure_ascii=False).encode() + b"\r\n")
        assert text(wire.answers(1)[2]) == odd


BUSY = {
    "nothing": [],
    "a call that waits": [call(1, "slow")],
    "a call whose thread is stuck": [call(1, "block")],
    "a call that blocks the event loop": [call(1, "stick")],
}


def busy(wire: Wire, calls: list[dict[str, Any]]) -> None:
    wire.open()
    assert text(wire.ask(call("ready", "fast", {"text": "ready"}))) == "ready"
    wire.send(*calls)
    if calls:
        wire.says("BEGUN")


@pytest.mark.parametrize("calls", BUSY.values(), ids=BUSY.keys())
def test_the_end_of_input_ends_the_server_within_seconds(calls: list[dict[str, Any]]) -> None:
    with fixture() as wire:
        busy(wire, calls)
        wire.close_input()
        assert wire.ends() == 0
        assert not any("Traceback" in line for line in wire.stderr)


@pytest.mark.parametrize(
    ("number", "calls"),
    [
        *(pytest.param(signal.SIGTERM, calls, id=f"SIGTERM-{name}") for name, calls in BUSY.items()),
        pytest.param(
            signal.SIGINT, BUSY["a call that waits"], id="SIGINT-a call that waits"
        ),  # both have one handler
    ],
)
def test_a_signal_ends_the_server_within_seconds_and_cleans_up_while_input_stays_open(
    number: signal.Signals, calls: list[dict[str, Any]]
) -> None:
    with fixture() as wire:
        busy(wire, calls)
        wire.process.send_signal(number)
        assert wire.ends() == 0
        assert not any("Traceback" in line for line in wire.stderr)
        assert any(line.startswith("CANCELLED") for line in wire.stderr) == (
            calls == BUSY["a call that waits"]
        )


TGKILL = ctypes.CDLL(None).syscall
NUMBER_OF_TGKILL = {"x86_64": 234, "aarch64": 131}


def test_a_signal_that_does_not_interrupt_the_wait_of_the_main_thread_ends_the_server() -> None:
    """The kernel may give it to another thread, or to the main thread in the moment before its wait begins:
    the wait goes on in both.
    """
    with fixture() as wire:
        busy(wire, BUSY["a call whose thread is stuck"])
        pid = wire.process.pid
        other = next(int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid)
        assert TGKILL(NUMBER_OF_TGKILL[os.uname().machine], pid, other, int(signal.SIGTERM)) == 0
        assert wire.ends() == 0
        assert "SIGTERM: shutting down" in wire.stderr


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_servers_with_a_stuck_thread_end_at_a_signal_that_comes_at_any_moment() -> None:
    dice = random.Random(50)
    for _ in range(50):
        with fixture() as wire:
            busy(wire, BUSY["a call whose thread is stuck"])
            time.sleep(dice.random() * 0.02)
            wire.process.send_signal(signal.SIGTERM)
            assert wire.ends() == 0
            assert "SIGTERM: shutting down" in wire.stderr


def test_a_second_signal_ends_the_server_at_once() -> None:
    with fixture() as wire:
        busy(wire, BUSY["a call that blocks the event loop"])
        wire.process.send_signal(signal.SIGTERM)
        wire.says("SIGTERM: shutting down")
        wire.process.send_signal(signal.SIGINT)
        assert wire.ends() == 0


def test_a_signal_while_the_sdk_is_imported_ends_the_server_without_a_traceback(tmp_path: Path) -> None:
    with fixture(str(tmp_path / "never")) as wire:
        wire.ask(initialize())
        wire.process.send_signal(signal.SIGINT)
        assert wire.ends() == 0
        assert not any("Traceback" in line for line in wire.stderr)


def test_an_output_that_nobody_reads_does_not_keep_the_server_alive() -> None:
    with fixture() as wire:
        busy(wire, [])
        wire.send(call(1, "big", {"size": 2 << 20}))
        wire.output_is_full()
        wire.close_input()
        assert wire.ends() == 0


def test_an_output_that_is_closed_ends_the_server() -> None:
    with fixture() as wire:
        busy(wire, [])
        wire.close_output()
        wire.send(call(1, "fast"))
        assert wire.ends() == 0


def test_control_c_on_a_terminal_ends_the_server() -> None:
    ours, theirs = pty.openpty()
    try:
        with Wire(["setsid", "-c", sys.executable, FIXTURE, "stdio", "-"], stdin=theirs) as wire:
            os.write(ours, json.dumps(initialize()).encode() + b"\n")
            wire.answers(1)
            os.write(ours, json.dumps(call(1, "fast", {"text": "ready"})).encode() + b"\n")
            wire.answers(1)
            os.write(ours, b"\x03")
            assert wire.ends() == 0
            assert not any("Traceback" in line for line in wire.stderr)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_killed_client_takes_its_server_with_it() -> None:
    client = (
        "import json, subprocess, sys, time\n"
        "server = subprocess.Popen([sys.executable, sys.argv[1], 'stdio', '-'], stdin=subprocess.PIPE, "
        "stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "server.stdin.write(sys.argv[2].encode() + b'\\n'); server.stdin.flush(); server.stdout.readline()\n"
        "print(server.pid, flush=True); time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", client, FIXTURE, json.dumps(initialize())]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            parent.wait()
            assert select.select([server], [], [], END_S)[0], "the server outlives its client"
        finally:
            os.close(server)


def test_requests_before_the_end_of_input_are_answered() -> None:
    with fixture() as wire:
        wire.send(initialize(), call(1, "fast", {"text": "a"}), call(2, "slow", {"seconds": 0.1}))
        wire.close_input()
        assert text(wire.answers(3)[2]) == "slow"
        assert wire.ends() == 0


def test_forty_slow_calls_do_not_delay_a_trivial_one() -> None:
    with fixture() as wire:
        busy(wire, [])
        wire.send(*(call(number, "block") for number in range(45)))
        wire.says("BEGUN")
        assert text(wire.ask(call("trivial", "fast", {"text": "at once"}))) == "at once"
        wire.close_input()
        assert wire.ends() == 0


def test_a_cancelled_call_is_stopped_and_gets_no_answer() -> None:
    with fixture() as wire:
        busy(wire, BUSY["a call that waits"])
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        wire.says("CANCELLED")
        assert text(wire.ask(call(2, "fast", {"text": "free"}))) == "free"
        wire.close_input()
        assert wire.ends() == 0
        assert wire.rest() == []


@pytest.mark.parametrize("modern", [False, True])
def test_progress_comes_only_with_a_token_and_never_after_the_result(modern: bool) -> None:
    with fixture() as wire:
        wire.open()
        wire.send(
            call(1, "slow", {"seconds": 2}, modern=modern, progressToken="t"),
            call(2, "slow", {"seconds": 2.5}, modern=modern),
        )
        messages = [wire.receive() for _ in range(3)]
        assert [message.get("method") for message in messages] == ["notifications/progress", None, None]
        assert messages[0]["params"]["progressToken"] == "t"
        assert [message.get("id") for message in messages[1:]] == [1, 2]
        wire.close_input()
        assert wire.ends() == 0
        assert wire.rest() == []


def test_both_eras_work_on_one_pipe_whichever_comes_first() -> None:
    with fixture() as wire:
        wire.send(discover("d"), initialize("i"))  # a probe that was given up, and the handshake after it
        assert set(wire.answers(2)) == {"d", "i"}
        assert text(wire.ask(call(1, "fast", {"text": "legacy"}))) == "legacy"
        assert text(wire.ask(call(2, "fast", {"text": "modern"}, modern=True))) == "modern"
    with fixture() as wire:
        wire.open()
        assert text(wire.ask(call(1, "fast", {"text": "modern"}, modern=True))) == "modern"
        assert wire.ask(discover(2))["result"]["supportedVersions"] == ["2026-07-28"]
        assert text(wire.ask(call(3, "fast", {"text": "legacy"}))) == "legacy"


@pytest.mark.parametrize("opening", [initialize("first"), discover("first")], ids=["initialize", "discover"])
def test_the_opening_request_is_answered_before_the_sdk_is_imported(
    tmp_path: Path, opening: dict[str, Any]
) -> None:
    gate = tmp_path / "gate"
    modern = opening["method"] != "initialize"
    with fixture(str(gate)) as wire:
        early = wire.ask(opening)["result"]
        wire.send(call(1, "fast", {"text": "kept"}, modern=modern))
        gate.touch()
        assert text(wire.answers(1)[1]) == "kept"
        late = wire.ask({**opening, "id": "again"})
        assert modern is False or late["result"] == early
        wire.close_input()
        assert wire.ends() == 0
        assert wire.rest() == []  # the SDK's own answer to the first request was dropped


def test_a_failure_of_the_server_is_reported_on_standard_error_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "anyio.py").write_text("raise ImportError('not here')\n")
    with fixture(env={"PYTHONPATH": str(tmp_path)}) as wire:
        assert wire.ends() == 1
        wire.says("not here")
