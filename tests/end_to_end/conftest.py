"""Fixtures for people with their own homes; at the end their gateways are stopped and nothing of them is
left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests import leaks, one_bundle, processes, unprivileged_install, users
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end import forked_program
from tests.end_to_end.cli_user import Desk, Desks, Sandbox
from tests.users import Person


@pytest.fixture(scope="session")
def installed() -> unprivileged_install.Installed:
    """An installation that an ordinary user can run; needs root."""
    return unprivileged_install.made()


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
        close(one)


def close(one: Person) -> None:
    """Stop the gateway of a home, delete the home, and check that no process, mount or container names it."""
    if (one.home / "state").exists():
        done = forked_program.run_for(one, *forked_program.STOP, one.environment())
        assert done.returncode == 0, done.stderr
    assert processes.processes_that_name(str(one.home)) == []
    assert processes.mounts_that_name(str(one.home)) == []
    drop_dir(str(one.home))


@pytest.fixture(scope="session")
def cache_of() -> Callable[[Person], Path]:
    """A cache directory for each kind of person, shared by all tests of a run: bundles and bases are made
    once.
    """

    def find(who: Person) -> Path:
        if who.uid is None:
            return one_bundle.root_cache()
        path = leaks.shared() / f"cache-{who.uid}"
        path.mkdir(exist_ok=True)
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


class Gateways:
    """One state directory for each kind of person, whose gateway runs from test to test; a test that needs
    its own gateway uses `desk`.
    """

    def __init__(self, cache_of: Callable[[Person], Path]) -> None:
        self.cache_of, self.open = cache_of, dict[str, Person]()
        self.installed: unprivileged_install.Installed | None = None

    def state(self, who: str, request: pytest.FixtureRequest) -> Path:
        """The state directory for tests of "root" or "ordinary"."""
        if who == "ordinary":
            request.getfixturevalue("ordinary_gateway")
        if who not in self.open:
            home = Path(make_short_dir("eos-g-"))
            made = (
                users.root(home)
                if self.installed is None or who == "root"
                else users.ordinary(self.installed, home)
            )
            self.open[who] = made = made._replace(cache=self.cache_of(made))
            # in this home, and not in one that a test deletes: a gateway writes a note there
            done = forked_program.run_for(made, *forked_program.START, made.environment())
            assert done.returncode == 0, done.stderr
        return self.open[who].home / "state"

    def drop(self, who: str) -> None:
        """Stop the gateway; the next test has a new state directory."""
        if who in self.open:
            close(self.open.pop(who))


@pytest.fixture(scope="session")
def gateways(cache_of: Callable[[Person], Path]) -> Generator[Gateways]:
    """The running gateways of this process."""
    made = Gateways(cache_of)
    yield made
    for who in list(made.open):
        made.drop(who)


@pytest.fixture(scope="session")
def ordinary_gateway(gateways: Gateways, installed: unprivileged_install.Installed) -> None:
    """Give the gateways the installation that the ordinary user's runs from."""
    gateways.installed = installed


@pytest.fixture
def shared_desk(
    request: pytest.FixtureRequest,
    person: Callable[[str], Person],
    cache_of: Callable[[Person], Path],
    gateways: Gateways,
) -> Generator[Desks]:
    """A `desk` at a gateway that runs already: for tests that stop no gateway and configure none."""
    made: list[tuple[str, Desk]] = []

    def make(who: str) -> Desk:
        kind = who if os.geteuid() == 0 else "root"
        one = person(who)
        made.append((kind, Desk(one, cache_of(one), EOS_STATE_DIR=str(gateways.state(kind, request)))))
        return made[-1][1]

    yield make
    for kind, one in made:
        one.destroy_all()
        if one.left_in_state():
            gateways.drop(kind)


@pytest.fixture
def sandbox(
    request: pytest.FixtureRequest,
    person: Callable[[str], Person],
    cache_of: Callable[[Person], Path],
    image: Callable[[str], str],
    gateways: Gateways,
) -> Generator[Sandbox]:
    """A new sandbox of a person with a fresh home, at a gateway that runs already, in the place that
    `in_places` says, else root's on the machine itself; at the end nothing of it is left.
    """
    place = getattr(request, "param", "root")
    kind = "ordinary" if place == "ordinary" and os.geteuid() == 0 else "root"
    who = person(kind)
    at = Desk(who, cache_of(who), EOS_STATE_DIR=str(gateways.state(kind, request)))
    made, clean = at.create("host" if place in ("root", "ordinary") else image(place)), False
    try:
        yield made
        store = str(made.store)
        made.destroy()
        assert at.left_in_state() == []
        assert processes.mounts_that_name(made.id) == [] and not os.path.exists(store)
        clean = True
    finally:
        if not clean:  # the failure of one test must not fail the next
            at.destroy_all()
            gateways.drop(kind)
