"""Stop long work of one caller: loops over many entries or many bytes call `check`, which raises.

`why` is kept in the context (contextvars) in which the work was started; a thread that runs in a copy of that
context calls the same function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar

from layerstack.errors import Stopped

Why = Callable[[], str | None]
"""Function that returns the reason to stop, or None to continue. Any thread may call it."""

_asked: ContextVar[Why | None] = ContextVar("layerstack.model.cancel", default=None)


@contextlib.contextmanager
def stoppable(why: Why | None) -> Generator[None]:
    """Make work in this block end with `Stopped` soon after `why` returns a reason. With None nothing stops
    the work, also when an outer block has a reason.
    """
    token = _asked.set(why)
    try:
        yield
    finally:
        _asked.reset(token)


def check() -> None:
    """Return, or raise Stopped. Cost: one read of a context variable."""
    why = _asked.get()
    if why is not None and (reason := why()) is not None:
        raise Stopped(f"the work was stopped: {reason}", details={"why": reason})
