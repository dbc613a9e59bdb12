"""The fleet form of `snapshot`: every ready sandbox is asked, a few at a time, and one that does not answer is a row that says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from eos_agent.protocol import OperationError, is_error
from eos_mcp.gateway.forward import Forwarder
from eos_mcp.manager.registry import Record

ERROR_TEXT_MAX = 4096


async def snapshot(records: Sequence[Record], forwarder: Forwarder, request_id: str, *, at_once: int, timeout_s: float) -> dict[str, Any]:
    """{sandboxes: [node, ...]}, sorted by id. `at_once` sandboxes are asked at a time, `timeout_s` is each one's."""
    gate = asyncio.Semaphore(at_once)

    async def ask(record: Record) -> dict[str, Any]:
        async with gate:
            try:
                reply = await forwarder.request(
                    record.id, "snapshot", {}, request_id=f"{request_id}:{record.id}:observability_snapshot", timeout_s=timeout_s
                )
            except OperationError as error:
                return unreachable(record, error.message)
        return unreachable(record, str(reply["error"].get("message"))) if is_error(reply) else reply

    return {"sandboxes": await asyncio.gather(*(ask(record) for record in sorted(records, key=lambda record: record.id)))}


def unreachable(record: Record, why: str) -> dict[str, Any]:
    daemon: dict[str, Any] = record.daemon.model_dump() if record.daemon else {"host": None, "port": None}
    return {
        "sandbox_id": record.id,
        "lifecycle_state": record.state,
        "availability": "unavailable",
        "sampled_at_unix_ms": None,
        "errors": [why.encode()[:ERROR_TEXT_MAX].decode("utf-8", "ignore")],
        "daemon": {**daemon, "daemon_pid": None, "runtime_dir": None},
        "resources": {"latest": None, "history": []},
        "workspaces": [],
    }
