"""Tool definitions: the contract's projection, our additions, what every provider accepts, what they cost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from eos_mcp import catalog
from eos_mcp.catalog import Operation
from eos_mcp.mcp import schema
from eos_mcp.mcp.server_identity import INSTRUCTIONS, identity
from eos_mcp.mcp.server_options import EOS, SANDBOX, SETS, ServerOptions
from tests.eos_mcp import closed_schemas
from tests.eos_mcp.mcp_wire import META, Wire

REFERENCE = {
    "management": {
        "create_sandbox": ["image", "workspace_root"],
        "list_docker_images": [],
        "list_workspace_directories": [],
        "destroy_sandbox": ["sandbox_id"],
        "list_sandboxes": [],
        "inspect_sandbox": ["sandbox_id"],
        "squash_layerstacks": ["sandbox_id"],
        "export_changes": ["sandbox_id", "dest"],
    },
    "runtime": {
        "exec_command": ["sandbox_id", "cmd"],
        "write_command_stdin": ["sandbox_id", "command_session_id", "stdin"],
        "read_command_lines": ["sandbox_id", "command_session_id"],
        "file_read": ["sandbox_id", "path"],
        "file_write": ["sandbox_id", "path", "content"],
        "file_edit": ["sandbox_id", "path", "edits"],
        "file_blame": ["sandbox_id", "path"],
        "create_workspace_session": ["sandbox_id"],
        "publish_workspace_session": ["sandbox_id", "workspace_session_id"],
        "destroy_workspace_session": ["sandbox_id", "workspace_session_id"],
    },
    "observability": {
        "snapshot": [],
        "trace": ["sandbox_id"],
        "events": ["sandbox_id"],
        "resources": [],
        "daemon": ["sandbox_id"],
        "topology": ["sandbox_id"],
        "cgroup": ["sandbox_id"],
        "layerstack": ["sandbox_id"],
    },
}
AGENT = (
    "create_sandbox", "list_sandboxes", "destroy_sandbox", "export_changes",
    "exec_command", "write_command_stdin", "close_stdin", "read_command_lines", "signal_command",
    "file_read", "file_write", "file_edit", "apply_patch", "file_list", "file_search",
    "file_delete", "file_move",
    "create_workspace_session", "publish_workspace_session", "rebase_workspace_session", "diff_session",
    "checkpoint_session", "restore_session", "destroy_workspace_session", "list_workspace_sessions",
)  # fmt: skip

# o200k takes 4.4 characters of such definitions for one token (measured).
CHARACTERS_PER_TOKEN = 4.4


def definitions(program: str = EOS, tool_set: str = "agent") -> list[dict[str, Any]]:
    options = ServerOptions(program=program, tool_set=tool_set)
    operations = schema.operations(options)
    return [
        {**found, "name": operation.name}
        for found, operation in zip(schema.definitions(options, operations), operations, strict=True)
    ]


@pytest.mark.parametrize("tool_set", REFERENCE)
def test_sandbox_mcp_offers_exactly_the_reference_tools_that_exist_with_their_required_arguments_in_order(
    tool_set: str,
) -> None:
    offered = {d["name"]: d["inputSchema"]["required"] for d in definitions(SANDBOX, tool_set)}
    expected = {
        name: required for name, required in REFERENCE[tool_set].items() if catalog.find(name) is not None
    }
    assert list(offered.items()) == list(expected.items())


@pytest.mark.parametrize("tool_set", SETS)
def test_eos_mcp_adds_ours_after_the_reference_tools(tool_set: str) -> None:
    reference = [d["name"] for d in definitions(SANDBOX, tool_set)]
    ours = [d["name"] for d in definitions(EOS, tool_set)]
    assert ours[: len(reference)] == reference
    assert all(operation.ours for operation in catalog.ALL if operation.name in ours[len(reference) :])


def test_the_set_agent_holds_these_tools_as_far_as_they_exist() -> None:
    names = {d["name"] for d in definitions()}
    assert names == {name for name in AGENT if catalog.find(name) is not None}


def test_no_text_of_the_set_agent_names_a_tool_that_it_lacks() -> None:
    names = {d["name"] for d in definitions()}
    lacking = {o.name for o in catalog.ALL if "_" in o.name} - names
    texts = [json.dumps(d, ensure_ascii=False) for d in definitions()] + [INSTRUCTIONS["agent"]]
    for text in texts:
        assert not {name for name in lacking if re.search(rf"\b{name}\b", text)}, text


def test_instructions_are_short() -> None:
    for tool_set in SETS:
        assert len(identity(ServerOptions(tool_set=tool_set)).instructions) <= 1000, tool_set


def test_a_projection_is_exactly_the_one_of_the_contract() -> None:
    operation = catalog.find("file_read")
    assert operation is not None
    found = schema.input_schema(operation)
    for part in found["properties"].values():
        assert part.pop("description")
    assert found == {
        "type": "object",
        "properties": {
            "sandbox_id": {"type": "string"},
            "path": {"type": "string"},
            "offset": {"type": "integer", "minimum": 1, "default": 1},
            "limit": {"type": "integer", "minimum": 1, "maximum": 262144, "default": 2000},
            "paths": {"type": "array", "items": {"type": "string"}},
            "workspace_session_id": {"type": "string"},
            "encoding": {"type": "string"},
        },
        "required": ["sandbox_id", "path"],
        "additionalProperties": False,
    }


def test_every_kind_has_its_json_type_and_arrays_say_what_they_hold() -> None:
    for operation in catalog.ALL:
        properties = schema.input_schema(operation)["properties"]
        assert list(properties) == [
            *(["sandbox_id"] if injected(operation) else []),
            *(a.name for a in operation.arguments if not a.hidden),
        ]
        for argument in operation.arguments:
            if argument.hidden:
                continue
            found = properties[argument.name]
            kinds = {
                "string": "string",
                "path": "string",
                "integer": "integer",
                "float": "number",
                "json_array": "array",
                "json_object": "array",
                "boolean": "boolean",
            }
            fixed = argument.kind == "json_object" and "properties" in (argument.items or {})
            assert found["type"] == ("object" if fixed else kinds[argument.kind])
            assert found.get("default") == argument.default
            if argument.kind == "integer":
                assert found["minimum"] == (argument.minimum or 0)
            if argument.choices:
                assert found["enum"] == list(argument.choices)


def test_all_sets_but_the_agents_name_every_argument_that_a_model_may_give() -> None:
    for tool_set in SETS:
        for definition in definitions(EOS, tool_set):
            operation = catalog.find(definition["name"])
            assert operation is not None
            names = set(definition["inputSchema"]["properties"]) - {"sandbox_id"}
            known = {a.name for a in operation.arguments} - {"sandbox_id"}
            missing = known - names - schema.FOR_PERSONS
            assert not missing or tool_set == "agent", f"{operation.name}: {missing}"
            assert not names & schema.FOR_PERSONS


def injected(operation: Operation) -> bool:
    return operation.scope != "system" and operation.argument("sandbox_id") is None


def test_with_a_sandbox_of_its_own_the_server_demands_no_sandbox_id_but_for_destroying() -> None:
    for operation in catalog.ALL:
        required = schema.input_schema(operation, sandbox_optional=True)["required"]
        assert ("sandbox_id" in required) == (operation.name == "destroy_sandbox")
        assert required == [
            name
            for name in schema.input_schema(operation)["required"]
            if name != "sandbox_id" or name in required
        ]


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


@pytest.mark.parametrize("program", [EOS, SANDBOX])
def test_every_definition_is_one_that_every_provider_accepts(program: str) -> None:
    for definition in definitions(program, "all"):
        name, inputs = definition["name"], definition["inputSchema"]
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name)
        assert definition["title"]
        assert 0 < len(definition["description"]) <= 400, name
        assert set(definition["annotations"]) == {
            "readOnlyHint",
            "destructiveHint",
            "idempotentHint",
            "openWorldHint",
        }
        assert all(isinstance(hint, bool) for hint in definition["annotations"].values())
        assert not (
            definition["annotations"]["readOnlyHint"] and definition["annotations"]["destructiveHint"]
        ), name
        assert inputs["type"] == "object"
        assert inputs["additionalProperties"] is False
        assert "required" in inputs
        for argument, part in inputs["properties"].items():
            assert part["description"], f"{name}.{argument}"
            assert part.get("default", 0) is not None
            assert part["type"] != "array" or part["items"]
        for node in nodes(inputs):
            assert not {"$ref", "$defs", "oneOf", "anyOf", "allOf", "not"} & node.keys()
        jsonschema.Draft202012Validator.check_schema(inputs)


WITHOUT_OUTPUT = {
    "snapshot", "trace", "events", "resources", "daemon", "topology", "cgroup", "layerstack", "gateway_info",
}  # fmt: skip
"""Operations whose results have parts of no fixed form."""


@pytest.mark.parametrize("program", [EOS, SANDBOX])
def test_an_output_schema_describes_every_key_or_is_absent(program: str) -> None:
    for operation in schema.operations(ServerOptions(program=program, tool_set="all")):
        outputs = schema.output_schema(operation)
        if outputs is None:
            assert operation.name in WITHOUT_OUTPUT, f"{operation.name}: see eos_mcp/mcp/result_shapes.py"
            continue
        assert outputs["type"] == "object" and "required" not in outputs
        assert "error" in outputs["properties"]
        assert {field.name for field in operation.result if "." not in field.name} <= set(
            outputs["properties"]
        )
        jsonschema.Draft202012Validator.check_schema(outputs)
        for node in schemas_in(outputs):
            assert isinstance(node.get("type", ""), str) and ("type" in node or "anyOf" in node), (
                operation.name
            )
            assert node.get("type") != "array" or node["items"]
            if node.get("type") == "object":
                assert node.get("properties") or "additionalProperties" in node, operation.name


def schemas_in(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it; a key of a result may be called `type`, for example."""
    yield node
    inner = [*node.get("properties", {}).values(), *node.get("anyOf", ())]
    inner += [node[key] for key in ("items", "additionalProperties") if isinstance(node.get(key), dict)]
    for schema_ in inner:
        yield from schemas_in(schema_)


