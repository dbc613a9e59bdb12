"""Conflict markers in the diff3 form of git: write them into a text, and find those that are left in one.

    <<<<<<< LABEL OF OURS
    ours
    ||||||| LABEL OF BASE
    base
    =======
    theirs
    >>>>>>> LABEL OF THEIRS

Markers are longer than every line of the three texts that looks like one, so that a marker line is never a
line of a text. Source: git-merge-file(1), conflict-marker-size of gitattributes(5).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from layerstack.text.lines import TEXT_MAX
from layerstack.text.merge import merge

SHORTEST, LONGEST = 7, 200
"""Characters of a marker, without its label."""
LABEL_MAX = 100
"""Characters of a label."""
MARKED_MAX = 2 * TEXT_MAX
"""Bytes of all hunks of a text; a hunk of one line has some three hundred bytes of markers."""
LINES_SHOWN = 20
"""Numbers of lines that `lines_left` gives at most."""

_LIKE_MARKER = re.compile(rb"^(<{7,}|\|{7,}|={7,}|>{7,})(?= |\r?$)", re.MULTILINE)


class Labels(NamedTuple):
    """Labels of the three sides."""

    ours: str
    base: str
    theirs: str


class Marked(NamedTuple):
    """A text with markers, and those of its marker lines that have a label, without newline. None of the
    three texts contains one of these lines.
    """

    content: bytes
    lines: tuple[str, ...]


def mark(base: bytes, ours: bytes, theirs: bytes, labels: Labels, *, adjacent: bool) -> Marked | str:
    """Merge three texts as `merge` does, each hunk written with markers.

    Returns:
        The reason when markers cannot be written: `marker_length`, they would need more than LONGEST
        characters; `too_large`, the hunks would have more than MARKED_MAX bytes.
    """
    size = 1 + max(
        (len(found[1]) for text in (base, ours, theirs) for found in _LIKE_MARKER.finditer(text)),
        default=SHORTEST - 1,
    )
    if size > LONGEST:
        return "marker_length"
    names = [_label(label) for label in labels]
    lines = tuple(f"{sign * size} {name}" for sign, name in zip("<|>", names, strict=True))
    end = b"\r\n" if b"\r\n" in ours[:4096] and b"\r\n" in theirs[:4096] else b"\n"
    opening, middle, closing = (line.encode() + end for line in lines)
    parting = b"=" * size + end

    written = 0

    def hunk(b: bytes, o: bytes, t: bytes) -> bytes:
        nonlocal written
        closed = [text if not text or text.endswith(b"\n") else text + end for text in (b, o, t)]
        whole = b"".join((opening, closed[1], middle, closed[0], parting, closed[2], closing))
        written += len(whole)
        return whole if written <= MARKED_MAX else b""

    merged = merge(base, ours, theirs, adjacent=adjacent, write_hunk=hunk).content
    assert merged is not None
    return Marked(merged, lines) if written <= MARKED_MAX else "too_large"


def _label(text: str) -> str:
    """Make a label of any text: one line, printable, of bounded length."""
    shown = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in text)
    return shown[:LABEL_MAX].strip() or "?"


def lines_left(text: bytes, lines: Collection[str]) -> list[int]:
    """Find the marker lines that are left in a text: numbers of lines, from 1, at most LINES_SHOWN."""
    wanted = {line.encode("utf-8", "surrogateescape") for line in lines}
    if not any(line in text for line in wanted):
        return []
    found: list[int] = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if line.rstrip(b"\r") in wanted:
            found.append(number)
            if len(found) == LINES_SHOWN:
                break
    return found
