"""Prompts that a person picks in a client: what a model is to do, with the present state in it.

A prompt is offered only with the tools that it names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from eos_agent.wire.protocol import OperationError
from eos_mcp.mcp import render_conflicts, resource_uris
from eos_mcp.mcp.json_values import Object, rows
from eos_mcp.mcp.own_requests import OwnRequests
from eos_mcp.mcp.resources import Resources

VALUE_CHARACTERS = 20_000
"""Most characters of an argument."""
ROWS = 20
"""Most sandboxes, sessions, drafts or versions that a text lists."""

_Fill = Callable[["Prompts", Mapping[str, str]], Awaitable[str]]


class PromptArgument(NamedTuple):
    name: str
    text: str
    required: bool = False


class Prompt(NamedTuple):
    """One prompt. `tools`: names of the tools in its text."""

    name: str
    title: str
    text: str
    arguments: tuple[PromptArgument, ...]
    tools: frozenset[str]
    fill: _Fill


class Prompts:
    """The handlers of prompts/list and prompts/get.

    Args:
        tools: names of the tools that this server offers.
    """

    def __init__(self, own: OwnRequests, resources: Resources, tools: Iterable[str]) -> None:
        self._own, self._resources = own, resources
        offered = frozenset(tools)
        self._prompts = {prompt.name: prompt for prompt in PROMPTS if prompt.tools <= offered}

    async def list(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=prompt.name,
                    title=prompt.title,
                    description=prompt.text,
                    arguments=[
                        types.PromptArgument(name=a.name, description=a.text, required=a.required)
                        for a in prompt.arguments
                    ],
                )
                for prompt in self._prompts.values()
            ]
        )

    async def get(
        self, ctx: ServerRequestContext[Any], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        prompt = self._find(params.name)
        given = {name: text for name, text in (params.arguments or {}).items() if text.strip()}
        known = {argument.name for argument in prompt.arguments}
        wrong = [f"{name[:64]} is unknown" for name in given if name not in known]
        wrong += [f"{a.name} is required" for a in prompt.arguments if a.required and a.name not in given]
        wrong += [
            f"{name} is too long" for name in known & given.keys() if len(given[name]) > VALUE_CHARACTERS
        ]
        if wrong:
            raise MCPError(types.INVALID_PARAMS, f"arguments of prompt {prompt.name}: {'; '.join(wrong)}")
        try:
            text = await prompt.fill(self, given)
        except OperationError as error:
            raise MCPError(types.INTERNAL_ERROR, error.message, error.details) from None
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(description=prompt.text, messages=[message])

    def arguments(self, name: str) -> set[str]:
        """Names of the arguments of a prompt; MCPError for an unknown one."""
        return {argument.name for argument in self._find(name).arguments}

    def _find(self, name: str) -> Prompt:
        found = self._prompts.get(name)
        if found is None:
            raise MCPError(types.INVALID_PARAMS, f"no such prompt: {name[:128]}")
        return found

    async def _sandbox(self, given: Mapping[str, str]) -> str:
        """The sandbox that is named, or the only one that runs."""
        named = given.get("sandbox_id")
        if named is not None:
            if not resource_uris.is_id(named):
                raise MCPError(types.INVALID_PARAMS, f"sandbox_id is not an id: {named[:64]!r}")
            return named
        found = await self._resources.sandboxes()
        if len(found) == 1:
            return found[0]
        some = f": {', '.join(found[:ROWS])}" if found else ""
        raise MCPError(types.INVALID_PARAMS, f"sandbox_id is required, {len(found)} sandboxes run{some}")

    async def start(self, given: Mapping[str, str]) -> str:
        reply: Object = {}
        if await self._own.has_gateway():
            reply = await self._own.ask("list_sandboxes", {})
        found = [
            f"   {row.get('id')} {row.get('state')} {row.get('workspace_root')}"
            for row in rows(reply.get("sandboxes"))[:ROWS]
        ]
        return "\n".join(
            [
                *([f"Task: {given['task']}", ""] if "task" in given else []),
                "Do this in a sandbox. The project's own directory stays as it is; other agents may work in "
                "the same sandbox.",
                "",
                "1. Choose the sandbox whose workspace_root is this project (list_sandboxes). If none fits: "
                "create_sandbox with image and the absolute workspace_root.",
                *(["   Sandboxes now:", *found] if found else ["   No sandbox exists yet."]),
                "2. create_workspace_session, with your name as agent. Pass its workspace_session_id to "
                "exec_command and the file tools: your changes stay private.",
                "3. Work, and run the tests in the session.",
                "4. publish_workspace_session. If it is rejected nothing is lost: make the call that the "
                "answer names.",
                "5. Say which version you published. Do not write to the project's directory until the "
                "user asks for it.",
            ]
        )

    async def resolve_conflict(self, given: Mapping[str, str]) -> str:
        sandbox = await self._sandbox(given)
        draft, session = given.get("draft_id"), given.get("workspace_session_id")
        if draft and session:
            raise MCPError(types.INVALID_PARAMS, "give either draft_id or workspace_session_id")
        if not draft and not session:
            reply = await self._own.ask("list_workspace_sessions", {}, sandbox)
            return "\n".join(_unresolved(sandbox, reply))
        which = {"draft_id": draft} if draft else {"workspace_session_id": str(session)}
        reply = await self._own.ask("preview_publish", which, sandbox, timeout_s=600.0)
        name, value = next(iter(which.items()))
        lines = [f"Bring the work of {name} {value} in sandbox {sandbox} to the newest version.", ""]
        if reply.get("would_publish") and session:
            return "\n".join([*lines, f"It has no conflicts: publish_workspace_session {name} {value}."])
        lines += (
            render_conflicts.rejection(reply) if rows(reply.get("conflicts")) else ["It has no conflicts."]
        )
        call = "create_workspace_session" if draft else "rebase_workspace_session"
        return "\n".join(
            [
                *lines,
                "",
                f"1. {call} with {name} {value} and on_conflict markers. Both sides stay: a text gets "
                f"conflict markers, of other files one side is taken and the other is kept beside it as "
                f"PATH.theirs.",
                "2. For each conflict read what both sides meant, and edit the file so that both intents "
                "hold; take the markers out. If they exclude each other, ask the user.",
                "3. Run the tests in the session.",
                "4. publish_workspace_session. If it is rejected again, begin again with 1.",
                "5. Say for each file what you kept of either side.",
            ]
        )

    async def review(self, given: Mapping[str, str]) -> str:
        sandbox = await self._sandbox(given)
        reply = await self._own.ask("list_versions", {"limit": ROWS}, sandbox)
        versions = [
            f"   {row.get('version')}{' (newest)' if row.get('head') else ''}: "
            f"{row.get('agent') or row.get('owner') or 'the base'}, {_paths(row)}"
            for row in rows(reply.get("versions"))
        ]
        dest = given.get("dest", "the user's project directory")
        return "\n".join(
            [
                f"Review what sandbox {sandbox} has published before it is written to {dest}.",
                "",
                "Versions, newest first:",
                *versions,
                "",
                f"1. export_changes with sandbox_id {sandbox}, dest {dest} and dry_run true. It writes "
                f"nothing.",
                "2. Show the user: which files would be written and deleted; would_conflict, files that the "
                "user changed since; unsafe and hygiene, files that would run by themselves; left_out.",
                "3. Look into the changed files and say what is risky or not done: missing tests, debugging "
                "left over, secrets, files without a reason.",
                "4. Ask the user. Only after a yes: export_changes without dry_run. on_conflict keep leaves "
                "the user's own changes as they are.",
                "5. Say what was written and what was kept back.",
            ]
        )


def _unresolved(sandbox: str, reply: Object) -> list[str]:
    sessions = [f"   session {row.get('workspace_session_id')}" for row in rows(reply.get("sessions"))[:ROWS]]
    drafts = [
        f"   draft {row.get('draft_id')}: {_paths(row)}, {row.get('reason')}"
        for row in rows(reply.get("drafts"))[:ROWS]
    ]
    if not sessions and not drafts:
        return [f"Sandbox {sandbox} has no open session and no draft: nothing is left to resolve."]
    return [
        f"Sandbox {sandbox} has work that is not published:",
        *drafts,
        *sessions,
        "",
        "Ask the user which of it is wanted. For a draft: create_workspace_session with draft_id and "
        "on_conflict markers; for a session: rebase_workspace_session with workspace_session_id and "
        "on_conflict markers. Then edit the markers away so that both sides' intents hold, run the tests, "
        "publish_workspace_session.",
    ]


def _paths(row: Object) -> str:
    return f"{row.get('paths')} paths" if row.get("paths") is not None else "files unchanged"


_SANDBOX = PromptArgument("sandbox_id", "The sandbox; may be left out when only one runs.")
PROMPTS = (
    Prompt(
        "start",
        "Work in a sandbox",
        "Do a task in a sandbox: choose or make one, work in a session of its own, publish.",
        (PromptArgument("task", "What is to be done."),),
        frozenset(
            {
                "list_sandboxes",
                "create_sandbox",
                "create_workspace_session",
                "exec_command",
                "publish_workspace_session",
            }
        ),
        Prompts.start,
    ),
    Prompt(
        "resolve-conflict",
        "Resolve a conflict",
        "Bring a session or draft whose publication was rejected to the newest version, with both sides' "
        "changes.",
        (
            _SANDBOX,
            PromptArgument("draft_id", "A draft; or give workspace_session_id."),
            PromptArgument("workspace_session_id", "An open session."),
        ),
        frozenset({"create_workspace_session", "rebase_workspace_session", "publish_workspace_session"}),
        Prompts.resolve_conflict,
    ),
    Prompt(
        "review-before-export",
        "Review before an export",
        "Look at what was published, and at what an export would change, before the host's files change.",
        (_SANDBOX, PromptArgument("dest", "Absolute directory that the export would write to.")),
        frozenset({"export_changes"}),
        Prompts.review,
    ),
)
