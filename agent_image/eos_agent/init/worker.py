"""A file operation in a child of the init: a long one holds nothing up, and one that does not come to its end can be killed.

The child is a fork of the single-threaded init, as hardened as that, and not dumpable like it. It writes frames into a pipe and ends; the last
one is the answer, which the init passes on: those before say what the answer is should it not come any further. Other processes of the
session may kill it, as they may kill each other.
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
    """One operation under way. `fd` becomes readable when its child has something to say or is gone; closed by `close`."""

    def __init__(self, number: int, work: Work, limit_s: float | None, undo: Undo | None = None) -> None:
        """Fork.

        Args:
            work: gives the reply of request `number`, without its id; what it tells its argument is the reply until then.
            limit_s: how long it may take before it is killed; None for what must come to its end.
            undo: what has to be done when it did not, in another child.
        Raises:
            OSError: no process could be made.
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
        """Take what is there. The reply once the child is done, an error when it ended without one; None: not yet."""
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
            return _failed("it was not done in time, and was killed", "operation_too_slow")
        return _failed("its process was killed", "operation_killed")

    def expire(self, now: float) -> None:
        """Kill it when its time is over."""
        if self.due is not None and self.due <= now:
            self.due = None
            self._killed = True
            if not self.reaped:
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.fd)


def _failed(why: str, reason: str) -> dict[str, Any]:
    error = OperationError(OPERATION_FAILED, f"file operation: {why}", {"retryable": reason == "operation_killed"}, reason=reason)
    return {"error": {"kind": error.kind, "message": error.message, "details": error.details}}


def _live(writable: int, work: Work) -> None:
    """The life of the child. Nothing of the init may go on in it: least of all its socket."""
    try:
        os.dup2(writable, 3, inheritable=False)
        syscalls.close_range(4)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _tell(work(_tell))
    finally:
        os._exit(0)


def _tell(reply: dict[str, Any]) -> None:
    left = memoryview(frames.encode(reply))
    while left:
        left = left[os.write(3, left) :]
