"""Pair the lines of two texts as git's default diff does: Myers' algorithm, with git's rules that leave out
lines without a match and that end a search early.

Source: Myers, "An O(ND) difference algorithm and its variations", 1986, section 4b; the rules are those that
`git diff --diff-algorithm=default` shows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from layerstack.text.myers import Budget

COST_MIN = 256
"""Edit cost below which a search is never ended early."""
SNAKE = 20
"""Equal lines in a row that make a path worth following."""
FACTOR = 4
"""Progress of a path, in edit costs, above which the path is taken."""
REPEATED_MAX = 1024
"""Occurrences in the other text from which a line counts as repeated, however long the text is."""
WINDOW = 100
"""Lines to each side in which neighbours of a repeated line are looked at."""
_FAR = 1 << 60


def classic(
    a: Sequence[int], b: Sequence[int], gone: bytearray, new: bytearray, at: tuple[int, int], budget: Budget
) -> None:
    """Mark the lines that are changed from a to b.

    Args:
        gone, new: marks of the whole texts of which a and b are parts; a line gets 1 when it is changed.
        at: line of a and of b in the whole texts.
    """
    size_a, size_b = len(a), len(b)
    before, shorter = 0, min(size_a, size_b)
    while before < shorter and a[before] == b[before]:
        before += 1
    after, rest = 0, shorter - before
    while after < rest and a[size_a - 1 - after] == b[size_b - 1 - after]:
        after += 1
    count_a, count_b = Counter(a), Counter(b)
    rows_a = _candidates(a, count_b, before, size_a - after, gone, at[0])
    rows_b = _candidates(b, count_a, before, size_b - after, new, at[1])
    search = _ClassicSearch([a[n] for n in rows_a], [b[n] for n in rows_b], budget)
    left_a, left_b = search.run()
    for n in left_a:
        gone[at[0] + rows_a[n]] = 1
    for n in left_b:
        new[at[1] + rows_b[n]] = 1


def root(number: int) -> int:
    """Give a power of two that is about the square root of a number, as git estimates it."""
    found = 1
    while number > 0:
        found <<= 1
        number >>= 2
    return found


def _candidates(
    lines: Sequence[int], other: Counter[int], lo: int, hi: int, marks: bytearray, at: int
) -> list[int]:
    """List the lines between lo and hi that may be paired; mark the others as changed.

    A line that the other text has often is left out when it is in the middle of lines without any match.
    """
    often = min(root(len(lines)), REPEATED_MAX)
    kinds = bytearray(hi - lo)  # 0: no match, 1: some, 2: many
    for n in range(lo, hi):
        count = other[lines[n]]
        kinds[n - lo] = 0 if not count else 2 if count >= often else 1
    found: list[int] = []
    for n, kind in enumerate(kinds):
        if kind == 1 or (kind == 2 and not _among_unmatched(kinds, n)):
            found.append(lo + n)
        else:
            marks[at + lo + n] = 1
    return found


def _among_unmatched(kinds: bytearray, at: int) -> bool:
    """Check whether the repeated line `at` is in the middle of a run that is mostly lines without a match."""
    unmatched, repeated = 0, 0
    for step, stop in ((-1, max(at - WINDOW, 0) - 1), (1, min(at + WINDOW, len(kinds) - 1) + 1)):
        none = many = 0
        for n in range(at + step, stop, step):
            if kinds[n] == 1:
                break
            if kinds[n]:
                many += 1
            else:
                none += 1
        if not none:
            return False
        unmatched += none
        repeated += many + 1
    return repeated * 4 < repeated + unmatched


class _ClassicSearch:
    """One run of Myers' algorithm over two sequences of numbers; memory is linear in them."""

    def __init__(self, a: list[int], b: list[int], budget: Budget) -> None:
        self._a, self._b, self._budget = a, b, budget
        diagonals = len(a) + len(b) + 3
        self._zero = len(b) + 1
        self._ahead, self._back = [0] * (diagonals + 2), [0] * (diagonals + 2)
        self._cost_max = max(root(diagonals), COST_MIN)

    def run(self) -> tuple[list[int], list[int]]:
        """List the numbers of the lines without a pair, of each side."""
        a, b = self._a, self._b
        left_a, left_b = list[int](), list[int]()
        todo = [(0, len(a), 0, len(b), False)]
        while todo:
            alo, ahi, blo, bhi, minimal = todo.pop()
            while alo < ahi and blo < bhi and a[alo] == b[blo]:
                alo += 1
                blo += 1
            while alo < ahi and blo < bhi and a[ahi - 1] == b[bhi - 1]:
                ahi -= 1
                bhi -= 1
            if alo == ahi or blo == bhi or self._budget.steps < 0:
                left_a.extend(range(alo, ahi))
                left_b.extend(range(blo, bhi))
                continue
            i, j, first, second = self._middle(alo, ahi, blo, bhi, minimal)
            todo.append((i, ahi, j, bhi, second))
            todo.append((alo, i, blo, j, first))
        return left_a, left_b

    def _middle(self, alo: int, ahi: int, blo: int, bhi: int, minimal: bool) -> tuple[int, int, bool, bool]:
        """Find where to divide a box: (line of a, of b, and for each half: search it to the end)."""
        a, b, ahead, back, zero = self._a, self._b, self._ahead, self._back, self._zero
        lowest, highest = alo - bhi, ahi - blo
        start, end = alo - blo, ahi - bhi
        odd = (start - end) & 1
        ahead_lo = ahead_hi = start
        back_lo = back_hi = end
        ahead[zero + start], back[zero + end] = alo, ahi
        for cost in itertools.count(1):
            snake = False
            if ahead_lo > lowest:
                ahead_lo -= 1
                ahead[zero + ahead_lo - 1] = -1
            else:
                ahead_lo += 1
            if ahead_hi < highest:
                ahead_hi += 1
                ahead[zero + ahead_hi + 1] = -1
            else:
                ahead_hi -= 1
            for k in range(ahead_hi, ahead_lo - 1, -2):
                at = zero + k
                x = ahead[at - 1] + 1 if ahead[at - 1] >= ahead[at + 1] else ahead[at + 1]
                first, y = x, x - k
                while x < ahi and y < bhi and a[x] == b[y]:
                    x += 1
                    y += 1
                snake = snake or x - first > SNAKE
                ahead[at] = x
                if odd and back_lo <= k <= back_hi and back[at] <= x:
                    return x, y, True, True
            if back_lo > lowest:
                back_lo -= 1
                back[zero + back_lo - 1] = _FAR
            else:
                back_lo += 1
            if back_hi < highest:
                back_hi += 1
                back[zero + back_hi + 1] = _FAR
            else:
                back_hi -= 1
            for k in range(back_hi, back_lo - 1, -2):
                at = zero + k
                x = back[at - 1] if back[at - 1] < back[at + 1] else back[at + 1] - 1
                first, y = x, x - k
                while x > alo and y > blo and a[x - 1] == b[y - 1]:
                    x -= 1
                    y -= 1
                snake = snake or first - x > SNAKE
                back[at] = x
                if not odd and ahead_lo <= k <= ahead_hi and x <= ahead[at]:
                    return x, y, True, True
            self._budget.steps -= ahead_hi - ahead_lo + back_hi - back_lo + 2
            if self._budget.steps >= 0:
                if minimal:
                    continue
                if snake and cost > COST_MIN:
                    if found := self._promising_ahead(alo, ahi, blo, bhi, cost, (ahead_lo, ahead_hi)):
                        return (*found, True, False)
                    if found := self._promising_back(alo, ahi, blo, bhi, cost, (back_lo, back_hi)):
                        return (*found, False, True)
                if cost < self._cost_max:
                    continue
            return self._furthest((alo, ahi, blo, bhi), (ahead_lo, ahead_hi), (back_lo, back_hi))
        raise AssertionError("a count that ends")

    def _promising_ahead(
        self, alo: int, ahi: int, blo: int, bhi: int, cost: int, reach: tuple[int, int]
    ) -> tuple[int, int] | None:
        """Find the best path from the start that ends in SNAKE equal lines."""
        a, b = self._a, self._b
        best, found = 0, None
        for k in range(reach[1], reach[0] - 1, -2):
            x = self._ahead[self._zero + k]
            y = x - k
            value = (x - alo) + (y - blo) - abs(k - (alo - blo))
            if (
                value > FACTOR * cost
                and value > best
                and alo + SNAKE <= x < ahi
                and blo + SNAKE <= y < bhi
                and a[x - SNAKE : x] == b[y - SNAKE : y]
            ):
                best, found = value, (x, y)
        return found

    def _promising_back(
        self, alo: int, ahi: int, blo: int, bhi: int, cost: int, reach: tuple[int, int]
    ) -> tuple[int, int] | None:
        """Find the best path from the end that ends in SNAKE equal lines."""
        a, b = self._a, self._b
        best, found = 0, None
        for k in range(reach[1], reach[0] - 1, -2):
            x = self._back[self._zero + k]
            y = x - k
            value = (ahi - x) + (bhi - y) - abs(k - (ahi - bhi))
            if (
                value > FACTOR * cost
                and value > best
                and alo < x <= ahi - SNAKE
                and blo < y <= bhi - SNAKE
                and a[x : x + SNAKE] == b[y : y + SNAKE]
            ):
                best, found = value, (x, y)
        return found

    def _furthest(
        self, box: tuple[int, int, int, int], ahead: tuple[int, int], back: tuple[int, int]
    ) -> tuple[int, int, bool, bool]:
        """Divide at the path, from either end, that came furthest."""
        alo, ahi, blo, bhi = box
        far, far_x = -1, -1
        for k in range(ahead[1], ahead[0] - 1, -2):
            x = min(self._ahead[self._zero + k], ahi)
            y = x - k
            if bhi < y:
                x, y = bhi + k, bhi
            if far < x + y:
                far, far_x = x + y, x
        near, near_x = _FAR, _FAR
        for k in range(back[1], back[0] - 1, -2):
            x = max(alo, self._back[self._zero + k])
            y = x - k
            if y < blo:
                x, y = blo + k, blo
            if x + y < near:
                near, near_x = x + y, x
        if (ahi + bhi) - near < far - (alo + blo):
            return far_x, far - far_x, True, False
        return near_x, near - near_x, False, True
