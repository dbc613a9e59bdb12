"""A terminal's screen of 24 rows and 80 columns, from the bytes that a full-screen program wrote. Pure.

Implemented: cursor moves, erasing, inserting and deleting, the scroll region, tabs, wide characters. Colours
and modes are ignored. No input raises an exception, and the size is fixed. Source: console_codes(4).
"""

from __future__ import annotations

import re
import unicodedata

ROWS, COLUMNS = 24, 80
REPEAT_MAX = 10_000
REPEATS_MAX = 200_000
"""Characters that one screen repeats at the request of REP; six bytes ask for eighty."""
_TOKEN = re.compile(
    r"\x1b\[(?P<mark>[<-?]?)(?P<numbers>[0-9;:]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[PX^_][^\x1b]*\x1b\\"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b(?P<escape>[0-OQ-WYZ\\`-~])"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
)
_PARTIAL = re.compile(r"\x1b(?:\[[0-9;:<-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)\Z")
PARTIAL_MAX = 4096


class Screen:
    """The cells of the screen."""

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self._rows, self._columns = rows, columns
        self._rest = ""
        self._last = " "
        self._repeats = REPEATS_MAX
        self._saved = (0, 0)
        self._reset()

    def _reset(self) -> None:
        self._cells = [self._blank() for _ in range(self._rows)]
        self.row = self.column = 0
        self._top, self._bottom = 0, self._rows - 1
        self._wraps = False  # the last column was written; the next character goes to the next row

    def _blank(self) -> list[str]:
        return [" "] * self._columns

    def lines(self) -> list[str]:
        """The rows without blanks at their ends; blank rows at the end are left out."""
        found = ["".join(row).rstrip() for row in self._cells]
        while found and not found[-1]:
            found.pop()
        return found

    def feed(self, text: str) -> None:
        """Apply output to the screen. Sequences may be split between two calls, characters not."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:  # a sequence that continues in the next chunk, or none
                if len(text) - at <= PARTIAL_MAX and _PARTIAL.match(text, at):
                    self._rest = text[at:]
                    return
                at += 1
                continue
            at = found.end()
            if found["text"] is not None:
                for character in found["text"]:
                    self._write(character)
            elif found["control"] is not None:
                self._control(found["control"])
            elif found["final"] is not None:
                self._sequence(found["mark"], found["numbers"], found["final"])
            elif found["escape"] is not None:
                self._escape(found["escape"])

    def _write(self, character: str) -> None:
        width = _width(character)
        if width == 0:
            return
        if self._wraps or self.column + width > self._columns:
            self.column, self._wraps = 0, False
            self._line_feed()
        row = self._cells[self.row]
        row[self.column] = character
        if width == 2 and self.column + 1 < self._columns:
            row[self.column + 1] = ""
        self._last = character
        self.column += width
        if self.column >= self._columns:
            self.column, self._wraps = self._columns - 1, True

    def _control(self, character: str) -> None:
        self._wraps = False
        if character in "\n\v\f":
            self._line_feed()
            self.column = 0  # the transcript keeps no CR before a LF
        elif character == "\r":
            self.column = 0
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character == "\t":
            self.column = min(self._columns - 1, (self.column // 8 + 1) * 8)

    def _line_feed(self) -> None:
        if self.row == self._bottom:
            self._scroll(self._top, 1)
        else:
            self.row = min(self._rows - 1, self.row + 1)

    def _scroll(self, top: int, count: int) -> None:
        """Move the rows from `top` to the end of the region up, or down for a negative count."""
        region = self._cells[top : self._bottom + 1]
        count = max(-len(region), min(len(region), count))
        fresh = [self._blank() for _ in range(abs(count))]
        self._cells[top : self._bottom + 1] = (
            region[count:] + fresh if count >= 0 else fresh + region[: len(region) + count]
        )

    def _escape(self, which: str) -> None:
        if which == "7":
            self._saved = (self.row, self.column)
        elif which == "8":
            self._move_to(*self._saved)
        elif which in "DE":
            self._line_feed()
            self.column = 0 if which == "E" else self.column
        elif which == "M":
            if self.row == self._top:
                self._scroll(self._top, -1)
            else:
                self.row = max(0, self.row - 1)
        elif which == "c":
            self._reset()

    def _move_to(self, row: int, column: int) -> None:
        self.row = max(0, min(self._rows - 1, row))
        self.column = max(0, min(self._columns - 1, column))
        self._wraps = False

    def _sequence(self, mark: str, numbers: str, final: str) -> None:
        given = [int(n[:6]) if n[:6].isdigit() else 0 for n in re.split("[;:]", numbers)[:16]]
        first, second = given[0], given[1] if len(given) > 1 else 0
        count = min(REPEAT_MAX, max(1, first))
        if mark == "?":
            if final == "h" and first in (47, 1047, 1049):
                self._reset()
        elif mark:
            pass
        elif final in _MOVES:
            down, right = _MOVES[final]
            self._move_to(self.row + down * count, 0 if final in "EF" else self.column + right * count)
        elif final in "Hf":
            self._move_to(max(1, first) - 1, max(1, second) - 1)
        elif final in "G`":
            self._move_to(self.row, count - 1)
        elif final == "d":
            self._move_to(count - 1, self.column)
        elif final == "J":
            self._erase_screen(first)
        elif final == "K":
            self._erase_row(first)
        elif final == "r":
            bottom = min(self._rows, second or self._rows) - 1
            if max(1, first) - 1 < bottom:
                self._top, self._bottom = max(1, first) - 1, bottom
                self._move_to(0, 0)
        elif final == "s":
            self._saved = (self.row, self.column)
        elif final == "u":
            self._move_to(*self._saved)
        else:
            self._edit(final, count)

    def _edit(self, final: str, count: int) -> None:
        """Insert, delete, scroll, repeat."""
        row, at = self._cells[self.row], self.column
        if final == "L" and self._top <= self.row <= self._bottom:
            self._scroll(self.row, -count)
        elif final == "M" and self._top <= self.row <= self._bottom:
            self._scroll(self.row, count)
        elif final == "S":
            self._scroll(self._top, count)
        elif final == "T":
            self._scroll(self._top, -count)
        elif final == "P":
            del row[at : at + count]
            row.extend(" " * (self._columns - len(row)))
        elif final == "@":
            row[at:at] = " " * min(count, self._columns)
            del row[self._columns :]
        elif final == "X":
            end = min(self._columns, at + count)
            row[at:end] = " " * (end - at)
        elif final == "b":
            count = min(count, self._columns, self._repeats)
            self._repeats -= count
            for _ in range(count):
                self._write(self._last)

    def _erase_screen(self, how: int) -> None:
        if how == 0:
            self._erase_row(0)
            first, end = self.row + 1, self._rows
        elif how == 1:
            self._erase_row(1)
            first, end = 0, self.row
        else:
            first, end = 0, self._rows
        for number in range(first, end):
            self._cells[number] = self._blank()

    def _erase_row(self, how: int) -> None:
        row = self._cells[self.row]
        first = self.column if how == 0 else 0
        end = self.column + 1 if how == 1 else self._columns
        row[first:end] = " " * (end - first)


_MOVES = {
    "A": (-1, 0),
    "B": (1, 0),
    "C": (0, 1),
    "D": (0, -1),
    "E": (1, 0),
    "F": (-1, 0),
    "e": (1, 0),
    "a": (0, 1),
}


def _width(character: str) -> int:
    if character < "\u0300":
        return 0 if "\x80" <= character <= "\x9f" else 1
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
