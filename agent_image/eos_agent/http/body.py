"""Bodies of HTTP/1 messages on their way through, piece by piece: nothing larger than a piece is ever
held.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

from eos_agent.http.message import MAX_HEAD_BYTES, BadMessage, Body

PIECE_BYTES = 64 * 1024
_MAX_CHUNK_LINE_BYTES = 4096
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\x00]*)?\r\n")


async def pieces(reader: asyncio.StreamReader, body: Body) -> AsyncGenerator[bytes]:
    """The content of a body, without its framing, at most PIECE_BYTES at a time; extensions of chunks and
    trailers are left out.

    Raises:
        BadMessage: a chunk is malformed.
        asyncio.IncompleteReadError: the connection ended before the body did.
    """
    if body.chunked:
        while size := await _chunk_size(reader):
            async for piece in _exactly(reader, size):
                yield piece
            if await reader.readexactly(2) != b"\r\n":
                raise BadMessage("a chunk is longer than it says")
        await _skip_trailers(reader)
    elif body.length is not None:
        async for piece in _exactly(reader, body.length):
            yield piece
    else:
        while piece := await reader.read(PIECE_BYTES):
            yield piece


def frame(piece: bytes) -> bytes:
    """A piece as one chunk; an empty one is the last."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncGenerator[bytes]:
    left = size
    while left:
        piece = await reader.read(min(left, PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(piece)
        yield piece


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        line = b""
    if not line or len(line) > _MAX_CHUNK_LINE_BYTES:
        raise BadMessage("a line of the chunked coding is too long")
    return line


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    found = _SIZE.fullmatch(await _line(reader))
    if found is None:
        raise BadMessage("a chunk has no size")
    return int(found[1], 16)


async def _skip_trailers(reader: asyncio.StreamReader) -> None:
    total = 0
    while (line := await _line(reader)) != b"\r\n":
        total += len(line)
        if total > MAX_HEAD_BYTES or not line.endswith(b"\r\n"):
            raise BadMessage("the trailers are malformed or too long")
