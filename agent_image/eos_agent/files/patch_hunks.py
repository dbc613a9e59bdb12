"""Apply the hunks of a patch to the bytes of one file. Pure, standard library only.

A hunk is searched at its line number, then in the whole file: first with exact lines, then ignoring white
space at the ends of lines. A hunk that fits in several places is an error. Line ends, a byte order mark and
all bytes that the patch does not change are those of the file.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from eos_agent.files.patch_text import PatchHunk
from eos_agent.files.text import BOM
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_agent.wire.workspace_path import shown

MOST_PLACES = 20
SHOWN_LINES, SHOWN_CHARACTERS = 12, 1500
SEARCH_MAX = 8_000_000
"""Lines that the searches for all hunks of one patch may compare: a few seconds."""
FEW_SEARCHES = 8
"""Searches in one file that scan it; more of them use a table of its lines."""
_COMMON = 3  # a line in more places than this does not help to find the nearest one


LineKey = Callable[[bytes], bytes]
"""Line -> the bytes that are compared: all of them, or all before white space at its end."""


class Applied(NamedTuple):
    content: bytes
    added: int
    removed: int
    moved: int
    """Number of hunks that were found at another line than the patch says."""


class Effort:
    """Lines that may still be compared."""

    def __init__(self, left: int = SEARCH_MAX) -> None:
        self._left = left

    def spend(self, lines: int, path: str, number: int) -> None:
        """Raises OperationError, reason edit_too_large, when too few are left."""
        self._left -= lines
        if self._left < 0:
            details = {"path": shown(path), "hunk": number, "max_compared_lines": SEARCH_MAX}
            details["hint"] = "apply the patch in several parts, or give the line numbers of its hunks"
            message = f"patch: the search for its hunks took too long at hunk {number} of {shown(path)}"
            raise OperationError(INVALID_REQUEST, message, details, reason="edit_too_large")


class _Lines:
    """A text as lines, each with its own end."""

    def __init__(self, raw: bytes) -> None:
        self._where: dict[LineKey, dict[bytes, list[int]]] = {}
        self.searches = 0
        self.bom = raw.startswith(BOM)
        pieces = (raw[3:] if self.bom else raw).split(b"\n")
        last = pieces.pop()
        self.texts: list[bytes] = []
        self.ends: list[bytes] = []
        for piece in pieces:
            crlf = piece.endswith(b"\r")
            self.texts.append(piece[:-1] if crlf else piece)
            self.ends.append(b"\r\n" if crlf else b"\n")
        if last:
            self.texts.append(last)
            self.ends.append(b"")

    def where(self, line_key: LineKey) -> dict[bytes, list[int]]:
        """Return the places of each compared line, ascending; computed once."""
        if line_key not in self._where:
            found: dict[bytes, list[int]] = defaultdict(list)
            for at, text in enumerate(self.texts):
                found[line_key(text)].append(at)
            self._where[line_key] = dict(found)
        return self._where[line_key]


class _Place(NamedTuple):
    at: int
    size: int
    texts: list[bytes]
    ends: list[bytes]
    ends_open: bool | None
    """True if the last new line has no line end, None if the hunk does not define it; used at the end of the
    file."""


def apply_hunks(raw: bytes, hunks: Sequence[PatchHunk], path: str, effort: Effort | None = None) -> Applied:
    """Apply all hunks to `raw`. Hunks are searched in the old content, so they may come in any order.

    Args:
        effort: of the whole patch; None: that of this file alone.
    Raises:
        OperationError: invalid_request; hunk_not_found with the nearest place and its text, hunk_ambiguous
            with the lines where the hunk fits, hunk_overlap; edit_too_large when `effort` is used up.
    Cost: O(size of the file + sizes of the hunks), if each hunk has a line that is rare in the file.
    """
    effort = Effort() if effort is None else effort
    lines = _Lines(raw)
    places: list[_Place] = []
    cursor = shift = added = removed = moved = 0
    for number, hunk in enumerate(hunks, 1):
        old = [_plain(text) for text in hunk.old]
        search = _Search(lines, path, number, effort)
        at = search.find(hunk, old, cursor, shift)
        if hunk.start is not None and at != hunk.start - 1:
            moved += at != hunk.start - 1 + shift or shift == 0
            shift = at - (hunk.start - 1)
        places.append(_placed(lines, hunk, at))
        cursor = at + len(old)
        added += sum(mark == "+" for mark, _ in hunk.lines)
        removed += sum(mark == "-" for mark, _ in hunk.lines)
    places.sort(key=lambda place: place.at)
    for one, other in itertools.pairwise(places):
        if one.at + one.size > other.at:
            message = f"two hunks of the patch change line {other.at + 1} of {shown(path)}"
            details = {"path": shown(path), "line": other.at + 1}
            raise OperationError(INVALID_REQUEST, message, details, reason="hunk_overlap")
    return Applied(_joined(lines, places), added, removed, moved)


def _plain(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape").removesuffix(b"\r")


class _Search(NamedTuple):
    """The search for one hunk."""

    lines: _Lines
    path: str
    number: int
    effort: Effort

    def find(self, hunk: PatchHunk, old: list[bytes], cursor: int, shift: int) -> int:
        """Return the index of the first line that the hunk replaces."""
        texts, path, number = self.lines.texts, self.path, self.number
        anchored = self.anchored(hunk.anchors)
        if hunk.anchors and anchored is None:
            raise _missing(texts, [_plain(anchor) for anchor in hunk.anchors], path, number, "its @@ line")
        if not old:
            if hunk.start is not None and hunk.start - 1 <= len(texts):
                return hunk.start - 1
            if hunk.start is not None:
                raise _missing(texts, old, path, number, f"line {hunk.start}")
            if anchored is not None and len(anchored) > 1:
                raise _ambiguous(anchored, path, number)
            return anchored[0] if anchored else len(texts)
        line_keys: tuple[LineKey, ...] = (bytes, bytes.rstrip)
        for line_key in line_keys:
            wanted = [line_key(text) for text in old]
            if hunk.start is not None:
                for at in dict.fromkeys((hunk.start - 1 + shift, hunk.start - 1)):
                    if self.is_at(at, wanted, line_key):
                        return at
            found = self.places(wanted, line_key)
            if hunk.at_end:
                found = [at for at in found if at + len(wanted) == len(texts)]
            if anchored is not None:
                nearest = [_after(found, top) for top in anchored]
                found = list(dict.fromkeys(at for at in nearest if at is not None))
            elif hunk.start is None and len(found) > 1:
                found = [at for at in found if at >= cursor] or found
            if len(found) > 1:
                raise _ambiguous(found, path, number)
            if found:
                return found[0]
        raise _missing(texts, old, path, number, "its lines")

    def anchored(self, anchors: Sequence[str]) -> list[int] | None:
        """Return the line after each place of the last anchor below the other anchors; None if an anchor is
        missing."""
        if not anchors:
            return None
        texts = self.lines.texts
        starts = [0]
        for depth, anchor in enumerate(anchors):
            wanted = _plain(anchor).strip()
            top = min(starts)
            self.effort.spend(len(texts) - top, self.path, self.number)
            places = [at for at in range(top, len(texts)) if texts[at].strip() == wanted]
            if not places:
                places = [at for at in range(top, len(texts)) if texts[at].strip().startswith(wanted)]
            if not places:
                return None
            last = depth == len(anchors) - 1
            starts = [at + 1 for at in (places if last else places[:1])]
        return starts

    def is_at(self, at: int, wanted: list[bytes], line_key: LineKey) -> bool:
        """Check whether the wanted lines are at this place."""
        if at < 0 or at + len(wanted) > len(self.lines.texts):
            return False
        self.effort.spend(len(wanted), self.path, self.number)
        have = self.lines.texts[at : at + len(wanted)]
        return have == wanted or (line_key is not bytes and [line_key(text) for text in have] == wanted)

    def places(self, wanted: list[bytes], line_key: LineKey) -> list[int]:
        """Return the places of `wanted`, ascending."""
        self.lines.searches += 1
        if self.lines.searches > FEW_SEARCHES:
            where = self.lines.where(line_key)
            rarest = min(range(len(wanted)), key=lambda offset: len(where.get(wanted[offset], ())))
            hits = where.get(wanted[rarest], [])
            if len(hits) * len(wanted) <= len(self.lines.texts):
                return [at - rarest for at in hits if self.is_at(at - rarest, wanted, line_key)]
        self.effort.spend(len(self.lines.texts), self.path, self.number)
        texts = self.lines.texts
        return _scan(texts if line_key is bytes else [line_key(text) for text in texts], wanted)


def _after(found: list[int], top: int) -> int | None:
    """Return the first place at or below the anchor, which is the line above `top`."""
    index = bisect.bisect_left(found, top - 1)
    return found[index] if index < len(found) else None


def _scan(have: list[bytes], wanted: list[bytes]) -> list[int]:
    """Return the places of `wanted` in `have`, by the algorithm of Knuth, Morris and Pratt, so that a long
    hunk of equal lines is not slower than others.
    """
    failure = [0] * len(wanted)
    length = 0
    for at in range(1, len(wanted)):
        while length and wanted[at] != wanted[length]:
            length = failure[length - 1]
        if wanted[at] == wanted[length]:
            length += 1
        failure[at] = length
    found: list[int] = []
    length = 0
    for at, text in enumerate(have):
        while length and text != wanted[length]:
            length = failure[length - 1]
        if text == wanted[length]:
            length += 1
        if length == len(wanted):
            found.append(at - length + 1)
            length = failure[length - 1]
    return found


def _placed(lines: _Lines, hunk: PatchHunk, at: int) -> _Place:
    """The lines that replace the hunk's old ones; context lines keep the bytes of the file."""
    texts: list[bytes] = []
    ends: list[bytes] = []
    here = at
    literal = bool(lines.texts) and _has_line_ends_of(lines, hunk, at)
    usual = lines.ends[0] if lines.ends and lines.ends[0] else b"\n"
    for mark, text in hunk.lines:
        if mark == " ":
            texts.append(lines.texts[here])
            ends.append(lines.ends[here])
        elif mark == "+":
            near = lines.ends[here] if here < len(lines.ends) else b""
            above = lines.ends[here - 1] if 0 < here <= len(lines.ends) else b""
            texts.append(_plain(text) if lines.texts else text.encode("utf-8", "surrogateescape"))
            own = b"\r\n" if text.endswith("\r") else b"\n"
            ends.append(own if literal else above or near or usual)
        here += mark != "+"
    size = here - at
    says = hunk.old_ends_open or hunk.new_ends_open
    return _Place(at, size, texts, ends, hunk.new_ends_open if says else None)


