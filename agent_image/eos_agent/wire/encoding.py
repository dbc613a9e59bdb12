"""Encodings of file content in JSON: UTF-8 text, latin-1 (one character per byte), base64 (bytes)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import IO, Any

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_agent.wire.workspace_path import shown

UTF8, LATIN1, BASE64 = "utf-8", "latin-1", "base64"
_SPELLINGS = {"utf-8": UTF8, "utf8": UTF8, "latin-1": LATIN1, "latin1": LATIN1, "base64": BASE64}


def encoding_of(args: Mapping[str, Any], *, text_only: bool = False) -> str:
    """Read the `encoding` of a request; UTF8 when absent.

    Raises:
        OperationError: invalid_request; the encoding is unknown, or is base64 with `text_only`.
    """
    given = args.get("encoding", UTF8)
    found = _SPELLINGS.get(str(given).lower())
    if found is None or (text_only and found == BASE64):
        choices = [UTF8, LATIN1] if text_only else [UTF8, LATIN1, BASE64]
        raise OperationError(
            INVALID_REQUEST,
            f"encoding must be one of {', '.join(choices)}",
            {"argument": "encoding", "value": str(given)[:200], "choices": choices},
            reason="bad_choice",
        )
    return found


def bytes_of(content: str, encoding: str) -> bytes:
    """Decode `content` to the bytes of the file.

    Raises:
        OperationError: invalid_request; `content` is not base64, or has a character outside latin-1.
    """
    if encoding == UTF8:
        return content.encode("utf-8", "surrogatepass")
    try:
        return (
            base64.b64decode("".join(content.split()), validate=True)
            if encoding == BASE64
            else content.encode("latin-1")
        )
    except (binascii.Error, ValueError) as error:
        raise OperationError(
            INVALID_REQUEST,
            f"content is not {encoding}: {str(error)[:200]}",
            {"argument": "content"},
            reason="invalid_content",
        ) from None


def read_window(file: IO[bytes], path: str, offset: int, limit: int, max_bytes: int) -> dict[str, Any]:
    """Read a window of bytes as base64: `offset` is the first byte, counted from 1 like lines, `limit` their
    number.

    Raises:
        OperationError: invalid_request; `limit` is over `max_bytes`.
    """
    if limit > max_bytes:
        message = f"limit of file_read must be at most {max_bytes} bytes in base64: {shown(path)}"
        raise OperationError(
            INVALID_REQUEST,
            message,
            {"argument": "limit", "value": limit, "maximum": max_bytes},
            reason="out_of_bounds",
        )
    first = max(1, offset) - 1
    total = file.seek(0, 2)
    pieces: list[bytes] = []
    left = 0 if first >= total else limit  # also when lseek(2) would refuse the offset
    if left:
        file.seek(first)
    while left and (piece := file.read(left)):
        pieces.append(piece)
        left -= len(piece)
    raw = b"".join(pieces)
    after = first + len(raw)
    more = bool(raw) and after < total
    return {
        "content": base64.b64encode(raw).decode("ascii"),
        "encoding": BASE64,
        "offset": first + 1,
        "bytes_read": len(raw),
        "total_bytes": total,
        "next_offset": after + 1 if more else None,
        "truncated": more,
    }
