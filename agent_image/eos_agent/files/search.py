"""Search the text of a tree line by line, for a literal or a regular expression: a page at a time, bounded in
time, memory and output.

A search runs alone in a child process of the session's init (eos_agent.init.worker), where a timer's signal
ends a match in progress. Python's `re` checks for signals every few thousand steps, but one step can scan a
whole line. So before a long line the page so far is reported; it is the answer if init has to kill the child.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import unicodedata  # noqa: F401  # pyright: ignore[reportUnusedImport]  # `re` imports it for \N{...}; in a session it could not open the module
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from eos_agent.files import page_cursor
from eos_agent.files.dirfd import FILE_FLAGS, exists, opened, parent_of
from eos_agent.files.globs import compile_glob
from eos_agent.files.time_and_memory import TimeUp, within
from eos_agent.files.walk import Walk, is_directory, opened_regular
from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_agent.wire.workspace_path import resolve, shown
from layerstack.model.conflict import path_json

SEARCH_S = 8.0
"""Longest time of one page, in seconds."""
KILL_S = 4.0
"""Seconds after which init kills a process that its own timer did not stop."""
PAGE_MATCHES = 200
PAGE_BYTES = 20_000
TEXT_CHARACTERS = 240
LEAD_CHARACTERS = 60
BLOCK_BYTES = 4 << 20
"""Size of the blocks in which a file is read. A longer line is searched in pieces: a match across two pieces
is not found."""
BINARY_PROBE_BYTES = 8192
LONG_CHARACTERS = 32 * 1024
PATTERN_BYTES = 8192
_CURSOR = re.compile(rb"([0-9]{1,18}):([0-9]{1,18}):([^\0]*)")
"""Offset, line and path of a place."""


class Place(NamedTuple):
    """The start of a page: line `line` (from 1), at byte `offset` of the file at `path`."""

    path: str
    offset: int
    line: int

    def cursor(self) -> str:
        raw = f"{self.offset}:{self.line}:".encode() + os.fsencode(self.path)
        return page_cursor.encode(raw)


def place_of(cursor: str) -> Place:
    """Decode a cursor.

    Raises:
        OperationError: invalid_request.
    """
    found = _CURSOR.fullmatch(page_cursor.decode(cursor, "file_search"))
    if found is None:
        raise page_cursor.invalid("file_search")
    return Place(os.fsdecode(found[3]), int(found[1]), max(1, int(found[2])))


Find = Callable[[str], "re.Match[str] | None"]
Tell = Callable[[dict[str, Any]], None]


def compile_pattern(pattern: str, *, regex: bool) -> bytes | Find:
    """Compile a pattern to the bytes of a literal, or to the `search` of an expression.

    Raises:
        OperationError: invalid_request; the pattern is empty, too long, has a line end, or is not a valid
            regular expression.
    """

    def bad(why: str, **more: Any) -> NoReturn:
        raise OperationError(
            INVALID_REQUEST, f"pattern {why}", {"argument": "pattern", **more}, reason="invalid_pattern"
        )

    try:
        raw = pattern.encode()
    except UnicodeEncodeError:
        bad("is not valid Unicode")
    if not raw:
        bad("is empty")
    if len(raw) > PATTERN_BYTES:
        bad(f"has {len(raw)} bytes, at most {PATTERN_BYTES} are accepted", maximum=PATTERN_BYTES)
    if not regex:
        if b"\n" in raw:
            bad(
                "has a line end, but lines are searched one by one",
                hint="search for one of its lines, then use file_read at the match",
            )
        return raw
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern).search
    except re.error as error:
        bad(
            f"is not a regular expression: {error}",
            position=error.pos,
            hint="regex false searches for the literal text",
        )
    except (RecursionError, OverflowError):
        bad("is nested too deeply or repeats too often")


def search(root_fd: int, root: str, args: Mapping[str, Any], tell: Tell | None = None) -> dict[str, Any]:
    """Perform one page of file_search. Sets the timer and the memory limit of the calling process, which must
    do nothing else.

    Args:
        tell: called with the answer (a result or an error) to use if this process is killed from now on.
    Raises:
        OperationError: invalid_request; pattern, glob, cursor or path, and search_too_slow or
            search_too_large for a line on which the expression does not finish.
    """
    find = compile_pattern(args["pattern"], regex=args["regex"])
    start = place_of(args["cursor"]) if args.get("cursor") else None
    top = resolve(args, root, lambda p: exists(root_fd, p), allow_root=True)
    chosen = compile_glob(args.get("glob"), top)
    limit_s = args.get("limit_s", SEARCH_S)
    page = _Page(find, start, limit_s, tell or (lambda _answer: None))
    named = bool(args.get("glob")) and not args["glob"].startswith("!")

    def walk() -> None:
        try:
            _search_files(root_fd, top, start, chosen, page, ignored=args["include_ignored"], named=named)
        except _Full as full:
            page.stopped = full.why

    if missing := within(limit_s, walk):
        page.out_of(missing)
    return page.result()


def _search_files(
    root_fd: int,
    top: str,
    start: Place | None,
    chosen: Callable[[str], bool],
    page: _Page,
    *,
    ignored: bool,
    named: bool,
) -> None:
    """Search the regular files at or below `top` from `start` on.

    named: the glob selects the files, so that only ignored directories are left out.
    """
    if top and not is_directory(root_fd, top):
        with parent_of(root_fd, top) as (parent, name), opened_regular(top, name, parent) as fd:
            try:
                page.read(top, fd)
            except OSError as error:
                page.not_read(error)
        return
    walk = Walk(root_fd, top, None if start is None else start.path, page, include_ignored=ignored)
    with contextlib.closing(walk.entries()) as entries:
        for found in entries:
            if not stat.S_ISREG(found.stat.st_mode) or not chosen(found.path):
                continue
            if not named and walk.excludes(found.path):
                continue
            try:
                with opened(found.name, FILE_FLAGS, found.dir_fd) as fd:
                    page.read(found.path, fd)
            except OSError as error:
                page.not_read(error)


class _Full(Exception):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class _Page:
    """The matches of one call, and its position."""

    def __init__(self, find: bytes | Find, start: Place | None, limit_s: float, tell: Tell) -> None:
        self._find, self._limit_s, self._tell = find, limit_s, tell
        self._matches: list[dict[str, Any]] = []
        self._size = 0
        self._searched = 0
        self.unreadable = self._binary = 0
        self.stopped: str | None = None
        self.at = start  # the line being searched
        self._moved = False  # a line or a file was finished

    def pass_by(self, path: str) -> None:
        """Advance the position to `path`."""
        if self.at is None or self.at.path != path:
            self._moved = self._moved or self.at is not None
            self.at = Place(path, 0, 1)

    def left_out(self, path: str) -> None:
        """Accept that an ignored directory is not searched."""

    def read(self, path: str, fd: int) -> None:
        """Search one file from its start, or from the start of this page."""
        self.pass_by(path)
        assert self.at is not None
        offset, line = self.at.offset, self.at.line
        if b"\0" in os.pread(fd, BINARY_PROBE_BYTES, 0):
            self._binary += 1
            return
        self._searched += 1
        carry = b""
        while True:
            piece = os.pread(fd, BLOCK_BYTES, offset + len(carry))
            block = carry + piece
            if not block:
                return
            end = block.rfind(b"\n") + 1
            if not piece or (end == 0 and len(block) >= BLOCK_BYTES):
                end = len(block)
            elif end == 0:
                carry = block
                continue
            block, carry = block[:end], block[end:]
            self.at = Place(path, offset, line)
            if isinstance(self._find, bytes):
                self._literal(path, block, offset, line, self._find)
            else:
                self._expression(path, block, offset, line, self._find)
            offset += len(block)
            line += block.count(b"\n")
            self.at, self._moved = Place(path, offset, line), True

    def _literal(self, path: str, block: bytes, offset: int, line: int, needle: bytes) -> None:
        at = counted = 0
        while (at := block.find(needle, at)) >= 0:
            begin = block.rfind(b"\n", 0, at) + 1
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            line += block.count(b"\n", counted, begin)
            counted = begin
            self.at, self._moved = Place(path, offset + begin, line), True
            text = block[begin:end].removesuffix(b"\r").decode("utf-8", "surrogateescape")
            column = len(block[begin:at].decode("utf-8", "surrogateescape"))
            self._found(path, line, text, column)
            at = end

    def _expression(self, path: str, block: bytes, offset: int, line: int, find: Find) -> None:
        lines = block.decode("utf-8", "surrogateescape").split("\n")
        if not lines[-1] and block.endswith(b"\n"):
            lines.pop()
        number = 0
        try:
            for number, text in enumerate(lines):
                if len(text) > LONG_CHARACTERS:
                    self._reach(path, block, offset, line, number)
                    self._tell(self._if_killed())
                found = find(text[:-1] if text.endswith("\r") else text)
                if found is not None:
                    self._found(path, line + number, text.removesuffix("\r"), found.start())
        except (TimeUp, MemoryError, _Full):
            self._reach(path, block, offset, line, number)
            raise

    def not_read(self, error: OSError) -> None:
        """Count a file or directory that cannot be read. ENOMEM (a failed allocation in C) ends the
        search."""
        if error.errno == errno.ENOMEM:
            raise MemoryError from error
        self.unreadable += 1

    def _reach(self, path: str, block: bytes, offset: int, line: int, number: int) -> None:
        """Advance the position to line `number` (from 0) of the block."""
        done = sum(len(raw) + 1 for raw in block.split(b"\n", number)[:number])
        self.at, self._moved = Place(path, offset + done, line + number), self._moved or number > 0

    def _if_killed(self) -> dict[str, Any]:
        if not self._moved and not self._matches:
            return self._stuck("time").envelope()
        self.stopped = "time"
        answer = {"result": self.result()}
        self.stopped = None
        return answer

    def _found(self, path: str, line: int, text: str, column: int) -> None:
        if len(self._matches) >= PAGE_MATCHES:
            raise _Full("matches")
        match: dict[str, Any] = {**path_json(path), "line": line, "column": column + 1}
        if len(text) > TEXT_CHARACTERS:
            begin = max(0, min(column - LEAD_CHARACTERS, len(text) - TEXT_CHARACTERS))
            rest = len(text) - begin - TEXT_CHARACTERS
            text = (
                ("…" if begin else "")
                + text[begin : begin + TEXT_CHARACTERS]
                + (f"… [{rest} more characters]" if rest else "")
            )
            match["cut"] = True
        match["text"] = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        size = len(match["text"].encode()) + len(match["path"].encode()) + 48
        if self._matches and self._size + size > PAGE_BYTES:
            raise _Full("bytes")
        self._matches.append(match)
        self._size += size

    def out_of(self, what: str) -> None:
        """End the page for lack of `time` or `memory`. A page without progress is an error, since the next
        page would have none either."""
        self.stopped = what
        if not self._moved and not self._matches:
            raise self._stuck(what)

    def _stuck(self, what: str) -> OperationError:
        if what == "time":
            reason, message = "search_too_slow", f"no line was searched to its end within {self._limit_s:g} s"
        else:
            reason, message = "search_too_large", "the expression needs too much memory for one line"
        if self.at is None:
            return OperationError(OPERATION_FAILED, message, reason=reason)
        hint = (
            "use a simpler expression (no nested repeats), regex false, or a glob or path that leaves "
            "this file out"
        )
        details = {**path_json(self.at.path), "line": self.at.line, "hint": hint}
        return OperationError(
            INVALID_REQUEST, f"{message}: {shown(self.at.path)}, line {self.at.line}", details, reason=reason
        )

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "matches": self._matches,
            "files_searched": self._searched,
            "skipped": {"binary": self._binary, "unreadable": self.unreadable},
            "next": self.at.cursor() if self.stopped and self.at is not None else None,
        }
        if self.stopped:
            found["stopped"] = self.stopped
        return found
