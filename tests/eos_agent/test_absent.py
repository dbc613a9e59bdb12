"""What a call names and what does not exist has the kind and reason of the table in docs/protocol.md."""

from __future__ import annotations

from typing import Any

import pytest

from eos_agent.wire import operations
from eos_agent.wire.operation import Operation
from eos_agent.wire.operations_observe import OBSERVABILITY
from tests.absent_table import Row, table

from .agent_process import Agent, refused

pytestmark = pytest.mark.needs("overlay")

ABSENT: dict[str, dict[str, Any]] = {
    "session": {"workspace_session_id": "absent", "scope": "absent", "workspace_id": "absent"},
    "command": {"command_session_id": "namespace_execution_999999999"},
    "draft": {"draft_id": "draft-0123456789abcdef"},
    "version": {"version": 999, "base_version": 999, "from": 999, "to": 999},
    "path": {"path": "absent", "from": "absent"},
    "layer": {"layer_id": "L999999-00000000"},
}
"""Absent thing -> the arguments by which operations name it."""
GIVEN: dict[str, Any] = {
    "cmd": "true",
    "path": "README.md",
    "paths": None,
    "content": "x",
    "edits": [{"old_string": "hello", "new_string": "x"}],
    "patch": "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch",
    "pattern": "x",
    "from": "README.md",
    "to": "moved",
    "stdin": "x",
}


ROWS = [row for row in table() if row.absent in ABSENT]


def takes(operation: Operation, absent: str) -> bool:
    names = {a.name for a in operation.arguments}
    if absent == "path":
        return operation.family == "file" and bool(names & {"path", "from"})
    if absent == "version":
        return operation.family != "file" and bool(names & ABSENT[absent].keys())
    return bool(names & ABSENT[absent].keys())


def arguments(operation: Operation, absent: str) -> dict[str, Any]:
    """A call that is right but for the absent thing."""
    found = {
        a.name: GIVEN[a.name] for a in operation.arguments if a.required and GIVEN.get(a.name) is not None
    }
    known = {a.name for a in operation.arguments}
    found |= {name: value for name, value in ABSENT[absent].items() if name in known}
    if absent != "session" and operation.name not in ("create_workspace_session",):
        found.pop("workspace_session_id", None)
    if operation.name == "file_move" and absent == "session":
        found |= {"from": "README.md", "to": "moved"}
    return found | (ABSENT[absent] if absent == "layer" else {})  # of raw requests only


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.absent} of {row.operation}")
def test_an_absent_thing_is_refused_as_the_table_says(row: Row, shared_agent: Agent) -> None:
    operation = operations.find(row.operation)
    assert operation is not None
    given = arguments(operation, row.absent)
    error = refused(lambda: shared_agent.call(row.operation, **given))
    assert (error.kind, error.reason) == (row.kind, row.reason), given


NOT_REFUSED = {
    ("session", "list_commands"): "an empty list",
    ("session", "create_workspace_session"): "it makes one",
    ("path", "file_write"): "it makes it",
    ("path", "file_search"): "nothing is found",
    ("path", "apply_patch"): "the patch names its paths",
    ("version", "unpin_version"): "it is not pinned then",
}


def test_every_operation_that_names_a_thing_is_in_the_table() -> None:
    listed = {(row.absent, row.operation) for row in table()}
    for operation in (*operations.RUNTIME, *OBSERVABILITY):
        for absent in ("session", "command", "draft", "version", "path"):
            if takes(operation, absent):
                assert ((absent, operation.name) in listed) != ((absent, operation.name) in NOT_REFUSED), (
                    absent,
                    operation.name,
                )
