"""Exports onto a workspace that is a git repository, over both providers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import docker
import pytest

from eos_mcp.providers.docker import MADE_BY
from tests.end_to_end.manager_fixture import Host, hosting
from tests.end_to_end.manager_place import Place
from tests.end_to_end.manager_place import place as place

ENV = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull} | {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "p"), ("EMAIL", "p@x.org"))
}


def git(where: str, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", where, *words], env=ENV, check=True, capture_output=True, text=True, timeout=60
    ).stdout


def repository(where: str) -> None:
    git(where, "init", "-q", "-b", "main")
    git(where, "add", "-A")
    git(where, "commit", "-qm", "first")


Scenario = Callable[[Host, str], Any]


@contextlib.contextmanager
def tidied(instance_id: str, bases: str) -> Generator[None]:
    """What a failed scenario left in the engine goes: containers of this instance, their volumes and the
    volumes of its bases.
    """
    client = docker.from_env()
    try:
        yield
    finally:
        for container in client.containers.list(
            all=True, filters={"label": f"eos.gateway_instance_id={instance_id}"}
        ):
            container.remove(force=True, v=True)
            for volume in client.volumes.list():
                if volume.name.startswith(str(container.name)):
                    volume.remove(force=True)
        for name in os.listdir(bases) if os.path.isdir(bases) else ():
            for volume in client.volumes.list(filters={"name": f"eos-shared-base-{name}"}):
                volume.remove(force=True)
        for volume in client.volumes.list(filters={"dangling": True, "label": f"{MADE_BY}={instance_id}"}):
            volume.remove(force=True)
        client.close()


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.needs("dockerd"))])
def play(request: pytest.FixtureRequest, place: Place) -> Generator[Callable[[Scenario], Any]]:
    """scenario(host, sandbox id) over the place's workspace, a repository."""
    instance_id = f"harmless-{os.urandom(6).hex()}"
    Path(place.workspace, "base.txt").write_text(f"one of {instance_id}\n")  # a base of its own
    repository(place.workspace)
    image, backend = "host", "local"
    tidy: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if request.param == "docker":
        image, backend = request.getfixturevalue("image")("debian"), "docker"
        tidy = tidied(instance_id, f"{place.root}/bases")

    def run(scenario: Scenario) -> Any:
        async def hosted() -> Any:
            async with hosting(place.state, backend=backend, instance_id=instance_id) as host:
                sandbox = (await host.do("create_sandbox", image=image, workspace_root=place.workspace))["id"]
                try:
                    return await scenario(host, sandbox)
                finally:
                    await host.do("destroy_sandbox", sandbox_id=sandbox)
                    assert not os.path.exists(f"{place.state}/export-records/{sandbox}")

        return asyncio.run(hosted())

    with tidy:
        yield run
