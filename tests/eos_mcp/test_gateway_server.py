"""The gateway's connections over real sockets: framing, token, admission, progress frames, routing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eos_agent.wire import protocol
from eos_agent.wire.protocol import Request
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.gateway import admission, connection, listen
from eos_mcp.gateway import router as route
from eos_mcp.gateway.listen import ListenError
from eos_mcp.gateway.server import GatewayServer
from eos_mcp.gateway_client.sync import GatewayEndpoint
from tests.eos_mcp.gateway_socket import TOKEN, Gateway, gateway, kind, line
from tests.eos_mcp.scripted_agent import ScriptedAgent, ScriptedManager


def run(folder: str, case: Callable[[Gateway], Awaitable[None]], **how: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), gateway(folder, **how) as one:
            await case(one)

    asyncio.run(whole())


def test_a_request_is_answered_and_unknown_keys_are_ignored(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        assert await one.raw(line(future={"x": 1}, _other=2)) == {"sandboxes": []}
        assert stat.S_IMODE(os.stat(one.path).st_mode) == 0o600

    run(short_dir, case)


def test_the_token_is_checked_before_the_envelope_is_looked_at(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        for token in (None, "wrong", "", 5, "\udcff", "é"):
            reply = await one.raw(
                b'{"op":5%s}\n'
                % (b"" if token is None else b',"_sandbox_gateway_auth_token":' + json.dumps(token).encode())
            )
            assert kind(reply) == "unauthorized"
            assert TOKEN not in json.dumps(reply)
        assert (
            kind(await one.raw(protocol.encode({protocol.GATEWAY_TOKEN_KEY: TOKEN, "op": 5})))
            == "invalid_request"
        )

    run(short_dir, case)


def test_what_is_no_request_is_distinguished(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        assert kind(await one.raw(b"nonsense\n")) == "bad_json"
        assert kind(await one.raw(b"[1]\n")) == "bad_json"
        for number in (b"NaN", b"1e999", b"-1e999"):  # read as what could not be passed on
            asked = line("file_read", scope={"kind": "sandbox", "sandbox_id": "s"}, args={"n": 0}).replace(
                b'"n":0', b'"n":' + number
            )
            assert kind(await one.raw(asked)) == "bad_json"
        wrong: tuple[dict[str, Any], ...] = (
            {"scope": {"kind": "other"}},
            {"scope": {"kind": "sandbox", "sandbox_id": ""}},
            {"args": []},
            {"op": ""},
        )
        for bad in wrong:
            reply = await one.raw(protocol.encode({**json.loads(line()), **bad}))
            assert kind(reply) == "invalid_request"

    run(short_dir, case)


def test_a_line_over_the_limit_is_refused_with_the_limit(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        reply = await one.raw(b"x" * (protocol.MAX_LINE_BYTES + 1000))
        assert kind(reply) == "request_too_large" and reply["error"]["details"]["limit"] == 16777216
        padding = "p" * (protocol.MAX_LINE_BYTES - len(line(pad="")))
        assert len(line(pad=padding)) == protocol.MAX_LINE_BYTES
        assert await one.raw(line(pad=padding)) == {"sandboxes": []}

    run(short_dir, case)


def test_a_client_that_leaves_without_asking_leaves_nothing_behind(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        for data in (b"", b'{"op":'):
            reader, writer = await asyncio.open_unix_connection(one.path)
            writer.write(data)
            writer.write_eof()
            said = await reader.read()
            assert said == b"" if not data else kind(json.loads(said)) == "bad_json"
            writer.close()
        while one.server.busy:
            await asyncio.sleep(0)

    run(short_dir, case)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_more_requests_than_admitted_get_an_error(short_dir: str, in_pieces: bool) -> None:
    async def case(one: Gateway) -> None:
        release, inside = asyncio.Event(), 0

        async def wait(_: Callable[[str], None]) -> dict[str, Any]:
            nonlocal inside
            inside += 1
            await release.wait()
            return {"sandboxes": []}

        one.manager.work = wait
        held = [asyncio.create_task(one.raw(line())) for _ in range(3)]
        while inside < 3:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_unix_connection(one.path)
        asked = line()
        if in_pieces:
            writer.write(asked[:10])
            while not one.server._admission._strangers:  # pyright: ignore[reportPrivateUsage]
                await asyncio.sleep(0)
        writer.write(asked[10:] if in_pieces else asked)
        reply = json.loads(await reader.readline())
        writer.close()
        assert (
            kind(reply) == "internal_error" and reply["error"]["details"]["reason"] == "gateway_at_capacity"
        )
        assert (
            reply["error"]["details"]["max_concurrent_connections"] == 3
            and reply["error"]["details"]["retryable"] is True
        )
        release.set()
        assert await asyncio.gather(*held) == [{"sandboxes": []}] * 3
        while one.server.busy:
            await asyncio.sleep(0)
        assert await one.raw(line()) == {"sandboxes": []}

    run(short_dir, case, limit=3)


def test_a_client_that_never_reads_its_answer_gives_its_place_back(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_S", 0.05)

    async def huge(_: Request, __: asyncio.StreamWriter) -> dict[str, Any]:
        return {"content": "x" * (8 << 20)}

    async def case(one: Gateway) -> None:
        one.agent.behaviour = huge
        loop = asyncio.get_running_loop()
        for more in ({}, {"_stream_logs": True}):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.setblocking(False)
                await loop.sock_connect(peer, one.path)
                await loop.sock_sendall(
                    peer, line("file_read", scope={"kind": "sandbox", "sandbox_id": "s"}, **more)
                )
                while not one.agent.ops().count("file_read"):
                    await asyncio.sleep(0.01)
                while one.server.busy:
                    await asyncio.sleep(0.01)
            one.agent.requests.clear()

    run(short_dir, case, limit=1)


def test_three_hundred_at_once_are_served_or_refused_for_lack_of_room(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        silent = [await asyncio.open_unix_connection(one.path) for _ in range(240)]
        replies = await asyncio.gather(*(one.raw(line()) for _ in range(60)))
        refused = [reply["error"] for reply in replies if "error" in reply]
        assert {(error["kind"], error["details"]["retryable"]) for error in refused} <= {
            ("internal_error", True)
        }
        assert len(refused) < 60
        for _, writer in silent:
            writer.close()
        while one.server.busy:
            await asyncio.sleep(0.01)
        assert "error" not in await one.raw(line())

    run(short_dir, case)


def test_progress_comes_in_order_before_the_reply_and_only_when_asked_for(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        async def work(progress: Callable[[str], None]) -> dict[str, Any]:
            progress("first")

            def tell() -> None:
                for n in range(50):
                    progress(f"thread {n}")

            thread = threading.Thread(target=tell)
            thread.start()
            await asyncio.to_thread(thread.join)
            progress('last ")\n')
            return {"id": "x"}

        one.manager.work = work
        received: list[str] = []
        assert await one.send("create_sandbox", on_progress=received.append) == {"id": "x"}
        assert received == ["first", *(f"thread {n}" for n in range(50)), 'last ")\n']
        assert await one.raw(line("create_sandbox")) == {"id": "x"}

    run(short_dir, case)


def test_routing_follows_the_contracts_order(short_dir: str) -> None:
    sandbox = {"kind": "sandbox", "sandbox_id": "s"}

    async def case(one: Gateway) -> None:
        assert (await one.raw(line("gateway_info")))["version"]
        assert await one.raw(line("cgroup", scope=sandbox)) == {"sandboxes": []}
        assert one.manager.handled[-1] == ("cgroup", {"sandbox_id": "s"})
        assert kind(await one.raw(line("file_read"))) == "unknown_op"
        for internal in ("squash_layerstack", "export_layerstack", "read_export_chunk", "export_stream"):
            assert kind(await one.raw(line(internal, scope=sandbox))) == "invalid_request"
        assert kind(await one.raw(line("list_sandboxes", scope=sandbox))) == "invalid_request"
        assert one.agent.requests == []
        assert await one.raw(line("made_up", scope=sandbox, args={"a": 1})) == {
            "op": "made_up",
            "args": {"a": 1},
        }
        assert await one.raw(line("file_list", scope=sandbox)) == {"op": "file_list", "args": {}}
        assert (await one.raw(line("sandbox_daemon_ready", scope=sandbox)))["status"] == "ready"
        missing = await one.raw(line("file_read", scope={"kind": "sandbox", "sandbox_id": "t"}))
        assert kind(missing) == "invalid_request" and "sandbox not found" in missing["error"]["message"]

    run(short_dir, case)


def test_a_cancellation_says_whether_the_request_is_still_waited_for(short_dir: str) -> None:
    sandbox = {"kind": "sandbox", "sandbox_id": "s"}

    async def case(one: Gateway) -> None:
        arrived, release = asyncio.Event(), asyncio.Event()

        async def behave(request: Any, _: Any) -> dict[str, Any] | None:
            if request.op == "exec_command":
                arrived.set()
                await release.wait()
            return {"op": request.op, "args": dict(request.args)}

        one.agent.behaviour = behave
        command = asyncio.create_task(one.raw(line("exec_command", scope=sandbox, request_id="long")))
        await arrived.wait()
        for name, in_flight in (("long", True), ("other", False), (["x"], False)):
            received = await one.raw(line("cancel_request", scope=sandbox, args={"request_id": name}))
            assert received == {"op": "cancel_request", "args": {"request_id": name, "in_flight": in_flight}}
        release.set()
        await command
        received = await one.raw(line("cancel_request", scope=sandbox, args={"request_id": "long"}))
        assert received["args"]["in_flight"] is False
        assert kind(await one.raw(line("cancel_request", args={"request_id": "long"}))) == "unknown_op"

    run(short_dir, case)


def test_the_activity_revision_grows_with_successful_changes_only(short_dir: str) -> None:
    sandbox = {"kind": "sandbox", "sandbox_id": "s"}

    async def case(one: Gateway) -> None:
        for op in ("file_read", "list_drafts", "file_write", "exec_command"):
            await one.raw(line(op, scope=sandbox))
        assert one.manager.active == ["s", "s"]

        async def refuse(request: Any, _: Any) -> dict[str, Any] | None:
            details = {"publish_completed": True} if request.args else {}
            return protocol.error_envelope("operation_failed", "no", details)

        one.agent.behaviour = refuse
        await one.raw(line("publish_workspace_session", scope=sandbox))
        assert one.manager.active == ["s", "s"]
        await one.raw(line("publish_workspace_session", scope=sandbox, args={"a": 1}))
        assert one.manager.active == ["s", "s", "s"]

    run(short_dir, case)


def test_one_filter_drops_what_the_contract_does_not_have(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        async def answer(_: Any, __: Any) -> dict[str, Any] | None:
            return {
                "status": "ok",
                "exit_code": 0,
                "output": "",
                "publish": {},
                "draft_id": "d",
                "invented": 1,
            }

        async def records(_: Any) -> dict[str, Any]:
            return {"sandboxes": [{"id": "s", "state": "ready", "ours": 1}], "ours": 2}

        one.agent.behaviour, one.manager.work = answer, records
        sandbox = {"kind": "sandbox", "sandbox_id": "s"}
        assert await one.raw(line("exec_command", scope=sandbox)) == {
            "status": "ok",
            "exit_code": 0,
            "output": "",
        }
        assert await one.raw(line("list_sandboxes")) == {"sandboxes": [{"id": "s", "state": "ready"}]}

        async def inner(request: Any, _: Any) -> dict[str, Any] | None:
            if request.op == "publish_workspace_session":
                return {
                    "publish": {"no_op": False, "dropped": [{"path": "fifo"}], "notices": []},
                    "destroyed": True,
                }
            return {"stack": {"layer_count": 1, "draft_count": 2}, "warnings": ["many"]}

        async def fleet(_: Any) -> dict[str, Any]:
            return {
                "sandboxes": [
                    {"sandbox_id": "s", "stack": {"layer_count": 1, "pin_count": 0}, "warnings": []}
                ]
            }

        one.agent.behaviour, one.manager.work = inner, fleet
        assert await one.raw(line("publish_workspace_session", scope=sandbox)) == {
            "publish": {"no_op": False},
            "destroyed": True,
        }
        assert await one.raw(line("snapshot", scope=sandbox)) == {"stack": {"layer_count": 1}}
        assert await one.raw(line("snapshot")) == {
            "sandboxes": [{"sandbox_id": "s", "stack": {"layer_count": 1}}]
        }

    run(short_dir, case, contract=True)


def test_a_bug_is_an_internal_error_whose_text_stays_in_the_log(
    short_dir: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def case(one: Gateway) -> None:
        async def broken(_: Any) -> dict[str, Any]:
            raise TypeError("inner words")

        one.manager.work = broken
        reply = await one.raw(line())
        assert kind(reply) == "internal_error" and "inner words" not in json.dumps(reply)
        assert reply["error"]["details"]["request_id"] == "r"

    run(short_dir, case)
    assert "inner words" in capfd.readouterr().err


def test_a_result_of_an_agent_reaches_the_client_byte_for_byte(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        written = b'{ "content":"\\u00e4 \xc3\xa4 1e2",\t"size":1e2 }'  # as no encoder of ours writes it

        async def answer(_: Request, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
            writer.write(written + b"\n")
            await writer.drain()
            return None

        one.agent.behaviour = answer
        reader, writer = await asyncio.open_unix_connection(one.path)
        writer.write(line("file_read", scope={"kind": "sandbox", "sandbox_id": "s"}))
        assert await reader.read() == written + b"\n"
        writer.close()

    run(short_dir, case)


def test_without_descriptors_nobody_is_accepted_and_with_them_everybody_is(
    short_dir: str, capfd: pytest.CaptureFixture[str]
) -> None:
    import resource

    def said() -> bool:
        return "accept_failed" in capfd.readouterr().err

    async def case(one: Gateway) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket(socket.AF_UNIX) as waiting:
            lowest = os.dup(waiting.fileno())
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                waiting.connect(one.path)
                waiting.sendall(line())
                while not said():
                    await asyncio.sleep(0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            waiting.setblocking(False)
            assert json.loads(await asyncio.get_running_loop().sock_recv(waiting, 65536)) == {"sandboxes": []}

    run(short_dir, case)


def test_a_request_in_flight_when_the_gateway_stops_gets_an_error(short_dir: str) -> None:
    async def case(one: Gateway) -> None:
        inside = asyncio.Event()

        async def endless(_: Any) -> dict[str, Any]:
            inside.set()
            await asyncio.Event().wait()
            return {}

        one.manager.work = endless
        waiting = asyncio.create_task(one.raw(line()))
        await inside.wait()
        await one.server.stop_accepting()
        await one.server.finish(0)
        assert kind(await waiting) == "server_shutting_down"

    run(short_dir, case)


def test_a_stale_socket_is_replaced_and_a_living_one_is_not(short_dir: str) -> None:
    path = f"{short_dir}/x.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()
    first = listen.unix(path)
    with pytest.raises(ListenError, match="already listens"):
        listen.unix(path)
    listen.unlink_own(first)
    assert not os.path.exists(path)
    second = listen.unix(path)
    listen.unlink_own(first)  # by now another's
    assert os.path.exists(path)
    for listener in (first, second):
        listener.socket.close()


def test_a_socket_file_is_removed_once_though_the_next_one_has_its_inode(short_dir: str) -> None:
    path = f"{short_dir}/x.sock"
    first = listen.unix(path)
    os.link(path, f"{short_dir}/kept")
    listen.unlink_own(first)
    first.socket.close()
    os.rename(f"{short_dir}/kept", path)  # the inode that the next gateway's file gets on most file systems
    listen.unlink_own(first)
    assert os.path.exists(path)


def test_something_that_is_no_socket_is_never_removed(short_dir: str) -> None:
    path = f"{short_dir}/file"
    with open(path, "w") as file:
        file.write("mine")
    with pytest.raises(ListenError, match="move it away first"):
        listen.unix(path)
    with open(path) as file:
        assert file.read() == "mine"


def test_a_taken_port_is_named() -> None:
    first = listen.tcp(GatewayEndpoint("tcp", host="127.0.0.1", port=0))
    with pytest.raises(ListenError, match=f"port {first.endpoint.port} of 127.0.0.1 is taken"):
        listen.tcp(first.endpoint)
    first.socket.close()


@pytest.mark.parametrize("kind_of", ["unix", "tcp"])
def test_six_hundred_silent_connections_keep_nobody_out(short_dir: str, kind_of: str) -> None:
    """Half of them say nothing, half begin a request, all within the time that a request may take; who has
    the token is served all the while.
    """

    async def case() -> None:
        agent = await ScriptedAgent("s").start()
        manager = ScriptedManager(agent)
        forwarder = AgentPool(manager.target)
        listeners = [
            listen.unix(f"{short_dir}/g.sock"),
            listen.tcp(GatewayEndpoint("tcp", host="127.0.0.1", port=0)),
        ]
        router = route.Router(manager, forwarder, info=route.base_info, contract_results=False)
        server = GatewayServer(listeners, TOKEN, router.answer, max_connections=256)
        server.start()

        async def dial(kind_of: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            if kind_of == "unix":
                return await asyncio.open_unix_connection(f"{short_dir}/g.sock")
            return await asyncio.open_connection("127.0.0.1", listeners[1].endpoint.port)

        async def served() -> None:
            for each in ("unix", "tcp"):
                reader, writer = await dial(each)
                writer.write(line())
                assert json.loads(await reader.readline()) == {"sandboxes": []}
                writer.close()

        silent: list[asyncio.StreamWriter] = []
        for number in range(600):
            silent.append((await dial(kind_of))[1])
            if number % 2:
                silent[-1].write(b'{"op":')
            if number % 50 == 49:
                await served()
        assert len(server._admission._strangers) <= admission.STRANGERS  # pyright: ignore[reportPrivateUsage]
        for writer in silent:
            writer.close()
        while server.busy:
            await asyncio.sleep(0.01)
        assert not server._admission._strangers  # pyright: ignore[reportPrivateUsage]
        await server.stop_accepting()
        await server.finish(5)
        for listener in listeners:
            listener.socket.close()
        forwarder.close()
        await agent.stop()

    asyncio.run(asyncio.wait_for(case(), 120))
