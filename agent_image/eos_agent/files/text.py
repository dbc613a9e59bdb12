"""Windows and edits of a text file; the rules are the same in a session and on the head. Pure, standard
library only."""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

from eos_agent.wire.encoding import LATIN1, UTF8
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_agent.wire.workspace_path import shown

MAX_WINDOW_LINES = 2000
MAX_WINDOW_BYTES = 262144
MAX_EDIT_BYTES = 4 * 1024 * 1024
CHUNK = 1 << 20
SCAN_S = 20.0
"""Longest time of one pass over a file, in seconds: a sparse file of some TiB would block its session for
hours."""
BOM = b"\xef\xbb\xbf"
_DECODERS = {encoding: codecs.getincrementaldecoder(encoding) for encoding in (UTF8, LATIN1)}
"""Looked up at import: a codec is a module, and inside a session the files of modules are masked."""


def not_utf8(path: str) -> OperationError:
    hint = (
        "encoding base64 reads and writes its bytes; encoding latin-1 reads and edits it bytewise, a "
        "character for each byte"
    )
    details = {"path": shown(path), "hint": hint}
    return OperationError(
        INVALID_REQUEST, f"file is not valid UTF-8: {shown(path)}", details, reason="not_utf8"
    )


class Window(NamedTuple):
    """Lines [start_line, start_line + num_lines) of a text, counted from 1, without BOM and with LF ends."""

    content: str
    start_line: int
    num_lines: int
    total_lines: int
    total_bytes: int

    def to_json(self) -> dict[str, Any]:
        after = self.start_line + self.num_lines
        more = self.num_lines > 0 and after <= self.total_lines
        return {
            "content": self.content,
            "start_line": self.start_line,
            "num_lines": self.num_lines,
            "total_lines": self.total_lines,
            "bytes_read": len(self.content.encode()),
            "total_bytes": self.total_bytes,
            "next_offset": after if more else None,
            "truncated": more,
        }


def read_window(
    file: IO[bytes],
    path: str,
    offset: int,
    limit: int,
    max_bytes: int = MAX_WINDOW_BYTES,
    encoding: str = UTF8,
    max_lines: int = MAX_WINDOW_LINES,
) -> Window:
    """Read at most `limit` lines, beginning with line `offset` (the first is 1; 0 means 1 too). In latin-1 a
    byte order mark is three ordinary characters.

    Raises:
        OperationError: invalid_request; `limit` is over `max_lines`, the file is not UTF-8 (if that is the
            encoding), the window is larger than `max_bytes`, or reading the file takes longer than SCAN_S.
    Cost: one pass over the file in chunks of 1 MiB; memory for the window only.
    """
    if limit > max_lines:
        details = {"argument": "limit", "value": limit, "maximum": max_lines}
        raise OperationError(
            INVALID_REQUEST,
            f"limit of file_read must be at most {max_lines} lines",
            details,
            reason="out_of_bounds",
        )
    offset = max(1, offset)
    first, last = offset - 1, offset - 1 + limit  # the window: line numbers from 0, `last` excluded
    check = _DECODERS[encoding]()
    window = bytearray()
    line = total = 0  # number of the next byte's line; bytes seen
    ended = True  # the last byte was a line end
    roof = 2 * max_bytes + 4  # CR bytes do not count against the limit, and are at most as many as others
    deadline = time.monotonic() + SCAN_S
    while chunk := file.read(CHUNK):
        if time.monotonic() > deadline:
            raise _too_long(path, total)
        try:
            check.decode(chunk)
        except UnicodeDecodeError:
            raise not_utf8(path) from None
        if total == 0 and encoding == UTF8 and chunk.startswith(BOM):
            total, chunk = 3, chunk[3:]
        total += len(chunk)
        ended = chunk.endswith(b"\n") if chunk else ended
        lines = chunk.count(b"\n")
        if line < last and line + lines >= first:
            start, end = _skip(chunk, first - line), _skip(chunk, last - line)
            window += chunk[start:end]
            if len(window) > roof:
                raise _too_large(path, offset, window, max_bytes)
        line += lines
    try:
        check.decode(b"", final=True)
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    total_lines = line + (0 if ended else 1)
    text = window.decode(encoding).replace("\r\n", "\n")
    if text.endswith("\n"):
        text = text[:-1]
    count = max(0, min(last, total_lines) - first)
    if len(text.encode()) > max_bytes:
        raise _too_large(path, offset, window, max_bytes)
    return Window(text, offset, count, total_lines, total)


