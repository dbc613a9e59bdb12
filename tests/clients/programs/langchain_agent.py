"""`langchain` with `langchain-mcp-adapters`, on `mcp` 1.x."""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from session_1 import Session1
from tour import SPEC, say, tour


class Scripted(GenericFakeChatModel):
    """A model that calls exec_command once."""

    def bind_tools(self, tools: Any, **more: Any) -> "Scripted":
        return self


async def main() -> None:
    if SPEC["transport"] == "stdio":
        how: Any = {"transport": "stdio", **{key: SPEC[key] for key in ("command", "args", "env")}}
    else:
        how = {"transport": "streamable_http", "url": SPEC["url"], "headers": SPEC["headers"]}
    async with MultiServerMCPClient({"eos": how}).session("eos") as session:
        await tour(Session1(session))
        tools = await load_mcp_tools(session)
        for tool in tools:
            convert_to_openai_tool(tool, strict=True)
        asked = {"name": "exec_command", "args": {"cmd": SPEC["hello"], "yield_time_ms": 4000}, "id": "1"}
        model = Scripted(messages=iter([AIMessage("", tool_calls=[asked]), AIMessage("done")]))
        done = await create_agent(model, tools).ainvoke({"messages": [("user", "go")]})
        (result,) = (one for one in done["messages"] if isinstance(one, ToolMessage))
        say("agent", text=str(result.content))


asyncio.run(main())
