"""People with homes of their own; their gateways are stopped and nothing of them is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests import leaks, processes, unprivileged_install, users
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.cli_user import Desk, Desks, Sandbox
from tests.users import Person


@pytest.fixture(scope="session")
def installed() -> Generator[unprivileged_install.Installed]:
    """An installation that an ordinary user can run; needs root."""
    made = unprivileged_install.install()
    yield made
    drop_dir(str(made.root))


@pytest.fixture
def person(
    request: pytest.FixtureRequest, cache_of: Callable[[Person], Path]
) -> Generator[Callable[[str], Person]]:
    """person("root") or person("ordinary"): a fresh home; at the end its gateway is stopped and nothing that
    names the home is left.
    """
    homes: list[Person] = []

    def make(who: str) -> Person:
        home = Path(make_short_dir("eos-h-"))
        made = (
            users.root(home)
            if who == "root" or os.geteuid()
            else users.ordinary(request.getfixturevalue("installed"), home)
        )
        made = made._replace(cache=cache_of(made))
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
def cache_of() -> Callable[[Person], Path]:
    """A cache directory for each kind of person, shared by all tests of a run: bundles and bases are made
    once.
    """

    def find(who: Person) -> Path:
        path = leaks.shared() / ("cache" if who.uid is None else f"cache-{who.uid}")
        path.mkdir(exist_ok=True)
        if who.uid is not None:
            os.chown(path, who.uid, who.uid)
        return path

    return find


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
def sandbox(
    request: pytest.FixtureRequest,
    person: Callable[[str], Person],
    cache_of: Callable[[Person], Path],
    image: Callable[[str], str],
) -> Generator[Sandbox]:
    """A new sandbox at a new desk, in the place that `in_places` says, else root's on the machine itself; at
    the end nothing of it is left.
    """
    place = getattr(request, "param", "root")
    who = person("ordinary" if place == "ordinary" else "root")
    made = Desk(who, cache_of(who)).create("host" if place in ("root", "ordinary") else image(place))
    yield made
    store = str(made.store)
    made.destroy()
    assert made.desk.left_in_state() == []
    assert processes.mounts_that_name(made.id) == [] and not os.path.exists(store)
