"""Texts of the notices of a publication, a preview or a rebase: a line each, in the words of the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eos_mcp.mcp.json_values import Object, compact, is_object, items, rows, shown_path

SHOWN = 10
"""Notices that have a line of their own."""
UNSEEN_SHOWN = 5


def notice_lines(notices: object) -> list[str]:
    """Give the lines; a notice of an unknown kind is shown as JSON."""
    found = rows(notices)
    lines = [f"note: {_line(notice)}" for notice in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"note: and {len(found) - SHOWN} more")
    return lines


def _line(notice: Object) -> str:
    text = _TEXTS.get(str(notice.get("kind")))
    more = f"; and {notice['more']} more of the kind" if notice.get("more") else ""
    return (compact(notice) if text is None else text(notice)) + more


def _path(notice: Object) -> str:
    return shown_path(notice.get("path"))


def _ref(value: object) -> str:
    return shown_path(str(value).removeprefix("refs/heads/"))


def _theirs(notice: Object) -> str:
    layer = notice.get("theirs_layer")
    if not is_object(layer):
        return "theirs"
    by = layer.get("agent") or layer.get("owner")
    return f"that of version {layer.get('manifest_version')}" + (f" by {by}" if by else "")


def _built_on(notice: Object) -> str:
    unseen = items(notice.get("unseen"))
    named = ", ".join(map(shown_path, unseen[:UNSEEN_SHOWN]))
    rest = f" and {len(unseen) - UNSEEN_SHOWN} more" if len(unseen) > UNSEEN_SHOWN else ""
    return (
        f"made on version {notice.get('version')}, before newer changes to {named}{rest}: what was built or "
        f"tested there has not seen these"
    )


def _both_renamed(notice: Object) -> str:
    names = [
        f"{side} to {shown_path(new.get('path'))}"
        for side in ("ours", "theirs")
        if is_object(new := notice.get(side))
    ]
    return f"{_path(notice)} was renamed by both, {' and '.join(names)}: both are there"


_TEXTS: Mapping[str, Callable[[Object], str]] = {
    "kept": lambda n: f"{_path(n)} of the newest version stays in a directory that this work made again",
    "dropped": lambda n: f"{_path(n)} of the newest version went with the directory that this work removed",
    "replaced": lambda n: (
        f"{_path(n)} is ignored and was changed by both: this work's stays, {_theirs(n)} is in the earlier"
        f" version"
    ),
    "derived": lambda n: (
        f"{_path(n)} and the like, made by tools, stay as published ({n.get('count', 1)} files)"
    ),
    "rename_rename": _both_renamed,
    "split_link": lambda n: (
        f"{_path(n)} is no longer the same file as its other names, which keep the old content"
    ),
    "built_on": _built_on,
    "branch_not_switched": lambda n: f"the branch that is checked out stays {_ref(n.get('detail'))}",
    "ref_kept": lambda n: f"{_ref(n.get('path'))} stays: one side deleted it, the other moved or needs it",
    "ref_renamed": lambda n: (
        f"{_ref(n.get('path'))} of this work is {_ref(n.get('detail'))} now: its commits are there, "
        f"{_ref(n.get('path'))} is as published"
    ),
    "kept_commits": lambda n: f"commits that no branch has are kept as {_ref(n.get('detail'))}",
    "unstaged": lambda n: f"{_path(n)} is not staged any more; its file is unchanged",
    "unsigned": lambda n: (
        f"{n.get('count')} commits on {_ref(n.get('path'))} were replayed and lost their signatures"
    ),
    "tag_not_moved": lambda n: f"the tag {_path(n)} still names a commit from before the replay",
    "rules_refused": lambda n: f"{_path(n)} has too many patterns: what it ignores counts as source",
}
