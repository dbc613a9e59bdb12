"""The change of one path as a patch for patch(1) and git-apply(1): unified, three lines of context, git's
header. Pure.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from layerstack.text.lines import TEXT_MAX, Region, diff, is_text, numbering, scan_lines
from layerstack.tree.state import FILE, LINK, State

CONTEXT = 3
PATCH_LIMIT = 64 << 10
"""Default limit of one patch, in bytes."""

_NO_NEWLINE = b"\\ No newline at end of file\n"


class Patch(NamedTuple):
    """The bytes of a patch."""

    data: bytes
    truncated: bool
    """True when hunks are missing at its end; the hunks that it has can be applied."""


def patch(path: str, old: State | None, new: State | None, *, limit: int = PATCH_LIMIT) -> Patch | None:
    """Make the patch from `old` to `new`; None where lines cannot express it: a directory, a file with NUL
    bytes, one above TEXT_MAX.

    A file of which only attributes changed has a header without hunks, which may be incomplete (owner,
    xattrs). Cost: that of one diff; content is read.
    """
    before = old if old is not None and old.kind in (FILE, LINK) else None
    after = new if new is not None and new.kind in (FILE, LINK) else None
    if before is None and after is None:
        return None
    if before is not None and after is not None and before.kind != after.kind:
        gone, made = patch(path, before, None, limit=limit), patch(path, None, after, limit=limit)
        return (
            None
            if gone is None or made is None
            else Patch(gone.data + made.data, gone.truncated or made.truncated)
        )
    old_text, new_text = _text(before), _text(after)
    if old_text is None or new_text is None:
        return None
    name_a, name_b = _quoted(b"a/" + os.fsencode(path)), _quoted(b"b/" + os.fsencode(path))
    out = [b"diff --git %s %s\n" % (name_a, name_b)]
    if before is None and after is not None:
        out.append(b"new file mode %s\n" % _mode(after))
    elif after is None and before is not None:
        out.append(b"deleted file mode %s\n" % _mode(before))
    elif before is not None and after is not None and _mode(before) != _mode(after):
        out.append(b"old mode %s\nnew mode %s\n" % (_mode(before), _mode(after)))
    truncated = False
    if old_text != new_text:
        tail = b"\t\n" if b" " in name_a else b"\n"
        out.append(b"--- " + (name_a + tail if before is not None else b"/dev/null\n"))
        out.append(b"+++ " + (name_b + tail if after is not None else b"/dev/null\n"))
        hunks, truncated = _hunks(old_text, new_text, limit - sum(map(len, out)))
        out += hunks
    return Patch(b"".join(out), truncated)


def _text(state: State | None) -> bytes | None:
    if state is None:
        return b""
    if state.kind == LINK:
        return os.fsencode(state.target)
    if state.size > TEXT_MAX:
        return None
    data = state.data()
    return data if is_text(data) else None


def _mode(state: State) -> bytes:
    return b"120000" if state.kind == LINK else b"100755" if state.meta[0] & 0o100 else b"100644"


_ESCAPES = {
    7: b"\\a",
    8: b"\\b",
    9: b"\\t",
    10: b"\\n",
    11: b"\\v",
    12: b"\\f",
    13: b"\\r",
    34: b'\\"',
    92: b"\\\\",
}


def _quoted(name: bytes) -> bytes:
    """Write a file name as git does: in quotes, with escapes, unless it is plain ASCII. Source:
    core.quotePath.
    """
    if all(0x20 <= c < 0x7F and c not in _ESCAPES for c in name):
        return name
    return (
        b'"'
        + b"".join(_ESCAPES.get(c) or (bytes((c,)) if 0x20 <= c < 0x7F else b"\\%03o" % c) for c in name)
        + b'"'
    )


def _hunks(old: bytes, new: bytes, limit: int) -> tuple[list[bytes], bool]:
    """Give (hunks that fit into `limit` bytes, True when some were left out)."""
    ids = numbering()
    a, a_at = scan_lines(old, ids)
    b, b_at = scan_lines(new, ids)

    def line(mark: bytes, data: bytes, lo: int, hi: int) -> bytes:
        text = mark + data[lo:hi]
        return text if text.endswith(b"\n") else text + b"\n" + _NO_NEWLINE

    groups: list[list[Region]] = []
    for region in diff(a, b):
        if groups and region.alo - groups[-1][-1].ahi <= 2 * CONTEXT:
            groups[-1].append(region)
        else:
            groups.append([region])
    out: list[bytes] = []
    for group in groups:
        start, end = max(0, group[0].alo - CONTEXT), min(len(a), group[-1].ahi + CONTEXT)
        start_b = group[0].blo - (group[0].alo - start)
        lines: list[bytes] = []
        at, taken_a, taken_b = start, 0, 0
        for region in [*group, Region(end, end, 0, 0)]:
            lines += [line(b" ", old, a_at[n], a_at[n + 1]) for n in range(at, region.alo)]
            taken_a, taken_b = taken_a + region.alo - at, taken_b + region.alo - at
            lines += [line(b"-", old, a_at[n], a_at[n + 1]) for n in range(region.alo, region.ahi)]
            lines += [line(b"+", new, b_at[n], b_at[n + 1]) for n in range(region.blo, region.bhi)]
            taken_a, taken_b, at = (
                taken_a + region.ahi - region.alo,
                taken_b + region.bhi - region.blo,
                region.ahi,
            )
        body = b"".join(lines)
        if len(body) > limit:
            return out, True
        header = b"@@ -%d,%d +%d,%d @@\n" % (start + (taken_a > 0), taken_a, start_b + (taken_b > 0), taken_b)
        limit -= len(header) + len(body)
        out.append(header + body)
    return out, False
