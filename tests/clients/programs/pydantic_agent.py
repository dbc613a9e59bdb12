"""`pydantic-ai`: its tool set, on the client of fastmcp that it has inside."""

import asyncio
from typing import Any

from fast import FastMcp
from fastmcp.client import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tour import SPEC, say, tour


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if returned:
        return ModelResponse(parts=[TextPart(str(returned[-1].content))])
    assert "exec_command" in {tool.name for tool in info.function_tools}
    return ModelResponse(parts=[ToolCallPart("exec_command", {"cmd": SPEC["hello"], "yield_time_ms": 4000})])


async def main() -> None:
    if SPEC["transport"] == "stdio":
        transport: Any = StdioTransport(command=SPEC["command"], args=SPEC["args"], env=SPEC["env"])
    else:
        transport = StreamableHttpTransport(SPEC["url"], headers=SPEC["headers"])
    client = Client(transport)
    toolset: Any = MCPToolset(client)
    async with toolset:
        await tour(FastMcp(client))
        done = await Agent(FunctionModel(scripted), toolsets=[toolset]).run("go")
        say("agent", text=done.output)


asyncio.run(main())
