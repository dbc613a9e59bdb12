"""Replace the times of files by others in the same order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

SECOND, MILLISECOND = 1_000_000_000, 1_000_000


def spread(times: Sequence[int], first: int, last: int) -> Callable[[int], int]:
    """Map sorted, distinct times to new times in the same order, up to `last`: a millisecond apart or, if
    they then do not fit after `first`, closer together. All are later than the millisecond before `first`,
    since some tools compare milliseconds only.
    """
    first = -(-first // MILLISECOND) * MILLISECOND
    count, last = len(times), max(first, last)
    step = max(1, min(MILLISECOND, (last - first) // max(1, count - 1)))
    begin = max(first, last - step * (count - 1))
    return lambda at: begin + step * bisect_left(times, at)


def below(bound: int) -> int:
    """Give the last millisecond before the second that contains `bound`: some tools compare seconds only.
    Callers replace later times.
    """
    return bound // SECOND * SECOND - MILLISECOND
