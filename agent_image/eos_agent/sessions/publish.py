"""The operations publish_workspace_session and preview_publish."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from eos_agent.base import log, telemetry
from eos_agent.base.errors import operation_error
from eos_agent.base.publication import preview_json, publish_json, rejection
from eos_agent.sessions import disk_space, session_commands
from eos_agent.sessions.checkpoint_rows import ended
from eos_agent.sessions.finalize import commit
from eos_agent.sessions.look_back import cursor
from eos_agent.sessions.next_call import rebase_hint
from eos_agent.sessions.refusal import RefusedOperation, refusal, rejected
from eos_agent.sessions.session import EXPLICIT, Session, check_grace
from eos_agent.wire.message_text import message_of
from eos_agent.wire.protocol import INVALID_REQUEST, NOT_FOUND, OPERATION_FAILED, OperationError
from layerstack.publish.commit import CommitUnsynced

if TYPE_CHECKING:
    from eos_agent.handles.init_handle import InitHandle
    from eos_agent.sessions.table import Sessions
    from layerstack.publish.outcome import Preview
    from layerstack.session.upper import Upper

SESSION_BUSY = "session_busy"
PUBLISH = RefusedOperation("publish", rebase_hint)
KEEP_OPEN_HINT = "end them first, or publish without keep_open: that ends all that lives in the session"


async def publish(sessions: Sessions, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Publish an explicit session and close it; with `keep_open` continue it with an empty upperdir on the
    new head.

    The session is frozen and previewed first: with conflicts nothing changes and it continues. Else its
    processes and its overlay are ended, and the work is captured and committed. If a newer head conflicts by
    then, the session continues with the same view and a new init. With `keep_open` the session must not have
    running processes; it continues with a new init, its own /tmp, and a new address.
    """
    session_id: str = args["workspace_session_id"]
    grace, message = check_grace(args), message_of(args)
    async with sessions.use(session_id) as session:
        if session.policy != EXPLICIT:
            details = {"workspace_session_id": session_id}
            raise OperationError(
                OPERATION_FAILED,
                f"workspace session {session_id} publishes by itself",
                details,
                reason="implicit_session",
            )
        keep_open = args["keep_open"]
        await session.await_commands(
            grace, "publish", reason=SESSION_BUSY if keep_open else "active_commands"
        )
        if keep_open:
            await check_idle(sessions, session, "publish and keep open", hint=KEEP_OPEN_HINT)
        with telemetry.span("workspace_session.capture_changes", preview=True):
            size = await _preview_frozen(
                sessions, session, request_id, allow_unresolved=args["allow_unresolved"]
            )
        session.ending = True
        session.state = "finalizing"
        if keep_open:
            await sessions.zygote.keep_folders(session.init.pid)
        running = session_commands.services(session)
        await session.init.end(sessions.grace_s, thaw=True)
        stopped = await session_commands.services_ended(running, "publish_workspace_session")
        upper = session.upper
        try:
            with (
                sessions.lifecycle.cleaning(),
                telemetry.span("workspace_session.publish", workspace_session_id=session_id),
            ):
                published = await sessions.captures.run(
                    lambda: commit(
                        sessions.store,
                        upper,
                        owner=session.owner,
                        request_id=request_id,
                        agent=session.agent,
                        allow_unresolved=args["allow_unresolved"],
                        message=message or session.message,
                    ),
                    request_id=request_id,
                )
        except CommitUnsynced as error:
            await sessions.zygote.release_folders(session.init.pid)
            sessions.end(session)
            raise _with(_unsynced(session, error), stopped) from error
        except Exception as error:
            retained = await remount(sessions, session)
            refused = refusal(sessions, session, error, PUBLISH, retained=retained, restarted=True)
            raise _with(refused, stopped) from error
        if session.draft_id is not None and not published.no_op:
            sessions.forget_draft(session.draft_id)
        checkpoints = upper.saved.checkpoints
        continued = await _continue(sessions, session) | ended(checkpoints) if keep_open else {}
        if not continued.get("kept_open"):
            sessions.end(session)
    return {
        "workspace_session_id": session_id,
        "publish": publish_json(published),
        "destroyed": not continued.get("kept_open"),
        "evicted_upperdir_bytes": size,
        **stopped,
        **continued,
    }


def _with(error: OperationError, more: dict[str, Any]) -> OperationError:
    error.details.update(more)
    return error


async def check_idle(sessions: Sessions, session: Session, doing: str, *, hint: str) -> None:
    """Refuse a session in which processes of ended commands still run: they would end with its init, which is
    to be replaced. Services are ended with it as intended."""
    left = await session_commands.other_processes(session, sessions.pool)
    if left or session.readers:
        names = ", ".join(f"{one['name']} ({one['pid']})" for one in left[:8]) or "a search"
        details = {
            "workspace_session_id": session.id,
            "processes": left[:50],
            "retryable": True,
            "hint": hint,
        }
        message = f"cannot {doing}: {names} still uses the workspace of session {session.id}"
        raise OperationError(OPERATION_FAILED, message, details, reason=SESSION_BUSY)


