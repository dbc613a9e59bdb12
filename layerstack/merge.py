"""Three-way merge of one text by lines: pure, memory linear in the text, work bounded by a budget.

A line ends at LF only: CR belongs to its line and a missing last newline to the last one, so both survive. Nothing is decoded.
`diff` trims the common prefix and suffix, anchors on lines that occur once on both sides, runs Myers on small gaps and on what is left
under the budget, and calls a gap 'replaced' when the budget is gone. `merge` groups the regions of two diffs that overlap or touch, as git does.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import lt
from typing import NamedTuple

from layerstack.changes import Hunk

MERGE_LIMIT = 8 << 20
"""Bytes of one side above which a text is not merged but counts as binary."""

BUDGET = 400_000
"""Inner steps of Myers' algorithm for one diff: about 0.2 s of pure Python."""
SCANNED = 1 << 20
"""Bytes of a text that are cut into lines at a time."""
GRAM = 8
"""Where single lines repeat, runs of so many lines are tried as anchors."""
SMALL = 1 << 14
"""Product of the lines of both sides up to which a gap gets the shortest script outright, while half of the budget is left."""
MAX_DISTANCE = 600
"""Edit distance of one gap, above which it is replaced."""

_FAR = 1 << 60

Numbers = Sequence[int]


class Region(NamedTuple):
    """Lines [alo, ahi) of the old side became lines [blo, bhi) of the new one; half-open, from 0."""

    alo: int
    ahi: int
    blo: int
    bhi: int


class Merged(NamedTuple):
    """Clean: the text and no hunks. Conflict: None and every hunk, in order. Conflict markers are never written."""

    content: bytes | None
    hunks: tuple[Hunk, ...]


class Budget:
    """What one diff, or several that share it, may still spend."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def spend(self, steps: int) -> bool:
        self.steps -= steps
        return self.steps >= 0


def is_text(data: bytes) -> bool:
    """Text is what holds no NUL byte; no encoding is asked for."""
    return b"\0" not in data


def merge(base: bytes, ours: bytes, theirs: bytes) -> Merged:
    """Merge what two sides made of `base`.

    Edits of both sides that overlap or touch are a hunk unless their text is equal over the whole group. Symmetric: swapping the sides
    changes no text. All three are text (`is_text`) of at most MERGE_LIMIT bytes; the caller has checked.

    Returns:
        Merged; a hunk's ranges are (first line, from 1; number of lines), and a range of no lines stands before the line that it names.
    Cost: O(lines) memory, each distinct line kept once; O(lines) time plus at most 2 * BUDGET steps.
    Source: git-merge-file(1), whose rules these are; differences are other alignments of lines that repeat.
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
    done = i = j = 0  # lines of base that are dealt with; next region of each side
    our_shift = their_shift = 0  # where line `done` of base is in ours and in theirs, minus done
    while i < len(in_ours) or j < len(in_theirs):
        first_i, first_j = i, j
        lo = min(in_ours[i].alo if i < len(in_ours) else _FAR, in_theirs[j].alo if j < len(in_theirs) else _FAR)
        hi = -1
        while True:  # regions that overlap or touch belong together
            if i < len(in_ours) and _joins(in_ours[i], lo, hi):
                hi = max(hi, in_ours[i].ahi)
                i += 1
            elif j < len(in_theirs) and _joins(in_theirs[j], lo, hi):
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
            hunks.append(Hunk((lo + 1, hi - lo), (our_lo + 1, our_hi - our_lo), (their_lo + 1, their_hi - their_lo)))
        done = hi
    if hunks:
        return Merged(None, tuple(hunks))
    out.append(base[base_at[done] :])
    return Merged(b"".join(out), ())


def _joins(region: Region, lo: int, hi: int) -> bool:
    return region.alo <= hi or (hi < 0 and region.alo == lo)


def numbering() -> defaultdict[bytes, int]:
    """A new number for each line that it is asked about first."""
    return defaultdict(itertools.count().__next__)


