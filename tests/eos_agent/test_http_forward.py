"""/forward: real servers on real sockets behind it, in this process for the shared network, in sessions for
isolated ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import h11
import pytest

from eos_agent.http import exchange, http_server, peer
from eos_agent.http.answer import HttpRefusal
from eos_agent.http.message import BadMessage
from eos_agent.http.proxy import ProxyTarget, parse_route
from tests.eos_agent.agent_process import TOKEN, Agent
from tests.eos_agent.bridge import wait_until_empty
from tests.eos_agent.raw_http import HELLO, ask, reason, request, server, status
from tests.eos_agent.web_server import web
from tests.processes import children_of


async def answer_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HELLO)
    await writer.drain()


# What is understood


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("/forward/shared/8000/a/b?c=d&e", ProxyTarget(None, 8000, "/forward/shared/8000", "/a/b?c=d&e")),
        ("/forward/shared/8000", ProxyTarget(None, 8000, "/forward/shared/8000", "/")),
        ("/forward/shared/8000/", ProxyTarget(None, 8000, "/forward/shared/8000", "/")),
        ("/forward/shared/8000?q", ProxyTarget(None, 8000, "/forward/shared/8000", "/?q")),
        ("/forward/shared/8000//%2e%2e/..;/%00", ProxyTarget(None, 8000, "/forward/shared/8000", "//%2e%2e/..;/%00")),  # noqa: E501
        ("/forward/isolated=0a1/1/x", ProxyTarget("0a1", 1, "/forward/isolated=0a1/1", "/x")),
        ("/forward/isolated%3D0a1/65535/", ProxyTarget("0a1", 65535, "/forward/isolated%3D0a1/65535", "/")),
        *[
            (f"/forward/{bad}", None)
            for bad in ("", "shared", "shared/", "shared/0/", "shared/65536/", "shared/-1/", "shared/x/", "shared/+80/", "shared/80 /", "shared/08000000/",  # noqa: E501
                        "shared=/80/", "isolated/80/", "isolated=/80/", "isolated=a/", "isolated=a/0/", "other/80/", "/80/", "shared/٣/", "Shared/80/")  # noqa: E501
        ],
    ],
)  # fmt: skip
def test_a_path_names_a_network_a_port_and_what_goes_on_as_it_is(
    target: str, route: ProxyTarget | None
) -> None:
    if route is not None:
        assert parse_route(target) == route
        return
    with pytest.raises(HttpRefusal) as refused:
        parse_route(target)
    assert refused.value.status == 400


SMUGGLING = {
    "two lengths": ["Content-Length: 5", "Content-Length: 6"],
    "two equal lengths": ["Content-Length: 5", "Content-Length: 5"],
    "a list of lengths": ["Content-Length: 5, 5"],
    "a signed length": ["Content-Length: +5"],
    "a length of another alphabet": ["Content-Length: \u00b2"],
    "no length": ["Content-Length:"],
    "a length and a coding": ["Content-Length: 5", "Transfer-Encoding: chunked"],
    "a coding and a length": ["Transfer-Encoding: chunked", "Content-Length: 5"],
    "a coding that nobody knows": ["Transfer-Encoding: xchunked"],
    "a coding twice": ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
    "a list of codings": ["Transfer-Encoding: identity, chunked"],
    "a vertical tab in a coding": ["Transfer-Encoding: \x0bchunked"],
    "a space before the colon": ["Transfer-Encoding : chunked"],
    "a folded line": ["X: 1", " Transfer-Encoding: chunked"],
    "a bare line feed": ["X: 1\nTransfer-Encoding: chunked"],
    "a bare carriage return": ["X: 1\rTransfer-Encoding: chunked"],
    "a zero byte": ["X: \x00"],
    "an empty name": [": 1"],
    "no colon": ["Transfer-Encoding"],
    "two hosts": ["Host: localhost"],
    "a length of nineteen digits": ["Content-Length: 1000000000000000000"],
    "a control character": ["X: \x01"],
}


@pytest.mark.parametrize("fields", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_what_two_readers_could_take_for_two_things_reaches_no_server(
    short_dir: str, fields: list[str]
) -> None:
    reached = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reached
        reached += 1
        await answer_hello(reader, writer)

    async def case() -> None:
        async with web(short_dir) as (_, port), server(count) as behind:
            raw = "\r\n".join(
                [f"POST /forward/shared/{behind}/ HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""]
            ).encode("latin-1")
            assert status(await ask(port, raw + b"0\r\n\r\nGET /secret HTTP/1.1\r\n\r\n")) == 400
            assert status(await ask(port, request(f"/forward/shared/{behind}/"))) == 200

    asyncio.run(case())
    assert reached == 1


@pytest.mark.parametrize(
    "raw",
    [
        "GET /x HTTP/1.1\r\n\r\n",  # no Host
        "GET http://127.0.0.1/x HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /x HTTP/1.2\r\nHost: a\r\n\r\n",
        "GET /x HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET  /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /x\ty HTTP/1.1\r\nHost: a\r\n\r\n",
        "G(T /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\n" + "X: 1\r\n" * 200 + "\r\n",
    ],
)
def test_a_head_that_is_none_is_refused(raw: str) -> None:
    with pytest.raises(BadMessage):
        _ = peer.parse_request(h11.Connection(h11.SERVER), raw.encode("latin-1")).body


@pytest.mark.parametrize(
    "raw",
    [
        "HTTP/1.1 99 X\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "hello\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: b\r\n\r\n",
    ],
)
def test_an_answer_that_is_none_is_refused(raw: str) -> None:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    with pytest.raises(BadMessage):
        peer.parse_response(connection, raw.encode("latin-1")).body("GET")


def test_an_error_text_does_not_quote_the_line_that_was_refused(short_dir: str) -> None:
    async def case() -> bytes:
        async with web(short_dir) as (_, port):
            return await ask(port, request("/health", f"X-Eos-Token : {TOKEN}"))

    shown = asyncio.run(case())
    assert (status(shown), reason(shown)) == (400, "bad_request") and TOKEN.encode() not in shown


# What goes over


def test_bytes_of_a_path_that_are_not_ascii_are_escaped_and_fields_keep_theirs(short_dir: str) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(HELLO)

    async def case() -> bytes:
        async with web(short_dir) as (_, port), server(serve) as behind:
            cookie = "Cookie: a=1; eos-0123456789ab=x;"
            return await ask(port, request(f"/forward/shared/{behind}/ü?ö=%C3%A4", "x-LAND: Köln", cookie))

    assert status(asyncio.run(case())) == 200
    assert heard[0].startswith(b"GET /%C3%BC?%C3%B6=%C3%A4 HTTP/1.1\r\n")
    assert "\r\nx-LAND: Köln\r\nCookie: a=1\r\n".encode() in heard[0]


def test_the_prefix_goes_the_query_stays_and_only_end_to_end_fields_pass_in_both_directions(
    short_dir: str,
) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            b"HTTP/1.1 201 Made it\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: "
            b"5\r\nX-Hop: 1\r\nSet-Cookie: a=1\r\n"
            b"Set-Cookie: b=2\r\nLocation: /elsewhere\r\n\r\nok and nothing of this"
        )

    async def case() -> tuple[bytes, int]:
        async with web(short_dir, origins=["http://page.example"]) as (_, port), server(serve) as behind:
            raw = request(
                f"/forward/shared/{behind}/a%2Fb/../c?x=1&y=%20",
                "Connection: X-Mine, close",
                "X-Mine: 1",
                "TE: trailers",
                "Proxy-Authorization: Basic eDp5",
                "X-Forwarded-For: 6.6.6.6",
                "X-Forwarded-Host: forged",
                "Forwarded: for=6.6.6.6",
                "Authorization: Basic app:own",
                "Cookie: c=1",
                "Accept: a",
                "Accept: b",
                "Origin: http://page.example",
            )
            return await ask(port, raw), behind

    shown, behind = asyncio.run(case())
    first, *fields = heard[0].decode().split("\r\n")[:-2]
    assert first == "GET /a%2Fb/../c?x=1&y=%20 HTTP/1.1"
    assert fields == [
        f"Host: 127.0.0.1:{behind}",
        "Authorization: Basic app:own",
        "Cookie: c=1",
        "Accept: a",
        "Accept: b",
        "Origin: http://page.example",
        "X-Forwarded-Host: 127.0.0.1:7001",
        "X-Forwarded-Proto: http",
        f"X-Forwarded-Prefix: /forward/shared/{behind}",
        "Connection: close",
    ]
    head, _, body = shown.partition(b"\r\n\r\n")
    assert head.decode().split("\r\n") == [
        "HTTP/1.1 201 Made it",
        "Set-Cookie: a=1",
        "Set-Cookie: b=2",
        "Location: /elsewhere",
        "Content-Length: 2",
        "Connection: close",
    ]
    assert body == b"ok"


CHUNKED_BODY = b'3;ext="1"\r\nabc\r\n0a\r\n0123456789\r\n0\r\nTrailer: gone\r\n\r\n'


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_chunked_bodies_come_as_chunks_or_for_an_old_client_as_they_are(short_dir: str, version: str) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heard.append(head + (await reader.readuntil(b"0\r\n\r\n") if b"chunked" in head else b""))
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + CHUNKED_BODY
            + b"HTTP/1.1 200 OK\r\n\r\nnot yours"
        )

    async def case() -> bytes:
        async with web(short_dir) as (_, port), server(serve) as behind:
            fields, body = (["Transfer-Encoding: Chunked"], CHUNKED_BODY) if version == "1.1" else ([], b"")
            return await ask(
                port, request(f"/forward/shared/{behind}/", *fields, method="PUT", body=body, version=version)
            )

    head, _, body = asyncio.run(case()).partition(b"\r\n\r\n")
    if version == "1.1":
        assert heard[0].endswith(
            b"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"
        )
        assert b"Transfer-Encoding: chunked" in head and body == b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"
    else:
        assert b"Transfer-Encoding" not in head and body == b"abc0123456789"


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"-1\r\n",
        b"1" * 40 + b"\r\n",
        b"3\nabc\r\n0\r\n\r\n",
        b"\r\n",
        b"x" * 70000,
    ],
)
def test_a_malformed_chunk_ends_the_request(short_dir: str, body: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"HTTP/1.1 200" not in await reader.read()

    async def case() -> None:
        async with web(short_dir) as (_, port), server(serve) as behind:
            raw = request(
                f"/forward/shared/{behind}/", "Transfer-Encoding: chunked", method="POST", body=body
            )
            assert status(await ask(port, raw)) == 400

    asyncio.run(case())


@pytest.mark.parametrize(
    ("method", "answer", "shown"),
    [
        (
            "HEAD",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\n",
        ),
        (
            "GET",
            b"HTTP/1.1 204 None\r\nX: 1\r\n\r\n",
            b"HTTP/1.1 204 None\r\nX: 1\r\nConnection: close\r\n\r\n",
        ),
        (
            "GET",
            b"HTTP/1.1 304 Same\r\nContent-Length: 7\r\n\r\n",
            b"HTTP/1.1 304 Same\r\nContent-Length: 7\r\nConnection: close\r\n\r\n",
        ),
        (
            "GET",
            b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
        ),
        (
            "HEAD",
            b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n",
            b"HTTP/1.1 204 No\r\nConnection: close\r\n\r\n",
        ),
        (
            "GET",
            b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + HELLO,
            HELLO.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        ),
        (
            "GET",
            b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 \r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
    ],
)
def test_answers_without_a_body_and_those_that_end_with_the_connection_end(
    short_dir: str, method: str, answer: bytes, shown: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def case() -> bytes:
        async with web(short_dir) as (_, port), server(serve) as behind:
            return await ask(port, request(f"/forward/shared/{behind}/", method=method))

    assert asyncio.run(case()) == shown


def test_a_client_that_waits_for_100_continue_gets_it_when_the_server_is_there(short_dir: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect" not in head and await reader.readexactly(4) == b"body"
        writer.write(HELLO)

    async def case() -> None:
        async with web(short_dir) as (_, port), server(serve) as behind:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                request(
                    f"/forward/shared/{behind}/", "Content-Length: 4", "Expect: 100-continue", method="PUT"
                )
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"body")
            assert (await reader.read()).endswith(b"hello")
            writer.close()
            assert status(await ask(port, request(f"/forward/shared/{behind}/", "Expect: miracles"))) == 417

    asyncio.run(case())


def test_a_server_may_answer_before_it_has_the_whole_request(short_dir: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too much\r\nContent-Length: 2\r\n\r\nno")

    async def case() -> bytes:
        async with web(short_dir) as (_, port), server(serve) as behind:
            return await ask(
                port,
                request(
                    f"/forward/shared/{behind}/", "Content-Length: 99999999", method="PUT", body=b"x" * 100
                ),
            )

    assert asyncio.run(case()).endswith(b"no")


def test_one_request_is_served_for_each_connection_and_the_next_in_line_is_not_done_by_halves(
    short_dir: str,
) -> None:
    heard: list[bytes] = []

    async def case() -> bytes:
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(HELLO)
            heard.append(await reader.read())
            over.set()

        async with web(short_dir) as (_, port), server(serve) as behind:
            shown = await ask(
                port, request(f"/forward/shared/{behind}/one") + request(f"/forward/shared/{behind}/two")
            )
            await over.wait()
            return shown

    shown = asyncio.run(case())
    assert shown.count(b"HTTP/1.1 200") == 1 and b"Connection: close" in shown
    assert heard[0].startswith(b"GET /one ") and heard[1:] == [b""]


def test_an_answer_that_breaks_off_breaks_off_for_the_client_too(short_dir: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")

    async def case() -> bytes:
        async with web(short_dir) as (_, port), server(serve) as behind:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(f"/forward/shared/{behind}/"))
            shown = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := await reader.read(1000):
                    shown += piece
            writer.close()
            return shown

    assert not asyncio.run(case()).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    ("head", "breaks_off"),
    [
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", False),
        ("Content-Length: 9\r\n\r\nhello", False),
        ("\r\nhello", True),
        ("\r\nhello", False),
    ],
)
def test_an_answer_that_was_not_whole_does_not_end_as_a_whole_one_does(
    short_dir: str, head: str, version: str, breaks_off: bool
) -> None:
    """A client that takes the end of the connection for that of the body would not notice."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + head.encode())
        if breaks_off:
            await shown.wait()
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            writer.transport.abort()

    async def case() -> bytes:
        async with web(short_dir) as (_, port), server(serve) as behind:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(f"/forward/shared/{behind}/", version=version))
            try:
                found = await reader.readuntil(b"hello")
                shown.set()
                return found + await reader.read()
            finally:
                writer.close()

    shown = asyncio.Event()
    if head.startswith("\r\n") and not breaks_off:
        assert asyncio.run(case()).endswith(b"\r\n\r\nhello")
    else:
        with pytest.raises(ConnectionResetError):
            asyncio.run(case())


