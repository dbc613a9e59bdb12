"""Create a session: upperdir, overlay mount, init."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, NamedTuple

from eos_agent.base import telemetry
from eos_agent.base.errors import operation_error
from eos_agent.handles.init_handle import InitHandle
from eos_agent.sessions.next_call import draft_hint
from eos_agent.wire.protocol import SERVER_SHUTTING_DOWN, OperationError
from eos_agent.zygote.specs import SessionSpec
from layerstack.errors import PublishRejected

if TYPE_CHECKING:
    from eos_agent.base.capture_pool import Captures
    from eos_agent.base.pool import Pool
    from eos_agent.handles.zygote_handle import ZygoteHandle
    from layerstack.model.resolution import Choice
    from layerstack.session.upper import Upper
    from layerstack.store import Store

AGENT_ENDS_HINT = (
    "the zygote, which makes sessions, was killed, and the agent ends with it: nothing was "
    "made; the next call reaches a new agent"
)


class SessionMaker(NamedTuple):
    """Parts of the agent that make a session. timeout_s: time limit for its init to be ready."""

    store: Store
    zygote: ZygoteHandle
    pool: Pool
    captures: Captures
    timeout_s: float

    async def make(
        self,
        spec: SessionSpec,
        *,
        agent: str | None,
        request_id: str,
        draft_id: str | None,
        draft_base: str,
        version: int | None,
        choice: Choice | None = None,
    ) -> tuple[Upper, InitHandle]:
        """Make upperdir, mount and init. If a step fails, the results of the earlier steps are removed."""

        def prepare() -> tuple[Upper, int]:
            upper = self.store.open_upper(
                spec.session_id,
                origin=f"workspace_session:{spec.session_id}",
                agent=agent,
                request_id=request_id,
                version=version,
                draft_id=draft_id,
                draft_base=draft_base,
                choice=choice,
            )
            try:
                return upper, upper.mount()
            except BaseException:
                upper.discard()
                raise

        with telemetry.span("namespace.exec.mount_overlay"):
            try:
                upper, mount_fd = await (
                    self.pool.run(prepare)
                    if draft_id is None
                    else self.captures.run(prepare, request_id=request_id)
                )
            except PublishRejected as error:
                refused = operation_error(error)
                hint = f"{draft_hint(draft_id or '')}; draft_base own opens it as it was"
                message = f"draft {draft_id} cannot be carried over to the head: {error.message}"
                raise OperationError(
                    refused.kind, message, {**refused.details, "draft_id": draft_id, "hint": hint}
                ) from None
        try:
            with telemetry.span("namespace.runner.spawn_child"):
                init = await self.zygote.create(spec, mount_fd, timeout_s=self.timeout_s)
        except BaseException as error:
            await asyncio.shield(self.pool.run(upper.discard))
            if isinstance(error, OperationError):
                message = f"workspace setup failed: {error.message}"
                if (
                    self.zygote.lost.done() or error.details.get("step") == "zygote"
                ):  # the agent ends with it, and another is started
                    details = {
                        "workspace_session_id": upper.session_id,
                        "retryable": True,
                        "hint": AGENT_ENDS_HINT,
                    }
                    raise OperationError(SERVER_SHUTTING_DOWN, message, details, reason="draining") from None
                if (
                    error.details.get("step") == "start"
                ):  # it was killed on the way, or the machine was too slow
                    error.details["retryable"] = True
                raise OperationError(error.kind, message, error.details) from None
            raise
        finally:
            os.close(mount_fd)
        return upper, init
