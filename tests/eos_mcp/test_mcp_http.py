"""Streamable HTTP and SSE on real uvicorn processes: the guard, both eras, the body limit, cancellation, the
end.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import stat
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from eos_mcp.mcp.server_options import MAX_MESSAGE_BYTES
from tests.eos_mcp.mcp_wire import FIXTURE, Wire, call, discover, initialize

TOKEN = "a token of the tests"
ACCEPT = "application/json, text/event-stream"


class Served(NamedTuple):
    wire: Wire
    url: str
    port: int


def start(transport: str, folder: Path, host: str = "127.0.0.1") -> Served:
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    wire = Wire(
        [sys.executable, FIXTURE, transport, "-"],
        env={"FIXTURE_TOKEN_FILE": str(token), "FIXTURE_HOST": host},
    )
    wire.says("listening on ")
    line = next(line for line in wire.stderr if "listening on " in line)
    found = re.search(r"(http://.*:(\d+)/\w+)", line)
    assert found is not None, line
    assert TOKEN not in line
    return Served(wire, found.group(1).replace("0.0.0.0", "127.0.0.1"), int(found.group(2)))


def served_by(transport: str, folder: Path, host: str = "127.0.0.1") -> Generator[Served]:
    served = start(transport, folder, host)
    with served.wire as wire:
        yield served
        wire.process.send_signal(signal.SIGTERM)
        assert wire.ends() == 0


@pytest.fixture(scope="module")
def streamable(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    yield from served_by("http", tmp_path_factory.mktemp("http"))


@pytest.fixture(scope="module")
def sse(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    yield from served_by("sse", tmp_path_factory.mktemp("sse"))


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    yield from served_by("http", tmp_path_factory.mktemp("any"), "0.0.0.0")


def post(
    served: Served,
    message: Mapping[str, Any] | bytes,
    headers: Mapping[str, str | None] | None = None,
    path: str = "/mcp",
) -> tuple[int, bytes]:
    """Status and body of one POST with good headers, changed by `headers` (None leaves one out)."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    good: dict[str, str | None] = {
        "Host": f"127.0.0.1:{served.port}",
        "Authorization": f"Bearer {TOKEN}",
        "Accept": ACCEPT,
    }
    sent = {**good, "Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    try:
        connection.send(body)
    except (BrokenPipeError, ConnectionResetError):  # refused before it was read
        pass
    try:
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


MODERN = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover"}

REFUSED: dict[str, tuple[dict[str, str | None], int]] = {
    "no token": ({"Authorization": None}, 401),
    "a wrong token": ({"Authorization": "Bearer wrong"}, 401),
    "another scheme": ({"Authorization": f"Basic {TOKEN}"}, 401),
    "a token that only begins right": ({"Authorization": f"Bearer {TOKEN} and more"}, 401),
    "a strange host": ({"Host": "evil.example"}, 421),
    "a strange host with our port": ({"Host": "evil.example:{port}"}, 421),
    "a host that only begins like ours": ({"Host": "localhost.evil.example"}, 421),
    "an address of somebody else": ({"Host": "203.0.113.9:{port}"}, 421),
    "a strange origin": ({"Origin": "https://evil.example"}, 403),
    "a null origin": ({"Origin": "null"}, 403),
    "an origin with a user": ({"Origin": "http://localhost@evil.example"}, 403),
    "a file as origin": ({"Origin": "file://"}, 403),
}


@pytest.mark.parametrize(("headers", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_a_request_with_a_bad_token_host_or_origin_is_refused(
    streamable: Served, headers: dict[str, str | None], status: int
) -> None:
    changed = {
        name: value and value.replace("{port}", str(streamable.port)) for name, value in headers.items()
    }
    found, body = post(streamable, discover(1), {**MODERN, **changed})
    assert found == status
    assert TOKEN.encode() not in body


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost"},
        {"Host": "LocalHost:1"},
        {"Host": "[::1]:80"},
        {"Host": "127.0.0.2"},
        {"Origin": "http://localhost:6274"},
        {"Origin": "http://127.0.0.1"},
        {"Authorization": f"bearer  {TOKEN}"},
    ],
)
def test_a_request_from_this_machine_with_the_token_passes(
    streamable: Served, headers: dict[str, str | None]
) -> None:
    status, body = post(streamable, discover(1), {**MODERN, **headers})
    assert status == 200
    assert json.loads(body)["result"]["supportedVersions"] == ["2026-07-28"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Authorization": None}, 401),
        ({"Host": "203.0.113.9"}, 200),
        ({"Host": socket.gethostname()}, 200),
        ({"Host": "localhost"}, 200),
    ],
)
def test_host_and_origin_are_checked_on_every_address_too(
    everywhere: Served, headers: dict[str, str | None], status: int
) -> None:
    assert post(everywhere, discover(1), {**MODERN, **headers})[0] == status


