"""The static opening answers equal the SDK's own, and the entry stays light."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import anyio
import mcp.types as types
import mcp_types.version as sdk
import pytest
from mcp.shared.message import SessionMessage

from eos_mcp.catalog import ALL
from eos_mcp.mcp import app, handshake, schema
from eos_mcp.mcp.server_identity import identity
from eos_mcp.mcp.server_options import EOS, SANDBOX, SETS, ServerOptions
from tests.eos_mcp.mcp_wire import META, discover, initialize


def ask_sdk(options: ServerOptions, message: dict[str, Any]) -> dict[str, Any]:
    """The SDK's own answer to one opening request."""

    async def exchange() -> dict[str, Any]:
        server = app.build(options).server
        send, read = anyio.create_memory_object_stream[SessionMessage | Exception](1)
        write, receive = anyio.create_memory_object_stream[SessionMessage](1)
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(server.run, read, write, server.create_initialization_options())
            await send.send(SessionMessage(types.jsonrpc_message_adapter.validate_python(message)))
            with anyio.fail_after(30):
                answer = (await receive.receive()).message
            tasks.cancel_scope.cancel()
        found: dict[str, Any] = json.loads(answer.model_dump_json(by_alias=True, exclude_unset=True))
        return found

    return anyio.run(exchange)


def ask_table(options: ServerOptions, message: dict[str, Any]) -> dict[str, Any] | None:
    found = handshake.answer(json.dumps(message).encode(), identity(options))
    return None if found is None else json.loads(found.reply)


def with_client(capabilities: dict[str, Any], **info: str) -> dict[str, Any]:
    message = initialize(1)
    message["params"] |= {
        "capabilities": capabilities,
        "clientInfo": {"name": "client", "version": "1", **info},
    }
    return message


CLIENTS = {
    "plain": with_client({}),
    "roots": with_client({"roots": {"listChanged": True}}, title="Client", websiteUrl="https://example.org"),
    "all that an editor has": with_client(
        {
            "roots": {"listChanged": True},
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
            "experimental": {"x": {"y": 1}},
            "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}},
            "tasks": {"list": {}, "cancel": {}, "requests": {"sampling": {"createMessage": {}}}},
        }
    ),
    "an unknown capability": with_client({"novelty": {"on": {}}}),
}


@pytest.mark.parametrize("program", [EOS, SANDBOX])
@pytest.mark.parametrize("tool_set", SETS)
def test_the_table_answers_initialize_and_discover_as_the_sdk_does(program: str, tool_set: str) -> None:
    options = ServerOptions(program=program, tool_set=tool_set, sandbox_id="eos-1")
    for message in (initialize(1), discover("d")):
        assert ask_table(options, message) == ask_sdk(options, message)


@pytest.mark.parametrize("version", [*sdk.KNOWN_PROTOCOL_VERSIONS, "1999-01-01", ""])
def test_the_table_answers_every_version_as_the_sdk_does(version: str) -> None:
    assert ask_table(ServerOptions(), initialize("x", version)) == ask_sdk(
        ServerOptions(), initialize("x", version)
    )


@pytest.mark.parametrize("message", CLIENTS.values(), ids=CLIENTS.keys())
def test_the_table_answers_every_kind_of_client_as_the_sdk_does(message: dict[str, Any]) -> None:
    assert ask_table(ServerOptions(), message) == ask_sdk(ServerOptions(), message)


def test_the_versions_of_the_table_are_the_versions_of_the_sdk() -> None:
    assert handshake.HANDSHAKE_VERSIONS == sdk.HANDSHAKE_PROTOCOL_VERSIONS
    assert (handshake.MODERN_VERSION,) == sdk.MODERN_PROTOCOL_VERSIONS


def changed(message: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {**message, "params": {**message["params"], **params}}


REFUSED = {
    "no client": changed(initialize(1), clientInfo=None),
    "a client without version": changed(initialize(1), clientInfo={"name": "x"}),
    "a version that is a number": changed(initialize(1), protocolVersion=3),
    "capabilities that are a list": changed(initialize(1), capabilities=[]),
    "roots with text": changed(initialize(1), capabilities={"roots": {"listChanged": "perhaps"}}),
    "sampling that is true": changed(initialize(1), capabilities={"sampling": True}),
    "an unknown envelope version": changed(
        discover(1), _meta={**META, "io.modelcontextprotocol/protocolVersion": "2999-01-01"}
    ),
    "an envelope without capabilities": changed(
        discover(1), _meta={k: v for k, v in META.items() if not k.endswith("Capabilities")}
    ),
}


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_sdk_refuses_is_left_to_it(message: dict[str, Any]) -> None:
    assert "error" in ask_sdk(ServerOptions(), message)
    assert ask_table(ServerOptions(), message) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{",
        b'{"method":"initialize"}',
        b'{"jsonrpc":"2.0","id":true,"method":"initialize","params":{}}',
    ],
)
def test_other_lines_get_no_answer_from_the_table(line: bytes) -> None:
    assert handshake.answer(line, identity(ServerOptions())) is None


def test_what_stands_between_the_start_and_the_first_answer_imports_only_a_little_of_the_standard_library() -> (  # noqa: E501
    None
):
    program = (
        "import sys; before = set(sys.modules); import eos_mcp.__main__, eos_mcp.mcp.stdio, "
        "eos_mcp.mcp.server_identity\n"
        "print(' '.join(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {root()!r})\n{program}"],
        capture_output=True,
        text=True,
    )
    added = set(done.stdout.split())
    assert done.returncode == 0, done.stderr
    top = {name.partition(".")[0] for name in added if not name.startswith("_")}
    light = {
        "collections", "contextlib", "copyreg", "enum", "eos_mcp", "functools", "genericpath", "os", "posixpath", "stat", "heapq", "importlib", "itertools", "json", "keyword", "operator", "queue", "re",  # noqa: E501
        "reprlib", "signal", "threading", "types", "typing", "warnings", "weakref",
    }  # fmt: skip
    assert top <= light, f"the entry grew by {sorted(top - light)}"


def root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.parametrize("tool_set", SETS)
@pytest.mark.parametrize("program", [EOS, SANDBOX])
def test_the_instructions_are_short_and_name_only_tools_of_their_set(tool_set: str, program: str) -> None:
    options = ServerOptions(program=program, tool_set=tool_set)
    text = identity(options).instructions
    named = {operation.name for operation in ALL} & set(re.findall(r"\w+", text)) - {"snapshot"}
    assert named <= {operation.name for operation in schema.operations(options)}
    assert len(text) <= 1000
