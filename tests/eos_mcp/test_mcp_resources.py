"""Resources, prompts and completion through real clients of both eras, above a scripted gateway."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp.types as types
import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.shared.exceptions import MCPError

from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_mcp.catalog import ALL
from eos_mcp.gateway_client.aio import GatewayRequest
from eos_mcp.mcp import app, schema
from eos_mcp.mcp.server_options import SANDBOX, SETS, ServerOptions
from tests.eos_mcp.scripted_gateway import Reply, ScriptedGateway

LEGACY: ConnectMode = "legacy"
MODERN: ConnectMode = "2026-07-28"
ERAS = (LEGACY, MODERN)
both = pytest.mark.parametrize("mode", ERAS)

ONE_SANDBOX = {"sandboxes": [{"id": "eos-1", "state": "ready", "workspace_root": "/p"}]}
VERSION_2 = {"version": 2, "agent": "ada", "paths": 1, "head": True}
VERSION_1 = {"version": 1, "agent": None, "paths": None, "head": False}


def using(
    gateway: ScriptedGateway,
    use: Callable[[Client], Awaitable[Any]],
    mode: ConnectMode = LEGACY,
    options: ServerOptions | None = None,
) -> Any:
    """The result of `use` with a client of a server above the gateway."""

    async def go() -> Any:
        async with Client(app.build(options or ServerOptions(), gateway=gateway).server, mode=mode) as client:
            return await use(client)

    return anyio.run(go)


def read(gateway: ScriptedGateway, uri: str, mode: ConnectMode = LEGACY) -> types.ReadResourceResult:
    found: types.ReadResourceResult = using(gateway, lambda client: client.read_resource(uri), mode)
    return found


def text_of(result: types.ReadResourceResult) -> str:
    (content,) = result.contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


def refused(gateway: ScriptedGateway, uri: str, mode: ConnectMode) -> MCPError:
    """The error of a read."""

    async def use(client: Client) -> MCPError:
        with pytest.raises(MCPError) as failed:
            await client.read_resource(uri)
        return failed.value

    found: MCPError = using(gateway, use, mode)
    return found


@pytest.mark.parametrize(("mode", "code"), [(LEGACY, -32002), (MODERN, -32602)])
@pytest.mark.parametrize(
    "uri", ["eos://eos-1/versions/1/files/../x", "file:///etc/passwd", "eos://eos-1/versions/7"]
)
def test_an_unknown_resource_has_the_error_of_its_era(uri: str, mode: ConnectMode, code: int) -> None:
    gateway = ScriptedGateway(list_versions={"versions": [VERSION_2, VERSION_1], "next": None})
    error = refused(gateway, uri, mode).error
    assert (error.code, error.data["uri"]) == (code, uri)


@both
def test_a_sandbox_that_does_not_exist_is_a_resource_that_does_not(mode: ConnectMode) -> None:
    missing = OperationError(INVALID_REQUEST, "sandbox not found: eos-9", reason="sandbox_not_found")
    error = refused(ScriptedGateway(list_drafts=missing.envelope()), "eos://eos-9/drafts", mode).error
    assert error.code == (-32602 if mode == MODERN else -32002)
    assert "eos-9" in error.message


@both
def test_a_failure_of_a_sandbox_is_not_an_unknown_resource(mode: ConnectMode) -> None:
    broken = OperationError(OPERATION_FAILED, "the disk is full", reason="no_space")
    error = refused(ScriptedGateway(list_drafts=broken.envelope()), "eos://eos-1/drafts", mode).error
    assert (error.code, error.message, error.data["reason"]) == (-32603, "the disk is full", "no_space")


@both
def test_listed_are_the_collections_drafts_versions_and_commands_of_each_sandbox(mode: ConnectMode) -> None:
    drafts = [{"draft_id": f"draft-{n}", "created_unix_ms": n, "paths": n} for n in range(30)]
    commands = [{"command_session_id": f"c_{n}", "command": "make\ttest", "status": "ok"} for n in range(30)]
    sandboxes = [{"id": f"eos-{n}", "state": "ready"} for n in range(9)] + [
        {"id": "eos-x", "state": "failed"}
    ]
    gateway = ScriptedGateway(
        list_sandboxes={"sandboxes": sandboxes},
        list_drafts={"drafts": drafts},
        list_versions={"versions": [VERSION_2, VERSION_1], "next": None},
        list_commands={"commands": commands, "next": None},
    )

    async def use(client: Client) -> list[list[str]]:
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        assert second.next_cursor is None
        return [[row.uri for row in page.resources] for page in (first, second)]

    first, second = using(gateway, use, mode)
    assert first[:5] == [
        "eos://eos-0/versions",
        "eos://eos-0/drafts",
        "eos://eos-0/drafts/draft-29",
        "eos://eos-0/drafts/draft-28",
        "eos://eos-0/drafts/draft-27",
    ]
    assert "eos://eos-7/commands/c_29" in first
    assert not [uri for uri in first + second if uri.endswith(("/draft-9", "/c_9")) or "eos-x" in uri]
    assert second[0] == "eos://eos-8/versions"
    assert len(first) == 8 * len(second)


@both
def test_a_cursor_of_another_origin_is_refused(mode: ConnectMode) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(MCPError) as failed:
            await client.list_resources(cursor="../\n")
        assert failed.value.error.code == -32602

    using(ScriptedGateway(list_sandboxes=ONE_SANDBOX), use, mode)


def test_a_sandbox_that_does_not_answer_hides_no_other_one() -> None:
    gateway = ScriptedGateway(
        list_sandboxes=ONE_SANDBOX, list_drafts=OperationError(OPERATION_FAILED, "frozen", reason="silent")
    )
    listed = using(gateway, lambda client: client.list_resources())
    assert [row.uri for row in listed.resources] == ["eos://eos-1/versions", "eos://eos-1/drafts"]


def file_pages(raw: bytes) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """file_read of these bytes."""

    def page(args: dict[str, Any]) -> dict[str, Any]:
        assert args["version"] == 2 and args["encoding"] == "base64"
        at = args["offset"] - 1
        piece = raw[at : at + args["limit"]]
        end = at + len(piece)
        return {
            "path": args["path"],
            "version": 2,
            "content": base64.b64encode(piece).decode(),
            "total_bytes": len(raw),
            "next_offset": end + 1 if end < len(raw) else None,
        }

    return page


class Files(ScriptedGateway):
    """A gateway with one file in version 2."""

    def __init__(self, raw: bytes, **replies: Reply) -> None:
        super().__init__(**replies)
        self._page = file_pages(raw)

    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        return self._page(dict(request.args)) if request.op == "file_read" else await super().perform(request)


@both
def test_a_text_file_of_a_version_is_text_and_stays_the_same(mode: ConnectMode) -> None:
    text = "é\n" * 150_000
    found = read(Files(text.encode()), "eos://eos-1/versions/2/files/src/a%20b.py", mode)
    assert text_of(found) == text
    assert found.contents[0].mime_type == "text/x-python"
    if mode == MODERN:
        assert (found.ttl_ms, found.cache_scope) == (3_600_000, "private")


@both
def test_a_file_that_is_not_text_is_a_blob(mode: ConnectMode) -> None:
    raw = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    (content,) = read(Files(raw), "eos://eos-1/versions/2/files/icon", mode).contents
    assert isinstance(content, types.BlobResourceContents)
    assert (base64.b64decode(content.blob), content.mime_type) == (raw, "image/png")


@both
def test_a_file_above_the_limit_is_refused_with_the_way_to_its_parts(mode: ConnectMode) -> None:
    error = refused(Files(b"x" * (4 << 20)), "eos://eos-1/versions/2/files/big", mode).error
    assert (error.code, error.data["reason"], error.data["total_bytes"]) == (
        -32602,
        "resource_too_large",
        4 << 20,
    )
    assert "file_read" in error.data["hint"]


def test_a_version_shows_the_paths_that_it_changed_and_the_next_page() -> None:
    changed = [{"path": "a", "change": "modified"}, {"path": "b", "change": "deleted"}]
    gateway = ScriptedGateway(
        list_versions={"versions": [VERSION_2, VERSION_1], "next": None},
        diff_versions={"entries": changed, "next": "200"},
    )
    found = json.loads(text_of(read(gateway, "eos://eos-1/versions/2")))
    assert (found["version"]["agent"], found["since"]) == ("ada", 1)
    assert found["changes"] == [
        {"path": "a", "change": "modified", "uri": "eos://eos-1/versions/2/files/a"},
        {"path": "b", "change": "deleted"},
    ]
    assert found["next"] == "eos://eos-1/versions/2?cursor=200"
    read(gateway, found["next"])
    assert gateway.asked[-1].args["cursor"] == "200"


def test_the_output_of_a_command_is_plain_and_paged() -> None:
    class Output(ScriptedGateway):
        async def perform(self, request: GatewayRequest) -> dict[str, Any]:
            at = request.args["start_offset"]
            rows = "\n".join(f"\x1b[31m{n} {'x' * 200}\x1b[0m" for n in range(at, at + 1000))
            return {"output": rows, "end_offset": at + 1000, "total_lines": 3000}

    found = read(Output(), "eos://eos-1/commands/c_1")
    lines = text_of(found).split("\n")
    assert "\x1b" not in text_of(found)
    assert lines[1999].startswith("1999 x")
    assert lines[2000] == "[lines 2000 to 3000 are not shown: eos://eos-1/commands/c_1?start=2000]"
    meta = found.contents[0].meta
    assert meta is not None
    rest = text_of(read(Output(), meta["eos/next"]))
    assert rest.startswith("2000 x") and rest.split("\n")[-1].startswith("2999 ")


def test_templates_have_a_description_and_their_variables_are_completed() -> None:
    gateway = ScriptedGateway(
        list_sandboxes=ONE_SANDBOX,
        list_versions={"versions": [{"version": n} for n in range(120, 0, -1)], "next": None},
        file_list={"entries": [{"name": "app", "kind": "directory"}, {"name": "api.py", "kind": "file"}]},
    )

    async def use(client: Client) -> None:
        listed = (await client.list_resource_templates()).resource_templates
        assert all(row.description for row in listed)
        file = next(row.uri_template for row in listed if "{+path}" in row.uri_template)
        ref = types.ResourceTemplateReference(uri=file)

        async def values(name: str, typed: str, **given: str) -> types.Completion:
            argument = {"name": name, "value": typed}
            return (await client.complete(ref, argument, context_arguments=given)).completion

        assert (await values("sandbox", "eo")).values == ["eos-1"]
        assert (await values("sandbox", "x")).values == []
        versions = await values("version", "", sandbox="eos-1")
        assert (len(versions.values), versions.total, versions.has_more) == (100, 120, True)
        assert (await values("version", "12", sandbox="eos-1")).values == ["120", "12"]
        paths = await values("path", "src/ap", sandbox="eos-1", version="3")
        assert paths.values == ["src/app/", "src/api.py"]
        assert gateway.asked[-1].args["version"] == 3
        assert (await values("path", "../", sandbox="eos-1", version="3")).values == []
        assert (await values("path", "", sandbox="../x", version="3")).values == []
        for wrong, name in ((ref, "novelty"), (types.ResourceTemplateReference(uri="eos://{x}"), "sandbox")):
            with pytest.raises(MCPError) as failed:
                await client.complete(wrong, {"name": name, "value": ""})
            assert failed.value.error.code == -32602

    using(gateway, use)


@pytest.mark.parametrize("tool_set", SETS)
def test_prompts_name_only_tools_of_their_set(tool_set: str) -> None:
    options = ServerOptions(tool_set=tool_set)
    offered = {o.name for o in schema.operations(options)} | set(schema.names(options).values())
    everything = {operation.name for operation in ALL}
    conflict: dict[str, Any] = {"path": "a", "class": "text", "base": {}, "ours": {}, "theirs": {}}
    gateway = ScriptedGateway(
        list_sandboxes=ONE_SANDBOX,
        list_versions={"versions": [VERSION_2, VERSION_1], "next": None},
        list_workspace_sessions={
            "sessions": [{"workspace_session_id": "s1"}],
            "drafts": [{"draft_id": "d1"}],
        },
        preview_publish={"conflicts": [conflict], "conflict_count": 1},
    )

    async def use(client: Client) -> list[str]:
        texts: list[str] = []
        for prompt in (await client.list_prompts()).prompts:
            assert prompt.description and prompt.title
            names = [argument.name for argument in prompt.arguments or ()]
            forms: list[dict[str, str]] = [
                {},
                {name: "d1" for name in names if name != "workspace_session_id"},
            ]
            for given in forms:
                (message,) = (await client.get_prompt(prompt.name, given)).messages
                assert isinstance(message.content, types.TextContent)
                texts.append(message.content.text)
                assert len(message.content.text) < 5000
        return texts

    texts = using(gateway, use, options=options)
    assert bool(texts) == (tool_set != "observability")
    for text in texts:
        assert (everything & set(re.findall(r"\w+", text))) - {"events", "snapshot", "resources"} <= offered


@both
def test_a_prompt_that_is_unknown_or_filled_in_wrong_is_refused(mode: ConnectMode) -> None:
    two = {"sandboxes": [{"id": name, "state": "ready"} for name in ("eos-1", "eos-2")]}

    async def use(client: Client) -> None:
        for name, given, said in (
            ("novelty", {}, "no such prompt"),
            ("start", {"tusk": "x"}, "tusk is unknown"),
            ("start", {"task": "x" * 20_001}, "too long"),
            ("resolve-conflict", {"sandbox_id": "../x", "draft_id": "d"}, "not an id"),
            ("resolve-conflict", {"draft_id": "d"}, "2 sandboxes run: eos-1, eos-2"),
            ("resolve-conflict", {"sandbox_id": "e", "draft_id": "d", "workspace_session_id": "s"}, "either"),
        ):
            with pytest.raises(MCPError) as failed:
                await client.get_prompt(name, given)
            assert failed.value.error.code == -32602
            assert said in failed.value.error.message

    using(ScriptedGateway(list_sandboxes=two), use, mode)


def test_the_task_is_in_the_prompt_as_it_was_typed() -> None:
    gateway = ScriptedGateway(list_sandboxes=ONE_SANDBOX)
    found = using(gateway, lambda client: client.get_prompt("start", {"task": "fix {x} & <y>"}))
    text = found.messages[0].content.text
    assert text.startswith("Task: fix {x} & <y>\n")
    assert "eos-1 ready /p" in text


def test_the_drop_in_program_has_no_prompts_resources_or_subscriptions() -> None:
    async def use(client: Client) -> None:
        capabilities = client.server_capabilities
        assert capabilities.completions is None and capabilities.logging is None
        assert capabilities.resources is not None and not capabilities.resources.subscribe
        assert not (await client.list_resources()).resources
        assert not (await client.list_prompts()).prompts

    using(ScriptedGateway(), use, options=ServerOptions(program=SANDBOX, tool_set="all"))
