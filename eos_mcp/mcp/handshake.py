"""Answer a client's opening request from a table, without the SDK. Standard library only.

Some clients give up when no answer came within 0.6 s, as long as `import mcp` alone takes. So `initialize`
and `server/discover` are answered here while the SDK is being imported. Requests of any other form are left
to the SDK. A test compares both answers.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeGuard

from eos_mcp.mcp.server_identity import CACHE_SCOPE, CACHE_TTL_MS, ServerIdentity
from eos_mcp.mcp.server_options import EOS

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"

_LISTS: dict[str, Any] = {
    "prompts": {"listChanged": False},
    "resources": {"listChanged": False, "subscribe": False},
    "tools": {"listChanged": False},
}
_ALL: dict[str, Any] = {
    "completions": {},
    "logging": {},
    **_LISTS,
    "resources": {"listChanged": False, "subscribe": True},
}


def capabilities(program: str) -> dict[str, Any]:
    """Capabilities of the server, in both eras. The drop-in program has empty lists, and no more."""
    return _ALL if program == EOS else _LISTS


class Opening(NamedTuple):
    """`reply` is the line to send. `initialize`: the SDK must still see the request, so that it knows the
    client.
    """

    request_id: str | int
    method: str
    reply: bytes


def answer(line: bytes, who: ServerIdentity) -> Opening | None:
    """Return the answer to one line, or None when it is not an opening request of the plain form."""
    if len(line) > 65536 or (b'"initialize"' not in line and b'"server/discover"' not in line):
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if (
        not _mapping(message)
        or message.get("jsonrpc") != "2.0"
        or set(message) - {"jsonrpc", "id", "method", "params"}
    ):
        return None
    request_id, method, params = message.get("id"), message.get("method"), message.get("params")
    if (
        isinstance(request_id, bool)
        or not isinstance(request_id, (str, int))
        or not _mapping(params)
        or not _encodable(line)
    ):
        return None
    if method == "initialize":
        result = _initialize(params, who)
    elif method == "server/discover":
        result = _discover(params, who)
    else:
        return None
    if result is None:
        return None
    reply = json.dumps(
        {"jsonrpc": "2.0", "id": request_id, "result": result}, separators=(",", ":"), ensure_ascii=False
    )
    return Opening(request_id, method, reply.encode() + b"\n")


def _initialize(params: dict[str, Any], who: ServerIdentity) -> dict[str, Any] | None:
    if set(params) - {"protocolVersion", "capabilities", "clientInfo", "_meta"} or not _mapping(
        params.get("_meta", {})
    ):
        return None
    wanted = params.get("protocolVersion")
    if (
        not isinstance(wanted, str)
        or not _plain_client(params.get("clientInfo"))
        or not _plain_capabilities(params.get("capabilities"))
    ):
        return None
    return {
        "capabilities": capabilities(who.name),
        "instructions": who.instructions,
        "protocolVersion": wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
        "serverInfo": _server_info(who),
    }


def _discover(params: dict[str, Any], who: ServerIdentity) -> dict[str, Any] | None:
    meta = params.get("_meta")
    if set(params) != {"_meta"} or not _mapping(meta) or meta.get(VERSION_KEY) != MODERN_VERSION:
        return None
    if set(meta) - {VERSION_KEY, CLIENT_KEY, CAPABILITIES_KEY} or not _plain_capabilities(
        meta.get(CAPABILITIES_KEY)
    ):
        return None
    if CLIENT_KEY in meta and not _plain_client(meta[CLIENT_KEY]):
        return None
    return {
        "cacheScope": CACHE_SCOPE,
        "capabilities": capabilities(who.name),
        "instructions": who.instructions,
        "resultType": "complete",
        "supportedVersions": [MODERN_VERSION],
        "ttlMs": CACHE_TTL_MS,
        "_meta": {SERVER_KEY: _server_info(who)},
    }


def _server_info(who: ServerIdentity) -> dict[str, str]:
    return {"name": who.name, "title": who.title, "version": who.version}


def _mapping(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _encodable(line: bytes) -> bool:
    """Return True for a line without an escape of a surrogate, which may be unpaired."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return b"\\ud" not in line and b"\\uD" not in line


def _plain_client(value: object) -> bool:
    if not _mapping(value) or not {"name", "version"} <= set(value):
        return False
    return all(
        name in ("name", "version", "title", "websiteUrl", "description") and isinstance(text, str)
        for name, text in value.items()
    )


def _plain_capabilities(value: object) -> bool:
    """Return True for forms that every schema of the SDK accepts: objects of objects, and
    `roots.listChanged`.
    """
    if not _mapping(value):
        return False
    for name, found in value.items():
        if name == "roots":
            if not _mapping(found) or any(
                key != "listChanged" or not isinstance(inner, bool) for key, inner in found.items()
            ):
                return False
        elif not _mapping(found) or not all(
            _mapping(inner) and (name != "tasks" or _objects(inner)) for inner in found.values()
        ):
            return False
    return True


def _objects(value: dict[str, Any]) -> bool:
    return all(_mapping(inner) and _objects(inner) for inner in value.values())
