"""Encode the line of a request to the gateway, and parse what it sends: progress frames, one per line, then
the reply. Standard library only.

A progress frame is `cli_log("...")` with a JSON string; the first other line is the reply, a JSON object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from eos_agent.wire import protocol

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any

_FRAME_START, _FRAME_END = b"cli_log(", b")"


class UnusableReply(Exception):
    """The bytes received are neither a progress frame nor a reply; the text is the end of "the gateway's
    reply ...".
    """


class ReplyParser:
    """Split the bytes of one connection into frames. Pass received bytes to `feed`, then call `frame` until
    it returns None.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._searched = 0

    @property
    def inside(self) -> bool:
        """True while the last line is incomplete."""
        return bool(self._pending)

    def feed(self, chunk: bytes) -> None:
        self._pending += chunk

    def frame(self) -> str | dict[str, Any] | None:
        """Return the next frame: the text of a progress frame or the reply; None when more bytes are needed.

        Raises:
            UnusableReply: a line is too long, not JSON, or not an object.
        """
        end = self._pending.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._pending)
            if self._searched > protocol.MAX_LINE_BYTES:
                raise UnusableReply(f"exceeds {protocol.MAX_LINE_BYTES} bytes")
            return None
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        self._searched = 0
        message = _progress_message(line)
        return message if message is not None else _reply(line)


def encode_line(
    op: str,
    args: Mapping[str, Any],
    *,
    sandbox_id: str | None,
    request_id: str,
    token: str | None,
    stream_logs: bool,
    client: str | None = None,
) -> bytes:
    """Encode a request as one line.

    Args:
        stream_logs: progress frames are wanted.
        client: id under which the gateway remembers commands of a client (`eos_mcp.gateway.departed`).
    Raises:
        OperationError: request_too_large.
    """
    transport: dict[str, Any] = {} if token is None else {protocol.GATEWAY_TOKEN_KEY: token}
    transport[protocol.STREAM_LOGS_KEY] = stream_logs
    if op == "exec_command" and client is not None:
        transport[protocol.CLIENT_KEY] = client
    line = protocol.encode_request(
        op, _with_caller(op, args), request_id=request_id, sandbox_id=sandbox_id, **transport
    )
    if len(line) > protocol.MAX_LINE_BYTES:
        raise protocol.OperationError(
            protocol.REQUEST_TOO_LARGE,
            f"the request has {len(line)} bytes, at most {protocol.MAX_LINE_BYTES} fit",
            {"limit": protocol.MAX_LINE_BYTES},
            reason="request_too_large",
        )
    return line


def _with_caller(op: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Add the caller's PATH to `create_sandbox`: a sandbox without a container passes it to its commands, and
    the gateway's own PATH may differ.
    """
    path = os.environ.get("PATH")
    return (
        {**args, "caller_path": path}
        if op == "create_sandbox" and path and "caller_path" not in args
        else dict(args)
    )


def progress_frame(message: str) -> bytes:
    """Encode a progress message as one line."""
    return (
        _FRAME_START + json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + _FRAME_END + b"\n"
    )


def _progress_message(line: bytes) -> str | None:
    """Return the text of a progress frame; None for any other line."""
    line = line.rstrip(b"\r")
    if not line.startswith(_FRAME_START) or not line.endswith(_FRAME_END):
        return None
    try:
        message = json.loads(line[len(_FRAME_START) : -len(_FRAME_END)])
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, str) else None


def _reply(line: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise UnusableReply("is not JSON") from None
    if not isinstance(reply, dict):
        raise UnusableReply("is not a JSON object")
    return reply  # type: ignore[no-any-return, unused-ignore]
