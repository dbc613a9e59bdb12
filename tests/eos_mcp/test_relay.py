"""The relay against the long way: the same answers, the same requests at the agent, whichever of them carries
a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eos_agent.wire import protocol
from eos_agent.wire.protocol import Request
from eos_mcp import catalog
from eos_mcp.agent_client import pool
from eos_mcp.agent_client.deadlines import Deadlines
from eos_mcp.gateway import server as gateway_server
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
    """One request the long way leaves a kept connection behind."""
    one.agent.behaviour, before = echo, one.agent.behaviour
    await one.raw(line("file_list", scope=SANDBOX))
    one.agent.behaviour = before
    one.agent.requests.clear()


def both_ways(folder: str, behaviour: Behaviour, data: bytes, monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """What the client reads, what the agent was asked and what counted as a change: over the long way, then
    over the relay.
    """
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 60.0)
    found: list[Seen] = []
    for relayed in (False, True):

        async def case(one: Gateway, relayed: bool = relayed) -> Seen:
            carried: list[int] = []

            async def watched(request: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
                carried.append(len(one.server._relay))  # pyright: ignore[reportPrivateUsage]
                return await behaviour(request, writer)

            one.agent.behaviour = watched
            if not relayed:
                monkeypatch.setattr(one.server._relay, "take", lambda *_: False)  # pyright: ignore[reportPrivateUsage]
            await warm(one)
            reply = await all_of(one, data)
            assert carried[0] == relayed
            while one.server.busy:
                await asyncio.sleep(0)
            return reply, [op for op in one.agent.ops() if op != "sandbox_daemon_ready"], one.manager.active

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
def test_either_way_gives_the_same_answer_and_asks_the_agent_as_often(
    short_dir: str, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, op: str, sent: int
) -> None:
    data = line(op, scope=SANDBOX, args={"n": 1, "text": "ä\ud800"}, request_id="r-1", _stream_logs=True)
    long, relayed = both_ways(short_dir, behaviour, data, monkeypatch)
    assert long == relayed
    assert long[0].endswith(b"\n") and long[1] == [op] * sent


def test_the_end_of_the_time_is_told_the_same_way_and_the_late_answer_meets_no_other_request(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
        if request.args.get("wait"):
            await asyncio.Event().wait()
        return await echo(request, writer)

    monkeypatch.setattr(catalog, "budget_s", lambda _, args: 0.5 if args.get("wait") else 30.0)
    long, relayed = both_ways(
        short_dir, silent, line("file_read", scope=SANDBOX, args={"wait": True}), monkeypatch
    )
    assert long == relayed
    assert json.loads(long[0])["error"]["details"]["reason"] == "forward_timeout"


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


def test_a_connection_that_was_idle_proves_itself_before_the_relay_sends(
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


def test_a_cancellation_finds_a_relayed_command_in_flight_and_no_longer_afterwards(
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
            assert len(one.server._relay) == 1 and not one.server._open  # pyright: ignore[reportPrivateUsage]
            told = await one.raw(line("cancel_request", scope=SANDBOX, args={"request_id": "long"}))
            assert told["args"]["in_flight"] is True
            release.set()
            await command
            told = await one.raw(line("cancel_request", scope=SANDBOX, args={"request_id": "long"}))
            assert told["args"]["in_flight"] is False

    run(short_dir, case)


def test_a_relayed_request_counts_as_a_connection_and_is_told_when_the_gateway_stops(
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


def test_a_client_that_left_meanwhile_costs_nobody_anything(
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


def test_who_says_nothing_is_told_so_when_the_time_is_over_or_the_gateway_stops(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(one: Gateway) -> None:
        monkeypatch.setattr(gateway_server, "READ_TIMEOUT_S", 0.05)
        reply = json.loads(await all_of(one, b""))
        assert reply["error"]["details"]["reason"] == "request_timeout"
        monkeypatch.setattr(gateway_server, "READ_TIMEOUT_S", 30.0)
        waiting = asyncio.create_task(all_of(one, b""))
        while not one.server.busy:
            await asyncio.sleep(0)
        await one.server.stop_accepting()
        await one.server.finish(0)
        assert kind(json.loads(await waiting)) == "server_shutting_down"

    run(short_dir, case)


def test_deadlines_ring_in_their_order_and_not_once_they_are_cleared() -> None:
    async def case() -> None:
        deadlines, rung, over = Deadlines(), list[str](), asyncio.Event()
        now = time.monotonic()
        deadlines.set("later", now + 0.02, over.set)
        deadlines.set("cleared", now, lambda: rung.append("cleared"))
        deadlines.set("first", now, lambda: rung.append("first"))
        deadlines.set("moved", now, lambda: rung.append("too early"))
        deadlines.set("moved", now + 0.01, lambda: rung.append("moved"))
        deadlines.clear("cleared")
        deadlines.clear("unknown")
        await over.wait()
        assert rung == ["first", "moved"]
        deadlines.set("never", now + 0.01, lambda: rung.append("never"))
        deadlines.close()
        again = asyncio.Event()
        asyncio.get_running_loop().call_at(now + 0.03, again.set)
        await again.wait()
        assert rung == ["first", "moved"]

    asyncio.run(case())
