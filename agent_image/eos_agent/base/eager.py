"""A task that begins before the loop turns: up to its first wait it runs in the caller's own step (asyncio has this from Python 3.12 on)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task of `work`, which has come to its first wait, or to its end, on return; it is told of as done a turn of the loop later.

    It is the current task meanwhile and has a context of its own, as in any other task. Not to be called from within a task.
    """
    context = copy_context()
    begun = _Begun(work)
    task = loop.create_task(begun, context=context)
    asyncio.tasks._enter_task(loop, task)  # type: ignore[attr-defined, unused-ignore]  # pyright: ignore
    try:
        context.run(begun.begin)
    finally:
        asyncio.tasks._leave_task(loop, task)  # type: ignore[attr-defined, unused-ignore]  # pyright: ignore
    return task


class _Begun(Coroutine[Any, Any, T]):
    """A coroutine of which the first step was made already: what came of it is given to whoever makes the first step now."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._outcome: Any = None  # what the first step waits for, or how it ended
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
        if self._kept and self._ended:  # cancelled when it was over already
            return self.send(None)
        self._kept = False
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("only a task runs it")
