"""Texts as lines, and the difference of two texts: pure, memory linear in the text, work bounded by a budget.

A line ends at LF only: CR belongs to its line and a missing last newline to the last one, so both survive.
Nothing is decoded. The rules by which lines are paired are in `diff`.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import lt
from typing import NamedTuple

from layerstack.text.myers import BUDGET, Budget, shortest

TEXT_MAX = 8 << 20
"""Bytes above which a file counts as binary, and is not compared by lines."""

SCANNED = 1 << 20
"""Bytes of a text that are cut into lines at a time."""
GRAM = 8
"""Lines of a run that serves as an anchor where single lines repeat."""
SMALL = 1 << 14
"""Size of the largest gap (product of its numbers of lines) that gets the shortest script while half of the
budget is left.
"""

Numbers = Sequence[int]
Match = tuple[int, int, int]
"""(line of a, line of b, number of lines): equal lines that are paired."""


class Region(NamedTuple):
    """Lines [alo, ahi) of the old side became lines [blo, bhi) of the new one; half-open, from 0."""

    alo: int
    ahi: int
    blo: int
    bhi: int


def is_text(data: bytes) -> bool:
    """Check whether data is text: it contains no NUL byte. Its encoding does not matter."""
    return b"\0" not in data


def numbering() -> defaultdict[bytes, int]:
    """Make a table that gives each line a number at its first look-up."""
    return defaultdict(itertools.count().__next__)


def number_lines(data: bytes, ids: defaultdict[bytes, int]) -> array[int]:
    """Give a number for each line: equal lines, equal numbers."""
    numbers = array("I")
    for _, lines in _pieces(data):
        numbers.extend(map(ids.__getitem__, lines))
    return numbers


def scan_lines(data: bytes, ids: defaultdict[bytes, int]) -> tuple[array[int], array[int]]:
    """Give (numbers, starts): as `number_lines`, and the offset of each line, with the end of the text
    last.
    """
    numbers, starts = array("I"), array("Q")
    for at, lines in _pieces(data):
        starts.extend(itertools.accumulate([len(line) + 1 for line in lines], initial=at))
        starts.pop()
        numbers.extend(map(ids.__getitem__, lines))
    starts.append(len(data))
    return numbers, starts


def lines_at(data: bytes, starts: Sequence[int], first: int, count: int, limit: int) -> str:
    """Give `count` lines from number `first` (from 1) on as text, cut after `limit` bytes."""
    at = starts[min(first - 1, len(starts) - 1)]
    end = starts[min(first - 1 + count, len(starts) - 1)]
    return data[at : min(end, at + limit)].decode("utf-8", "replace")


def _pieces(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Give (offset, lines without their newline) of a text, piece by piece."""
    at, size = 0, len(data)
    while at < size:
        end = data.find(b"\n", min(at + SCANNED, size - 1)) + 1 or size
        lines = data[at:end].split(b"\n")
        if last := lines.pop():
            lines.append(last + b"\0")  # a line without newline differs from one with it; a text has no NUL
        yield at, lines
        at = end


def diff(a: array[int], b: array[int], budget: Budget | None = None) -> list[Region]:
    """List the changed regions from a to b, ascending, never touching each other.

    A gap, at first the whole of both texts, is handled by the first rule that applies:

    1. Equal lines at its start and end are matched (`_trim`). The gap is done when a side is empty or the
       budget is spent.
    2. Up to SMALL, while half of the budget is left: the shortest edit script (`_shortest`).
    3. The common lines are in the same order on both sides: all are matched (`_in_one_order`).
    4. Anchors divide it into smaller gaps (`_divide`).
    5. Else the shortest edit script, as far as the budget allows.

    Lines without a match are changed. At the end pure insertions and deletions move down as far as they can.

    Args:
        budget: BUDGET steps of its own when None; the steps that are used are subtracted from a given one.
    """
    budget = Budget(BUDGET) if budget is None else budget
    matches: list[Match] = []  # ascending
    todo: list[Match | Region] = [Region(0, len(a), 0, len(b))]
    while todo:
        item = todo.pop()
        if not isinstance(item, Region):
            matches.append(item)
            continue
        gap, before, after = _trim(a, b, item)
        if before[2]:
            matches.append(before)
        if after[2]:
            todo.append(after)
        size_a, size_b = gap.ahi - gap.alo, gap.bhi - gap.blo
        if not size_a or not size_b or not budget.spend((size_a + size_b) >> 4):
            continue
        if size_a * size_b > SMALL or budget.steps <= BUDGET // 2:
            if (ordered := _in_one_order(a, b, gap)) is not None:
                matches.extend(ordered)
                continue
            if parts := _divide(a, b, gap):
                todo.extend(reversed(parts))
                continue
        matches.extend(_shortest(a, b, gap, budget))
    return _slide(a, b, _regions(matches, len(a), len(b)))


