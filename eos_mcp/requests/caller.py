"""Tell whether the client of the present request still waits. Work in several parts ends after the current
part when the client has left.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextvars import ContextVar

_hung_up: ContextVar[Callable[[bool], bool] | None] = ContextVar("eos_caller_hung_up", default=None)


def answer_on(connected: socket.socket) -> None:
    """Remember `connected` as the client of the current task and of the tasks and threads that it starts."""

    def hung_up(half: bool) -> bool:
        try:
            poll = select.poll()
            # POLLHUP and POLLERR are always reported; an end of input may be a client that sends no more
            poll.register(connected, select.POLLRDHUP if half else 0)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    _hung_up.set(hung_up)


def is_gone(*, half: bool = False) -> bool:
    """Return True when the client has closed its connection; False outside a request. Over TCP this shows
    only after data was sent to it, unless `half`: then a closed direction counts.
    """
    asked = _hung_up.get()
    return asked is not None and asked(half)
