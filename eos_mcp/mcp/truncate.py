"""Truncate long replies for models: the first page, as if less had been requested, and the argument for the
next page. No I/O.

Common clients give the structured content to the model and refuse more than some 25,000 tokens. Offsets
remain those of the whole output.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from eos_mcp.mcp import truncate_rows
from eos_mcp.mcp.json_values import Object, is_object, rows

BUDGET = 20_000
"""Limit in characters of the part of a reply that grows with the request."""
HEAD, TAIL = 10_000, 8_000

Reply = dict[str, Any]


def fit(name: str, reply: Reply, page: int = BUDGET) -> Reply:
    """Return `reply`, or a shorter one with correct numbers that names the argument for the next page.

    Args:
        page: characters of lines that read_command_lines and file_read return.
    """
    shorten = _TRUNCATIONS.get(name)
    if "error" in reply:
        return truncate_rows.bounded_error(reply, BUDGET)
    if shorten is None:
        return truncate_rows.bounded(reply, BUDGET)
    try:
        if shorten in (_command_lines, _file_read):
            return shorten(reply, page)
        return shorten(reply)
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
    ):  # a reply of another shape than the function knows
        return reply


def _page(lines: Sequence[str], budget: int) -> tuple[int, int]:
    """Return how many of the lines fit, at least one, and by how many characters a first line that does not
    fit is too long.
    """
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if size > budget + 1:
            return max(1, count), max(0, len(lines[0]) - budget) if count == 0 else 0
    return len(lines), 0


def _command(reply: Reply) -> Reply:
    """Keep the first rows, and the last rows too when the output ends in this reply."""
    return _streams(reply, ends=reply["end_offset"] == reply["total_lines"])


def _command_lines(reply: Reply, page: int = BUDGET) -> Reply:
    return _streams(reply, ends=False, page=page)


def _streams(reply: Reply, *, ends: bool, page: int = BUDGET) -> Reply:
    found = dict(reply)
    if found.get("encoding") == "base64":  # no tool's schema offers it, and a part of it is nothing
        return found
    stderr = found.get("stderr")
    if isinstance(stderr, str) and len(stderr) > BUDGET:
        lines = stderr.split("\n")
        count, too_long = _page(lines, HEAD)
        found["stderr"] = _shown(lines[:count], too_long)
        found["stderr_end_offset"] -= len(lines) - count
        found["truncated"] = True
    output = str(found["output"])
    if len(output) <= page:
        return found
    if "match_count" in found:  # lines with numbers of their own, which the agent bounds
        return found
    lines, start = output.split("\n"), int(found["start_offset"])
    count, too_long = _page(lines, HEAD if ends else page)
    found["output"] = _shown(lines[:count], too_long)
    found["end_offset"] = _offset(found, start, count)
    found["original_token_count"] = math.ceil(len(found["output"].encode(errors="replace")) / 4)
    found["truncated"] = True
    if ends and "tail" not in found:
        last = _last(lines[count:])
        found["tail"] = {
            "start_offset": int(reply["end_offset"]) - len(last),
            "output": "\n".join(last)[-TAIL:],
        }
        if start == 0:
            found.setdefault("total_bytes", len(output.encode(errors="replace")))
    return found


def _offset(found: Reply, start: int, count: int) -> int:
    """The number of the row after the first `count`; one of them may be the marker that stands for many."""
    dropped = found.get("dropped")
    if not is_object(dropped):
        return start + count
    first, after = int(dropped["start_offset"]), int(dropped["end_offset"])
    if start + count <= first:
        del found["dropped"]
        return start + count
    return start + count - 1 + (after - first)


def _shown(lines: Sequence[str], too_long: int) -> str:
    text = "\n".join(lines)
    return f"{text[:-too_long]}… [{too_long} more characters in this line]" if too_long else text


def _last(lines: Sequence[str]) -> list[str]:
    """Return the last lines that fit, at least one."""
    size, keep = 0, len(lines)
    while keep and (size := size + len(lines[keep - 1]) + 1) <= TAIL:
        keep -= 1
    return list(lines[min(keep, len(lines) - 1) :])


def _file_read(reply: Reply, page: int = BUDGET) -> Reply:
    if "files" in reply:
        files = rows(reply["files"])
        share = max(2000, page // max(1, len(files)))
        return {**reply, "files": [_file_read(dict(one), share) for one in files]}
    if "media_type" in reply:  # its bytes are taken out of the reply
        return reply
    if "content" not in reply:
        return truncate_rows.bounded(reply, page)
    content = str(reply["content"])
    if len(content) <= page:
        return reply
    found = {**reply, "truncated": True}
    if reply.get("encoding") == "base64":
        found["content"] = content[: page - page % 4]
        found["bytes_read"] = len(base64.b64decode(found["content"]))
        found["next_offset"] = reply["offset"] + found["bytes_read"]
        return found
    lines = content.split("\n")
    count, too_long = _page(lines, page)
    found["content"] = "\n".join(lines[:count])
    if too_long:
        found["content"] = found["content"][:-too_long]
        found["line_cut_characters"] = too_long
    found["num_lines"] = count
    found["bytes_read"] = len(found["content"].encode(errors="replace"))
    after = int(reply["start_line"]) + count
    found["next_offset"] = after if after <= reply["total_lines"] else None
    return found


def _file_list(reply: Reply) -> Reply:
    entries = rows(reply["entries"])
    kept = _first(entries)
    if len(kept) == len(entries):
        return reply
    following = entries[len(kept)]
    more = _cursor_at(following) if "name" not in following else _cursor_after(kept[-1])
    return {**reply, "entries": kept, "truncated": True, "next": more}


def _cursor_at(entry: Object) -> str:
    """Return a cursor of a listing by glob in the agent's form: `./` and the bytes of the first path."""
    path = entry.get("path_b64")
    raw = base64.b64decode(path) if path else str(entry["path"]).encode()
    return base64.urlsafe_b64encode(b"./" + raw).decode("ascii")