@pytest.mark.parametrize("path", ["/sse", "/messages/", "/", "/nothing"])
def test_the_guard_stands_before_every_path(sse: Served, path: str) -> None:
    assert post(sse, initialize(), {"Authorization": None}, path)[0] == 401
    assert post(sse, initialize(), {"Host": "evil.example"}, path)[0] == 421


@asynccontextmanager
async def connect(served: Served) -> AsyncGenerator[Any]:
    """The SDK's client transport."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if served.url.endswith("/sse"):
        async with sse_client(served.url, headers=headers) as streams:
            yield streams
    else:
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http_client:
            async with streamable_http_client(served.url, http_client=http_client) as streams:
                yield streams


@pytest.mark.parametrize("transport", ["streamable", "sse"])
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
def test_tools_are_listed_and_called_in_both_eras(
    transport: str, mode: ConnectMode, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(transport)

    async def go() -> None:
        async with Client(connect(served), mode=mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools][:2] == ["fast", "slow"]
            result = await client.call_tool("fast", {"text": "é\u2028"})
            assert result.structured_content == {"text": "é\u2028"}
            refused = await client.call_tool("refuse", {})
            assert refused.is_error
            assert refused.structured_content is not None
            assert refused.structured_content["error"]["kind"] == "invalid_request"

    anyio.run(go)


def modern_call(name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str | None]]:
    return call(1, name, arguments, modern=True), {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": name,
    }


def test_a_body_up_to_the_limit_passes_and_a_longer_one_is_413(streamable: Served, sse: Served) -> None:
    message, headers = modern_call("fast", {"text": ""})
    room = MAX_MESSAGE_BYTES - len(json.dumps(message))
    message, _ = modern_call("fast", {"text": "x" * room})
    status, body = post(streamable, message, headers)
    assert status == 200
    assert len(body) > room
    message, _ = modern_call("fast", {"text": "x" * (room + 1)})
    assert post(streamable, message, headers)[0] == 413
    assert post(sse, message, path="/messages/?session_id=" + "0" * 32)[0] == 413


NO_MESSAGES = {
    "nothing": b"",
    "no JSON": b"nonsense",
    "half of one": b'{"jsonrpc":"2.0","id":1,"method":"tools/',
    "no UTF-8": b"\xff\xfe{}",
    "a lone surrogate": b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/list"}',
    "deep": b"[" * 100_000,
    "deep inside": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fast","arguments":{"text":'  # noqa: E501
    + b"[" * 5000
    + b"]" * 5000
    + b"}}}",
    "NaN as an id": b'{"jsonrpc":"2.0","id":NaN,"method":"tools/list"}',
    "a long number": b'{"jsonrpc":"2.0","id":' + b"9" * 100_000 + b',"method":"tools/list"}',
    "a number beyond a float": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fast","arguments":{"text":1e400}}}',  # noqa: E501
    "an object as an id": b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
    "a list": b"[]",
    "a number": b"7",
    "the same key twice": b'{"jsonrpc":"2.0","jsonrpc":"1.0","id":1,"id":2,"method":"tools/list"}',
    "no method": b'{"jsonrpc":"2.0","id":1}',
    "a method that is no text": b'{"jsonrpc":"2.0","id":1,"method":7}',
    "params that are a list": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}',
    (
        "arguments that are text"
    ): b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fast","arguments":"x"}}',
    "no name": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}',
}


@pytest.mark.parametrize(
    "headers",
    [{}, {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "fast"}],
    ids=["older", "modern"],
)
@pytest.mark.parametrize("name", NO_MESSAGES)
def test_what_is_no_message_is_the_senders_mistake(
    streamable: Served, name: str, headers: dict[str, str | None]
) -> None:
    status, body = post(streamable, NO_MESSAGES[name], headers)
    assert status < 500 and b"Traceback" not in body, (status, body[:300])
    message, good = modern_call("fast", {"text": "still there"})
    assert post(streamable, message, good)[0] == 200


def hang_up(served: Served, message: dict[str, Any], headers: Mapping[str, str | None], begun: str) -> None:
    """POST a call and close the connection once the tool has begun."""
    body = json.dumps(message).encode()
    lines = [
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nAccept: "
        f"{ACCEPT}\r\nContent-Type: application/json"
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        served.wire.says(begun)


def test_a_client_of_the_modern_era_that_disconnects_cancels_its_call(streamable: Served) -> None:
    hang_up(streamable, *modern_call("slow", {"seconds": 600}), "BEGUN 600")
    streamable.wire.says("CANCELLED 600")


def test_a_client_of_the_older_era_that_disconnects_does_not(streamable: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", streamable.port, timeout=60)
    good = {"Authorization": f"Bearer {TOKEN}", "Accept": ACCEPT, "Content-Type": "application/json"}
    connection.request("POST", "/mcp", json.dumps(initialize()), good)
    response = connection.getresponse()
    session = {"Mcp-Session-Id": response.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
    response.read()
    connection.request(
        "POST",
        "/mcp",
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        {**good, **session},
    )
    assert connection.getresponse().status == 202
    connection.close()
    hang_up(streamable, call(1, "slow", {"seconds": 1.25}), session, "BEGUN 1.25")
    streamable.wire.says("DONE 1.25")


def test_a_session_id_of_another_process_is_not_found(streamable: Served) -> None:
    assert post(streamable, call(1, "fast"), {"Mcp-Session-Id": "0" * 32})[0] == 404


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_with_an_open_stream_and_a_busy_thread(
    tmp_path: Path, number: signal.Signals
) -> None:
    served = start("sse", tmp_path)
    with served.wire as wire:
        with socket.create_connection(("127.0.0.1", served.port)) as stream:
            stream.sendall(
                f"GET /sse HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
            seen = b""
            while b"session_id=" not in seen or not seen.rpartition(b"session_id=")[2].strip():
                seen += stream.recv(4096)
            session = re.search(rb"session_id=([0-9a-f]{32})", seen)
            assert session is not None
            path = f"/messages/?session_id={session.group(1).decode()}"
            for message in (
                initialize(),
                {"jsonrpc": "2.0", "method": "notifications/initialized"},
                call(1, "block"),
            ):
                assert post(served, message, path=path)[0] == 202
            wire.says("BEGUN")
            wire.process.send_signal(number)
            assert wire.ends() == 0
        assert not any("Traceback" in line for line in wire.stderr), "\n".join(wire.stderr)


def program(*words: str, env: Mapping[str, str] | None = None) -> Wire:
    return Wire([sys.executable, "-m", "eos_mcp", *words], env=env)


def test_a_missing_token_file_is_made_for_its_owner_only_and_the_token_is_shown_nowhere(
    tmp_path: Path,
) -> None:
    path = tmp_path / "folder" / "token"
    with program("--transport", "http", "--port", "0", "--token-file", str(path)) as wire:
        wire.says("listening on ")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(path.read_text().strip()) >= 32
        assert not any(path.read_text().strip() in line for line in wire.stderr)
        with open(f"/proc/{wire.process.pid}/cmdline", "rb") as file:
            assert path.read_text().strip().encode() not in file.read()


def test_a_token_file_that_others_can_read_and_a_port_that_is_taken_are_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    with program("--transport", "http", "--port", "0", "--token-file", str(path)) as wire:
        assert wire.ends() == 2
        wire.says(str(path))
        wire.says("chmod 600")
    path.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with program("--transport", "sse", "--port", port, "--token-file", str(path)) as wire:
            assert wire.ends() == 2
            wire.says(port)
            wire.says("--port")


def test_a_further_name_is_served_when_the_command_line_allows_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    with program(
        "--transport", "http", "--port", "0", "--token-file", str(path), "--allow-host", "Box.Example"
    ) as wire:
        wire.says("listening on ")
        port = int(re.findall(r":(\d+)/mcp", " ".join(wire.stderr))[0])
        served = Served(wire, "", port)
        assert post(served, discover(1), {**MODERN, "Host": f"box.example:{port}"})[0] == 200
        assert post(served, discover(1), {**MODERN, "Host": "other.example"})[0] == 421


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_six_hundred_half_open_heads_keep_nobody_out(streamable: Served, sse: Served, transport: str) -> None:
    """They are hung up on, the oldest first, while who has the token is answered; the rest ends by itself."""
    served = streamable if transport == "http" else sse
    held: list[socket.socket] = []
    begin = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"

    def answered() -> None:
        if transport == "http":
            assert post(served, discover(), MODERN)[0] == 200
            return
        with socket.create_connection(("127.0.0.1", served.port), 60) as events:
            events.sendall(
                f"GET /sse HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
            assert events.recv(4096).startswith(b"HTTP/1.1 200 ")

    try:
        for number in range(600):
            peer = socket.create_connection(("127.0.0.1", served.port), 60)
            held.append(peer)
            if number % 2:
                peer.sendall(begin)
            if number % 100 == 99:
                answered()
        answered()
        ended = 0
        for peer in held:  # all of them, in the end: by number, or by time
            peer.settimeout(60)
            try:
                ended += peer.recv(1) == b""
            except ConnectionResetError:
                ended += 1
        assert ended == 600
        answered()
    finally:
        for peer in held:
            peer.close()


def test_a_connection_that_has_shown_the_token_outlives_the_time_for_heads(sse: Served) -> None:
    with (
        socket.create_connection(("127.0.0.1", sse.port), 60) as events,
        socket.create_connection(("127.0.0.1", sse.port), 60) as silent,
    ):
        events.sendall(
            f"GET /sse HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        assert events.recv(4096).startswith(b"HTTP/1.1 200 ")
        silent.settimeout(60)
        try:
            assert silent.recv(1) == b""  # this one is over, and is younger
        except ConnectionResetError:
            pass
        events.settimeout(0.2)
        try:
            while events.recv(4096):
                pass
            raise AssertionError("the stream of events ended")
        except TimeoutError:
            pass
