"""Parse what the gateway sends on a connection: progress frames, one per line, then the reply. Standard
library only.

A progress frame is `cli_log("...")` with a JSON string; the first other line is the reply, a JSON object.
"""

from __future__ import annotations

import json

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
