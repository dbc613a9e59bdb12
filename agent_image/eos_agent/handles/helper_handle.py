"""The agent's handle of a session's helper (init/helper.py), which is forked for a file operation and closed
after an idle time.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from eos_agent.ipc import frames
from eos_agent.ipc.frame_socket import FrameSocket
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError

IDLE_S = 10.0
"""Seconds without a file operation after which the helper ends: it uses some 2 MB."""

AskZygote = Callable[[dict[str, Any], list[int]], Awaitable[None]]
"""Send one frame with descriptors to the zygote."""


class FileHelper:
    """One live helper. pending: the awaited replies by request number."""

    def __init__(
        self, sock: socket.socket, on_reply: Callable[[frames.Frame], None], on_end: Callable[[], None]
    ) -> None:
        self.pending: dict[int, asyncio.Future[frames.Frame]] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.link = FrameSocket(sock, self._on_frame, self._ended)
        self.over = False
        self._on_reply, self._on_end = on_reply, on_end
        self._timer: asyncio.TimerHandle | None = None

    def add(self, number: int, reply: asyncio.Future[frames.Frame]) -> None:
        """Record that a request was sent."""
        self.pending[number] = reply
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def remove(self, number: int) -> None:
        """Record that a request has ended."""
        self.pending.pop(number, None)
        if not self.pending and not self.over and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self.close)

    def close(self) -> None:
        """End the helper; pending requests fail."""
        self.link.close()
        self._ended()

    def _on_frame(self, frame: frames.Frame) -> None:
        event = frame.message.get("event")
        if event is None:
            self._on_reply(frame)
            return
        for fd in frame.fds:
            os.close(fd)
        if not self.ready.done():
            if event == "ready":
                self.ready.set_result(None)
            else:
                self.ready.set_exception(no_helper(f"at {frame.message['step']}: {frame.message['message']}"))

    def _ended(self) -> None:
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.ready.done():
            self.ready.set_exception(no_helper("it ended before it was ready"))
        if not self.ready.cancelled():
            self.ready.exception()  # marks the exception as retrieved: its waiter may be cancelled
        for reply in self.pending.values():
            if not reply.done():
                error = OperationError(
                    OPERATION_FAILED,
                    "file operation: its process was killed",
                    {"retryable": True},
                    reason="operation_killed",
                )
                reply.set_exception(error)
        self._on_end()


def no_helper(why: str) -> OperationError:
    """The error of a file operation for which no helper could be forked."""
    message = f"the helper process for file operations of this session could not be started: {why}"
    return OperationError(OPERATION_FAILED, message, {"retryable": True}, reason="no_file_helper")
