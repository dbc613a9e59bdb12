"""Arguments as models and strict clients send them: what is taken as meant, what is refused with an example;
and the sandbox of a call that names none.
"""

from __future__ import annotations

import json
from typing import Any, TypeGuard

import pytest

from eos_mcp import catalog
from eos_mcp.mcp import example_calls, model_arguments, schema
from eos_mcp.mcp.server_options import SANDBOX, ServerOptions
from tests.eos_mcp.scripted_gateway import ScriptedGateway, call

DONE = {"status": "ok", "exit_code": 0, "output": "", "start_offset": 0, "end_offset": 0, "total_lines": 0}

TAKEN: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "null": ("exec_command", {"cmd": "x", "timeout_ms": None, "env": None}, {"cmd": "x"}),
    "an empty id": ("exec_command", {"cmd": "x", "workspace_session_id": ""}, {"cmd": "x"}),
    "an empty user": ("exec_command", {"cmd": "x", "user": "", "agent": ""}, {"cmd": "x"}),
    "no time at all": ("exec_command", {"cmd": "x", "timeout_ms": 0}, {"cmd": "x"}),
    "a wait of nothing": ("exec_command", {"cmd": "x", "yield_time_ms": 0}, {"cmd": "x", "yield_time_ms": 0}),
    "a number as text": ("exec_command", {"cmd": "x", "timeout_ms": "3"}, {"cmd": "x", "timeout_ms": 3}),
    "a whole float": ("exec_command", {"cmd": "x", "timeout_ms": 3.0}, {"cmd": "x", "timeout_ms": 3}),
    "a truth as text": ("exec_command", {"cmd": "x", "tty": "False"}, {"cmd": "x", "tty": False}),
    "an object for env": (
        "exec_command",
        {"cmd": "x", "env": {"A": "1", "B": 2, "C": True, "D": None}},
        {"cmd": "x", "env": ["A=1", "B=2", "C=true"]},
    ),
    "env as text": ("exec_command", {"cmd": "x", "env": '{"A": "1"}'}, {"cmd": "x", "env": ["A=1"]}),
    "pairs for env": (
        "exec_command",
        {"cmd": "x", "env": [{"name": "A", "value": "1"}]},
        {"cmd": "x", "env": ["A=1"]},
    ),
    "a uid": ("exec_command", {"cmd": "x", "user": 1000}, {"cmd": "x", "user": "1000"}),
    "conditions as strict clients fill them": (
        "exec_command",
        {
            "cmd": "x",
            "service": "web",
            "ready": {"port": 8000, "url": "", "pattern": None, "timeout_ms": 0},
        },
        {"cmd": "x", "service": "web", "ready": {"port": 8000}},
    ),
    "no service as strict clients fill it": (
        "exec_command",
        {"cmd": "x", "service": "", "ready": {"port": 0, "url": "", "pattern": "", "timeout_ms": 9}},
        {"cmd": "x"},
    ),
    "conditions as text": (
        "exec_command",
        {"cmd": "x", "service": "web", "ready": ["url=/a?b=c", "port=80"]},
        {"cmd": "x", "service": "web", "ready": {"url": "/a?b=c", "port": 80}},
    ),
    "edits as text": (
        "file_edit",
        {"path": "a", "edits": '[{"old_string": "x", "new_string": ""}]'},
        {"path": "a", "edits": [{"old_string": "x", "new_string": ""}]},
    ),
    "one edit": (
        "file_edit",
        {"path": "a", "edits": {"old_string": "x", "new_string": "y", "replace_all": None}},
        {"path": "a", "edits": [{"old_string": "x", "new_string": "y"}]},
    ),
    "an edit at the top": (
        "file_edit",
        {"path": "a", "old_string": "x", "new_string": "", "replace_all": "true"},
        {"path": "a", "edits": [{"old_string": "x", "new_string": "", "replace_all": True}]},
    ),
    "a line from nothing": ("file_read", {"path": "a", "offset": 0, "limit": 0}, {"path": "a"}),
    "an empty file": ("file_write", {"path": "a", "content": ""}, {"path": "a", "content": ""}),
    "a long name of a signal": (
        "signal_command",
        {"command_session_id": "c", "signal": "SIGint"},
        {"command_session_id": "c", "signal": "INT"},
    ),
    "sides of paths": (
        "rebase_workspace_session",
        {"workspace_session_id": "w", "paths": ["a=b.py=ours"], "on_conflict": "MARKERS"},
        {"workspace_session_id": "w", "paths": {"a=b.py": "ours"}, "on_conflict": "markers"},
    ),
    "no input": ("write_command_stdin", {"command_session_id": "c", "stdin": ""}, {"command_session_id": "c", "stdin": ""}),  # noqa: E501
}  # fmt: skip


