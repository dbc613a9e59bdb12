"""Questions to the engine by its API: a docker program for each would cost as much as the call under test."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import docker


@contextlib.contextmanager
def _api() -> Generator[Any]:
    client = docker.from_env()
    try:
        yield client.api
    finally:
        client.close()


def first_pid(container: str) -> int:
    """Return the pid of a container's first process; 0 when it does not run."""
    with _api() as api:
        return int(api.inspect_container(container)["State"]["Pid"])


def mountpoint(volume: str) -> str:
    with _api() as api:
        return str(api.inspect_volume(volume)["Mountpoint"])


def in_engine(text: str) -> list[str]:
    """Return containers and volumes whose names contain `text`, or that belong to that instance id."""
    with _api() as api:
        found = [
            str(name).removeprefix("/")
            for filters in ({"name": text}, {"label": f"eos.gateway_instance_id={text}"})
            for container in api.containers(all=True, filters=filters)
            for name in container["Names"]
        ]
        volumes: list[dict[str, Any]] = api.volumes(filters={"name": text})["Volumes"] or []
        return found + [str(volume["Name"]) for volume in volumes]


def remove_volume(name: str) -> None:
    """Remove a volume that no container has; do nothing when there is none of this name."""
    with _api() as api:
        api.remove_volume(name, force=True)
