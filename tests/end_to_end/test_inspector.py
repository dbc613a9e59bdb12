"""The MCP Inspector, a client that is not ours, does the main job over stdio, Streamable HTTP and SSE in both
eras. Real sandboxes.

Each combination lists the tools (strictly), creates a sandbox, runs a command that publishes, reads what it
wrote, exports it and destroys the sandbox.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import pytest

from tests import inspector, one_bundle
from tests.eos_mcp.mcp_wire import Wire

pytestmark = [pytest.mark.needs("inspector", "overlay"), pytest.mark.timeout(300)]

SERVER = (sys.executable, "-m", "eos_mcp", "--set", "agent")
ERAS = ("legacy", "modern")
TRANSPORTS = ("stdio", "http", "sse")


class Place(NamedTuple):
    """Directories of one test run: the state of its own gateway, a workspace, a home for the Inspector."""

    state: str
    workspace: str
    home: str


@pytest.fixture(scope="module")
def place() -> Generator[Place]:
    from tests.conftest import drop_dir, make_short_dir

    root = make_short_dir("eos-i-")
    found = Place(*(os.path.join(root, name) for name in ("s", "w", "h")))
    for path in found:
        os.mkdir(path)
    with open(os.path.join(found.workspace, "README"), "w") as file:
        file.write("the project\n")
    yield found
    eos = [sys.executable, "-m", "eos_mcp.cli.eos"]
    subprocess.run(
        [*eos, "gateway", "stop"],
        env=environment(found),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    drop_dir(root)


def environment(place: Place) -> dict[str, str]:
    cache = str(one_bundle.root_cache())
    return {**os.environ, "EOS_STATE_DIR": place.state, "HOME": place.home, "XDG_CACHE_HOME": cache}


class Target(NamedTuple):
    """How the Inspector reaches the server: words before `--`, words after it."""

    options: Sequence[str]
    server: Sequence[str]


@pytest.fixture(scope="module", params=TRANSPORTS)
def target(request: pytest.FixtureRequest, place: Place) -> Generator[Target]:
    transport: str = request.param
    if transport == "stdio":
        shared = ("EOS_STATE_DIR", "HOME", "XDG_CACHE_HOME", "PATH")
        env = environment(place)
        yield Target(
            [word for name in shared for word in ("-e", f"{name}={env[name]}")],
            ["--", *SERVER, "--root", os.path.dirname(place.workspace)],
        )
        return
    token = os.path.join(place.state, f"{transport}.token")
    with Wire(
        [
            *SERVER,
            "--root",
            os.path.dirname(place.workspace),
            "--transport",
            transport,
            "--port",
            "0",
            "--token-file",
            token,
        ],
        env=environment(place),
    ) as wire:
        wire.says("listening on ")
        url = re.findall(r"http://\S+?/(?:mcp|sse)", " ".join(wire.stderr))[0]
        with open(token) as file:
            header = f"Authorization: Bearer {file.read().strip()}"
        yield Target([url, "--transport", transport, "--header", header], [])
        wire.process.terminate()
        assert wire.ends() == 0


class Client(NamedTuple):
    place: Place
    target: Target
    era: str

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        found = inspector.command()
        argv = [
            *found.argv,
            "--cli",
            *self.target.options,
            "--protocol-era",
            self.era,
            "--format",
            "json",
            "-q",
            *words,
            *self.target.server,
        ]
        env = {**environment(self.place), **found.env}
        return subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a call that must succeed."""
        done = self.run(
            "--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        result = unwrapped(done.stdout)
        assert not result.get("isError")
        assert result["content"][0]["text"]
        structure: dict[str, Any] = result["structuredContent"]
        return structure


def unwrapped(output: str) -> dict[str, Any]:
    """The result in what the Inspector prints, with or without an envelope of its own."""
    value: dict[str, Any] = json.loads(output)
    inner = value.get("result", value)
    return inner if isinstance(inner, dict) else value


@pytest.fixture(params=ERAS)
def client(request: pytest.FixtureRequest, place: Place, target: Target) -> Client:
    return Client(place, target, request.param)


@pytest.mark.parametrize(
    ("target", "client"),
    [
        ("stdio", "modern"),
        pytest.param("stdio", "legacy", marks=pytest.mark.soak),
        ("http", "modern"),
        pytest.param("http", "legacy", marks=pytest.mark.soak),
        pytest.param("sse", "modern", marks=pytest.mark.soak),
        pytest.param("sse", "legacy", marks=pytest.mark.soak),
    ],
    indirect=True,
)
def test_list_create_exec_read_export_destroy(client: Client) -> None:
    done = client.run("--method", "tools/list", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [tool["name"] for tool in unwrapped(done.stdout)["tools"]]
    assert {"create_sandbox", "exec_command", "file_read", "export_changes", "destroy_sandbox"} <= set(names)
    sandbox = client.call("create_sandbox", image="host", workspace_root=client.place.workspace)
    try:
        assert sandbox["state"] == "ready"
        ran = client.call("exec_command", sandbox_id=sandbox["id"], cmd="cat README; echo made here > made")
        assert (ran["status"], ran["exit_code"], ran["output"]) == ("ok", 0, "the project")
        assert client.call("file_read", sandbox_id=sandbox["id"], path="made")["content"] == "made here"
        out = os.path.join(
            os.path.dirname(client.place.state), f"out-{sandbox['id']}"
        )  # below the root that the server was started with
        assert client.call("export_changes", sandbox_id=sandbox["id"], dest=out)["files_written"] == 1
        with open(os.path.join(out, "made")) as file:
            assert file.read() == "made here\n"
        assert not os.path.exists(os.path.join(client.place.workspace, "made"))
    finally:
        gone = client.call("destroy_sandbox", sandbox_id=sandbox["id"])
    assert gone["state"] == "stopped"


@pytest.mark.parametrize(("target", "client"), [("sse", "legacy")], indirect=True)
def test_the_oldest_transport_lists_and_calls(client: Client) -> None:
    done = client.run("--method", "tools/list", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert client.call("list_sandboxes") == {"sandboxes": []}


@pytest.mark.parametrize("target", ["stdio"], indirect=True)
def test_a_tool_error_is_reported_as_one_with_its_envelope(client: Client) -> None:
    words = ("--tool-name", "file_list", "--tool-args-json", '{"sandbox_id":"eos-nothing"}')
    done = client.run("--method", "tools/call", *words)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "sandbox not found" in done.stdout + done.stderr
