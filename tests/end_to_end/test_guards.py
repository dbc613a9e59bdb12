"""The ways beside a session, each tried on real sandboxes of both providers: docs/confinement.md shows what
came out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.end_to_end import guards
from tests.end_to_end.docker_place import Place
from tests.end_to_end.docker_place import place as place
from tests.end_to_end.manager_fixture import Host

LOCAL = "manager:\n  local_daemon:\n    resource_profile: standard\n"


@pytest.mark.needs("dockerd", "cgroups")
def test_every_guard_of_a_container_does_what_the_page_says(
    place: Place, image: Callable[[str], str]
) -> None:
    async def scenario(host: Host) -> dict[str, str]:
        return await guards.findings(host, "docker", image("debian"), place.workspace)

    assert guards.wrong("docker", place.play(scenario)) == {}


@pytest.mark.needs("root", "overlay", "cgroups")
def test_every_guard_without_a_container_does_what_the_page_says(place: Place) -> None:
    async def scenario(host: Host) -> dict[str, str]:
        return await guards.findings(host, "local", "host", place.workspace)

    config = f"{place.root}/local.yml"
    with open(config, "w") as file:
        file.write(LOCAL)
    assert guards.wrong("local", place.play(scenario, backend="local", yaml=config)) == {}
