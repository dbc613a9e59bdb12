"""Other times for files, in the order of those that they have. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

SECOND, MILLISECOND = 1_000_000_000, 1_000_000


def spread(times: Sequence[int], first: int, last: int) -> Callable[[int], int]:
    """Other times for sorted, distinct ones, in the same order: up to `last`, a millisecond apart where there is room from `first` on, and in
    any case later than the millisecond before `first`, since some tools know no less.
    """
    first = -(-first // MILLISECOND) * MILLISECOND
    count, last = len(times), max(first, last)
    step = max(1, min(MILLISECOND, (last - first) // max(1, count - 1)))
    begin = max(first, last - step * (count - 1))
    return lambda at: begin + step * bisect_left(times, at)


def below(bound: int) -> int:
    """A time older than the second that `bound` is in: some tools know no less. What is not older than this is given another time."""
    return bound // SECOND * SECOND - MILLISECOND
