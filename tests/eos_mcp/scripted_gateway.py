"""A gateway client with prepared replies, below a real MCP server and client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.types import CallToolResult, Implementation, TextContent

from eos_agent.wire.protocol import OperationError
from eos_mcp.gateway_client.aio import GatewayRequest, ToolGateway
from eos_mcp.mcp import app
from eos_mcp.mcp.server_options import ServerOptions


class Asked(NamedTuple):
    op: str
    args: dict[str, Any]
    sandbox_id: str | None
    request_id: str
    timeout_s: float
    streams: bool


Reply = (
    dict[str, Any]
    | OperationError
    | Exception
    | Callable[[Callable[[str], Awaitable[None]] | None], Awaitable[dict[str, Any]]]
)


class ScriptedGateway(ToolGateway):
    """Gateway that answers each operation with the test's reply, and keeps the requests."""

    def __init__(self, **replies: Reply) -> None:
        self.replies, self.asked = replies, list[Asked]()

    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        streams = request.on_progress is not None
        self.asked.append(
            Asked(
                request.op,
                dict(request.args),
                request.sandbox_id,
                request.request_id,
                request.timeout_s,
                streams,
            )
        )
        reply = self.replies[request.op]
        if isinstance(reply, Exception):
            raise reply
        if callable(reply):
            return await reply(request.on_progress)
        return reply


class Called(NamedTuple):
    text: str
    structure: dict[str, Any]
    is_error: bool


def shown(result: CallToolResult) -> Called:
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.structured_content is not None
    return Called(content.text, result.structured_content, bool(result.is_error))


def call(
    name: str,
    arguments: dict[str, Any],
    gateway: ScriptedGateway,
    options: ServerOptions | None = None,
    mode: ConnectMode = "legacy",
    client_name: str | None = None,
) -> Called:
    async def go() -> Called:
        server = app.build(options or ServerOptions(), gateway=gateway).server
        info = Implementation(name=client_name, version="1") if client_name else None
        async with Client(server, mode=mode, client_info=info) as client:
            return shown(await client.call_tool(name, arguments))

    return anyio.run(go)
