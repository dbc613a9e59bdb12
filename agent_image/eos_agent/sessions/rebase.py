"""The operation rebase_workspace_session: carry an explicit session over to the head under its id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos_agent.base import telemetry
from eos_agent.base.publication import left_out, rejection
from eos_agent.sessions import disk_space, session_commands
from eos_agent.sessions.checkpoint_rows import ended
from eos_agent.sessions.next_call import rebase_hint
from eos_agent.sessions.publish import SESSION_BUSY, check_idle, remount
from eos_agent.sessions.refusal import RefusedOperation, not_resumed, refusal, rejected
from eos_agent.sessions.resolution import choice_of, resolved_json
from eos_agent.sessions.session import EXPLICIT, Session
from eos_agent.wire.protocol import NOT_FOUND, OPERATION_FAILED, OperationError
from layerstack.errors import UnresolvedConflicts
from layerstack.model.conflict import path_json
from layerstack.model.resolution import REFUSE, Choice
from layerstack.publish.unresolved import MERGE_HEAD
from layerstack.session.rebase import Rebased

if TYPE_CHECKING:
    from eos_agent.sessions.table import Sessions

BUSY_HINT = "end them first: the rebased session starts with a new init"
REBASE = RefusedOperation("rebase", rebase_hint)


async def rebase(sessions: Sessions, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Preview first: with conflicts for which the request names no side, nothing changes. Else init and the
    overlay are ended, the work is carried over, and a new init starts on the new view, with the /tmp of the
    one before and, if isolated, a new address.

    Raises:
        OperationError: operation_failed: source_conflict with every conflict, session_busy, or an error of
            the disk. The session is unchanged unless `session_retained` is false; then `draft_id` has its
            work.
    """
    session_id: str = args["workspace_session_id"]
    async with sessions.use(session_id, kind=NOT_FOUND) as session:
        if session.policy != EXPLICIT:
            message = f"workspace session {session_id} publishes by itself"
            raise OperationError(
                OPERATION_FAILED, message, {"workspace_session_id": session_id}, reason="implicit_session"
            )
        choice = choice_of(args, session.agent or session.id, sessions.settings.workspace_root)
        version = session.upper.snapshot.version
        if version == sessions.store.head.version:
            return {
                **_rebased_json(Rebased(version, version, 0, 0), session),
                **await _markers_left(sessions, session, request_id),
            }
        await session.await_commands(0, "rebase", reason=SESSION_BUSY)
        await check_idle(sessions, session, "rebase", hint=BUSY_HINT)
        await _check_conflicts(sessions, session, request_id, choice)
        session.ending = True
        session.state = "finalizing"
        with telemetry.span("workspace_session.remount", workspace_session_id=session_id):
            await sessions.zygote.keep_folders(session.init.pid)
            running = session_commands.services(session)
            await session.init.end(sessions.grace_s)
            stopped = await session_commands.services_ended(running, "rebase_workspace_session")
            try:
                done = await sessions.captures.run(
                    lambda: session.upper.rebase(choice), request_id=request_id
                )
            except Exception as error:
                retained = await remount(sessions, session)
                refused = refusal(sessions, session, error, REBASE, retained=retained, restarted=True)
                refused.details.update(stopped)
                raise refused from error
            if not await remount(sessions, session):
                raise not_resumed(sessions, session, REBASE)
    return _rebased_json(done, session) | stopped


def _rebased_json(done: Rebased, session: Session) -> dict[str, Any]:
    address = session.init.address
    found: dict[str, Any] = {
        "from_version": done.from_version,
        "to_version": done.to_version,
        "updated": done.updated,
        "merged": done.merged,
    }
    merges = sorted(path for path in session.upper.unresolved if path.endswith(MERGE_HEAD))
    if merges:
        found |= {
            "unresolved": [{**path_json(path), "lines": [1]} for path in merges],
            "unresolved_count": len(merges),
        }
    found |= resolved_json(done.resolved) | ended(done.checkpoints)
    return found | left_out(done) | ({} if address is None else {"address": address})


async def _markers_left(sessions: Sessions, session: Session, request_id: str) -> dict[str, Any]:
    """The files that contain conflict markers of an earlier rebase: its answer may be lost."""
    if not session.upper.unresolved:
        return {}
    await session.init.freeze()
    try:
        found = await sessions.captures.run(session.upper.preview, request_id=request_id)
    finally:
        await session.init.thaw()
    if not isinstance(found.refused, UnresolvedConflicts):
        return {}
    return {
        "unresolved": found.refused.details["paths"],
        "unresolved_count": found.refused.details["path_count"],
    }


async def _check_conflicts(
    sessions: Sessions, session: Session, request_id: str, choice: Choice | None
) -> None:
    """Raise the rejection if there are conflicts that `choice` does not resolve; the session continues in
    either case."""
    await session.init.freeze()
    try:
        found = await sessions.captures.run(session.upper.preview, request_id=request_id)
        await sessions.pool.run(
            lambda: disk_space.check(sessions.store, found.source_count + found.ignored_count)
        )
    except Exception as error:
        raise refusal(sessions, session, error, REBASE, retained=True) from error
    finally:
        await session.init.thaw()
    if found.conflicts and (
        choice is None or any(choice.side(one.path) == REFUSE for one in found.conflicts)
    ):
        raise rejected(sessions, session, rejection(found.conflicts), REBASE, retained=True)