def operation(name: str) -> catalog.Operation:
    found = catalog.find(name)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "given", "meant"), TAKEN.values(), ids=TAKEN.keys())
def test_what_models_write_is_taken_as_they_mean_it(
    name: str, given: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert model_arguments.plain(operation(name), given) == meant
    catalog.build(operation(name), {"sandbox_id": "s", **meant})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("exec_command", {"cmd": "x", "timeout_ms": "soon"}),
        ("exec_command", {"cmd": "x", "env": "nothing"}),
        ("exec_command", {"cmd": "x", "env": {"A": {"b": 1}}}),
        ("exec_command", {"cmd": "x", "env": {"A=b": "c"}}),
        ("file_edit", {"path": "a", "edits": "[" * 100_000}),
        ("file_edit", {"path": "a", "edits": "[1"}),
        ("file_write", {"path": "a", "content": {"a": 1}}),
        ("file_read", {"path": "a", "limit": "1e400"}),
        ("file_read", {"path": "a", "limit": "9" * 5000}),
        ("exec_command", {"cmd": "x", "tty": "perhaps"}),
    ],
)
def test_what_could_mean_anything_stays_as_it_is_and_is_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(catalog.OperationError) as refused:
        catalog.build(operation(name), {"sandbox_id": "s", **model_arguments.plain(operation(name), given)})
    assert refused.value.kind == "invalid_request"


@pytest.mark.parametrize("name", [o.name for o in catalog.ALL])
def test_every_refusal_shows_a_call_that_passes(name: str) -> None:
    one = operation(name)
    for argument in one.arguments:
        failure: dict[str, Any] = {
            "kind": "invalid_request",
            "details": {"argument": argument.name, "reason": "wrong_type"},
        }
        example_calls.show(failure, one)
        shown_call = failure["details"]["example"]
        assert argument.name in shown_call
        catalog.build(one, {**({"sandbox_id": "s"} if one.scope == "sandbox_required" else {}), **shown_call})


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def strict(definition: dict[str, Any]) -> dict[str, Any]:
    """The published conversion to OpenAI's strict form: every property required, no default, no free keys."""

    def convert(node: Any) -> Any:
        if is_list(node):
            return [convert(one) for one in node]
        if not is_dict(node):
            return node
        found = {key: convert(value) for key, value in node.items() if key != "default"}
        if found.get("type") == "object":
            assert found.get("additionalProperties", False) is False, "strict mode has no free keys"
            found["additionalProperties"] = False
            found["required"] = list(found.get("properties", {}))
        return found

    converted: dict[str, Any] = convert(definition["inputSchema"])
    return converted


def filled(node: dict[str, Any], *, null: bool) -> Any:
    """What a model writes into an argument that it does not want."""
    if null:
        return None
    if "enum" in node:
        return ""
    empty: dict[str, Any] = {
        "string": "",
        "integer": 0,
        "number": 0,
        "boolean": False,
        "array": [],
        "object": {},
    }
    return empty[node["type"]]


def served(tool_set: str = "agent") -> list[dict[str, Any]]:
    return [
        schema.definition(o, sandbox_optional=True, whole=True)
        for o in schema.operations(ServerOptions(tool_set=tool_set))
    ]


@pytest.mark.parametrize("null", [True, False])
@pytest.mark.parametrize("definition", served(), ids=lambda d: str(d["name"]))
def test_a_call_with_every_argument_filled_in_is_the_call_with_the_wanted_ones(
    definition: dict[str, Any], null: bool
) -> None:
    one = operation(definition["name"])
    wanted = example_calls.example(one)
    form = strict(definition)
    given = {name: filled(part, null=null) for name, part in form["properties"].items()} | wanted
    if not null:  # a strict client cannot leave a boolean out: the model writes the default
        given |= {a.name: a.default for a in one.arguments if a.kind == "boolean" and a.name in given}
    meant = model_arguments.plain(one, given)
    scope = {} if one.scope == "system" else {"sandbox_id": "s"}
    _, checked = catalog.build(one, {**scope, **meant})
    _, plain = catalog.build(one, {**scope, **wanted})
    extra = {name: value for name, value in checked.items() if name not in plain}
    assert {name: value for name, value in checked.items() if name in plain} == plain
    assert all(value in (0, False) for value in extra.values()) and "timeout_ms" not in extra


