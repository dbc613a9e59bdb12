"""The difference of two texts as git's merge sees it: the histogram algorithm, then each change moved to
where it lines up with one of the other text.

The histogram divides a region at the longest run of equal lines among those with the rarest lines. Source:
`git diff --histogram`; JGit's HistogramDiff describes the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from layerstack.git.classic_diff import classic
from layerstack.text.myers import Budget

CHAIN_MAX = 64
"""Occurrences of a line above which it divides no region."""


class LineChange(NamedTuple):
    """`gone` lines from line `old` on became `new` lines from line `at` on; lines count from 0."""

    old: int
    at: int
    gone: int
    new: int


def changes(a: Sequence[int], b: Sequence[int], budget: Budget) -> list[LineChange]:
    """List the changes from a to b, ascending. Lines are numbers, equal ones for equal lines.

    When the budget is spent, the regions that are left count as changed whole.
    """
    gone, new = bytearray(len(a) + 1), bytearray(len(b) + 1)  # the last mark stays 0 and ends each group
    _mark(a, b, gone, new, budget)
    _compact(a, gone, new)
    _compact(b, new, gone)
    found: list[LineChange] = []
    i = j = 0
    while i < len(a) or j < len(b):
        if not gone[i] and not new[j]:
            ahead_a, ahead_b = gone.find(1, i), new.find(1, j)
            steps = min((len(a) if ahead_a < 0 else ahead_a) - i, (len(b) if ahead_b < 0 else ahead_b) - j)
            i, j = i + steps, j + steps
            continue
        end_a, end_b = gone.find(0, i), new.find(0, j)
        found.append(LineChange(i, j, end_a - i, end_b - j))
        i, j = end_a, end_b
    return found


def _mark(a: Sequence[int], b: Sequence[int], gone: bytearray, new: bytearray, budget: Budget) -> None:
    todo = [(0, len(a), 0, len(b))]
    while todo:
        alo, ahi, blo, bhi = todo.pop()
        if alo >= ahi or blo >= bhi or not budget.spend((ahi - alo + bhi - blo) >> 2):
            gone[alo:ahi] = b"\1" * (ahi - alo)
            new[blo:bhi] = b"\1" * (bhi - blo)
            continue
        region = _HistogramRegion(a, b, (alo, ahi, blo, bhi))
        region.search(budget)
        if region.only_frequent:
            classic(a[alo:ahi], b[blo:bhi], gone, new, (alo, blo), budget)
        elif region.run is None:
            gone[alo:ahi] = b"\1" * (ahi - alo)
            new[blo:bhi] = b"\1" * (bhi - blo)
        else:
            i, i_end, j, j_end = region.run
            todo.append((i_end, ahi, j_end, bhi))
            todo.append((alo, i, blo, j))


class _HistogramRegion:
    """A part of both texts, and the best run of equal lines in it."""

    def __init__(self, a: Sequence[int], b: Sequence[int], box: tuple[int, int, int, int]) -> None:
        self._a, self._b, self._box = a, b, box
        alo, ahi, _, _ = box
        self._first: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._count: dict[int, int] = {}
        first, following, count = self._first, self._next, self._count
        for i in range(ahi - 1, alo - 1, -1):
            line = a[i]
            if line in first:
                following[i] = first[line]
                count[line] += 1
            else:
                count[line] = 1
            first[line] = i
        self.run: tuple[int, int, int, int] | None = None
        self._rarest = CHAIN_MAX + 1
        self._common = False

    @property
    def only_frequent(self) -> bool:
        """True when there are common lines, and all are too frequent."""
        return self._common and self._rarest > CHAIN_MAX

    def search(self, budget: Budget) -> None:
        _, _, j, bhi = self._box
        first, b = self._first, self._b
        while j < bhi:
            i = first.get(b[j])
            if i is None:
                j += 1
            elif self._count[b[j]] > self._rarest:
                self._common = True
                j += 1
            else:
                self._common = True
                j = self._extend(i, j, budget)

    def _extend(self, first: int, j: int, budget: Budget) -> int:
        """Try all runs through line j; return the next line that may begin a better one."""
        a, b, count = self._a, self._b, self._count
        alo, ahi, blo, bhi = self._box
        next_j, i = j + 1, first
        frequency = count[b[j]]
        while True:
            rarest = frequency
            lo, jlo = i, j
            while lo > alo and jlo > blo and a[lo - 1] == b[jlo - 1]:
                lo -= 1
                jlo -= 1
                if rarest > 1 and count[a[lo]] < rarest:
                    rarest = count[a[lo]]
            hi, jhi = i + 1, j + 1
            while hi < ahi and jhi < bhi and a[hi] == b[jhi]:
                if rarest > 1 and count[a[hi]] < rarest:
                    rarest = count[a[hi]]
                hi += 1
                jhi += 1
            budget.steps -= (hi - lo) >> 3
            next_j = max(next_j, jhi)
            longest = 1 if self.run is None else self.run[1] - self.run[0]
            if longest < hi - lo or rarest < self._rarest:
                self.run = (lo, hi, jlo, jhi)
                self._rarest = rarest
            following = self._next.get(i)
            while following is not None and following < hi:
                following = self._next.get(following)
            if following is None or budget.steps < 0:
                return next_j
            i = following


class _ChangedGroup:
    """A group of changed lines [start, end) of one text, possibly empty; unchanged lines separate groups."""

    def __init__(self, marks: bytearray) -> None:
        self.marks = marks
        self.start, self.end = 0, marks.find(0)

    def forward(self) -> bool:
        """Move to the next group; False at the end of the text."""
        if self.end == len(self.marks) - 1:
            return False
        self.start = self.end + 1
        self.end = self.marks.find(0, self.start)
        return True

    def backward(self) -> None:
        self.end = self.start - 1
        self.start = self.marks.rfind(0, 0, self.end) + 1

    def slide_up(self, lines: Sequence[int]) -> bool:
        """Move the changed lines up by one, where that is the same change; join what they then touch."""
        if self.start == 0 or lines[self.start - 1] != lines[self.end - 1]:
            return False
        self.start -= 1
        self.marks[self.start] = 1
        self.end -= 1
        self.marks[self.end] = 0
        self.start = self.marks.rfind(0, 0, self.start) + 1
        return True

    def slide_down(self, lines: Sequence[int]) -> bool:
        """Move the changed lines down by one, as `slide_up`."""
        if self.end >= len(lines) or lines[self.start] != lines[self.end]:
            return False
        self.marks[self.start] = 0
        self.start += 1
        self.marks[self.end] = 1
        self.end = self.marks.find(0, self.end)
        return True


def _compact(lines: Sequence[int], marks: bytearray, other: bytearray) -> None:
    """Move each group of changed lines down as far as it can, or to the last place where the other text has
    a change too.
    """
    group, beside = _ChangedGroup(marks), _ChangedGroup(other)
    while True:
        if group.end > group.start:
            _settle(group, beside, lines)
        if not group.forward():
            return
        beside.forward()


def _settle(group: _ChangedGroup, beside: _ChangedGroup, lines: Sequence[int]) -> None:
    while True:
        size, aligned = group.end - group.start, False
        while group.slide_up(lines):
            beside.backward()
        highest = group.end
        aligned = beside.end > beside.start
        while group.slide_down(lines):
            beside.forward()
            aligned = aligned or beside.end > beside.start
        if size == group.end - group.start:
            break
    if group.end != highest and aligned:
        while beside.end == beside.start:
            group.slide_up(lines)
            beside.backward()
