"""The client of `fastmcp`, which a framework has inside."""

import asyncio
from typing import Any


class FastMcp:
    def __init__(self, client: Any) -> None:
        self.client = client

    async def about(self) -> dict[str, Any]:
        answer = self.client.initialize_result
        info = getattr(answer, "serverInfo", None) or getattr(answer, "server_info", None)
        return {"server": info.name if info is not None else None, "protocol": None}

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self.client.list_tools()]

    async def call(
        self, name: str, arguments: dict[str, Any], progress: list[float] | None = None
    ) -> dict[str, Any]:
        async def note(value: float, total: float | None, message: str | None) -> None:
            if progress is not None:
                progress.append(value)

        found = await self.client.call_tool(name, arguments, progress_handler=note, raise_on_error=False)
        return {
            "text": "\n".join(getattr(block, "text", "") for block in found.content),
            "is_error": found.is_error,
            "structured": found.structured_content,
        }

    async def cancel(self, call: "asyncio.Task[Any]") -> None:
        call.cancel()

    async def resources(self) -> list[str]:
        return [str(one.uri) for one in await self.client.list_resources()]

    async def prompts(self) -> list[str]:
        return [one.name for one in await self.client.list_prompts()]
