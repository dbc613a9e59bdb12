"""Patterns of `.gitignore`: git's wildmatch over bytes, in time proportional to the pattern times the path.

A pattern without `**` is one regular expression. A pattern with `**` is a sequence of segments, each of
adjacent whole names, with gaps between them; each segment is placed at the first name where it fits. A later
place never allows a match that the first place excludes, so there is no backtracking: any number of `**`
costs one pass over the path. Source: wildmatch.c of git.
"""

from __future__ import annotations

import bisect
import re
from typing import NamedTuple

SPECIAL = b"*?[\\"
_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\r\x0b\x0c",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}

_SLASH = b"/"
_NAMES = b"**/"
_SOME_NAMES = b"**"
"""Tokens beside expressions of bytes within one name: a slash; any number of names, each with its slash; one
name or more.
"""


class Segment(NamedTuple):
    """Adjacent names: an expression over `width` names and the slashes between them."""

    expression: re.Pattern[bytes]
    anywhere: re.Pattern[bytes]
    """The same expression for a search; it matches only at boundaries of names."""
    width: int


class Gaps(NamedTuple):
    """A pattern with `**`: its segments, and the least number of names before each segment and after the
    last; -1: no gap.
    """

    segments: tuple[Segment, ...]
    gaps: tuple[int, ...]

    def fullmatch(self, path: bytes) -> bool:
        """Check whether the pattern matches all of `path`, which begins and ends with a name.

        Cost: one search of the path per segment.
        """
        starts = [0]
        at = path.find(_SLASH)
        while at >= 0:
            starts.append(at + 1)
            at = path.find(_SLASH, at + 1)
        end = len(starts)
        starts.append(len(path) + 1)
        segments, gaps, place = self.segments, self.gaps, 0
        if gaps[-1] < 0:  # the last segment is the path's end
            last = segments[-1]
            end -= last.width
            if end < 0 or not last.expression.fullmatch(path, starts[end]):
                return False
            segments, gaps = segments[:-1], gaps[:-1]
        for segment, gap in zip(segments, gaps, strict=False):
            first = place + max(gap, 0)
            if first + segment.width > end:
                return False
            if gap < 0:
                if not segment.expression.fullmatch(path, starts[first], starts[first + segment.width] - 1):
                    return False
            else:
                found = segment.anywhere.search(path, starts[first], starts[end] - 1)
                if found is None:
                    return False
                first = bisect.bisect_left(starts, found.start())
            place = first + segment.width
        return end == place if gaps[-1] < 0 else end - place >= gaps[-1]


class Pattern(NamedTuple):
    """A compiled pattern: `literal` is the one path that it names, else one of `matchers` has to match."""

    matchers: tuple[re.Pattern[bytes] | Gaps, ...] = ()
    literal: bytes | None = None
    name_only: bool = False
    """True for a pattern that has a slash and is still matched against the last name only: `**/name`."""

    @property
    def source(self) -> bytes | None:
        """The expression, when the pattern is a single one; else None."""
        first = self.matchers[0] if len(self.matchers) == 1 else None
        return first.pattern if isinstance(first, re.Pattern) else None

    def matches(self, text: bytes) -> bool:
        return any(matcher.fullmatch(text) for matcher in self.matchers)


def compile_pattern(pattern: bytes, *, whole: bool) -> Pattern | None:
    """Compile a wildmatch pattern; None when it can match nothing.

    Args:
        whole: the pattern is compared with a path, not with a name: only then `**` differs from `*`.
    """
    if not any(c in SPECIAL for c in pattern):
        return Pattern(literal=pattern)
    tokens = _tokens(pattern, whole)
    if tokens is None:
        return None
    runs = [n for n, token in enumerate(tokens) if token in (_NAMES, _SOME_NAMES)]
    if not runs:
        return Pattern((re.compile(b"".join(tokens), re.DOTALL),))
    if runs == [len(tokens) - 1] and tokens[-1] == _SOME_NAMES and tokens[-2:-1] in ([], [_SLASH]):
        return Pattern((re.compile(b"".join(tokens[:-1]) + b".*", re.DOTALL),))  # dir/**
    rows = [_row(variant) for variant in _aligned(tokens)]
    if len(rows) == 1 and rows[0].gaps == (0, -1) and rows[0].segments[0].width == 1:
        return Pattern((rows[0].segments[0].expression,), name_only=True)
    return Pattern(tuple(rows))


def _aligned(tokens: list[bytes]) -> list[list[bytes]]:
    """Rewrite tokens so that each `**` is a run of whole names.

    `text**`, which git takes for a run when nothing special is before it, becomes two patterns: the run ends
    within the name that begins with `text`, or continues in the next one.
    """
    at = next(n for n, token in enumerate(tokens) if token in (_NAMES, _SOME_NAMES))
    if at == 0 or tokens[at - 1] in (_SLASH, _NAMES):
        return [tokens]
    head, run, tail = tokens[:at], tokens[at], tokens[at + 1 :]
    begun = [*head, b"[^/]*"]
    if run == _NAMES:
        return [[*head, *tail], [*begun, _SLASH, _NAMES, *tail]]
    if tail:  # text**\/, so its slash is there
        return [[*begun, _SLASH, _NAMES, *tail[1:]]]
    return [begun, [*begun, _SLASH, _SOME_NAMES]]


