"""The manager's end of an `export_git` stream: the entries of a pack go to a file, which gets the header and
the checksum of a pack.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from typing import IO, Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.export.stream import (
    MAX_LINE_BYTES,
    PIECE_BYTES,
    DeadlineReader,
    ExportLimits,
    check_frame,
    check_received,
    ended_early,
    json_line,
    reading,
    refused,
    sandbox_refusal,
)

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
            check_frame(size)
            check_received(received, limits)
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
    found = json_line(line, name)
    if isinstance(error := found.get("error"), dict):
        raise sandbox_refused(error)  # pyright: ignore[reportUnknownArgumentType]
    return found


def sandbox_refused(error: dict[str, Any]) -> OperationError:
    """Make the sandbox's own refusal a failure of this operation; name an agent without the format git."""
    if error.get("kind") == "unknown_op":
        return OperationError(
            OPERATION_FAILED,
            "export: the agent of this sandbox is too old for the format git",
            {"hint": "export with the format dir, tar or tar-zst"},
            reason="agent_too_old",
        )
    return sandbox_refusal(error)


def _exactly(reader: DeadlineReader, size: int) -> bytes:
    data = b""
    while len(data) < size:
        with reading():
            piece = reader.read(size - len(data))
        if not piece:
            raise ended_early()
        data = data + piece if data else piece
    return data
