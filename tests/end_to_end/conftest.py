"""People with homes of their own; their gateways are stopped and nothing of them is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests import ordinary, people, processes
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.desk import Desk, Desks, Sandbox
from tests.people import Person


@pytest.fixture(scope="session")
def installed() -> Generator[ordinary.Installed]:
    """An installation that an ordinary user can run; needs root."""
    made = ordinary.install()
    yield made
    drop_dir(str(made.root))


@pytest.fixture
def person(request: pytest.FixtureRequest) -> Generator[Callable[[str], Person]]:
    """person("root") or person("ordinary"): a fresh home; at the end its gateway is stopped and nothing that names the home is left."""
    homes: list[Person] = []

    def make(who: str) -> Person:
        home = Path(make_short_dir("eos-h-"))
        made = people.root(home) if who == "root" or os.geteuid() else people.ordinary(request.getfixturevalue("installed"), home)
        homes.append(made)
        return made

    yield make
    for one in homes:
        code, _, err = one.run([one.python, "-m", "eos_mcp.cli.eos", "gateway", "stop"])
        assert code == 0, err
        assert processes.processes_that_name(str(one.home)) == []
        assert processes.mounts_that_name(str(one.home)) == []
        drop_dir(str(one.home))


@pytest.fixture(scope="session")
def cache_of() -> Generator[Callable[[Person], Path]]:
    """A cache directory for each kind of person, shared by tests: bundles and bases are made once. Nothing may still use it at the end."""
    made: dict[int | None, Path] = {}

    def find(who: Person) -> Path:
        if who.uid not in made:
            made[who.uid] = Path(make_short_dir("eos-c-"))
            if who.uid is not None:
                os.chown(made[who.uid], who.uid, who.uid)
        return made[who.uid]

    yield find
    for path in made.values():
        assert processes.processes_that_name(str(path)) == []
        assert processes.mounts_that_name(str(path)) == []
        drop_dir(str(path))


@pytest.fixture
def desk(person: Callable[[str], Person], cache_of: Callable[[Person], Path]) -> Generator[Desks]:
    """desk("root", DOCKER_HOST=...): a person's desk, and the environment of the programs there."""
    made: list[Desk] = []

    def make(who: str, **env: str) -> Desk:
        one = person(who)
        made.append(Desk(one, cache_of(one), **env))
        return made[-1]

    yield make
    for one in made:
        one.destroy_all()


@pytest.fixture
def sandbox(person: Callable[[str], Person], cache_of: Callable[[Person], Path]) -> Generator[Sandbox]:
    """A new sandbox of the local provider at a new desk of root's; at the end nothing of it is left."""
    who = person("root")
    made = Desk(who, cache_of(who)).create("host")
    yield made
    made.destroy()
    assert made.desk.left_in_state() == []
