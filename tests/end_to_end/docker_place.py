"""State, workspace and engine of one test of the Docker provider."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import docker
import pytest

from eos_mcp.providers.docker import MADE_BY
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.manager_fixture import Host, hosting, records


class Place:
    """State, workspace and instance id of one test; lists its objects in the engine."""

    def __init__(self, root: str, client: Any) -> None:
        self.root, self.client = root, client
        self.state, self.workspace, self.out = f"{root}/s", f"{root}/w", f"{root}/o"
        self.instance_id = f"test-{os.urandom(6).hex()}"

    def play(self, scenario: Callable[[Host], Coroutine[Any, Any, Any]], **options: Any) -> Any:
        async def hosted() -> Any:
            async with hosting(
                self.state, backend=options.pop("backend", "docker"), instance_id=self.instance_id, **options
            ) as host:
                return await scenario(host)

        return asyncio.run(hosted())

    def containers(self) -> list[Any]:
        return list(
            self.client.containers.list(
                all=True, filters={"label": f"eos.gateway_instance_id={self.instance_id}"}
            )
        )

    def volumes(self, sandbox_id: str) -> list[str]:
        return [volume.name for volume in self.client.volumes.list() if volume.name.startswith(sandbox_id)]

    def create(self, host: Host, image: str) -> Coroutine[Any, Any, dict[str, Any]]:
        return host.do("create_sandbox", image=image, workspace_root=self.workspace)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Generator[Place]:
    root = make_short_dir("eos-d-")
    client = docker.from_env()
    found = Place(root, client)
    os.mkdir(found.workspace)
    with open(f"{found.workspace}/a.txt", "w") as file:
        file.write(f"one of {found.instance_id}\n")  # a base of its own
    monkeypatch.setenv("EOS_SHARED_BASE_CACHE", f"{root}/bases")
    monkeypatch.setenv("EOS_STATE_DIR", found.state)
    try:
        yield found
        assert found.containers() == []
        assert records(found.state) == []
    finally:
        for container in found.containers():
            container.remove(force=True, v=True)
            for name in found.volumes(container.name):
                client.volumes.get(name).remove(force=True)
        if os.path.isdir(f"{root}/bases"):
            for name in os.listdir(f"{root}/bases"):
                for volume in client.volumes.list(filters={"name": f"eos-shared-base-{name}"}):
                    volume.remove(force=True)
        for volume in client.volumes.list(
            filters={"dangling": True, "label": f"{MADE_BY}={found.instance_id}"}
        ):  # the runtime
            volume.remove(force=True)
        client.close()
        for thread in threading.enumerate():
            if thread.name == "base-durable":
                thread.join(60)
        drop_dir(root)