# Tunnels


def test_after_101_bytes_pass_both_ways_and_each_side_ends_its_own(short_dir: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"\r\nConnection: Upgrade\r\nUpgrade: eos-echo\r\n" in head
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: eos-echo\r\n\r\nearly "
        )
        while piece := await reader.read(1 << 16):
            writer.write(piece.upper())
            await writer.drain()
        writer.write(b" last words" * 2000)  # after the client has ended its side

    async def case() -> bytes:
        async with web(short_dir) as (_, port), server(serve) as behind:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                request(f"/forward/shared/{behind}/", "Connection: keep-alive, Upgrade", "Upgrade: eos-echo")
                + b"sent early "
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert (
                head
                == b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: eos-echo\r\n\r\n"
            )
            writer.write(b"ping")
            writer.write_eof()
            found = await reader.read()
            writer.close()
            return found

    assert asyncio.run(case()) == b"early SENT EARLY PING" + b" last words" * 2000


@pytest.mark.parametrize("framing", ["Content-Length: 4", "Transfer-Encoding: chunked"])
def test_what_a_client_sends_behind_the_body_of_an_upgrade_goes_into_the_tunnel(
    short_dir: str, framing: str
) -> None:
    body = b"body" if "Length" in framing else b"4\r\nbody\r\n0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(body)) == body
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        writer.write((await reader.read()).upper())

    async def case() -> bytes:
        async with web(short_dir) as (_, port), server(serve) as behind:
            fields = ("Connection: Upgrade", "Upgrade: x", framing)
            head = request(f"/forward/shared/{behind}/", *fields, method="POST")
            return await ask(port, head + body + b"early", end=True)

    assert asyncio.run(case()).endswith(b"\r\n\r\nEARLY")


