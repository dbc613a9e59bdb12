"""Timing that can be trusted: both sides in turn, the output of every timed call random and checked, the
median to quote.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Series(NamedTuple):
    """Milliseconds of each counted call (or another unit, see `Row.unit`), in the order in which they were
    made.
    """

    name: str
    ms: tuple[float, ...]

    @property
    def least(self) -> float:
        return min(self.ms)

    @property
    def p50(self) -> float:
        return statistics.median(self.ms)

    @property
    def p99(self) -> float:
        return sorted(self.ms)[min(len(self.ms) - 1, int(len(self.ms) * 0.99))]


class Row(NamedTuple):
    """One line of the table: ours, the baseline beside it, the goal in words and what takes the time."""

    what: str
    ours: Series
    beside: Series | None
    goal: str
    dominated_by: str = ""
    unit: str = "ms"


def token() -> str:
    """A string that no cache can have seen."""
    return os.urandom(9).hex()


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def in_turn(
    sides: Sequence[tuple[str, Callable[[], object]]], *, runs: int, warm_up: int = 2
) -> list[Series]:
    """Call each side in turn, `runs` times after `warm_up` uncounted rounds: drift of the machine's speed
    meets all of them alike.
    """
    figures: list[list[float]] = [[] for _ in sides]
    for round_ in range(warm_up + runs):
        for n, (_, call) in enumerate(sides):
            ms = timed(call)
            if round_ >= warm_up:
                figures[n].append(ms)
    return [Series(name, tuple(ms)) for (name, _), ms in zip(sides, figures, strict=True)]


def check(got: str, want: str) -> None:
    """A wrong answer is no fast answer."""
    if got.strip() != want.strip():
        raise AssertionError(f"wanted {want!r}, got {got!r}")


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| what | unit | min | p50 | p99 | runs | beside | min | p50 | ratio of p50 | goal | main cost |",
        "|" + "---|" * 12,
    ]
    for row in rows:
        beside, ratio = ("-", "-", "-"), "-"
        if row.beside is not None:
            beside = (row.beside.name, number(row.beside.least), number(row.beside.p50))
            ratio = f"{row.ours.p50 / row.beside.p50:.3g}" if row.beside.p50 else "-"
        ours = (number(row.ours.least), number(row.ours.p50), number(row.ours.p99), str(len(row.ours.ms)))
        lines.append(
            "| " + " | ".join((row.what, row.unit, *ours, *beside, ratio, row.goal, row.dominated_by)) + " |"
        )
    return "\n".join(lines)


def number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
