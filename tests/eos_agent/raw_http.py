"""Requests through /forward, byte by byte, to servers that a test writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@contextlib.asynccontextmanager
async def server(serve: Serve, host: str = "127.0.0.1") -> AsyncGenerator[int]:
    """A server on a loopback port; each connection is closed when `serve` returns."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    tasks: set[asyncio.Task[None]] = set()
    made = await asyncio.start_server(
        lambda reader, writer: tasks.add(asyncio.ensure_future(one(reader, writer))), host, 0
    )
    try:
        yield made.sockets[0].getsockname()[1]
    finally:
        made.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask(port: int, raw: bytes, *, end: bool = False) -> bytes:
    """Return everything that is received until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        if end:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


def request(path: str, *fields: str, method: str = "GET", body: bytes = b"", version: str = "1.1") -> bytes:
    return (
        "\r\n".join([f"{method} {path} HTTP/{version}", "Host: 127.0.0.1:7001", *fields, "", ""]).encode()
        + body
    )


def status(raw: bytes) -> int:
    return int(raw.split(b" ")[1]) if raw else 0


def reason(raw: bytes) -> str:
    return str(json.loads(raw.partition(b"\r\n\r\n")[2])["error"]["details"]["reason"])
