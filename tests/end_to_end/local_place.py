"""State, workspace and user of one test of the local provider."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from agent_image import build
from eos_mcp.providers.local_probe import remove_tree
from tests import in_namespace, one_bundle
from tests.conftest import make_short_dir
from tests.end_to_end.manager_fixture import Host, hosting, records
from tests.processes import end_processes_that_name, mounts_that_name, processes_that_name

for _late in ("yaml", "encodings.ascii", "encodings.idna", "zstandard", "stringprep"):
    importlib.import_module(
        _late
    )  # imported late otherwise, when this user cannot read the interpreter's files

Scenario = Callable[["Place"], Coroutine[Any, Any, Any]]


class Place:
    """A directory with room for state, caches and a workspace, all of it the user's."""

    def __init__(self, root: str, bundle: build.Bundle) -> None:
        self.root, self.bundle = root, bundle
        self.state, self.workspace, self.out = f"{root}/s", f"{root}/w", f"{root}/o"

    def host(self, **options: Any) -> contextlib.AbstractAsyncContextManager[Host]:
        return hosting(self.state, backend="local", bundle=self.bundle, **options)


class User:
    """Runs scenarios in a child that is root or an ordinary uid. `leftovers` is what they left."""

    def __init__(self, place: Place, namespace: str | None) -> None:
        self.place, self.namespace = place, namespace

    def play(self, scenario: Scenario, *, before: Callable[[Place], None] = lambda _: None) -> Any:
        place = self.place

        def in_child() -> Any:
            before(place)
            return asyncio.run(scenario(place))

        return in_namespace.call(self.namespace, in_child)

    def leftovers(self) -> dict[str, list[str]]:
        found = {
            "processes": processes_that_name(self.place.root),
            "mounts": mounts_that_name(self.place.root),
            "sandboxes": sorted(os.listdir(f"{self.place.state}/sandboxes"))
            if os.path.isdir(f"{self.place.state}/sandboxes")
            else [],
            "records": [record["id"] for record in records(self.place.state)],
        }
        return {what: names for what, names in found.items() if names}


@pytest.fixture(scope="module")
def bundle() -> build.Bundle:
    return one_bundle.made()


@pytest.fixture
def ordinary(bundle: build.Bundle, monkeypatch: pytest.MonkeyPatch) -> Generator[User]:
    yield from users("uid" if os.geteuid() == 0 else None, bundle, monkeypatch)


def users(namespace: str | None, bundle: build.Bundle, monkeypatch: pytest.MonkeyPatch) -> Generator[User]:
    place = Place(make_short_dir("eos-l-"), bundle)
    for name in (place.state, place.workspace, f"{place.root}/home", f"{place.root}/cache"):
        os.mkdir(name)
    with open(f"{place.workspace}/a.txt", "w") as file:
        file.write("one\n")
    if namespace is not None:
        for folder, _, files in os.walk(place.root):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                os.chown(path, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)
    monkeypatch.setenv("HOME", f"{place.root}/home")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{place.root}/cache")
    monkeypatch.setenv("EOS_STATE_DIR", place.state)
    yield User(place, namespace)
    left = end_processes_that_name(place.state)
    remove_tree(place.root, lambda: build.python_argv(bundle.path))
    assert left == []
