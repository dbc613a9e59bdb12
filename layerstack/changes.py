"""What a publish found, as values."""

from __future__ import annotations

from typing import NamedTuple


class Hunk(NamedTuple):
    """One conflicting range of a line merge, on each side: (first line, from 1; number of lines). No lines: before the named line."""

    base: tuple[int, int]
    ours: tuple[int, int]
    theirs: tuple[int, int]
