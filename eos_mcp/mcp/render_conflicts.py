"""Texts of a refused publication and of resolved conflicts: each path with base, ours and theirs, the lines,
the author of theirs, and the next step.
"""

from __future__ import annotations

from eos_mcp.mcp.json_values import Object, compact, is_object, items, rows, shown_path
from eos_mcp.mcp.offered_tools import EVERY_TOOL, OfferedTools, by_hand
from eos_mcp.mcp.render_notices import notice_lines

EDIT_AWAY = (
    "edit the conflict markers away (lines that begin with <<<<<<<, |||||||, =======, >>>>>>>), then "
    "publish_workspace_session"
)
MERGE_HEAD = "/MERGE_HEAD"
COMMIT_MERGE = (
    "git has a merge under way here: after the edits `git add -A` and `git commit --no-edit` in the session, "
    "then publish; the history has the commits of both sides"
)
UNDER_WAY = "git_operation_in_progress"
SHOWN = 20
HUNKS = 5
MEMBERS = 8
TEXTS = 2000
"""Characters of the texts of all hunks."""


def rejection(found: Object) -> list[str]:
    """Lines for a `publish_rejection` object or a preview: a heading, then the conflicts."""
    conflicts = rows(found.get("conflicts"))
    count = found.get("conflict_count", len(conflicts))
    if not conflicts:
        path, why = found.get("path"), found.get("message") or found.get("reason")
        return [f"rejected: {path}: {why}"] if path else [f"rejected: {why}"]
    lines = [
        f"{count} conflict{'s' if count != 1 else ''}; base: what you started from, theirs: published now"
    ]
    left = [TEXTS]
    for conflict in conflicts[:SHOWN]:
        lines += _conflict(conflict, left)
    if count > SHOWN or found.get("conflicts_truncated"):
        lines.append(f"(and {count - min(SHOWN, len(conflicts))} more)")
    return lines


def next_step(around: Object, tools: OfferedTools = EVERY_TOOL) -> str:
    """Next step after a rejection, by calls of `tools`; `around` is the error's details or the result that
    contains it.
    """
    draft, session = around.get("draft_id"), around.get("workspace_session_id")
    call = "rebase_workspace_session" if session and not draft else "create_workspace_session"
    given = {"draft_id": draft} if draft else {"workspace_session_id": session}
    if not draft and not session:
        return "next: nothing has changed; read the path again, then repeat the change on what it shows now"
    if not _conflicts(around):
        if draft:
            return f"next: {call} {compact(given)} opens the work, publish_workspace_session publishes it"
        return f"next: nothing is lost, session {session} stays open"
    under_way = [row.get("hint") for row in rows(_conflicts(around)) if row.get("class") == UNDER_WAY]
    if session and under_way:
        return f"next: {under_way[0]}"
    if not tools.has(call):
        return f"next: {by_hand(str(session))}"
    units = _units(around)
    lines = [
        f"next: {call} {compact({**given, 'on_conflict': 'markers'})} - brings your work to the newest "
        f"version and loses nothing: texts get conflict markers, other files stay yours, theirs beside them "
        f"as PATH.theirs (on_conflict ours or theirs, or paths, takes a side). Edit the markers away, then "
        f"publish_workspace_session."
    ]
    return "\n".join([*lines, *(f"  or {unit}" for unit in units)])


def resolved(reply: Object) -> str:
    """Text of the answer of a rebase, or of the resolved conflicts of a draft that was opened."""
    found = rows(reply.get("conflicts"))
    lines = [
        f"rebased from version {reply.get('from_version')} to {reply.get('to_version')}: "
        f"{reply.get('updated')} paths updated, {reply.get('merged')} merged"
        + (f", {reply.get('conflict_count', len(found))} in conflict" if found else "")
    ]
    lines += resolved_rows(reply)
    lines += notice_lines(reply.get("notices"))
    if reply.get("dropped"):
        lines.append(f"skipped: {compact(reply['dropped'])}")
    if reply.get("checkpoints_ended"):
        lines.append(f"checkpoints of the version before, which ended: {compact(reply['checkpoints_ended'])}")
    if reply.get("address"):
        lines.append(f"address: {reply['address']}")
    left = rows(reply.get("unresolved"))
    if found and left and all(str(row.get("path")).endswith(MERGE_HEAD) for row in left):
        lines.append(COMMIT_MERGE)
    elif left:
        shown = [shown_path(row.get("path")) for row in left[:SHOWN]]
        count = int(reply.get("unresolved_count", len(left)))
        named, more = ", ".join(shown), f" and {count - len(shown)} more" if count > len(shown) else ""
        lines.append(f"conflict markers of an earlier rebase are in {named}{more}: {EDIT_AWAY}")
    elif not found:
        lines.append("no conflicts")
    return "\n".join(lines)


