"""The operation `events`: recorded events, oldest first. Contract 7.4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos_agent.base.rotating_log import decode
from eos_agent.observe.limits import MAX_BYTES, MAX_RECORDS

if TYPE_CHECKING:
    from eos_agent.base.telemetry import Telemetry
    from eos_agent.observe.agent import Agent


async def events(agent: Agent, args: dict[str, Any]) -> dict[str, Any]:
    """Answer the operation: the newest events with the requested name and time, at most `last_n`, 500 and 256
    KiB of them, oldest first.
    """
    found = await agent.pool.run(
        lambda: _events(agent.telemetry, args.get("name"), args.get("since_ms"), args.get("last_n"))
    )
    return {"view": "events", "events": found}


def _events(
    telemetry: Telemetry, name: str | None, since_ms: int | None, last_n: int | None
) -> list[dict[str, Any]]:
    most = MAX_RECORDS if last_n is None else min(last_n, MAX_RECORDS)
    found: list[tuple[float, dict[str, Any]]] = []
    size = 0
    for line in reversed(telemetry.read()):
        if len(found) >= most:
            break
        if not line.startswith(b'{"kind":"event"'):
            continue
        value = decode(line, ts=int, name=str)
        if (
            value is None
            or (name is not None and value.get("name") != name)
            or (since_ms is not None and value["ts"] < since_ms)
        ):
            continue
        size += len(line)
        if size > MAX_BYTES:
            break
        at = value.pop("at", None)
        value.pop("_counters", None)
        found.append((at if isinstance(at, int | float) else value["ts"], value))
    return [value for _, value in sorted(found, key=lambda one: one[0])]
