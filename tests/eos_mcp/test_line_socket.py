"""Lines over real socket pairs: answers in pieces, a peer that ends, bytes beyond an answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from eos_mcp.agent_client.line_socket import LineSocket, TooLong

LIMIT = 1 << 20


def run(case: Callable[[LineSocket, socket.socket], Awaitable[None]]) -> None:
    async def whole() -> None:
        ours, peer = socket.socketpair()
        with peer:
            peer.setblocking(False)
            line = LineSocket(ours)
            try:
                async with asyncio.timeout(60):
                    await case(line, peer)
            finally:
                line.close()

    asyncio.run(whole())


async def sent(peer: socket.socket, *pieces: bytes) -> None:
    """Send each piece in a turn of the loop of its own."""
    for piece in pieces:
        await asyncio.get_running_loop().sock_sendall(peer, piece)
        await asyncio.sleep(0)


def test_an_answer_in_pieces_is_one_line_and_the_next_ask_finds_the_next_line() -> None:
    async def case(line: LineSocket, peer: socket.socket) -> None:
        for pieces in ((b"a", b"b\n"), (b"c\n",), (b"d" * 100_000, b"\n")):
            answer, _ = await asyncio.gather(line.ask(b"q\n", LIMIT), sent(peer, *pieces))
            assert answer == b"".join(pieces)[:-1]
        assert peer.recv(100) == b"q\n" * 3 and line.at_rest()

    run(case)


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ((), EOFError),
        ((b"half",), EOFError),
        ((b"x" * LIMIT, b"x"), TooLong),
        ((b"x" * LIMIT, b"\n"), TooLong),
    ],
)
def test_a_peer_that_ends_or_sends_too_much_is_an_error(
    said: tuple[bytes, ...], raised: type[Exception]
) -> None:
    async def case(line: LineSocket, peer: socket.socket) -> None:
        async def end() -> None:
            await sent(peer, *said)
            peer.shutdown(socket.SHUT_WR)

        ended = asyncio.create_task(end())
        with pytest.raises(raised):
            await line.ask(b"q\n", LIMIT)
        ended.cancel()

    run(case)


def test_a_watcher_of_the_time_before_does_not_close_the_socket_under_a_send_that_waits() -> None:
    async def case(line: LineSocket, peer: socket.socket) -> None:
        line.watch(line.close)  # as the pool watches a connection that is kept
        asking = asyncio.create_task(line.ask(b"q" * (8 << 20) + b"\n", LIMIT))
        await asyncio.sleep(0)
        await sent(peer, b"no\n")  # an early answer, while our line is still on its way
        loop, taken = asyncio.get_running_loop(), 0
        while taken <= 8 << 20:
            taken += len(await loop.sock_recv(peer, 1 << 20))
        assert await asking == b"no"

    run(case)


def test_bytes_beyond_an_answer_do_not_keep_the_loop_busy() -> None:
    async def case(line: LineSocket, peer: socket.socket) -> None:
        answer, _ = await asyncio.gather(line.ask(b"q\n", LIMIT), sent(peer, b"a\n"))
        assert answer == b"a"
        await sent(peer, b"more\n")
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert not loop.remove_reader(line.socket)  # it watches no longer
        assert not line.at_rest()

    run(case)
