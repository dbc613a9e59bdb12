"""The operations publish_workspace_session and preview_publish."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from eos_agent import log, telemetry
from eos_agent.failures import operation_error
from eos_agent.history import cursor
from eos_agent.protocol import INTERNAL_ERROR, INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_agent.publication import preview_json, publish_json, rejection
from eos_agent.session import EXPLICIT, Session, check_grace
from eos_agent.settle import QUOTA_HINT, commit
from layerstack.errors import PublishRejected, QuotaExceeded
from layerstack.publish import CommitUnsynced

if TYPE_CHECKING:
    from eos_agent.sessions import Sessions
    from layerstack.publish import Preview


async def publish(sessions: Sessions, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Publish an explicit session and close it.

    Freeze and preview first: with conflicts nothing has happened and the session goes on. Else its processes end, which is the real end of
    the overlay, and the work is sealed and committed; should the head have moved into a conflict meanwhile, the session goes on with the
    same view and a new runner.
    """
    session_id: str = args["workspace_session_id"]
    grace = check_grace(args)
    async with sessions.use(session_id) as session:
        if session.policy != EXPLICIT:
            details = {"workspace_session_id": session_id}
            raise OperationError(
                OPERATION_FAILED, f"workspace session {session_id} publishes by itself", details, reason="implicit_session"
            )
        await session.await_commands(grace, "publish")
        with telemetry.span("workspace_session.capture_changes", preview=True):
            size = await _preview_frozen(sessions, session)
        session.ending = True
        session.state = "finalizing"
        await session.runner.terminate()
        upper = session.upper
        try:
            with sessions.lifecycle.cleaning(), telemetry.span("workspace_session.publish", workspace_session_id=session_id):
                published = await sessions.pool.run(
                    lambda: commit(upper, owner=session.owner, request_id=request_id, agent=session.agent)
                )
        except CommitUnsynced as error:
            sessions.end(session)
            raise _unsynced(session, error) from error
        except Exception as error:
            retained = await _go_on(sessions, session)
            raise _refused(sessions, session, error, "publish", retained=retained, restarted=True) from error
        sessions.end(session)
        if session.draft_id is not None and not published.no_op:
            sessions.forget_draft(session.draft_id)
    return {
        "workspace_session_id": session_id,
        "publish": publish_json(published),
        "destroyed": True,
        "evicted_upperdir_bytes": size,
    }


async def preview(sessions: Sessions, args: dict[str, Any]) -> dict[str, Any]:
    """What a publish of a live session or of a draft would answer now; the session stands still meanwhile."""
    session_id, draft_id = args.get("workspace_session_id"), args.get("draft_id")
    if (session_id is None) == (draft_id is None):
        raise OperationError(
            INVALID_REQUEST,
            "preview_publish takes either workspace_session_id or draft_id",
            {"argument": "workspace_session_id"},
            reason="one_of_two",
        )
    start = cursor(args)
    if draft_id is not None:
        found = await sessions.pool.run(lambda: sessions.store.preview_draft(draft_id))
        return preview_json(found, start)
    assert session_id is not None
    async with sessions.use(session_id) as session:
        await session.runner.freeze()
        try:
            found = await sessions.pool.run(session.upper.preview)
        finally:
            await session.runner.thaw()
    return preview_json(found, start)


async def _preview_frozen(sessions: Sessions, session: Session) -> int:
    """Raises the rejection if there are conflicts, with the session as it was; else its size, and its processes stay frozen."""
    await session.runner.freeze()
    good = False
    try:
        found, size = await sessions.pool.run(lambda: (_preview(sessions, session), session.upper.size_bytes()))
        if found.conflicts:
            raise _rejected(sessions, session, rejection(found.conflicts), retained=True)
        if found.refused is not None:
            raise _refused(sessions, session, found.refused, "publish", retained=True)
        good = True
        return size
    except OperationError:
        raise
    except Exception as error:
        raise _refused(sessions, session, error, "capture", retained=True) from error
    finally:
        if not good:
            await session.runner.thaw()


def _preview(sessions: Sessions, session: Session) -> Preview:
    """Of a publish that is meant: what can be folded is folded, if the work would be refused otherwise and the policy allows it."""
    found = session.upper.preview()
    if found.refused is not None and sessions.store.quota.fold(found.refused.reason):
        found = session.upper.preview()
    return found


async def _go_on(sessions: Sessions, session: Session) -> bool:
    """A sealed session whose publication failed gets a new mount on the same view, and a new runner; else its work becomes a draft."""
    try:
        mount_fd = await sessions.pool.run(session.upper.mount)
        try:
            runner = await sessions.zygote.create(session.spec, mount_fd, timeout_s=sessions.setup_timeout_s)
        finally:
            os.close(mount_fd)
    except Exception as error:
        log.failure("remount_failed", error, session=session.id)
        await sessions.keep(session, "publish_error")
        return False
    session.runner = runner
    session.ending = False
    session.state = "active"
    sessions.watch(session, runner)
    return True


def _rejected(sessions: Sessions, session: Session, refused: dict[str, Any], *, retained: bool, restarted: bool = False) -> OperationError:
    details: dict[str, Any] = {
        "workspace_session_id": session.id,
        "stage": "publish",
        "session_retained": retained,
        "publish_rejection": refused,
    }
    if restarted:
        details["processes_ended"] = True
    if retained:
        details["hint"] = "redo the conflicting paths on the newest version in a new session, publish that, then destroy this one"
    else:
        details["draft_id"] = sessions.lost.get(session.id)
    return OperationError(OPERATION_FAILED, "workspace session publish was rejected", details, reason=str(refused["reason"]))


def _refused(
    sessions: Sessions, session: Session, error: Exception, stage: str, *, retained: bool, restarted: bool = False
) -> OperationError:
    if isinstance(error, PublishRejected):
        return _rejected(sessions, session, rejection(error.conflicts, error.reason), retained=retained, restarted=restarted)
    shown = operation_error(error)
    if shown.kind == INTERNAL_ERROR:
        log.failure("publish_failed", error, session=session.id)
    details = {**shown.details, "workspace_session_id": session.id, "stage": stage, "session_retained": retained}
    if isinstance(error, QuotaExceeded):
        details["hint"] = QUOTA_HINT
    if not retained:
        details["draft_id"] = sessions.lost.get(session.id)
    kind = INTERNAL_ERROR if shown.kind == INTERNAL_ERROR else OPERATION_FAILED
    return OperationError(kind, f"workspace session publish failed: {shown.message}", details)


def _unsynced(session: Session, error: CommitUnsynced) -> OperationError:
    shown = operation_error(error)
    details = {
        **shown.details,
        "workspace_session_id": session.id,
        "stage": "destroy",
        "publish_completed": True,
        "layer_committed": True,
        "publish": publish_json(error.published),
        "destroyed": True,
    }
    return OperationError(OPERATION_FAILED, f"published, but a power cut may still undo it: {shown.message}", details)
