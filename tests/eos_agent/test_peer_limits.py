"""Peers that do not read, do not write, come in numbers or from an address that they picked: the servers of
this process, without a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from eos_agent.http import http_server as http
from eos_agent.serve import server
from eos_agent.serve.server import AgentServer
from eos_agent.wire.protocol import encode_request
from tests.eos_agent.agent_process import TOKEN
from tests.eos_agent.web_server import Answers, web


@contextlib.asynccontextmanager
async def rpc(folder: str, **daemon: Any) -> AsyncGenerator[tuple[AgentServer, str]]:
    answers: Any = Answers(folder, **daemon)
    one = AgentServer(answers, TOKEN)
    await one.listen()
    try:
        async with asyncio.timeout(60):
            yield one, answers.settings.socket_path
    finally:
        await one.close(0)


@pytest.mark.parametrize("huge", [True, False])
def test_a_peer_that_never_reads_is_hung_up_on(
    short_dir: str, monkeypatch: pytest.MonkeyPatch, huge: bool
) -> None:
    monkeypatch.setattr(server, "ANSWER_S", 0.05)

    async def case() -> None:
        async with rpc(short_dir) as (one, path):
            peer = socket.socket(socket.AF_UNIX)
            peer.setblocking(False)
            with peer:
                await asyncio.get_running_loop().sock_connect(peer, path)
                line = encode_request("file_list", {"huge": huge}, request_id="r", sandbox_id="eos-test")
                await asyncio.get_running_loop().sock_sendall(peer, line)
                while not one.connections:
                    await asyncio.sleep(0)
                while one.connections:
                    await asyncio.sleep(0.01)

    asyncio.run(case())


def test_connections_without_a_token_keep_nobody_out(short_dir: str) -> None:
    async def case() -> None:
        async with rpc(short_dir, max_concurrent_connections=4) as (one, _):
            host, port = one.address
            silent = [await asyncio.open_connection(host, port) for _ in range(12)]
            for _, writer in silent:
                writer.write(b'{"op":')
            for _ in range(6):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(
                    encode_request(
                        "x", {}, request_id="r", sandbox_id="eos-test", _sandbox_daemon_auth_token=TOKEN
                    )
                )
                assert json.loads(await reader.readline()) == {"entries": [], "truncated": False}
                writer.close()
            for _, writer in silent:
                writer.close()

    asyncio.run(case())


def test_sixteen_megabytes_without_the_token_are_not_parsed(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(_: bytes) -> dict[str, Any]:
        raise AssertionError("parsed")

    monkeypatch.setattr(server, "decode_object", parsed)

    async def case() -> None:
        async with rpc(short_dir) as (one, _):
            reader, writer = await asyncio.open_connection(*one.address)
            writer.write(b'{"op":"' + b"x" * ((16 << 20) - 100) + b'"}\n')
            assert json.loads(await reader.readline())["error"]["kind"] == "unauthorized"
            writer.close()

    asyncio.run(case())


def test_long_lines_without_a_token_share_a_bounded_memory(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STRANGERS_BYTES", 4 << 20)

    async def case() -> None:
        async with rpc(short_dir) as (one, path):
            host, port = one.address
            peers = [await asyncio.open_connection(host, port) for _ in range(8)]
            for _, writer in peers:
                writer.write(b'{"op":"' + b"x" * (1 << 20))  # each waits for its newline
            answers = [asyncio.ensure_future(reader.readline()) for reader, _ in peers]
            done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            assert {json.loads(answer.result())["error"]["kind"] for answer in done} == {"server_busy"}
            for task in answers:
                task.cancel()
            for _, writer in peers:
                writer.close()
            reader, writer = await asyncio.open_unix_connection(path)  # who needs no token is not concerned
            writer.write(
                encode_request("x", {"text": "y" * (8 << 20)}, request_id="r", sandbox_id="eos-test")
            )
            assert json.loads(await reader.readline()) == {"entries": [], "truncated": False}
            writer.close()

    asyncio.run(case())


def body(
    port: int, source: str = "127.0.0.1", *, raw: bytes | None = None, authorization: str = ""
) -> tuple[int, bytes]:
    lines = ["POST /files/list HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 2"] + (
        [authorization] if authorization else []
    )
    with socket.create_connection(("127.0.0.1", port), 30, (source, 0)) as peer:
        peer.sendall(raw or ("\r\n".join(lines) + "\r\n\r\n{}").encode())
        with peer.makefile("rb") as reader:
            head, _, content = reader.read().partition(b"\r\n\r\n")
    return (int(head.split(b" ")[1]) if head else 0), content


def test_a_process_of_the_sandbox_needs_the_token_from_whatever_address_it_comes(short_dir: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            own = [probe.getsockname()[0]]
        except OSError:  # no route anywhere
            own = []

    async def case() -> None:
        async with web(short_dir) as (_, port):
            for source in ("127.0.0.1", "127.0.0.2", "127.255.255.254", *own):
                status, content = await asyncio.to_thread(body, port, source)
                assert (status, json.loads(content)["error"]["kind"]) == (401, "unauthorized"), source
                assert (
                    await asyncio.to_thread(
                        body, port, source, authorization=f"Authorization: Bearer {TOKEN}"
                    )
                )[0] == 200

    asyncio.run(case())
    assert not http.is_own_address("192.0.2.1")


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /files/list HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /files/list HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /files/list HTTP/1.1\r\nHost: localhost\r\nX-Eos-Token: "
        + TOKEN.encode()
        + b"\r\nContent-Length: 99999999\r\n\r\n",
        b"POST /files/list HTTP/1.1\r\nHost: localhost\r\nX-Eos-Token: "
        + TOKEN.encode()
        + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\n folded\r\n\r\n",
    ],
)
def test_a_request_that_is_no_http_of_ours_gets_an_error(short_dir: str, raw: bytes) -> None:
    async def case() -> None:
        async with web(short_dir) as (_, port):
            assert (await asyncio.to_thread(body, port, raw=raw))[0] == 400

    asyncio.run(case())


@pytest.mark.parametrize("listener", ["tcp", "unix", "http"])
def test_six_hundred_silent_connections_keep_nobody_out(short_dir: str, listener: str) -> None:
    """Half of them say nothing, half begin a request; one that shows its token is served all the while, and
    the next one too.
    """

    async def case() -> None:
        async with rpc(short_dir) as (one, path), web(short_dir, auth="token") as (http_server, port):

            async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                if listener == "unix":
                    return await asyncio.open_unix_connection(path)
                return await asyncio.open_connection(
                    "127.0.0.1", one.address[1] if listener == "tcp" else port
                )

            async def served() -> None:
                if listener == "http":
                    assert (await asyncio.to_thread(body, port, authorization=f"X-Eos-Token: {TOKEN}"))[
                        0
                    ] == 200
                    return
                reader, writer = await dial()
                writer.write(
                    encode_request(
                        "x", {}, request_id="r", sandbox_id="eos-test", _sandbox_daemon_auth_token=TOKEN
                    )
                )
                assert json.loads(await reader.readline()) == {"entries": [], "truncated": False}
                writer.close()

            kept_reader, kept = await dial()
            ask = encode_request(
                "x",
                {},
                request_id="k",
                sandbox_id="eos-test",
                _sandbox_daemon_auth_token=TOKEN,
                _keep_alive=True,
            )
            silent: list[asyncio.StreamWriter] = []
            for number in range(600):
                _, writer = await dial()
                silent.append(writer)
                if number % 2:
                    writer.write(b"POST /files/list HT" if listener == "http" else b'{"op":')
                if listener != "http" and number % 100 == 50:
                    kept.write(ask)
                    assert json.loads(await kept_reader.readline()) == {"entries": [], "truncated": False}
                if number % 100 == 99:
                    await served()
            await served()
            held = http_server.open if listener == "http" else len(one.connections)
            assert held <= 256 + 8, held
            for writer in (*silent, kept):
                writer.close()

    asyncio.run(case())


def test_more_lists_at_once_than_admitted_get_an_error_and_make_room(short_dir: str) -> None:
    async def case() -> None:
        async with web(short_dir, max_concurrent_connections=2) as (one, port):
            slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in slow:
                writer.write(
                    (
                        f"POST /files/list HTTP/1.1\r\nHost: localhost\r\nX-Eos-Token: "
                        f"{TOKEN}\r\nContent-Length: 2\r\n\r\n"
                    ).encode()
                )
            while one.answering < 2:
                await asyncio.sleep(0.01)
            assert (await asyncio.to_thread(body, port, authorization=f"X-Eos-Token: {TOKEN}"))[0] == 429
            assert (await asyncio.to_thread(body, port))[0] == 401
            for _, writer in slow:
                writer.close()
            while one.answering:
                await asyncio.sleep(0.01)
            assert (await asyncio.to_thread(body, port, authorization=f"X-Eos-Token: {TOKEN}"))[0] == 200

    asyncio.run(case())
