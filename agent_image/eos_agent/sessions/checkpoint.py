"""The operations checkpoint_session and restore_session: undo inside an explicit session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from eos_agent.base import telemetry
from eos_agent.base.errors import operation_error
from eos_agent.sessions import session_commands
from eos_agent.sessions.checkpoint_rows import ended, row
from eos_agent.sessions.next_call import rebase_hint
from eos_agent.sessions.publish import SESSION_BUSY, check_idle, remount
from eos_agent.sessions.refusal import RefusedOperation, not_resumed, refusal
from eos_agent.sessions.session import EXPLICIT, Session
from eos_agent.wire.protocol import NOT_FOUND, OPERATION_FAILED, OperationError
from layerstack.errors import NotFound, StoreBusy

if TYPE_CHECKING:
    from eos_agent.sessions.table import Sessions
    from layerstack.session.checkpoints import Checkpoint

T = TypeVar("T")
BUSY_HINT = "end them first: the session starts with a new init"
CHECKPOINT = RefusedOperation("checkpoint", rebase_hint)
RESTORE = RefusedOperation("restore", rebase_hint)


async def checkpoint(sessions: Sessions, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Make the state of a session a checkpoint. A session with writes since the last one is mounted again, by
    a new init.

    Raises:
        OperationError: operation_failed: session_busy, implicit_session, layer_limit, or an error of the
            disk. The session is unchanged unless `session_retained` is false; then `draft_id` has its work.
    """
    async with sessions.use(args["workspace_session_id"], kind=NOT_FOUND) as session:
        await _check(sessions, session, CHECKPOINT)
        upper, label = session.upper, args.get("label")
        restarts = await sessions.pool.run(lambda: upper.has_writes)
        done, stopped = await _change(
            sessions, session, lambda: upper.checkpoint(label), CHECKPOINT, request_id, restarts=restarts
        )
    found = {"workspace_session_id": session.id, **row(done.checkpoint)}
    return {**found, **stopped, **_also(session, done.dropped)}


async def restore(sessions: Sessions, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Return to a checkpoint; the state before is a checkpoint too, `undo_checkpoint_id`.

    Raises:
        OperationError: checkpoint_not_found; else as `checkpoint`.
    """
    async with sessions.use(args["workspace_session_id"], kind=NOT_FOUND) as session:
        await _check(sessions, session, RESTORE)
        upper = session.upper
        try:
            target = upper.saved.find(args.get("checkpoint_id"))
        except NotFound as error:
            absent = operation_error(error)
            absent.details.update(workspace_session_id=session.id, session_retained=True)
            raise absent from error
        restarts = target.layer != upper.saved.top or await sessions.pool.run(lambda: upper.has_writes)
        done, stopped = await _change(
            sessions,
            session,
            lambda: upper.restore(target.checkpoint_id),
            RESTORE,
            request_id,
            restarts=restarts,
        )
    found = {
        "workspace_session_id": session.id,
        "checkpoint_id": target.checkpoint_id,
        **({} if target.label is None else {"label": target.label}),
        "restored": done.undo is not None,
    }
    if done.undo is not None:
        found["undo_checkpoint_id"] = done.undo.checkpoint_id
    return {**found, **stopped, **_also(session, done.dropped)}


async def _check(sessions: Sessions, session: Session, operation: RefusedOperation) -> None:
    """Refuse an implicit session, and one in which a process runs that does not belong to a service."""
    if session.policy != EXPLICIT:
        message = f"workspace session {session.id} publishes by itself"
        raise OperationError(
            OPERATION_FAILED, message, {"workspace_session_id": session.id}, reason="implicit_session"
        )
    await session.await_commands(0, operation.name, reason=SESSION_BUSY)
    await check_idle(sessions, session, operation.name, hint=BUSY_HINT)


async def _change(
    sessions: Sessions,
    session: Session,
    change: Callable[[], T],
    operation: RefusedOperation,
    request_id: str,
    *,
    restarts: bool,
) -> tuple[T, dict[str, Any]]:
    """Run a change of the upper; returns its result, and the field that lists services that were ended.

    Args:
        restarts: the change needs the upper offline: init ends, and a new one starts.
    """
    if not restarts:
        try:
            return await sessions.captures.run(change, request_id=request_id), {}
        except StoreBusy:  # a service has written since, so the upper must go offline all the same
            pass
        except Exception as error:
            raise refusal(sessions, session, error, operation, retained=True) from error
    session.ending = True
    session.state = "finalizing"
    with telemetry.span("workspace_session.remount", workspace_session_id=session.id):
        await sessions.zygote.keep_folders(session.init.pid)
        running = session_commands.services(session)
        await session.init.end(sessions.grace_s)
        stopped = await session_commands.services_ended(running, f"{operation.name}_session")
        try:
            done = await sessions.captures.run(change, request_id=request_id)
        except Exception as error:
            retained = await remount(sessions, session)
            refused = refusal(sessions, session, error, operation, retained=retained, restarted=True)
            refused.details.update(stopped)
            raise refused from error
        if not await remount(sessions, session):
            raise not_resumed(sessions, session, operation)
    return done, stopped


def _also(session: Session, dropped: Iterable[Checkpoint]) -> dict[str, Any]:
    address = session.init.address
    return {**ended(dropped), **({} if address is None else {"address": address})}
