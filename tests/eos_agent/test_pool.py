"""The agent's pool: a context manager that is entered and left in its threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator
from contextvars import ContextVar

import pytest

from eos_agent.base.pool import Pool

request: ContextVar[str] = ContextVar("request", default="none")


class Lease:
    """A context manager that notes what it sees, and waits in its entry until the test lets it go."""

    def __init__(self) -> None:
        self.entering, self.may_enter, self.left = threading.Event(), threading.Event(), threading.Event()
        self.seen: list[tuple[str, bool]] = []

    @contextlib.contextmanager
    def held(self) -> Generator[str]:
        self.entering.set()
        assert self.may_enter.wait(60)
        self.note()
        try:
            yield "value"
        finally:
            self.note()
            self.left.set()

    def note(self) -> None:
        self.seen.append((request.get(), threading.current_thread() is threading.main_thread()))


def test_it_is_entered_and_left_in_threads_in_the_context_of_the_entry() -> None:
    async def case() -> None:
        pool, lease = Pool(1), Lease()
        lease.may_enter.set()
        async with contextlib.AsyncExitStack() as stack:
            token = request.set("r1")
            assert await stack.enter_async_context(pool.entered(lease.held())) == "value"
            request.reset(token)
        assert lease.seen == [("r1", False)] * 2
        with pytest.raises(ZeroDivisionError):
            async with pool.entered(lease.held()):
                raise ZeroDivisionError
        assert lease.seen[2:] == [("none", False)] * 2
        pool.close()

    asyncio.run(case())


def test_a_caller_that_is_cancelled_at_the_entry_leaves_nothing_entered() -> None:
    async def case() -> None:
        pool, lease = Pool(1), Lease()

        async def enter() -> None:
            async with pool.entered(lease.held()):
                raise AssertionError

        entering = asyncio.create_task(enter())
        assert await asyncio.to_thread(lease.entering.wait, 60)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        lease.may_enter.set()
        assert await asyncio.to_thread(lease.left.wait, 60)
        pool.close()

    asyncio.run(case())
