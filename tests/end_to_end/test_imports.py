"""import_changes: what a person changed in the workspace directory comes in as one publication."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests import users
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.cli_user import Desk, Sandbox
from tests.users import Person

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]


@pytest.fixture(scope="module")
def desk(cache_of: Callable[[Person], Path]) -> Generator[Desk]:
    home = make_short_dir("eos-h-")
    who = users.root(Path(home))
    made = Desk(who, cache_of(who))
    try:
        yield made
        assert made.left_in_state() == []
    finally:
        made.stop()
        drop_dir(home)


@pytest.fixture
def own(desk: Desk) -> Generator[Sandbox]:
    made = desk.create("host")
    try:
        yield made
    finally:
        made.destroy()


def import_changes(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    return sandbox.desk.do("manager", "import_changes", "--sandbox-id", sandbox.id, *words)


def refused(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    return sandbox.desk.refused("manager", "import_changes", "--sandbox-id", sandbox.id, *words)


def changes(done: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["change"] for row in done["changed"]}


def test_an_edit_of_the_person_is_in_the_next_session(own: Sandbox) -> None:
    own.desk.give("w/a.txt", "edited by a person\n")
    done = import_changes(own)
    assert changes(done) == {"a.txt": "modified"} and done["no_op"] is False
    assert own.shell("cat a.txt")["output"] == "edited by a person"
    (version,) = [v for v in own.do("list_versions")["versions"] if v["layer_id"] == done["layer_id"]]
    assert version["owner"] == "host"
    again = import_changes(own)
    assert again["no_op"] is True and again["changed_count"] == 0
