"""Internal operations of the agent, which only the gateway sends."""

from __future__ import annotations

from typing import Any

from eos_agent.wire.protocol import encode_request

from .agent_process import Agent, Failed


def cancel(agent: Agent, request_id: Any, **more: Any) -> dict[str, Any]:
    """Cancel a request; return the reply, or raise its error as `Failed`."""
    raw = encode_request(
        "cancel_request", {"request_id": request_id, **more}, request_id="c", sandbox_id=agent.sandbox_id
    )
    connection = agent.connect()
    try:
        answer = connection.line(raw)
    finally:
        connection.close()
    if "error" in answer:
        raise Failed(answer["error"])
    return answer


def squash(agent: Agent) -> dict[str, Any]:
    """Return the reply to the internal operation that the manager forwards."""
    connection = agent.connect()
    try:
        return connection.line(agent.line("squash_layerstack"))
    finally:
        connection.close()
