"""Calls of tools that go past the SDK against the same calls through it: the same bytes, and whatever is not plain is the SDK's."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import mcp_types.methods
import pytest

from eos_agent.wire.protocol import CONNECTION_ERROR, OperationError, error_envelope
from eos_mcp.mcp import app, tools
from eos_mcp.mcp.eras import Lanes
from eos_mcp.mcp.express import Express
from eos_mcp.mcp.handshake import VERSION_KEY
from eos_mcp.mcp.server_options import ServerOptions
from tests.eos_mcp.test_mcp_tools import ScriptedGateway

Message = dict[str, Any]
Progress = Callable[[str], Awaitable[None]] | None
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


class Pipe:
    """A client's side of the lanes of one server. `carried`: ids of the calls that did not go through the SDK."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.carried = lanes, list[Any]()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()

    def write(self, line: bytes) -> None:
        self._lines.put_nowait(line)

    def send(self, message: Message | bytes) -> None:
        self.lanes.take(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    async def line(self) -> bytes:
        return await self._lines.get()

    def close(self) -> None:
        """Everything was read; the lanes' own ends go with the process that they are made for, and here by hand."""
        assert self._lines.empty()
        for lane in self.lanes._lanes.values():  # pyright: ignore[reportPrivateUsage]
            lane.close()


def run(
    gateway: ScriptedGateway, case: Callable[[Pipe], Awaitable[list[bytes]]], *, past: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[bytes], list[Any]]:
    """What `case` read, and which ids were carried past the SDK."""

    async def whole() -> tuple[list[bytes], list[Any]]:
        built = app.build(ServerOptions(roots=("/w",)), gateway=gateway)  # else calls that touch the machine ask the client first
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                pipe = Pipe(Lanes(built.server, tasks, lambda line: pipe.write(line), built.tools if past else None))
                take = Express.take

                def noted(self: Express, message: Any) -> bool:
                    carried = take(self, message)
                    if carried:
                        pipe.carried.append(message.id)
                    return carried

                monkeypatch.setattr(Express, "take", noted)
                read = await case(pipe)
                monkeypatch.setattr(Express, "take", take)
                pipe.close()
                tasks.cancel_scope.cancel()
        return read, pipe.carried

    return anyio.run(whole)


async def handshake(pipe: Pipe, version: str = "2025-06-18") -> None:
    client = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    pipe.send({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": client})
    assert json.loads(await pipe.line())["result"]["protocolVersion"] == version
    pipe.send({"jsonrpc": "2.0", "method": "notifications/initialized"})


def call(request_id: Any = 1, name: str = "list_sandboxes", arguments: Any = None, **params: Any) -> Message:
    arguments = {} if arguments is None else arguments
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": {"name": name, "arguments": arguments, **params}}


async def bug(_: Progress) -> Message:
    raise TypeError("inner words")


PLAIN: Sequence[Message] = (
    call(),
    call("text"),
    call(-5, arguments={"unknown": 1}),
    call(2, name="made_up"),
    call(3, name=""),
    call(4, name="inspect_sandbox", arguments={"sandbox_id": "s"}),
    call(5, name="gateway_info"),
    call(6, name="exec_command", arguments={"sandbox_id": "s", "cmd": "ä"}),
    call(7, name="file_read", arguments={"sandbox_id": "s", "path": "a"}),
    call(8, name="file_list", arguments={"sandbox_id": "s"}),
    call(9, name="list_commands", arguments={"sandbox_id": "s"}),
    {"jsonrpc": "2.0", "id": 10, "method": "tools/call", "params": {"name": "list_sandboxes"}},
    call(11, _meta={"progressToken": "p"}),
    call(12, _meta={"progressToken": 0}),
    {**call(13), "extra": {"a": 1}},
)


def scripted() -> ScriptedGateway:
    command = {"status": "ok", "exit_code": 0, "output": "ä\u2028\x00" * 9000, "start_offset": 0, "end_offset": 1, "total_lines": 1}
    return ScriptedGateway(
        list_sandboxes={
            "sandboxes": [{"id": "s", "daemon": None, "n": [1e-7, 1e22, -0.0, 2**64, True, float("inf")]}],
            "": {"_meta": None},
        },
        inspect_sandbox=error_envelope("invalid_request", "sandbox not found: s", {"sandbox_id": "s", "hint": None}),
        gateway_info=OperationError(CONNECTION_ERROR, "no gateway", {"errno": "ENOENT"}),
        exec_command={**command, "command_session_id": None},
        file_read=bug,
        file_list={"name": "\ud800"},
        list_commands={"commands": []},
    )


async def answers(pipe: Pipe, messages: Sequence[Message | bytes]) -> list[bytes]:
    """What is read back, each message sent after the answer of the one before."""
    read: list[bytes] = []
    for message in messages:
        pipe.send(message)
        read.append(await pipe.line())
    return read


@pytest.mark.parametrize("version", VERSIONS)
def test_a_plain_call_is_answered_with_the_bytes_of_the_sdk(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(pipe: Pipe) -> list[bytes]:
        await handshake(pipe, version)
        return await answers(pipe, PLAIN)

    theirs, none = run(scripted(), case, past=False, monkeypatch=monkeypatch)
    ours, carried = run(scripted(), case, past=True, monkeypatch=monkeypatch)
    for ask, one, other in zip(PLAIN, theirs, ours, strict=True):
        assert other == one, ask
    assert none == [] and carried == [message["id"] for message in PLAIN]


ODD: Sequence[Message | bytes] = (
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"arguments": {}}},
    call(3, name=5),  # type: ignore[arg-type]
    call(4, arguments=[1]),
    {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "list_sandboxes", "arguments": None}},
    call(6, _meta={"progressToken": True}),
    call(7, _meta={"progressToken": 1.5}),
    call(8, _meta={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}),
    call(9, _meta=None),
    call(10, task={"ttl": 5}),
    call(11, _meta={VERSION_KEY: "2026-07-28"}),
    {"jsonrpc": "2.0", "id": 12, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": 13, "method": "ping"},
    {"jsonrpc": "2.0", "id": 14, "method": "tools/calls"},
    b'{"jsonrpc":"2.0","id":15,"method":"tools/call","params":{"name":"\\ud800"}}\n',
)


def test_what_is_not_plain_is_the_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(pipe: Pipe) -> list[bytes]:
        await handshake(pipe)
        return await answers(pipe, ODD)

    theirs, _ = run(scripted(), case, past=False, monkeypatch=monkeypatch)
    ours, carried = run(scripted(), case, past=True, monkeypatch=monkeypatch)
    assert ours == theirs and carried == []


def test_before_the_handshake_is_answered_and_after_one_that_failed_a_call_is_the_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(pipe: Pipe) -> list[bytes]:
        pipe.send(call(1))
        read = [await pipe.line()]
        pipe.send({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": {"protocolVersion": 5}})
        read.append(await pipe.line())
        pipe.send(call(3))
        read.append(await pipe.line())
        await handshake(pipe)
        pipe.send(call(4))
        read.append(await pipe.line())
        return read

    theirs, _ = run(scripted(), case, past=False, monkeypatch=monkeypatch)
    ours, carried = run(scripted(), case, past=True, monkeypatch=monkeypatch)
    assert ours == theirs and carried == [4]


@pytest.mark.parametrize("past", [False, True])
def test_a_cancelled_call_is_not_answered_and_its_command_is_cancelled(past: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[anyio.Event] = []

    async def endless(_: Progress) -> Message:
        inside[0].set()
        await anyio.sleep_forever()
        return {}

    gateway = ScriptedGateway(exec_command=endless, cancel_request={"cancelled": True}, list_sandboxes={"sandboxes": []})

    async def case(pipe: Pipe) -> list[bytes]:
        await handshake(pipe)
        for request_id, said in ((7, 7), ("8", 8)):  # the SDK takes both for one id
            inside[:] = [anyio.Event()]
            pipe.send(call(request_id, "exec_command", {"sandbox_id": "s", "cmd": "sleep 9"}))
            await inside[0].wait()
            pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": said}})
        pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "unknown"}})
        pipe.send(call(9))
        return [await pipe.line()]

    read, carried = run(gateway, case, past=past, monkeypatch=monkeypatch)
    assert json.loads(read[0])["id"] == 9
    ran = [asked.request_id for asked in gateway.asked if asked.op == "exec_command"]
    assert [asked.args["request_id"] for asked in gateway.asked if asked.op == "cancel_request"] == ran
    assert carried == ([7, "8", 9] if past else [])


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("said", [7, "7"])
def test_a_cancellation_that_comes_with_its_call_is_not_lost(past: bool, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(_: Progress) -> Message:
        await anyio.sleep_forever()
        return {}

    gateway = ScriptedGateway(exec_command=endless, cancel_request={"cancelled": True}, list_sandboxes={"sandboxes": []})

    async def case(pipe: Pipe) -> list[bytes]:
        await handshake(pipe)
        pipe.send(call(7, "exec_command", {"sandbox_id": "s", "cmd": "sleep 9"}))
        pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": said}})
        pipe.send(call(9))
        read = [await pipe.line()]
        await pipe.lanes.idle()  # nobody waits for the cancelled one
        ran.extend(asked.request_id for asked in gateway.asked if asked.op == "exec_command")
        return read

    ran = list[str]()
    read, carried = run(gateway, case, past=past, monkeypatch=monkeypatch)
    assert [json.loads(line)["id"] for line in read] == [9] and carried == ([7, 9] if past else [])
    assert len(ran) == (0 if past else 1)  # the SDK begins it before it reads on
    assert [asked.args["request_id"] for asked in gateway.asked if asked.op == "cancel_request"] == ran


def test_a_cancellation_that_finds_the_sandbox_busy_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "CANCEL_PAUSE_S", 0.0)
    answers = [
        error_envelope("server_busy", "64 connections", {}),
        error_envelope("server_busy", "64 connections", {}),
        {"cancelled": True},
    ]
    inside, over = list[anyio.Event](), list[anyio.Event]()

    async def endless(_: Progress) -> Message:
        inside[0].set()
        await anyio.sleep_forever()
        return {}

    async def cancelled(_: Progress) -> Message:
        found = answers.pop(0)
        if not answers:
            over[0].set()
        return found

    async def case(pipe: Pipe) -> list[bytes]:
        await handshake(pipe)
        inside[:], over[:] = [anyio.Event()], [anyio.Event()]
        pipe.send(call(7, "exec_command", {"sandbox_id": "s", "cmd": "sleep 9"}))
        await inside[0].wait()
        pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        await over[0].wait()
        return []

    run(ScriptedGateway(exec_command=endless, cancel_request=cancelled), case, past=True, monkeypatch=monkeypatch)
    assert answers == []


def untimed(line: bytes) -> bytes:
    return re.sub(rb'"progress":[0-9.]+', b'"progress":0', line).rstrip()


def test_progress_comes_before_the_answer_with_the_token_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(progress: Progress) -> Message:
        assert progress is not None
        for text in ("one", "zwei ä"):
            await progress(text)
        return {"id": "s"}

    async def case(pipe: Pipe) -> list[bytes]:
        await handshake(pipe)
        read: list[bytes] = []
        for token in ("p", 0):
            pipe.send(call(1, "create_sandbox", {"image": "host", "workspace_root": "/w"}, _meta={"progressToken": token}))
            read += [await pipe.line() for _ in range(3)]
        return read

    theirs, _ = run(ScriptedGateway(create_sandbox=talk), case, past=False, monkeypatch=monkeypatch)
    ours, carried = run(ScriptedGateway(create_sandbox=talk), case, past=True, monkeypatch=monkeypatch)
    assert [untimed(line) for line in ours] == [untimed(line) for line in theirs] and carried == [1, 1]
    assert untimed(ours[0]).endswith(b'"params":{"progressToken":"p","progress":0,"message":"one"}}')


def test_an_sdk_that_writes_results_otherwise_keeps_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    written = mcp_types.methods.serialize_server_result
    monkeypatch.setattr(mcp_types.methods, "serialize_server_result", lambda *how: {**written(*how), "new": 1})

    async def case(pipe: Pipe) -> list[bytes]:
        await handshake(pipe)
        pipe.send(call())
        return [await pipe.line()]

    read, carried = run(scripted(), case, past=True, monkeypatch=monkeypatch)
    assert carried == [] and json.loads(read[0])["result"]["new"] == 1
