"""Errors of operations that carry a session's work to the head: publish and rebase."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from eos_agent.base import log
from eos_agent.base.errors import operation_error
from eos_agent.base.publication import rejection_of
from eos_agent.sessions.gone import not_yet_kept
from eos_agent.wire.protocol import INTERNAL_ERROR, OPERATION_FAILED, OperationError
from layerstack.errors import PublishRejected

if TYPE_CHECKING:
    from eos_agent.sessions.session import Session
    from eos_agent.sessions.table import Sessions


UNDER_WAY = "git_operation_in_progress"
"""Class of a conflict whose own hint names the commands that end it; a rebase would meet it again."""


class RefusedOperation(NamedTuple):
    """The operation that failed: its name in messages and in `stage`, and a function from the session's id to
    the hint of a rejection that left the session open.
    """

    name: str
    hint: Callable[[str], str]


def refusal(
    sessions: Sessions,
    session: Session,
    error: Exception,
    operation: RefusedOperation,
    *,
    retained: bool,
    restarted: bool = False,
    stage: str = "",
) -> OperationError:
    """The error of a failed operation.

    Args:
        retained: the session is open; else its work is a draft, or will be one.
        restarted: the operation has ended its processes.
        stage: the part of the operation that failed; "" for the operation itself.
    """
    if isinstance(error, PublishRejected):
        return rejected(
            sessions, session, rejection_of(error), operation, retained=retained, restarted=restarted
        )
    return _failed(sessions, session, error, operation, stage or operation.name, retained=retained)


def rejected(
    sessions: Sessions,
    session: Session,
    rejection: dict[str, Any],
    operation: RefusedOperation,
    *,
    retained: bool,
    restarted: bool = False,
) -> OperationError:
    """The error that carries a rejection in its wire form; arguments as of `refusal`."""
    details: dict[str, Any] = {
        "workspace_session_id": session.id,
        "stage": operation.name,
        "session_retained": retained,
        "publish_rejection": rejection,
    }
    if restarted:
        details["processes_ended"] = True
    under_way = [row.get("hint") for row in rejection["conflicts"] if row["class"] == UNDER_WAY]
    if retained:
        details["hint"] = under_way[0] if under_way else operation.hint(session.id)
    else:
        details["draft_id"] = sessions.lost.get(session.id)
    message = f"workspace session {operation.name} was rejected"
    return OperationError(OPERATION_FAILED, message, details, reason=str(rejection["reason"]))


def _failed(
    sessions: Sessions,
    session: Session,
    error: Exception,
    operation: RefusedOperation,
    stage: str,
    *,
    retained: bool,
) -> OperationError:
    """The error of an operation that failed for another reason than a rejection; it names the place of the
    work."""
    shown = operation_error(error)
    if shown.kind == INTERNAL_ERROR:
        log.failure(f"{operation.name}_failed", error, session=session.id)
    details = {
        **shown.details,
        "workspace_session_id": session.id,
        "stage": stage,
        "session_retained": retained,
    }
    if not retained:
        details["draft_id"] = sessions.lost.get(session.id)
        if (dead := sessions.store.dead.find(session.id)) is not None:  # usually because the disk is full
            details |= {
                "draft_pending": True,
                "hint": not_yet_kept(dead, sessions.folder(session.id)).details["hint"],
            }
    kind = INTERNAL_ERROR if shown.kind == INTERNAL_ERROR else OPERATION_FAILED
    return OperationError(kind, f"workspace session {operation.name} failed: {shown.message}", details)


def not_resumed(sessions: Sessions, session: Session, operation: RefusedOperation) -> OperationError:
    """The error of an operation that succeeded, after which the session could not be started again."""
    details = {
        "workspace_session_id": session.id,
        "stage": operation.name,
        "session_retained": False,
        "draft_id": sessions.lost.get(session.id),
        "retryable": True,
        "hint": "create_workspace_session with this draft_id opens the work again",
    }
    message = (
        f"workspace session {session.id}: the {operation.name} is done, the session could not be started "
        f"again: its work is a draft"
    )
    return OperationError(OPERATION_FAILED, message, details, reason="session_lost")