def _row(tokens: list[bytes]) -> Gaps:
    segments: list[Segment] = []
    gaps: list[int] = []
    names: list[bytes] = []
    name, gap, within = b"", -1, True

    def close() -> None:
        nonlocal gap
        if names:
            joined = _SLASH.join(names)
            anywhere = re.compile(rb"(?:\A|(?<=/))" + joined + rb"(?=/|\Z)", re.DOTALL)
            segments.append(Segment(re.compile(joined, re.DOTALL), anywhere, len(names)))
            gaps.append(gap)
            names.clear()
            gap = -1

    for token in tokens:
        if token == _SLASH:
            if within:
                names.append(name)
            name, within = b"", True
        elif token in (_NAMES, _SOME_NAMES):
            close()
            within = token == _NAMES
            gap = max(gap, 0) + (not within)
        else:
            name += token
    if within:
        names.append(name)
        close()
    return Gaps(tuple(segments), (*gaps, gap))


def _tokens(pattern: bytes, whole: bool) -> list[bytes] | None:
    """Split a pattern into expressions, slashes and runs of names; None for a malformed pattern.

    `**` is a run only where slashes or the ends of the pattern are on both sides of it (git compares the part
    before the first special character separately, so the place after that part counts as a start as well);
    any other run of stars is one star, which stops at a slash. A star with the text after it is atomic unless
    it ends its name, so that stars do not multiply.
    """
    first = next((n for n, c in enumerate(pattern) if c in SPECIAL), len(pattern))
    out: list[bytes] = []
    star = False  # a star is open: its text follows
    text: list[bytes] = []  # expressions of one byte each since the last star or slash

    def close(last: bool) -> None:
        """Write the open star with its text; `last`: a slash or the end follows, so that the text must end
        its name.
        """
        nonlocal star
        joined = b"".join(text)
        if star:
            joined = b"[^/]*" + joined if last else b"(?>[^/]*?" + joined + b")"
        if joined:
            out.append(joined)
        text.clear()
        star = False

    at, size = 0, len(pattern)
    while at < size:
        c = pattern[at : at + 1]
        if c == b"*":
            end = at
            while end < size and pattern[end] == 0x2A:
                end += 1
            begins = at == first or pattern[at - 1 : at] == b"/"
            ends = end == size or pattern[end : end + 1] == b"/" or pattern[end : end + 2] == b"\\/"
            if whole and end - at > 1 and begins and ends:
                close(last=True)
                if out[-1:] == [_NAMES]:
                    out.pop()  # the second of two adjacent runs suffices
                if pattern[end : end + 1] == b"/":
                    out.append(_NAMES)
                    end += 1
                else:
                    out.append(_SOME_NAMES)
            else:
                close(last=False)
                star = True
            at = end
            continue
        if c == b"\\":
            at += 1
            if at == size:
                return None
            c = pattern[at : at + 1]
        elif c == b"?":
            text.append(b"[^/]")
            at += 1
            continue
        elif c == b"[":
            found = _bracket(pattern, at)
            if found is None:
                return None
            source, at = found
            text.append(source)
            continue
        if c == b"/":
            close(last=True)
            out.append(_SLASH)
        else:
            text.append(re.escape(c))
        at += 1
    close(last=True)
    return out


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int] | None:
    """Parse the set that begins at `at`: an expression of one byte that is never a slash, and where it ends;
    None if it is malformed.
    """

    def byte(index: int) -> int:
        return pattern[index] if index < len(pattern) else 0

    at += 1
    negated = byte(at) in b"!^" and byte(at) != 0
    at += negated
    members: list[bytes] = []
    previous, first = 0, True
    while first or byte(at) != 0x5D:
        first = False
        c = byte(at)
        if not c:
            return None
        if c == 0x5C:
            at += 1
            c = byte(at)
            if not c:
                return None
            members.append(b"\\x%02x" % c)
        elif c == 0x2D and previous and byte(at + 1) not in (0, 0x5D):
            at += 1
            c = byte(at)
            if c == 0x5C:
                at += 1
                c = byte(at)
                if not c:
                    return None
            if previous <= c:
                members.append(b"\\x%02x-\\x%02x" % (previous, c))
            c = 0
        elif c == 0x5B and byte(at + 1) == 0x3A:
            end = pattern.find(b"]", at + 2)
            if end < 0:
                return None
            if end - 1 < at + 2 or pattern[end - 1] != 0x3A:
                members.append(b"\\x5b")  # no ":]": a set that holds "["
            else:
                named = _CLASSES.get(pattern[at + 2 : end - 1])
                if named is None:
                    return None
                members.append(named)
                at, c = end, 0
        else:
            members.append(b"\\x%02x" % c)
        previous = c
        at += 1
    inside = b"".join(members)
    if not members:
        return (b"[^/]" if negated else b"(?!)"), at + 1
    return (b"[^/" + inside + b"]" if negated else b"(?!/)[" + inside + b"]"), at + 1
