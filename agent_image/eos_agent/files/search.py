"""Search the text of a tree line by line, for a literal or a regular expression: a page at a time, bounded in
time, memory and output.

A search runs alone in a child process of the session's init (eos_agent.init.worker), where a timer's signal
ends a match in progress. Python's `re` checks for signals every few thousand steps, but one step can scan a
whole line. So before a long line the page so far is reported; it is the answer if init has to kill the child.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import os
import re
import resource
import signal
import stat
import unicodedata  # noqa: F401  # pyright: ignore[reportUnusedImport]  # `re` imports it for \N{...}; in a session it could not open the module
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from eos_agent.files.dirfd import (
    FILE_FLAGS,
    directory,
    exists,
    lstat,
    not_found,
    open_regular,
    opened,
    parent_of,
)
from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_agent.wire.workspace_path import resolve, shown
from layerstack.model.conflict import path_json
from layerstack.model.paths import join
from layerstack.text import gitignore
from layerstack.text.gitignore import IgnoreRules

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
MEMORY_BYTES = 192 << 20
"""Memory that the process may use in addition to that at the start; an expression that backtracks over a long
line stores each step."""
PATTERN_BYTES = 8192
GLOB_BYTES = 1024
GLOB_ALTERNATIVES = 64
IGNORE_FILE_BYTES = 1 << 20


class _TimeUp(Exception):
    pass


class Place(NamedTuple):
    """The start of a page: line `line` (from 1), at byte `offset` of the file at `path`."""

    path: str
    offset: int
    line: int

    def cursor(self) -> str:
        raw = f"{self.offset}:{self.line}:".encode() + os.fsencode(self.path)
        return base64.urlsafe_b64encode(raw).decode("ascii")


def place_of(cursor: str) -> Place:
    """Decode a cursor.

    Raises:
        OperationError: invalid_request.
    """
    try:
        offset, line, path = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).split(b":", 2)
        if not (offset.isdigit() and line.isdigit() and len(offset) < 19 and len(line) < 19) or b"\0" in path:
            raise ValueError
        return Place(os.fsdecode(path), int(offset), max(1, int(line)))
    except (binascii.Error, ValueError):
        message = "cursor does not come from file_search"
        raise OperationError(
            INVALID_REQUEST, message, {"argument": "cursor"}, reason="invalid_cursor"
        ) from None


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


def compile_glob(glob: str | None, top: str) -> Callable[[str], bool]:
    """Compile a glob with the rules of a .gitignore line: `*.py` at any depth, `src/` all below,
    `src/**/*.py` from the workspace root or from `top`.

    `{a,b}` are alternatives, a leading `!` inverts the glob.
    Raises:
        OperationError: invalid_request; the glob is too long, has too many alternatives, or one that cannot
            match (which git ignores silently).
    """
    if not glob:
        return lambda _path: True
    wanted = not glob.startswith("!")
    patterns = list(_alternatives(glob if wanted else glob[1:]))
    try:
        size = len(os.fsencode(glob))
    except UnicodeEncodeError:
        size = GLOB_BYTES + 1
    if size > GLOB_BYTES or len(patterns) > GLOB_ALTERNATIVES or "\n" in glob:
        message = f"glob is not valid Unicode, too long, or has more than {GLOB_ALTERNATIVES} alternatives"
        raise OperationError(INVALID_REQUEST, message, {"argument": "glob"}, reason="invalid_pattern")
    lines = ["\\" + p if p.startswith(("#", "!")) else p for p in patterns]
    nothing = next(
        (
            p
            for p, line in zip(patterns, lines, strict=True)
            if p and gitignore.parse(os.fsencode(line)) is None
        ),
        None,
    )
    if nothing is not None:
        message = (
            f"glob {glob!r} can match no file: {nothing!r} is not a pattern (an unclosed bracket, or "
            f"an empty name)"
        )
        details = {
            "argument": "glob",
            "value": glob,
            "hint": "a backslash makes the next character literal, as in \\[",
        }
        raise OperationError(INVALID_REQUEST, message, details, reason="invalid_pattern")
    text = os.fsencode("\n".join(lines))
    rules = IgnoreRules(lambda path: text if path == ".gitignore" else None)
    skip = len(top) + 1 if top else 0

    def chosen(path: str) -> bool:
        return (rules.ignored(path, False) or (skip > 0 and rules.ignored(path[skip:], False))) is wanted

    return chosen


def _alternatives(glob: str) -> Iterator[str]:
    """Expand braces like a shell; braces without a comma are literal. Yields at most one more than the
    limit."""
    pending, count = [glob], 0
    while pending and count <= GLOB_ALTERNATIVES:
        at = pending.pop(0)
        found = next((m for m in re.finditer(r"\{([^{}]*)\}", at) if "," in m[1]), None)
        if found is None:
            count += 1
            yield at
        elif len(pending) > GLOB_ALTERNATIVES:
            count = GLOB_ALTERNATIVES + 1
            yield from [at] * (GLOB_ALTERNATIVES + 1)
        else:
            pending += [at[: found.start()] + part + at[found.end() :] for part in found[1].split(",")]


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
    _bound_memory(MEMORY_BYTES)
    signal.signal(signal.SIGALRM, _time_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 1.0)  # repeated: a single signal may be lost
    try:
        named = bool(args.get("glob")) and not args["glob"].startswith("!")
        for path, fd in _files(
            root_fd, top, start, chosen, ignored=args["include_ignored"], named=named, page=page
        ):
            try:
                page.read(path, fd)
            except OSError as error:
                page.not_read(error)
    except _Full as full:
        page.stopped = full.why
    except _TimeUp:
        _stop_timer()
        page.out_of("time")
    except MemoryError:
        _bound_memory(None)
        _stop_timer()
        page.out_of("memory")
    _stop_timer()
    return page.result()


def _time_up(_signum: int, _frame: object) -> None:
    raise _TimeUp


def _stop_timer() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _bound_memory(more: int | None) -> None:
    """Limit the growth of this process to `more` bytes; None removes the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard
    if more is not None:
        with open("/proc/self/statm", "rb") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + more
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


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
        except (_TimeUp, MemoryError, _Full):
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


