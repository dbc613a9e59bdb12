"""Line ends as git converts them by `text`, `eol`, `core.autocrlf` and `core.eol`. Source: convert.c of
git.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping

from layerstack.git.attributes import Value

_ODD = bytes(c for c in (*range(32), 127) if c not in b"\b\t\n\r\f\x1b")
"""Bytes that count as not printable; CR and LF are counted apart."""


class LineEnds(enum.Enum):
    """The conversion of one path: none, or to LF in the repository and CRLF or LF in the work tree; `AUTO`
    only for what looks like text.
    """

    NONE = "none"
    TEXT_LF = "text, LF"
    TEXT_CRLF = "text, CRLF"
    AUTO_LF = "auto, LF"
    AUTO_CRLF = "auto, CRLF"

    @property
    def is_auto(self) -> bool:
        return self in (LineEnds.AUTO_LF, LineEnds.AUTO_CRLF)

    @property
    def writes_crlf(self) -> bool:
        return self in (LineEnds.TEXT_CRLF, LineEnds.AUTO_CRLF)


class TextStats:
    """Counts of line ends and of bytes that no text has, fed in parts."""

    def __init__(self, parts: Iterable[bytes] = ()) -> None:
        self.crlf = self.cr = self.lf = self._nul = self._odd = self._size = 0
        self._last = b""
        for part in parts:
            self.feed(part)

    def feed(self, part: bytes) -> None:
        if not part:
            return
        self.crlf += part.count(b"\r\n") + (self._last == b"\r" and part[:1] == b"\n")
        self.cr += part.count(b"\r")
        self.lf += part.count(b"\n")
        self._nul += part.count(b"\0")
        self._odd += len(part) - len(part.translate(None, _ODD))
        self._size += len(part)
        self._last = part[-1:]

    @property
    def is_binary(self) -> bool:
        """Judge as git does: a NUL, a lone CR, or more than one odd byte in 128."""
        odd = self._odd - (self._last == b"\x1a")
        printable = self._size - self._odd - self.cr - self.lf
        return self.cr > self.crlf or self._nul > 0 or printable >> 7 < odd


def text_value(attributes: Mapping[str, Value]) -> Value | None:
    """Give the value of `text`, or of its older name `crlf` when `text` has none that git knows."""
    text = attributes.get("text")
    return text if text in (True, False, "input", "auto") else attributes.get("crlf")


def line_ends(attributes: Mapping[str, Value], autocrlf: str, eol: str) -> LineEnds:
    """Choose the conversion of a path.

    Args:
        autocrlf: `true`, `false` or `input`.
        eol: `lf`, `crlf` or `native`, the value of core.eol.
    """
    by_config = autocrlf == "true" or (autocrlf != "input" and eol == "crlf")
    text = text_value(attributes)
    end = attributes.get("eol")
    if text is False:
        return LineEnds.NONE
    if text == "auto":
        crlf = end == "crlf" or (end != "lf" and by_config)
        return LineEnds.AUTO_CRLF if crlf else LineEnds.AUTO_LF
    if end == "lf" or (text == "input" and end != "crlf"):
        return LineEnds.TEXT_LF
    if end == "crlf":
        return LineEnds.TEXT_CRLF
    if text is True:
        return LineEnds.TEXT_CRLF if by_config else LineEnds.TEXT_LF
    return {"true": LineEnds.AUTO_CRLF, "input": LineEnds.AUTO_LF}.get(autocrlf, LineEnds.NONE)


def changes_on_clean(stats: TextStats, ends: LineEnds, indexed: Callable[[], bytes | None] | None) -> bool:
    """Check whether the content of the repository differs from that of the work tree.

    Args:
        indexed: gives the blob that the index has for the path: a text that has CRLF there keeps it under
            `AUTO`.
    """
    if ends == LineEnds.NONE or not stats.crlf:
        return False
    if not ends.is_auto:
        return True
    if stats.is_binary:
        return False
    blob = indexed() if indexed is not None else None
    if blob is None or b"\r" not in blob:
        return True
    there = TextStats((blob,))
    return there.is_binary or not there.crlf


def to_lf(data: bytes, ends: LineEnds, indexed: Callable[[], bytes | None] | None = None) -> bytes:
    """Give the content of the repository."""
    return data.replace(b"\r\n", b"\n") if changes_on_clean(TextStats((data,)), ends, indexed) else data


def to_worktree(blob: bytes, ends: LineEnds) -> bytes:
    """Give the content of the work tree."""
    if not ends.writes_crlf:
        return blob
    stats = TextStats((blob,))
    if stats.lf == stats.crlf or (ends.is_auto and (stats.cr or stats.is_binary)):
        return blob
    return blob.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
