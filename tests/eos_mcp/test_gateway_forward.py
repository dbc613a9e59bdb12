"""Requests that the gateway forwards: the reply, the requests that the agent reads, kept connections,
cancellations, a client, an agent or a gateway that ends in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eos_agent.wire import protocol
from eos_agent.wire.protocol import Request
from eos_mcp import catalog
from eos_mcp.agent_client import pool
from eos_mcp.gateway import connection
from tests.eos_mcp.gateway_socket import Gateway, gateway, kind, line
from tests.eos_mcp.scripted_agent import echo, vanish

SANDBOX = {"kind": "sandbox", "sandbox_id": "s"}
Behaviour = Callable[[Request, asyncio.StreamWriter], Awaitable[dict[str, Any] | None]]
Seen = tuple[bytes, list[str], list[str]]


def run(folder: str, case: Callable[[Gateway], Awaitable[Any]], **how: Any) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(60), gateway(folder, **how) as one:
            return await case(one)

    return asyncio.run(whole())


async def all_of(one: Gateway, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(one.path, limit=1 << 25)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()


async def warm(one: Gateway) -> None:
    """One request leaves a kept connection behind."""
    one.agent.behaviour, before = echo, one.agent.behaviour
    await one.raw(line("file_list", scope=SANDBOX))
    one.agent.behaviour = before
    one.agent.requests.clear()


def both_connections(
    folder: str, behaviour: Behaviour, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> list[Seen]:
    """Send `data` over a fresh connection to the agent, then over a kept one. Return for each the bytes that
    the client reads, the requests that the agent reads and the changes that the manager notes.
    """
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 60.0)
    found: list[Seen] = []
    for kept in (False, True):

        async def case(one: Gateway, kept: bool = kept) -> Seen:
            if kept:
                await warm(one)
            before = one.agent.connections
            one.agent.behaviour = behaviour
            reply = await all_of(one, data)
            asked = [op for op in one.agent.ops() if op != "sandbox_daemon_ready"]
            assert one.agent.connections - before == len(asked) - kept
            while one.server.busy:
                await asyncio.sleep(0)
            return reply, asked, one.manager.active

        found.append(run(folder, case))
    return found


async def refuse(request: Request, _: asyncio.StreamWriter) -> dict[str, Any] | None:
    details = {"publish_completed": True, "request_id": request.request_id}
    return protocol.error_envelope("operation_failed", "no", details)


async def fail_inside(_: Request, __: asyncio.StreamWriter) -> dict[str, Any] | None:
    return protocol.error_envelope("internal_error", "a bug", {})


async def mention(_: Request, __: asyncio.StreamWriter) -> dict[str, Any] | None:
    return {"content": 'a text with "error" in it', "error_count": 0}


async def huge(_: Request, __: asyncio.StreamWriter) -> dict[str, Any] | None:
    return {"content": "x" * (4 << 20)}


def saying(data: bytes) -> Behaviour:
    async def behave(_: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        return None

    return behave


async def in_pieces(_: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
    for piece in (b'{"a":', b"1", b"}", b"\n"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    return None


@pytest.mark.parametrize(
    ("behaviour", "op", "sent"),
    [
        (echo, "file_write", 1),
        (refuse, "publish_workspace_session", 1),
        (fail_inside, "file_read", 1),
        (mention, "file_read", 1),
        (huge, "file_read", 1),
        (vanish, "exec_command", 1),
        (vanish, "file_read", 2),
        (saying(b"nonsense\n"), "exec_command", 1),
        (saying(b'{"half":'), "exec_command", 1),
        (saying(b'{"error":null}\n'), "exec_command", 1),
        (saying(b'{"error":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n"), "exec_command", 1),
        (saying(b'{"more":1}\n{"than":"one"}\n'), "exec_command", 1),
        (saying(b'{ "\\u00e4" :1e2,\t"b":2 }\n'), "file_read", 1),
        (in_pieces, "exec_command", 1),
    ],
)
def test_a_fresh_and_a_kept_connection_carry_the_same_request_and_reply(
    short_dir: str, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, op: str, sent: int
) -> None:
    data = line(op, scope=SANDBOX, args={"n": 1, "text": "ä\ud800"}, request_id="r-1", _stream_logs=True)
    fresh, kept = both_connections(short_dir, behaviour, data, monkeypatch)
    assert fresh == kept
    assert fresh[0].endswith(b"\n") and fresh[1] == [op] * sent


def test_a_request_without_an_answer_ends_with_forward_timeout_on_either_connection(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
        if request.args.get("wait"):
            await asyncio.Event().wait()
        return await echo(request, writer)

    def budget_s(_: object, args: dict[str, Any]) -> float:
        return 0.5 if args.get("wait") else 30.0

    monkeypatch.setattr(catalog, "budget_s", budget_s)
    fresh, kept = both_connections(
        short_dir, silent, line("file_read", scope=SANDBOX, args={"wait": True}), monkeypatch
    )
    assert fresh == kept
    assert json.loads(fresh[0])["error"]["details"]["reason"] == "forward_timeout"


def test_a_request_that_is_longer_or_in_pieces_is_answered_as_well(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 60.0)

    async def case(one: Gateway) -> None:
        await warm(one)
        text = "x" * 50_000
        assert (await one.raw(line("file_write", scope=SANDBOX, args={"text": text})))["args"] == {
            "text": text
        }
        data = line("file_write", scope=SANDBOX, args={"n": 2})
        reader, writer = await asyncio.open_unix_connection(one.path)
        for n in range(0, len(data), 50):
            writer.write(data[n : n + 50])
            await asyncio.sleep(0.001)
        assert json.loads(await reader.readline())["args"] == {"n": 2}
        writer.close()
        first = await all_of(
            one,
            line("file_write", scope=SANDBOX, args={"n": 3})
            + line("file_write", scope=SANDBOX, args={"n": 4}),
        )
        assert json.loads(first)["args"] == {"n": 3}  # one request per connection
        assert kind(await one.raw(line("file_write", scope=SANDBOX).replace(b",", b",\n", 1))) == "bad_json"
        assert kind(await one.raw(line("file_write", scope=SANDBOX, token="wrong"))) == "unauthorized"

    run(short_dir, case)


def test_a_connection_that_was_idle_proves_itself_before_a_request_is_sent(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 0.0)

    async def case(one: Gateway) -> None:
        await warm(one)
        for n in range(3):
            assert (await one.raw(line("exec_command", scope=SANDBOX, args={"n": n})))["args"] == {"n": n}
        assert one.agent.ops() == ["sandbox_daemon_ready", "exec_command"] * 3
        assert one.agent.connections == 1
        one.agent.sandbox_id = "another"  # as after a restart that gave the port to it
        monkeypatch.setattr(pool, "RECONNECT_S", 0.0)
        reply = await one.raw(line("exec_command", scope=SANDBOX))
        assert reply["error"]["details"]["reason"] == "sandbox_unreachable"
        assert one.agent.ops().count("exec_command") == 3

    run(short_dir, case)


def test_a_kept_connection_that_ends_is_dropped_and_an_agent_that_moved_is_found(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 60.0)

    async def case(one: Gateway) -> None:
        await warm(one)
        await one.raw(line("exec_command", scope=SANDBOX))
        port = one.agent.port
        await one.agent.stop()
        await one.agent.start(port)
        assert (await one.raw(line("exec_command", scope=SANDBOX, args={"n": 1})))["args"] == {"n": 1}
        assert one.agent.ops().count("exec_command") == 2

    run(short_dir, case)


def test_a_cancellation_finds_a_command_in_flight_until_its_reply_came(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 60.0)

    async def case(one: Gateway) -> None:
        inside, release = asyncio.Event(), asyncio.Event()

        async def behave(request: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
            if request.op == "exec_command":
                inside.set()
                await release.wait()
                if request.args.get("vanish"):
                    return await vanish(request, writer)
            return await echo(request, writer)

        one.agent.behaviour = behave
        for args in ({}, {"vanish": True}):
            await warm(one)
            inside.clear()
            release.clear()
            command = asyncio.create_task(
                one.raw(line("exec_command", scope=SANDBOX, request_id="long", args=args))
            )
            await inside.wait()
            reply = await one.raw(line("cancel_request", scope=SANDBOX, args={"request_id": "long"}))
            assert reply["args"]["in_flight"] is True
            release.set()
            await command
            reply = await one.raw(line("cancel_request", scope=SANDBOX, args={"request_id": "long"}))
            assert reply["args"]["in_flight"] is False

    run(short_dir, case)


def test_a_forwarded_request_holds_a_place_and_gets_an_error_when_the_gateway_stops(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 60.0)

    async def case(one: Gateway) -> None:
        inside = asyncio.Event()

        async def endless(_: Request, __: asyncio.StreamWriter) -> dict[str, Any] | None:
            inside.set()
            await asyncio.Event().wait()
            return None

        await warm(one)
        one.agent.behaviour = endless
        waiting = asyncio.create_task(one.raw(line("exec_command", scope=SANDBOX)))
        await inside.wait()
        assert one.server.busy
        refused = await one.raw(line("exec_command", scope=SANDBOX))
        assert refused["error"]["details"]["reason"] == "gateway_at_capacity"
        await one.server.stop_accepting()
        await one.server.finish(0)
        assert kind(await waiting) == "server_shutting_down"

    run(short_dir, case, limit=1)


def test_a_client_that_left_during_its_request_changes_nothing_for_the_next(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 60.0)

    async def case(one: Gateway) -> None:
        inside, release = asyncio.Event(), asyncio.Event()

        async def slow(request: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
            inside.set()
            await release.wait()
            return await echo(request, writer)

        await warm(one)
        one.agent.behaviour = slow
        _, writer = await asyncio.open_unix_connection(one.path)
        writer.write(line("exec_command", scope=SANDBOX))
        await inside.wait()
        writer.transport.abort()
        release.set()
        while one.server.busy:
            await asyncio.sleep(0)
        assert one.manager.active == ["s"]  # what it asked for was done
        assert (await one.raw(line("exec_command", scope=SANDBOX, args={"n": 1})))["args"] == {"n": 1}
        assert one.agent.connections == 1

    run(short_dir, case)


def test_a_silent_client_gets_an_error_after_the_read_timeout_and_when_the_gateway_stops(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(one: Gateway) -> None:
        monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.05)
        reply = json.loads(await all_of(one, b""))
        assert reply["error"]["details"]["reason"] == "request_timeout"
        monkeypatch.setattr(connection, "READ_TIMEOUT_S", 30.0)
        waiting = asyncio.create_task(all_of(one, b""))
        while not one.server.busy:
            await asyncio.sleep(0)
        await one.server.stop_accepting()
        await one.server.finish(0)
        assert kind(json.loads(await waiting)) == "server_shutting_down"

    run(short_dir, case)
