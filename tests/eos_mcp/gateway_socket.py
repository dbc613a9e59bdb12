"""A gateway's socket over a scripted manager and a scripted agent, and single lines on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from eos_agent.wire import protocol
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.gateway import listen
from eos_mcp.gateway import router as route
from eos_mcp.gateway.server import GatewayServer
from eos_mcp.gateway_client import sync
from eos_mcp.gateway_client.sync import GatewayEndpoint, GatewaySettings
from tests.eos_mcp.scripted_agent import ScriptedAgent, ScriptedManager

TOKEN = "correct horse"


class Gateway:
    """A gateway in this process over a scripted manager and a scripted agent."""

    def __init__(
        self, path: str, manager: ScriptedManager, agent: ScriptedAgent, server: GatewayServer
    ) -> None:
        self.path, self.manager, self.agent, self.server = path, manager, agent, server
        self.settings = GatewaySettings(GatewayEndpoint("unix", path=path), TOKEN, False)

    async def raw(self, data: bytes) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(self.path, limit=1 << 25)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            value: dict[str, Any] = json.loads(await reader.readline())
            assert await reader.read() == b""  # one request per connection: the gateway closes
            return value
        finally:
            writer.close()

    async def send(self, op: str, args: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
        return await asyncio.to_thread(sync.call, self.settings, op, args or {}, **how)


@contextlib.asynccontextmanager
async def gateway(folder: str, *, limit: int = 256, contract: bool = False) -> AsyncGenerator[Gateway]:
    agent = await ScriptedAgent("s").start()
    manager = ScriptedManager(agent)
    forwarder = AgentPool(manager.target)
    listener = listen.unix(f"{folder}/g.sock")
    router = route.Router(manager, forwarder, info=route.base_info, contract_results=contract)
    server = GatewayServer([listener], TOKEN, router.answer, max_connections=limit)
    server.start()
    try:
        yield Gateway(listener.endpoint.path, manager, agent, server)
    finally:
        await server.stop_accepting()
        await server.finish(5)
        listener.socket.close()
        forwarder.close()
        await agent.stop()


def line(op: str = "list_sandboxes", *, token: Any = TOKEN, scope: Any = None, **more: Any) -> bytes:
    request: dict[str, Any] = {
        "op": op,
        "request_id": "r",
        "scope": scope or {"kind": "system"},
        "args": {},
        **more,
    }
    if token is not None:
        request[protocol.GATEWAY_TOKEN_KEY] = token
    return protocol.encode(request)


def kind(reply: dict[str, Any]) -> str:
    assert list(reply) == ["error"] and list(reply["error"]) == ["kind", "message", "details"]
    return str(reply["error"]["kind"])
