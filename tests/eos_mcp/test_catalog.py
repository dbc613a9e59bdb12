"""The catalog: the contract's operations and arguments, in order, with texts that a model can work with."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire import protocol
from eos_agent.wire.operation import KINDS
from eos_agent.wire.protocol import OperationError
from eos_mcp import catalog

MANAGEMENT = [
    "create_sandbox",
    "list_docker_images",
    "list_workspace_directories",
    "destroy_sandbox",
    "list_sandboxes",
    "inspect_sandbox",
    "squash_layerstacks",
    "export_changes",
]
RUNTIME = [
    "exec_command",
    "write_command_stdin",
    "read_command_lines",
    "file_read",
    "file_write",
    "file_edit",
    "file_blame",
    "create_workspace_session",
    "publish_workspace_session",
    "destroy_workspace_session",
]


def operation(name: str) -> catalog.Operation:
    found = catalog.find(name)
    assert found is not None
    return found


def refused(name: str, args: dict[str, Any], **how: bool) -> OperationError:
    with pytest.raises(OperationError) as caught:
        catalog.check_arguments(operation(name), args, **how)
    assert caught.value.kind == "invalid_request"
    return caught.value


def test_the_contracts_operations_come_first_and_in_its_order() -> None:
    assert [o.name for o in catalog.operations_of_set("management", ours=False)] == MANAGEMENT
    assert [o.name for o in catalog.operations_of_set("runtime", ours=False)] == RUNTIME
    for name in catalog.SETS:
        ours = [o.ours for o in catalog.operations_of_set(name)]
        assert ours == sorted(ours)


def test_the_agent_set_is_small_enough_for_a_model() -> None:
    assert len(catalog.operations_of_set("agent")) <= 25
    for o in catalog.operations_of_set("agent"):
        assert len(o.description) <= 400


def test_names_are_unique_across_domains() -> None:
    names = [o.name for o in catalog.ALL]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("one", catalog.ALL, ids=lambda o: o.name)
def test_every_operation_is_whole(one: catalog.Operation) -> None:
    assert one.summary and one.description and one.promise and one.examples and one.result
    json.loads(one.result_example)
    assert one.family in {f.id for f in catalog.FAMILIES[one.domain]}
    for name in one.related:
        operation(name)
    for argument in one.arguments:
        assert argument.help and argument.kind in KINDS
        assert not (argument.choices and argument.default) or argument.default in argument.choices
    if one.domain == "manager":
        assert one.ours or len(one.when_to_use) == 3
        assert one.name in {name for _, _, names in catalog.MANAGER_GROUPS for name in names}


def test_flags_are_kebab_case_but_for_the_contracts_exceptions() -> None:
    labels = {(o.name, a.name): a.label for o in catalog.ALL for a in o.arguments}
    assert labels["create_sandbox", "workspace_root"] == "--workspace-bind-root"
    assert operation("create_sandbox").arguments[1].aliases == ("--workspace-root",)
    assert labels["exec_command", "cmd"] == "COMMAND"
    assert labels["write_command_stdin", "stdin"] == "TEXT"
    assert labels["exec_command", "yield_time_ms"] == "--yield-time-ms"


def test_unknown_names_come_before_types_and_types_before_missing_ones() -> None:
    error = refused("file_read", {"zeta": 1, "alpha": 1, "offset": "x"})
    assert error.message == "unknown argument for file_read: alpha"
    assert error.details["argument"] == "alpha" and error.details["reason"] == "unknown_argument"
    assert refused("file_read", {"offset": "x"}).details == {
        "argument": "offset",
        "value": "x",
        "reason": "wrong_type",
    }
    assert refused("file_read", {}).message == "path is required for file_read"


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("file_read", {"path": None}),
        ("file_read", {"path": "a", "offset": True}),
        ("file_read", {"path": "a", "offset": 1.5}),
        ("file_read", {"path": "a", "offset": -1}),
        ("file_read", {"path": "a", "offset": 2**64}),
        ("publish_workspace_session", {"workspace_session_id": "w", "grace_s": math.inf}),
        ("file_edit", {"path": "a", "edits": "[]"}),
        ("exec_command", {"cmd": "x", "tty": 1}),
    ],
)
def test_a_wrong_type_is_named(name: str, args: dict[str, Any]) -> None:
    error = refused(name, args)
    assert error.details["argument"] == list(args)[-1]
    assert error.details["reason"] in ("wrong_type", "out_of_bounds")


def test_defaults_are_filled_in_with_their_native_types() -> None:
    assert catalog.check_arguments(operation("file_read"), {"path": "a"}) == {
        "path": "a",
        "offset": 1,
        "limit": 2000,
    }
    assert catalog.check_arguments(operation("create_workspace_session"), {})["network_profile"] == "shared"
    assert "yield_time_ms" not in catalog.check_arguments(operation("exec_command"), {"cmd": "x"})


def test_bounds_and_choices_can_be_left_to_the_server() -> None:
    assert refused("export_changes", {"sandbox_id": "s", "dest": "/x", "format": "zip"}).details[
        "choices"
    ] == ["dir", "tar", "tar-zst", "git"]
    assert (
        refused("create_sandbox", {"image": "i", "workspace_root": "/w", "count": 0}).details["reason"]
        == "out_of_bounds"
    )
    assert (
        catalog.check_arguments(operation("file_read"), {"path": "a", "limit": 5000}, bounds=False)["limit"]
        == 5000
    )


def test_a_raw_request_is_read_leniently() -> None:
    assert catalog.check_arguments(operation("file_write"), {"path": "a", "other": 1}, server=True) == {
        "path": "a",
        "content": "",
    }
    edits = [{"old_string": "a", "new_string": "b"}]
    assert (
        catalog.check_arguments(
            operation("file_edit"), {"path": "a", "edits": json.dumps(edits)}, server=True
        )["edits"]
        == edits
    )


def test_a_path_can_come_as_bytes_instead() -> None:
    for o in catalog.RUNTIME:
        path = o.argument("path")
        if path is not None and (path.required or path.default is not None):
            needed: dict[str, Any] = {"content": "", "edits": [], "pattern": "x"}
            others = {name: value for name, value in needed.items() if o.argument(name) is not None}
            assert catalog.check_arguments(o, {"path_b64": "Y2Fm6Q==", **others})["path"] == ""
    assert refused("file_read", {"path_b64": ""}).message == "path is required for file_read"


def test_the_selector_and_a_copy_in_the_arguments_must_agree() -> None:
    read = operation("file_read")
    assert catalog.build(read, {"path": "a", "sandbox_id": "s"}) == (
        "s",
        {"path": "a", "offset": 1, "limit": 2000},
    )
    assert catalog.build(read, {"path": "a", "sandbox_id": "s"}, selector="s")[0] == "s"
    for args, selector in (
        ({"path": "a", "sandbox_id": "t"}, "s"),
        ({"path": "a", "sandbox_id": " "}, None),
        ({"path": "a"}, None),
        ({"path": "a"}, " "),
    ):
        with pytest.raises(OperationError) as caught:
            catalog.build(read, args, selector=selector)
        assert caught.value.details["argument"] == "sandbox_id"
    assert catalog.build(operation("snapshot"), {}) == (None, {})
    assert catalog.build(operation("inspect_sandbox"), {"sandbox_id": "s"}) == (None, {"sandbox_id": "s"})


def test_the_gateways_budget_follows_the_operations_own_wait() -> None:
    assert catalog.budget_s(operation("file_read"), {}) == 30
    assert catalog.budget_s(operation("exec_command"), {}) == 31
    assert catalog.budget_s(operation("exec_command"), {"yield_time_ms": 60_000}) == 90
    assert catalog.budget_s(operation("exec_command"), {"yield_time_ms": "x"}) == 30
    assert catalog.budget_s(operation("wait_command"), {}) == 40
    assert catalog.budget_s(operation("destroy_workspace_session"), {"grace_s": 5}) == 35
    assert catalog.budget_s(operation("destroy_workspace_session"), {}) == 30
    assert catalog.budget_s(operation("export_changes"), {}) is None
    assert catalog.budget_s(None, {}) == 30


def test_the_document_has_the_contracts_shape() -> None:
    document = catalog.document()
    assert (document["schema_version"], document["kind"]) == (1, "ephemeral_sandbox_product_catalog")
    manager = document["domains"]["manager"]
    assert list(manager) == ["operation_execution_space", "families", "operations", "routes"]
    count = next(a for a in manager["operations"][0]["args"] if a["name"] == "count")
    assert count == {
        "name": "count",
        "kind": "integer",
        "required": False,
        "help": count["help"],
        "default": "1",
    }
    routes = [r for r in document["domains"]["observability"]["routes"] if r["operation"] == "snapshot"]
    assert [(r["scope_kind"], r["execution_owner"]) for r in routes] == [
        ("system", "manager"),
        ("sandbox", "observability"),
    ]


def test_near_names_are_suggested_from_every_text() -> None:
    assert "exec_command" in catalog.suggestions("SHELL")
    assert catalog.suggestions("archive", "manager") == ["export_changes"]
    assert catalog.suggestions("zzz") == []


def test_catalog_client_and_programs_import_the_standard_library_and_ourselves_only() -> None:
    """What a command line loads decides how long it takes."""
    import eos_mcp

    root = Path(eos_mcp.__file__).parent
    allowed = {"eos_agent", "eos_mcp", "layerstack"}
    heavy = {"argparse", "asyncio", "dataclasses", "uuid", "inspect", "subprocess", "tempfile"}
    light = [
        root / "catalog.py",
        root / "gateway_client/sync.py",
        root / "config/paths.py",
        root / "config/token_file.py",
    ]
    light += [
        root / "cli" / f"{name}.py"
        for name in (
            "parse",
            "output",
            "program",
            "sandbox_manager",
            "sandbox_runtime",
            "sandbox_observability",
        )
    ]
    import sys

    for path in light:
        for node in ast.parse(path.read_text()).body:
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for module in modules:
                top = module.partition(".")[0]
                assert top in allowed or top in sys.stdlib_module_names, (path.name, module)
                assert top not in heavy, (path.name, module)


NO_IDS: tuple[object, ...] = (float("inf"), [float("nan")], {"a": [7]}, 7, None, " ")


@pytest.mark.parametrize("value", NO_IDS)
def test_a_selector_that_is_none_is_refused_in_words_that_json_can_carry(value: object) -> None:
    for name in ("snapshot", "file_read", "list_sandboxes", "inspect_sandbox"):
        operation = catalog.find(name)
        assert operation is not None
        with pytest.raises(OperationError) as caught:
            catalog.build(operation, {"sandbox_id": value, **({"path": "a"} if name == "file_read" else {})})
            raise OperationError("accepted", "a blank text is a matter of the manager", reason="blank")
        assert caught.value.kind in ("invalid_request", "accepted")
        protocol.encode(caught.value.envelope())
