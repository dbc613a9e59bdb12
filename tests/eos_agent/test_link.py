"""The agent's end of a socket to a process that dies, or takes no more, while a frame is on its way to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest

from eos_agent.ipc import frames as channel
from eos_agent.ipc.frame_socket import FrameSocket

WAIT_S = 30
LARGE = b"x" * (4 << 20)
"""More than the buffer of a socket takes: a send of it waits for its peer."""


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0)


def linked(scenario: Callable[[FrameSocket, socket.socket, asyncio.Event], Awaitable[None]]) -> None:
    """Run it with a link, the other end of its socket, and what is set when the link has seen its peer's
    end.
    """

    async def main() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ended = asyncio.Event()
        link = FrameSocket(ours, lambda _frame: None, ended.set)
        with theirs:
            async with asyncio.timeout(WAIT_S):
                await scenario(link, theirs, ended)
        link.close()

    asyncio.run(main())


async def begun(link: FrameSocket, theirs: socket.socket) -> asyncio.Task[None]:
    """A send of which the peer has a part, and whose rest waits."""
    task = asyncio.create_task(link.send({"id": 1}, LARGE))
    await until(lambda: _readable(theirs) > 0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def _readable(sock: socket.socket) -> int:
    with contextlib.suppress(BlockingIOError):
        return len(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return 0


@pytest.mark.parametrize("who", ["its peer", "its owner"])
def test_a_send_that_waits_for_room_fails_once_its_link_is_closed_and_so_do_those_behind_it(who: str) -> None:
    """A file helper that was killed while 1 MiB was on its way to it left that request without an answer for
    good.
    """

    async def scenario(link: FrameSocket, theirs: socket.socket, ended: asyncio.Event) -> None:
        first = await begun(link, theirs)
        second = asyncio.create_task(link.send({"id": 2}))
        if who == "its peer":
            theirs.close()
            await ended.wait()
        else:
            link.close()
        for send in (first, second, asyncio.create_task(link.send({"id": 3}))):
            with pytest.raises(BrokenPipeError):
                await send

    linked(scenario)


def test_a_send_of_which_nothing_went_out_fails_too_once_the_peer_is_gone() -> None:
    async def scenario(link: FrameSocket, theirs: socket.socket, ended: asyncio.Event) -> None:
        for send in [
            asyncio.create_task(link.send({"id": number}, b"x" * (16 << 10))) for number in range(100)
        ]:
            await asyncio.wait([send], timeout=0)
        blocked = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for _ in range(10):
            await asyncio.sleep(0)
        blocked = [task for task in blocked if not task.done()]
        assert blocked
        theirs.close()
        await ended.wait()
        found = await asyncio.gather(*blocked, return_exceptions=True)
        assert {type(error) for error in found} <= {BrokenPipeError, type(None)} and BrokenPipeError in {
            type(error) for error in found
        }

    linked(scenario)


def test_the_frame_of_a_send_that_is_cancelled_goes_out_whole_and_those_behind_it_are_read() -> None:
    async def scenario(link: FrameSocket, theirs: socket.socket, ended: asyncio.Event) -> None:
        first = await begun(link, theirs)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(link.send({"id": 2}, b"y"))
        theirs.setblocking(False)
        decoder, frames = channel.FrameDecoder(), list[channel.Frame]()
        while len(frames) < 2:
            raw = await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
            frames += decoder.feed(raw)
        assert [(frame.message["id"], frame.data) for frame in frames] == [(1, LARGE), (2, b"y")]
        await second
        assert not ended.is_set()

    linked(scenario)
