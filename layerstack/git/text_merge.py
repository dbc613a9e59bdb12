"""Three-way merge of texts with the result of git's own merge, byte for byte.

Changes of both sides that overlap or touch are a conflict, which is then narrowed to the lines that differ
between the sides; conflicts with at most three lines between them are joined. Source: git-merge-file(1) and
`git merge-tree`, with its default level "zealous".
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from layerstack.git.histogram import LineChange, changes
from layerstack.model.conflict import Hunk
from layerstack.text.lines import numbering
from layerstack.text.myers import Budget

TEXT_MAX = 64 << 20
"""Bytes above which a content is merged as binary."""
STEPS_MAX = 20_000_000
"""Steps of all diffs of one merge: some seconds. What is left then counts as changed."""
LINES_MAX = 2_000_000
"""Lines above which a content is merged as binary; a line costs some dozen bytes."""
NUL_BEFORE = 8000
"""A NUL before this byte makes a content binary, as for git."""
GAP_MAX = 3
"""Lines between two conflicts that still make them one."""

_CONFLICT, _OURS, _THEIRS, _SAME = range(4)


class TextMerge(NamedTuple):
    """Result of a merge of texts: the content, or None and the regions that conflict."""

    content: bytes | None
    hunks: tuple[Hunk, ...] = ()


def is_binary(data: bytes) -> bool:
    """Check whether git merges and compares a content as binary; also true beyond TEXT_MAX and LINES_MAX."""
    return len(data) > TEXT_MAX or data.find(b"\0", 0, NUL_BEFORE) >= 0 or data.count(b"\n") > LINES_MAX


def merge_texts(
    base: bytes, ours: bytes, theirs: bytes, *, union: bool = False, budget: Budget | None = None
) -> TextMerge:
    """Merge two changed versions of `base`, none of them binary.

    Args:
        union: take the lines of both sides where they conflict, ours first, as the merge driver `union`.
        budget: steps that several merges share; each has STEPS_MAX of its own at most.
    Returns:
        TextMerge; a hunk's ranges are those of `layerstack.model.conflict.Hunk`.
    """
    if ours == theirs or base == theirs:
        return TextMerge(ours)
    if base == ours:
        return TextMerge(theirs)
    steps = STEPS_MAX if budget is None else max(min(STEPS_MAX, budget.steps), 0)
    merger = _TextMerger(base, ours, theirs, Budget(steps))
    found = merger.run(union)
    if budget is not None:
        budget.spend(steps - merger.budget.steps)
    return found


class _NumberedText:
    """A text as lines, with a number for each; only LF ends a line, and belongs to it."""

    def __init__(self, data: bytes, ids: dict[bytes, int]) -> None:
        parts = data.split(b"\n")
        last = parts.pop()
        self.lines = [part + b"\n" for part in parts]
        if last:
            self.lines.append(last)
        self.numbers = array("I", map(ids.__getitem__, self.lines))

    def __len__(self) -> int:
        return len(self.lines)

    def crlf(self, at: int) -> bool | None:
        """Check whether a line ends in CR LF; the last one, without LF, follows the one before. None where
        no line shows it.
        """
        if not self.lines:
            return None
        line = self.lines[at]
        if not line.endswith(b"\n"):
            if not at:
                return None
            line = self.lines[at - 1]
        return line.endswith(b"\r\n")


class _MergedPart:
    """A region of base, and the regions of ours and theirs that replaced it."""

    def __init__(self, mode: int, base: tuple[int, int], ours: tuple[int, int], theirs: tuple[int, int]):
        self.mode = mode
        self.base, self.base_size = base
        self.ours, self.our_size = ours
        self.theirs, self.their_size = theirs

    @property
    def hunk(self) -> Hunk:
        return Hunk(
            (self.base + 1, self.base_size),
            (self.ours + 1, self.our_size),
            (self.theirs + 1, self.their_size),
        )


class _TextMerger:
    def __init__(self, base: bytes, ours: bytes, theirs: bytes, budget: Budget) -> None:
        ids = numbering()
        self._base, self._ours, self._theirs = (
            _NumberedText(base, ids),
            _NumberedText(ours, ids),
            _NumberedText(theirs, ids),
        )
        self.budget = budget

    def run(self, union: bool) -> TextMerge:
        parts = self._parts()
        narrow: list[_MergedPart] = []
        hunks: list[Hunk] = []
        for part in parts:
            finer = [part] if part.mode != _CONFLICT else self._refined(part)
            if part.mode == _CONFLICT and finer[0].mode == _CONFLICT:
                hunks.append(part.hunk)
            narrow.extend(finer)
        if hunks and not union:
            return TextMerge(None, tuple(hunks))
        return TextMerge(self._written(_joined(narrow)))

    def _parts(self) -> list[_MergedPart]:
        """List the changed regions of both sides; those that overlap or touch are one."""
        base = self._base.numbers
        mine = changes(base, self._ours.numbers, self.budget)
        other = changes(base, self._theirs.numbers, self.budget)
        our_shift = their_shift = 0
        out: list[_MergedPart] = []
        i = j = 0
        while i < len(mine) or j < len(other):
            x = mine[i] if i < len(mine) else None
            y = other[j] if j < len(other) else None
            if x is not None and (y is None or x.old + x.gone < y.old):
                _append(out, _OURS, (x.old, x.gone), (x.at, x.new), (x.old + their_shift, x.gone))
                our_shift = x.at + x.new - x.old - x.gone
                i += 1
            elif y is not None and (x is None or y.old + y.gone < x.old):
                _append(out, _THEIRS, (y.old, y.gone), (y.old + our_shift, y.gone), (y.at, y.new))
                their_shift = y.at + y.new - y.old - y.gone
                j += 1
            elif x is not None and y is not None:
                if not self._equal(x, y):
                    _append(out, _CONFLICT, *_spanned(x, y))
                end_x, end_y = x.old + x.gone, y.old + y.gone
                if end_x >= end_y:
                    their_shift = y.at + y.new - end_y
                    j += 1
                if end_y >= end_x:
                    our_shift = x.at + x.new - end_x
                    i += 1
        return out

    def _equal(self, x: LineChange, y: LineChange) -> bool:
        mine, other = self._ours.numbers, self._theirs.numbers
        return (x.old, x.gone, x.new) == (y.old, y.gone, y.new) and (
            mine[x.at : x.at + x.new] == other[y.at : y.at + y.new]
        )

    def _refined(self, part: _MergedPart) -> list[_MergedPart]:
        """Narrow a conflict to the lines in which the sides differ; equal sides do not conflict."""
        if not part.our_size or not part.their_size:
            return [part]
        base = (part.base, part.base_size)
        found = changes(
            self._ours.numbers[part.ours : part.ours + part.our_size],
            self._theirs.numbers[part.theirs : part.theirs + part.their_size],
            self.budget,
        )
        if not found:
            part.mode = _SAME
            return [part]
        return [
            _MergedPart(_CONFLICT, base, (part.ours + x.old, x.gone), (part.theirs + x.at, x.new))
            for x in found
        ]

    def _written(self, parts: list[_MergedPart]) -> bytes:
        """Write the merged text; conflicts get the lines of both sides."""
        ours, theirs = self._ours, self._theirs
        out: list[bytes] = []
        at = 0
        for part in parts:
            if part.mode == _SAME:
                continue
            out.extend(ours.lines[at : part.ours])
            at = part.ours + part.our_size
            mine = ours.lines[part.ours : at]
            if part.mode == _OURS:
                out.extend(mine)
                continue
            if part.mode == _CONFLICT and mine:
                out.extend(mine)
                if not mine[-1].endswith(b"\n"):
                    out.append(b"\r\n" if self._needs_cr(part) else b"\n")
            out.extend(theirs.lines[part.theirs : part.theirs + part.their_size])
        out.extend(ours.lines[at:])
        return b"".join(out)

    def _needs_cr(self, part: _MergedPart) -> bool:
        """Decide how a line of ours without end is ended before theirs: as the lines around it."""
        found = self._ours.crlf(max(part.ours - 1, 0))
        if found is not False:
            found = self._theirs.crlf(max(part.theirs - 1, 0))
        if found is not False:
            found = self._base.crlf(0)
        return bool(found)


def _spanned(x: LineChange, y: LineChange) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Give the region of base that two changes cover together, and its regions in ours and theirs."""
    lo, hi = min(x.old, y.old), max(x.old + x.gone, y.old + y.gone)
    mine = (x.at - (x.old - lo), x.at + x.new + hi - x.old - x.gone)
    other = (y.at - (y.old - lo), y.at + y.new + hi - y.old - y.gone)
    return (lo, hi - lo), (mine[0], mine[1] - mine[0]), (other[0], other[1] - other[0])


def _append(
    out: list[_MergedPart], mode: int, base: tuple[int, int], ours: tuple[int, int], theirs: tuple[int, int]
) -> None:
    """Add a region; one that touches the last joins it."""
    last = out[-1] if out else None
    if last is not None and (
        ours[0] <= last.ours + last.our_size or theirs[0] <= last.theirs + last.their_size
    ):
        if last.mode != mode:
            last.mode = _CONFLICT
        last.base_size = base[0] + base[1] - last.base
        last.our_size = ours[0] + ours[1] - last.ours
        last.their_size = theirs[0] + theirs[1] - last.theirs
        return
    out.append(_MergedPart(mode, base, ours, theirs))


def _joined(parts: Sequence[_MergedPart]) -> list[_MergedPart]:
    """Join conflicts with at most GAP_MAX lines between them."""
    out: list[_MergedPart] = []
    for part in parts:
        last = out[-1] if out else None
        if (
            last is not None
            and last.mode == part.mode == _CONFLICT
            and part.ours - last.ours - last.our_size <= GAP_MAX
        ):
            last.our_size = part.ours + part.our_size - last.ours
            last.their_size = part.theirs + part.their_size - last.theirs
        else:
            out.append(part)
    return out
