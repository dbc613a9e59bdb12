"""Bound the time and the memory of the process that searches or lists a tree, which does nothing else."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable

MEMORY_BYTES = 192 << 20
"""Memory that the process may use in addition to that at the start; an expression that backtracks over a long
line stores each step."""


class TimeUp(Exception):
    """Raised in the main thread, wherever it is, when the time has passed."""


def within(limit_s: float, work: Callable[[], None]) -> str | None:
    """Call `work`, and end it after `limit_s` seconds or when it has used MEMORY_BYTES. Sets the timer and
    the memory limit of this process.

    Returns:
        None if it ended by itself, else `time` or `memory`: what it had too little of.
    """
    _bound_memory(MEMORY_BYTES)
    try:
        try:
            signal.signal(signal.SIGALRM, _time_up)
            signal.setitimer(signal.ITIMER_REAL, limit_s, 1.0)  # repeated: a single signal may be lost
            work()
        finally:
            _stop_timer()
    except TimeUp:
        _stop_timer()  # it may have been raised before the timer stopped
        return "time"
    except MemoryError:
        _bound_memory(None)
        return "memory"
    return None


def _stop_timer() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _time_up(_signum: int, _frame: object) -> None:
    raise TimeUp


def _bound_memory(more: int | None) -> None:
    """Limit the growth of this process to `more` bytes; None removes the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard
    if more is not None:
        with open("/proc/self/statm", "rb") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + more
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
