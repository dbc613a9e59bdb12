"""What the servers of all tool sets say about rejections, drafts and errors of a real sandbox."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from eos_mcp import catalog
from eos_mcp.gateway_client.aio import GatewayClient
from eos_mcp.mcp import schema
from eos_mcp.mcp.server_identity import identity
from eos_mcp.mcp.server_options import ServerOptions
from eos_mcp.mcp.tools import ToolAnswer, Tools


class SetServer:
    """The tools of one server, in this process; `allowed`: guards that its command line lowers."""

    def __init__(self, options: ServerOptions, gateway: GatewayClient) -> None:
        self.options, self._tools = options, Tools(options, gateway)
        self.names = {operation.name for operation in schema.operations(options)}

    async def use(self, tool: str, **arguments: Any) -> ToolAnswer:
        return await self._tools.answer(tool, arguments, None)

    async def done(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a call that must succeed."""
        found = await self.use(tool, **arguments)
        assert not found.is_error, found.text
        return found.reply

    async def definitions(self) -> list[str]:
        listed = await self._tools.list(None, None)  # type: ignore[arg-type]  # neither is used
        return [tool.model_dump_json() for tool in listed.tools]

    def foreign(self, text: str) -> set[str]:
        """The operations that a text names as tools, and that this server lacks. Which operation started a
        command (`operation`) is a fact.
        """
        text = re.sub(r'"operation": ?"\w+"', "", text)
        lacking = {o.name for o in catalog.ALL if "_" in o.name} - self.names
        return {
            name
            for name in lacking
            if re.search(rf"(?<!-cli )(?<!-cli --sandbox-id SANDBOX )\b{name}\b", text)
        }


class Situation(NamedTuple):
    """Ids of what all sets are asked about."""

    sandbox: str
    workspace: str
    conflicting: str
    """A session whose publication is rejected."""
    busy: str
    """A session in which a command runs."""
    ended: tuple[str, ...]
    """Commands without a session: one in conflict with the head, one that a signal ended."""


async def situation(everything: SetServer, sandbox: str, workspace: str) -> Situation:
    async def one_off(cmd: str, **more: Any) -> str:
        args = {"sandbox_id": sandbox, "cmd": cmd, "yield_time_ms": 0, **more}
        return str((await everything.done("exec_command", **args))["command_session_id"])

    here = {"sandbox_id": sandbox}
    await everything.done("file_write", path="told", content="base\n", **here)
    await everything.done("file_write", path=".envrc", content="export A=1\n", **here)
    sessions = [
        str((await everything.done("create_workspace_session", **here))["workspace_session_id"])
        for _ in range(2)
    ]
    inside = {**here, "workspace_session_id": sessions[0]}
    await everything.done("file_write", path="told", content="mine\n", **inside)
    late = await one_off("read go; echo late > told")
    await everything.done("file_write", path="told", content="theirs\n", **here)
    await everything.done(
        "write_command_stdin", command_session_id=late, stdin="go\n", yield_time_ms=0, **here
    )
    killed = await one_off("echo half > killed; kill -9 $$")
    await one_off("read forever", workspace_session_id=sessions[1])
    for command in (late, killed):
        found = await everything.done("wait_command", command_session_id=command, timeout_ms=60_000, **here)
        assert found["publish_rejected"] is True, found
    return Situation(sandbox, workspace, sessions[0], sessions[1], (late, killed))


async def answers(server: SetServer, about: Situation) -> AsyncGenerator[tuple[str, ToolAnswer]]:
    """Yield each question of which the set has the tool, with the answer."""
    here = {"sandbox_id": about.sandbox}
    absent = {"sandbox_id": "eos-absent"}
    unknown_session = {**here, "workspace_session_id": "absent"}
    unknown_command = {**here, "command_session_id": "namespace_execution_999999999"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("publish_workspace_session", {**here, "workspace_session_id": about.conflicting}),
        ("publish_workspace_session", {**here, "workspace_session_id": about.busy}),
        ("destroy_workspace_session", {**here, "workspace_session_id": about.busy}),
        *(("read_command_lines", {**here, "command_session_id": one}) for one in about.ended),
        ("write_command_stdin", {**here, "command_session_id": about.ended[0], "stdin": "x\n"}),
        ("write_command_stdin", {**unknown_command, "stdin": "x\n"}),
        ("read_command_lines", unknown_command),
        ("exec_command", {**unknown_session, "cmd": "true"}),
        ("file_read", {**unknown_session, "path": "told"}),
        ("publish_workspace_session", unknown_session),
        ("create_workspace_session", {**here, "draft_id": "draft-0123456789abcdef"}),
        ("create_workspace_session", {**here, "base_version": 999}),
        ("file_read", {**here, "path": "absent"}),
        ("file_edit", {**here, "path": "told", "edits": [{"old_string": "nowhere", "new_string": "x"}]}),
        ("file_blame", {**here, "path": "absent"}),
        ("exec_command", {**here, "cmd": "true", "cwd": "absent"}),
        ("exec_command", {**here, "cmd": "x" * 200_000}),
        ("exec_command", {**absent, "cmd": "true"}),
        ("inspect_sandbox", absent),
        ("destroy_sandbox", absent),
        ("squash_layerstacks", absent),
        ("export_changes", {**here, "dest": os.path.join(about.workspace, "out")}),
        ("create_sandbox", {"image": "eos-absent/image:1", "workspace_root": about.workspace}),
        ("create_sandbox", {"image": "host", "workspace_root": os.path.join(about.workspace, "absent")}),
        ("snapshot", here),
        ("snapshot", absent),
        ("cgroup", {**here, "scope": "absent"}),
        ("list_workspace_sessions", here),
        ("list_drafts", here),
        ("preview_publish", {**here, "workspace_session_id": about.conflicting}),
        ("rebase_workspace_session", {**here, "workspace_session_id": about.conflicting}),
        ("destroy_sandbox", {**here, "if_clean": True}),
    ]
    for name, arguments in calls:
        if name in server.names:
            yield f"{name} {json.dumps(arguments)[:200]}", await server.use(name, **arguments)


def introduction(options: ServerOptions) -> str:
    return identity(options).instructions
