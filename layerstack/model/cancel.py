"""Let long work of one caller be stopped: what looks at many entries or many bytes asks now and then, and leaves by an exception.

The question belongs to the context (contextvars) in which the work was started: a thread that runs in a copy of it asks the same one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar

from layerstack.errors import Stopped

Why = Callable[[], str | None]
"""Why the work is to stop, or None: it may go on. May be called from any thread."""

_asked: ContextVar[Why | None] = ContextVar("layerstack.model.cancel", default=None)


@contextlib.contextmanager
def stoppable(why: Why | None) -> Generator[None]:
    """Work in this block ends with `Stopped` soon after `why` gives a reason; None: nothing stops it, whatever holds outside."""
    token = _asked.set(why)
    try:
        yield
    finally:
        _asked.reset(token)


def check() -> None:
    """Go on, or raise Stopped. Cost: that of reading one context variable."""
    why = _asked.get()
    if why is not None and (reason := why()) is not None:
        raise Stopped(f"the work was stopped: {reason}", details={"why": reason})
