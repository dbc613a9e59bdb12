"""Frames between the agent, the zygote and a session's init: one JSON object, optional bytes, descriptors.

A frame on the stream socket is `u32 length of the JSON, u32 length of the bytes (or NO_DATA), u32 count of
descriptors`, the JSON, the bytes; the descriptors (SCM_RIGHTS) are attached to the first byte of their frame.
One recvmsg(2) never reads past a byte with descriptors (unix(7)), so they arrive in the order of the frames.
Frames of an init are checked here: it shares its uid with user code.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

HEADER = struct.Struct("<III")
NO_DATA = 0xFFFFFFFF
MAX_JSON_BYTES = 24 * 1024 * 1024
MAX_DATA_BYTES = 256 * 1024 * 1024
MAX_FDS = 8
READ_BYTES = 64 * 1024  # malloc(3) maps and unmaps each buffer of 128 KiB or more
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps makes an encoder for each call
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FDS * 4) if hasattr(socket, "CMSG_SPACE") else 0


class Frame(NamedTuple):
    """One message. The receiver owns `fds` and closes them."""

    message: dict[str, Any]
    data: bytes | None
    fds: tuple[int, ...]


class BadFrame(ValueError):
    """The peer sent an invalid frame; the connection is unusable from then on."""


def encode(message: dict[str, Any], data: bytes | None = None, fd_count: int = 0) -> bytes:
    """Encode one frame. Names that are not UTF-8 are sent as the surrogates of os.fsdecode."""
    body = _ENCODER.encode(message).encode()
    return HEADER.pack(len(body), NO_DATA if data is None else len(data), fd_count) + body + (data or b"")


def rights(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    """The ancillary data that passes `fds`."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def send(
    sock: socket.socket, message: dict[str, Any], data: bytes | None = None, fds: Sequence[int] = ()
) -> None:
    """Send one frame over a blocking socket; the caller keeps and closes its own copies of `fds`."""
    raw = encode(message, data, len(fds))
    sent = sock.sendmsg([raw], rights(fds))
    if sent < len(raw):
        sock.sendall(memoryview(raw)[sent:])


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive available bytes, and their descriptors (close-on-exec); b"" at the end of the stream."""
    raw, ancillary, _, _ = sock.recvmsg(READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return raw, fds.tolist()


class FrameDecoder:
    """Assembles frames from the bytes and descriptors of `receive`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fds: list[int] = []

    def feed(self, raw: bytes, fds: Sequence[int] = ()) -> list[Frame]:
        """Add received bytes and return the frames that are complete.

        Raises:
            BadFrame: lengths beyond the limits, JSON that is not an object, or fewer descriptors than
                announced.
        """
        self._buffer += raw
        self._fds += fds
        frames: list[Frame] = []
        while len(self._buffer) >= HEADER.size:
            json_bytes, data_bytes, fd_count = HEADER.unpack_from(self._buffer)
            has_data = data_bytes != NO_DATA
            if (
                json_bytes > MAX_JSON_BYTES
                or (has_data and data_bytes > MAX_DATA_BYTES)
                or fd_count > MAX_FDS
            ):
                raise BadFrame(f"frame of {json_bytes} + {data_bytes} bytes and {fd_count} descriptors")
            body_end = HEADER.size + json_bytes
            end = body_end + (data_bytes if has_data else 0)
            if len(self._buffer) < end:
                break
            if len(self._fds) < fd_count:
                raise BadFrame(f"{fd_count} descriptors announced, {len(self._fds)} received")
            try:
                message = json.loads(self._buffer[HEADER.size : body_end])
            except (ValueError, RecursionError):
                raise BadFrame("frame without JSON") from None
            if not isinstance(message, dict):
                raise BadFrame("frame without a JSON object")
            data = bytes(memoryview(self._buffer)[body_end:end]) if has_data else None
            del self._buffer[:end]
            taken, self._fds = tuple(self._fds[:fd_count]), self._fds[fd_count:]
            frames.append(Frame(message, data, taken))
        return frames

    def close(self) -> None:
        """Close the descriptors of incomplete frames."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
