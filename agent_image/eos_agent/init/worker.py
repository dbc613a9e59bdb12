"""Run a file operation in a child of init, so that a long operation does not block init and a hanging one can
be killed.

The child is a fork of the single-threaded init, hardened and not dumpable like init. It writes frames into a
pipe and ends. The last frame is the reply, which init forwards; an earlier frame is the reply if the child is
killed after it. Processes of the session may kill the child, as they may kill each other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from eos_agent.ipc import frames
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from layerstack.kernel import syscalls

READ_BYTES = 256 * 1024

Work = Callable[[Callable[[dict[str, Any]], None]], dict[str, Any]]
Undo = Callable[[], None]


class Worker:
    """One operation in progress. `fd` becomes readable when the child has written a frame or has ended;
    `close` closes `fd`.
    """

    def __init__(self, number: int, work: Work, limit_s: float | None, undo: Undo | None = None) -> None:
        """Fork the child.

        Args:
            work: runs in the child and returns the reply to request `number`, without its id. A reply that it
                passes to its callback is used if the child is killed after that.
            limit_s: seconds after which the child is killed; None for work that must finish.
            undo: run in another child if this one was killed.
        Raises:
            OSError: fork(2) or pipe2(2) failed.
        """
        self.number, self.undo = number, undo
        self.due = None if limit_s is None else time.monotonic() + limit_s
        self.reaped = self.broken_off = False
        self._killed = False
        self._decoder = frames.FrameDecoder()
        self._reply: dict[str, Any] | None = None
        self.fd, writable = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
        except BaseException:
            os.close(self.fd)
            raise
        finally:
            if getattr(self, "pid", -1) != 0:
                os.close(writable)
        if self.pid == 0:
            _live(writable, work)

    def read(self) -> dict[str, Any] | None:
        """Read the frames that the child has written. Returns None while the child runs, then the reply, or
        an error if it wrote no reply.
        """
        raw = os.read(self.fd, READ_BYTES)
        if raw:
            try:
                for frame in self._decoder.feed(raw):
                    self._reply = frame.message
            except frames.BadFrame:
                self._reply = None
            return None
        if self._reply is not None:
            return self._reply
        self.broken_off = True
        if self._killed:
            return _failed("it exceeded its time limit and was killed", "operation_too_slow")
        return _failed("its process was killed", "operation_killed")

    def expire(self, now: float) -> None:
        """Kill the child if its time limit has passed."""
        if self.due is not None and self.due <= now:
            self.due = None
            self._killed = True
            if not self.reaped:
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.fd)


def _failed(why: str, reason: str) -> dict[str, Any]:
    error = OperationError(
        OPERATION_FAILED, f"file operation: {why}", {"retryable": reason == "operation_killed"}, reason=reason
    )
    return {"error": {"kind": error.kind, "message": error.message, "details": error.details}}


def _live(writable: int, work: Work) -> None:
    """Run the child. It closes init's descriptors: a copy of the socket would keep the session alive."""
    try:
        os.dup2(writable, 3, inheritable=False)
        syscalls.close_range(4)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _report(work(_report))
    finally:
        os._exit(0)


def _report(reply: dict[str, Any]) -> None:
    left = memoryview(frames.encode(reply))
    while left:
        left = left[os.write(3, left) :]
