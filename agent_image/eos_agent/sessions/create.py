"""From a wish for a session to its upperdir, its mount and its first process."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from eos_agent.base import telemetry
from eos_agent.base.errors import operation_error
from eos_agent.handles.init_handle import InitHandle, SessionSpec
from eos_agent.wire.protocol import SERVER_SHUTTING_DOWN, OperationError
from layerstack.errors import PublishRejected

if TYPE_CHECKING:
    from eos_agent.sessions.table import Sessions
    from layerstack.session.upper import Upper

AGENT_ENDS_HINT = (
    "the process that makes sessions was killed, and the agent ends with it: nothing was made; the next call finds a new agent"
)


async def set_up(
    sessions: Sessions, spec: SessionSpec, *, agent: str | None, request_id: str, draft_id: str | None, draft_base: str, version: int | None
) -> tuple[Upper, InitHandle]:
    """A place for its writes, its mount and its first process; nothing of them when one fails."""

    def prepare() -> tuple[Upper, int]:
        upper = sessions.store.open_upper(
            spec.session_id,
            origin=f"workspace_session:{spec.session_id}",
            agent=agent,
            request_id=request_id,
            version=version,
            draft_id=draft_id,
            draft_base=draft_base,
        )
        try:
            return upper, upper.mount()
        except BaseException:
            upper.discard()
            raise

    with telemetry.span("namespace.exec.mount_overlay"):
        try:
            upper, mount_fd = await (
                sessions.pool.run(prepare) if draft_id is None else sessions.captures.run(prepare, request_id=request_id)
            )
        except PublishRejected as error:
            refused = operation_error(error)
            hint = "draft_base own opens it as it was; redo its work on the newest version"
            message = f"draft {draft_id} cannot be carried over to the head: {error.message}"
            raise OperationError(refused.kind, message, {**refused.details, "draft_id": draft_id, "hint": hint}) from None
    try:
        with telemetry.span("namespace.runner.spawn_child"):
            runner = await sessions.zygote.create(spec, mount_fd, timeout_s=sessions.setup_timeout_s)
    except BaseException as error:
        await asyncio.shield(sessions.pool.run(upper.discard))
        if isinstance(error, OperationError):
            message = f"workspace setup failed: {error.message}"
            if sessions.zygote.lost.done() or error.details.get("step") == "zygote":  # the agent ends with it, and another is started
                details = {"workspace_session_id": upper.session_id, "retryable": True, "hint": AGENT_ENDS_HINT}
                raise OperationError(SERVER_SHUTTING_DOWN, message, details, reason="draining") from None
            if error.details.get("step") == "start":  # it was killed on the way, or the machine was too slow
                error.details["retryable"] = True
            raise OperationError(error.kind, message, error.details) from None
        raise
    finally:
        os.close(mount_fd)
    return upper, runner
