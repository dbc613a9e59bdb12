"""Content of one resource: bounded, with the URI of the next page where there is more."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from typing import Any

import mcp.types as types

from eos_agent.wire.protocol import INVALID_REQUEST, NOT_FOUND, OperationError
from eos_mcp.mcp import resource_uris
from eos_mcp.mcp.json_values import Object, compact, rows
from eos_mcp.mcp.media import MEDIA_BYTES, PAGE_BYTES, media_type
from eos_mcp.mcp.own_requests import OwnRequests
from eos_mcp.mcp.plain_text import plain
from eos_mcp.mcp.resource_uris import ResourceName

JSON, DIFF, PLAIN = "application/json", "text/x-diff", "text/plain"
LISTED = 200
"""Most rows of versions, drafts or directory entries of one page."""
OUTPUT_CHARACTERS = 256 * 1024
"""Characters of a command's output after which a page ends."""
ROWS_AT_ONCE = 1000
NEXT_KEY = "eos/next"
"""Key of `_meta` with the URI of the next page."""
IMMUTABLE_MS = 3_600_000

_BY_NAME = mimetypes.MimeTypes(filenames=())  # without the files of this machine, which differ


class Content:
    """Content of a resource. `immutable`: the same URI never has another content."""

    def __init__(self, text: str | bytes, mime_type: str, *, more: str = "", immutable: bool = False) -> None:
        self.text, self.mime_type, self.more, self.immutable = text, mime_type, more, immutable

    def result(self, uri: str) -> types.ReadResourceResult:
        """The answer of resources/read."""
        about: dict[str, Any] = {"uri": uri, "mimeType": self.mime_type}
        if self.more:
            about["_meta"] = {NEXT_KEY: self.more}
        row: types.TextResourceContents | types.BlobResourceContents
        if isinstance(self.text, str):
            row = types.TextResourceContents.model_validate({**about, "text": self.text})
        else:
            blob = base64.b64encode(self.text).decode("ascii")
            row = types.BlobResourceContents.model_validate({**about, "blob": blob})
        ttl_ms = IMMUTABLE_MS if self.immutable else 0
        return types.ReadResourceResult(contents=[row], ttl_ms=ttl_ms, cache_scope="private")


async def content(own: OwnRequests, name: ResourceName) -> Content:
    """Read a resource.

    Raises:
        OperationError: it does not exist, is too large, or the sandbox does not answer.
    """
    return await _READERS[name.kind](own, name)


async def _versions(own: OwnRequests, name: ResourceName) -> Content:
    after = {"after": _number(name.page)} if name.page else {}
    reply = await own.ask("list_versions", {"limit": LISTED, **after}, name.sandbox)
    found = [
        {**row, "uri": name._replace(kind=resource_uris.VERSION, id=str(row.get("version")), page="").uri()}
        for row in rows(reply.get("versions"))
    ]
    return _json({"versions": found}, name, reply.get("next"))


async def _version(own: OwnRequests, name: ResourceName) -> Content:
    reply = await own.ask("list_versions", {"limit": 2, "after": name.version + 1}, name.sandbox)
    found = rows(reply.get("versions"))
    if not found or found[0].get("version") != name.version:
        raise _closed(name.version)
    about: dict[str, Any] = {"version": found[0], "since": None, "changes": []}
    if len(found) == 1:
        return _json(about, name, None)
    about["since"] = since = found[1].get("version")
    args = {"from": since, "to": name.version, **_cursor(name)}
    changed = await own.ask("diff_versions", args, name.sandbox, timeout_s=150.0)
    about["changes"] = [_change(row, name) for row in rows(changed.get("entries"))]
    return _json(about, name, changed.get("next"))


def _change(row: Object, name: ResourceName) -> dict[str, Any]:
    shown = {key: row[key] for key in ("path", "path_b64", "change") if key in row}
    if row.get("change") != "deleted":
        file = name._replace(kind=resource_uris.FILE, path=_bytes(row), page="")
        shown["uri"] = file.uri()
    return shown


async def _file(own: OwnRequests, name: ResourceName) -> Content:
    if not name.path:
        return await _directory(own, name)
    try:
        raw = await _bytes_of(own, name)
    except OperationError as error:
        if error.details.get("reason") == "not_a_file" and error.details.get("kind") == "Directory":
            return await _directory(own, name)
        raise
    shown = resource_uris.shown(name.path)
    by_name = _BY_NAME.guess_type(shown, strict=False)[0]
    kind = media_type(raw[:12])
    if kind is None and b"\0" not in raw:
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            pass
        else:
            return Content(text, _textual(by_name), immutable=True)
    return Content(raw, kind or by_name or "application/octet-stream", immutable=True)


async def _bytes_of(own: OwnRequests, name: ResourceName) -> bytes:
    args = {**resource_uris.path_arguments(name.path), "version": name.version, "encoding": "base64"}
    raw = bytearray()
    while True:
        page = await own.ask("file_read", {**args, "offset": len(raw) + 1, "limit": PAGE_BYTES}, name.sandbox)
        if page["total_bytes"] > MEDIA_BYTES:
            details = {
                "total_bytes": page["total_bytes"],
                "limit": MEDIA_BYTES,
                "hint": "file_read with encoding base64, offset and limit reads a part of it",
            }
            message = f"{page['path']} has {page['total_bytes']} bytes, a resource at most {MEDIA_BYTES}"
            raise OperationError(INVALID_REQUEST, message, details, reason="resource_too_large")
        piece = base64.b64decode(page["content"])
        raw += piece
        if page["next_offset"] is None or not piece:
            return bytes(raw)


