"""A task that begins at once: what it sees of itself, how it ends, how it is cancelled."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from eos_agent.base import eager

PLACE: ContextVar[str] = ContextVar("place", default="outside")


def in_callback(call: Callable[[asyncio.AbstractEventLoop], Any]) -> Any:
    """What `call(loop)` gives, made from a callback of a loop as a protocol's are; a task among it is
    awaited.
    """

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(lambda: made.set_result(call(loop)))
        found = await made
        return await found if isinstance(found, asyncio.Task) else found

    return asyncio.run(main())


def test_it_has_come_to_its_first_wait_before_start_returns_and_goes_on_as_any_task() -> None:
    seen: list[str] = []

    async def work(gate: asyncio.Future[None]) -> str:
        seen.append("begun")
        await gate
        seen.append("resumed")
        await asyncio.sleep(0)
        return "done"

    def call(loop: asyncio.AbstractEventLoop) -> asyncio.Task[str]:
        gate: asyncio.Future[None] = loop.create_future()
        task = eager.start(loop, work(gate))
        assert seen == ["begun"] and not task.done()
        gate.set_result(None)
        return task

    assert in_callback(call) == "done" and seen == ["begun", "resumed"]


@pytest.mark.parametrize("waits", [True, False])
def test_it_is_the_current_task_from_its_first_step_on_so_that_a_timeout_holds(waits: bool) -> None:
    async def work() -> bool:
        me = asyncio.current_task()
        async with asyncio.timeout(30):
            if waits:
                await asyncio.sleep(0)
        return me is not None and me is asyncio.current_task()

    assert in_callback(lambda loop: eager.start(loop, work())) is True


def test_a_timeout_that_began_in_the_first_step_ends_a_later_one() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "too late"
        return "never"

    assert in_callback(lambda loop: eager.start(loop, work())) == "too late"


def test_what_it_raises_in_its_first_step_or_later_is_the_task_s() -> None:
    async def work(waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise KeyError(waits)

    def call(waits: bool, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return eager.start(loop, work(waits))

    for waits in (False, True):
        with pytest.raises(KeyError, match=str(waits)):
            in_callback(functools.partial(call, waits))


def test_cancelled_before_the_loop_turned_it_learns_where_it_waits() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("raised")
            raise

    def call(loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        task = eager.start(loop, work())
        assert task.cancel()
        return task

    with pytest.raises(asyncio.CancelledError):
        in_callback(call)
    assert seen == ["raised"]


def test_it_has_a_context_of_its_own_in_all_of_its_steps() -> None:
    async def work() -> tuple[str, str]:
        token = PLACE.set("inside")
        await asyncio.sleep(0)
        later = PLACE.get()
        PLACE.reset(token)
        return later, PLACE.get()

    def call(loop: asyncio.AbstractEventLoop) -> asyncio.Task[tuple[str, str]]:
        task = eager.start(loop, work())
        assert PLACE.get() == "outside"
        return task

    assert in_callback(call) == ("inside", "outside")
