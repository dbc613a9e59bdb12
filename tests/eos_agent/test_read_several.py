"""file_read of several paths: of the head and in a session, and as a model reads the answer."""

from __future__ import annotations

import pytest

from eos_mcp.mcp import render, truncate

from .agent_process import Agent, refused

pytestmark = pytest.mark.needs("overlay")


@pytest.mark.parametrize("in_session", [True, False])
def test_each_file_is_a_row_and_an_error_hides_no_other(agent: Agent, in_session: bool) -> None:
    args = {"workspace_session_id": agent.session()} if in_session else {}
    agent.call("file_write", path="one", content="1\n" * 3000, **args)
    found = agent.call("file_read", path="src/app.py", paths=["none", "src", "one"], limit=10, **args)
    rows = found["files"]
    alone = agent.call("file_read", path="src/app.py", limit=10, **args)
    assert rows[0] == alone and found["path"] == "src/app.py"
    assert [row["error"]["details"]["reason"] for row in rows[1:3]] == ["file_not_found", "not_a_file"]
    assert (rows[3]["num_lines"], rows[3]["next_offset"]) == (10, 11)
    only = agent.call("file_read", paths=["one", "src/app.py"], limit=10, **args)
    assert [row["path"] for row in only["files"]] == ["one", "src/app.py"]
    text = render.result("file_read", {}, truncate.fit("file_read", only))
    assert "one: lines 1 to 10 of 3000" in text and "more: file_read path=one offset=11" in text
    text = render.result("file_read", {}, found)
    assert "none: file not found: none" in text and "one: lines 1 to 10" in text


def test_the_limit_is_shared_and_wrong_paths_are_refused(agent: Agent) -> None:
    agent.call("file_write", path="large", content=("x" * 99 + "\n") * 1500)
    assert agent.call("file_read", path="large")["total_lines"] == 1500
    rows = agent.call("file_read", paths=["large", "src/app.py"])["files"]
    assert rows[0]["error"]["details"]["reason"] == "window_too_large" and "content" in rows[1]
    fitting = int(rows[0]["error"]["details"]["hint"].split()[-2])
    rows = agent.call("file_read", paths=["large", "src/app.py"], limit=fitting)["files"]
    assert rows[0]["num_lines"] == fitting, "the advice followed literally"
    agent.call("file_write", path="line", content="x" * 300_000)
    error = refused(lambda: agent.call("file_read", path="line", limit=1))
    assert error.reason == "window_too_large" and "base64" in error.details["hint"]
    part = agent.call("file_read", path="line", encoding="base64", offset=1, limit=1000)
    assert part["bytes_read"] == 1000
    assert refused(lambda: agent.call("file_read", paths=["a"] * 51)).reason == "out_of_bounds"
    assert refused(lambda: agent.call("file_read", paths=["a", 5])).reason == "wrong_type"
    assert refused(lambda: agent.call("file_read", limit=5)).reason == "missing_argument"
