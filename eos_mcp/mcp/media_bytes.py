"""The size in pixels that the bytes of an image give, and what makes a model's API refuse them. Pure.

One damaged image in a conversation makes many APIs refuse every later request of it, so the bytes are checked
before they are sent: a file that a program is still writing, or one whose header asks for gigabytes.
"""

from __future__ import annotations

import struct

PIXELS_MAX = 8000
"""Longest side of an image that common APIs accept, in pixels."""
PDF_END = 1024
"""Bytes at the end of a PDF in which its end mark is. Source: ISO 32000-1, annex H.3.4.4."""
_PNG_END = b"IEND\xaeB`\x82"
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of JPEG with the size of the image (SOFn). Source: ITU-T T.81, table B.1."""


def pixels(kind: str, raw: bytes) -> tuple[int, int] | None:
    """Give width and height; None if the bytes do not contain them."""
    if kind == "image/png":
        found = struct.unpack(">II", raw[16:24]) if raw[12:16] == b"IHDR" and len(raw) >= 24 else None
    elif kind == "image/gif":
        found = struct.unpack("<HH", raw[6:10]) if len(raw) >= 10 else None
    elif kind == "image/webp":
        found = _webp(raw)
    else:
        found = _jpeg(raw)
    return None if found is None else (found[0], found[1])


def flaw(kind: str, raw: bytes) -> str | None:
    """Give the reason why a client could not show the bytes; None if none is found."""
    if kind == "application/pdf":
        return None if b"%%EOF" in raw[-PDF_END:] else "its end is missing"
    size = pixels(kind, raw)
    if size is None or not all(size):
        return "it has no size in pixels"
    if max(size) > PIXELS_MAX:
        return f"it is {size[0]} x {size[1]} pixels, at most {PIXELS_MAX} on each side can be shown"
    whole = {
        "image/png": _PNG_END in raw,
        "image/gif": b";" in raw[-PDF_END:],
        "image/jpeg": b"\xff\xd9" in raw,
        "image/webp": len(raw) >= 8 + int.from_bytes(raw[4:8], "little"),
    }
    return None if whole[kind] else "its end is missing"


def _webp(raw: bytes) -> tuple[int, int] | None:
    """Source: RFC 9649, sections 2.5 to 2.7."""
    kind = raw[12:16]
    if kind == b"VP8X" and len(raw) >= 30:
        return 1 + int.from_bytes(raw[24:27], "little"), 1 + int.from_bytes(raw[27:30], "little")
    if kind == b"VP8L" and len(raw) >= 25 and raw[20] == 0x2F:
        bits = int.from_bytes(raw[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(raw) >= 30 and raw[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack("<HH", raw[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(raw: bytes) -> tuple[int, int] | None:
    """Go from segment to segment up to the one with the size."""
    at = 2
    while at + 9 <= len(raw) and raw[at] == 0xFF:
        marker = raw[at + 1]
        if marker in _SIZES:
            height, width = struct.unpack(">HH", raw[at + 5 : at + 9])
            return width, height
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # a marker without a segment
            at += 2
        else:
            at += 2 + max(2, int.from_bytes(raw[at + 2 : at + 4], "big"))
    return None