async def _directory(own: OwnRequests, name: ResourceName) -> Content:
    args = {**resource_uris.path_arguments(name.path), "version": name.version, "limit": LISTED}
    reply = await own.ask("file_list", {**args, **_cursor(name)}, name.sandbox)
    entries: list[dict[str, Any]] = []
    for row in rows(reply.get("entries")):
        below = base64.b64decode(row["path_b64"]) if "path_b64" in row else _join(name.path, row)
        entries.append({**row, "uri": name._replace(path=below, page="").uri()})
    about = {"path": resource_uris.shown(name.path), "entries": entries}
    return _json(about, name, reply.get("next"), immutable=True)


def _join(above: bytes, row: Object) -> bytes:
    below = str(row.get("name")).encode()
    return above + b"/" + below if above else below


async def _drafts(own: OwnRequests, name: ResourceName) -> Content:
    reply = await own.ask("list_drafts", {}, name.sandbox)
    found = newest_drafts(reply)
    shown = [
        {**row, "uri": name._replace(kind=resource_uris.DRAFT, id=str(row.get("draft_id"))).uri()}
        for row in found[:LISTED]
    ]
    return _json({"drafts": shown, "count": len(found)}, name, None)


async def _draft(own: OwnRequests, name: ResourceName) -> Content:
    args = {"draft_id": name.id, **_cursor(name)}
    reply = await own.ask("diff_session", args, name.sandbox, timeout_s=600.0)
    lines: list[str] = []
    for row in rows(reply.get("entries")):
        if row.get("patch"):
            lines.append(str(row["patch"]).rstrip("\n"))
        else:
            what = "binary" if row.get("binary") else row.get("change")
            lines.append(f"# {row.get('status')} {row.get('path')} ({what})")
        if row.get("patch_truncated"):
            lines.append(f"# the patch of {row.get('path')} is cut")
    more = _next(name, reply.get("next"))
    if more:
        lines.append(f"# more: {more}")
    return Content("".join(f"{line}\n" for line in lines), DIFF, more=more)


async def _conflicts(own: OwnRequests, name: ResourceName) -> Content:
    args = {"draft_id": name.id, **_cursor(name)}
    reply = await own.ask("preview_publish", args, name.sandbox, timeout_s=600.0)
    keys = ("would_publish", "head_version", "conflict_count", "conflicts", "notices", "refused")
    return _json({key: reply[key] for key in keys if key in reply}, name, reply.get("next"))


async def _command(own: OwnRequests, name: ResourceName) -> Content:
    at = _number(name.page) if name.page else 0
    args: dict[str, Any] = {"command_session_id": name.id, "limit": ROWS_AT_ONCE}
    pieces: list[str] = []
    characters = 0
    while True:
        reply = await own.ask("read_command_lines", {**args, "start_offset": at}, name.sandbox)
        screen = reply.get("screen_offset")
        text = plain(str(reply.get("output") or ""), inside=isinstance(screen, int) and screen < at)
        pieces.append(text)
        characters += len(text) + 1
        end, total = int(reply["end_offset"]), int(reply["total_lines"])
        if end >= total or end <= at:
            return Content("\n".join(pieces), PLAIN)
        at = end
        if characters >= OUTPUT_CHARACTERS:
            more = _next(name, at)
            pieces.append(f"[lines {at} to {total} are not shown: {more}]")
            return Content("\n".join(pieces), PLAIN, more=more)


def _json(about: dict[str, Any], name: ResourceName, after: object, *, immutable: bool = False) -> Content:
    more = _next(name, after)
    return Content(compact({**about, "next": more or None}), JSON, more=more, immutable=immutable)


def _next(name: ResourceName, after: object) -> str:
    return "" if after is None or after == "" else name._replace(page=str(after)).uri()


def _cursor(name: ResourceName) -> dict[str, str]:
    return {"cursor": name.page} if name.page else {}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise OperationError(NOT_FOUND, f"{text[:64]!r} is not a number of a page")
    return int(text)


def _bytes(row: Object) -> bytes:
    raw = row.get("path_b64")
    return base64.b64decode(raw) if isinstance(raw, str) else str(row.get("path")).encode()


def newest_drafts(reply: Object) -> Sequence[Object]:
    """The rows of list_drafts, the newest first; last those whose record cannot be read."""

    def made_unix_ms(row: Object) -> int:
        found = row.get("created_unix_ms")
        return found if isinstance(found, int) else 0

    return sorted(rows(reply.get("drafts")), key=made_unix_ms, reverse=True)


def _textual(by_name: str | None) -> str:
    """The media type of a text: that of its name unless that is one of bytes, such as video/mp2t for .ts."""
    if by_name is None or by_name.split("/")[0] in ("audio", "image", "video", "font"):
        return "image/svg+xml" if by_name == "image/svg+xml" else PLAIN
    return by_name


def _closed(version: int) -> OperationError:
    return OperationError(NOT_FOUND, f"version {version} cannot be opened", {"version": version})


_READERS = {
    resource_uris.VERSIONS: _versions,
    resource_uris.VERSION: _version,
    resource_uris.FILE: _file,
    resource_uris.DRAFTS: _drafts,
    resource_uris.DRAFT: _draft,
    resource_uris.CONFLICTS: _conflicts,
    resource_uris.COMMAND: _command,
}
