"""A peer that speaks the agent's protocol on TCP and handles each request as the test sets; and a manager
that has its address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from eos_agent.wire import proof, protocol
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError, Request
from eos_mcp.record.registry import AgentAddress

TOKEN = "agent-token"
START = "ab" * proof.NONCE_BYTES
Behaviour = Callable[[Request, asyncio.StreamWriter], Awaitable[dict[str, Any] | None]]


async def echo(request: Request, _: asyncio.StreamWriter) -> dict[str, Any] | None:
    return {"op": request.op, "args": request.args}


async def vanish(_: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
    writer.transport.abort()
    return None


class ScriptedAgent:
    """`behaviour` answers every request but the handshake; None as its answer closes the connection."""

    def __init__(self, sandbox_id: str, behaviour: Behaviour = echo) -> None:
        self.sandbox_id, self.behaviour = sandbox_id, behaviour
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> ScriptedAgent:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if self._server is not None:
            await self._server.wait_closed()

    def ops(self) -> list[str]:
        return [request.op for request in self.requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        owed, proved, key = "", False, proof.start_key(TOKEN, self.sandbox_id, START)
        try:
            while line := await reader.readline():
                value = protocol.decode_object(line)
                if proof.PROVE_KEY in value:
                    expected = proof.meet(
                        key, self.sandbox_id, START, {**value[proof.PROVE_KEY], "sandbox_id": self.sandbox_id}
                    )
                    owed = expected.proof
                    writer.write(protocol.encode(expected.reply))
                    continue
                if proof.PROOF_KEY in value:
                    proved = proof.matches(owed, value[proof.PROOF_KEY])
                    continue
                request = protocol.decode_request(value)
                self.requests.append(request)
                if not proved and request.transport.get(protocol.DAEMON_TOKEN_KEY) != TOKEN:
                    reply: dict[str, Any] | None = protocol.error_envelope("unauthorized", "no")
                elif request.op == "sandbox_daemon_ready":
                    reply = {"status": "ready", "sandbox_id": self.sandbox_id, "daemon": "sandbox-daemon"}
                else:
                    reply = await self.behaviour(request, writer)
                if reply is None:
                    return
                writer.write(protocol.encode(reply))
                await writer.drain()
                if request.transport.get(protocol.KEEP_ALIVE_KEY) is not True:
                    return
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


class ScriptedManager:
    """A manager with one sandbox per agent. `moved`: the agents' addresses after a refresh."""

    def __init__(self, *agents: ScriptedAgent) -> None:
        self.at = {agent.sandbox_id: agent.port for agent in agents}
        self.proves = True
        self.moved: dict[str, int] = {}
        self.refreshes = 0
        self.active: list[str] = []
        self.handled: list[tuple[str, dict[str, Any]]] = []
        self.work: Callable[[Callable[[str], None]], Awaitable[dict[str, Any]]] | None = None

    async def target(self, sandbox_id: str, *, refresh: bool = False) -> AgentAddress:
        if sandbox_id not in self.at:
            raise OperationError(
                INVALID_REQUEST,
                f"sandbox not found: {sandbox_id}",
                {"sandbox_id": sandbox_id},
                reason="sandbox_not_found",
            )
        if refresh:
            self.refreshes += 1
            self.at.update(self.moved)
        return AgentAddress("127.0.0.1", self.at[sandbox_id], TOKEN, sandbox_id, None, self.proves)

    async def start(self) -> None: ...

    def handles(self, op: str, scope_kind: str) -> bool:
        return (op, scope_kind) in (
            ("list_sandboxes", "system"),
            ("create_sandbox", "system"),
            ("destroy_sandbox", "system"),
            ("snapshot", "system"),
            ("cgroup", "sandbox"),
        )

    async def handle(
        self, op: str, args: dict[str, Any], *, request_id: str, progress: Callable[[str], None]
    ) -> dict[str, Any]:
        self.handled.append((op, args))
        if self.work is not None:
            return await self.work(progress)
        return {"sandboxes": []}

    async def explain(self, sandbox_id: str, op: str, broken: OperationError | None) -> OperationError | None:
        return broken

    def note_silence(self, sandbox_id: str) -> None:
        """Do nothing: these tests do not show it."""

    def http_base(self, sandbox_id: str) -> str | None:
        return "http://127.0.0.1:81"

    def note_activity(self, sandbox_id: str) -> None:
        self.active.append(sandbox_id)

    def sandbox_count(self) -> int:
        return len(self.at)

    async def close(self) -> None: ...
