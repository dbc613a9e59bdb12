"""Who is not the agent of a sandbox, and stands where it stood: it gets no secret and no request, and nothing
that it says reaches anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from eos_agent.wire import proof, protocol
from eos_agent.wire.protocol import OperationError
from eos_mcp.agent_client import pool
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.providers.provider import ask_ready
from eos_mcp.record.registry import AgentAddress
from tests.eos_mcp.scripted_agent import START, TOKEN, ScriptedAgent, ScriptedManager

BODY = "the content of a private file"
READY = {"status": "ready", "sandbox_id": "s", "daemon": "sandbox-daemon"}
FORGED = "FAKE CONTENT FROM IMPOSTOR"


class Impostor:
    """Listens where an agent listened, keeps what it hears and answers each line by `answer`."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any]) -> None:
        self.answer = answer
        self.heard = bytearray()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                self.heard += line
                writer.write(protocol.encode(self.answer(json.loads(line))))
                await writer.drain()
        writer.close()

    def learned(self) -> list[str]:
        """What it heard of what it may not know."""
        return [
            word
            for word in (TOKEN, BODY, "file_write", "sandbox_daemon_ready", protocol.DAEMON_TOKEN_KEY)
            if word.encode() in self.heard
        ]


@contextlib.asynccontextmanager
async def standing(answer: Callable[[dict[str, Any]], Any], port: int = 0) -> AsyncGenerator[Impostor]:
    one = Impostor(answer)
    server = await asyncio.start_server(one.serve, "127.0.0.1", port)
    one.port = int(server.sockets[0].getsockname()[1])
    try:
        yield one
    finally:
        server.close()


def obliging(line: dict[str, Any]) -> dict[str, Any]:
    """As in the finding: whatever is asked, it is ready and has done it."""
    return {**READY, "content": FORGED} if line.get("op") != "file_write" else {"content": FORGED}


def recorded(line: dict[str, Any]) -> dict[str, Any]:
    """An agent's true answer to somebody else's nonce."""
    if proof.PROVE_KEY not in line:
        return obliging(line)
    key = proof.start_key(TOKEN, "s", START)
    return proof.meet(key, "s", START, {"format": 1, "sandbox_id": "s", "nonce": "cd" * 32}).reply


def reflected(line: dict[str, Any]) -> dict[str, Any]:
    """The nonce that came, as if it were its own, and a proof of the right form."""
    asked: dict[str, Any] = line.get(proof.PROVE_KEY, {})
    return {
        proof.PROVE_KEY: {
            "format": 1,
            "start": asked.get("nonce"),
            "nonce": asked.get("nonce"),
            "proof": asked.get("nonce"),
        }
    }


def wanting(line: dict[str, Any]) -> dict[str, Any]:
    """As an agent of an earlier version, which knows nothing but the token."""
    return protocol.error_envelope("unauthorized", f"the agent's token is missing or wrong {FORGED}")


def busy(line: dict[str, Any]) -> dict[str, Any]:
    return protocol.error_envelope("server_busy", FORGED)


IMPOSTORS = [obliging, recorded, reflected, wanting, busy]


@pytest.mark.parametrize("answer", IMPOSTORS)
def test_an_impostor_at_the_last_port_learns_nothing_and_the_request_reaches_the_agent(answer: Any) -> None:
    async def case() -> None:
        async with standing(answer) as impostor:
            agent = await ScriptedAgent("s").start()
            manager = ScriptedManager(agent)
            manager.at["s"], manager.moved = impostor.port, {"s": agent.port}
            forwarder = AgentPool(manager.target)
            forwarder.seen("s")  # it was there just now: nobody looks again
            try:
                reply = await forwarder.request(
                    "s", "file_write", {"content": BODY}, request_id="r", timeout_s=30
                )
            finally:
                forwarder.close()
                await agent.stop()
            assert reply == {"op": "file_write", "args": {"content": BODY}}
            assert impostor.heard and impostor.learned() == []

    asyncio.run(asyncio.wait_for(case(), 60))


@pytest.mark.parametrize("answer", IMPOSTORS)
def test_an_impostor_alone_is_nobody_and_its_words_reach_no_one(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "RECONNECT_S", 0.1)

    async def case() -> OperationError:
        async with standing(answer) as impostor:
            manager = ScriptedManager(ScriptedAgent("s"))
            manager.at["s"] = impostor.port
            forwarder = AgentPool(manager.target)
            with pytest.raises(OperationError) as caught:
                await forwarder.request("s", "file_write", {"content": BODY}, request_id="r", timeout_s=30)
            forwarder.close()
            assert impostor.learned() == []
            said = await asyncio.to_thread(
                ask_ready, AgentAddress("127.0.0.1", impostor.port, TOKEN, "s", None, True), timeout_s=10
            )
            assert said is not None and FORGED not in said and impostor.learned() == []
        return caught.value

    error = asyncio.run(asyncio.wait_for(case(), 60))
    assert error.details["reason"] == "sandbox_unreachable" and FORGED not in json.dumps(error.envelope())


