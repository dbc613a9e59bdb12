"""Timing that can be trusted: both sides in turn, the output of every timed call random and checked, the median to quote."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Series(NamedTuple):
    """Milliseconds of each counted call, in the order in which they were made."""

    name: str
    ms: tuple[float, ...]

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


def token() -> str:
    """A string that no cache can have seen."""
    return os.urandom(9).hex()


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def in_turn(sides: Sequence[tuple[str, Callable[[], None]]], *, runs: int, warm_up: int = 2) -> list[Series]:
    """Call each side in turn, `runs` times after `warm_up` uncounted rounds: drift of the machine's speed meets all of them alike."""
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
    head = "| what | p50 ms | p99 ms | runs | beside | p50 ms | ratio | goal | what takes the time |"
    lines = [head, "|" + "---|" * 9]
    for row in rows:
        beside, ratio = ("-", "-"), "-"
        if row.beside is not None:
            beside = (row.beside.name, f"{row.beside.p50:.2f}")
            ratio = f"{row.ours.p50 / row.beside.p50:.3f}" if row.beside.p50 else "-"
        cells = (row.what, f"{row.ours.p50:.2f}", f"{row.ours.p99:.2f}", str(len(row.ours.ms)), *beside, ratio, row.goal, row.dominated_by)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
