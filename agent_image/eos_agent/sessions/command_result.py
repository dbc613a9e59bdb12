"""The output part of a command's result: the rows that it shows, and what of the output it leaves out."""

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
    """How a caller wants to see output. raw: also what a carriage return overwrote. encoding: UTF8, or BASE64
    for bytes.
    """

    raw: bool
    encoding: str

    @property
    def errors(self) -> str:
        """The error handler of bytes.decode with which rows are read."""
        return "surrogateescape" if self.encoding == BASE64 else "replace"

    def text(self, text: str) -> str:
        """The text of rows as the result shows it."""
        if self.encoding == BASE64:
            return base64.b64encode(text.encode("utf-8", self.errors)).decode("ascii")
        return text if self.raw else collapse(text)

    def shows_all(self, rows: Rows, shown: str) -> bool:
        """True unless `text` left something of the rows out."""
        return self.encoding != UTF8 or shown == rows.text


class Cursor:
    """The first row that no result of the running command has shown.

    again: a last row without its end is shown by the next result once more, whole, when it has grown.
    """

    def __init__(self, *, again: bool = True) -> None:
        self._row = 0
        self._again = again
        self._open_bytes = 0  # of the unfinished last row, as it was shown

    def take(self, transcript: Transcript, max_bytes: int, view: OutputView, *, advance: bool) -> Rows:
        """Read the rows from the cursor on, at most `max_bytes`; with `advance` move it behind them."""
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
    """The rows of a standard error that is kept apart (`split_output`)."""
    return {
        "stderr": view.text(rows.text),
        "stderr_end_offset": rows.end,
        "stderr_total_lines": transcript.total_rows,
    }


def cut_json(
    transcript: Transcript, rows: Rows, view: OutputView, *, windowed: bool, with_tail: bool
) -> dict[str, Any]:
    """Rows that the result leaves out: dropped from disk, or beyond its size. Empty when it shows all that
    was asked for.

    windowed: the caller asked for a number of rows, so that rows after them are not missing. with_tail: show
    the newest output beside rows that end before it.
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
