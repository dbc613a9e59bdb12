"""The tour of one Python client, which reports what it saw as one JSON object a line. Standard library only:
it runs in the client's own environment.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

SPEC: dict[str, Any] = json.loads(sys.argv[1])
"""name, transport (stdio: command, args, env; http: url, headers), and the commands of the tour."""
TURNS = 600
PAUSE_S = 0.1


class Client(Protocol):
    """A connected client; `call` returns text, is_error and structured content."""

    async def about(self) -> dict[str, Any]: ...
    async def tools(self) -> list[str]: ...
    async def call(
        self, name: str, arguments: dict[str, Any], progress: list[float] | None = None
    ) -> dict[str, Any]: ...
    async def cancel(self, call: "asyncio.Task[Any]") -> None: ...
    async def resources(self) -> list[str]: ...
    async def prompts(self) -> list[str]: ...


def say(step: str, **seen: Any) -> None:
    print(json.dumps({"step": step, **seen}), flush=True)


Noting = Callable[[float, float | None, str | None], Awaitable[None]]


def noting(values: list[float] | None) -> Noting | None:
    """Callback that keeps the values of progress; None where none are kept."""
    if values is None:
        return None

    async def note(value: float, total: float | None, message: str | None) -> None:
        values.append(value)

    return note


async def tour(client: Client) -> None:
    """Do each step once and report it."""
    say("initialize", **await client.about())
    say("list", tools=await client.tools())
    say("call", **await client.call("exec_command", {"cmd": SPEC["hello"], "yield_time_ms": 20000}))
    say("error", **await client.call("file_read", {"path": "absent"}))
    values: list[float] = []
    answer = await client.call("exec_command", {"cmd": SPEC["slow"], "yield_time_ms": 20000}, values)
    say("progress", values=values, **answer)
    say("cancel", **await cancelled(client))
    say("resources", uris=await client.resources())
    say("prompts", names=await client.prompts())


async def cancelled(client: Client) -> dict[str, Any]:
    """Cancel a call when its command runs."""
    call = asyncio.create_task(
        client.call("exec_command", {"cmd": SPEC["endless"], "yield_time_ms": 50000}, [])
    )
    for _ in range(TURNS):
        if call.done():
            return {"cancelled": False, "why": f"it ended: {call.result()}"}
        if SPEC["mark"] in (await client.call("list_workspace_sessions", {}))["text"]:
            break
        await asyncio.sleep(PAUSE_S)
    else:
        return {"cancelled": False, "why": "the command is not listed"}
    await client.cancel(call)
    try:
        return {"cancelled": False, "why": f"an answer came: {await call}"}
    except asyncio.CancelledError:
        return {"cancelled": True}


def outcome(result: Any) -> dict[str, Any]:
    """A result of `mcp`, of either generation, as the tour reports it."""
    dumped = result.model_dump(mode="json", by_alias=True)
    texts = [block.get("text") or "" for block in dumped["content"]]
    return {
        "text": "\n".join(texts),
        "is_error": bool(dumped.get("isError")),
        "structured": dumped.get("structuredContent"),
    }