def resolved_rows(reply: Object) -> list[str]:
    """Lines for conflicts that were resolved, and what to do about markers."""
    found = rows(reply.get("conflicts"))
    lines: list[str] = []
    for row in found[:SHOWN]:
        kept = f", the other side is {shown_path(row.get('kept_as'))}" if row.get("kept_as") else ""
        why = f" ({row.get('why')})" if row.get("why") else ""
        what = "conflict markers" if row.get("resolution") == "markers" else f"{row.get('resolution')} taken"
        lines.append(f"- {shown_path(row.get('path'))} [{row.get('class')}]: {what}{why}{kept}")
    count = reply.get("conflict_count", len(found))
    if isinstance(count, int) and count > len(found[:SHOWN]):
        lines.append(f"(and {count - len(found[:SHOWN])} more)")
    if any(row.get("resolution") == "markers" for row in found):
        lines.append(f"next: {EDIT_AWAY}")
    return lines


def _conflicts(around: Object) -> list[Object]:
    rejected = around.get("publish_rejection")
    return rows(rejected.get("conflicts") if is_object(rejected) else around.get("conflicts"))


def _units(around: Object) -> list[str]:
    """Hint for each unit that both sides changed."""
    units = [(conflict.get("path"), conflict.get("unit")) for conflict in _conflicts(around)]
    return [f"{shown_path(path)}: {unit.get('hint')}" for path, unit in units if is_object(unit)]


def _conflict(conflict: Object, left: list[int]) -> list[str]:
    states = "; ".join(f"{name} {_state(conflict.get(name))}" for name in ("base", "ours", "theirs"))
    lines = [
        f"- {shown_path(conflict.get('path'))} [{conflict.get('class')}]"
        + ("" if _spelled_out(conflict) else f": {states}")
    ]
    unit = conflict.get("unit")
    if is_object(unit):
        members = [shown_path(row.get("path")) for row in rows(unit.get("members"))]
        more = unit.get("member_count", len(members)) - MEMBERS
        lines.append(
            f"  {unit.get('name')}, one value in several files: {', '.join(members[:MEMBERS])}"
            + (f" and {more} more" if more > 0 else "")
        )
    renamed = conflict.get("renamed_to")
    if is_object(renamed):
        lines.append(f"  {conflict.get('renamed_by')} has it at {shown_path(renamed.get('path'))}")
    if conflict.get("ref"):
        lines.append(f"  commits of {conflict['ref']} conflict here")
    if conflict.get("hint"):
        lines.append(f"  {conflict['hint']}")
    layer = conflict.get("theirs_layer")
    if is_object(layer):
        who = layer.get("agent") or layer.get("owner") or "an unknown author"
        lines.append(f"  theirs: version {layer.get('manifest_version')} by {who}")
    hunks = rows(conflict.get("hunks"))
    for hunk in hunks[:HUNKS]:
        spans = ", ".join(f"{name} {_span(hunk.get(name))}" for name in ("base", "ours", "theirs"))
        lines.append(f"  lines: {spans}")
        lines += _texts(hunk, left)
    if len(hunks) > HUNKS or conflict.get("hunks_truncated"):
        lines.append("  (more lines)")
    return lines


def _spelled_out(conflict: Object) -> bool:
    """Return True when the texts of the hunks say all that differs: the states add nothing to them."""
    hunks = rows(conflict.get("hunks"))
    return (
        conflict.get("class") == "content"
        and not conflict.get("hunks_truncated")
        and 0 < len(hunks) <= HUNKS
        and all(isinstance(hunk.get("ours_text"), str) for hunk in hunks)
    )


def _texts(hunk: Object, left: list[int]) -> list[str]:
    """Lines of the three texts of a hunk; `left` has the number of characters that may still be shown."""
    lines: list[str] = []
    for name in ("base", "ours", "theirs"):
        text = hunk.get(f"{name}_text")
        if not isinstance(text, str):
            continue
        if left[0] <= 0:
            return [*lines, "    [texts cut]"] if left[0] == 0 and _end(left) else lines
        shown = text[: left[0]]
        left[0] -= len(shown)
        body = shown.rstrip("\n").replace("\n", "\n      ")
        cut = " [cut]" if len(shown) < len(text) or hunk.get("text_truncated") else ""
        lines.append(f"    {name}:\n      {body}{cut}" if shown else f"    {name}: nothing")
    return lines


def _end(left: list[int]) -> bool:
    """Note that the mark for cut texts was written; it is written once."""
    left[0] = -1
    return True


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
