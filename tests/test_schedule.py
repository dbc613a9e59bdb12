"""The order of a run: every file once and whole, the longest first, end-to-end tests in every part of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests import schedule

OTHERS = [f"tests/layerstack/test_{n:02d}.py" for n in range(40)]
WAITING = [f"tests/end_to_end/test_{n}.py" for n in range(8)]


def test_end_to_end_tests_are_in_every_part_of_a_run_and_the_longest_files_come_first() -> None:
    places = schedule.places([*WAITING, *OTHERS, *schedule.FIRST, *OTHERS])
    order = sorted(places, key=places.__getitem__)
    assert sorted(order) == sorted([*WAITING, *OTHERS, *schedule.FIRST])
    assert [file for file in order if file not in WAITING] == [*schedule.FIRST, *OTHERS]
    at = [order.index(file) for file in WAITING]
    steps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert at[0] == 0 and max(steps) - min(steps) <= 1 and len(order) - at[-1] <= max(steps)


@pytest.mark.parametrize("files", [[], WAITING, OTHERS])
def test_files_of_one_kind_keep_their_order(files: list[str]) -> None:
    assert list(schedule.places(files)) == files


def test_no_long_end_to_end_file_is_in_the_last_quarter_of_a_run() -> None:
    short = [f"tests/end_to_end/test_{n:02d}.py" for n in range(2 * len(schedule.LONG))]
    places = schedule.places([*short, *schedule.LONG, *OTHERS])
    assert len(places) == len(short) + len(schedule.LONG) + len(OTHERS)
    assert max(places[file] for file in schedule.LONG) <= len(places) * 0.77
    assert [file for file in sorted(places, key=places.__getitem__) if file in short] == short


def test_each_file_that_the_order_names_is_there() -> None:
    root = Path(__file__).resolve().parent.parent
    assert [file for file in (*schedule.FIRST, *schedule.LONG) if not (root / file).is_file()] == []
