"""What is said about sessions that are gone: never there, ended unasked, expired, and where their work is."""

from __future__ import annotations

import errno
import os
from typing import Any

from eos_agent.expiry import EXPIRED
from eos_agent.protocol import OPERATION_FAILED, OperationError

LOST = "session_lost"
RUNNER_LOST, RUNNER_STUCK = "runner_lost", "runner_stuck"
_REASONS = {EXPIRED: "session_expired", RUNNER_STUCK: "runner_stuck"}
_WORDS = {
    EXPIRED: "workspace session expired: {}: nobody used it for its ttl_s",
    RUNNER_STUCK: "workspace session lost: {}: its process did not answer and was killed",
}


def session_not_found(session_id: str, kind: str = OPERATION_FAILED) -> OperationError:
    details = {"workspace_session_id": session_id, "hint": "list_workspace_sessions shows the live ones, list_drafts the kept work"}
    return OperationError(kind, f"workspace session not found: {session_id}", details, reason="session_not_found")


def session_lost(
    session_id: str, draft_id: str | None, *, how: str = RUNNER_LOST, pending: str | None = None, folder: str = ""
) -> OperationError:
    """A session that ended without being told to. Its call may be repeated: in a new session, or one opened from the draft.

    Args:
        how: EXPIRED, RUNNER_STUCK, or RUNNER_LOST.
        pending: why its work could not be made a draft yet; it lies in `folder` until the store is opened again.
    """
    kept = f"its work is kept in {draft_id}" if draft_id else "nothing was unpublished in it"
    details: dict[str, Any] = {"workspace_session_id": session_id, "draft_id": draft_id}
    if how != EXPIRED:
        details["retryable"] = True
    if draft_id:
        details["hint"] = "create_workspace_session with this draft_id opens the work again"
    elif pending is not None:
        kept = f"its work could not be made a draft yet: {pending}"
        details["draft_pending"] = True
        details["hint"] = pending_hint(pending, folder)
    else:
        details["hint"] = "create_workspace_session opens a new one"
    words = _WORDS.get(how, "workspace session lost: {}: its process ended unasked").format(session_id)
    return OperationError(OPERATION_FAILED, f"{words}; {kept}", details, reason=_REASONS.get(how, LOST))


def pending_hint(why: str, folder: str) -> str:
    """Where work lies that could not be made a draft, and what makes it one."""
    step = "free space on the file system of the store" if os.strerror(errno.ENOSPC) in why else "mend what the message names there"
    return f"its files lie in {folder}; {step}; the agent's next start makes the draft"
