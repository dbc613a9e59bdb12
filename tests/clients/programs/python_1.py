"""`mcp` 1.x."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import mcp.types as types
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from session_1 import Session1
from tour import SPEC, tour


async def main() -> None:
    async with AsyncExitStack() as stack:
        if SPEC["transport"] == "stdio":
            server = StdioServerParameters(command=SPEC["command"], args=SPEC["args"], env=SPEC["env"])
            streams: Any = await stack.enter_async_context(stdio_client(server))
        else:
            streams = await stack.enter_async_context(
                streamablehttp_client(SPEC["url"], headers=SPEC["headers"])
            )
        info = types.Implementation(name=SPEC["name"], version="1")
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1], client_info=info))
        answer = await session.initialize()
        await tour(Session1(session, answer))


asyncio.run(main())
