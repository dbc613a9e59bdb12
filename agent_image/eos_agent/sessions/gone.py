"""Errors about a session that does not live (unknown, lost, expired); they name the place of its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos_agent.sessions.expiry import EXPIRED
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError

if TYPE_CHECKING:
    from layerstack.recovery.dead_sessions import DeadSession

LOST = "session_lost"
RUNNER_LOST, RUNNER_STUCK = "runner_lost", "runner_stuck"
_REASONS = {EXPIRED: "session_expired", RUNNER_STUCK: "runner_stuck"}
_WORDS = {
    EXPIRED: "workspace session expired: {}: it was not used for its ttl_s",
    RUNNER_STUCK: "workspace session lost: {}: its init process did not answer and was killed",
}


def session_not_found(session_id: str, kind: str = OPERATION_FAILED) -> OperationError:
    details = {
        "workspace_session_id": session_id,
        "hint": "list_workspace_sessions shows the live ones and the drafts",
    }
    return OperationError(
        kind, f"workspace session not found: {session_id}", details, reason="session_not_found"
    )


def session_lost(
    session_id: str,
    draft_id: str | None,
    *,
    how: str = RUNNER_LOST,
    pending: str | None = None,
    folder: str = "",
) -> OperationError:
    """The error of a call to a session that was lost or expired. The call can be repeated in a new session,
    or in one opened on the draft.

    Args:
        how: EXPIRED, RUNNER_STUCK, or RUNNER_LOST.
        pending: reason why its work cannot become a draft (session.json is damaged); the work is in `folder`.
    """
    kept = f"its work is kept in {draft_id}" if draft_id else "it had no unpublished work"
    details: dict[str, Any] = {"workspace_session_id": session_id, "draft_id": draft_id}
    if how != EXPIRED:
        details["retryable"] = True
    if draft_id:
        details["hint"] = "create_workspace_session with this draft_id opens the work again"
    elif pending is not None:
        kept = f"its work could not be made a draft: {pending}"
        details["draft_pending"] = True
        details["hint"] = (
            f"its files are in {folder}; repair the file that the message names: the next agent then makes "
            f"the draft; destroy_workspace_session deletes the work"
        )
    else:
        details["hint"] = "create_workspace_session opens a new one"
    words = _WORDS.get(how, "workspace session lost: {}: its init process ended unexpectedly").format(
        session_id
    )
    return OperationError(OPERATION_FAILED, f"{words}; {kept}", details, reason=_REASONS.get(how, LOST))


def not_yet_kept(dead: DeadSession, folder: str, *, how: str = RUNNER_LOST) -> OperationError:
    """The error of a call to a dead session whose work is not a draft yet: its recovery is in progress or
    waits for space, or it is quarantined.
    """
    session_id, why = (
        dead.session_id,
        None if dead.why is None else dead.why.split(": '")[0][:500],
    )  # a path may be longer than an answer may be
    state = "quarantined" if dead.quarantined else "recovering"
    details: dict[str, Any] = {
        "workspace_session_id": session_id,
        "draft_id": None,
        state: True,
        "draft_pending": True,
    }
    if dead.quarantined:
        details["tries"] = dead.tries
        text = f"its work could not be made a draft, {dead.tries} times: {why}"
        details["hint"] = (
            f"its files are in {folder}; recover_workspace_session tries again once what the message names "
            f"is repaired; "
            "destroy_workspace_session deletes the work"
        )
    else:
        details["retryable"] = True
        text = "its work is being made a draft" if why is None else f"its work is not a draft yet: {why}"
        details["hint"] = f"its files are in {folder}; repeat the call: it names the draft once there is one"
        if dead.no_space:
            details["hint"] = (
                f"its files are in {folder}; free space on that file system: the draft is made then, and "
                f"this call names it"
            )
    words = _WORDS.get(how, "workspace session lost: {}: its init process ended unexpectedly").format(
        session_id
    )
    return OperationError(OPERATION_FAILED, f"{words}; {text}", details, reason=_REASONS.get(how, LOST))
