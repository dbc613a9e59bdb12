"""Resources of the sandboxes: versions and their files, drafts and their conflicts, outputs of commands.

`resource_uris` has the URIs, `resource_reading` the contents. Listing starts no gateway: clients list when
they connect, and an editor that is opened needs no sandbox yet.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import anyio
import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from eos_agent.wire.protocol import OperationError
from eos_mcp.mcp import resource_reading, resource_uris
from eos_mcp.mcp.json_values import Object, rows
from eos_mcp.mcp.own_requests import OwnRequests, resource_error, unknown_resource
from eos_mcp.mcp.resource_uris import ResourceName

log = logging.getLogger("eos.mcp")

_Context = ServerRequestContext[Any]
_Page = types.PaginatedRequestParams | None

NEWEST = 20
"""Most versions, drafts and commands of one sandbox in resources/list; the resources themselves have all."""
SANDBOXES_AT_ONCE = 8
LIST_S = 5.0
NAME_CHARACTERS = 80
READY = "ready"

Rows = list[types.Resource]
_CURSOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
TEMPLATES = (
    (
        "versions",
        "eos://{sandbox}/versions{?after}",
        resource_reading.JSON,
        "Published versions of a sandbox, newest first, with who made each.",
    ),
    (
        "version",
        "eos://{sandbox}/versions/{version}{?cursor}",
        resource_reading.JSON,
        "A published version and the paths that it changed.",
    ),
    (
        "file of a version",
        "eos://{sandbox}/versions/{version}/files/{+path}",
        None,
        "A file of a published version, or the entries of a directory.",
    ),
    (
        "drafts",
        "eos://{sandbox}/drafts",
        resource_reading.JSON,
        "Drafts of a sandbox: work that is kept and not published.",
    ),
    (
        "draft",
        "eos://{sandbox}/drafts/{draft}{?cursor}",
        resource_reading.DIFF,
        "The changes of a draft as a unified diff.",
    ),
    (
        "conflicts of a draft",
        "eos://{sandbox}/drafts/{draft}/conflicts{?cursor}",
        resource_reading.JSON,
        "Each conflict of a draft with the newest version: base, ours, theirs and the lines.",
    ),
    (
        "output of a command",
        "eos://{sandbox}/commands/{command}{?start}",
        resource_reading.PLAIN,
        "The output of a running or ended command, without escape codes.",
    ),
)
"""Name, template, media type, description."""


class Resources:
    """The handlers of resources/list, resources/templates/list and resources/read.

    Args:
        only: the sandbox of the command line; None: all are listed.
    """

    def __init__(self, own: OwnRequests, only: str | None = None) -> None:
        self._own, self._only = own, only

    async def list(self, ctx: _Context, params: _Page) -> types.ListResourcesResult:
        cursor = params.cursor if params is not None else None
        if cursor is not None and _CURSOR.fullmatch(cursor) is None:
            raise MCPError(types.INVALID_PARAMS, "cursor was not returned by resources/list")
        sandboxes = [s for s in await self.sandboxes() if cursor is None or s > cursor]
        page = sandboxes[:SANDBOXES_AT_ONCE]
        found: dict[str, Rows] = {}
        async with anyio.create_task_group() as tasks:
            for sandbox in page:
                tasks.start_soon(self._of_sandbox, sandbox, found)
        return types.ListResourcesResult(
            resources=[row for sandbox in page for row in found[sandbox]],
            next_cursor=page[-1] if len(sandboxes) > len(page) else None,
        )

    async def templates(self, ctx: _Context, params: _Page) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(name=name, uri_template=uri, mime_type=kind, description=text)
                for name, uri, kind, text in TEMPLATES
            ]
        )

    async def read(self, ctx: _Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        name = resource_uris.parse(params.uri)
        if name is None:
            raise unknown_resource(params.uri, ctx.protocol_version)
        try:
            return (await resource_reading.content(self._own, name)).result(params.uri)
        except OperationError as error:
            raise resource_error(error, params.uri, ctx.protocol_version) from None

    async def sandboxes(self) -> Sequence[str]:
        """Ids of the sandboxes that run, sorted; only that of the command line, if it names one."""
        if not await self._own.has_gateway():
            return []
        if self._only is not None:
            return [self._only]
        try:
            reply = await self._own.ask("list_sandboxes", {})
        except OperationError as error:
            raise MCPError(types.INTERNAL_ERROR, error.message, error.details) from None
        return sorted(str(row["id"]) for row in rows(reply.get("sandboxes")) if row.get("state") == READY)

    async def _of_sandbox(self, sandbox: str, found: dict[str, Rows]) -> None:
        listed = found[sandbox] = [
            types.Resource(
                uri=ResourceName(sandbox, resource_uris.VERSIONS).uri(),
                name=f"versions of {sandbox}",
                mime_type=resource_reading.JSON,
            ),
            types.Resource(
                uri=ResourceName(sandbox, resource_uris.DRAFTS).uri(),
                name=f"drafts of {sandbox}",
                mime_type=resource_reading.JSON,
            ),
        ]
        try:
            drafts = await self._own.ask("list_drafts", {}, sandbox, timeout_s=LIST_S)
            versions = await self._own.ask("list_versions", {"limit": NEWEST}, sandbox, timeout_s=LIST_S)
            commands = await self._own.ask("list_commands", {"limit": 1000}, sandbox, timeout_s=LIST_S)
        except OperationError as error:
            log.warning("resources of %s are not listed: %s", sandbox, error.message)
            return
        listed += [_draft(sandbox, row) for row in resource_reading.newest_drafts(drafts)[:NEWEST]]
        listed += [_version(sandbox, row) for row in rows(versions.get("versions"))]
        listed += [_command(sandbox, row) for row in reversed(rows(commands.get("commands"))[-NEWEST:])]


def _draft(sandbox: str, row: Object) -> types.Resource:
    ident = str(row.get("draft_id"))
    by = f" by {row['agent']}" if row.get("agent") else ""
    return types.Resource(
        uri=ResourceName(sandbox, resource_uris.DRAFT, ident).uri(),
        name=ident,
        title=_short(f"draft {ident}{by}"),
        description=_short(f"{row.get('paths')} paths, {row.get('reason')}"),
        mime_type=resource_reading.DIFF,
    )


def _version(sandbox: str, row: Object) -> types.Resource:
    number = row.get("version")
    by = f" by {row['agent']}" if row.get("agent") else ""
    return types.Resource(
        uri=ResourceName(sandbox, resource_uris.VERSION, str(number)).uri(),
        name=f"version {number} of {sandbox}",
        title=_short(f"version {number}{by}"),
        mime_type=resource_reading.JSON,
    )


def _command(sandbox: str, row: Object) -> types.Resource:
    ident = str(row.get("command_session_id"))
    return types.Resource(
        uri=ResourceName(sandbox, resource_uris.COMMAND, ident).uri(),
        name=ident,
        title=_short(f"output of {row.get('command')}"),
        description=_short(f"status {row.get('status')}"),
        mime_type=resource_reading.PLAIN,
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= NAME_CHARACTERS else line[: NAME_CHARACTERS - 1] + "…"
