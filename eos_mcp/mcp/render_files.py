"""Texts of the operations that change or read several files."""

from __future__ import annotations

from eos_mcp.mcp.json_values import Object, rows


def where(args: Object) -> str:
    return (
        f"in session {args['workspace_session_id']} (private until published)"
        if args.get("workspace_session_id")
        else "and published"
    )


def patched(args: Object, reply: Object) -> str:
    """Text of apply_patch: one line for each file."""
    files = rows(reply.get("files"))
    lines = [f"patched {len(files)} files {where(args)}"]
    for row in files:
        path = f"{row['from']} -> {row.get('path')}" if row.get("from") else str(row.get("path"))
        line = f"{row.get('type')}  {path}  +{row.get('lines_added')} -{row.get('lines_removed')}"
        if row.get("hunks_moved"):
            line += f"  ({row['hunks_moved']} hunks found at another line)"
        lines.append(line)
    return "\n".join(lines)