def _divide(a: array[int], b: array[int], gap: Region) -> list[Match | Region]:
    """Divide a gap at its anchors: matches and smaller gaps, ascending; empty when it has no anchors.

    Anchors are lines that occur once on both sides. Where lines repeat too often for that, they are runs of
    GRAM lines that occur once on both sides, in gaps that are long enough for some of them.
    """
    alo, ahi, blo, bhi = gap
    if pairs := _anchors(a, b, gap):
        return _at_anchors(a, b, gap, pairs, extended=True)
    if min(ahi - alo, bhi - blo) <= 4 * GRAM:
        return []
    runs = _anchors(
        _grams(a, alo, ahi), _grams(b, blo, bhi), Region(0, ahi - alo - GRAM, 0, bhi - blo - GRAM)
    )
    # only the first line of each run is matched; runs of equal hash may differ
    return _at_anchors(
        a, b, gap, [(alo + i, blo + j) for i, j in runs if a[alo + i] == b[blo + j]], extended=False
    )


def _at_anchors(
    a: Numbers, b: Numbers, gap: Region, pairs: list[tuple[int, int]], *, extended: bool
) -> list[Match | Region]:
    """Give the matches of the anchors `pairs` and the gaps between them, ascending; empty without anchors.

    Args:
        extended: equal lines after an anchor join its match, as trimming the next gap would match them
            anyway. A further anchor among them is part of that match, since its line occurs once on each
            side.
    """
    if not pairs:
        return []
    alo, ahi, blo, bhi = gap
    parts: list[Match | Region] = []
    at_a, at_b, n = alo, blo, 0
    while n < len(pairs):
        i, j = pairs[n]
        if at_a < i or at_b < j:
            parts.append(Region(at_a, i, at_b, j))
        run = _common(a, b, i, j, min(ahi - i, bhi - j)) if extended else 1
        parts.append((i, j, run))
        at_a, at_b = i + run, j + run
        n = bisect_left(pairs, (at_a, 0), n + 1)
    if at_a < ahi or at_b < bhi:
        parts.append(Region(at_a, ahi, at_b, bhi))
    return parts


def _shortest(a: array[int], b: array[int], gap: Region, budget: Budget) -> list[Match]:
    """Match the lines of a gap along a shortest edit script. Lines that only one side has cannot match, and
    are left out.
    """
    alo, ahi, blo, bhi = gap
    in_a, in_b = set(a[alo:ahi]), set(b[blo:bhi])
    some_a = [i for i in range(alo, ahi) if a[i] in in_b]
    some_b = [j for j in range(blo, bhi) if b[j] in in_a]
    if not some_a:
        return []
    found = shortest([a[i] for i in some_a], [b[j] for j in some_b], budget)
    return [(some_a[x], some_b[y], 1) for x, y in found]


def _trim(a: Numbers, b: Numbers, gap: Region) -> tuple[Region, Match, Match]:
    """Give the gap without its common prefix and suffix, and the matches of these two."""
    alo, ahi, blo, bhi = gap
    n = _common(a, b, alo, blo, min(ahi - alo, bhi - blo))
    before = (alo, blo, n)
    alo, blo = alo + n, blo + n
    n = _common_end(a, b, ahi, bhi, min(ahi - alo, bhi - blo))
    return Region(alo, ahi - n, blo, bhi - n), before, (ahi - n, bhi - n, n)


def _common(a: Numbers, b: Numbers, i: int, j: int, most: int) -> int:
    """Count the equal lines from lines i and j on, at most `most`; by slices, each of which is compared at
    once.
    """
    if not most or a[i] != b[j]:
        return 0
    done, step = 1, 16
    while step and done < most:
        size = min(step, most - done)
        if a[i + done : i + done + size] == b[j + done : j + done + size]:
            done += size
            step *= 2
        elif size == 1:
            break
        else:
            most, step = done + size, size // 2  # the first difference is in there
    return done


def _common_end(a: Numbers, b: Numbers, i: int, j: int, most: int) -> int:
    """Count the equal lines backwards from before lines i and j, as `_common`."""
    if not most or a[i - 1] != b[j - 1]:
        return 0
    done, step = 1, 16
    while step and done < most:
        size = min(step, most - done)
        if a[i - done - size : i - done] == b[j - done - size : j - done]:
            done += size
            step *= 2
        elif size == 1:
            break
        else:
            most, step = done + size, size // 2
    return done


