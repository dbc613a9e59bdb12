"""Decide which paths the `.gitignore` files of one tree ignore, exactly as git does on Linux: by bytes, by
`wildmatch`, nested files included.

The last rule of a file that matches wins, a deeper file beats a shallower one, and everything below an
ignored directory is ignored, so that no `!` rule includes a child again. A file beyond the limits below has
no rules: its paths count as source, which a publication checks for conflicts. Source: gitignore(5), dir.c and
wildmatch.c of git.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from layerstack.model.paths import parent
from layerstack.text.wildmatch import SPECIAL, Pattern, compile_pattern

Ignored = Callable[[str, bool], bool]
"""Predicate (path, whether it is a directory): True for an ignored path."""

FILE_MAX = 256 << 10
"""Bytes of a `.gitignore`; a larger one has no rules."""
WILDCARDS_MAX = 32 << 10
"""Bytes of all patterns of a file that have a wildcard; a file with more has no rules. Each pattern is tried
for each path.
"""
RUNS_MAX = 512
"""Patterns of a file with `**` in their middle, which take longest; `**/name` and `dir/**` do not count."""
NAME_CHUNK, WHOLE_CHUNK = 4 << 10, 2 << 10
"""Bytes of the expressions that are joined into one: one match holds the interpreter for some milliseconds at
most.
"""
KEPT_BYTES = 16 << 20
"""Memory for parsed files, per tree and per process: above it they are dropped, and parsed again on
demand.
"""
_RULE_BYTES, _DIRECTORY_BYTES = 300, 250
_NO_RULE = 1 << 30


class IgnoreRule(NamedTuple):
    """One line with a wildcard. A `whole` rule is matched against the path below the file's directory, any
    other against the last name only.
    """

    rank: int
    pattern: Pattern
    directories_only: bool
    whole: bool


class RuleSet(NamedTuple):
    """The rules of one file. Ranks count from the last line, and the lowest that matches decides."""

    negated: tuple[bool, ...]
    """One value for each rank."""
    names: dict[bytes, tuple[int, int]]
    paths: dict[bytes, tuple[int, int]]
    """Lines without wildcards: the rank for a file and for a directory, `_NO_RULE` where none holds."""
    wildcards: tuple[IgnoreRule, ...]
    """The other lines, by rank."""
    runs: tuple[IgnoreRule, ...]
    """Wildcard lines that no joined expression contains."""
    any_name: tuple[re.Pattern[bytes], ...]
    any_whole: tuple[re.Pattern[bytes], ...]
    """Joined expressions: one of them matches when any of the other wildcard lines can match."""
    weight: int
    """Estimated bytes of memory."""


class RulesRefused(ValueError):
    """A `.gitignore` beyond the limits; the message says which."""


class IgnoreRules:
    """The rules of one tree. Thread-safe; a file is read for the first path below its directory, and parsed
    once per content.

    Args:
        read: returns the bytes of a path such as `sub/.gitignore`, of a file larger than FILE_MAX at least
            FILE_MAX + 1 of them; None when the path is absent or not a regular file (git does not follow a
            symlink there).
    """

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._known: dict[str, _IgnoreDirectory] = {}
        self.weight = 0
        """Estimated bytes of what is remembered."""
        self.refused: dict[str, str] = {}
        """Files found beyond the limits, at most 100 of them -> the limit that each exceeds."""

    def ignored(self, path: str, is_dir: bool) -> bool:
        """Check whether git would ignore `path` if it were untracked. The root is never ignored.

        Cost: a look-up and one or two regular expressions per `.gitignore` in the directories above, one more
        per pattern with `**` inside; and the same once more for each directory that is new to this object.
        """
        if not path:
            return False
        if is_dir and (known := self._known.get(path)) is not None:
            return known.excluded
        above = self._directory(parent(path))
        if above.excluded:
            return True
        if is_dir:
            return self._directory(path).excluded
        return _decide(os.fsencode(path), False, above.files)

    def files_in(self, directory: str) -> Callable[[bytes], bool]:
        """Give `ignored` for the files of one directory, by their paths in bytes, at half its cost."""
        found = self._directory(directory)
        if found.excluded:
            return lambda path: True
        files = found.files
        return (lambda path: _decide(path, False, files)) if files else (lambda path: False)

    def _directory(self, path: str) -> _IgnoreDirectory:
        """Find the rules of a directory, from the top down: everything below an ignored directory is
        ignored.
        """
        unknown: list[str] = []
        found = self._known.get(path)
        while found is None:
            unknown.append(path)
            if not path:
                found = _IgnoreDirectory(False, ())
                break
            path = parent(path)
            found = self._known.get(path)
        for at in reversed(unknown):
            found = self._read_directory(at, found)
            if self.weight > KEPT_BYTES:
                self._known = {}
                self.weight = 0
            self._known[at] = found
        return found

    def _read_directory(self, at: str, above: _IgnoreDirectory) -> _IgnoreDirectory:
        self.weight += _DIRECTORY_BYTES
        if above.excluded or (at and _decide(os.fsencode(at), True, above.files)):
            return _EXCLUDED
        name = f"{at}/.gitignore" if at else ".gitignore"
        data = self._read(name)
        try:
            rules = parse(data) if data else None
        except RulesRefused as error:
            if len(self.refused) < 100:
                self.refused[name] = str(error)
            return above
        if rules is None:
            return above
        self.weight += rules.weight
        return _IgnoreDirectory(False, ((len(os.fsencode(at)) + 1 if at else 0, rules), *above.files))


class _IgnoreDirectory(NamedTuple):
    """A directory: ignored, or with the files whose rules apply in it, its own first. A file is (length of
    the part of a path that is above the file's directory, its rules).
    """

    excluded: bool
    files: tuple[tuple[int, RuleSet], ...]


_EXCLUDED = _IgnoreDirectory(True, ())


def _decide(raw: bytes, is_dir: bool, files: tuple[tuple[int, RuleSet], ...]) -> bool:
    """Decide by the first of the files that has a rule for the path."""
    name = raw[raw.rfind(b"/") + 1 :]
    for above, rules in files:
        verdict = _verdict(rules, name, raw[above:], is_dir)
        if verdict is not None:
            return verdict
    return False


def named(rules: RuleSet | None, path: str) -> bool:
    """Check whether the lines, read as a `.gitignore` at the root, match this file itself; rules that match a
    directory above it do not count.
    """
    raw = os.fsencode(path)
    return rules is not None and _verdict(rules, raw[raw.rfind(b"/") + 1 :], raw, False) is True


def _verdict(found: RuleSet, name: bytes, below: bytes, is_dir: bool) -> bool | None:
    """Give True or False by the last rule that matches, None when no rule of this file matches."""
    best = _NO_RULE
    if (ranks := found.names.get(name)) is not None:
        best = ranks[is_dir]
    if (ranks := found.paths.get(below)) is not None:
        best = min(best, ranks[is_dir])
    if found.wildcards:
        for any_name in found.any_name:
            if any_name.fullmatch(name):
                rules = found.wildcards
                break
        else:
            for any_whole in found.any_whole:
                if any_whole.fullmatch(below):
                    rules = found.wildcards
                    break
            else:
                rules = found.runs
        for rule in rules:
            if rule.rank > best:
                break
            if (is_dir or not rule.directories_only) and rule.pattern.matches(below if rule.whole else name):
                best = rule.rank
                break
    return None if best == _NO_RULE else not found.negated[best]


class _Parsed:
    """Parsed files by the digest of their content; the least recently used are dropped first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: OrderedDict[bytes, RuleSet | None] = OrderedDict()
        self._weight = 0

    def get(self, data: bytes) -> RuleSet | None:
        key = hashlib.sha256(data).digest()
        with self._lock:
            if key in self._sets:
                self._sets.move_to_end(key)
                return self._sets[key]
        found = _parse(data)
        with self._lock:
            if key not in self._sets:
                self._sets[key] = found
                self._weight += found.weight if found is not None else _RULE_BYTES
                while self._weight > KEPT_BYTES and len(self._sets) > 1:
                    _, gone = self._sets.popitem(last=False)
                    self._weight -= gone.weight if gone is not None else _RULE_BYTES
        return found


_parsed = _Parsed()


def parse(data: bytes) -> RuleSet | None:
    """Parse one file; None when it has no rules, or when it is not UTF-8.

    Raises:
        RulesRefused: it is larger than FILE_MAX, or has more wildcards than WILDCARDS_MAX.
    """
    if len(data) > FILE_MAX:
        raise RulesRefused(f"it is larger than {FILE_MAX} bytes")
    return _parsed.get(data)


def _parse(data: bytes) -> RuleSet | None:
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    lines = [line for line in map(_line, data.removeprefix(b"\xef\xbb\xbf").split(b"\n")) if line is not None]
    lines.reverse()
    spent = sum(len(line.pattern) for line in lines if any(c in line.pattern for c in SPECIAL))
    if spent > WILDCARDS_MAX:
        raise RulesRefused(
            f"its patterns with wildcards have {spent} bytes, at most {WILDCARDS_MAX} are tried for each path"
        )
    negated: list[bool] = []
    names: dict[bytes, tuple[int, int]] = {}
    paths: dict[bytes, tuple[int, int]] = {}
    wildcards: list[IgnoreRule] = []
    for line in lines:
        pattern = compile_pattern(line.pattern, whole=line.whole)
        if pattern is None:
            continue
        rank = len(negated)
        negated.append(line.negated)
        if pattern.literal is None:
            wildcards.append(
                IgnoreRule(rank, pattern, line.directories_only, line.whole and not pattern.name_only)
            )
            continue
        literals = paths if line.whole else names
        file, directory = literals.get(pattern.literal, (_NO_RULE, _NO_RULE))
        literals[pattern.literal] = (file if line.directories_only else min(file, rank), min(directory, rank))
    if not negated:
        return None
    runs = tuple(rule for rule in wildcards if rule.pattern.source is None)
    if len(runs) > RUNS_MAX:
        raise RulesRefused(
            f"it has {len(runs)} patterns with `**` in the middle, at most {RUNS_MAX} are tried for each path"
        )
    simple = [(rule.whole, source) for rule in wildcards if (source := rule.pattern.source) is not None]
    return RuleSet(
        tuple(negated),
        names,
        paths,
        tuple(wildcards),
        runs,
        _joined([source for whole, source in simple if not whole], NAME_CHUNK),
        _joined([source for whole, source in simple if whole], WHOLE_CHUNK),
        len(negated) * _RULE_BYTES + 8 * len(data),
    )


def _joined(sources: list[bytes], chunk: int) -> tuple[re.Pattern[bytes], ...]:
    """Join expressions by `|` into ones of about `chunk` bytes each."""
    out: list[re.Pattern[bytes]] = []
    at = 0
    while at < len(sources):
        end, size = at + 1, len(sources[at])
        while end < len(sources) and size + len(sources[end]) <= chunk:
            size += len(sources[end])
            end += 1
        out.append(re.compile(b"|".join(sources[at:end]), re.DOTALL))
        at = end
    return tuple(out)


class _Line(NamedTuple):
    pattern: bytes
    negated: bool
    directories_only: bool
    whole: bool


def _line(line: bytes) -> _Line | None:
    """Parse a line; None for a comment or a blank line."""
    if not line or line.startswith(b"#"):
        return None
    pattern = _without_trailing_spaces(line.removesuffix(b"\r").partition(b"\0")[0])
    negated = pattern.startswith(b"!")
    pattern = pattern[negated:]
    directories_only = pattern.endswith(b"/")
    pattern = pattern[: len(pattern) - directories_only]
    whole = b"/" in pattern
    pattern = pattern.removeprefix(b"/")
    return _Line(pattern, negated, directories_only, whole) if pattern else None


def _without_trailing_spaces(line: bytes) -> bytes:
    """Cut the spaces at the end, except those after a backslash."""
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
