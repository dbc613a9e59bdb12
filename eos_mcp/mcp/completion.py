"""Values for the variables of resource templates and the arguments of prompts, as they are typed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from eos_agent.wire.protocol import OperationError
from eos_mcp.mcp import resource_reading, resource_uris
from eos_mcp.mcp.json_values import rows
from eos_mcp.mcp.own_requests import OwnRequests
from eos_mcp.mcp.prompts import Prompts
from eos_mcp.mcp.resources import TEMPLATES, Resources

VALUES_MAX = 100
"""Most values of one answer: the limit of the protocol."""
VALUE_CHARACTERS = 4096
LIST_S = 5.0


class Completion:
    """The handler of completion/complete. A value that cannot be looked up has no suggestions."""

    def __init__(self, own: OwnRequests, resources: Resources, prompts: Prompts) -> None:
        self._own, self._resources, self._prompts = own, resources, prompts

    async def complete(
        self, ctx: ServerRequestContext[Any], params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        given = dict(params.context.arguments or {}) if params.context is not None else {}
        name, typed = params.argument.name, params.argument.value
        if name not in self._variables(params.ref):
            raise MCPError(types.INVALID_PARAMS, f"unknown argument: {name[:64]}", {"argument": name[:64]})
        found: list[str] = []
        if len(typed) <= VALUE_CHARACTERS:
            try:
                found = await self._values(name, typed, given)
            except OperationError:
                found = []  # no such sandbox or version: nothing to suggest
        values = found[:VALUES_MAX]
        completion = types.Completion(values=values, total=len(found), has_more=len(found) > len(values))
        return types.CompleteResult(completion=completion)

    def _variables(self, ref: types.ResourceTemplateReference | types.PromptReference) -> set[str]:
        if isinstance(ref, types.PromptReference):
            return self._prompts.arguments(ref.name)
        for _, template, _, _ in TEMPLATES:
            if ref.uri == template:
                return {name for name in _LISTED if f"{name}}}" in template}
        raise MCPError(types.INVALID_PARAMS, f"unknown resource template: {ref.uri[:256]}")

    async def _values(self, name: str, typed: str, given: Mapping[str, str]) -> list[str]:
        """Values of the argument that begin with the typed text, best first."""
        if name not in _LISTED:
            return []
        sandboxes = await self._resources.sandboxes()
        if name in ("sandbox", "sandbox_id"):
            return [one for one in sandboxes if one.startswith(typed)]
        sandbox = given.get("sandbox") or given.get("sandbox_id") or ""
        if not sandbox and len(sandboxes) == 1:
            sandbox = sandboxes[0]
        if not resource_uris.is_id(sandbox):
            return []
        if name == "path":
            return await self._paths(sandbox, given.get("version", ""), typed)
        op, key, field = _LISTED[name]
        args = {"limit": 1000} if op == "list_commands" else {}
        reply = await self._own.ask(op, args, sandbox, timeout_s=LIST_S)
        found = resource_reading.newest_drafts(reply) if op == "list_drafts" else rows(reply.get(key))
        if op == "list_commands":
            found = found[::-1]
        return [text for row in found if (text := str(row.get(field))).startswith(typed)]

    async def _paths(self, sandbox: str, version: str, typed: str) -> list[str]:
        """Entries of the directory that the typed path is in; a directory ends with a slash."""
        name = resource_uris.parse(f"eos://{sandbox}/versions/{version}/files/")
        above, _, begun = typed.rpartition("/")
        directory = resource_uris.checked_path(os.fsencode(above))
        if name is None or directory is None:
            return []
        args = {**resource_uris.path_arguments(directory), "version": name.version}
        reply = await self._own.ask("file_list", args, sandbox, timeout_s=LIST_S)
        lead = f"{above}/" if above else ""
        return [
            f"{lead}{row.get('name')}{'/' if row.get('kind') == 'directory' else ''}"
            for row in rows(reply.get("entries"))
            if "path_b64" not in row and str(row.get("name")).startswith(begun)
        ]


_LISTED = {
    "sandbox": ("list_sandboxes", "sandboxes", "id"),
    "sandbox_id": ("list_sandboxes", "sandboxes", "id"),
    "path": ("file_list", "entries", "name"),
    "version": ("list_versions", "versions", "version"),
    "draft": ("list_drafts", "drafts", "draft_id"),
    "draft_id": ("list_drafts", "drafts", "draft_id"),
    "command": ("list_commands", "commands", "command_session_id"),
    "workspace_session_id": ("list_workspace_sessions", "sessions", "workspace_session_id"),
}
"""Variable -> the operation that lists its values, the key of its rows, the field of a row."""
