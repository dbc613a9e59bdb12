"""List the files of a tree whose path matches a glob: a page at a time, bounded in time, memory and output.

It runs alone in a child process of the session's init, like a search (eos_agent.init.worker).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from typing import Any

from eos_agent.files import page_cursor
from eos_agent.files.dirfd import exists
from eos_agent.files.globs import compile_glob
from eos_agent.files.time_and_memory import within
from eos_agent.files.walk import Walk
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_agent.wire.workspace_path import resolve, shown
from layerstack.model.conflict import path_json

LIST_S = 8.0
"""Longest time of one page, in seconds."""
PAGE_BYTES = 128 * 1024
PAGE_ENTRIES = 2000
ROW_BYTES = 48
"""Bytes of a row beside its path."""
_CURSOR_START = b"./"
_OPERATION = "file_list with a glob"


class _PageEnd(Exception):
    """The page is full."""


def cursor_at(path: str) -> str:
    """Encode the path with which the next page begins; with a NUL at its end, the first path after it."""
    return page_cursor.encode(_CURSOR_START + os.fsencode(path))


def start_of(cursor: str | None) -> str | None:
    """Decode a cursor; None for the first page.

    Raises:
        OperationError: invalid_request.
    """
    if not cursor:
        return None
    raw = page_cursor.decode(cursor, _OPERATION)
    if not raw.startswith(_CURSOR_START) or b"\0" in raw[:-1]:
        raise page_cursor.invalid(_OPERATION)
    return os.fsdecode(raw[len(_CURSOR_START) :])


def list_glob(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Perform one page of file_list with `glob`. Sets the timer and the memory limit of the calling process,
    which must do nothing else.

    Raises:
        OperationError: invalid_request: glob, cursor or path; operation_failed, reason search_too_slow or
            search_too_large: the page ended before its first step.
    """
    top = resolve(args, root, lambda p: exists(root_fd, p), allow_root=True)
    chosen = compile_glob(args["glob"], top)
    roof: int = args.get("max_entries", PAGE_ENTRIES)
    page = _GlobPage(top, min(args.get("limit", roof), roof), start_of(args.get("cursor")))
    limit_s: float = args.get("limit_s", LIST_S)

    def walk() -> None:
        found = Walk(root_fd, top, page.at, page, include_ignored=args.get("include_ignored", False))
        with contextlib.suppress(_PageEnd), contextlib.closing(found.entries()) as entries:
            for entry in entries:
                page.pass_by(entry.path)
                if not chosen(entry.path):
                    continue
                if found.excludes(entry.path):
                    page.left_out(entry.path)
                else:
                    page.add(entry.path, entry.stat)

    if missing := within(limit_s, walk):
        page.out_of(missing, limit_s)
    return page.result()


class _GlobPage:
    """The entries of one call, and its position: the path that is being looked at."""

    def __init__(self, top: str, limit: int, start: str | None) -> None:
        self._top, self._limit = top, limit
        self._rows: list[tuple[str, dict[str, Any]]] = []
        self._size = self._ignored = self._unreadable = 0
        self._stopped: str | None = None
        self._start = start
        self.at: str | None = start

    def pass_by(self, path: str) -> None:
        self.at = path

    def not_read(self, error: OSError) -> None:
        if error.errno == errno.ENOMEM:
            raise MemoryError from error
        self._unreadable += 1

    def left_out(self, path: str) -> None:
        self._ignored += 1

    def add(self, path: str, found: os.stat_result) -> None:
        size = len(os.fsencode(path)) + ROW_BYTES
        if len(self._rows) >= self._limit:
            self._stop("entries")
        if self._rows and self._size + size > PAGE_BYTES:
            self._stop("bytes")
        regular = stat.S_ISREG(found.st_mode)
        kind = "file" if regular else "symlink" if stat.S_ISLNK(found.st_mode) else "other"
        row = {**path_json(path), "kind": kind, "size": found.st_size if regular else None}
        self._rows.append((path, row))
        self._size += size

    def _stop(self, why: str) -> None:
        self._stopped = why
        raise _PageEnd

    def out_of(self, what: str, limit_s: float) -> None:
        """End the page for lack of `time` or `memory`. A page without progress is an error, since the next
        page would have none either."""
        self._stopped = what
        if self._rows and self._rows[-1][0] == self.at:  # it was added just before the time was up
            self.at = self._rows[-1][0] + "\0"
        if self._rows or self.at != self._start:
            return
        where = shown(self.at or self._top) or "the workspace"
        hint = "give a path further down, or use a command such as find"
        if what == "time":
            message, reason = f"{where}: no entry was reached within {limit_s:g} s", "search_too_slow"
        else:
            message, reason = f"{where}: a directory has too many entries", "search_too_large"
        raise OperationError(OPERATION_FAILED, message, {"hint": hint}, reason=reason)

    def result(self) -> dict[str, Any]:
        more = self._stopped is not None
        rows = [row for _, row in self._rows]
        found: dict[str, Any] = {**path_json(self._top), "entries": rows, "truncated": more}
        if more and self.at is not None:
            found |= {"next": cursor_at(self.at), "stopped": self._stopped}
        found["ignored_left_out"] = self._ignored
        if self._unreadable:
            found["unreadable"] = self._unreadable
        return found
