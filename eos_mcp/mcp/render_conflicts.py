"""A refused publication spelled out: each path with base, ours and theirs, the lines, who was first, and what
to do next.
"""

from __future__ import annotations

from eos_mcp.mcp.json_values import Object, is_object, items, rows

SHOWN = 20
HUNKS = 5
MEMBERS = 8


def rejection(found: Object) -> list[str]:
    """Lines for a `publish_rejection` object or a preview: a heading, then the conflicts."""
    conflicts = rows(found.get("conflicts"))
    count = found.get("conflict_count", len(conflicts))
    if not conflicts:
        path, why = found.get("path"), found.get("message") or found.get("reason")
        return [f"rejected: {path}: {why}"] if path else [f"rejected: {why}"]
    lines = [
        f"{count} conflict{'s' if count != 1 else ''}; base is what you started from, theirs is "
        f"published now:"
    ]
    for conflict in conflicts[:SHOWN]:
        lines += _conflict(conflict)
    if count > SHOWN or found.get("conflicts_truncated"):
        lines.append(f"(and {count - min(SHOWN, len(conflicts))} more, by preview_publish)")
    return lines


def next_step(around: Object) -> str:
    """Next step after a rejection; `around` is the error's details or the result that contains it."""
    redo = (
        "redo the listed paths on the newest version (file_read without a session shows it; file_edit "
        "without a session, or a new session, changes it)"
    )
    draft, session = around.get("draft_id"), around.get("workspace_session_id")
    units = _units(around)
    only_units = bool(units) and all(conflict.get("class") == "unit" for conflict in _conflicts(around))
    if units:
        redo = "; ".join(units if only_units else [*units, redo])
    if draft:
        return (
            f"next: {redo}; your version is readable in create_workspace_session draft_id={draft}; the "
            f"draft may stay (discard_draft deletes it)"
        )
    if session and around.get("stage") == "rebase" and only_units:
        return f"next: nothing has happened to session {session}; {redo}"
    if session and around.get("stage") == "rebase":
        return (
            f"next: nothing has happened to session {session}; undo its changes of those lines or paths "
            f"(file_read without a session shows theirs) and rebase again, or {redo}"
        )
    if session:
        return f"next: nothing is lost, session {session} stays open; {redo}; then destroy_workspace_session"
    return f"next: {redo}"


def _conflicts(around: Object) -> list[Object]:
    rejected = around.get("publish_rejection")
    return rows(rejected.get("conflicts") if is_object(rejected) else around.get("conflicts"))


def _units(around: Object) -> list[str]:
    """Next step for each unit that both sides changed: its files must be redone together."""
    units = [(conflict.get("path"), conflict.get("unit")) for conflict in _conflicts(around)]
    return [f"{path}: {unit.get('hint')}" for path, unit in units if is_object(unit)]


def _conflict(conflict: Object) -> list[str]:
    states = "; ".join(f"{name} {_state(conflict.get(name))}" for name in ("base", "ours", "theirs"))
    lines = [f"- {conflict.get('path')} [{conflict.get('class')}]: {states}"]
    unit = conflict.get("unit")
    if is_object(unit):
        members = [str(row.get("path")) for row in rows(unit.get("members"))]
        more = unit.get("member_count", len(members)) - MEMBERS
        lines.append(
            f"  {unit.get('name')}, one value in several files: {', '.join(members[:MEMBERS])}"
            + (f" and {more} more" if more > 0 else "")
        )
    renamed = conflict.get("renamed_to")
    if is_object(renamed):
        lines.append(f"  {conflict.get('renamed_by')} has it at {renamed.get('path')}")
    layer = conflict.get("theirs_layer")
    if is_object(layer):
        who = layer.get("agent") or layer.get("owner") or "somebody"
        lines.append(f"  theirs: version {layer.get('manifest_version')} ({layer.get('layer_id')}) by {who}")
    hunks = rows(conflict.get("hunks"))
    lines += [
        f"  lines: {', '.join(f'{name} {_span(hunk.get(name))}' for name in ('base', 'ours', 'theirs'))}"
        for hunk in hunks[:HUNKS]
    ]
    if len(hunks) > HUNKS or conflict.get("hunks_truncated"):
        lines.append("  (more lines)")
    return lines


def _state(state: object) -> str:
    if not is_object(state):
        return "unknown"
    kind = state.get("kind")
    if kind == "file":
        return f"file {str(state.get('digest'))[:12]} {state.get('size')} bytes {state.get('mode')}"
    if kind == "symlink":
        return f"symlink to {state.get('target')}"
    if kind == "directory":
        return f"directory {state.get('mode')}"
    return str(kind)


def _span(value: object) -> str:
    numbers = [number for number in items(value) if isinstance(number, int)]
    if len(numbers) != 2:
        return "?"
    start, count = numbers
    return f"{start}-{start + count - 1}" if count > 1 else f"{start}" if count else f"none at {start}"
