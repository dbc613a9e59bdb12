"""State, workspace and destination of one test of the manager."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator

import pytest

from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.manager_fixture import records
from tests.processes import end_processes_that_name


class Place:
    def __init__(self, root: str) -> None:
        self.root = root
        self.state, self.workspace, self.out = f"{root}/s", f"{root}/w", f"{root}/o"
        os.mkdir(self.workspace)
        with open(f"{self.workspace}/a.txt", "w") as file:
            file.write("one\n")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Generator[Place]:
    found = Place(make_short_dir("eos-m-"))
    monkeypatch.setenv("EOS_STATE_DIR", found.state)
    monkeypatch.setenv("EOS_SHARED_BASE_CACHE", f"{found.root}/bases")
    yield found
    for thread in threading.enumerate():
        if thread.name == "base-durable":
            thread.join(60)
    assert end_processes_that_name(found.state) == []
    assert records(found.state) == []
    drop_dir(found.root)
