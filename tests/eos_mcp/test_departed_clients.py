"""A client that keeps a connection open: its end is noticed by that connection alone, and its commands
end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from eos_mcp.agent_client.line_socket import LineSocket
from eos_mcp.gateway.departed import DepartedClients
from eos_mcp.requests import caller


@pytest.mark.parametrize("end", ["close", "shutdown of its output", "bytes, then close"])
def test_a_client_that_leaves_is_noticed_without_a_timer(end: str) -> None:
    async def case() -> None:
        ours, theirs = socket.socketpair()
        cancelled = asyncio.Event()

        async def cancel(sandbox_id: str, request_id: str) -> bool:
            assert (sandbox_id, request_id) == ("s", "r")
            cancelled.set()
            return True

        departed, line = DepartedClients(cancel, grace_s=0), LineSocket(ours)
        departed.note("client", "s", "r", {})
        caller.answer_on(ours, line.closed)
        holding = asyncio.create_task(departed.hold("client"))
        while not departed.holding:
            await asyncio.sleep(0)
        if end == "bytes, then close":
            theirs.sendall(b"x" * 100_000)
        for _ in range(10):
            await asyncio.sleep(0)
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportAttributeAccessIssue]
        assert not timers and not holding.done()
        if end == "shutdown of its output":
            theirs.shutdown(socket.SHUT_WR)
        else:
            theirs.close()
        async with asyncio.timeout(60):
            assert await holding == {"client": "client"}
            await cancelled.wait()
        assert departed.holding == 0
        theirs.close()
        line.close()

    asyncio.run(case())


def test_a_gateway_that_ends_releases_its_clients_and_cancels_nothing() -> None:
    async def case() -> None:
        ours, theirs = socket.socketpair()

        async def cancel(sandbox_id: str, request_id: str) -> bool:
            raise AssertionError

        departed, line = DepartedClients(cancel, grace_s=0), LineSocket(ours)
        departed.note("client", "s", "r", {})
        caller.answer_on(ours, line.closed)
        holding = asyncio.create_task(departed.hold("client"))
        while not departed.holding:
            await asyncio.sleep(0)
        departed.stop()
        async with asyncio.timeout(60):
            assert await holding == {"client": "client"}
        for _ in range(10):
            await asyncio.sleep(0)
        theirs.close()
        line.close()

    asyncio.run(case())
