"""What was published, asked of a real agent: who wrote the lines of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")


def refused(call: Callable[[], Any]) -> Failed:
    with pytest.raises(Failed) as caught:
        call()
    return caught.value


def blame(agent: Agent, path: str, **args: Any) -> list[tuple[int, int, str]]:
    found = agent.call("file_blame", path=path, **args)
    return [(r["start_line"], r["line_count"], r["owner"]) for r in found["ranges"]]


def test_blame_names_sessions_and_operations_and_leaves_the_base_its_own(agent: Agent) -> None:
    agent.call("file_edit", "req-edit", path="src/app.py", edits=[{"old_string": "two", "new_string": "TWO"}])
    session = agent.session()
    agent.run("sed -i '$ d' src/app.py; echo last >> src/app.py; cp src/app.py copy; mv run.sh moved", session)
    assert blame(agent, "src/app.py") == [(1, 1, "original"), (2, 1, "operation:req-edit"), (3, 5, "original")], (
        "a live session is not seen"
    )
    agent.call("publish_workspace_session", workspace_session_id=session)
    owner = f"workspace_session:{session}"
    assert blame(agent, "src/app.py") == [(1, 1, "original"), (2, 1, "operation:req-edit"), (3, 4, "original"), (7, 1, owner)]
    assert blame(agent, "copy") == [(1, 7, owner)]
    assert {line[2] for line in blame(agent, "moved")} == {owner}
    done = agent.run("rm src/app.py; echo x > own")
    assert blame(agent, "own") == [(1, 1, f"workspace_session:{done['workspace_session_id']}")]
    assert blame(agent, "src/app.py")[-1] == (7, 1, owner), "it outlives the file"


def test_one_path_has_one_answer_however_it_is_written(agent: Agent) -> None:
    agent.call("file_write", "req-1", path="p", content="x\n")
    plain = agent.call("file_blame", path="p")
    assert plain == {"path": "p", "ranges": [{"start_line": 1, "line_count": 1, "owner": "operation:req-1"}]}
    for written in ("./p", ".//p", agent.workspace + "/p"):
        assert json.dumps(agent.call("file_blame", path=written)) == json.dumps(plain)
    for path in ("a/../p", "README.md", "src", "none"):
        error = refused(lambda path=path: agent.call("file_blame", path=path))  # type: ignore[misc]
        assert (error.kind, error.reason, error.details["path"]) == ("not_found", "no_auditability_record", path)
        assert error.message == f"no auditability record for path: {path}"
    assert refused(lambda: agent.call("file_blame", path="/etc/passwd")).kind == "invalid_request"
