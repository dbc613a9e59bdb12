"""The running commands of a session, as list_workspace_sessions shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eos_agent.sessions.session import Session

SHOWN = 20
TEXT = 200
LEFT_OUT = frozenset({"workspace_session_id", "request_id", "exit_code"})
"""Keys of list_commands that are redundant for a running command of a named session."""


def running(session: Session) -> list[dict[str, Any]]:
    """List the newest 20 running commands of a session, oldest first, each with its text truncated."""
    rows: list[dict[str, Any]] = []
    for command in list(session.commands.values())[-SHOWN:]:
        row = {key: value for key, value in command.row().items() if key not in LEFT_OUT}
        text = str(row.get("command", ""))
        row["command"] = text if len(text) <= TEXT else f"{text[:TEXT]}…"
        rows.append(row)
    return rows
