"""The output of a command for a model: plain text, and the screen of a full-screen program."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from eos_agent.wire.protocol import OperationError, is_error
from eos_mcp.mcp.plain_text import plain
from eos_mcp.mcp.screen import Screen

OPERATIONS = frozenset(
    {
        "exec_command",
        "write_command_stdin",
        "read_command_lines",
        "wait_command",
        "signal_command",
        "close_stdin",
    }
)
PAGES_MAX = 8
ROWS_OF_A_PAGE = 1000
NEWEST_ROWS = 100
_BLANK_ROWS = re.compile(r"\n{4,}")

Read = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""A call of read_command_lines for the command."""


def wanted(name: str, checked: dict[str, Any], reply: dict[str, Any]) -> bool:
    """Return True for a reply whose output is converted to plain text."""
    return (
        name in OPERATIONS
        and checked.get("raw") is not True
        and "error" not in reply
        and reply.get("encoding") != "base64"
    )


async def readable(reply: dict[str, Any], read: Read) -> dict[str, Any]:
    """Return the reply with plain text, and with `screen` while the program uses the alternate screen."""
    found = dict(reply)
    first = found.get("screen_offset")
    inside = isinstance(first, int) and first < int(found.get("start_offset") or 0)
    for key in ("output", "stderr", "last_line"):
        if isinstance(found.get(key), str):
            found[key] = plain(found[key], inside=inside and key == "output")
    tail = found.get("tail")
    if isinstance(tail, dict):
        found["tail"] = {**tail, "output": plain(str(tail.get("output", "")), inside=isinstance(first, int))}  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if isinstance(first, int):
        lines = await _screen(first, read)
        if lines is not None:
            found["screen"] = "\n".join(lines)
    return found


async def _screen(first: int, read: Read) -> list[str] | None:
    """Return the screen after the rows from `first` on; None if they cannot be read."""
    screen, at = Screen(), first
    try:
        for page in range(PAGES_MAX):
            start = at if page < PAGES_MAX - 1 else -NEWEST_ROWS
            rows = await read({"start_offset": start, "limit": ROWS_OF_A_PAGE, "raw": True})
            if is_error(rows):
                return None
            screen.feed(str(rows.get("output") or ""))
            at = int(rows["end_offset"])
            if at >= int(rows["total_lines"]):
                break
            screen.feed("\n")
    except (OperationError, KeyError, ValueError):
        return None
    return screen.lines()


def without_blank_rows(text: str) -> str:
    """Reduce runs of blank rows, which the removal of the alternate screen leaves, to two."""
    return _BLANK_ROWS.sub("\n\n\n", text)
