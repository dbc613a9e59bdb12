"""Which paths the `.gitignore` files of one tree ignore, exactly as git decides it on Linux: by bytes, by `wildmatch`, nested files included.

A rule is one regular expression over the name, or over the path below the directory of its file. The last rule that matches wins, a
deeper file beats a shallower one, and an ignored directory seals what is below it, so that no `!` rule brings a child back.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from layerstack.paths import parent

_SPECIAL = b"*?[\\"
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


class Rule(NamedTuple):
    """One line of a file. `whole` rules look at the path below the file's directory, the others at the last name only."""

    match: re.Pattern[bytes]
    negated: bool
    directories_only: bool
    whole: bool


class RuleSet(NamedTuple):
    """The rules of one file, last first, and one expression of each sort that says in one go whether any of them can match."""

    rules: tuple[Rule, ...]
    any_name: re.Pattern[bytes] | None
    any_whole: re.Pattern[bytes] | None


class IgnoreRules:
    """The rules of one tree. Thread-safe; a file is asked for once, and parsed once per content in the process.

    Args:
        read: the bytes of a path such as `sub/.gitignore`; None when it is absent or no regular file (git follows no symlink there).
    """

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._known: dict[str, _Directory] = {}

    def ignored(self, path: str, is_dir: bool) -> bool:
        """Whether git would ignore `path`, were it untracked. The root is never ignored.

        Cost: one or two regular expressions per `.gitignore` on the way up; the first time in a directory the same for the directory.
        """
        if not path:
            return False
        if is_dir and path in self._known:
            return self._known[path].sealed
        above = self._directory(parent(path))
        if above.sealed:
            return True
        if is_dir:
            return self._directory(path).sealed
        return _decide(path, False, above.files)

    def _directory(self, path: str) -> _Directory:
        """What is known of a directory, asked from the top: an ignored one seals all that is below."""
        unknown: list[str] = []
        while path not in self._known:
            unknown.append(path)
            if not path:
                break
            path = parent(path)
        for at in reversed(unknown):
            above = self._known[parent(at)] if at else _Directory(False, ())
            if above.sealed or (at and _decide(at, True, above.files)):
                self._known[at] = _SEALED
                continue
            data = self._read(f"{at}/.gitignore" if at else ".gitignore")
            rules = parse(data) if data else None
            self._known[at] = above if rules is None else _Directory(False, ((len(os.fsencode(at)) + 1 if at else 0, rules), *above.files))
        return self._known[unknown[0] if unknown else path]


class _Directory(NamedTuple):
    """Is a directory ignored; and, if not, the files whose rules hold in it, its own first: (bytes of a path that are above it, rules)."""

    sealed: bool
    files: tuple[tuple[int, RuleSet], ...]


_SEALED = _Directory(True, ())


def _decide(path: str, is_dir: bool, files: tuple[tuple[int, RuleSet], ...]) -> bool:
    """By the first of the files that has a rule for the path."""
    raw = os.fsencode(path)
    name = raw[raw.rfind(b"/") + 1 :]
    for above, rules in files:
        verdict = _verdict(rules, name, raw[above:], is_dir)
        if verdict is not None:
            return verdict
    return False


def _verdict(found: RuleSet, name: bytes, below: bytes, is_dir: bool) -> bool | None:
    """True or False by the last rule that matches, None when no rule of this file does."""
    if not (found.any_name and found.any_name.fullmatch(name)) and not (found.any_whole and found.any_whole.fullmatch(below)):
        return None
    for rule in found.rules:
        if (is_dir or not rule.directories_only) and rule.match.fullmatch(below if rule.whole else name):
            return not rule.negated
    return None


@functools.lru_cache(maxsize=512)
def parse(data: bytes) -> RuleSet | None:
    """The rules of one file; None when there are none, or when it is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    sources: list[tuple[bytes, Rule]] = []
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        found = _rule(line)
        if found is not None:
            sources.append(found)
    if not sources:
        return None
    sources.reverse()
    names = [source for source, rule in sources if not rule.whole]
    wholes = [source for source, rule in sources if rule.whole]
    return RuleSet(tuple(rule for _, rule in sources), _any(names), _any(wholes))


def _any(sources: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(sources), re.DOTALL) if sources else None


def _rule(line: bytes) -> tuple[bytes, Rule] | None:
    """One line as an expression; None for a comment, a blank line, or a pattern that can match nothing."""
    if not line or line.startswith(b"#"):
        return None
    pattern = _without_trailing_spaces(line.removesuffix(b"\r").partition(b"\0")[0])
    negated = pattern.startswith(b"!")
    pattern = pattern[negated:]
    directories_only = pattern.endswith(b"/")
    pattern = pattern[: len(pattern) - directories_only]
    whole = b"/" in pattern
    pattern = pattern.removeprefix(b"/")
    if not pattern:
        return None
    source = _translate(pattern, whole)
    if source is None:
        return None
    return source, Rule(re.compile(source, re.DOTALL), negated, directories_only, whole)


def _without_trailing_spaces(line: bytes) -> bytes:
    """Cut the spaces at the end but those behind a backslash."""
    end = at = 0
    while at < len(line):
        if line[at] == 0x5C:
            at += 2
            if at > len(line):
                return line
            end = at
            continue
        at += 1
        if line[at - 1] != 0x20:
            end = at
    return line[:end]


def _translate(pattern: bytes, whole: bool) -> bytes | None:
    """A wildmatch pattern as a regular expression for fullmatch.

    `**` spans directories only where slashes or the ends of the pattern are on both sides of it (git compares the part before the first
    special character apart, so behind that part counts as the start as well); any other run of stars is one star, which stops at a slash.
    A star with the text behind it is atomic unless it ends its name, so no pattern takes exponential time.
    """
    first = next((n for n, c in enumerate(pattern) if c in _SPECIAL), len(pattern))
    out: list[bytes] = []
    star = False  # a star is open: its text follows
    text: list[bytes] = []  # what matches one byte each since the last star or slash

    def close(last: bool) -> None:
        """Write the open star with its text; `last`: up to a slash or the end, so the text must be the name's own end."""
        nonlocal star
        joined = b"".join(text)
        out.append((b"[^/]*" + joined if last else b"(?>[^/]*?" + joined + b")") if star else joined)
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
                if pattern[end : end + 1] == b"/":
                    out.append(b"(?:.*/)?")
                    end += 1
                else:
                    out.append(b".*")
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
            out.append(b"/")
        else:
            text.append(re.escape(c))
        at += 1
    close(last=True)
    return b"".join(out)


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int] | None:
    """The set that begins at `at`, as an expression of one byte that is never a slash, and where it ends; None if it is malformed."""

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
