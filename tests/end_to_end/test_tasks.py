"""The tasks of a coding agent, done by a reader of definitions and texts: none costs more than it did, and
none loses work by following a text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from tests.conftest import drop_dir, make_short_dir
from tests.tasks import advice, table, whole_job
from tests.tasks.project import Desk, desk

pytestmark = pytest.mark.needs("overlay")

CONFLICT_CALLS = 4
SHORT = (
    "conflict",
    "resolve (session)",
    "resolve from draft",
    "50,000-line log",
    "hung command",
    "end of input of a filter",
)


@pytest.fixture(scope="module")
def place() -> Generator[Desk]:
    """A desk with a sandbox on the machine itself."""
    root = make_short_dir("eos-t-")
    with desk(root) as made:
        whole_job.create_sandbox(made)
        yield made
    drop_dir(root)


def held(task: table.Task, found: table.Cost) -> None:
    calls = (
        min(task.calls, CONFLICT_CALLS) if "conflict" in task.name or "resolve" in task.name else task.calls
    )
    assert found.calls <= calls and found.tokens <= task.tokens, (task, found)


@pytest.mark.parametrize("name", SHORT)
def test_a_task_costs_no_more_than_it_did_and_loses_nothing(place: Desk, name: str) -> None:
    (task,) = (one for one in table.TASKS if one.name == name)
    held(task, table.cost(task, place))


@pytest.mark.soak
@pytest.mark.needs("dockerd")
@pytest.mark.parametrize("where", ["host", "debian"])
def test_all_tasks_cost_no_more_than_they_did(where: str, image: Callable[[str], str]) -> None:
    root = make_short_dir("eos-t-")
    with desk(root, where if where == "host" else image(where)) as made:
        for task in (*table.TASKS[:-1], table.GIT, table.TASKS[-1]):
            found = table.cost(task, made)
            if task is not table.GIT:
                held(task, found)
    drop_dir(root)


TOOLS = {"open_it": ["draft_id", "on_conflict"], "read_it": ["path", "offset"], "publish_it": ["session_id"]}


READ: list[tuple[str, list[tuple[str, dict[str, object]]]]] = [
    ('next: open_it {"draft_id":"d-1"} - opens it', [("open_it", {"draft_id": "d-1"})]),
    ("more: read_it with offset=201", [("read_it", {"offset": 201})]),
    ("read_it path=a.txt offset=4 has the rest", [("read_it", {"path": "a.txt", "offset": 4})]),
    ("more: call again with cursor=abc", [("read_it", {"cursor": "abc"})]),
    (
        "publish_it is for later\nnext: open_it with draft_id, then publish_it",
        [("open_it", {"draft_id": None}), ("publish_it", {}), ("publish_it", {})],
    ),
    ("an output without advice", []),
]


@pytest.mark.parametrize(("text", "calls"), READ)
def test_calls_are_read_out_of_a_text(text: str, calls: list[tuple[str, dict[str, object]]]) -> None:
    assert advice.calls_in(text, TOOLS, "read_it") == calls


def test_a_reader_passes_no_id_that_no_text_has_named(place: Desk) -> None:
    with pytest.raises(AssertionError, match="in no text"):
        place.reader.use("publish_workspace_session", workspace_session_id="ws-invented-1")
    with pytest.raises(AssertionError, match="no definition"):
        place.reader.use("list_drafts")
