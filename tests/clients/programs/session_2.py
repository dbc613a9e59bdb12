"""A `ClientSession` of `mcp` 2.x, which a framework has inside."""

import asyncio
from typing import Any

from tour import noting, outcome


class Session2:
    """The session, and what its `initialize` answered."""

    def __init__(self, session: Any, answer: Any) -> None:
        self.session, self.answer = session, answer

    async def about(self) -> dict[str, Any]:
        info = getattr(self.answer, "server_info", None)
        return {"server": info.name if info else None, "protocol": None}

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def call(
        self, name: str, arguments: dict[str, Any], progress: list[float] | None = None
    ) -> dict[str, Any]:
        more = {} if progress is None else {"progress_callback": noting(progress)}
        return outcome(await self.session.call_tool(name, arguments, **more))

    async def cancel(self, call: "asyncio.Task[Any]") -> None:
        call.cancel()

    async def resources(self) -> list[str]:
        return [str(one.uri) for one in (await self.session.list_resources()).resources]

    async def prompts(self) -> list[str]:
        return [one.name for one in (await self.session.list_prompts()).prompts]
