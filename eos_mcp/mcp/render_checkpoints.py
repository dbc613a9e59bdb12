"""Texts of checkpoint_session and restore_session, and the checkpoints of list_workspace_sessions."""

from __future__ import annotations

from collections.abc import Sequence

from eos_mcp.mcp.json_values import Object, compact, rows


def made(args: Object, reply: Object) -> str:
    """Text of checkpoint_session."""
    lines = [
        f"{_name(reply)} of session {reply.get('workspace_session_id')}: "
        f"{reply.get('changed_files')} files changed since the one before; restore_session returns to it"
    ]
    return "\n".join([*lines, *_also(reply)])


def restored(args: Object, reply: Object) -> str:
    """Text of restore_session."""
    session = f"session {reply.get('workspace_session_id')}"
    if not reply.get("restored"):
        return f"{session} has the state of {_name(reply)} already; nothing was changed"
    undo = reply.get("undo_checkpoint_id")
    lines = [
        f"{session} has the state of {_name(reply)} again; the state before is {undo}: restore_session with "
        f"checkpoint_id {undo} returns to it"
    ]
    return "\n".join([*lines, *_also(reply)])


def listed(sessions: Sequence[Object]) -> str:
    """Lines for the checkpoints of all sessions; "" without any."""
    lines: list[str] = []
    for session in sessions:
        for one in rows(session.get("checkpoints")):
            undoes = f", the state before {one['undoes']} was restored" if one.get("undoes") else ""
            lines.append(
                f"{session.get('workspace_session_id')}  {_name(one)}  "
                f"{one.get('changed_files')} files changed{undoes}"
            )
    return "\n".join(["", "checkpoints:", *lines]) if lines else ""


def _name(reply: Object) -> str:
    label = " ".join(str(reply.get("label") or "").split())[:80]
    return f"{reply.get('checkpoint_id')}" + (f" ({label})" if label else "")


def _also(reply: Object) -> list[str]:
    lines: list[str] = []
    if reply.get("checkpoints_ended"):
        lines.append(f"oldest checkpoints, dropped: {compact(reply['checkpoints_ended'])}")
    if reply.get("address"):
        lines.append(f"address: {reply['address']}")
    return lines
