"""Requests that no client of ours sends: every argument of every operation with a value of the wrong kind,
size or alphabet.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from eos_agent.wire import operations
from eos_agent.wire.operation import Operation
from eos_agent.wire.operations_observe import OBSERVABILITY
from tests.odd_values import ODD

from .agent_process import Agent, Connection

pytestmark = pytest.mark.needs("overlay")

KINDS = {"invalid_request", "operation_failed", "not_found", "operation_conflict", "server_busy", "bad_json"}
GOOD: dict[str, str] = {
    "cmd": '"true"',
    "stdin": '"x"',
    "path": '"README.md"',
    "content": '"x"',
    "edits": '[{"old_string":"hello","new_string":"bye"}]',
    "command_session_id": '"namespace_execution_1"',
    "workspace_session_id": '"none"',
    "draft_id": '"draft-0123456789abcdef"',
    "workspace_id": '"none"',
    "yield_time_ms": "0",
    "timeout_ms": "0",
}
BY_KIND = {
    "string": '"x"',
    "path": '"x"',
    "integer": "1",
    "float": "1",
    "boolean": "true",
    "json_array": "[]",
}


def requests(operation: Operation) -> Iterator[tuple[str, str, str]]:
    """(argument, odd value, args as JSON text): one odd value, the required others as they should be."""
    names = [a.name for a in operation.arguments if a.name != "sandbox_id"]
    names += ["layer_id", "limit"] if operation.name == "layerstack" else []
    needed = [a.name for a in operation.arguments if a.required and a.name != "sandbox_id"]
    if operation.name == "exec_command":
        needed += ["yield_time_ms", "timeout_ms"]  # whatever runs is over soon
    if operation.name == "wait_command":
        needed += ["timeout_ms"]
    for name in names:
        for odd in ODD:
            if operation.name == "exec_command" and name == "cmd" and odd.startswith('"'):
                continue  # any text is a command
            kinds = {each.name: each.kind for each in operation.arguments}
            values = {each: GOOD.get(each, BY_KIND[kinds[each]]) for each in needed} | {name: odd}
            yield (
                name,
                odd,
                "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in values.items()) + "}",
            )


def envelope(args: str, op: str, request_id: str = '"r"') -> bytes:
    scope = '{"kind":"sandbox","sandbox_id":"eos-test"}'
    return f'{{"op":{json.dumps(op)},"request_id":{request_id},"scope":{scope},"args":{args},"_keep_alive":true}}\n'.encode()  # noqa: E501


@pytest.mark.parametrize(
    "operation", (*operations.RUNTIME, *OBSERVABILITY), ids=lambda operation: operation.name
)
def test_no_value_of_an_argument_makes_the_agent_fail(shared_agent: Agent, operation: Operation) -> None:
    """A result or an envelope of the contract's kinds, whatever stands there; never silence, never
    internal_error.
    """
    connection = Connection(shared_agent.settings["socket_path"])
    wrong: list[Any] = []
    for name, odd, args in requests(operation):
        try:
            answer = connection.line(envelope(args, operation.name))
        except (ValueError, OSError) as silence:
            wrong.append((name, odd[:60], repr(silence)))
            connection.close()
            connection = Connection(shared_agent.settings["socket_path"])
            continue
        if "error" in answer:
            error = answer["error"]
            if (
                list(error) != ["kind", "message", "details"]
                or error["kind"] not in KINDS
                or not isinstance(error["details"], dict)
            ):
                wrong.append((name, odd[:60], error))
            if error["kind"] == "bad_json":
                connection.close()
                connection = Connection(shared_agent.settings["socket_path"])
    connection.close()
    assert wrong == []


@pytest.mark.parametrize("name", ["exec_command", "file_read", "file_write", "file_edit", "file_list"])
def test_nor_does_it_inside_a_session_which_goes_on(shared_agent: Agent, name: str) -> None:
    session = shared_agent.session()
    operation = operations.find(name)
    assert operation is not None
    connection = shared_agent.connect()
    wrong: list[Any] = []
    for argument, odd, args in requests(operation):
        if argument == "workspace_session_id" or odd == "9" * 5000:
            continue
        answer = connection.line(envelope(args[:-1] + f',"workspace_session_id":"{session}"}}', name))
        if answer.get("error", {}).get("kind") not in (None, *KINDS):
            wrong.append((argument, odd[:60], answer["error"]))
        if answer.get("error", {}).get("kind") == "bad_json":
            connection.close()
            connection = shared_agent.connect()
    connection.close()
    assert wrong == []
    assert shared_agent.run("echo alive", session)["output"] == "alive"
    shared_agent.call("destroy_workspace_session", workspace_session_id=session, grace_s=20)


@pytest.mark.parametrize(
    "request_id", ['""', '"\\u0000"', '"\\ud800"', '"a\\r\\nb\\u001b[2J"', '"' + "x" * 256 + '"', '"../../x"']
)
def test_any_string_is_a_request_id(shared_agent: Agent, request_id: str) -> None:
    connection, made = shared_agent.connect(), ""
    for op, args in (
        ("file_write", f'{{"path":"by-request","content":"{len(request_id)}"}}'),
        ("file_blame", '{"path":"by-request"}'),
        ("exec_command", '{"cmd":"date +%N > by-command","yield_time_ms":20000}'),
        ("list_commands", "{}"),
        ("create_workspace_session", "{}"),
        ("list_workspace_sessions", "{}"),
        ("file_write", '{"path":"\\u0000","content":""}'),
    ):
        answer = connection.line(envelope(args, op, request_id))
        assert answer.get("error", {}).get("kind") in (None, "invalid_request"), (op, answer)
        made = answer["workspace_session_id"] if op == "create_workspace_session" else made
    connection.close()
    shared_agent.call("destroy_workspace_session", workspace_session_id=made)
    assert shared_agent.run("true")["publish"]["no_op"] is True
    assert all(len(line) < 5000 for line in shared_agent.log), (
        "a request decides how long a line of the log is"
    )


def test_a_request_id_longer_than_what_is_kept_is_refused_by_every_operation_and_does_nothing(
    shared_agent: Agent,
) -> None:
    head = shared_agent.version()
    with contextlib.closing(shared_agent.connect()) as connection:
        for op, args in (
            ("file_write", '{"path":"by-a-long-id","content":""}'),
            ("create_workspace_session", "{}"),
            ("list_commands", "{}"),
        ):
            error = connection.line(envelope(args, op, '"' + "x" * 300_000 + '"'))["error"]
            assert (error["kind"], error["details"]["reason"], error["details"]["argument"]) == (
                "invalid_request",
                "too_long",
                "request_id",
            )
    assert shared_agent.version() == head


def test_no_line_of_the_log_is_made_by_a_request(shared_agent: Agent) -> None:
    connection = shared_agent.connect()
    connection.line(envelope("{}", 'x\r\n{"event":"ready"}\x1b[2J\x9b2J'))
    connection.close()
    for line in shared_agent.log:
        assert line.isprintable() and (not line.startswith("{") or json.loads(line)["event"] != "")
