"""Truncate the lists of a reply that is too long: keep the first rows, and count the others. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Reply = dict[str, Any]
CURSORS = {
    "commands": ("next", "command_session_id"),
    "versions": ("next", "version"),
}
"""Lists with pages: the reply's key for the next page, and the key of the last row that has its value."""
LEAST_ROWS = 1
NEWEST = frozenset({"events", "points"})
"""Lists of which the last rows are kept: they are the newest."""


def size(value: object) -> int:
    """Characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def bounded(reply: Reply, budget: int) -> Reply:
    """Return the reply with its lists truncated, so that it has about `budget` characters at most.

    `truncated` and `left_out` (key: number of rows) say that rows are missing; beside a `left_out` of the
    reply's own, as that of an export, `rows_left_out` does.
    """
    if size(reply) <= budget:
        return reply
    found, left_out = _shorter(reply, budget, [])
    if not left_out:
        return reply
    for key, (cursor, field) in CURSORS.items():
        kept = found.get(key)
        if key in left_out and cursor in reply and isinstance(kept, list) and kept:
            found[cursor] = kept[-1].get(field)  # pyright: ignore[reportUnknownMemberType]
    return {**found, "truncated": True, "rows_left_out" if "left_out" in reply else "left_out": left_out}


def bounded_error(reply: Reply, budget: int) -> Reply:
    """Return an error envelope with its lists truncated; counts beside them, such as `conflict_count`,
    stay."""
    if size(reply) <= budget:
        return reply
    failure = dict(reply["error"])
    found, left_out = _shorter(dict(failure.get("details") or {}), budget, [])
    if not left_out:
        return reply
    rejection = found.get("publish_rejection")
    if isinstance(rejection, dict) and any(key.startswith("publish_rejection.conflicts") for key in left_out):
        found["publish_rejection"] = {**rejection, "conflicts_truncated": True}
    failure["details"] = {**found, "left_out": left_out}
    return {**reply, "error": failure}


def _shorter(value: Reply, budget: int, path: Sequence[str]) -> tuple[Reply, dict[str, int]]:
    """Shorten the longest lists first, in this object and in those below it, at most three deep."""
    found, left_out = dict(value), dict[str, int]()
    for key in sorted(found, key=lambda key: -size(found[key])):
        over = size(found) - budget
        if over <= 0:
            break
        inner: Any = found[key]
        room = max(0, size(inner) - over)
        name = ".".join([*path, key])
        if isinstance(inner, list):
            kept = _rows(inner, room, newest=key in NEWEST)  # pyright: ignore[reportUnknownArgumentType]
            if len(kept) < len(inner):  # pyright: ignore[reportUnknownArgumentType]
                left_out[name] = len(inner) - len(kept)  # pyright: ignore[reportUnknownArgumentType]
                found[key] = kept
        elif isinstance(inner, dict) and len(path) < 3:
            found[key], more = _shorter(inner, room, [*path, key])  # pyright: ignore[reportUnknownArgumentType]
            left_out |= more
    return found, left_out


def _rows(rows: list[Any], room: int, *, newest: bool) -> list[Any]:
    used, count = 2, 0
    for row in reversed(rows) if newest else rows:
        used += size(row) + 1
        if used > room and count >= LEAST_ROWS:
            break
        count += 1
    return rows[len(rows) - count :] if newest else rows[:count]