def test_a_tunnel_is_over_when_the_server_is_gone_and_the_client_says_nothing(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "GONE_POLL_S", 0.02)

    async def case() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\nlast")
            writer.write_eof()
            await reader.read()

        incoming: asyncio.Queue[peer.HttpPeer] = asyncio.Queue()
        front = await asyncio.start_server(
            lambda reader, writer: incoming.put_nowait(peer.client(reader, writer)), "127.0.0.1", 0
        )
        async with asyncio.timeout(60), server(serve) as behind:
            reader, writer = await asyncio.open_connection("127.0.0.1", front.sockets[0].getsockname()[1])
            writer.write(request("/", "Connection: Upgrade", "Upgrade: x"))
            client, beyond = (
                await incoming.get(),
                peer.server(*await asyncio.open_connection("127.0.0.1", behind)),
            )
            head = await client.request()
            run = asyncio.create_task(exchange.Exchange(head, client, beyond, 60).run("/", [("Host", "a")]))
            found = await reader.read()
            assert not run.done()  # it has only ended its own side, as far as anybody knows
            beyond.writer.transport.abort()  # what the end of a session does
            await run
            for one in (writer, client.writer):
                one.close()
            front.close()
            return found

    assert asyncio.run(case()).endswith(b"last")


def test_an_upgrade_that_nobody_asked_for_is_no_answer(short_dir: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Upgrade" not in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")

    async def case() -> None:
        async with web(short_dir) as (_, port), server(serve) as behind:
            shown = await ask(
                port, request(f"/forward/shared/{behind}/", "Upgrade: x")
            )  # without Connection: Upgrade
            assert (status(shown), reason(shown)) == (502, "bad_response")

    asyncio.run(case())