GEMINI = {
    "type", "format", "title", "description", "nullable", "enum", "items", "maxItems", "minItems",
    "properties", "required", "minimum", "maximum",
    "minLength", "maxLength", "pattern", "default", "additionalProperties",
}  # fmt: skip
"""Keywords of a Gemini schema; its client removes additionalProperties."""


@pytest.mark.parametrize("definition", served("all"), ids=lambda d: str(d["name"]))
def test_gemini_and_bedrock_take_every_definition(definition: dict[str, Any]) -> None:
    import re

    def check(node: Any, depth: int) -> None:
        if not is_dict(node):
            return
        assert depth <= 5, "deeper than Gemini and Bedrock take"
        assert set(node) <= GEMINI, f"{definition['name']}: {set(node) - GEMINI}"
        assert isinstance(node["type"], str)
        if node["type"] == "array":
            check(node["items"], depth + 1)
        if "enum" in node:
            assert node["type"] == "string" and "" not in node["enum"]
        for name, inner in node.get("properties", {}).items():
            assert re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name)
            check(inner, depth + 1)
        if depth:
            assert node["type"] != "object" or node["properties"], "an object without properties"

    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", definition["name"])
    inputs = dict(definition["inputSchema"])
    check(inputs, 0)
    assert len(json.dumps(inputs)) < 10_000


def sandboxes(*roots: str, state: str = "ready") -> dict[str, Any]:
    return {
        "sandboxes": [
            {"id": f"eos-{n}", "state": state, "workspace_root": root} for n, root in enumerate(roots, 1)
        ]
    }


def test_the_agent_is_the_client_unless_the_model_names_one() -> None:
    gateway = ScriptedGateway(exec_command=DONE)
    call("exec_command", {"sandbox_id": "s", "cmd": "x"}, gateway, client_name="claude-code")
    call("exec_command", {"sandbox_id": "s", "cmd": "x", "agent": "me"}, gateway)
    call("exec_command", {"sandbox_id": "s", "cmd": "x"}, gateway, client_name="é" * 300 + "\n")
    call("exec_command", {"sandbox_id": "s", "cmd": "x"}, gateway, ServerOptions(program=SANDBOX))
    assert [asked.args.get("agent") for asked in gateway.asked] == ["claude-code", "me", "é" * 128, None]


def test_a_call_without_a_sandbox_goes_to_the_only_one_and_says_so() -> None:
    gateway = ScriptedGateway(exec_command=DONE, list_sandboxes=sandboxes("/nowhere"))
    found = call("exec_command", {"cmd": "x", "sandbox_id": ""}, gateway)
    assert gateway.asked[-1].sandbox_id == "eos-1"
    assert found.structure["sandbox_id"] == "eos-1" and "eos-1" in found.text


def test_of_several_sandboxes_it_is_the_one_of_the_workspace_that_the_server_was_started_in(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    gateway = ScriptedGateway(
        exec_command=DONE, list_sandboxes=sandboxes("/nowhere", str(tmp_path / "project"), "/elsewhere")
    )
    call("exec_command", {"cmd": "x"}, gateway)
    assert gateway.asked[-1].sandbox_id == "eos-2"


def test_when_several_may_be_meant_the_call_is_refused_with_the_list() -> None:
    gateway = ScriptedGateway(list_sandboxes=sandboxes("/nowhere", "/elsewhere"))
    found = call("exec_command", {"cmd": "x"}, gateway)
    assert found.is_error
    details = found.structure["error"]["details"]
    assert details["reason"] == "sandbox_ambiguous"
    assert [row["id"] for row in details["sandboxes"]] == ["eos-1", "eos-2"]
    assert "/elsewhere" in found.text and [asked.op for asked in gateway.asked] == ["list_sandboxes"]


def test_without_a_sandbox_that_runs_the_next_step_is_to_make_one() -> None:
    gateway = ScriptedGateway(list_sandboxes=sandboxes("/nowhere", state="failed"))
    found = call("exec_command", {"cmd": "x"}, gateway)
    assert found.structure["error"]["details"]["reason"] == "no_sandbox"
    assert "create_sandbox" in found.text


def test_destroying_always_needs_the_name() -> None:
    gateway = ScriptedGateway(list_sandboxes=sandboxes("/nowhere"))
    found = call("destroy_sandbox", {"sandbox_id": ""}, gateway)
    assert found.structure["error"]["details"]["reason"] == "missing_argument" and gateway.asked == []
