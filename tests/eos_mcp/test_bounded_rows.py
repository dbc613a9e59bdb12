"""Replies that are long because of a list, and pages that are longer for a model that asks for more lines."""

from __future__ import annotations

from typing import Any

import jsonschema

from eos_agent.wire.protocol import error_envelope
from eos_mcp import catalog
from eos_mcp.mcp import render, truncate
from eos_mcp.mcp.schema import output_schema
from eos_mcp.mcp.server_options import ServerOptions
from eos_mcp.mcp.truncate import BUDGET, fit
from eos_mcp.mcp.truncate_rows import size
from tests.eos_mcp.scripted_gateway import ScriptedGateway, call


def test_of_a_long_list_the_first_rows_stay_and_the_others_are_counted() -> None:
    commands = [{"command_session_id": f"namespace_execution_{n}", "command": "x" * 100} for n in range(1000)]
    found = fit("list_commands", {"commands": commands, "next": None})
    kept = found["commands"]
    assert kept == commands[: len(kept)] and size(found) < BUDGET + 500
    assert found["truncated"] and found["left_out"] == {"commands": 1000 - len(kept)}
    assert found["next"] == kept[-1]["command_session_id"]


def test_of_events_the_newest_stay() -> None:
    events = [{"ts": n, "name": "e" * 50} for n in range(2000)]
    found = fit("events", {"events": events})
    assert found["events"] == events[-len(found["events"]) :] and found["events"]


def satisfies(operation: str, result: dict[str, Any]) -> bool:
    declared = catalog.find(operation)
    assert declared is not None
    schema = output_schema(declared)
    assert schema is not None
    return jsonschema.Draft202012Validator(schema).is_valid(result)


def test_what_an_import_leaves_out_itself_is_told_beside_the_rows_that_are_missing() -> None:
    changed = [{"path": "p" * 100, "change": "added"}] * 2000
    found = fit("import_changes", {"changed": changed, "left_out": ["socket"]})
    assert found["truncated"] and found["left_out"] == ["socket"]
    assert found["rows_left_out"] == {"changed": 2000 - len(found["changed"])}
    assert satisfies("import_changes", found)


def test_an_export_beside_a_git_that_stays_satisfies_its_schema() -> None:
    left = {"count": 2, "paths": [".git/HEAD"], "why": [{"count": 2, "why": "it stays"}]}
    found = fit("export_changes", {"left_out": left})
    assert found["left_out"] == left and satisfies("export_changes", found)
    assert not satisfies("export_changes", {"left_out": ["socket"]})


def test_a_rejection_of_many_conflicts_is_short_and_counts_them_all() -> None:
    conflicts = [{"path": f"dir/{n}.py", "class": "text", "base": {"digest": "d" * 64}} for n in range(400)]
    rejection = {"conflicts": conflicts, "conflict_count": 400}
    envelope = error_envelope(
        "operation_failed", "conflicts", {"reason": "source_conflict", "publish_rejection": rejection}
    )
    found = fit("publish_workspace_session", envelope)
    details: dict[str, Any] = found["error"]["details"]
    kept = details["publish_rejection"]["conflicts"]
    assert kept == conflicts[: len(kept)] and size(found) < BUDGET + 500
    assert details["publish_rejection"]["conflict_count"] == 400
    assert details["left_out"] == {"publish_rejection.conflicts": 400 - len(kept)}


def test_what_is_short_or_has_no_list_is_as_it_came() -> None:
    for reply in ({"a": [1, 2], "b": {"c": [3]}}, {"text": "x" * 50_000}):
        assert fit("topology", reply) == reply


ROWS = [f"row {n:05d} " + "x" * 40 for n in range(1000)]


def page(client_name: str | None, limit: int | None) -> int:
    reply = {
        "status": "ok",
        "exit_code": 0,
        "output": "\n".join(ROWS),
        "start_offset": 0,
        "end_offset": 1000,
        "total_lines": 1000,
        "command_session_id": "c",
    }
    args = {"sandbox_id": "s", "command_session_id": "c", **({} if limit is None else {"limit": limit})}
    found = call(
        "read_command_lines", args, ScriptedGateway(read_command_lines=reply), client_name=client_name
    )
    lines = found.structure["output"].split("\n")
    assert lines == ROWS[: found.structure["end_offset"]]
    assert ROWS[found.structure["end_offset"] - 1] in found.text
    return len(lines)


def test_a_page_is_as_long_as_asked_where_the_client_is_known_to_take_it() -> None:
    small = page(None, None)
    assert 350 < small < 450
    assert page(None, 1000) == small
    assert page("claude-code", None) == small
    assert page("claude-code", 1000) == 1000


def test_escape_codes_are_gone_from_text_and_structure_unless_raw_is_asked_for() -> None:
    reply = {
        "status": "ok",
        "exit_code": 0,
        "output": "\x1b[31mred\x1b[0m",
        "start_offset": 0,
        "end_offset": 1,
        "total_lines": 1,
    }
    gateway = ScriptedGateway(exec_command=reply)
    found = call("exec_command", {"sandbox_id": "s", "cmd": "x"}, gateway)
    assert found.structure["output"] == "red" and "\x1b" not in found.text
    raw = call("exec_command", {"sandbox_id": "s", "cmd": "x", "raw": True}, gateway)
    assert raw.structure["output"] == reply["output"]
    runtime = call(
        "exec_command", {"sandbox_id": "s", "cmd": "x"}, gateway, ServerOptions(tool_set="runtime")
    )
    assert runtime.structure["output"] == reply["output"]


def test_a_screen_is_in_the_text_and_in_the_structure() -> None:
    running = {
        "status": "running",
        "exit_code": None,
        "output": "\x1b[?1049h\x1b[2J\x1b[2;3Hhello",
        "start_offset": 0,
        "end_offset": 1,
        "total_lines": 1,
        "screen_offset": 0,
        "command_session_id": "c",
    }
    gateway = ScriptedGateway(exec_command=running, read_command_lines=running)
    found = call("exec_command", {"sandbox_id": "s", "cmd": "vi"}, gateway)
    assert found.structure["screen"] == "\n  hello" and "\n  hello" in found.text
    assert gateway.asked[-1].args == {
        "command_session_id": "c",
        "start_offset": 0,
        "limit": 1000,
        "raw": True,
    }


def test_the_limits_of_texts_are_those_of_pages() -> None:
    assert render.TEXT_LIMIT == truncate.BUDGET
