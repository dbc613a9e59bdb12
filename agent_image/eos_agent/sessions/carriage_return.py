"""Reduce rows with carriage returns to the text that a terminal shows in the end: of a progress bar, its last
state. Pure.
"""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ERASES = re.compile(r"\x1b\[[02]?[KJ]")


def collapse(text: str) -> str:
    """Return each row of `text` in its last state. Colours and other sequences of the visible part are kept;
    a row without a carriage return is unchanged.

    Each character counts as one column: if wide characters were overwritten, the rest of the old text may be
    off by a column. Cost: O(length).
    """
    if "\r" not in text:
        return text
    return "\n".join(_row(row) if "\r" in row else row for row in text.split("\n"))


def plain_row(row: str) -> str:
    """Return a row in its last state, without colours and other sequences."""
    row = collapse(row)
    return _SEQUENCE.sub("", row) if "\x1b" in row else row


def _row(row: str) -> str:
    """Reduce one row, from its last segment backwards: of an earlier segment only the part that later ones
    did not overwrite is kept.
    """
    shown, width = "", 0
    for piece in reversed(row.split("\r")):
        plain = _SEQUENCE.sub("", piece) if "\x1b" in piece else piece
        if len(plain) > width:
            shown += piece if not shown else plain[width:]
            width = len(plain)
        elif not shown and piece:
            shown = piece  # only sequences, which may colour or erase
        erased = _ERASES.search(piece) if "\x1b" in piece else None
        if erased is not None:
            break
    return shown
