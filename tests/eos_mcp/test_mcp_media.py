"""Images and PDFs over MCP: files of a plain directory, read by the agent's own operation."""

from __future__ import annotations

import base64
import os
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import anyio
import mcp.types as types
import pytest

from eos_agent.files.mounted import perform_in_mount
from eos_agent.serve.read_several import read_several
from eos_agent.wire.protocol import OperationError
from eos_mcp.gateway_client.aio import GatewayRequest, ToolGateway
from eos_mcp.mcp import media, render
from eos_mcp.mcp.server_options import EOS, SANDBOX, ServerOptions
from eos_mcp.mcp.tools import Tools


def png(width: int, height: int, noise: int = 0) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(3 * width) for _ in range(height))
    extra = chunk(b"noSe", random.Random(1).randbytes(noise)) if noise else b""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def read(folder: Path, path: str) -> tuple[dict[str, Any], int]:
    """What file_read gives over MCP, and the number of reads."""
    calls: list[dict[str, Any]] = []

    async def ask(args: dict[str, Any]) -> dict[str, Any]:
        calls.append(args)
        try:
            return perform_in_mount("read", os.fspath(folder), {"offset": 1, "limit": 2000, **args})[0]
        except OperationError as error:
            return error.envelope()

    async def whole() -> dict[str, Any]:
        reply = await ask({"path": path})
        if media.may_be_media({"path": path}, reply):
            return await media.fetched({"path": path}, reply, ask)
        return reply

    return anyio.run(whole), len(calls)


class PlainGateway(ToolGateway):
    """Reads files of a directory, with the agent's operation."""

    def __init__(self, root: str) -> None:
        self._root = root

    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        assert (request.op, request.sandbox_id) == ("file_read", "s")

        async def one(given: dict[str, Any]) -> dict[str, Any]:
            return perform_in_mount("read", self._root, {"offset": 1, "limit": 2000, **given})[0]

        try:
            args = dict(request.args)
            return await (read_several(args, 262_144, one) if args.get("paths") else one(args))
        except OperationError as error:
            return error.envelope()


@pytest.mark.parametrize(("program", "seen"), [(EOS, True), (SANDBOX, False)])
def test_a_tool_call_has_the_image_beside_its_text(tmp_path: Path, program: str, seen: bool) -> None:
    (tmp_path / "a.png").write_bytes(png(3, 4))
    tool_set = "agent" if seen else "runtime"
    tools = Tools(ServerOptions(program=program, tool_set=tool_set), PlainGateway(os.fspath(tmp_path)))
    call = {"sandbox_id": "s", "path": "a.png"}
    answer = anyio.run(lambda: tools.answer("file_read", call, None))
    assert answer.is_error is not seen
    assert ("3 x 4" in answer.text, len(media.taken_out(answer.reply))) == (seen, int(seen))


def test_a_large_image_is_put_together_from_pages_and_goes_out_as_image_content(tmp_path: Path) -> None:
    raw = png(7, 5, noise=500_000)
    (tmp_path / "name.txt").write_bytes(raw)
    reply, _ = read(tmp_path, "name.txt")
    assert render.result("file_read", {}, reply) == f"name.txt: image/png, {len(raw)} bytes, 7 x 5"
    (block,) = media.taken_out(reply)
    assert isinstance(block, types.ImageContent) and base64.b64decode(block.data) == raw
    assert block.mime_type == "image/png" and "content" not in reply


