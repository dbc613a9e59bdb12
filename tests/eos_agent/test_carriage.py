"""Rows with carriage returns as a terminal shows them in the end."""

from __future__ import annotations

import random
import time

import pytest

from eos_agent.sessions.carriage_return import collapse


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain\nrows", "plain\nrows"),
        ("".join(f"\r{n}%" for n in range(1, 101)), "100%"),
        ("before\n 1%\r 2%\nafter", "before\n 2%\nafter"),
        ("abcdef\rX", "Xbcdef"),
        ("done\r", "done"),
        ("\r\r\r", ""),
        ("a long text\rab\x1b[K", "ab\x1b[K"),
        ("a long text\r\x1b[2Kab", "\x1b[2Kab"),
        ("\x1b[32m####\x1b[0m\r\x1b[31mab\x1b[0m", "\x1b[31mab\x1b[0m##"),
        ("bar\r\x1b[0m", "\x1b[0mbar"),
        ("first\rsecond text\r3rd", "3rdond text"),
    ],
)
def test_what_was_overwritten_is_gone_and_the_rest_stays(written: str, shown: str) -> None:
    assert collapse(written) == shown


def test_rows_without_sequences_are_what_a_screen_of_cells_would_hold() -> None:
    chance = random.Random(14)
    for _ in range(2000):
        written = "".join(chance.choice("abc\r ") for _ in range(chance.randrange(30)))
        cells: list[str] = []
        at = 0
        for character in written:
            if character == "\r":
                at = 0
                continue
            cells[at : at + 1] = [character]
            at += 1
        assert collapse(written) == "".join(cells), repr(written)


def test_the_worst_row_of_64_kib_takes_no_more_than_reading_it() -> None:
    worst = "x" * 32_000 + "\ry" * 16_000
    started = time.process_time()
    assert collapse(worst) == "y" + "x" * 31_999
    assert time.process_time() - started < 2
