"""Which directories of the machine the calls of one MCP server may touch: what its command line names, else its client, else where it was started."""

from __future__ import annotations

import logging
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.mcp.server_options import EOS, ServerOptions
from eos_mcp.requests.roots import inside

log = logging.getLogger("eos.mcp")

BOUND = frozenset({"create_sandbox", "export_changes", "list_workspace_directories"})
"""Operations that read or write directories of the machine."""
FOR_A_PERSON = {
    "allow_sensitive": "allow_sensitive",
    "allow_unsafe": "allow_unsafe",
    "keep_setuid": "keep_setuid",
    "with_git": "with_git",
    "on_conflict": "allow_overwrite",
}
"""Arguments that lower a guard, each with the flag of the server's command line that lets a model give it. Of `on_conflict` it is `overwrite` alone."""
ASK_S = 5.0
ROOTS_MAX = 256
SEEN_MAX = 4096
"""Different roots of one client that are remembered; later ones count only if they need no resolving."""


def carried(options: ServerOptions, name: str, args: Mapping[str, Any], roots: Sequence[str] | None) -> dict[str, Any]:
    """The arguments as the gateway gets them, with this server's bounds.

    Raises:
        OperationError: invalid_request: an argument that a person alone gives.
    """
    if name not in BOUND:
        return dict(args)
    for guard, flag in FOR_A_PERSON.items():
        given = args.get(guard)
        if not given or (guard == "on_conflict" and given != "overwrite") or flag in options.allowed:
            continue
        what = guard if given is True else f"{guard} {given}"
        hint = f"a person may start the server with --{flag.replace('_', '-')}, or make the call with the command line"
        raise OperationError(
            INVALID_REQUEST, f"{what} is not for a model to give", {"argument": guard, "hint": hint}, reason="for_a_person"
        )
    found = {**args, **({"allow_sensitive": True} if "allow_sensitive" in options.allowed else {})}
    return found if roots is None else {**found, "allowed_roots": list(roots)}


def by_command_line(options: ServerOptions) -> list[str] | None:
    """What `--root` names, as it is when the server starts; None: nothing."""
    return settled([(os.path.abspath(root), os.path.realpath(root)) for root in options.roots]) if options.roots else None


def settled(roots: Sequence[tuple[str, str]]) -> list[str]:
    """What roots, each with what it leads to, bound: without those that are a symlink in another root which leads out of that one. An export
    into the other may have made it, and it would bound nothing after the next start.
    """
    out: list[str] = []
    for path, real in roots:
        named = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        around = [other for _, other in roots if other != real and inside(named, [other]) and not inside(real, [other])]
        if around:
            log.warning(
                "root %s is left out: it lies in the root %s and leads to %s; name that itself if it is meant", path, around[0], real
            )
        else:
            out.append(real)
    return out


def bounded(options: ServerOptions) -> bool:
    """The reference's program has no bounds unless its command line names some."""
    return options.program == EOS or bool(options.roots)


class Resolved:
    """What the roots of a client led to when they were first seen. A symlink that takes the place of one later, as an export into the root
    that holds it may bring, leads nowhere: the root is the directory that it was.
    """

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def of(self, path: str) -> str:
        if path not in self._seen and len(self._seen) >= SEEN_MAX:
            return path
        return self._seen.setdefault(path, os.path.realpath(path))


async def asked(ctx: ServerRequestContext[Any], options: ServerOptions, resolved: Resolved) -> list[str]:
    """The client's roots, when it has some and speaks over this process' own pipes; else the working directory."""
    if options.transport == "stdio":
        found = await _clients(ctx)
        if found is not None:
            return [root for root in settled([(path, resolved.of(path)) for path in found]) if not _wide(root)]
    return where_started()


def where_started() -> list[str]:
    """The working directory, unless it is too wide to be a project: the root, or a directory that holds a home."""
    try:
        here = os.getcwd()
    except OSError:
        return []
    return [] if _wide(here) else [here]


async def _clients(ctx: ServerRequestContext[Any]) -> list[str] | None:
    """None: the client has no roots, or does not say them."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.roots is None or not ctx.session.can_send_request:
        return None
    try:
        with anyio.fail_after(ASK_S):
            answer = await ctx.session.send_request(types.ListRootsRequest(), types.ListRootsResult)
    except (MCPError, TimeoutError, ValueError) as error:
        log.warning("roots/list of the client: %s", error or type(error).__name__)
        return None
    return [path for root in answer.roots[:ROOTS_MAX] if (path := _path(str(root.uri))) is not None]


def _path(uri: str) -> str | None:
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = os.fsdecode(urllib.parse.unquote_to_bytes(parts.path))
    return os.path.normpath(path) if os.path.isabs(path) and "\0" not in path else None


def _wide(path: str) -> bool:
    real, home = os.path.realpath(path), os.path.realpath(os.path.expanduser("~"))
    return real == "/" or home == real or home.startswith(real.rstrip("/") + "/")
