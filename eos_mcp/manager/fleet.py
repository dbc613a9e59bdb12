"""The fleet forms of `snapshot` and `resources`: ask the ready sandboxes, a few at a time. A sandbox that
does not answer gets a row with the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from eos_agent.wire.protocol import OperationError, is_error
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.record.registry import SandboxRecord

ERROR_TEXT_MAX = 4096
NEWEST_WINDOW_MS = 600_000
Latest = Callable[[str], Awaitable[tuple[str, list[str], dict[str, Any] | None]]]
"""Id -> availability, errors and the newest point of the manager's own samples."""


class Asking(NamedTuple):
    """Limits of the requests to agents: how many at a time, and the timeout of each."""

    forwarder: AgentPool
    request_id: str
    at_once: int
    timeout_s: float


class Fleet:
    """The sandboxes that are ready when the call begins."""

    def __init__(self, records: Sequence[SandboxRecord], asking: Asking, latest: Latest) -> None:
        self._records = sorted(records, key=lambda record: record.id)
        self._asking, self._latest = asking, latest
        self._gate = asyncio.Semaphore(asking.at_once)

    async def snapshot(self) -> dict[str, Any]:
        """Return {sandboxes: [node, ...]}, sorted by id."""

        async def node(record: SandboxRecord) -> dict[str, Any]:
            reply = await self._ask(record, "snapshot", {})
            if isinstance(reply, str):
                return unreachable(record, reply)
            latest = (await self._latest(record.id))[2] if counted_outside(record) else None
            if latest is not None:
                reply["resources"] = {"latest": latest, "history": []}
            return reply

        return {"sandboxes": await asyncio.gather(*(node(record) for record in self._records))}

    async def resources(self) -> dict[str, Any]:
        """Return the newest point of each sandbox."""

        async def row(record: SandboxRecord) -> dict[str, Any]:
            said: list[str] = []
            if counted_outside(record):
                availability, said, current = await self._latest(record.id)
                if current is not None:
                    return {"availability": availability, "errors": said, "current": current}
            reply = await self._ask(record, "resources", {"window_ms": NEWEST_WINDOW_MS})
            if isinstance(reply, str):
                return {"availability": "unavailable", "errors": [*said, reply], "current": None}
            series: list[dict[str, Any]] = reply.get("series") or []
            word = second_best(reply["availability"]) if said else reply["availability"]
            return {
                "availability": word,
                "errors": [*said, *reply["errors"]],
                "current": series[-1] if series else None,
            }

        rows = await asyncio.gather(*(row(record) for record in self._records))
        words = {row["availability"] for row in rows} or {"available"}
        return {
            "view": "resources",
            "scope": "fleet",
            "availability": words.pop() if len(words) == 1 else "partial",
            "errors": [],
            "sandboxes": {record.id: row for record, row in zip(self._records, rows, strict=True)},
        }

    async def _ask(self, record: SandboxRecord, op: str, args: dict[str, Any]) -> dict[str, Any] | str:
        """Return the reply, or the reason why none came."""
        asking = self._asking
        async with self._gate:
            try:
                request_id = f"{asking.request_id}:{record.id}:observability_{op}"
                reply = await asking.forwarder.request(
                    record.id, op, args, request_id=request_id, timeout_s=asking.timeout_s
                )
            except OperationError as error:
                return cut(error.message)
        return cut(str(reply["error"].get("message"))) if is_error(reply) else reply


def counted_outside(record: SandboxRecord) -> bool:
    """Return True when a container engine counts the sandbox's resources."""
    return record.provider == "docker"


def second_best(availability: str) -> str:
    """Return the availability to report when an agent's own samples replace those of an engine."""
    return "partial" if availability == "available" else availability


def cut(text: str) -> str:
    return text.encode()[:ERROR_TEXT_MAX].decode("utf-8", "ignore")


def unreachable(record: SandboxRecord, why: str) -> dict[str, Any]:
    daemon: dict[str, Any] = record.daemon.model_dump() if record.daemon else {"host": None, "port": None}
    return {
        "sandbox_id": record.id,
        "lifecycle_state": record.state,
        "availability": "unavailable",
        "sampled_at_unix_ms": None,
        "errors": [cut(why)],
        "daemon": {**daemon, "daemon_pid": None, "runtime_dir": None},
        "resources": {"latest": None, "history": []},
        "workspaces": [],
    }