# What is refused


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 O", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000 + b"\r\n\r\n"],
)
def test_a_server_that_speaks_no_http_is_a_bad_gateway(short_dir: str, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def case() -> None:
        async with web(short_dir) as (_, port), server(serve) as behind:
            shown = await ask(port, request(f"/forward/shared/{behind}/"))
            assert (status(shown), reason(shown)) == (502, "bad_response")

    asyncio.run(case())


def test_who_does_not_listen_is_502_and_who_does_not_answer_504(short_dir: str) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def case() -> None:
        with socket.socket() as full, socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(3)]
            for each in waiting:
                each.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    each.connect(full.getsockname())
            try:
                async with (
                    web(short_dir, connect_timeout_s=0.2, response_timeout_s=0.2) as (_, port),
                    server(silent) as behind,
                ):
                    for target, expected in (
                        (nobody.getsockname()[1], (502, "connect_failed")),
                        (full.getsockname()[1], (504, "connect_timed_out")),
                        (behind, (504, "response_timed_out")),
                    ):
                        shown = await ask(port, request(f"/forward/shared/{target}/"))
                        assert (status(shown), reason(shown)) == expected
                    shown = await ask(port, request(f"/forward/shared/{port}/health"))
                    assert (status(shown), reason(shown)) == (403, "own_port")
            finally:
                for each in waiting:
                    each.close()

    asyncio.run(case())