def _files(
    root_fd: int,
    top: str,
    start: Place | None,
    chosen: Callable[[str], bool],
    *,
    ignored: bool,
    named: bool,
    page: _Page,
) -> Iterator[tuple[str, int]]:
    """Yield the regular files at or below `top` from `start` on, open, in byte order of names.

    `.git` and ignored entries are left out unless `top` is inside of one. named: the glob selects the files,
    so that only ignored directories are left out.
    """
    if top and not _is_directory(root_fd, top):
        with parent_of(root_fd, top) as (parent, name), opened_regular(top, name, parent) as fd:
            yield top, fd
        return
    rules = IgnoreRules(lambda path: _small_file(root_fd, path))
    below_ignored = ignored or (bool(top) and rules.ignored(top, True))
    all_files = below_ignored or named
    with directory(root_fd, top) as top_fd:
        stack = [_Folder(top, os.dup(top_fd), _resume(top, start))]
        try:
            while stack:
                folder = stack[-1]
                entry = folder.next()
                if entry is None:
                    os.close(stack.pop().fd)
                    continue
                path = join(folder.path, entry)
                if entry == ".git":
                    continue
                try:
                    found = lstat(entry, folder.fd)
                    if found is None:
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        if not below_ignored and rules.ignored(path, True):
                            continue
                        page.pass_by(
                            path if start is None or not start.path.startswith(path + "/") else start.path
                        )
                        stack.append(
                            _Folder(
                                path,
                                os.open(
                                    entry,
                                    os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                                    dir_fd=folder.fd,
                                ),
                                _resume(path, start),
                            )
                        )
                    elif (
                        stat.S_ISREG(found.st_mode)
                        and chosen(path)
                        and (all_files or not rules.ignored(path, False))
                    ):
                        with opened(entry, FILE_FLAGS, folder.fd) as fd:
                            yield path, fd
                except OSError as error:
                    page.not_read(error)
        finally:
            for folder in stack:
                os.close(folder.fd)


class _Folder:
    """A directory of the walk, and those of its names that are not visited yet."""

    def __init__(self, path: str, fd: int, resume: bytes) -> None:
        self.path, self.fd = path, fd
        self._names = sorted((raw for raw in map(os.fsencode, os.listdir(fd)) if raw >= resume), reverse=True)

    def next(self) -> str | None:
        return os.fsdecode(self._names.pop()) if self._names else None


def _resume(path: str, start: Place | None) -> bytes:
    """The first name in the directory `path` not visited yet."""
    if start is None:
        return b""
    prefix = path + "/" if path else ""
    return os.fsencode(start.path[len(prefix) :].split("/", 1)[0]) if start.path.startswith(prefix) else b""


def _is_directory(root_fd: int, path: str) -> bool:
    with parent_of(root_fd, path) as (parent, name):
        found = lstat(name, parent)
        if found is None:
            raise not_found(path)
        return stat.S_ISDIR(found.st_mode)


@contextlib.contextmanager
def opened_regular(path: str, name: str, dir_fd: int) -> Generator[int]:
    fd = open_regular(path, name, dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _small_file(root_fd: int, path: str) -> bytes | None:
    """Read a .gitignore; None if it is absent or not a regular file."""
    try:
        with parent_of(root_fd, path) as (parent, name), opened_regular(path, name, parent) as fd:
            return os.pread(fd, IGNORE_FILE_BYTES, 0)
    except (OSError, OperationError):
        return None