def test_a_sandbox_that_was_not_spoken_to_just_now_is_looked_up_before_its_port_is_dialled() -> None:
    async def case() -> None:
        async with standing(obliging) as impostor:
            agent = await ScriptedAgent("s").start()
            manager = ScriptedManager(agent)
            manager.at["s"], manager.moved = impostor.port, {"s": agent.port}
            forwarder = AgentPool(manager.target)
            try:
                assert (await forwarder.request("s", "file_read", {}, request_id="r", timeout_s=30))[
                    "op"
                ] == "file_read"
            finally:
                forwarder.close()
                await agent.stop()
            assert impostor.heard == b""

    asyncio.run(asyncio.wait_for(case(), 60))


def test_an_engine_that_hangs_keeps_nobody_from_an_agent_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "LOOK_S", 0.05)

    async def case() -> None:
        agent = await ScriptedAgent("s").start()
        manager = ScriptedManager(agent)

        async def hanging(sandbox_id: str, *, refresh: bool = False) -> AgentAddress:
            if refresh:
                await asyncio.Event().wait()
            return await manager.target(sandbox_id)

        forwarder = AgentPool(hanging)
        try:
            assert (await forwarder.request("s", "file_read", {}, request_id="r", timeout_s=30))[
                "op"
            ] == "file_read"
        finally:
            forwarder.close()
            await agent.stop()

    asyncio.run(asyncio.wait_for(case(), 60))


def test_an_agent_of_an_earlier_version_still_gets_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case() -> None:
        agent = await ScriptedAgent("s").start()
        manager = ScriptedManager(agent)
        manager.proves = False
        forwarder = AgentPool(manager.target)
        try:
            await forwarder.request("s", "file_read", {}, request_id="r", timeout_s=30)
        finally:
            forwarder.close()
            await agent.stop()
        assert [request.transport[protocol.DAEMON_TOKEN_KEY] for request in agent.requests] == [TOKEN, TOKEN]

    asyncio.run(asyncio.wait_for(case(), 60))


@pytest.mark.needs("root", "uid")
@pytest.mark.parametrize("ours", [True, False])
def test_a_unix_socket_of_another_user_is_hung_up_on(
    short_dir: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "RECONNECT_S", 0.05)
    path = os.path.join(short_dir, "s")
    os.chmod(short_dir, 0o755)

    async def case() -> bytes:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        impostor = Impostor(wanting)
        if not ours:
            os.seteuid(65534)
        try:
            server = await asyncio.start_unix_server(
                impostor.serve, sock=listening
            )  # whose the socket is, is settled by its listen(2)
        finally:
            os.seteuid(0)

        async def target(sandbox_id: str, *, refresh: bool = False) -> AgentAddress:
            return AgentAddress("127.0.0.1", 1, TOKEN, "s", path, True)

        forwarder = AgentPool(target)
        with pytest.raises(OperationError) as caught:
            await forwarder.request("s", "file_write", {"content": BODY}, request_id="r", timeout_s=30)
        assert caught.value.details["reason"] == "sandbox_unreachable" and impostor.learned() == []
        server.close()
        return bytes(impostor.heard)

    assert bool(asyncio.run(asyncio.wait_for(case(), 60))) is ours


@pytest.mark.parametrize("change", ["role", "sandbox", "start", "secret", "nonce"])
def test_a_proof_holds_for_one_role_sandbox_start_and_connection(change: str) -> None:
    mine, start = proof.new_nonce(), proof.new_nonce()
    met = proof.meet(proof.start_key("k", "s", start), "s", start, proof.hello("s", mine)[proof.PROVE_KEY])
    assert proof.matches(met.proof, proof.check("k", "s", mine, met.reply)[proof.PROOF_KEY])
    table: dict[str, Any] = dict(met.reply[proof.PROVE_KEY])
    secret, sandbox, nonce = "k", "s", mine
    if change == "role":
        table["proof"] = met.proof
    elif change == "sandbox":
        sandbox = "t"
    elif change == "start":
        table["start"] = proof.new_nonce()
    elif change == "secret":
        secret = "l"
    else:
        nonce = proof.new_nonce()
    with pytest.raises(proof.WrongProof):
        proof.check(secret, sandbox, nonce, {proof.PROVE_KEY: table})