def test_a_server_of_the_other_loopback_address_is_found(short_dir: str) -> None:
    async def case() -> None:
        async with web(short_dir) as (_, port), server(answer_hello, "::1") as behind:
            assert (await ask(port, request(f"/forward/shared/{behind}/"))).endswith(b"hello")

    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    asyncio.run(case())


def test_hosts_are_checked_and_so_are_origins_unless_configured(short_dir: str) -> None:
    async def case() -> None:
        async with (
            web(short_dir, origins=["http://page.example"]) as (_, port),
            server(answer_hello) as behind,
        ):
            raw = request(f"/forward/shared/{behind}/", "Origin: http://page.example")
            assert status(await ask(port, raw)) == 200
            for host in ("localhost", "LOCALHOST:80", "[::1]:7001", "[::1]", "10.0.0.1", "localhost:"):
                assert status(await ask(port, raw.replace(b"127.0.0.1:7001", host.encode()))) == 200, host
            for host in ("page.example", "page.example:80", "[::1]page.example", "[::1", "[localhost]", "[127.0.0.1]", "::1", "localhost:80:80", "localhost:x",  # noqa: E501
                         "localhost.page.example", "127.0.0.1@page.example", "0x7f.1", ":80"):  # fmt: skip
                assert status(await ask(port, raw.replace(b"127.0.0.1:7001", host.encode()))) == 403, host
                origin = request("/health", f"Origin: http://{host}")
                assert status(await ask(port, origin)) == 403, host
            for path in ("/forward", "/forwarded/shared/1/", "/"):
                assert status(await ask(port, request(path))) == 404

    asyncio.run(case())


