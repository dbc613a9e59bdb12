"""`mcp` 2.x."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Implementation
from tour import SPEC, noting, outcome, tour


class Python2:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def about(self) -> dict[str, Any]:
        info = self.client.server_info
        return {"server": info.name if info else None, "protocol": self.client.protocol_version}

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def call(
        self, name: str, arguments: dict[str, Any], progress: list[float] | None = None
    ) -> dict[str, Any]:
        return outcome(await self.client.call_tool(name, arguments, progress_callback=noting(progress)))

    async def cancel(self, call: "asyncio.Task[Any]") -> None:
        call.cancel()

    async def resources(self) -> list[str]:
        return [str(one.uri) for one in (await self.client.list_resources()).resources]

    async def prompts(self) -> list[str]:
        return [one.name for one in (await self.client.list_prompts()).prompts]


async def main() -> None:
    async with AsyncExitStack() as stack:
        if SPEC["transport"] == "stdio":
            server: Any = StdioServerParameters(command=SPEC["command"], args=SPEC["args"], env=SPEC["env"])
        else:
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=SPEC["headers"], timeout=120))
            server = streamable_http_client(SPEC["url"], http_client=http)
        client = Client(
            server, client_info=Implementation(name=SPEC["name"], version="1"), mode=SPEC.get("mode", "auto")
        )
        await tour(Python2(await stack.enter_async_context(client)))


asyncio.run(main())
