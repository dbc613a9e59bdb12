"""Find the shortest edit script between two sequences of numbers by Myers' algorithm, under a budget;
sequences that differ too much get no script.
"""

from __future__ import annotations

BUDGET = 400_000
"""Inner steps of Myers' algorithm for one diff: about 0.2 s of pure Python."""
MAX_DISTANCE = 600
"""Edit distance above which a whole gap counts as replaced."""

_FAR = 1 << 60
"""A number larger than the length of any sequence."""


class Budget:
    """Steps that one diff, or several that share it, may still spend."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def spend(self, steps: int) -> bool:
        self.steps -= steps
        return self.steps >= 0


def shortest(a: list[int], b: list[int], budget: Budget) -> list[tuple[int, int]]:
    """Match two short sequences along a shortest script, the one that git chooses too. A part beyond
    MAX_DISTANCE or the budget has no pairs.

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
        middle = _middle(a, b, (alo, ahi, blo, bhi), forward, backward, size, budget)
        if middle is not None:
            todo.append((alo, middle[0], blo, middle[1]))
            todo.append((middle[0], ahi, middle[1], bhi))
    out.sort()
    return out


def _middle(
    a: list[int],
    b: list[int],
    box: tuple[int, int, int, int],
    ahead: list[int],
    back: list[int],
    zero: int,
    budget: Budget,
) -> tuple[int, int] | None:
    """Find the middle of a shortest path through the box; None beyond MAX_DISTANCE or the budget.

    Args:
        ahead, back: work arrays: how far the paths from either end reach on each diagonal; diagonal 0 is at
            `zero`.
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


def _widen(
    reach: list[int], zero: int, lo: int, hi: int, lowest: int, highest: int, never: int
) -> tuple[int, int]:
    """Give the diagonals of the next step: one more at each end, one less where the box ends."""
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
