"""Terminal output for models: rows without escape codes, and the screen of a full-screen program."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest

from eos_mcp.mcp import terminal_output
from eos_mcp.mcp.plain_text import plain
from eos_mcp.mcp.screen import Screen


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain\nrows\ttoo é 漢", "plain\nrows\ttoo é 漢"),
        ("\x1b[1;31merror\x1b[0m: x", "error: x"),
        ("\x1b]0;title\x07$ ls\x1b]8;;http://a\x1b\\link", "$ lslink"),
        ("\x1b(B\x1b=\x1b>a\x07", "a"),
        ("N\x08NA\x08AM\x08ME", "NAME"),
        ("before\x1b[?1049hscreen\nrow\x1b[?1049l\nafter", "before\n\nafter"),
        ("screen\n\x1b[?1049lafter", "\nafter"),
        ("before\x1b[?1049h\x1b[2Jscreen", "before"),
        ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"),
        ("cut \x1b[3", "cut "),
    ],
)
def test_codes_go_and_rows_stay(written: str, shown: str) -> None:
    assert plain(written) == shown
    assert plain(written).count("\n") == written.count("\n")


def test_text_that_goes_on_on_another_screen_is_gone_until_the_switch_back() -> None:
    assert plain("a\nb\x1b[?1049lc", inside=True) == "\nc"
    assert plain("a\nb", inside=True) == "\n"


SCREENS: dict[str, tuple[str, list[str]]] = {
    "moves": ("\x1b[2J\x1b[3;5Hx\x1b[1;1Htop\x1b[2Ey", ["top", "", "y   x"]),
    "erasing": ("abcdef\x1b[3D\x1b[K\r\x1b[1K", [" bc"]),
    "wrapping": ("x" * 81, ["x" * 80, "x"]),
    "scrolling": ("".join(f"{n}\n" for n in range(30)), [str(n) for n in range(7, 30)]),
    "a region": ("1\n2\n3\n4\x1b[2;3r\x1b[3;1H\nnew", ["1", "3", "new", "4"]),
    "inserted lines": ("1\n2\x1b[1;1H\x1b[Lnew", ["new", "1", "2"]),
    "deleted lines": ("1\n2\n3\x1b[1;1H\x1b[2M", ["3"]),
    "characters": ("abcd\r\x1b[2P\x1b[@x", ["xcd"]),
    "wide": ("漢字\x1b[1;5Hx", ["漢字x"]),
    "combining": ("e\u0301x", ["ex"]),
    "tabs": ("a\tb", ["a       b"]),
    "saved": ("\x1b7ab\x1b8c", ["cb"]),
    "colours": ("\x1b[38;5;12mvim\x1b[m \x1b[?25l\x1b>~", ["vim ~"]),
    "the switch": ("shell\x1b[?1049heditor", ["editor"]),
}


@pytest.mark.parametrize(("written", "lines"), SCREENS.values(), ids=SCREENS.keys())
def test_the_screen_is_what_a_terminal_shows_however_the_bytes_come(written: str, lines: list[str]) -> None:
    whole, pieces = Screen(), Screen()
    whole.feed(written)
    for character in written:
        pieces.feed(character)
    assert whole.lines() == lines
    assert pieces.lines() == lines


def test_whatever_comes_the_screen_keeps_its_size() -> None:
    chance = random.Random(7)
    alphabet = "ab漢é\u0301\n\r\b\t\x1b\x1b\x1b[[[]?;0123456789HJKLMPSTXABCDrhlsu@bdGfm\x07\x00"
    for _ in range(300):
        screen = Screen()
        screen.feed("".join(chance.choice(alphabet) for _ in range(400)))
        screen.feed(
            "\x1b[999999999999999999;99999999H\x1b[99999999b\x1b[9999999L\x1b[9999999P\x1b[99999999@z"
        )
        assert len(screen.lines()) <= 24 and all(len(line) <= 80 for line in screen.lines())


def test_a_full_screen_program_is_its_screen_over_several_pages() -> None:
    pages = [
        {"output": "$ vi\n\x1b[?1049h\x1b[2J\x1b[1;1Hfirst", "end_offset": 2, "total_lines": 3},
        {"output": "\x1b[24;1H-- INSERT --", "end_offset": 3, "total_lines": 3},
    ]
    asked: list[dict[str, Any]] = []

    async def read(args: dict[str, Any]) -> dict[str, Any]:
        asked.append(args)
        return pages[len(asked) - 1]

    async def go() -> dict[str, Any]:
        reply = {
            "status": "running",
            "output": "\x1b[24;1H-- INSERT --",
            "start_offset": 2,
            "screen_offset": 1,
        }
        assert terminal_output.wanted("exec_command", {}, reply)
        return await terminal_output.readable(reply, read)

    found = anyio.run(go)
    assert found["output"] == "" and found["screen"].split("\n")[0] == "first"
    assert found["screen"].split("\n")[23] == "-- INSERT --"
    assert [args["start_offset"] for args in asked] == [1, 2]


def test_raw_output_stays_raw() -> None:
    assert not terminal_output.wanted("exec_command", {"raw": True}, {"output": "\x1b[1m"})
    assert not terminal_output.wanted("exec_command", {}, {"error": {}})
    assert not terminal_output.wanted("file_read", {}, {"content": "\x1b[1m"})


def test_a_flood_of_repeated_characters_costs_no_more_than_their_bytes_and_a_bound() -> None:
    class CountingScreen(Screen):
        written = 0

        def _write(self, character: str) -> None:
            self.written += 1
            super()._write(character)

    screen = CountingScreen()
    flood = "x" + "\x1b[80b" * 20_000
    screen.feed(flood)
    assert screen.written < 2 * len(flood)
    assert screen.lines() == ["x" * 80] * 23 + ["x"]
