"""Show what a terminal shows of a row in which carriage returns went back to its beginning: a progress bar
leaves its last state. Pure.
"""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ERASES = re.compile(r"\x1b\[[02]?[KJ]")


def collapse(text: str) -> str:
    """Each row of `text` as it stood at its end. Colours and other sequences of what is shown stay; a row
    without a carriage return is as it was.

    A column is a character here, whatever its width: after one of another width a rest of an overwritten text
    may be off by a column. Cost: O(length).
    """
    if "\r" not in text:
        return text
    return "\n".join(_row(row) if "\r" in row else row for row in text.split("\n"))


def _row(row: str) -> str:
    """Go backwards from the last segment: of what was written before it counts only what was not
    overwritten.
    """
    shown, width = "", 0
    for piece in reversed(row.split("\r")):
        plain = _SEQUENCE.sub("", piece) if "\x1b" in piece else piece
        if len(plain) > width:
            shown += piece if not shown else plain[width:]
            width = len(plain)
        elif not shown and piece:
            shown = piece  # nothing but sequences, which may colour or erase
        erased = _ERASES.search(piece) if "\x1b" in piece else None
        if erased is not None:
            break
    return shown
