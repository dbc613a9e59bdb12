"""Requests to agents over real TCP connections: reuse, proof of life, restarts, agents that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eos_agent.wire import protocol
from eos_agent.wire.protocol import OperationError, Request
from eos_mcp.agent_client import pool
from eos_mcp.agent_client.pool import AgentPool
from tests.eos_mcp.scripted_agent import ScriptedAgent, ScriptedManager, echo, vanish

Case = Callable[[ScriptedAgent, ScriptedManager, AgentPool], Awaitable[None]]


def run(case: Case) -> None:
    async def whole() -> None:
        agent = await ScriptedAgent("s").start()
        manager = ScriptedManager(agent)
        forwarder = AgentPool(manager.target)
        try:
            async with asyncio.timeout(60):
                await case(agent, manager, forwarder)
        finally:
            forwarder.close()
            await agent.stop()

    asyncio.run(whole())


async def send(
    forwarder: AgentPool, op: str = "exec_command", timeout_s: float | None = 30, **args: Any
) -> dict[str, Any]:
    return await forwarder.request("s", op, args, request_id="r", timeout_s=timeout_s)


async def failing(call: Awaitable[Any]) -> OperationError:
    with pytest.raises(OperationError) as caught:
        await call
    return caught.value


def test_one_connection_carries_request_after_request() -> None:
    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        for n in range(20):
            assert (await send(forwarder, n=n))["args"] == {"n": n}
        assert agent.connections == 1
        assert agent.ops() == ["sandbox_daemon_ready"] + ["exec_command"] * 20

    run(case)


def test_requests_at_the_same_time_have_a_connection_each_and_do_not_mix() -> None:
    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        inside, go = 0, asyncio.Event()

        async def together(request: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
            nonlocal inside
            inside += 1
            if inside == 30:
                go.set()
            await go.wait()
            return await echo(request, writer)

        agent.behaviour = together
        replies = await asyncio.gather(*(send(forwarder, n=n) for n in range(30)))
        assert [reply["args"]["n"] for reply in replies] == list(range(30))
        assert agent.connections == 30

    run(case)


def test_the_gateways_own_keys_do_not_reach_the_agent_and_its_envelope_comes_back_unchanged() -> None:
    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        envelope = protocol.error_envelope("not_found", "no", {"path": "p"})

        async def refuse(_: Request, __: asyncio.StreamWriter) -> dict[str, Any] | None:
            return envelope

        agent.behaviour = refuse
        assert await send(forwarder, "file_read") == envelope
        assert set(agent.requests[-1].transport) == {protocol.KEEP_ALIVE_KEY}

    run(case)


def test_a_restart_that_moved_the_port_is_found_by_one_refresh_and_the_command_runs_once() -> None:
    async def case(agent: ScriptedAgent, manager: ScriptedManager, forwarder: AgentPool) -> None:
        await send(forwarder)
        looked = manager.refreshes
        moved = await ScriptedAgent("s").start()
        manager.moved = {"s": moved.port}
        await agent.stop()
        try:
            assert (await send(forwarder, n=1))["args"] == {"n": 1}
            assert moved.ops() == ["sandbox_daemon_ready", "exec_command"]
            assert manager.refreshes == looked + 1
        finally:
            await moved.stop()

    run(case)


def test_an_agent_that_comes_back_on_its_port_after_a_while_is_waited_for() -> None:
    async def case(agent: ScriptedAgent, manager: ScriptedManager, forwarder: AgentPool) -> None:
        port = agent.port
        await agent.stop()
        calls = asyncio.gather(*(send(forwarder, n=n) for n in range(5)))
        while manager.refreshes < 3:
            await asyncio.sleep(0)
        again = await ScriptedAgent("s").start(port)
        try:
            assert [reply["args"]["n"] for reply in await calls] == list(range(5))
            assert again.ops().count("exec_command") == 5
        finally:
            await again.stop()

    run(case)


def test_a_command_whose_agent_vanishes_is_sandbox_gone_and_was_sent_once() -> None:
    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        agent.behaviour = vanish
        error = await failing(send(forwarder))
        assert (error.kind, error.details["reason"], error.details["retryable"]) == (
            "internal_error",
            "sandbox_gone",
            True,
        )
        assert agent.ops().count("exec_command") == 1

    run(case)


def test_a_read_is_asked_again_on_a_fresh_connection() -> None:
    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        async def once(request: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
            agent.behaviour = echo
            return await vanish(request, writer)

        agent.behaviour = once
        assert (await send(forwarder, "file_read", path="a"))["args"] == {"path": "a"}
        assert agent.ops().count("file_read") == 2

    run(case)


def test_a_connection_that_the_agent_closed_meanwhile_is_not_used() -> None:
    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        await send(forwarder)
        port = agent.port
        await agent.stop()
        again = await ScriptedAgent("s").start(port)
        try:
            assert (await send(forwarder, n=2))["args"] == {"n": 2}
        finally:
            await again.stop()

    run(case)


def test_a_connection_that_was_idle_proves_itself_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "TRUSTED_IDLE_S", 0.0)

    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        await send(forwarder)
        await send(forwarder)
        assert agent.ops() == ["sandbox_daemon_ready", "exec_command"] * 2
        assert agent.connections == 1

    run(case)


def test_the_budget_ends_the_wait_and_the_late_answer_meets_no_other_request() -> None:
    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        release = asyncio.Event()

        async def late(_: Request, __: asyncio.StreamWriter) -> dict[str, Any] | None:
            await release.wait()
            return {"late": True}

        agent.behaviour = late
        error = await failing(send(forwarder, timeout_s=0.05))
        assert (error.kind, error.details["reason"]) == ("internal_error", "forward_timeout")
        agent.behaviour = echo
        release.set()
        assert (await send(forwarder, n=3))["args"] == {"n": 3}

    run(case)


def test_another_sandbox_behind_the_port_is_not_talked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RECONNECT_S", 0.1)

    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        agent.sandbox_id = "other"
        error = await failing(send(forwarder))
        assert (error.kind, error.details["reason"]) == ("internal_error", "sandbox_unreachable")
        assert "exec_command" not in agent.ops()

    run(case)


def test_nobody_at_the_address_is_sandbox_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RECONNECT_S", 0.1)

    async def case(agent: ScriptedAgent, manager: ScriptedManager, forwarder: AgentPool) -> None:
        await agent.stop()
        error = await failing(send(forwarder))
        assert error.details["reason"] == "sandbox_unreachable" and manager.refreshes >= 1

    run(case)


def test_an_unknown_sandbox_is_the_managers_error() -> None:
    async def case(_: ScriptedAgent, __: ScriptedManager, forwarder: AgentPool) -> None:
        error = await failing(forwarder.request("t", "file_read", {}, request_id="r", timeout_s=5))
        assert (error.kind, error.message) == ("invalid_request", "sandbox not found: t")

    run(case)


def test_a_stream_has_a_connection_of_its_own_that_its_reader_gets() -> None:
    async def case(agent: ScriptedAgent, _: ScriptedManager, forwarder: AgentPool) -> None:
        async def streaming(_: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
            writer.write(b'{"header":1}\n' + b"\x00\n\xff" + b"y" * 500_000)
            await writer.drain()
            return None

        await send(forwarder)  # leaves a kept connection, which is watched
        agent.behaviour = streaming
        async with forwarder.stream("s", "export_stream", {}, request_id="r") as (connected, received):
            while chunk := await asyncio.get_running_loop().sock_recv(connected, 1 << 20):
                received += chunk
        assert received == b'{"header":1}\n' + b"\x00\n\xff" + b"y" * 500_000
        assert protocol.KEEP_ALIVE_KEY not in agent.requests[-1].transport

    run(case)
