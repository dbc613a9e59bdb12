"""The agent's HTTP server in this process, without a store."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from eos_agent.base.telemetry import Telemetry
from eos_agent.http.http_server import HttpServer
from eos_agent.observe.agent import ConnectionCount
from eos_agent.wire.protocol import Request
from tests.eos_agent.agent_process import TOKEN

HUGE = "x" * (8 << 20)


class Answers:
    """Handlers of a server: settings, and an answer larger than any socket buffer."""

    def __init__(self, folder: str, **daemon: Any) -> None:
        def get(key: str, default: Any) -> Any:
            return daemon.get(key.rpartition(".")[2], default)

        self.connections = ConnectionCount()
        self.telemetry = Telemetry(None)
        self.settings = SimpleNamespace(
            sandbox_id="eos-test",
            local=False,
            get=get,
            socket_path=os.path.join(folder, "s"),
            **{
                f"{each}_{what}": value
                for each in ("tcp", "http")
                for what, value in (("host", "127.0.0.1"), ("port", 0))
            },
        )

    async def perform(self, request: Request) -> dict[str, Any]:
        return {"entries": HUGE if request.args.get("huge") else [], "truncated": False}


@contextlib.asynccontextmanager
async def web(folder: str, **daemon: Any) -> AsyncGenerator[tuple[HttpServer, int]]:
    answers: Any = Answers(folder, **{"auth": "none", **daemon})
    one = HttpServer(answers, TOKEN)
    _, port = await one.listen()
    try:
        async with asyncio.timeout(60):
            yield one, port
    finally:
        one.close()
