"""A manager and an agent pool for one test."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

from agent_image import build
from eos_agent.wire.protocol import OperationError
from eos_mcp.config import load
from eos_mcp.manager.manager import Manager
from eos_mcp.providers.local import LocalProvider


class Host:
    """The manager and the agent pool of a gateway, without its sockets."""

    def __init__(self, manager: Manager) -> None:
        self.manager, self.forwarder = manager, manager.forwarder
        self.said: list[str] = []

    async def do(self, op: str, **args: Any) -> dict[str, Any]:
        """Perform a manager operation."""
        return await self.manager.handle(op, args, request_id="test", progress=self.said.append)

    async def refused(self, op: str, **args: Any) -> OperationError:
        """Return the error that a manager operation ends with."""
        try:
            found = await self.do(op, **args)
        except OperationError as error:
            return error
        raise AssertionError(f"{op} was not refused: {found}")

    async def ask(self, sandbox_id: str, op: str, **args: Any) -> dict[str, Any]:
        """Perform a runtime operation; an error is returned in the reply."""
        return await self.forwarder.request(sandbox_id, op, args, request_id="test", timeout_s=60)

    async def run(self, sandbox_id: str, cmd: str, **args: Any) -> str:
        """Return the output of a command that must succeed."""
        reply = await self.ask(sandbox_id, "exec_command", cmd=cmd, yield_time_ms=30_000, **args)
        assert reply.get("status") == "ok", reply
        return str(reply["output"])

    async def read(self, sandbox_id: str, path: str) -> str:
        reply = await self.ask(sandbox_id, "file_read", path=path)
        assert "content" in reply, reply
        return str(reply["content"])


@contextlib.asynccontextmanager
async def hosting(
    state_dir: str,
    *,
    backend: str,
    instance_id: str = "none",
    yaml: str | None = None,
    bundle: build.Bundle | None = None,
) -> AsyncGenerator[Host]:
    """Start a manager. `bundle`: the bundle to use when the user of the test cannot read this machine's
    interpreter.
    """
    manager = Manager(load.load(yaml), state_dir, backend=backend, instance_id=instance_id)
    local = manager.providers.get("local")
    if bundle is not None and isinstance(local, LocalProvider):
        fixed: Callable[[Any], build.Bundle] = lambda _: bundle  # noqa: E731
        local._bundle = fixed  # type: ignore[method-assign, assignment]
        local._python = lambda: build.python_argv(bundle.path)  # type: ignore[method-assign]
    await manager.start()
    host = Host(manager)
    try:
        yield host
    finally:
        await manager.close()


def records(state_dir: str) -> list[dict[str, Any]]:
    """Return the content of the registry file."""
    try:
        with open(os.path.join(state_dir, "registry.json")) as file:
            return list(json.load(file)["sandboxes"])
    except FileNotFoundError:
        return []