JPEG = b"\xff\xd8\xff\xe0\0\4ab\xff\xff\xc0\0\x0b\x08\0\3\0\2\1\1\x11\0\xff\xd9"
GIF = b"GIF89a\x02\x00\x03\x00\xff;"
WEBP = b"RIFF\x16\0\0\0WEBPVP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a\2\0\3\0"
VP8X = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x80\0\0\0\1\0\0\2\0\0"
VP8L = b"RIFF\x12\0\0\0WEBPVP8L\5\0\0\0\x2f\1\x80\0\0\0"
PAPER = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n%%EOF\n"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (JPEG, "image/jpeg"),
        (GIF, "image/gif"),
        (WEBP, "image/webp"),
        (VP8X, "image/webp"),
        (VP8L, "image/webp"),
        (PAPER, "application/pdf"),
    ],
)
def test_each_kind_is_recognised_by_its_first_bytes(tmp_path: Path, raw: bytes, kind: str) -> None:
    (tmp_path / "f x").write_bytes(raw)
    reply, _ = read(tmp_path, "f x")
    assert (reply["media_type"], reply["total_bytes"]) == (kind, len(raw))
    assert kind == media.PDF or (reply["width"], reply["height"]) == (2, 3)
    (block,) = media.taken_out(reply)
    if isinstance(block, types.EmbeddedResource):
        assert isinstance(block.resource, types.BlobResourceContents)
        assert (block.resource.uri, base64.b64decode(block.resource.blob)) == ("file:///f%20x", raw)
    else:
        assert isinstance(block, types.ImageContent) and base64.b64decode(block.data) == raw


def test_another_file_that_is_no_text_and_one_that_is_too_large_stay_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0\1")
    reply, calls = read(tmp_path, "binary")
    assert reply["error"]["details"]["reason"] == "not_utf8" and calls == 2
    (tmp_path / "large").write_bytes(png(1, 1, noise=media.MEDIA_BYTES))
    reply, calls = read(tmp_path, "large")
    assert reply["error"]["details"]["media_type"] == "image/png" and calls == 2
    assert "at most 3145728" in reply["error"]["details"]["hint"]
    assert media.taken_out(reply) == []


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (png(3, 4)[:-12], "its end is missing"),
        (JPEG[:-2], "its end is missing"),
        (GIF[:-1], "its end is missing"),
        (WEBP[:4] + b"\x80" + WEBP[5:], "its end is missing"),
        (PAPER[:-6], "its end is missing"),
        (png(0, 4), "it has no size in pixels"),
        (b"\xff\xd8\xff\xe0" + bytes(40), "it has no size in pixels"),
        (b"RIFF\x80\0\0\0WEBPabcd", "it has no size in pixels"),
        (png(1, 1)[:16] + b"\xff" * 8 + png(1, 1)[24:], "it is 4294967295 x 4294967295 pixels"),
        (b"\x89PNG\r\n\x1a\n\xff", "it has no size in pixels"),
    ],
)
def test_an_image_that_clients_cannot_show_stays_refused_with_the_reason(
    tmp_path: Path, raw: bytes, why: str
) -> None:
    """One such image in a conversation makes an API refuse all of it."""
    (tmp_path / "f").write_bytes(raw)
    reply, _ = read(tmp_path, "f")
    assert why in reply["error"]["details"]["hint"] and media.taken_out(reply) == []


def test_images_among_several_files_follow_their_names_and_share_one_limit(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(3, 4))
    (tmp_path / "b.txt").write_text("text\n")
    (tmp_path / "c.bin").write_bytes(b"\xff\0")
    (tmp_path / "d.png").write_bytes(png(1, 1, noise=2 << 20))
    (tmp_path / "e.png").write_bytes(png(2, 2, noise=2 << 20))
    names = ["a.png", "b.txt", "c.bin", "d.png", "e.png"]
    tools = Tools(ServerOptions(program=EOS, tool_set="agent"), PlainGateway(os.fspath(tmp_path)))
    answer = anyio.run(lambda: tools.answer("file_read", {"sandbox_id": "s", "paths": names}, None))
    assert not answer.is_error
    for part in ("a.png: image/png", "3 x 4", "text", "c.bin: ", "d.png: image/png", "read it alone"):
        assert part in answer.text
    blocks = media.taken_out(answer.reply)
    images = [block for block in blocks if isinstance(block, types.ImageContent)]
    texts = [block.text for block in blocks if isinstance(block, types.TextContent)]
    assert texts == ["a.png:", "d.png:"]
    assert [base64.b64decode(one.data) for one in images] == [
        (tmp_path / name).read_bytes() for name in ("a.png", "d.png")
    ]
    files = answer.reply["files"]
    assert [row["path"] for row in files] == names and "content" not in files[0]
    assert files[4]["error"]["details"]["media_type"] == "image/png"
