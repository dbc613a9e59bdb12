"""Diagnose a broken request: the sandbox was destroyed, is gone, or only its agent ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from eos_agent.wire.protocol import INTERNAL_ERROR, OPERATION_FAILED, OperationError
from eos_mcp.providers.provider import FoundSandbox, ask_ready

if TYPE_CHECKING:
    from eos_mcp.manager.manager_parts import ManagerParts
    from eos_mcp.record.registry import SandboxRecord

LOOK_S, PAUSE_S = 3.0, 0.1
"""Seconds until the engine reports an ended container as ended or restarted, and the pause between two
checks.
"""


def destroyed(sandbox_id: str, op: str) -> OperationError:
    details: dict[str, Any] = {
        "sandbox_id": sandbox_id,
        "retryable": False,
        "hint": "the answer of destroy_sandbox lists what was unpublished; what was exported is on the host",
    }
    message = (
        f"sandbox {sandbox_id} was destroyed during {op}: its unpublished effects are gone with the sandbox"
    )
    return OperationError(OPERATION_FAILED, message, details, reason="sandbox_destroyed")


async def explain(
    manager: ManagerParts, sandbox_id: str, op: str, broken: OperationError | None
) -> OperationError | None:
    """Return the error that explains the end of the sandbox or its agent during `op`.

    Args:
        broken: how the connection ended; None: the agent answered that it is stopping, and only a destroy
            explains more.
    Returns:
        sandbox_destroyed; agent_gone or `broken` itself (sandbox_gone); None: the agent's answer is correct.
    """
    record = manager.registry.find(sandbox_id)
    if record is None or record.state in ("stopping", "stopped"):
        return destroyed(sandbox_id, op)
    if broken is None:
        return None
    try:
        async with asyncio.timeout(LOOK_S):
            ended = await _only_its_agent(manager, record)
    except (TimeoutError, OperationError):  # it ended and did not restart, or the engine does not answer
        ended = False
    if manager.registry.find(sandbox_id) is None:
        return destroyed(sandbox_id, op)
    if not ended:
        return broken
    details = {
        **broken.details,
        "sandbox_id": sandbox_id,
        "reason": "agent_gone",
        "hint": (
            "the sandbox is there and its agent starts again with the next call; list_workspace_sessions "
            "then shows the drafts of what was not published"
        ),
    }
    return OperationError(INTERNAL_ERROR, f"the agent of sandbox {sandbox_id} ended during {op}", details)


def _answers(record: SandboxRecord, found: FoundSandbox) -> bool:
    target = found.of(record).target()
    return target is not None and ask_ready(target, timeout_s=1.0) is None


async def _only_its_agent(manager: ManagerParts, record: SandboxRecord) -> bool:
    """Wait for a definite state, then return True when the sandbox still exists; a container restarts by
    itself.
    """
    provider = manager.provider(record.provider)
    while True:
        found: FoundSandbox | None = await manager.run(provider.find, record)
        if found is None:
            return False
        if provider.name == "local":
            return True
        if found.daemon is not None and await manager.run(_answers, record, found):
            return True
        await asyncio.sleep(PAUSE_S)
