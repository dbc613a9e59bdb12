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
from eos_mcp.mcp.json_values import Object, is_object, rows

MEDIA_BYTES = 3 << 20
"""Most bytes of images and PDFs in one answer; clients refuse messages of some five million characters."""
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
    """Return True when file_read refused a file because it is not text."""
    refused = _is_refused(reply) or any(_is_refused(row) for row in rows(reply.get("files")))
    return refused and "encoding" not in args


def _is_refused(reply: Object) -> bool:
    failure = reply.get("error")
    details = failure.get("details") if is_object(failure) else None
    return is_object(details) and details.get("reason") == "not_utf8"


async def fetched(args: Mapping[str, Any], reply: dict[str, Any], ask: Ask) -> dict[str, Any]:
    """Give the refused file, or each of the `files`, as a result with `media_type`, its bytes in base64 in
    `content`. Left as it is: another kind of file, one that grows or shrinks during the call, and one with
    which the answer would have more than MEDIA_BYTES.
    """
    if "files" not in reply:
        return await _one(args, reply, ask, MEDIA_BYTES)
    session = {key: args[key] for key in ("workspace_session_id", "version") if args.get(key)}
    files: list[Any] = []
    room = MEDIA_BYTES
    for row in rows(reply["files"]):
        found = dict(row)
        if _is_refused(row):
            found = await _one({**session, **_named(row)}, found, ask, room)
            room -= int(found["total_bytes"]) if "media_type" in found else 0
        files.append(found)
    return {**reply, "files": files}


def _named(row: Object) -> dict[str, Any]:
    return {key: row[key] for key in ("path", "path_b64") if row.get(key)}


async def _one(args: Mapping[str, Any], reply: dict[str, Any], ask: Ask, room: int) -> dict[str, Any]:
    same = {
        key: args[key] for key in ("path", "path_b64", "workspace_session_id", "version") if args.get(key)
    }
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
        if size > room:
            return _too_large(reply, kind, size, room)
        if page["next_offset"] is None:
            return _whole(reply, _named(page), kind, bytes(raw))
    return reply


def _whole(reply: dict[str, Any], named: dict[str, Any], kind: str, raw: bytes) -> dict[str, Any]:
    """The result with all bytes; the refusal with a hint if they cannot be shown."""
    why = media_bytes.flaw(kind, raw)
    if why is not None:
        hint = f"it begins as {kind}, but {why}; encoding base64 reads its bytes"
        return _hinted(reply, kind, len(raw), hint)
    about: dict[str, Any] = {**named, "media_type": kind, "total_bytes": len(raw)}
    size = None if kind == PDF else media_bytes.pixels(kind, raw)
    if size is not None:
        about |= {"width": size[0], "height": size[1]}
    return {**about, "content": base64.b64encode(raw).decode("ascii")}


def _too_large(reply: dict[str, Any], kind: str, size: int, room: int) -> dict[str, Any]:
    hint = f"it is {kind} of {size} bytes, at most {MEDIA_BYTES} can be shown: make a smaller copy of it"
    if size <= MEDIA_BYTES:
        hint = (
            f"it is {kind} of {size} bytes, and the files before it leave {room} of the {MEDIA_BYTES} of one "
            "answer: read it alone"
        )
    return _hinted(reply, kind, size, hint)


def _hinted(reply: dict[str, Any], kind: str, size: int, hint: str) -> dict[str, Any]:
    failure = dict(reply["error"])
    failure["details"] = {**failure["details"], "media_type": kind, "total_bytes": size, "hint": hint}
    return {**reply, "error": failure}


def taken_out(reply: dict[str, Any]) -> list[types.ContentBlock]:
    """Remove the bytes from a result of `fetched` and return them as content, of several files each after its
    path; [] for any other result.
    """
    blocks: list[types.ContentBlock] = []
    for row in reply.get("files") or ():
        if is_object(row) and (found := _content(row)):  # pyright: ignore[reportUnknownArgumentType]
            blocks += [types.TextContent(type="text", text=f"{row.get('path')}:"), *found]
    return blocks or _content(reply)


def _content(reply: Any) -> list[types.ContentBlock]:
    kind = reply.get("media_type")
    if not isinstance(kind, str) or "content" not in reply:
        return []
    data = str(reply.pop("content"))
    if kind != PDF:
        return [types.ImageContent(type="image", data=data, mime_type=kind)]
    uri = "file:///" + urllib.parse.quote(str(reply.get("path")))
    blob = types.BlobResourceContents(uri=uri, mime_type=kind, blob=data)
    return [types.EmbeddedResource(type="resource", resource=blob)]
