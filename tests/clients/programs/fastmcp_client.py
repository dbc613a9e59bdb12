"""`fastmcp`."""

import asyncio
from typing import Any

from fast import FastMcp
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from tour import SPEC, tour


async def main() -> None:
    if SPEC["transport"] == "stdio":
        transport: Any = StdioTransport(command=SPEC["command"], args=SPEC["args"], env=SPEC["env"])
    else:
        transport = StreamableHttpTransport(SPEC["url"], headers=SPEC["headers"])
    async with Client(transport) as client:
        await tour(FastMcp(client))


asyncio.run(main())
