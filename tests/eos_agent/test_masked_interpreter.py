"""File operations in a session that cannot open the library of the interpreter that it runs on: in Docker it
never can, `/eos` is masked.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.conftest import drop_dir, make_short_dir

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay", "root")

LATIN = b"caf\xe9\nx\n"
BASE = {"latin": LATIN, "text": "one • two\n".encode(), "d/f": b"x\n"}


@pytest.fixture(scope="module")
def masked() -> Generator[Agent]:
    """An agent whose sessions see an empty directory in place of the standard library."""
    folder = make_short_dir("eos-a-")
    agent = Agent(folder, BASE)
    agent.settings["hidden_paths"] = [os.path.dirname(os.__file__)]
    try:
        yield agent.start()
    finally:
        agent.close()
        drop_dir(folder)


@pytest.fixture
def session(masked: Agent) -> Generator[str]:
    made = masked.session()
    yield made
    masked.call("destroy_workspace_session", workspace_session_id=made)


def test_the_library_is_masked(masked: Agent, session: str) -> None:
    assert os.path.exists(os.__file__)
    looked = (
        "; ".join(
            f"test -e {path} && echo there: {path}" for path in (os.path.dirname(os.__file__), os.__file__)
        )
        + "; echo looked"
    )
    assert masked.run(looked, session)["output"].strip() == "looked"  # what is hidden is not there (ADR 0038)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "base64"])
def test_files_are_read_written_and_edited_in_each_encoding(
    masked: Agent, session: str, encoding: str
) -> None:
    at = {"workspace_session_id": session, "encoding": encoding}
    content = {"utf-8": "é", "latin-1": "caf\xe9\nx", "base64": "AP8="}[encoding]
    masked.call("file_write", path="new", content=content, **at)
    assert masked.call("file_read", path="new", **at)["content"] == content
    if encoding != "base64":
        masked.call("file_edit", path="new", edits=[{"old_string": "é", "new_string": "e"}], **at)
        assert masked.call("file_read", path="new", **at)["content"] == content.replace("é", "e")


@pytest.mark.parametrize(
    "pattern", [r"\N{BULLET}", r"(?i)ONE", r"\w+\s", r"(?a:o)", r"[^\W\d]+ (?=•)", r"one(?#comment)"]
)
def test_expressions_of_every_kind_are_searched_for(masked: Agent, session: str, pattern: str) -> None:
    found = masked.call("file_search", pattern=pattern, regex=True, path="text", workspace_session_id=session)
    assert [match["line"] for match in found["matches"]] == [1]


@pytest.mark.parametrize(
    ("op", "args", "reason"),
    [
        ("file_read", {"path": "latin"}, "not_utf8"),
        ("file_edit", {"path": "latin", "edits": [{"old_string": "x", "new_string": "y"}]}, "not_utf8"),
        ("file_search", {"pattern": r"\N{NO SUCH CHARACTER}", "regex": True}, "invalid_pattern"),
        ("file_search", {"pattern": "(", "regex": True}, "invalid_pattern"),
        ("file_write", {"path": "d", "content": ""}, "not_a_file"),
        ("file_delete", {"path": "d"}, "directory_not_empty"),
        ("file_move", {"from": "none", "to": "n"}, "file_not_found"),
        ("file_stat", {"path": "none"}, "file_not_found"),
        ("file_list", {"path": "none"}, "file_not_found"),
    ],
)
def test_refusals_are_reported_as_elsewhere(
    masked: Agent, session: str, op: str, args: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Failed) as caught:
        masked.call(op, workspace_session_id=session, **args)
    assert caught.value.reason == reason
