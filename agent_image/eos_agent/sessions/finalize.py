"""Finalize an implicit session: publish its work, or keep it as a draft with the reason."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eos_agent.base import log, telemetry
from eos_agent.base.errors import operation_error, quota_hint
from eos_agent.base.publication import publish_json, rejection_of
from eos_agent.sessions.interruption import FAILED, INTERRUPTED, Unfinished
from eos_agent.sessions.next_call import draft_hint
from layerstack.errors import PublishRejected, QuotaExceeded, Stopped
from layerstack.model.conflict import path_json
from layerstack.publish.commit import CommitUnsynced

if TYPE_CHECKING:
    from eos_agent.sessions.session import Session
    from layerstack.publish.outcome import Published
    from layerstack.session.upper import Upper
    from layerstack.store import Store

HINT = (
    "nothing was published; the work is kept in draft_id: create_workspace_session with it shows your files, "
    "publish_workspace_session publishes them"
)
CAPTURE_CANCELLED = Unfinished(INTERRUPTED, "the request was cancelled before its work was published")
ENDED_IN_ORDER = frozenset(
    {"source_conflict", "publish_error", INTERRUPTED, FAILED}
)  # drafts of sessions that were ended as intended


def commit(
    store: Store,
    upper: Upper,
    *,
    owner: str,
    request_id: str,
    agent: str | None,
    allow_unresolved: bool = False,
    message: str | None = None,
) -> Published:
    """Publish; if only the last fsync failed, publish once more.

    Raises:
        CommitUnsynced: the fsync failed twice; the work is published, but a power cut may undo it.
    """
    publish = functools.partial(
        store.publish,
        upper,
        owner=owner,
        request_id=request_id,
        agent=agent,
        allow_unresolved=allow_unresolved,
        message=message,
    )
    with telemetry.Phases(telemetry.PUBLISHING, "workspace_session.capture_changes") as phases:
        try:
            published = publish()
        except CommitUnsynced as error:
            log.failure("publish_unsynced", error)
            published = publish()
        phases.note(
            no_op=published.no_op, manifest_version=published.manifest.version, layer_id=published.layer_id
        )
        return published


def publish_or_keep(store: Store, session: Session) -> dict[str, Any]:
    """Publish the work of an offline session; if that fails keep it as a draft. Blocking. Returns the fields
    that this adds to the command's result.

    Raises:
        OSError: a draft could not be made either; the work stays in the session's directory, and the next
            open of the store makes a draft of it.
    """
    upper = session.upper
    if session.unfinished is not None:
        return _keep_unfinished(session, session.unfinished)
    hint: str | Callable[[str], str] = HINT
    try:
        published = commit(
            store,
            upper,
            owner=session.owner,
            request_id=session.request_id,
            agent=session.agent,
            message=session.message,
        )
    except PublishRejected as error:
        reason, refused, hint = error.reason, rejection_of(error), draft_hint
        telemetry.event(
            "workspace_session.finalize.publish_failed", reason=reason, conflict_count=len(error.conflicts)
        )
    except CommitUnsynced as error:
        return {"publish": {"published": True, "synced": False, **publish_json(error.published)}}
    except Stopped:
        return _keep_unfinished(session, CAPTURE_CANCELLED)
    except Exception as error:
        log.failure("publish_failed", error, session=session.id)
        telemetry.event("workspace_session.finalize.publish_failed", error=type(error).__name__)
        shown = operation_error(error)
        reason = "publish_error"
        if isinstance(error, QuotaExceeded):
            hint = (
                f"nothing was published; the work is kept in draft_id: create_workspace_session with it "
                f"shows your files; {quota_hint(error)}"
            )
        refused = _without_conflicts(reason, shown.message)
        refused["error"] = {"kind": shown.kind, "details": shown.details}
    else:
        return {"publish": {"published": not published.no_op, **publish_json(published)}}
    return _rejected(refused, _keep(session, reason, hint))


def _keep_unfinished(session: Session, why: Unfinished) -> dict[str, Any]:
    """Keep the work of a command that did not finish as a draft. Without any work the result has no
    rejection."""
    kept = _keep(session, why.reason, why.hint)
    if "draft_id" not in kept:
        return {"publish": {**kept["publish"], "no_op": True}}
    telemetry.event("workspace_session.finalize.publish_failed", reason=why.reason)
    return _rejected(_without_conflicts(why.reason, why.message), kept)


def _rejected(refused: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Result fields of a refused publication: the rejection, and the fields of `_keep` about the draft."""
    reason = refused["reason"]
    return {
        "publish_rejected": True,
        "publish_reject_class": reason,
        "publish_rejection": refused,
        **kept,
    }


def _without_conflicts(reason: str, message: str) -> dict[str, Any]:
    """The wire form of a rejection that no conflict caused."""
    return {
        "path": None,
        "reason": reason,
        "source_conflict": None,
        "protected_drop": None,
        "message": message,
        "conflict_count": 0,
        "conflicts": [],
    }


def _keep(session: Session, reason: str, hint: str | Callable[[str], str]) -> dict[str, Any]:
    draft = session.upper.to_draft(reason=reason)
    left_out = (
        {"dropped": [path_json(path) for path in session.upper.dropped]} if session.upper.dropped else {}
    )
    found: dict[str, Any] = {"publish": {"published": False, "no_op": False, **left_out}}
    if draft is None:
        return found
    said = hint if isinstance(hint, str) else hint(draft.draft_id)
    return {**found, "draft_id": draft.draft_id, "hint": said}


def finalization_failed(error: Exception, hint: str) -> dict[str, Any]:
    """Result fields of a session that could be neither published nor kept; `hint` names the place of its
    work."""
    shown = operation_error(error)
    return {
        "finalization_failed": True,
        "finalization_failure_class": "holder_finalization_capture_failed",
        "finalization_attempts": 1,
        "hint": hint,
        "finalization_error": {"kind": shown.kind, "message": shown.message, "details": shown.details},
    }