def _skip(chunk: bytes, lines: int) -> int:
    """The index in `chunk` after `lines` line ends; its length if it has fewer."""
    at = 0
    for _ in range(lines):
        at = chunk.find(b"\n", at) + 1
        if at == 0:
            return len(chunk)
    return at


def _too_large(path: str, offset: int, window: bytearray, max_bytes: int) -> OperationError:
    """The error for a window over the limit; `window` has its first bytes."""
    fitting = window.count(b"\n", 0, max_bytes + 1)
    hint = (
        f"ask for fewer lines with `limit`: {fitting} fit"
        if fitting
        else f"line {offset} alone is longer: with encoding base64, `offset` and `limit` are in bytes"
    )
    return OperationError(
        INVALID_REQUEST,
        f"selected read output exceeds the maximum of {max_bytes} bytes: {shown(path)}",
        {"path": shown(path), "max_output_bytes": max_bytes, "hint": hint},
        reason="window_too_large",
    )


def _too_long(path: str, read_bytes: int) -> OperationError:
    return OperationError(
        INVALID_REQUEST,
        f"file is too large to count its lines: {read_bytes} bytes of {shown(path)} were read within "
        f"{SCAN_S:g} s",
        {
            "path": shown(path),
            "read_bytes": read_bytes,
            "hint": "read a part of it with a command, such as tail -c or dd",
        },
        reason="file_too_large",
    )


class Edit(NamedTuple):
    old: str
    new: str
    replace_all: bool


def parse_edits(value: Any, encoding: str = UTF8) -> list[Edit]:
    """Parse the `edits` of a request: an array of {old_string, new_string, replace_all?}, or a JSON string of
    one.

    Raises:
        OperationError: invalid_request that names `edits[i].member`; also for a character outside `encoding`.
    """

    def bad(where: str, why: str, index: int | None = None) -> OperationError:
        details: dict[str, Any] = {"argument": where}
        if index is not None:
            details["index"] = index
        return OperationError(INVALID_REQUEST, f"{where} {why}", details, reason="invalid_edits")

    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise bad("edits", "must be a JSON array") from None
    if not isinstance(value, list):
        raise bad("edits", "must be an array")
    items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
    if not items:
        raise bad("edits", "must not be empty")
    edits: list[Edit] = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise bad(f"edits[{index}]", "must be an object", index)
        members: dict[str, Any] = item  # pyright: ignore[reportUnknownVariableType]
        for member in ("old_string", "new_string"):
            if not isinstance(members.get(member), str):
                raise bad(f"edits[{index}].{member}", "must be a string", index)
        replace_all = members.get("replace_all", False)
        if not isinstance(replace_all, bool):
            raise bad(f"edits[{index}].replace_all", "must be a boolean", index)
        old, new = (members[member].replace("\r\n", "\n") for member in ("old_string", "new_string"))
        if not old:
            raise bad(f"edits[{index}].old_string", "must be non-empty", index)
        if old == new:
            details = {"argument": f"edits[{index}].new_string", "index": index}
            message = f"edit made no changes: edits[{index}].old_string equals new_string"
            raise OperationError(INVALID_REQUEST, message, details, reason="edit_no_change")
        for member in ("old_string", "new_string"):
            try:
                members[member].encode(encoding)
            except UnicodeEncodeError:
                why = "is not valid Unicode" if encoding == UTF8 else f"has a character outside {encoding}"
                raise bad(f"edits[{index}].{member}", why, index) from None
        edits.append(Edit(old, new, replace_all))
    return edits


class Edited(NamedTuple):
    content: bytes
    replacements: int


