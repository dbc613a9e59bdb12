"""Calls through the SDK's own client in memory: arguments, results as text and structure, errors, progress,
cancellation, waits.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.types import Implementation

from eos_agent.wire.protocol import CONNECTION_ERROR, OperationError, error_envelope
from eos_mcp.catalog import operations_of_set
from eos_mcp.mcp import app, tools
from eos_mcp.mcp.server_options import SANDBOX, ServerOptions
from tests.eos_mcp.scripted_gateway import Reply, ScriptedGateway, call, shown

ERAS: tuple[ConnectMode, ...] = ("legacy", "2026-07-28")


DONE = {
    "status": "ok",
    "exit_code": 0,
    "wall_time_seconds": 0.2,
    "command_total_time_seconds": 0.2,
    "start_offset": 0,
    "end_offset": 1,
    "total_lines": 1,
    "original_token_count": 2,
    "output": "ready",
    "workspace_session_id": "w1",
}


@pytest.mark.parametrize("mode", ERAS)
def test_a_result_is_the_gateways_json_and_a_text_that_says_the_same(mode: ConnectMode) -> None:
    gateway = ScriptedGateway(exec_command=DONE)
    found = call("exec_command", {"sandbox_id": "eos-1", "cmd": "cat status"}, gateway, mode=mode)
    assert found.structure == DONE
    assert not found.is_error
    assert "ready" in found.text
    assert "exit code 0" in found.text
    (asked,) = gateway.asked
    assert (asked.op, asked.sandbox_id, asked.args["cmd"]) == ("exec_command", "eos-1", "cat status")


@pytest.mark.parametrize("mode", ERAS)
def test_an_error_is_the_envelope_with_is_error_and_a_text_with_the_next_step(mode: ConnectMode) -> None:
    envelope = error_envelope(
        "not_found",
        "no such file: a",
        {"path": "a", "reason": "file_not_found", "hint": "list it with file_list"},
    )
    found = call(
        "file_read", {"sandbox_id": "eos-1", "path": "a"}, ScriptedGateway(file_read=envelope), mode=mode
    )
    assert found.structure == envelope
    assert found.is_error
    for part in ("file_read", "no such file: a", "not_found", "file_not_found", "list it with file_list"):
        assert part in found.text


def test_a_gateway_that_is_not_there_is_an_error_result() -> None:
    lost = OperationError(CONNECTION_ERROR, "nobody listens at x", {"hint": "start it"}, reason="no_gateway")
    found = call("list_sandboxes", {}, ScriptedGateway(list_sandboxes=lost))
    assert found.structure["error"]["kind"] == "connection_error"
    assert found.is_error


def test_a_bug_of_ours_is_an_internal_error_that_tells_nothing_of_it() -> None:
    found = call("list_sandboxes", {}, ScriptedGateway(list_sandboxes=ValueError("a secret of ours")))
    assert found.structure["error"]["kind"] == "internal_error"
    assert "secret" not in json.dumps(found)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown argument": ("exec_command", {"sandbox_id": "s", "cmd": "x", "timeout_sec": 3}, "timeout_ms"),
    "an unknown tool": ("exec_comand", {}, "exec_command"),
    "a null for a required argument": (
        "exec_command",
        {"sandbox_id": "s", "cmd": None},
        "make test",
    ),
    "words for a number": ("file_read", {"sandbox_id": "s", "path": "a", "limit": "nine"}, "limit"),
    "a number out of bounds": ("file_read", {"sandbox_id": "s", "path": "a", "limit": 262145}, "262144"),
    "a value that is no choice": (
        "create_workspace_session",
        {"sandbox_id": "s", "network_profile": "none"},
        "isolated",
    ),
    "a missing argument": ("exec_command", {"sandbox_id": "s"}, "cmd"),
    "a missing sandbox to destroy": ("destroy_sandbox", {}, "sandbox_id"),
    "a blank sandbox": ("exec_command", {"cmd": "x", "sandbox_id": " "}, "sandbox_id"),
}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(("name", "arguments", "expected"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_refused_before_the_gateway_with_the_nearest_right_ones(
    name: str, arguments: dict[str, Any], expected: str, mode: ConnectMode
) -> None:
    gateway = ScriptedGateway()
    found = call(name, arguments, gateway, mode=mode)
    assert found.is_error
    assert found.structure["error"]["kind"] == "invalid_request"
    assert expected in found.text
    assert gateway.asked == []


def test_a_tool_of_another_set_is_refused_by_name() -> None:
    found = call(
        "exec_command",
        {"sandbox_id": "s", "cmd": "x"},
        ScriptedGateway(),
        ServerOptions(tool_set="management"),
    )
    assert found.structure["error"]["kind"] == "invalid_request"
    assert "--set" in found.text
    close = call(
        "discard_draft",
        {"sandbox_id": "s", "draft_id": "d"},
        ScriptedGateway(),
        ServerOptions(tool_set="agent"),
    )
    assert (
        "--set" in close.text and "did you mean" not in close.text
    )  # diff_draft, which this set has, is no way to discard one


def test_the_servers_own_sandbox_stands_in_where_none_is_named_but_never_for_destroying() -> None:
    options = ServerOptions(sandbox_id="eos-9", tool_set="all")
    gateway = ScriptedGateway(
        exec_command=DONE, inspect_sandbox={"id": "eos-9", "state": "ready"}, list_sandboxes={"sandboxes": []}
    )
    call("exec_command", {"cmd": "x"}, gateway, options)
    call("exec_command", {"cmd": "x", "sandbox_id": "eos-2"}, gateway, options)
    call("inspect_sandbox", {}, gateway, options)
    call("list_sandboxes", {}, gateway, options)
    assert [(a.sandbox_id, a.args.get("sandbox_id")) for a in gateway.asked] == [
        ("eos-9", None),
        ("eos-2", None),
        (None, "eos-9"),
        (None, None),
    ]
    assert call("destroy_sandbox", {}, gateway, options).is_error


def waited(
    options: ServerOptions, arguments: dict[str, Any], *, progress: bool = False, name: str | None = None
) -> Any:
    gateway = ScriptedGateway(exec_command=DONE)

    async def go() -> None:
        async def seen(progress: float, total: float | None, message: str | None) -> None: ...

        info = Implementation(name=name, version="1") if name else None
        async with Client(
            app.build(options, gateway=gateway).server, mode="legacy", client_info=info
        ) as client:
            await client.call_tool(
                "exec_command",
                {"sandbox_id": "s", "cmd": "x", **arguments},
                progress_callback=seen if progress else None,
            )

    anyio.run(go)
    return gateway.asked[0].args.get("yield_time_ms")


def test_a_command_yields_its_handle_before_a_client_gives_up() -> None:
    """Clients of which nothing is known may give up after five seconds."""
    assert waited(ServerOptions(), {}) == 4_000
    assert waited(ServerOptions(), {}, progress=True) == 10_000
    assert waited(ServerOptions(), {}, name="claude-code") == 10_000
    assert waited(ServerOptions(tool_set="runtime"), {}) is None
    assert waited(ServerOptions(program=SANDBOX, tool_set="agent"), {}) is None
    assert waited(ServerOptions(), {"yield_time_ms": 0}) == 0
    assert waited(ServerOptions(), {"yield_time_ms": 3_600_000}) == 4_500
    assert waited(ServerOptions(), {"yield_time_ms": 3_600_000}, name="Claude-Code") == 20_000
    assert waited(ServerOptions(), {"yield_time_ms": 3_600_000}, progress=True) == 50_000
    assert waited(ServerOptions(program=SANDBOX), {"yield_time_ms": 3_600_000}) == 20_000
    service = {"service": "web", "ready": {"port": 80}, "workspace_session_id": "w"}
    for tool_set in ("agent", "runtime", "all"):
        assert waited(ServerOptions(tool_set=tool_set), service) == 4_500
        assert waited(ServerOptions(tool_set=tool_set), service, progress=True) == 50_000
    assert waited(ServerOptions(), {**service, "yield_time_ms": 0}) == 0


def test_every_call_has_a_deadline_with_room_for_its_own_wait() -> None:
    options = ServerOptions(timeout_s=5, tool_set="all")
    replies: dict[str, Reply] = {operation.name: {} for operation in operations_of_set("all")}
    gateway = ScriptedGateway(**replies)
    call("file_read", {"sandbox_id": "s", "path": "a"}, gateway, options)
    call(
        "wait_command", {"sandbox_id": "s", "command_session_id": "c", "timeout_ms": 4_000}, gateway, options
    )
    call("create_sandbox", {"image": "i", "workspace_root": "/w"}, gateway, options)
    assert [asked.timeout_s for asked in gateway.asked] == [5, 9, tools.UNBOUNDED_S]


def test_the_first_progress_comes_within_two_seconds_and_the_next_within_ten() -> None:
    assert tools.FIRST_PROGRESS_S <= 2
    assert tools.NEXT_PROGRESS_S <= 10


def test_progress_rises_strictly_while_a_call_runs_and_carries_what_the_manager_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tools, "FIRST_PROGRESS_S", 0.01)
    monkeypatch.setattr(tools, "NEXT_PROGRESS_S", 0.01)
    seen: list[tuple[float, str | None]] = []

    async def go() -> None:
        enough = anyio.Event()

        async def create(say: Callable[[str], Awaitable[None]] | None) -> dict[str, Any]:
            assert say is not None
            await say("copying the workspace")
            await say("starting")
            await enough.wait()
            return {"id": "eos-1", "state": "ready", "workspace_root": "/w"}

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, message))
            if len(seen) == 6:
                enough.set()

        gateway = ScriptedGateway(create_sandbox=create)
        async with Client(app.build(ServerOptions(), gateway=gateway).server, mode="legacy") as client:
            result = await client.call_tool(
                "create_sandbox", {"image": "i", "workspace_root": "/w"}, progress_callback=on_progress
            )
            assert shown(result).structure["id"] == "eos-1"

    anyio.run(go)
    values = [value for value, _ in seen]
    assert values == sorted(set(values))
    assert [message for _, message in seen][:2] == ["copying the workspace", "starting"]
    assert all(message is not None and message.startswith("starting: ") for _, message in seen[2:])


def test_without_a_token_the_manager_is_not_asked_for_progress() -> None:
    gateway = ScriptedGateway(create_sandbox={"id": "eos-1"})
    call("create_sandbox", {"image": "i", "workspace_root": "/w"}, gateway)
    assert not gateway.asked[0].streams


@pytest.mark.parametrize("name", ["exec_command", "file_read"])
def test_a_cancelled_command_is_cancelled_in_the_sandbox_under_its_request_id_and_a_read_just_ends(
    name: str,
) -> None:
    gateway = ScriptedGateway(cancel_request={})

    async def go() -> None:
        begun, expected = anyio.Event(), anyio.Event()

        async def for_ever(say: object) -> dict[str, Any]:
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                expected.set()
            raise AssertionError

        gateway.replies[name] = for_ever
        arguments = (
            {"sandbox_id": "s", "cmd": "sleep 600"}
            if name == "exec_command"
            else {"sandbox_id": "s", "path": "a"}
        )
        async with (
            Client(app.build(ServerOptions(), gateway=gateway).server, mode="2026-07-28") as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(client.call_tool, name, arguments)
            await begun.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(30):
            await expected.wait()

    anyio.run(go)
    cancels = [asked for asked in gateway.asked if asked.op == "cancel_request"]
    if name == "exec_command":
        (cancel,) = cancels
        assert cancel.args == {"request_id": gateway.asked[0].request_id}
        assert cancel.sandbox_id == "s"
    else:
        assert cancels == []


def test_a_long_output_shows_head_and_tail_and_names_the_command_that_has_the_rest() -> None:
    output = "\n".join(f"line {number:05d} {'x' * 40}" for number in range(3000))
    long = {**DONE, "output": output, "end_offset": 3000, "total_lines": 3000}
    gateway = ScriptedGateway(exec_command=long)

    async def listed(say: object) -> dict[str, Any]:
        mine = next(asked.request_id for asked in gateway.asked if asked.op == "exec_command")
        return {
            "commands": [
                {"command_session_id": "other", "request_id": "x"},
                {"command_session_id": "namespace_execution_4", "request_id": mine},
            ]
        }

    gateway.replies["list_commands"] = listed
    found = call("exec_command", {"sandbox_id": "s", "cmd": "x"}, gateway)
    kept = found.structure["end_offset"]
    assert found.structure["output"].split("\n") == output.split("\n")[:kept] and 0 < kept < 3000
    assert (
        found.structure["tail"]["output"].split("\n")
        == output.split("\n")[found.structure["tail"]["start_offset"] :]
    )
    assert (found.structure["truncated"], found.structure["command_session_id"]) == (
        True,
        "namespace_execution_4",
    )
    assert len(json.dumps(found.structure)) < 30_000 and len(found.text) < 20_000
    assert "line 00000 " in found.text
    assert "line 02999 " in found.text
    assert str(len(output)) in found.text
    shown_first = found.text[: found.text.index("[...")].count("line 0")
    assert (
        f"read_command_lines command_session_id=namespace_execution_4 start_offset={shown_first}"
        in found.text
    )


@pytest.mark.parametrize("mode", ERAS)
def test_resources_and_prompts_of_the_drop_in_program_are_empty_lists_and_reading_one_is_an_error(
    mode: ConnectMode,
) -> None:
    from mcp.shared.exceptions import MCPError

    async def go() -> None:
        options = ServerOptions(program=SANDBOX, tool_set="all")
        async with Client(app.build(options, gateway=ScriptedGateway()).server, mode=mode) as client:
            assert (await client.list_resources()).resources == []
            assert (await client.list_resource_templates()).resource_templates == []
            assert (await client.list_prompts()).prompts == []
            with pytest.raises(MCPError) as read:
                await client.read_resource("eos://nothing")
            assert read.value.error.code == -32602
            with pytest.raises(MCPError) as prompt:
                await client.get_prompt("nothing")
            assert prompt.value.error.code == -32602

    anyio.run(go)
