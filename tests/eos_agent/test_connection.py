"""A connection that answers from the callback of a line's arrival."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eos_agent.serve.connection import LineConnection


@pytest.mark.parametrize("waits", [False, True])
def test_an_answer_that_is_cancelled_from_inside_ends_its_connection_and_no_peer_waits_for_good(
    tmp_path: Path, waits: bool
) -> None:
    async def answer(_: bytes) -> bool:
        gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if waits:
            asyncio.get_running_loop().call_soon(gone.cancel)
        else:
            gone.cancel()
        return await gone

    async def main() -> tuple[bool, bytes]:
        loop = asyncio.get_running_loop()
        went_on: asyncio.Future[bool] = loop.create_future()

        async def serve(connection: LineConnection, writer: asyncio.StreamWriter) -> None:
            went_on.set_result(await connection.requests(answer, 100))
            writer.close()

        def made() -> LineConnection:
            def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                tasks.append(loop.create_task(serve(connection, writer)))

            connection = LineConnection(asyncio.StreamReader(loop=loop), accept, loop)
            return connection

        tasks: list[asyncio.Task[None]] = []
        server = await loop.create_unix_server(made, str(tmp_path / "s"))
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            while not tasks:
                await asyncio.sleep(0)
            writer.write(b"{}\n")
            found = await went_on, await reader.read()
        writer.close()
        server.close()
        return found

    assert asyncio.run(main()) == (False, b"")
