"""The operations `resources` and `cgroup` of one sandbox: series of samples. Contract 7.5 and 7.6."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos_agent.observe import topology
from eos_agent.observe.sampler import FROM_PROCESSES, NO_CGROUP, SANDBOX
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

if TYPE_CHECKING:
    from eos_agent.observe.agent import Agent

OFF = "resource samples are switched off (observability.resource_stats.enabled)"


async def resources(agent: Agent, args: dict[str, Any]) -> dict[str, Any]:
    """Answer the operation `resources`: the sandbox's points within `window_ms`."""
    sampler = agent.sampler
    series = await agent.pool.run(lambda: sampler.series(SANDBOX, args["window_ms"]))
    availability, errors = _word(agent, series)
    return {
        "view": "resources",
        "scope": "sandbox",
        "sandbox_id": agent.settings.sandbox_id,
        "source": "daemon_disk",
        "availability": availability,
        "errors": errors,
        "series": series,
    }


def _word(agent: Agent, series: list[dict[str, Any]]) -> tuple[str, list[str]]:
    if not agent.sampler.enabled:
        return "unavailable", [OFF]
    if not series:
        return "unavailable", ["nothing was sampled within the window"]
    if series[-1]["metrics"].get("metrics_source") == FROM_PROCESSES:
        return "partial", [NO_CGROUP]
    return "available", []


async def cgroup(agent: Agent, args: dict[str, Any]) -> dict[str, Any]:
    """Answer the operation `cgroup`. `scope` sandbox: the agent's points, for a manager without points of its
    own. Any other value is a session's id.

    Raises:
        OperationError: invalid_request; `scope` is not the id of a live session.
    """
    scope, window_ms = args["scope"], args["window_ms"]
    if scope == "sandbox":
        series = await agent.pool.run(lambda: agent.sampler.series(SANDBOX, window_ms))
    elif scope in agent.sessions.live:
        series = agent.sampler.of_session(scope, window_ms)
        if not series and agent.sampler.enabled:
            pid = agent.sessions.live[scope].init.pid
            series = await agent.pool.run(lambda: agent.sampler.now_of(scope, pid))
    else:
        raise OperationError(
            INVALID_REQUEST,
            f"workspace session not found: {scope}",
            {"argument": "scope"},
            reason="session_not_found",
        )
    found: dict[str, Any] = {
        "view": "cgroup",
        "scope": scope,
        "series": series,
        "topology": await topology.tree(agent),
    }
    if scope == "sandbox":
        found["availability"], found["errors"] = _word(agent, series)
    return found