def _regions(matches: list[Match], size_a: int, size_b: int) -> list[Region]:
    """Give the regions between the matches."""
    out: list[Region] = []
    at_a = at_b = 0
    for i, j, n in matches:
        if i > at_a or j > at_b:
            out.append(Region(at_a, i, at_b, j))
        at_a, at_b = i + n, j + n
    if at_a < size_a or at_b < size_b:
        out.append(Region(at_a, size_a, at_b, size_b))
    return out


def _in_one_order(a: array[int], b: array[int], gap: Region) -> list[Match] | None:
    """Match all common lines of a gap when they are in the same order on both sides; else None.

    No other match contains all common lines. None means that lines moved or are repeated differently. Texts
    in which nothing moved cost a few set operations.
    """
    alo, ahi, blo, bhi = gap
    of_a, of_b = a[alo:ahi], b[blo:bhi]
    in_a, in_b = set(of_a), set(of_b)
    only_a, only_b = in_a - in_b, in_b - in_a
    left_a = [i for i, x in enumerate(of_a) if x in only_a] if only_a else []
    left_b = [j for j, x in enumerate(of_b) if x in only_b] if only_b else []
    common = len(of_a) - len(left_a)
    if common != len(of_b) - len(left_b):
        return None
    left_a.append(len(of_a))
    left_b.append(len(of_b))
    out: list[Match] = []
    m = n = done = 0  # lines passed that only one side has, on each side; common lines matched
    while done < common:
        while left_a[m] - m == done:
            m += 1
        while left_b[n] - n == done:
            n += 1
        i, j, run = done + m, done + n, min(left_a[m] - m, left_b[n] - n) - done
        if of_a[i : i + run] != of_b[j : j + run]:
            return None
        out.append((alo + i, blo + j, run))
        done += run
    return out


def _anchors(a: Numbers, b: Numbers, gap: Region) -> list[tuple[int, int]]:
    """Pair lines that occur exactly once on both sides of the gap: the longest sequence that ascends on both
    sides.
    """
    of_a, of_b = a[gap.alo : gap.ahi], b[gap.blo : gap.bhi]
    once = {x for x, n in Counter(of_a).items() if n == 1} & {x for x, n in Counter(of_b).items() if n == 1}
    if not once:
        return []
    where = dict(zip(of_a, range(gap.alo, gap.ahi), strict=True))
    pairs = [(where[x], j) for j, x in enumerate(of_b, gap.blo) if x in once]
    if all(map(lt, pairs, pairs[1:])):
        return pairs  # nothing moved
    tails: list[int] = []
    tops: list[int] = []
    back: list[int] = []
    for n, (i, _) in enumerate(pairs):
        k = bisect_left(tails, i)
        back.append(tops[k - 1] if k else -1)
        if k == len(tails):
            tails.append(i)
            tops.append(n)
        else:
            tails[k] = i
            tops[k] = n
    out: list[tuple[int, int]] = []
    n = tops[-1]
    while n >= 0:
        out.append(pairs[n])
        n = back[n]
    out.reverse()
    return out


def _grams(a: array[int], lo: int, hi: int) -> list[int]:
    return [hash(a[i : i + GRAM].tobytes()) for i in range(lo, hi - GRAM)]


def _slide(a: Numbers, b: Numbers, regions: list[Region]) -> list[Region]:
    """Move pure insertions and deletions down as far as they can, joining regions that then touch.

    Each change then has one possible position, so that the same change on both sides compares equal.
    """
    out: list[Region] = []
    for region in reversed(regions):
        alo, ahi, blo, bhi = region
        if alo == ahi or blo == bhi:
            lines, lo, hi = (b, blo, bhi) if alo == ahi else (a, alo, ahi)
            stop_a, stop_b = (out[-1].alo, out[-1].blo) if out else (len(a), len(b))
            n = 0
            while (
                hi + n < len(lines)
                and lines[lo + n] == lines[hi + n]
                and ahi + n < stop_a
                and bhi + n < stop_b
            ):
                n += 1
            alo, ahi, blo, bhi = alo + n, ahi + n, blo + n, bhi + n
        if out and out[-1].alo == ahi and out[-1].blo == bhi:
            below = out.pop()
            out.append(Region(alo, below.ahi, blo, below.bhi))
        else:
            out.append(Region(alo, ahi, blo, bhi))
    out.reverse()
    return out