def _has_line_ends_of(lines: _Lines, hunk: PatchHunk, at: int) -> bool:
    """True if the patch contains the line ends of the file, as a patch of git does; its line ends are then
    used for its new lines. A patch with other line ends than the file does not define them.
    """
    if not any(text.endswith("\r") for _, text in hunk.lines):
        return False
    ends = lines.ends[at:]
    old = [text.endswith("\r") for text in hunk.old]
    return all(crlf == (end == b"\r\n") for crlf, end in zip(old, ends, strict=False) if end)


def _joined(lines: _Lines, places: Sequence[_Place]) -> bytes:
    texts: list[bytes] = []
    ends: list[bytes] = []
    at = 0
    ends_open = bool(lines.ends) and lines.ends[-1] == b""
    for place in places:
        texts += lines.texts[at : place.at] + place.texts
        ends += lines.ends[at : place.at] + place.ends
        at = place.at + place.size
        if at == len(lines.texts) and place.ends_open is not None:
            ends_open = place.ends_open
    texts += lines.texts[at:]
    ends += lines.ends[at:]
    usual = lines.ends[0] if lines.ends and lines.ends[0] else b"\n"
    ends = [end or usual for end in ends]
    if ends and ends_open:
        ends[-1] = b""
    pieces = [piece for pair in zip(texts, ends, strict=True) for piece in pair]
    return (BOM if lines.bom else b"") + b"".join(pieces)


