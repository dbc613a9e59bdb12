"""Merge three versions of one text by lines. Pure; memory is linear in the text.

Regions of the two diffs that overlap or touch are grouped, as git does; a group that both sides changed
differently is a hunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from layerstack.model.conflict import Hunk
from layerstack.text.lines import Region, diff, numbering, scan_lines

_FAR = 1 << 60
"""A line that no text has."""


class Merged(NamedTuple):
    """Result of a merge. Without a conflict: the text, and no hunks. With conflicts: the hunks in order, and
    the text if the caller writes hunks, else None.
    """

    content: bytes | None
    hunks: tuple[Hunk, ...]


def merge(
    base: bytes,
    ours: bytes,
    theirs: bytes,
    *,
    adjacent: bool = False,
    write_hunk: Callable[[bytes, bytes, bytes], bytes] | None = None,
) -> Merged:
    """Merge two changed versions of `base`.

    Edits of both sides that overlap or touch are a hunk unless their text is equal over the whole group.
    Symmetric: swapping the sides changes no text. All three are text (`is_text`) of at most TEXT_MAX bytes;
    the caller has checked.

    Args:
        adjacent: edits that only touch are not a hunk, unless they begin at the same line.
        write_hunk: texts of a hunk in base, ours and theirs -> the text that replaces the hunk. A text that
            ends without a newline is the end of its file.
    Returns:
        Merged; a hunk's ranges are (first line, from 1; number of lines), and an empty range is in front of
            the line with its number.
    Cost: O(lines) memory, each distinct line kept once; O(lines) time plus at most 2 * BUDGET steps.
    Source: git-merge-file(1), which has the same rules; only repeated lines may be aligned differently.
    """
    if ours == theirs or base == theirs:
        return Merged(ours, ())
    if base == ours:
        return Merged(theirs, ())
    ids = numbering()
    base_lines, base_at = scan_lines(base, ids)
    our_lines, our_at = scan_lines(ours, ids)
    their_lines, their_at = scan_lines(theirs, ids)
    del ids
    in_ours, in_theirs = diff(base_lines, our_lines), diff(base_lines, their_lines)
    out: list[bytes] = []
    hunks: list[Hunk] = []
    done = i = j = 0  # lines of base that are done; next region of each side
    our_shift = their_shift = 0  # where line `done` of base is in ours and in theirs, minus done
    while i < len(in_ours) or j < len(in_theirs):
        first_i, first_j = i, j
        lo = min(
            in_ours[i].alo if i < len(in_ours) else _FAR, in_theirs[j].alo if j < len(in_theirs) else _FAR
        )
        hi = -1
        while True:  # regions that overlap or touch form one group
            if i < len(in_ours) and _joins(in_ours[i], lo, hi, adjacent):
                hi = max(hi, in_ours[i].ahi)
                i += 1
            elif j < len(in_theirs) and _joins(in_theirs[j], lo, hi, adjacent):
                hi = max(hi, in_theirs[j].ahi)
                j += 1
            else:
                break
        out.append(base[base_at[done] : base_at[lo]])
        our_lo, their_lo = lo + our_shift, lo + their_shift
        if i > first_i:
            our_shift = in_ours[i - 1].bhi - in_ours[i - 1].ahi
        if j > first_j:
            their_shift = in_theirs[j - 1].bhi - in_theirs[j - 1].ahi
        our_hi, their_hi = hi + our_shift, hi + their_shift
        if j == first_j or our_lines[our_lo:our_hi] == their_lines[their_lo:their_hi]:
            out.append(ours[our_at[our_lo] : our_at[our_hi]])
        elif i == first_i:
            out.append(theirs[their_at[their_lo] : their_at[their_hi]])
        else:
            hunks.append(
                Hunk((lo + 1, hi - lo), (our_lo + 1, our_hi - our_lo), (their_lo + 1, their_hi - their_lo))
            )
            if write_hunk is not None:
                texts = (
                    base[base_at[lo] : base_at[hi]],
                    ours[our_at[our_lo] : our_at[our_hi]],
                    theirs[their_at[their_lo] : their_at[their_hi]],
                )
                out.append(write_hunk(*texts))
        done = hi
    if hunks and write_hunk is None:
        return Merged(None, tuple(hunks))
    out.append(base[base_at[done] :])
    return Merged(b"".join(out), tuple(hunks))


def _joins(region: Region, lo: int, hi: int, adjacent: bool) -> bool:
    return region.alo < hi or region.alo == lo or (region.alo == hi and not adjacent)
