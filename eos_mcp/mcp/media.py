"""Images and PDFs in file_read: content that a model sees, in place of the refusal of a file that is not
text.

The agent refuses a file that is not UTF-8 (`not_utf8`). Its bytes are then read in base64, page by page; the
first bytes, not the name, give the media type.
"""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp.types as types

from eos_mcp.mcp import media_bytes
from eos_mcp.mcp.json_values import Object, is_object

MEDIA_BYTES = 3 << 20
"""Largest image or PDF that is returned; clients refuse messages of some five million characters."""
PAGE_BYTES = 192 << 10
PDF = "application/pdf"
MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Arguments of file_read -> its result."""


def media_type(head: bytes) -> str | None:
    """The media type by the first 12 bytes; None for another kind of file."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in MAGIC if head.startswith(magic)), None)


def may_be_media(args: Mapping[str, Any], reply: Object) -> bool:
    """Return True when file_read refused a single file because it is not text."""
    failure = reply.get("error")
    details = failure.get("details") if is_object(failure) else None
    refused = is_object(details) and details.get("reason") == "not_utf8"
    return refused and "encoding" not in args and not args.get("paths")


async def fetched(args: Mapping[str, Any], reply: dict[str, Any], ask: Ask) -> dict[str, Any]:
    """Return the file as a result with `media_type` and its bytes in base64 in `content`. Return `reply` for
    another kind of file, for one that grows or shrinks during the call, and, with another hint, for one above
    MEDIA_BYTES.
    """
    same = {key: args[key] for key in ("path", "path_b64", "workspace_session_id") if args.get(key)}
    raw = bytearray()
    kind: str | None = None
    size = -1
    for _ in range(MEDIA_BYTES // PAGE_BYTES + 2):
        limit = PAGE_BYTES if raw else 64
        page = await ask({**same, "encoding": "base64", "offset": len(raw) + 1, "limit": limit})
        if "error" in page or size not in (-1, page["total_bytes"]):
            return reply
        size = int(page["total_bytes"])
        raw += base64.b64decode(page["content"])
        kind = kind or media_type(bytes(raw[:12]))
        if kind is None:
            return reply
        if size > MEDIA_BYTES:
            return _too_large(reply, kind, size)
        if page["next_offset"] is None:
            return _whole(reply, str(page["path"]), kind, bytes(raw))
    return reply


def _whole(reply: dict[str, Any], path: str, kind: str, raw: bytes) -> dict[str, Any]:
    """The result with all bytes; the refusal with a hint if they cannot be shown."""
    why = media_bytes.flaw(kind, raw)
    if why is not None:
        hint = f"it begins as {kind}, but {why}; encoding base64 reads its bytes"
        return _hinted(reply, kind, len(raw), hint)
    about: dict[str, Any] = {"path": path, "media_type": kind, "total_bytes": len(raw)}
    size = None if kind == PDF else media_bytes.pixels(kind, raw)
    if size is not None:
        about |= {"width": size[0], "height": size[1]}
    return {**about, "content": base64.b64encode(raw).decode("ascii")}


def _too_large(reply: dict[str, Any], kind: str, size: int) -> dict[str, Any]:
    hint = f"it is {kind} of {size} bytes, at most {MEDIA_BYTES} can be shown: make a smaller copy of it"
    return _hinted(reply, kind, size, hint)


def _hinted(reply: dict[str, Any], kind: str, size: int, hint: str) -> dict[str, Any]:
    failure = dict(reply["error"])
    failure["details"] = {**failure["details"], "media_type": kind, "total_bytes": size, "hint": hint}
    return {**reply, "error": failure}


def text(reply: Object) -> str:
    """The line beside an image or PDF."""
    size = f", {reply['width']} x {reply['height']}" if reply.get("width") else ""
    return f"{reply.get('path')}: {reply.get('media_type')}, {reply.get('total_bytes')} bytes{size}"


def taken_out(reply: dict[str, Any]) -> list[types.ContentBlock]:
    """Remove the bytes from a result of `fetched` and return them as content; [] for any other result."""
    kind = reply.get("media_type")
    if not isinstance(kind, str) or "content" not in reply:
        return []
    data = str(reply.pop("content"))
    if kind != PDF:
        return [types.ImageContent(type="image", data=data, mime_type=kind)]
    uri = "file:///" + urllib.parse.quote(str(reply.get("path")))
    blob = types.BlobResourceContents(uri=uri, mime_type=kind, blob=data)
    return [types.EmbeddedResource(type="resource", resource=blob)]
