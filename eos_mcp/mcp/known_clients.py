"""Limits of MCP clients by the name in their `initialize`: time of a call, characters of a result.

A client that is not listed may have the shortest limits known: five seconds (the OpenAI Agents SDK, unless
its user sets more), and some 25,000 tokens of one result.
"""

from __future__ import annotations

from collections.abc import Mapping

LONGEST_WAIT_MS = 4_500
"""Longest wait of a call for a client that is not listed and asks for no progress."""
LONGEST_WAIT_OF_KNOWN_MS = 20_000
"""Longest wait of a call for a client that is known to wait a minute, and asks for no progress."""
LONGEST_WAIT_WITH_PROGRESS_MS = 50_000
DEFAULT_WAIT_MS = 4_000
DEFAULT_WAIT_LONGER_MS = 10_000
"""Waits of exec_command in the set `agent`, unless the model sets one."""

PAGE = 20_000
"""Characters of a result, unless the model asks for more lines."""
LARGE_PAGE = 60_000
"""Characters of a result for a model that asks for more lines, with a client that is known to accept it."""

REFERENCE = "sandbox-mcp"
"""Name for every client of the drop-in program: it waits as long as the reference."""

LIMIT_BY_DEFAULT, FILE_LIMIT_BY_DEFAULT = 200, 2000
"""Lines that read_command_lines and file_read return unless a call says otherwise."""

_A_MINUTE = frozenset(
    {
        REFERENCE,
        "claude-code", "claude-ai", "codex-mcp-client", "cursor-vscode", "cursor", "visual studio code",
        "visual studio code - insiders", "gemini-cli-mcp-client", "zed", "windsurf", "windsurf-client",
        "cline", "roo code", "goose", "opencode", "github-copilot-developer", "jetbrains", "amp-mcp-client",
        "inspector-client", "inspector-cli",
    }
)  # fmt: skip
_LARGE_RESULTS = frozenset(
    {"claude-code", "claude-ai", "codex-mcp-client", "gemini-cli-mcp-client", "opencode"}
)


def longest_wait_ms(name: str | None, *, progress: bool) -> int:
    """Longest wait of one call, in ms, before this client may give up."""
    if progress:
        return LONGEST_WAIT_WITH_PROGRESS_MS
    return LONGEST_WAIT_OF_KNOWN_MS if _named(name) in _A_MINUTE else LONGEST_WAIT_MS


def default_wait_ms(name: str | None, *, progress: bool) -> int:
    """Wait of exec_command, in ms, unless the model sets one."""
    return DEFAULT_WAIT_LONGER_MS if progress or _named(name) in _A_MINUTE else DEFAULT_WAIT_MS


def page_characters(name: str | None, *, asked: bool) -> int:
    """Characters of one result; `asked`: the model asks for more lines than the default."""
    return LARGE_PAGE if asked and _named(name) in _LARGE_RESULTS else PAGE


def asks_for_more(args: Mapping[str, object]) -> bool:
    """Return True for a call that sets its `limit`, of read_command_lines above the default."""
    limit = args.get("limit")
    return isinstance(limit, int) and limit > LIMIT_BY_DEFAULT and limit != FILE_LIMIT_BY_DEFAULT


def _named(name: str | None) -> str:
    return (name or "").strip().lower()
