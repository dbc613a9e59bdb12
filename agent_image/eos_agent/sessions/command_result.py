"""The output part of a command's result: the rows that it shows, and counts of the output that it leaves
out."""

from __future__ import annotations

import base64
import math
from typing import Any, NamedTuple

from eos_agent.sessions.carriage_return import collapse
from eos_agent.sessions.transcript import Rows, Transcript
from eos_agent.wire.encoding import BASE64, UTF8

TAIL_BYTES = 8 * 1024
"""Most bytes of the newest output, shown beside rows that end before it."""


class OutputView(NamedTuple):
    """The form in which a caller wants output. raw: with text that was overwritten after a carriage return.
    encoding: UTF8, or BASE64 for bytes.
    """

    raw: bool
    encoding: str

    @property
    def errors(self) -> str:
        """The error handler of bytes.decode with which rows are read."""
        return "surrogateescape" if self.encoding == BASE64 else "replace"

    def text(self, text: str) -> str:
        """Convert the text of rows to its form in the result."""
        if self.encoding == BASE64:
            return base64.b64encode(text.encode("utf-8", self.errors)).decode("ascii")
        return text if self.raw else collapse(text)

    def shows_all(self, rows: Rows, shown: str) -> bool:
        """True if `text` left no part of the rows out."""
        return self.encoding != UTF8 or shown == rows.text


class Cursor:
    """The first row that no result of the running command has shown.

    again: if an unfinished last row has grown, the next result shows the whole row again.
    """

    def __init__(self, *, again: bool = True) -> None:
        self._row = 0
        self._again = again
        self._open_bytes = 0  # length of the unfinished last row when it was shown

    def read(self, transcript: Transcript, max_bytes: int, view: OutputView, *, advance: bool) -> Rows:
        """Read the rows from the cursor on, at most `max_bytes`; with `advance` move the cursor past them."""
        total = transcript.total_rows
        begin = self._row
        if self._open_bytes and begin == total - 1 and self._open_bytes == transcript.open_bytes:
            begin = total  # the unfinished row was shown and has not grown
        rows = transcript.read(begin, None, max_bytes, errors=view.errors)
        if advance:
            self._row, self._open_bytes = rows.end, 0
            if self._again and rows.end == total and total and transcript.open_bytes:
                self._row, self._open_bytes = total - 1, transcript.open_bytes
        return rows


def rows_json(transcript: Transcript, rows: Rows, view: OutputView) -> dict[str, Any]:
    """The rows and their numbers."""
    output = view.text(rows.text)
    return {
        "start_offset": rows.start,
        "end_offset": rows.end,
        "total_lines": transcript.total_rows,
        "original_token_count": math.ceil(len(output.encode()) / 4),
        "output": output,
    }


def stderr_json(transcript: Transcript, rows: Rows, view: OutputView) -> dict[str, Any]:
    """The rows of standard error when it has a transcript of its own (`split_output`)."""
    return {
        "stderr": view.text(rows.text),
        "stderr_end_offset": rows.end,
        "stderr_total_lines": transcript.total_rows,
    }


def cut_json(
    transcript: Transcript, rows: Rows, view: OutputView, *, windowed: bool, with_tail: bool
) -> dict[str, Any]:
    """The fields about rows that the result leaves out, because they were dropped from disk or exceed its
    size. Empty if it shows all requested rows.

    windowed: the caller asked for a number of rows, so that later rows are not left out. with_tail: also show
    the newest output, if the rows end before it.
    """
    found: dict[str, Any] = {}
    if rows.dropped:
        found["truncated"] = True
        found["dropped"] = {
            "start_offset": rows.dropped[0],
            "end_offset": rows.dropped[1],
            "bytes": rows.dropped[2],
        }
    elif rows.end < transcript.total_rows and not windowed:
        found["truncated"] = True
    if found:
        found["total_bytes"] = transcript.total_bytes
    if with_tail and rows.end < transcript.total_rows:
        tail = transcript.tail(rows.end, TAIL_BYTES, errors=view.errors)
        found["tail"] = {"start_offset": tail.start, "output": view.text(tail.text)}
    if view.encoding == BASE64:
        found["encoding"] = BASE64
    return found
