"""Tell whether the client of the present request still waits. Work in several parts ends after the current
part when the client has left.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import NamedTuple


class _Caller(NamedTuple):
    connected: socket.socket
    closed: Callable[[], Awaitable[None]]


_caller: ContextVar[_Caller | None] = ContextVar("eos_caller", default=None)


def answer_on(connected: socket.socket, closed: Callable[[], Awaitable[None]]) -> None:
    """Remember `connected` as the client of the current task and of the tasks and threads that it starts.

    Args:
        closed: returns when the client has closed its end; called in the event loop.
    """
    _caller.set(_Caller(connected, closed))


def is_gone() -> bool:
    """Return True when the client has closed its connection; False outside a request. Over TCP this shows
    only after data was sent to it: an end of input alone may be a client that sends no more.
    """
    found = _caller.get()
    if found is None:
        return False
    try:
        poll = select.poll()
        poll.register(found.connected, 0)  # POLLHUP and POLLERR are always reported
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


async def wait_closed() -> None:
    """Wait until the client has closed its end, of input too; outside a request for ever."""
    found = _caller.get()
    await (asyncio.get_running_loop().create_future() if found is None else found.closed())
