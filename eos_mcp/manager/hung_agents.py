"""Agents that run and do not answer: frozen by a signal or a freezer, stuck, or far too busy. They are marked
after a missed answer.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from eos_agent.wire.protocol import OperationError
from eos_mcp.config.log import log
from eos_mcp.providers.provider import ask_ready, wait_ready

if TYPE_CHECKING:
    from eos_mcp.manager.manager_parts import ManagerParts
    from eos_mcp.providers.provider import FoundSandbox, Progress
    from eos_mcp.record.registry import SandboxRecord

ASK_S = 2.0
REPLACE_AFTER_S = 15.0
"""Seconds that start_sandbox waits for an answer of a running agent before it replaces the agent."""


class Silence:
    """Agents that missed an answer, each with the time. Used on the manager's event loop."""

    def __init__(self, manager: ManagerParts) -> None:
        self._manager = manager
        self._since: dict[str, int] = {}

    def note(self, sandbox_id: str) -> None:
        """Note that a request was not answered within its timeout."""
        self._since.setdefault(sandbox_id, int(time.time() * 1000))

    def forget(self, sandbox_id: str) -> None:
        self._since.pop(sandbox_id, None)

    async def shown(self, record: SandboxRecord, *, ask: bool) -> dict[str, Any]:
        """Return the public record, with `silent_since_unix_ms` while its agent does not answer.

        Args:
            ask: also ask an agent that has not missed an answer so far.
        """
        if record.state != "ready" or record.daemon is None:
            self.forget(record.id)
        elif ask or record.id in self._since:
            await self._look(record)
        since = self._since.get(record.id)
        return record.public() if since is None else {**record.public(), "silent_since_unix_ms": since}

    async def _look(self, record: SandboxRecord) -> None:
        manager, target = self._manager, record.target()
        assert target is not None

        def silent() -> bool:
            if ask_ready(target, timeout_s=ASK_S) is None:
                return False
            found = manager.provider(record.provider).find(
                record
            )  # a dead agent is started again by the next call
            return found is not None and (found.paused or (found.running and found.daemon == record.daemon))

        try:
            async with asyncio.timeout(2 * ASK_S):
                if await manager.run(silent):
                    self.note(record.id)
                else:
                    self.forget(record.id)
        except (TimeoutError, OperationError):  # the engine does not answer
            self.note(record.id)

    async def revive(self, record: SandboxRecord, progress: Progress) -> FoundSandbox | None:
        """Call Provider.revive, and replace an agent that runs and does not answer. None: nothing of the
        sandbox exists.

        Raises:
            OperationError: internal_error.
        """
        manager = self._manager
        provider = manager.provider(record.provider)
        before = await manager.run(provider.find, record)
        frozen = await manager.run(provider.is_frozen, record)
        if frozen:
            await self._replace(record, progress, "its process is stopped")
        found = await manager.run(provider.revive, record)
        if found is None:
            return None
        if before is not None and before.running and not frozen:
            try:
                await self._wait(record, found, REPLACE_AFTER_S)
            except OperationError as error:
                if error.details.get("reason") != "readiness_timeout":
                    raise
                await self._replace(record, progress, f"it did not answer within {REPLACE_AFTER_S:g} s")
                found = await manager.run(provider.revive, record)
                if found is None:
                    return None
        await self._wait(record, found, manager.config.manager.docker.readiness_timeout_ms / 1000)
        self.forget(record.id)
        return found

    async def _replace(self, record: SandboxRecord, progress: Progress, why: str) -> None:
        log("agent_replaced", sandbox_id=record.id, why=why)
        progress(f"the agent of {record.id} runs and is replaced: {why}")
        self._manager.forwarder.forget(record.id)
        await self._manager.run(self._manager.provider(record.provider).replace, record)

    async def _wait(self, record: SandboxRecord, found: FoundSandbox, timeout_s: float) -> None:
        manager = self._manager
        there = found.of(record)
        poll_s, closing = manager.config.manager.docker.readiness_poll_ms / 1000, manager.closing.is_set
        provider = manager.provider(record.provider)
        await manager.run(
            lambda: wait_ready(provider, there, timeout_s=timeout_s, poll_s=poll_s, given_up=closing)
        )
