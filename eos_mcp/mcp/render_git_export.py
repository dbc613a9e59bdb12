"""Text of `export_changes` with format git: the branch, its commits, and what is left out."""

from __future__ import annotations

from eos_mcp.mcp.json_values import Object, compact, is_object, items, rows, shown_path

COMMITS_SHOWN = 10
SHORT = 10
"""Characters of an id."""


def git_export(reply: Object) -> str:
    """Give the lines of an export or of its dry run."""
    ref, count = str(reply.get("ref")), int(reply.get("commit_count") or 0)
    short = shown_path(ref.removeprefix("refs/heads/"))
    commits = rows(reply.get("commits"))
    done = "dry run, nothing was written; it would have added" if reply.get("dry_run") else "exported"
    lines = [f"{done} {count} commit{'s' * (count != 1)} to {short} in {shown_path(reply.get('dest'))}"]
    if not count:
        lines[0] += f": {short} has everything already"
    for row in commits[-COMMITS_SHOWN:]:
        author, subject = (shown_path(row.get(key)) for key in ("author", "subject"))
        lines.append(f"  {str(row.get('oid'))[:SHORT]} {author}: {subject}")
    if count > COMMITS_SHOWN:
        lines.append(f"  and {count - COMMITS_SHOWN} before these")
    if is_object(left := reply.get("left_out")):
        reasons = "; ".join(str(row.get("why")) for row in rows(left.get("why")))
        lines.append(f"left out ({reasons}): {compact(items(left.get('paths'))[:COMMITS_SHOWN])}")
    for key, said in (
        ("live_workspace_sessions", "not included: the private work of open sessions"),
        ("empty_directories", "not in commits: empty directories"),
        ("hygiene", "look at these"),
    ):
        if reply.get(key):
            lines.append(f"{said}: {compact(reply[key])}")
    if is_object(ignored := reply.get("ignored")) and ignored.get("files"):
        lines.append(f"left out, ignored by .gitignore: {ignored['files']} files")
    if not reply.get("dry_run") and reply.get("head"):
        lines.append(
            f"working tree, index and checked-out branch are as they were; `git log --graph {short}` shows "
            f"it, `git merge {short}` takes it"
        )
    return "\n".join(lines)