def test_the_error_envelope_and_an_empty_object_satisfy_every_output_schema() -> None:
    envelope = {"error": {"kind": "not_found", "message": "m", "details": {}}}
    for definition in definitions(EOS, "all"):
        if "outputSchema" in definition:
            closed_schemas.check(definition["outputSchema"], envelope)
            closed_schemas.check(definition["outputSchema"], {})


def test_every_example_result_satisfies_its_output_schema() -> None:
    for operation in catalog.ALL:
        outputs = schema.output_schema(operation)
        if outputs is not None and operation.result_example and "%s" not in operation.result_example:
            closed_schemas.check(outputs, json.loads(operation.result_example))


def test_the_set_of_a_coding_agent_stays_within_its_budget() -> None:
    """A model reads names, descriptions and input schemas; the rest is for its client."""
    found = [
        {key: value for key, value in d.items() if key in ("name", "description", "inputSchema")}
        for d in definitions()
    ]
    assert len(found) <= 25
    sizes = {
        str(d["name"]): len(json.dumps(d, separators=(",", ":"), ensure_ascii=False)) / CHARACTERS_PER_TOKEN
        for d in found
    }
    assert sum(sizes.values()) <= 5000, sizes
    whole = sum(len(json.dumps(d, separators=(",", ":"))) for d in definitions()) / CHARACTERS_PER_TOKEN
    assert whole <= 7500, "some clients show a model the output schemas too"
    assert all(len(d["title"]) <= 40 for d in definitions())


def test_the_list_has_the_same_bytes_in_every_process() -> None:
    program = (
        "import json; from eos_mcp.mcp import schema, server_options as o; "
        "print(json.dumps([schema.definition(x) for x in "
        "schema.operations(o.ServerOptions(tool_set='all'))]))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_definitions_have_the_same_bytes_in_both_eras() -> None:
    """A client that changes the era keeps its model's cached prompt."""
    with Wire(
        [sys.executable, "-m", "eos_mcp", "--set", "all"], env={"EOS_STATE_DIR": "/nonexistent"}
    ) as wire:
        wire.open()
        ask = {"jsonrpc": "2.0", "method": "tools/list"}
        legacy = wire.ask({**ask, "id": "legacy", "params": {}})["result"]["tools"]
        modern = wire.ask({**ask, "id": "modern", "params": {"_meta": META}})["result"]["tools"]
    assert json.dumps(legacy) == json.dumps(modern)
    first = legacy[0]["inputSchema"]
    assert list(first) == ["type", "properties", "required", "additionalProperties"]
