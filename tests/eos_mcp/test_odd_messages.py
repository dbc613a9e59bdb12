"""Lines that odd clients send: each request among them is answered."""

from __future__ import annotations

import json

import pytest

from eos_mcp.mcp.schema import DISTINCT_NAMES
from eos_mcp.mcp.server_options import ServerOptions
from tests.eos_mcp.mcp_wire import call, fixture, initialize
from tests.eos_mcp.scripted_gateway import ScriptedGateway
from tests.eos_mcp.scripted_gateway import call as call_tool


def test_a_line_with_a_byte_order_mark_is_answered() -> None:
    with fixture() as wire:
        wire.open()
        line = json.dumps(call(7, "fast", {"text": "x"})).encode()
        wire.send(b"\xef\xbb\xbf" + line + b"\n")
        assert wire.receive()["id"] == 7


def test_the_first_line_may_have_a_byte_order_mark() -> None:
    with fixture() as wire:
        wire.send(b"\xef\xbb\xbf" + json.dumps(initialize(1)).encode() + b"\n")
        assert "result" in wire.receive()


@pytest.mark.parametrize(
    ("request_id", "answered"),
    [("1.5", 1.5), ("true", True), ("null", None), ("[1]", None), ('{"a": 1}', None), ("1e999", None)],
)
def test_what_is_no_id_is_answered_with_an_error(request_id: str, answered: object) -> None:
    with fixture() as wire:
        wire.open()
        line = json.dumps(call(99, "fast")).replace("99", request_id)
        wire.send(line.encode() + b"\n")
        found = wire.receive()
        assert found["id"] == answered and type(found["id"]) is type(answered)
        assert found["error"]["code"] == -32600
        assert wire.ask(call(3, "fast", {"text": "x"}))["id"] == 3


@pytest.mark.parametrize("name", ["snapshot", "sandbox_snapshot"])
def test_a_tool_with_a_common_name_has_a_distinct_one_in_the_set_all(name: str) -> None:
    assert DISTINCT_NAMES["snapshot"] == "sandbox_snapshot"
    gateway = ScriptedGateway(snapshot={"sandboxes": []})
    assert not call_tool(name, {}, gateway, ServerOptions(tool_set="all")).is_error
    assert gateway.asked[0].op == "snapshot"
