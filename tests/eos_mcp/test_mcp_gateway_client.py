"""The asynchronous gateway client against a real socket that answers one line, progress frames, garbage, or
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from eos_agent.wire.protocol import MAX_LINE_BYTES, OperationError, error_envelope
from eos_mcp.gateway_client import sync
from eos_mcp.gateway_client.aio import GatewayClient

TOKEN = "ab" * 32
Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(path: str, serve: Serve) -> AsyncGenerator[None]:
    """A unix socket whose connections are served by `serve`; all of them are over afterwards."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(one(reader, writer)))

    server = await asyncio.start_unix_server(begin, path, limit=MAX_LINE_BYTES + 1)
    async with server:
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def gateway(folder: str, answer: Answer) -> AsyncGenerator[tuple[GatewayClient, list[dict[str, Any]]]]:
    """A listener that hands each request line to `answer`, the client for it, and the requests that came."""
    requests: list[dict[str, Any]] = []
    path = os.path.join(folder, "g.sock")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(json.loads(await reader.readline()))
        await answer(requests[-1], writer)

    async with listening(path, serve):
        yield GatewayClient(endpoint=f"unix://{path}", token=TOKEN), requests


def says(*lines: bytes) -> Answer:
    async def answer(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        for line in lines:
            writer.write(line)
        await writer.drain()

    return answer


def ask(
    folder: str,
    answer: Answer,
    *,
    op: str = "file_read",
    timeout_s: float = 60,
    args: dict[str, Any] | None = None,
    progress: list[str] | None = None,
) -> Any:
    """The reply and the request as it came."""

    async def go() -> Any:
        async def heard(text: str) -> None:
            assert progress is not None
            progress.append(text)

        async with gateway(folder, answer) as (client, requests):
            reply = await client.request(
                op,
                args or {"path": "a"},
                sandbox_id="eos-1",
                request_id="r-1",
                timeout_s=timeout_s,
                on_progress=heard if progress is not None else None,
            )
            return reply, requests[0]

    return anyio.run(go)


def test_a_request_is_the_envelope_of_the_contract_and_the_reply_comes_back_as_it_is(short_dir: str) -> None:
    reply, request = ask(short_dir, says(b'{"content":"\xc3\xa9"}\n'))
    assert reply == {"content": "é"}
    assert request == {
        "op": "file_read",
        "request_id": "r-1",
        "scope": {"kind": "sandbox", "sandbox_id": "eos-1"},
        "args": {"path": "a"},
        "_sandbox_gateway_auth_token": TOKEN,
        "_stream_logs": False,
    }


def test_progress_frames_are_reported_in_order_and_are_not_the_reply(short_dir: str) -> None:
    messages: list[str] = []
    reply, request = ask(
        short_dir, says(b'cli_log("one")\ncli_log("tw', b'o")\n{"id":"x"}\n'), progress=messages
    )
    assert reply == {"id": "x"}
    assert messages == ["one", "two"]
    assert request["_stream_logs"] is True


def test_an_answer_of_many_megabytes_arrives_whole(short_dir: str) -> None:
    text = "x" * (15 << 20)
    reply, _ = ask(short_dir, says(json.dumps({"content": text}).encode() + b"\n"))
    assert reply == {"content": text}


UNUSABLE = {
    "no answer": (says(), "connection_error"),
    "half an answer": (says(b'{"id":'), "protocol_error"),
    "an answer that is not JSON": (says(b"hello\n"), "protocol_error"),
    "an answer that is no object": (says(b"[]\n"), "protocol_error"),
    "an answer without end": (says(b"x" * (MAX_LINE_BYTES + (1 << 20))), "protocol_error"),
}


@pytest.mark.parametrize(("answer", "kind"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_answer_is_an_error_that_says_so(short_dir: str, answer: Answer, kind: str) -> None:
    with pytest.raises(OperationError) as error:
        ask(short_dir, answer)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    "answer", [says(), says(b'{"id":'), says(b"hello\n")], ids=["closed", "cut", "unusable"]
)
def test_a_program_and_a_server_word_a_reply_that_did_not_come_alike(short_dir: str, answer: Answer) -> None:
    async def go() -> list[OperationError]:
        found: list[OperationError] = []
        async with gateway(short_dir, answer) as (client, _):
            settings = sync.discover(endpoint=os.path.join(short_dir, "g.sock"), token=TOKEN)
            for call in (
                lambda: client.request("exec_command", {}, sandbox_id="s", request_id="r", timeout_s=60),
                lambda: asyncio.to_thread(
                    sync.call, settings, "exec_command", {}, sandbox_id="s", request_id="r"
                ),
            ):
                with pytest.raises(OperationError) as caught:
                    await call()
                found.append(caught.value)
        return found

    server, program = asyncio.run(go())
    assert server.message == program.message
    assert {**server.details, "reason": ""} == {**program.details, "reason": ""}


@pytest.mark.parametrize(
    ("op", "again"), [("file_read", True), ("exec_command", False), ("destroy_sandbox", False)]
)
def test_of_a_call_whose_gateway_went_away_only_a_read_is_called_safe_to_repeat(
    op: str, again: bool, short_dir: str
) -> None:
    with pytest.raises(OperationError) as error:
        ask(short_dir, says(), op=op)
    assert (error.value.kind, error.value.details["reason"]) == ("connection_error", "connection_lost")
    assert error.value.details["retryable"] is again
    assert ("check before you repeat it" in error.value.details.get("hint", "")) is not again


def test_a_gateway_that_does_not_answer_runs_into_the_deadline(short_dir: str) -> None:
    async def silent(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(600)

    with pytest.raises(OperationError) as error:
        ask(short_dir, silent, timeout_s=0.2)
    assert error.value.kind == "connection_error"
    assert error.value.details["reason"] == "timeout"


def test_a_request_above_the_limit_is_refused_before_it_is_sent(short_dir: str) -> None:
    with pytest.raises(OperationError) as error:
        ask(short_dir, says(b"{}\n"), args={"path": "x" * MAX_LINE_BYTES})
    assert error.value.kind == "request_too_large"
    assert error.value.details["limit"] == MAX_LINE_BYTES


def test_an_early_refusal_of_a_long_request_is_still_read(short_dir: str) -> None:
    """The gateway answers and closes before it has read all of the line."""
    path = os.path.join(short_dir, "g.sock")

    async def go() -> dict[str, Any]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(json.dumps(error_envelope("unauthorized", "no")).encode() + b"\n")
            await writer.drain()
            writer.write_eof()
            while await reader.read(1 << 20):
                pass

        async with listening(path, serve):
            client = GatewayClient(endpoint=path, token=TOKEN)
            return await client.request(
                "x", {"text": "y" * (8 << 20)}, sandbox_id=None, request_id="r", timeout_s=60
            )

    assert anyio.run(go)["error"]["kind"] == "unauthorized"


def test_nobody_at_a_tcp_address_is_a_connection_error_that_names_it() -> None:
    async def go() -> None:
        client = GatewayClient(endpoint="127.0.0.1:1", token=TOKEN)
        await client.request("list_sandboxes", {}, sandbox_id=None, request_id="r", timeout_s=60)

    with pytest.raises(OperationError) as error:
        anyio.run(go)
    assert error.value.kind == "connection_error"
    assert "127.0.0.1:1" in error.value.message


def test_an_endpoint_that_makes_no_sense_is_a_config_error_of_the_call_not_of_the_start() -> None:
    async def go() -> None:
        await GatewayClient(endpoint="nonsense").request(
            "list_sandboxes", {}, sandbox_id=None, request_id="r", timeout_s=60
        )

    with pytest.raises(OperationError) as error:
        anyio.run(go)
    assert error.value.kind == "config_error"


def test_a_new_token_in_the_file_is_read_after_a_refusal(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = os.path.join(short_dir, "token")
    monkeypatch.setenv("SANDBOX_GATEWAY_TOKEN_FILE", token)
    valid = "new"

    def write(text: str) -> None:
        with open(token, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text + "\n")

    async def check(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        good = request["_sandbox_gateway_auth_token"] == valid
        writer.write(json.dumps({} if good else error_envelope("unauthorized", "no")).encode() + b"\n")

    async def go() -> list[dict[str, Any]]:
        async with gateway(short_dir, check):
            client = GatewayClient(endpoint=os.path.join(short_dir, "g.sock"))
            replies: list[dict[str, Any]] = []
            for text in ("old", "new", "new"):
                write(text)
                replies.append(await client.request("x", {}, sandbox_id=None, request_id="r", timeout_s=60))
            return replies

    first, second, third = anyio.run(go)
    assert first["error"]["kind"] == "unauthorized"
    assert second == third == {}


def test_a_cancelled_request_closes_its_connection(short_dir: str) -> None:
    async def go() -> None:
        begun, gone = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            begun.set()
            assert await reader.read(1) == b""
            gone.set()

        path = os.path.join(short_dir, "g.sock")
        async with listening(path, serve), anyio.create_task_group() as tasks:
            client = GatewayClient(endpoint=path, token=TOKEN)

            async def call() -> None:
                await client.request("x", {}, sandbox_id=None, request_id="r", timeout_s=60)

            tasks.start_soon(call)
            await begun.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), anyio.fail_after(30):
                await gone.wait()

    anyio.run(go)


def test_a_gateway_whose_backlog_is_full_is_waited_for(short_dir: str) -> None:
    """A non-blocking connect answers EAGAIN then; asyncio's sock_connect takes the socket for connected, and
    the first send fails.
    """
    path = os.path.join(short_dir, "g.sock")

    def serve_one(listener: socket.socket) -> None:
        while True:
            connected, _ = listener.accept()
            with connected, connected.makefile("rwb") as file:
                if file.readline():
                    file.write(b'{"ok":true}\n')
                    return

    async def go() -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as waiting:
            listener.bind(path)
            listener.listen(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    peer = waiting.enter_context(socket.socket(socket.AF_UNIX))
                    peer.setblocking(False)
                    peer.connect(path)
            client = GatewayClient(endpoint=f"unix://{path}", token=TOKEN)
            async with asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(
                    client.request("file_read", {}, sandbox_id="s", request_id="r", timeout_s=30)
                )
                await asyncio.sleep(0)  # it runs up to where it waits
                waiting.close()
                await asyncio.to_thread(serve_one, listener)
            return asked.result()

    assert anyio.run(go) == {"ok": True}
