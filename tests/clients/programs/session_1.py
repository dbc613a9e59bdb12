"""A `ClientSession` of `mcp` 1.x, which several frameworks have inside."""

import asyncio
from typing import Any

import mcp.types as types
from mcp import ClientSession
from tour import noting, outcome


class Session1:
    """The session, and what its `initialize` answered."""

    def __init__(self, session: ClientSession, answer: Any = None) -> None:
        self.session, self.answer = session, answer
        self._cancelled: int | None = None

    async def about(self) -> dict[str, Any]:
        if self.answer is None:
            return {"server": None, "protocol": None}
        return {"server": self.answer.serverInfo.name, "protocol": str(self.answer.protocolVersion)}

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def call(
        self, name: str, arguments: dict[str, Any], progress: list[float] | None = None
    ) -> dict[str, Any]:
        if progress is not None:
            self._cancelled = self.session._request_id  # the id that this request gets
        return outcome(await self.session.call_tool(name, arguments, progress_callback=noting(progress)))

    async def cancel(self, call: "asyncio.Task[Any]") -> None:
        """Cancel the task; 1.x says nothing of it to the server by itself."""
        params = types.CancelledNotificationParams(requestId=self._cancelled, reason="the user went on")
        notification = types.CancelledNotification(method="notifications/cancelled", params=params)
        await self.session.send_notification(types.ClientNotification(notification))
        call.cancel()

    async def resources(self) -> list[str]:
        return [str(one.uri) for one in (await self.session.list_resources()).resources]

    async def prompts(self) -> list[str]:
        return [one.name for one in (await self.session.list_prompts()).prompts]
