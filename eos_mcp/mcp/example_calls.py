"""One valid call of each tool, shown with a refusal of its arguments. Pure."""

from __future__ import annotations

from typing import Any

from eos_agent.wire.protocol import INVALID_REQUEST
from eos_mcp.catalog import Argument, Operation

_SAMPLES: dict[str, Any] = {
    "sandbox_id": "eos-1",
    "workspace_session_id": "an id of create_workspace_session",
    "command_session_id": "namespace_execution_1",
    "draft_id": "draft-0123456789abcdef",
    "checkpoint_id": "an id of checkpoint_session",
    "image": "host",
    "workspace_root": "/home/me/project",
    "dest": "/home/me/project",
    "cmd": "make test",
    "cwd": "src",
    "env": ["DEBUG=1"],
    "stdin": "yes\n",
    "path": "src/app.py",
    "content": "hello\n",
    "edits": [{"old_string": "x = 1", "new_string": "x = 2"}],
    "pattern": "def main",
    "glob": "**/*.py",
    "from": "a.py",
    "to": "pkg/a.py",
    "paths": ["a.py", "b.py"],
    "agent": "my-name",
    "user": "root",
    "label": "before-refactoring",
    "patch": "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch",
}
_NUMBERS = {"port": 8000, "timeout_ms": 60_000, "yield_time_ms": 5000, "wait_ms": 5000, "limit": 200}
_VERSIONS = {"diff_versions": {"from": 3, "to": 5}}
_ABOUT_PLACES = frozenset(
    {"outside_roots", "sensitive_place", "for_a_person", "no_directory", "not_absolute"}
)
"""Reasons of refusals of arguments that are well formed."""
_WITHOUT_ARGUMENT = frozenset({"unknown_argument", "missing_argument", "wrong_type", "bad_argument"})


def example(operation: Operation, refused: str | None = None) -> dict[str, Any]:
    """Arguments of a call that passes the checks: the required ones, and the one that was refused."""
    wanted = [a for a in operation.arguments if a.required or a.name == refused]
    found = {a.name: _sample(operation, a) for a in wanted}
    if refused == "sandbox_id":
        found = {"sandbox_id": _SAMPLES["sandbox_id"], **found}
    return found


def _sample(operation: Operation, argument: Argument) -> Any:
    if argument.name in (own := _VERSIONS.get(operation.name, {})):
        return own[argument.name]
    if argument.kind in ("string", "path"):
        if argument.choices:
            return argument.default or argument.choices[0]
        return _SAMPLES.get(argument.name, "text")
    if argument.kind == "boolean":
        return not argument.default
    if argument.kind in ("integer", "float"):
        number = _NUMBERS.get(argument.name, argument.default if argument.default else 1)
        low, high = argument.minimum or 0, argument.maximum
        return max(low, number if high is None else min(number, high))
    if argument.kind == "json_object":
        return {"src/app.py": "ours"}
    return _SAMPLES.get(argument.name, ["text"])


def show(failure: dict[str, Any], operation: Operation | None) -> None:
    """Add `example` to the details of an error that refuses arguments."""
    details = failure.get("details")
    if operation is None or failure.get("kind") != INVALID_REQUEST or not isinstance(details, dict):
        return
    argument, reason = details.get("argument"), details.get("reason")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if reason in _ABOUT_PLACES or not (isinstance(argument, str) or reason in _WITHOUT_ARGUMENT):
        return
    details["example"] = example(operation, argument if isinstance(argument, str) else None)