def apply_edits(raw: bytes, edits: Sequence[Edit], path: str, max_bytes: int, encoding: str = UTF8) -> Edited:
    """Apply all edits to `raw` in order. Everything else is unchanged, BOM and line ends included.

    Edits match text with LF ends. A new line end takes the form (LF or CRLF) of the line that it replaces or
    divides; between two lines, that of the line before it.
    Raises:
        OperationError: invalid_request; the file is too large or not UTF-8, an edit has no match, or several
            without `replace_all`, or all edits together change nothing.
    """
    name = shown(path)
    if len(raw) > max_bytes:
        raise _edit_too_large(name, len(raw), max_bytes)
    try:
        whole = raw.decode(encoding)
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    # no character of latin-1 is U+FEFF
    bom, whole = ("\ufeff", whole[1:]) if whole.startswith("\ufeff") else ("", whole)
    text = _TextLines(whole)
    replacements = 0
    for index, edit in enumerate(edits):
        snippet = edit.old[:60]
        details = {"path": name, "index": index}
        count = text.text.count(edit.old)
        if count == 0:
            raise OperationError(
                INVALID_REQUEST,
                f"string to replace not found in {name}: {snippet}",
                details,
                reason="edit_not_found",
            )
        if count > 1 and not edit.replace_all:
            raise OperationError(
                INVALID_REQUEST,
                f"found {count} matches for edit in {name} but replace_all is false: {snippet}",
                {
                    **details,
                    "matches": count,
                    "hint": "give more of the surrounding text, or set replace_all",
                },
                reason="edit_ambiguous",
            )
        text.replace(edit.old, edit.new)
        if len(text.text) > max_bytes:
            raise _edit_too_large(name, len(text.text), max_bytes)
        replacements += count
    content = (bom + text.joined()).encode(encoding)
    if content == raw:
        raise OperationError(
            INVALID_REQUEST, f"edit made no changes to {name}", {"path": name}, reason="edit_no_change"
        )
    if len(content) > max_bytes:
        raise _edit_too_large(name, len(content), max_bytes)
    return Edited(content, replacements)


def _edit_too_large(name: str, size: int, max_bytes: int) -> OperationError:
    return OperationError(
        INVALID_REQUEST,
        f"file is too large to edit: {name} has {size} bytes, at most {max_bytes} can be edited",
        {"path": name, "size_bytes": size, "max_edit_bytes": max_bytes},
        reason="edit_too_large",
    )


class _TextLines:
    """A text with LF ends, and the list of its ends that are CRLF in the file."""

    def __init__(self, whole: str) -> None:
        self.text = whole.replace("\r\n", "\n")
        self.crlf: list[bool] | None = None  # None: the file has no CRLF
        if len(self.text) != len(whole):
            lines = whole.split("\n")
            self.crlf = [line.endswith("\r") for line in lines[:-1]]

    def replace(self, old: str, new: str) -> None:
        """Replace every occurrence, left to right."""
        if self.crlf is None:
            self.text = self.text.replace(old, new)
            return
        prefix = _common(old, new)
        suffix = _common(old[prefix:][::-1], new[prefix:][::-1])
        gone = old[prefix : len(old) - suffix].count("\n")
        added = new[prefix : len(new) - suffix].count("\n")
        ends: list[bool] = []
        pieces: list[str] = []
        at = seen = 0
        while (found := self.text.find(old, at)) >= 0:
            before = seen + self.text.count("\n", at, found + prefix)
            ends += self.crlf[seen:before]
            replaced = self.crlf[before : before + gone]
            if gone == added:
                ends += replaced
            else:
                own, above = self.crlf[before : before + 1], self.crlf[max(0, before - 1) : before]
                # no line is divided
                between = (
                    prefix + suffix == len(old) and self.text[found + prefix - 1 : found + prefix] == "\n"
                )
                neighbour = replaced or (above or own if between else own or above)
                ends += [neighbour[0] if neighbour else True] * added
            seen = before + gone
            pieces += (self.text[at:found], new)
            at = found + len(old)
            # the common suffix is copied with the text that follows
            ends += self.crlf[seen : seen + old[len(old) - suffix :].count("\n")]
            seen += old[len(old) - suffix :].count("\n")
        ends += self.crlf[seen:]
        pieces.append(self.text[at:])
        self.text, self.crlf = "".join(pieces), ends

    def joined(self) -> str:
        if self.crlf is None:
            return self.text
        lines = self.text.split("\n")
        return (
            "".join(line + ("\r\n" if crlf else "\n") for line, crlf in zip(lines, self.crlf, strict=False))
            + lines[-1]
        )


def _common(a: str, b: str) -> int:
    """The length of the common prefix."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