def scan_lines(data: bytes, ids: defaultdict[bytes, int]) -> tuple[array[int], array[int]]:
    """(numbers, starts): a number for each line (equal lines, equal numbers) and where each begins, with the end of the text last."""
    numbers, starts, at, size = array("I"), array("Q"), 0, len(data)
    while at < size:
        end = data.find(b"\n", min(at + SCANNED, size - 1)) + 1 or size
        lines = data[at:end].split(b"\n")
        last = lines.pop()
        starts.extend(itertools.accumulate([len(line) + 1 for line in lines], initial=at))
        if last:
            lines.append(last + b"\0")  # without its newline it is another line, and no text holds a NUL
        else:
            starts.pop()
        numbers.extend(map(ids.__getitem__, lines))
        at = end
    starts.append(size)
    return numbers, starts


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
            found = _myers([a[i] for i in some_a], [b[j] for j in some_b], budget)
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


def _myers(a: list[int], b: list[int], budget: Budget) -> list[tuple[int, int]]:
    """Matched pairs of two short sequences, on that shortest way which git takes too. A part that is over MAX_DISTANCE or the budget has none.

    Source: Myers, "An O(ND) difference algorithm and its variations", 1986, section 4b; memory is linear.
    """
    out: list[tuple[int, int]] = []
    size = len(a) + len(b) + 3
    forward, backward = [0] * (2 * size), [0] * (2 * size)
    todo: list[tuple[int, int, int, int]] = [(0, len(a), 0, len(b))]
    while todo:
        alo, ahi, blo, bhi = todo.pop()
        while alo < ahi and blo < bhi and a[alo] == b[blo]:
            out.append((alo, blo))
            alo += 1
            blo += 1
        while alo < ahi and blo < bhi and a[ahi - 1] == b[bhi - 1]:
            ahi -= 1
            bhi -= 1
            out.append((ahi, bhi))
        if alo == ahi or blo == bhi:
            continue
        middle = _middle(a, b, Region(alo, ahi, blo, bhi), forward, backward, size, budget)
        if middle is not None:
            todo.append((alo, middle[0], blo, middle[1]))
            todo.append((middle[0], ahi, middle[1], bhi))
    out.sort()
    return out


def _middle(
    a: list[int], b: list[int], box: Region, ahead: list[int], back: list[int], zero: int, budget: Budget
) -> tuple[int, int] | None:
    """Where a shortest way through the box passes its middle, None beyond MAX_DISTANCE or the budget.

    Args:
        ahead, back: scratch: how far the ways from either end come on each diagonal; diagonal 0 is at `zero`.
    """
    alo, ahi, blo, bhi = box
    lowest, highest = alo - bhi, ahi - blo
    start, end = alo - blo, ahi - bhi
    odd = (start - end) & 1
    ahead_lo = ahead_hi = start
    back_lo = back_hi = end
    ahead[zero + start], back[zero + end] = alo, ahi
    for cost in range(1, MAX_DISTANCE // 2 + 1):
        if not budget.spend(2 * cost):
            return None
        ahead_lo, ahead_hi = _widen(ahead, zero, ahead_lo, ahead_hi, lowest, highest, -1)
        for k in range(ahead_hi, ahead_lo - 1, -2):
            at = zero + k
            x = ahead[at - 1] + 1 if ahead[at - 1] >= ahead[at + 1] else ahead[at + 1]
            first = x
            while x < ahi and x - k < bhi and a[x] == b[x - k]:
                x += 1
            budget.steps -= (x - first) >> 3
            ahead[at] = x
            if odd and back_lo <= k <= back_hi and back[at] <= x:
                return x, x - k
        back_lo, back_hi = _widen(back, zero, back_lo, back_hi, lowest, highest, _FAR)
        for k in range(back_hi, back_lo - 1, -2):
            at = zero + k
            x = back[at - 1] if back[at - 1] < back[at + 1] else back[at + 1] - 1
            first = x
            while x > alo and x - k > blo and a[x - 1] == b[x - k - 1]:
                x -= 1
            budget.steps -= (first - x) >> 3
            back[at] = x
            if not odd and ahead_lo <= k <= ahead_hi and x <= ahead[at]:
                return x, x - k
    return None


def _widen(reach: list[int], zero: int, lo: int, hi: int, lowest: int, highest: int, never: int) -> tuple[int, int]:
    """The diagonals of the next step: one more at each end, one less where the box ends."""
    if lo > lowest:
        lo -= 1
        reach[zero + lo - 1] = never
    else:
        lo += 1
    if hi < highest:
        hi += 1
        reach[zero + hi + 1] = never
    else:
        hi -= 1
    return lo, hi


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