def test_tokens_are_asked_for_as_configured_and_go_no_further(short_dir: str) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(HELLO)

    async def case() -> None:
        async with web(short_dir) as (_, port), server(serve) as behind:
            assert status(await ask(port, request(f"/forward/shared/{behind}/"))) == 200
            shown = await ask(
                port, request("/forward/isolated=00/80/")
            )  # from an address of the sandbox's own
            assert (status(shown), reason(shown)) == (
                401,
                "unauthorized",
            ) and b"WWW-Authenticate: Bearer" in shown
        async with web(short_dir, auth="token") as (_, port), server(serve) as behind:
            for fields in (
                [],
                ["Authorization: Bearer no"],
                ["Authorization: Basic " + TOKEN],
                ["X-Eos-Token: x"],
                [f"Cookie: {TOKEN}"],
            ):
                assert status(await ask(port, request(f"/forward/shared/{behind}/", *fields))) == 401, fields
            heard.clear()
            assert (
                status(
                    await ask(port, request(f"/forward/shared/{behind}/", f"authorization: bearer  {TOKEN} "))
                )
                == 200
            )
            assert (
                status(
                    await ask(
                        port,
                        request(
                            f"/forward/shared/{behind}/", f"X-Eos-Token: {TOKEN}", "Authorization: Bearer app"
                        ),
                    )
                )
                == 200
            )

    asyncio.run(case())
    assert len(heard) == 2 and TOKEN.encode() not in b"".join(heard)
    assert b"uthorization" not in heard[0] and b"\r\nAuthorization: Bearer app\r\n" in heard[1]


def test_forwarded_requests_have_a_limit_of_their_own_and_a_draining_agent_takes_none(short_dir: str) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.release()
        await reader.read()

    held = asyncio.Semaphore(0)

    async def case() -> None:
        async with web(short_dir, max_concurrent_connections=2) as (one, port), server(silent) as behind:
            tasks = [asyncio.create_task(ask(port, request(f"/forward/shared/{behind}/"))) for _ in range(2)]
            for _ in tasks:
                await held.acquire()
            shown = await ask(port, request(f"/forward/shared/{behind}/"))
            assert (status(shown), reason(shown)) == (429, "max_concurrent_connections")
            assert status(await ask(port, request("/nothing"))) == 404
            one.draining = True
            assert status(await ask(port, request(f"/forward/shared/{behind}/"))) == 503
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(case())


def test_slow_clients_get_an_error(short_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "READ_TIMEOUT_S", 0.1)
    monkeypatch.setattr(exchange, "BODY_STALL_S", 0.1)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def case() -> None:
        async with web(short_dir) as (_, port), server(swallow) as behind:
            assert status(await ask(port, b"GET /health HTTP/1.1\r\nHost: local")) == 408
            assert (
                status(
                    await ask(
                        port,
                        request(
                            "/files/list",
                            f"X-Eos-Token: {TOKEN}",
                            "Content-Length: 10",
                            method="POST",
                            body=b"{",
                        ),
                    )
                )
                == 408
            )
            assert (
                status(
                    await ask(
                        port,
                        request(f"/forward/shared/{behind}/", "Content-Length: 10", method="POST", body=b"{"),
                    )
                )
                == 408
            )
            long = request("/health", "X: " + "x" * 70000)
            assert status(await ask(port, long)) == 431
            assert status(await ask(port, request("/health", *["X: 1"] * 200))) == 431

    asyncio.run(case())


@pytest.mark.parametrize("how", ["reset", "ended"])
def test_a_client_that_left_frees_a_silent_server_and_one_that_only_ended_its_side_is_served(
    short_dir: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(exchange, "GONE_POLL_S", 0.02)

    async def case() -> bytes:
        asked, ended, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            if how == "ended":
                await go.wait()
                writer.write(HELLO)
            else:
                assert await reader.read() == b""
                ended.set()

        async with web(short_dir, response_timeout_s=3600) as (one, port), server(serve) as behind:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(f"/forward/shared/{behind}/"))
            await asked.wait()
            if how == "ended":
                writer.write_eof()
                for _ in range(5):
                    await asyncio.sleep(0.02)
                go.set()
                found = await reader.read()
                writer.close()
                return found
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            writer.transport.abort()
            await ended.wait()
            while one.forwarding:
                await asyncio.sleep(0.01)
            return b"hello"

    assert asyncio.run(case()).endswith(b"hello")


# Sessions


