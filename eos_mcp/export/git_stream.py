"""The manager's end of an `export_git` stream: the entries of a pack go to a file, which gets the header and
the checksum of a pack.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from typing import IO, Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.export.stream import (
    MAX_FRAME_BYTES,
    MAX_LINE_BYTES,
    DeadlineReader,
    ExportLimits,
    reading,
    refused,
)

PIECE_BYTES = 1 << 20
OBJECTS_MAX = (1 << 32) - 1


def receive(
    reader: DeadlineReader, limits: ExportLimits, object_format: str, directory: str | None
) -> tuple[IO[bytes], dict[str, Any]]:
    """Read one stream; return the pack, at its begin, and the trailer. The caller closes the pack.

    Args:
        directory: for the pack, which has no name; None: that of temporary files.
    Raises:
        OperationError: as ExportStream; agent_too_old.
    """
    header = _line(reader, "header")
    if header.get("format") != 1 or header.get("object_format") != object_format:
        raise refused("the stream's first line is not one that this version understands", "bad_stream")
    pack: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
    try:
        pack.write(b"PACK" + struct.pack(">II", 2, 0))
        received = 0
        while size := int.from_bytes(_exactly(reader, 4), "big"):
            received += size
            if size > MAX_FRAME_BYTES:
                raise refused(f"a frame of {size} bytes, at most {MAX_FRAME_BYTES} are taken", "bad_stream")
            if limits.max_stream_bytes is not None and received > limits.max_stream_bytes:
                cap = limits.max_stream_bytes
                raise refused(
                    f"export stream cap exceeded: more than {cap} bytes were received",
                    "stream_cap",
                    limit=cap,
                )
            while size:
                data = _exactly(reader, min(size, PIECE_BYTES))
                pack.write(data)
                size -= len(data)
        trailer = _line(reader, "trailer")
        count = trailer.get("objects")
        if type(count) is not int or not 0 <= count <= OBJECTS_MAX:
            raise refused("the stream's trailer is not one that this version understands", "bad_stream")
        pack.seek(8)
        pack.write(struct.pack(">I", count))
        pack.seek(0)
        digest = hashlib.new(object_format, usedforsecurity=False)
        while data := pack.read(PIECE_BYTES):
            digest.update(data)
        pack.write(digest.digest())
        pack.flush()
        pack.seek(0)
        return pack, trailer
    except BaseException:
        pack.close()
        raise


def _line(reader: DeadlineReader, name: str) -> dict[str, Any]:
    with reading():
        line = reader.readline(MAX_LINE_BYTES)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not line.endswith(b"\n") or not isinstance(value, dict):
        raise refused(f"the stream's {name} is not a line of JSON", "bad_stream")
    found: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    error = found.get("error")
    if isinstance(error, dict):
        raise sandbox_refused(error)  # pyright: ignore[reportUnknownArgumentType]
    return found


def sandbox_refused(error: dict[str, Any]) -> OperationError:
    """Make the sandbox's own refusal a failure of this operation."""
    details = error.get("details")
    kept: dict[str, Any] = dict(details) if isinstance(details, dict) else {}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if error.get("kind") == "unknown_op":
        return OperationError(
            OPERATION_FAILED,
            "export: the agent of this sandbox is too old for the format git",
            {"hint": "export with the format dir, tar or tar-zst"},
            reason="agent_too_old",
        )
    return OperationError(OPERATION_FAILED, str(error.get("message", "the sandbox refused the export")), kept)


def _exactly(reader: DeadlineReader, size: int) -> bytes:
    data = b""
    while len(data) < size:
        with reading():
            piece = reader.read(size - len(data))
        if not piece:
            raise refused(
                "the forwarded stream ended before its trailer", "export_interrupted", retryable=True
            )
        data = data + piece if data else piece
    return data