def _cursor_after(entry: Object) -> str:
    """Return a cursor in the agent's form: the bytes of the last name."""
    path = entry.get("path_b64")
    raw = base64.b64decode(path).rpartition(b"/")[2] if path else str(entry["name"]).encode()
    return base64.urlsafe_b64encode(raw).decode("ascii")


def _file_blame(reply: Reply) -> Reply:
    ranges = rows(reply["ranges"])
    kept = _first(ranges)
    if len(kept) == len(ranges):
        return reply
    return {**reply, "ranges": kept, "truncated": True, "next_offset": ranges[len(kept)]["start_line"]}


def _diff(reply: Reply) -> Reply:
    """Keep the first paths; a patch that is too long alone ends after a line."""
    entries = rows(reply["entries"])
    kept = _first(entries)
    if kept and len(str(kept[0].get("patch") or "")) > BUDGET:
        patch = str(kept[0]["patch"])[:BUDGET]
        kept[0] = {**kept[0], "patch": patch[: patch.rfind("\n") + 1], "patch_truncated": True}
    elif len(kept) == len(entries):
        return reply
    more = reply["next"] if len(kept) == len(entries) else str(reply["start"] + len(kept))
    return {**reply, "entries": kept, "truncated": True, "next": more}


def _first(entries: Sequence[Object]) -> list[Object]:
    size = 0
    for count, entry in enumerate(entries):
        size += len(json.dumps(entry, ensure_ascii=False)) + 1
        if size > BUDGET:
            return list(entries[: max(1, count)])
    return list(entries)


def _export(reply: Reply) -> Reply:
    """Keep fewer changes, conflicts and the like; the counts beside them still include all."""
    found = dict(reply)
    lists = [
        key
        for key in ("changes", "edited", "would_conflict", "kept_back", "overwritten", "unsafe")
        if found.get(key)
    ]
    for key in lists:
        if f"{key.removesuffix('s') if key == 'changes' else key}_count" in found:
            fitting, _ = _page(
                [json.dumps(one, ensure_ascii=False) for one in found[key]], BUDGET // max(2, len(lists))
            )
            found[key] = found[key][:fitting]
    return found


_TRUNCATIONS: dict[str, Callable[..., Reply]] = {
    "export_changes": _export,
    "exec_command": _command,
    "write_command_stdin": _command,
    "wait_command": _command,
    "signal_command": _command,
    "close_stdin": _command,
    "read_command_lines": _command_lines,
    "file_read": _file_read,
    "diff_session": _diff,
    "file_list": _file_list,
    "file_blame": _file_blame,
}