WEBSOCKET = """
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
while True:
    peer = server.accept()[0]
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += peer.recv(1)
    fields = dict(line.split(": ", 1) for line in head.decode().split("\\r\\n")[1:-2])
    if "Sec-WebSocket-Key" not in fields:
        body = repr(sorted(fields.items())).encode()
        peer.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + head.split(b" ")[1] + b" " + body)
        peer.close()
        continue
    key = base64.b64encode(hashlib.sha1(fields["Sec-WebSocket-Key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    peer.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: " + key + b"\\r\\n\\r\\n")
    stream = peer.makefile("rb")
    while True:
        start = stream.read(2)
        if len(start) < 2:
            break
        mask, masked = stream.read(4), stream.read(start[1] & 127)
        text = bytes(byte ^ mask[i % 4] for i, byte in enumerate(masked))
        peer.sendall(bytes([start[0], len(text)]) + text)
        if start[0] & 15 == 8:
            break
    peer.close()
"""  # noqa: E501


class Http:
    """The HTTP side of an agent, by raw sockets."""

    def __init__(self, agent: Agent) -> None:
        with open(agent.settings["endpoint_path"]) as file:
            self.address = tuple(json.load(file)["http"])

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 30)

    def ask(self, path: str, *fields: str, method: str = "GET", body: bytes = b"") -> bytes:
        with self.connect() as sock:
            sock.sendall(request(path, f"X-Eos-Token: {TOKEN}", *fields, method=method, body=body))
            with sock.makefile("rb") as reader:
                return reader.read()


def start_server(agent: Agent, session: str, script: str) -> str:
    agent.call("file_write", path="server.py", content=script, workspace_session_id=session)
    started = agent.call(
        "exec_command", cmd="exec python3 server.py", tty=False, workspace_session_id=session, yield_time_ms=0
    )
    lines: dict[str, Any] = {"output": ""}
    while "up" not in lines["output"]:
        lines = agent.call("read_command_lines", command_session_id=started["command_session_id"])
        assert "Traceback" not in lines["output"], lines["output"]
    return str(started["command_session_id"])


