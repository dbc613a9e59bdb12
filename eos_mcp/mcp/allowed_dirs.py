"""Directories of the host that calls of one MCP server may touch.

They come from its command line, else from the roots of its client, else they are the working directory.
"""

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

BOUND = frozenset({"create_sandbox", "export_changes", "import_changes", "list_workspace_directories"})
"""Operations that read or write directories of the machine."""
FOR_A_PERSON = {
    "allow_sensitive": "allow_sensitive",
    "allow_unsafe": "allow_unsafe",
    "keep_setuid": "keep_setuid",
    "with_git": "with_git",
    "on_conflict": "allow_overwrite",
}
"""Arguments that weaken a protection, each with the server flag that lets a model pass it. For `on_conflict`
only `overwrite` counts.
"""
ASK_S = 5.0
ROOTS_MAX = 256
SEEN_MAX = 4096
"""Limit of remembered roots of one client; a later root is used unresolved."""


def carried(
    options: ServerOptions, name: str, args: Mapping[str, Any], roots: Sequence[str] | None
) -> dict[str, Any]:
    """Return the arguments for the gateway, with the directories that this server allows.

    Raises:
        OperationError: invalid_request, reason for_a_person: an argument that only a person may pass.
    """
    if name not in BOUND:
        return dict(args)
    for guard, flag in FOR_A_PERSON.items():
        given = args.get(guard)
        if not given or (guard == "on_conflict" and given != "overwrite") or flag in options.allowed:
            continue
        what = guard if given is True else f"{guard} {given}"
        hint = (
            f"ask the user: they can start the server with --{flag.replace('_', '-')}, or make this call "
            f"with the command line"
        )
        raise OperationError(
            INVALID_REQUEST,
            f"{name} was not called: this server does not let a model pass {what}",
            {"argument": guard, "hint": hint},
            reason="for_a_person",
        )
    found = {**args, **({"allow_sensitive": True} if "allow_sensitive" in options.allowed else {})}
    return found if roots is None else {**found, "allowed_roots": list(roots)}


def by_command_line(options: ServerOptions) -> list[str] | None:
    """Directories of `--root`, resolved when the server starts; None without `--root`."""
    return (
        allowed_targets([(os.path.abspath(root), os.path.realpath(root)) for root in options.roots])
        if options.roots
        else None
    )


def allowed_targets(roots: Sequence[tuple[str, str]]) -> list[str]:
    """Return the targets of roots, given as (path, target).

    A root that is a symlink inside another root and leads out of it is left out: an export into the other
    root may have created the symlink, which would allow any directory after the next start.
    """
    out: list[str] = []
    for path, real in roots:
        named = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        around = [
            other
            for _, other in roots
            if other != real and inside(named, [other]) and not inside(real, [other])
        ]
        if around:
            log.warning(
                "root %s is ignored: it is a symlink in the root %s and leads to %s; to allow that "
                "directory, name it as a root",
                path,
                around[0],
                real,
            )
        else:
            out.append(real)
    return out


def bounded(options: ServerOptions) -> bool:
    """Return True when calls are limited to directories: always for eos-mcp, with `--root` for
    sandbox-mcp.
    """
    return options.program == EOS or bool(options.roots)


class Resolved:
    """Targets of a client's roots when they were first seen.

    A root that an export later replaces by a symlink keeps its first target.
    """

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def of(self, path: str) -> str:
        if path not in self._seen and len(self._seen) >= SEEN_MAX:
            return path
        return self._seen.setdefault(path, os.path.realpath(path))


async def asked(ctx: ServerRequestContext[Any], options: ServerOptions, resolved: Resolved) -> list[str]:
    """Ask a stdio client for its roots; without an answer, return the working directory."""
    if options.transport == "stdio":
        found = await _clients(ctx)
        if found is not None:
            return [
                root
                for root in allowed_targets([(path, resolved.of(path)) for path in found])
                if not _wide(root)
            ]
    return where_started()


def where_started() -> list[str]:
    """Return the working directory, or nothing when it is `/` or contains the home directory."""
    try:
        here = os.getcwd()
    except OSError:
        return []
    return [] if _wide(here) else [here]


async def _clients(ctx: ServerRequestContext[Any]) -> list[str] | None:
    """Return the client's roots; None when it has no such capability or did not answer."""
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
