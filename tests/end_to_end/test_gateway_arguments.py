"""The manager's operations with values of the wrong kind, size or alphabet, over a gateway's real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from eos_mcp import catalog
from eos_mcp.gateway import listen
from eos_mcp.gateway import router as route
from eos_mcp.gateway.server import GatewayServer
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.manager_fixture import Host, hosting
from tests.odd_values import ODD

TOKEN = "correct horse"
KINDS = {"invalid_request", "operation_failed", "not_found", "unknown_op", "bad_json"}
PATHS = (
    '"/\\u0000"',
    '"/\\ud800/x"',
    '"/' + "x" * 300 + '"',
    '"/' + "a/" * 3000 + '"',
    '"/dev/null"',
    '"/proc/self/../../../.."',
)
IMAGES = (
    '"rootfs:/\\u0000"',
    '"rootfs:\\ud800"',
    '"rootfs:"',
    '"-"',
    '"a\\r\\nb"',
    '"/../../containers/x"',
    '"?x=1#"',
    '"host "',
)
HOST_PROBLEMS = ("image_not_found", "backend_off", "docker_unreachable", "engine_error")


def requests(folder: str) -> Iterator[tuple[str, str, str, bytes]]:
    good = {
        "image": '"no-such-image"',
        "workspace_root": json.dumps(folder + "/none"),
        "sandbox_id": '"none"',
        "dest": json.dumps(folder + "/out"),
        "path": json.dumps(folder),
        "port": "1",
    }
    for operation in catalog.MANAGER:
        needed = {a.name: good[a.name] for a in operation.arguments if a.required}
        for argument in operation.arguments:
            more = PATHS if argument.kind == "path" else IMAGES if argument.name == "image" else ()
            for odd in (*ODD, *more):
                if argument.kind == "boolean" and odd in ("true", "false"):
                    continue  # nothing odd about it
                values = needed | {argument.name: odd}
                if argument.name == "image":
                    values["workspace_root"] = json.dumps(folder)  # an image is looked at after the workspace
                args = "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in values.items()) + "}"
                yield operation.name, argument.name, odd, envelope(operation.name, args)


def envelope(op: str, args: str, scope: str = '{"kind":"system"}') -> bytes:
    token = json.dumps(TOKEN)
    return f'{{"op":{json.dumps(op)},"request_id":"r","scope":{scope},"args":{args},"_sandbox_gateway_auth_token":{token}}}\n'.encode()  # noqa: E501


async def ask(path: str, line: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 25)
    try:
        writer.write(line)
        async with asyncio.timeout(60):
            answer: dict[str, Any] = json.loads(await reader.readline() or '{"error":{"kind":"silence"}}')
        return answer
    finally:
        writer.close()


def play(scenario: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """scenario(host, path of the gateway's socket, an empty folder)"""
    folder = make_short_dir("eos-h-")
    monkeypatch.setenv("EOS_STATE_DIR", f"{folder}/s")

    async def served() -> None:
        async with hosting(f"{folder}/s", backend="auto") as host:
            listener = listen.unix(f"{folder}/g.sock")
            router = route.Router(host.manager, host.forwarder, info=route.base_info, contract_results=False)
            server = GatewayServer([listener], TOKEN, router.answer, max_connections=300)
            server.start()
            try:
                await scenario(host, listener.endpoint.path, folder)
            finally:
                await server.stop_accepting()
                await server.finish(5)
                listener.socket.close()

    try:
        asyncio.run(served())
    finally:
        drop_dir(folder)


def test_no_value_of_an_argument_makes_the_gateway_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(host: Host, path: str, folder: str) -> None:
        wrong: list[Any] = []
        for op, argument, odd, line in requests(folder):
            error = (await ask(path, line)).get("error")
            if error is None:
                if op not in ("list_workspace_directories",):
                    wrong.append((op, argument, odd[:50], "accepted"))
            elif error["kind"] not in KINDS and error.get("details", {}).get("reason") not in HOST_PROBLEMS:
                wrong.append((op, argument, odd[:50], error))
        assert wrong == []
        assert (await host.do("list_sandboxes"))["sandboxes"] == []

    play(scenario, monkeypatch)


def test_no_value_of_a_forwarded_argument_makes_it_fail_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(_: Host, path: str, folder: str) -> None:
        wrong: list[Any] = []
        scope = '{"kind":"sandbox","sandbox_id":"none"}'
        for op in (
            "exec_command",
            "wait_command",
            "destroy_workspace_session",
            "cancel_request",
            "snapshot",
            "no_such",
            "file_read",
        ):
            for odd in ODD:
                names = ("yield_time_ms", "timeout_ms", "grace_s", "request_id", "path")
                error = (
                    await ask(
                        path, envelope(op, "{" + ",".join(f'"{name}":{odd}' for name in names) + "}", scope)
                    )
                )["error"]
                if error["kind"] not in ("invalid_request", "bad_json"):
                    wrong.append((op, odd[:50], error))
        assert wrong == []

    play(scenario, monkeypatch)