def read_exactly(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = sock.recv(count - len(found))
        assert piece, found
        found += piece
    return found


@pytest.mark.parametrize(
    "uid",
    [
        pytest.param(None, marks=pytest.mark.needs("overlay")),
        pytest.param(65534, marks=pytest.mark.needs("uid", "userns")),
    ],
)
def test_isolated_sessions_are_reached_by_their_ids_over_http_and_websocket_and_hang_up_when_they_end(
    start_agent: Callable[..., Agent], uid: int | None
) -> None:
    agent = start_agent(uid=uid)
    web_side = Http(agent)
    made = [agent.call("create_workspace_session", network_profile="isolated") for _ in range(2)]
    assert [(one["network"], one["address"]) for one in made] == [
        ("no_egress", "10.244.0.2"),
        ("no_egress", "10.244.0.3"),
    ]
    ids = [str(one["workspace_session_id"]) for one in made]
    for session in ids:
        start_server(agent, session, WEBSOCKET)
    for session in ids:
        shown = web_side.ask(f"/forward/isolated={session}/8000/page?a=b")
        assert (
            b"\r\n\r\n/page?a=b [" in shown
            and f"('X-Forwarded-Prefix', '/forward/isolated={session}/8000')".encode() in shown
        )
        assert TOKEN.encode() not in shown
    with web_side.connect() as sock:
        handshake = [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ]
        sock.sendall(
            request(f"/forward/isolated={ids[0]}/8000/", f"Authorization: Bearer {TOKEN}", *handshake)
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += read_exactly(sock, 1)
        assert (
            head.startswith(b"HTTP/1.1 101 ")
            and b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
        )  # RFC 6455, section 1.3
        for text in (b"hello", b"again"):
            sock.sendall(
                bytes([0x81, 0x80 | len(text)])
                + b"mask"
                + bytes(byte ^ b"mask"[i % 4] for i, byte in enumerate(text))
            )
            assert read_exactly(sock, 2 + len(text)) == bytes([0x81, len(text)]) + text
        for found in agent.call("list_commands")["commands"]:
            agent.call("signal_command", command_session_id=found["command_session_id"], signal="KILL")
        assert sock.recv(1) == b""  # its server is gone
        for session in ids:
            agent.call("destroy_workspace_session", workspace_session_id=session, grace_s=20)
        wait_until_empty(
            min(children_of(agent.pid))
        )  # our end of the tunnel is open: that must not keep the session's network
    shown = web_side.ask(f"/forward/isolated={ids[0]}/8000/")
    assert (status(shown), reason(shown)) == (404, "session_not_found")


@pytest.mark.needs("overlay")
def test_nothing_is_forwarded_to_any_port_of_the_agent(shared_agent: Agent) -> None:
    web_side = Http(shared_agent)
    with open(shared_agent.settings["endpoint_path"]) as file:
        endpoint = json.load(file)
    for name in ("tcp", "http"):
        shown = web_side.ask(f"/forward/shared/{endpoint[name][1]}/")
        assert (status(shown), reason(shown)) == (403, "own_port")


@pytest.mark.needs("overlay")
def test_sessions_that_cannot_be_reached_are_distinguished(shared_agent: Agent) -> None:
    web_side, session = Http(shared_agent), shared_agent.session()
    shown = web_side.ask(f"/forward/isolated={session}/8000/")
    assert (status(shown), reason(shown)) == (403, "no_address")
    shown = web_side.ask("/forward/isolated=no-such-session/8000/")
    assert (status(shown), reason(shown)) == (404, "session_not_found")
    isolated = shared_agent.session(network_profile="isolated")
    shown = web_side.ask(f"/forward/isolated={isolated}/8000/")
    assert (status(shown), reason(shown)) == (502, "connect_failed")
    with web_side.connect() as sock:
        sock.sendall(request(f"/forward/isolated={isolated}/8000/"))
        assert status(sock.recv(1000)) == 401
    for one in (session, isolated):
        shared_agent.call("destroy_workspace_session", workspace_session_id=one)


@pytest.mark.needs("overlay")
def test_an_agent_that_stops_hangs_up_on_tunnels_and_has_written_no_token_anywhere(agent: Agent) -> None:
    web_side = Http(agent)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        path = f"/forward/shared/{listener.getsockname()[1]}/"
        with web_side.connect() as sock:
            sock.sendall(request(path, f"Authorization: Bearer {TOKEN}", "Connection: Upgrade", "Upgrade: x"))
            peer = listener.accept()[0]
            peer.settimeout(30)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += read_exactly(peer, 1)
            peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\nhello")
            shown = b""
            while not shown.endswith(b"hello"):
                shown += read_exactly(sock, 1)
            for bad in ("/forward/nowhere", f"/forward/shared/0/{TOKEN}"):
                assert status(web_side.ask(bad)) == 400
            assert agent.stop() == 0
            for end in (sock, peer):
                with end, contextlib.suppress(ConnectionResetError):
                    assert end.recv(1) == b""
    assert TOKEN.encode() not in head and TOKEN not in "".join(agent.log)
    for folder, _, names in os.walk(agent.folder):
        for name in names:
            path = os.path.join(folder, name)
            if path != agent.settings["token_file"] and os.path.isfile(path):
                with open(path, "rb") as file:
                    assert TOKEN.encode() not in file.read(), path


BULK = """
import hashlib, http.server

class Bulk(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(128 << 20))
        self.end_headers()
        for i in range(128):
            self.wfile.write(bytes([i]) * (1 << 20))

    def do_PUT(self):
        left, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            digest.update(piece)
            left -= len(piece)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(digest.hexdigest().encode())

server = http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Bulk)
print("up", flush=True)
server.serve_forever()
"""


def peak_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


@pytest.mark.needs("overlay")
def test_bodies_of_any_size_pass_in_constant_memory(agent: Agent) -> None:
    session, web_side = agent.session(network_profile="isolated"), Http(agent)
    start_server(agent, session, BULK)
    expected, sent = hashlib.sha256(), hashlib.sha256()
    for i in range(128):
        expected.update(bytes([i]) * (1 << 20))
    before = peak_kib(agent.pid)
    with web_side.connect() as sock, sock.makefile("rb") as reader:
        sock.sendall(request(f"/forward/isolated={session}/8000/", f"X-Eos-Token: {TOKEN}"))
        while reader.readline() != b"\r\n":
            pass
        while piece := reader.read(1 << 20):
            sent.update(piece)
    assert sent.digest() == expected.digest()
    with web_side.connect() as sock, sock.makefile("rb") as reader:
        head = request(
            f"/forward/isolated={session}/8000/",
            f"X-Eos-Token: {TOKEN}",
            f"Content-Length: {128 << 20}",
            method="PUT",
        )

        def send() -> None:
            sock.sendall(head)
            for i in range(128):
                sock.sendall(bytes([i]) * (1 << 20))

        sender = threading.Thread(target=send)
        sender.start()
        shown = reader.read()
        sender.join()
    assert shown.endswith(expected.hexdigest().encode())
    assert peak_kib(agent.pid) - before < 8 * 1024