async def _continue(sessions: Sessions, session: Session) -> dict[str, Any]:
    """Continue a published session under the same id on the head; the gate is held. After a failure here the
    work is published all the same.
    """

    def renew() -> tuple[Upper, int]:
        upper = sessions.store.open_upper(
            session.id, origin=session.owner, agent=session.agent, request_id=session.request_id
        )
        try:
            return upper, upper.mount()
        except BaseException:
            upper.discard()
            raise

    try:
        upper, mount_fd = await sessions.pool.run(renew)
        try:
            init = await sessions.zygote.create(
                session.spec, mount_fd, timeout_s=sessions.setup_timeout_s, replaces=session.init.pid
            )
        except BaseException:
            await asyncio.shield(sessions.pool.run(upper.discard))
            raise
        finally:
            os.close(mount_fd)
    except Exception as error:
        await sessions.zygote.release_folders(session.init.pid)
        shown = operation_error(error)
        log.failure("not_kept_open", error, session=session.id)
        return {
            "kept_open": False,
            "not_kept_open": {"kind": shown.kind, "message": shown.message, "details": shown.details},
        }
    session.upper, session.draft_id, session.message = upper, None, None
    _activate(sessions, session, init)
    found: dict[str, Any] = {"kept_open": True, "base_version": upper.snapshot.version}
    return found if init.address is None else {**found, "address": init.address}


async def preview(sessions: Sessions, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """The operation preview_publish: the result that a publish of a live session or a draft would have now. A
    live session is frozen for it.
    """
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
        found = await sessions.captures.run(
            lambda: sessions.store.preview_draft(draft_id), request_id=request_id
        )
        return preview_json(found, start)
    assert session_id is not None
    async with sessions.use(session_id, kind=NOT_FOUND) as session:
        await session.init.freeze()
        try:
            found = await sessions.captures.run(session.upper.preview, request_id=request_id)
        finally:
            await session.init.thaw()
    return preview_json(found, start)


async def _preview_frozen(
    sessions: Sessions, session: Session, request_id: str, *, allow_unresolved: bool
) -> int:
    """Freeze and preview. Returns the size of the work, and leaves the processes frozen; if it raises, the
    session is thawed and unchanged.
    """
    await session.init.freeze()
    good = False
    try:
        found, size = await sessions.captures.run(
            lambda: (_preview(sessions, session, allow_unresolved), session.upper.size_bytes()),
            request_id=request_id,
        )
        if found.conflicts:
            raise rejected(sessions, session, rejection(found.conflicts), PUBLISH, retained=True)
        if found.refused is not None:
            raise refusal(sessions, session, found.refused, PUBLISH, retained=True)
        good = True
        return size
    except OperationError:
        raise
    except Exception as error:
        raise refusal(sessions, session, error, PUBLISH, stage="capture", retained=True) from error
    finally:
        if not good:
            await session.init.thaw()


def _preview(sessions: Sessions, session: Session, allow_unresolved: bool) -> Preview:
    """Preview before a publish. If the work would be refused and the policy allows it, squash and preview
    again.
    """
    found = session.upper.preview(allow_unresolved=allow_unresolved)
    if found.refused is not None and sessions.store.auto_squash.squash_for(found.refused.reason):
        found = session.upper.preview(allow_unresolved=allow_unresolved)
    if found.would_publish and not found.no_op:
        disk_space.check(sessions.store, found.source_count + found.ignored_count)
    return found


async def remount(sessions: Sessions, session: Session) -> bool:
    """Give a session whose init has ended a new mount and a new init. If that fails the work becomes a draft,
    and the result is False.
    """
    try:
        mount_fd = await sessions.captures.run(session.upper.mount)  # also scans the captured changes
        try:
            init = await sessions.zygote.create(
                session.spec, mount_fd, timeout_s=sessions.setup_timeout_s, replaces=session.init.pid
            )
        finally:
            os.close(mount_fd)
    except Exception as error:
        await sessions.zygote.release_folders(session.init.pid)
        log.failure("remount_failed", error, session=session.id)
        await sessions.keep(session, "publish_error")
        return False
    _activate(sessions, session, init)
    return True


def _activate(sessions: Sessions, session: Session, init: InitHandle) -> None:
    session.init = init
    session.ending = False
    session.state = "active"
    sessions.watch(session, init)


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
    return OperationError(
        OPERATION_FAILED, f"published, but a power cut may still undo it: {shown.message}", details
    )
