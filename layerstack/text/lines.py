"""Texts as lines, and which lines of one became which of another: pure, memory linear in the text, work bounded by a budget.

A line ends at LF only: CR belongs to its line and a missing last newline to the last one, so both survive. Nothing is decoded.
`diff` trims the common prefix and suffix; where the lines that both sides have stand in one order it pairs them all; else it anchors on lines
that occur once on both sides, runs Myers on small gaps and on what is left under the budget, and calls a gap 'replaced' when the budget is gone.
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
"""Bytes above which a file is not looked at by lines, but counts as binary."""

SCANNED = 1 << 20
"""Bytes of a text that are cut into lines at a time."""
GRAM = 8
"""Where single lines repeat, runs of so many lines are tried as anchors."""
SMALL = 1 << 14
"""Product of the lines of both sides up to which a gap gets the shortest script outright, while half of the budget is left."""

Numbers = Sequence[int]


class Region(NamedTuple):
    """Lines [alo, ahi) of the old side became lines [blo, bhi) of the new one; half-open, from 0."""

    alo: int
    ahi: int
    blo: int
    bhi: int


def is_text(data: bytes) -> bool:
    """Text is what holds no NUL byte; no encoding is asked for."""
    return b"\0" not in data


def numbering() -> defaultdict[bytes, int]:
    """A new number for each line that it is asked about first."""
    return defaultdict(itertools.count().__next__)


def number_lines(data: bytes, ids: defaultdict[bytes, int]) -> array[int]:
    """A number for each line: equal lines, equal numbers."""
    numbers = array("I")
    for _, lines in _pieces(data):
        numbers.extend(map(ids.__getitem__, lines))
    return numbers


def scan_lines(data: bytes, ids: defaultdict[bytes, int]) -> tuple[array[int], array[int]]:
    """(numbers, starts): as `number_lines`, and where each line begins, with the end of the text last."""
    numbers, starts = array("I"), array("Q")
    for at, lines in _pieces(data):
        starts.extend(itertools.accumulate([len(line) + 1 for line in lines], initial=at))
        starts.pop()
        numbers.extend(map(ids.__getitem__, lines))
    starts.append(len(data))
    return numbers, starts


def _pieces(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """The lines of a text without their newline, a piece at a time, and where in it the piece begins."""
    at, size = 0, len(data)
    while at < size:
        end = data.find(b"\n", min(at + SCANNED, size - 1)) + 1 or size
        lines = data[at:end].split(b"\n")
        if last := lines.pop():
            lines.append(last + b"\0")  # without its newline it is another line, and no text holds a NUL
        yield at, lines
        at = end


def diff(a: array[int], b: array[int], budget: Budget | None = None) -> list[Region]:
    """Changed regions from a to b, ascending, never touching each other; pure insertions and deletions as far down as they go.

    Args:
        budget: BUDGET steps of its own when None; what is spent goes off the given one.
    """
    budget = Budget(BUDGET) if budget is None else budget
    match: list[tuple[int, int, int]] = []  # (line of a, line of b, how many), ascending
    todo: list[tuple[int, int, int] | Region] = [Region(0, len(a), 0, len(b))]
    while todo:
        item = todo.pop()
        if not isinstance(item, Region):
            match.append(item)
            continue
        gap, before, after = _trim(a, b, item)
        if before[2]:
            match.append(before)
        if after[2]:
            todo.append(after)
        alo, ahi, blo, bhi = gap
        if alo == ahi or blo == bhi or not budget.spend((ahi - alo + bhi - blo) >> 4):
            continue
        small = (ahi - alo) * (bhi - blo) <= SMALL and budget.steps > BUDGET // 2
        if not small and (forced := _forced(a, b, gap)) is not None:
            match.extend(forced)
            continue
        pairs, alone = [] if small else _anchors(a, b, gap), True
        if not small and not pairs and min(ahi - alo, bhi - blo) > 4 * GRAM:  # lines repeat, but runs of GRAM lines hardly do
            runs = _anchors(_grams(a, alo, ahi), _grams(b, blo, bhi), Region(0, ahi - alo - GRAM, 0, bhi - blo - GRAM))
            pairs, alone = [(alo + i, blo + j) for i, j in runs if a[alo + i] == b[blo + j]], False
        if pairs:
            parts: list[tuple[int, int, int] | Region] = []
            at_a, at_b, n = alo, blo, 0
            while n < len(pairs):
                i, j = pairs[n]
                if at_a < i or at_b < j:
                    parts.append(Region(at_a, i, at_b, j))
                # Equal lines behind an anchor would be trimmed off the next gap. They lead over any anchor of one line, which has one place.
                run = _common(a, b, i, j, min(ahi - i, bhi - j)) if alone else 1
                parts.append((i, j, run))
                at_a, at_b = i + run, j + run
                n = bisect_left(pairs, (at_a, 0), n + 1)
            if at_a < ahi or at_b < bhi:
                parts.append(Region(at_a, ahi, at_b, bhi))
            todo.extend(reversed(parts))
            continue
        in_a, in_b = set(a[alo:ahi]), set(b[blo:bhi])  # lines that the other side does not have cannot match
        some_a = [i for i in range(alo, ahi) if a[i] in in_b]
        some_b = [j for j in range(blo, bhi) if b[j] in in_a]
        if some_a:
            found = shortest([a[i] for i in some_a], [b[j] for j in some_b], budget)
            match.extend((some_a[x], some_b[y], 1) for x, y in found)
    return _slide(a, b, _regions(match, len(a), len(b)))


def _trim(a: Numbers, b: Numbers, gap: Region) -> tuple[Region, tuple[int, int, int], tuple[int, int, int]]:
    """The gap without its common prefix and suffix, and these two."""
    alo, ahi, blo, bhi = gap
    n = _common(a, b, alo, blo, min(ahi - alo, bhi - blo))
    before = (alo, blo, n)
    alo, blo = alo + n, blo + n
    n = _common_end(a, b, ahi, bhi, min(ahi - alo, bhi - blo))
    return Region(alo, ahi - n, blo, bhi - n), before, (ahi - n, bhi - n, n)


def _common(a: Numbers, b: Numbers, i: int, j: int, most: int) -> int:
    """How many lines, at most so many, are equal from lines i and j on; found by slices, each of which is compared at once."""
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
    """The same backwards from before lines i and j."""
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


def _regions(match: list[tuple[int, int, int]], size_a: int, size_b: int) -> list[Region]:
    """What lies between the matches."""
    out: list[Region] = []
    at_a = at_b = 0
    for i, j, n in match:
        if i > at_a or j > at_b:
            out.append(Region(at_a, i, at_b, j))
        at_a, at_b = i + n, j + n
    if at_a < size_a or at_b < size_b:
        out.append(Region(at_a, size_a, at_b, size_b))
    return out


def _forced(a: array[int], b: array[int], gap: Region) -> list[tuple[int, int, int]] | None:
    """The matches of a gap in which the lines that both sides have stand in one order: there is no other way to pair all of them. None: they
    do not, lines moved or came to be repeated. Texts whose neighbours differ by edits alone cost a few set operations.
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
    out: list[tuple[int, int, int]] = []
    m = n = done = 0  # of the lines that only one side has, those passed; of the others, those matched
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
    """Pairs of lines that occur exactly once on both sides of the gap: the longest run of them that rises on both sides."""
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
    """Move pure insertions and deletions as far down as they go, joining regions that then touch.

    One form for one change, so that the same change made on both sides is recognised as the same.
    """
    out: list[Region] = []
    for region in reversed(regions):
        alo, ahi, blo, bhi = region
        if alo == ahi or blo == bhi:
            lines, lo, hi = (b, blo, bhi) if alo == ahi else (a, alo, ahi)
            stop_a, stop_b = (out[-1].alo, out[-1].blo) if out else (len(a), len(b))
            n = 0
            while hi + n < len(lines) and lines[lo + n] == lines[hi + n] and ahi + n < stop_a and bhi + n < stop_b:
                n += 1
            alo, ahi, blo, bhi = alo + n, ahi + n, blo + n, bhi + n
        if out and out[-1].alo == ahi and out[-1].blo == bhi:
            below = out.pop()
            out.append(Region(alo, below.ahi, blo, below.bhi))
        else:
            out.append(Region(alo, ahi, blo, bhi))
    out.reverse()
    return out
