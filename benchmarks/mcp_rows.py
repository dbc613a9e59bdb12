"""The MCP server as a client meets it: the first answer after the start of the process, the first list, a
call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import Row, Series, check, in_turn, token
from benchmarks.place import Place
from benchmarks.rows import run

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Stdio:
    """A raw JSON-RPC client on an `eos-mcp` process."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        argv = [sys.executable, "-m", "eos_mcp", "--set", "all"]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.number = 0

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.number += 1
        line = json.dumps({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        while True:
            reply: dict[str, Any] = json.loads(self.process.stdout.readline())
            if reply.get("id") == self.number:
                return dict(reply["result"])

    def told(self, method: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method}).encode() + b"\n")
        self.process.stdin.flush()

    def since_start_ms(self) -> float:
        return (time.perf_counter() - self.start) * 1000

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


def first_answer(place: Place) -> Iterator[Row]:
    answer: list[float] = []
    listed: list[float] = []
    beside: list[float] = []
    for n in range(7):
        server = Stdio()
        assert server.ask("initialize", HELLO)["serverInfo"]["name"]
        first = server.since_start_ms()
        server.told("notifications/initialized")
        assert server.ask("tools/list", {})["tools"]
        second = server.since_start_ms()
        server.close()
        start = time.perf_counter()
        want = token()
        check(run([sys.executable, "-c", f"import mcp; print('{want}')"]), want)
        other = (time.perf_counter() - start) * 1000
        if n:
            answer.append(first)
            listed.append(second)
            beside.append(other)
    plain = Series("python -c 'import mcp'", tuple(beside))
    yield Row(
        "MCP server: start to first answer",
        Series("eos", tuple(answer)),
        plain,
        "<= 100 ms",
        "the interpreter; the SDK is imported behind it",
    )
    yield Row(
        "MCP server: start to first tools/list",
        Series("eos", tuple(listed)),
        plain,
        "<= 1.1x import mcp",
        "importing the SDK",
    )


def call(place: Place) -> Iterator[Row]:
    """exec of a random echo over MCP on stdio, beside list_sandboxes over the same pipe."""
    with place.sandbox("host") as sandbox:
        session = place.ask("create_workspace_session", {}, sandbox)["workspace_session_id"]
        server = Stdio()
        server.ask("initialize", HELLO)
        server.told("notifications/initialized")
        server.ask("tools/list", {})

        def ours() -> None:
            want = token()
            arguments = {"sandbox_id": sandbox, "workspace_session_id": session, "cmd": f"echo {want}"}
            got = server.ask("tools/call", {"name": "exec_command", "arguments": arguments})
            check(got["structuredContent"]["output"], want)

        def trivial() -> None:
            assert server.ask("tools/call", {"name": "list_sandboxes", "arguments": {}})["structuredContent"][
                "sandboxes"
            ]

        mine, other = in_turn([("eos", ours), ("list_sandboxes, same pipe", trivial)], runs=100)
        server.close()
        yield Row(
            "exec of a random echo over MCP, stdio",
            mine,
            other,
            "<= 3 ms",
            "the exec itself, then the SDK's dispatch",
        )
