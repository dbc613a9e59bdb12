"""Warnings of the server reach the client whose request they belong to, when it asked for them."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import anyio
import mcp.types as types
import pytest
from mcp import Client

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.mcp import app, client_log
from eos_mcp.mcp.server_options import ServerOptions
from tests.eos_mcp.scripted_gateway import ScriptedGateway

SILENT = OperationError(OPERATION_FAILED, "the agent is frozen", reason="silent")


@pytest.fixture(autouse=True)
def attached() -> Generator[None]:
    handler = client_log.attach()
    yield
    logging.getLogger(client_log.LOGGER).removeHandler(handler)


class Heard:
    """The messages of one client."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    async def __call__(self, params: types.LoggingMessageNotificationParams) -> None:
        self.rows.append((params.level, str(params.data)))


def server() -> Any:
    """A server whose resources/list warns: its sandbox does not answer."""
    gateway = ScriptedGateway(
        list_sandboxes={"sandboxes": [{"id": "eos-1", "state": "ready"}]}, list_drafts=SILENT
    )
    return app.build(ServerOptions(), gateway=gateway).server


WARNING = ("warning", "resources of eos-1 are not listed: the agent is frozen")


def test_in_the_older_era_a_level_is_set_for_one_connection() -> None:
    async def go() -> None:
        one, other = Heard(), Heard()
        shared = server()
        async with Client(shared, mode="legacy", logging_callback=one) as client:
            assert client.server_capabilities.logging is not None
            async with Client(shared, mode="legacy", logging_callback=other) as second:
                await client.list_resources()
                assert one.rows == []
                await set_level(client, "warning")
                await client.list_resources()
                await second.list_resources()
                assert (one.rows, other.rows) == ([WARNING], [])
                await set_level(client, "error")
                await client.list_resources()
                assert one.rows == [WARNING]

    anyio.run(go)


async def set_level(client: Client, level: types.LoggingLevel) -> None:
    request = types.SetLevelRequest(params=types.SetLevelRequestParams(level=level))
    await client.session.send_request(request, types.EmptyResult)


def test_in_the_newer_era_a_request_asks_for_itself() -> None:
    async def go() -> None:
        heard, mute = Heard(), Heard()
        shared = server()
        async with Client(shared, mode="2026-07-28", logging_callback=heard, log_level="info") as client:
            await client.list_resources(cache_mode="bypass")
        async with Client(shared, mode="2026-07-28", logging_callback=mute) as client:
            await client.list_resources(cache_mode="bypass")
        assert (heard.rows, mute.rows) == ([WARNING], [])

    anyio.run(go)