def _ambiguous(found: Sequence[int], path: str, number: int) -> OperationError:
    places = [at + 1 for at in found[:MOST_PLACES]]
    details = {
        "path": shown(path),
        "hunk": number,
        "lines": places,
        "hint": "give more unchanged lines around the change, or a line `@@ ENCLOSING LINE` above it",
    }
    listed = ", ".join(map(str, places))
    message = f"hunk {number} of {shown(path)} fits in {len(found)} places, at lines {listed}"
    return OperationError(INVALID_REQUEST, message, details, reason="hunk_ambiguous")


def _missing(texts: list[bytes], wanted: list[bytes], path: str, number: int, what: str) -> OperationError:
    details: dict[str, object] = {"path": shown(path), "hunk": number, "total_lines": len(texts)}
    verb = "are" if what == "its lines" else "is"
    message = f"hunk {number} of {shown(path)}: {what} {verb} not in the file"
    near = _nearest(texts, wanted)
    if near is not None:
        at, same = near
        found = b"\n".join(texts[at : at + max(1, min(len(wanted), SHOWN_LINES))])
        details |= {"nearest_line": at + 1, "found": found.decode("utf-8", "replace")[:SHOWN_CHARACTERS]}
        message += f"; nearest is line {at + 1}, where {same} of {len(wanted)} lines are equal"
        for offset, text in enumerate(wanted):
            here = texts[at + offset] if at + offset < len(texts) else b""
            if here.rstrip() != text.rstrip():
                details["expected"] = text.decode("utf-8", "replace")[:SHOWN_CHARACTERS]
                details["line"] = at + offset + 1
                break
    details["hint"] = "read the file again around there, and copy its lines exactly"
    return OperationError(INVALID_REQUEST, message, details, reason="hunk_not_found")


def _nearest(texts: list[bytes], wanted: list[bytes]) -> tuple[int, int] | None:
    """Return the place where most lines are equal, apart from blanks, and their number; None if no line is
    equal."""
    where: dict[bytes, list[int]] = defaultdict(list)
    for offset, text in enumerate(wanted):
        if (key := text.strip()) and len(where[key]) < _COMMON:
            where[key].append(offset)
    score: dict[int, int] = defaultdict(int)
    for at, text in enumerate(texts):
        for offset in where.get(text.strip(), ()):
            score[at - offset] += 1
    if not score:
        return None
    best = max(score, key=lambda at: (score[at], -at))
    return max(0, best), score[best]
