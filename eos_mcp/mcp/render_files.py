"""Texts of the operations that change or read several files."""

from __future__ import annotations

from collections.abc import Callable

from eos_mcp.mcp.json_values import Object, is_object, rows, shown_path


def where(args: Object) -> str:
    return "in the session, private until published" if args.get("workspace_session_id") else "and published"


def patched(args: Object, reply: Object) -> str:
    """Text of apply_patch: one line for each file."""
    files = rows(reply.get("files"))
    lines = [f"patched {len(files)} files {where(args)}"]
    for row in files:
        path = shown_path(row.get("path"))
        if row.get("from"):
            path = f"{shown_path(row['from'])} -> {path}"
        line = f"{row.get('type')}  {path}  +{row.get('lines_added')} -{row.get('lines_removed')}"
        if row.get("hunks_moved"):
            line += f"  ({row['hunks_moved']} hunks found at another line)"
        lines.append(line)
    return "\n".join(lines)


def media_line(reply: Object) -> str:
    """The line beside an image or PDF."""
    size = f", {reply['width']} x {reply['height']}" if reply.get("width") else ""
    return (
        f"{shown_path(reply.get('path'))}: {reply.get('media_type')}, {reply.get('total_bytes')} bytes{size}"
    )


def several_read(reply: Object, one: Callable[[Object, str], str]) -> str:
    """Text of file_read of several paths; `one` renders one file, with the call that reads on in it."""
    texts: list[str] = []
    for row in rows(reply.get("files")):
        failure, path = row.get("error"), shown_path(row.get("path"))
        if is_object(failure):
            details = failure.get("details")
            hint = details.get("hint") if is_object(details) else None
            texts.append(f"{path}: {failure.get('message')}" + (f"; {hint}" if hint else ""))
            continue
        texts.append(one(row, f"file_read path={path}"))
    return "\n\n".join(texts)


def session_diff(args: Object, reply: Object) -> str:
    """Text of diff_session: a line for each path, then the patches."""
    whose = reply.get("workspace_session_id") or reply.get("draft_id")
    found = rows(reply.get("entries"))
    if not found:
        return f"{whose} changed nothing here" if reply.get("against") != "head" else "nothing differs"
    since = (
        "the head"
        if reply.get("against") == "head"
        else f"version {reply.get('base_version', 'it began with')}"
    )
    lines = [f"{whose} against {since}: {len(found)} paths" + (" on this page" if reply.get("next") else "")]
    for row in found:
        note = f"  (same content as deleted {shown_path(row['from'])})" if row.get("from") else ""
        note += (
            "  (binary)"
            if row.get("binary")
            else "  (mode or owner)"
            if row.get("change") == "attributes"
            else ""
        )
        lines.append(f"{row.get('status')}  {shown_path(row.get('path'))}{note}")
    for row in found:
        if row.get("patch"):
            lines.append(str(row["patch"]).rstrip("\n"))
        if row.get("patch_truncated"):
            lines.append(
                f"(the patch of {shown_path(row.get('path'))} is cut: ask for it alone, or read the file)"
            )
    if reply.get("next") is not None:
        lines.append(f"more: call again with cursor={reply['next']}")
    return "\n".join(lines)
