"""Start a task and run it at once up to its first wait: asyncio's eager tasks, and an equivalent for Python
3.11, which lacks them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start `work` as a task and run it to its first wait or its end. Its done callbacks are called in the
    next turn of the loop at the earliest.

    During that first step the new task is the current task and has a context of its own. Do not call this
    from within a task.
    """
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    context = copy_context()
    begun = _Begun(work)
    task = loop.create_task(begun, context=context)
    # Both functions exist for other implementations of tasks; Python's page asyncio-extending describes them.
    asyncio.tasks._enter_task(loop, task)  # type: ignore[attr-defined, unused-ignore]  # pyright: ignore
    try:
        context.run(begun.begin)
    finally:
        asyncio.tasks._leave_task(loop, task)  # type: ignore[attr-defined, unused-ignore]  # pyright: ignore
    return task


class _Begun(Coroutine[Any, Any, T]):
    """A coroutine whose first step was already run, for Python 3.11: the next call of send() returns the
    outcome of that step.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._outcome: Any = None  # the future that the first step waits for, or its result
        self._ended = False
        self._kept = True

    def begin(self) -> None:
        try:
            self._outcome = self._work.send(None)
        except BaseException as error:
            self._outcome, self._ended = error, True

    def send(self, value: Any) -> Any:
        if not self._kept:
            return self._work.send(value)
        self._kept = False
        if self._ended:
            raise self._outcome
        return self._outcome

    def throw(self, *error: Any) -> Any:
        if self._kept and self._ended:  # cancelled after it had ended
            return self.send(None)
        self._kept = False
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("only a task runs it")
