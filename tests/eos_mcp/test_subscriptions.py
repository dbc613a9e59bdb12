"""Subscriptions for published versions in both eras: one question for each sandbox, none without a client."""

# pyright: reportDeprecated=false
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp.types as types
import pytest
from mcp import Client
from mcp.client.session import MessageHandlerFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated

from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_mcp.gateway_client.aio import GatewayRequest
from eos_mcp.mcp import app, subscriptions
from eos_mcp.mcp.server_options import ServerOptions
from tests.eos_mcp.scripted_gateway import ScriptedGateway

URI = "eos://eos-1/versions"
NO_UPDATES = ("eos://eos-1/drafts", "eos://eos-1/versions/1", "eos://eos-1/versions?after=2", "x")
PATIENCE_S = 60.0

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


class Publishing(ScriptedGateway):
    """A gateway whose sandboxes publish when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.version, self.silent = 1, False
        self._polled = asyncio.Event()

    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        assert request.op == "layerstack"
        if request.sandbox_id == "eos-none":
            missing = OperationError(INVALID_REQUEST, "sandbox not found", reason="sandbox_not_found")
            return missing.envelope()
        self._polled.set()
        if self.silent:
            raise OperationError(OPERATION_FAILED, "no answer", reason="sandbox_unreachable")
        return {"manifest_version": self.version}

    async def polled(self) -> None:
        """Wait for a question that begins from now on, and for the one after it: the first has its answer."""
        for _ in range(2):
            self._polled = asyncio.Event()
            with anyio.fail_after(PATIENCE_S):
                await self._polled.wait()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "INTERVAL_S", 0.01)
    monkeypatch.setattr(subscriptions, "SILENT_INTERVAL_S", 0.01)


def polls() -> list[str]:
    """Names of the running tasks that ask for versions."""
    return sorted(
        task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("versions of")
    )


async def ended() -> None:
    with anyio.fail_after(PATIENCE_S):
        while polls():
            await asyncio.sleep(0)


def run(use: Callable[[Publishing], Awaitable[None]]) -> None:
    anyio.run(use, Publishing())


def test_in_the_older_era_each_subscribed_client_is_notified_of_a_publication() -> None:
    async def use(gateway: Publishing) -> None:
        server = app.build(ServerOptions(), gateway=gateway).server
        heard: list[tuple[str, str]] = []
        news = asyncio.Event()

        def handler(who: str) -> MessageHandlerFnT:
            async def take(message: Any) -> None:
                if isinstance(message, types.ResourceUpdatedNotification):
                    heard.append((who, message.params.uri))
                    news.set()

            return take

        async def notified(count: int) -> None:
            with anyio.fail_after(PATIENCE_S):
                while len(heard) < count:
                    news.clear()
                    await news.wait()

        async with Client(server, mode="legacy", message_handler=handler("one")) as one:
            assert one.server_capabilities.resources is not None
            assert one.server_capabilities.resources.subscribe
            async with Client(server, mode="legacy", message_handler=handler("two")) as two:
                for client in (one, two, two):
                    await client.subscribe_resource(URI)
                assert polls() == ["versions of eos-1"]
                await gateway.polled()
                gateway.version = 2
                await notified(2)
                assert sorted(heard) == [("one", URI), ("two", URI)]
                await two.unsubscribe_resource(URI)
                await two.unsubscribe_resource(URI)
                gateway.version = 3
                await notified(3)
                await gateway.polled()
                assert heard[2:] == [("one", URI)]
            await one.subscribe_resource("eos://eos-2/versions")
            assert len(polls()) == 2
        await ended()  # the end of a connection ends its subscriptions

    run(use)


def test_in_the_newer_era_a_stream_has_what_it_asked_for_and_ends_with_the_client() -> None:
    async def use(gateway: Publishing) -> None:
        server = app.build(ServerOptions(), gateway=gateway).server
        async with Client(server, mode="2026-07-28") as client:
            async with client.listen(
                resource_subscriptions=[URI, URI, *NO_UPDATES, "eos://eos-none/versions"],
                tools_list_changed=True,
            ) as stream:
                assert polls() == ["versions of eos-1"]
                assert stream.honored.resource_subscriptions == [URI]
                assert not stream.honored.tools_list_changed
                await gateway.polled()
                gateway.version = 2
                with anyio.fail_after(PATIENCE_S):
                    assert await anext(aiter(stream)) == ResourceUpdated(uri=URI)
            await ended()

    run(use)


def test_a_sandbox_that_does_not_answer_is_asked_again() -> None:
    async def use(gateway: Publishing) -> None:
        gateway.silent = True
        async with Client(app.build(ServerOptions(), gateway=gateway).server, mode="2026-07-28") as client:
            async with client.listen(resource_subscriptions=[URI]) as stream:
                await gateway.polled()
                gateway.silent = False
                await gateway.polled()
                gateway.version = 2
                with anyio.fail_after(PATIENCE_S):
                    assert await anext(aiter(stream)) == ResourceUpdated(uri=URI)

    run(use)


def test_subscriptions_are_bounded_and_only_for_versions() -> None:
    async def use(gateway: Publishing) -> None:
        async with Client(app.build(ServerOptions(), gateway=gateway).server, mode="legacy") as client:
            for uri in (*NO_UPDATES, "eos://eos-none/versions"):
                with pytest.raises(MCPError) as failed:
                    await client.subscribe_resource(uri)
                assert failed.value.error.code == -32002
            for number in range(subscriptions.URIS_MAX):
                await client.subscribe_resource(f"eos://eos-{number}/versions")
            with pytest.raises(MCPError) as failed:
                await client.subscribe_resource("eos://eos-x/versions")
            assert failed.value.error.code == -32602
            assert len(polls()) == subscriptions.URIS_MAX
        await ended()

    run(use)
