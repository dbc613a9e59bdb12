"""The table of live sessions: create, use, finalize, destroy, and keep the work of dead ones.

Each session has a gate, an asyncio lock: command starts, file operations, publish, destroy and the handling
of its init's end hold it one after the other; a running command does not hold it. Blocking calls of the store
run in the agent's small pool; calls whose time grows with a session's work run in a pool of their own
(`captures`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from eos_agent.base import log, telemetry
from eos_agent.base.capture_pool import Captures
from eos_agent.base.pool import Pool
from eos_agent.handles.init_handle import InitHandle
from eos_agent.handles.zygote_handle import ZygoteHandle
from eos_agent.kernel import headroom
from eos_agent.sessions import checkpoint_rows, quarantine, session_commands
from eos_agent.sessions.create import SessionMaker
from eos_agent.sessions.expiry import EXPIRED, Expiry
from eos_agent.sessions.finalize import ENDED_IN_ORDER, finalization_failed, publish_or_keep
from eos_agent.sessions.gone import (
    LOST,
    RUNNER_LOST,
    RUNNER_STUCK,
    not_yet_kept,
    session_lost,
    session_not_found,
)
from eos_agent.sessions.lifecycle import Lifecycle
from eos_agent.sessions.recovery import Recovering
from eos_agent.sessions.resolution import choice_of, resolved_json
from eos_agent.sessions.session import EXPLICIT, IMPLICIT, Session, check_grace
from eos_agent.sessions.unpublished import is_clean, unpublished
from eos_agent.wire.protocol import (
    INVALID_REQUEST,
    NOT_FOUND,
    OPERATION_FAILED,
    SERVER_SHUTTING_DOWN,
    OperationError,
)
from eos_agent.zygote.specs import SessionSpec
from layerstack.errors import LayerStackError

if TYPE_CHECKING:
    from eos_agent.base.settings import Settings
    from eos_agent.kernel.headroom import Headroom
    from eos_agent.sessions.command import Command
    from layerstack.model.resolution import Choice
    from layerstack.publish.drafts import Draft
    from layerstack.session.upper import Upper
    from layerstack.store import Store

T = TypeVar("T")
FORGOTTEN_AFTER = 512
"""Most ids remembered of sessions that expired without unpublished work."""


class Sessions:
    """The table. lost: id of a lost or expired session -> draft of its work, or None."""

    def __init__(
        self, settings: Settings, store: Store, zygote: ZygoteHandle, pool: Pool, room: Headroom
    ) -> None:
        self.settings = settings
        self.store = store
        self.zygote = zygote
        self.pool = pool
        self.captures = Captures(settings.get("daemon.server.max_blocking_threads", 8))
        self.room = room
        self.max_sessions: int = settings.get("runtime.workspace.max_sessions", 512)
        self._making = 0  # sessions that are being set up
        self._counter = itertools.count(1)
        self.setup_timeout_s: float = settings.get("runtime.workspace.setup_timeout_s", 30)
        self.grace_s: float = settings.get("runtime.workspace.left_behind_grace_s", 2)
        self._maker = SessionMaker(store, zygote, pool, self.captures, self.setup_timeout_s)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.expiry = Expiry(self._expire, self._task)
        self._draining = False
        self._shell: list[str] | None = None
        self.lifecycle = Lifecycle()
        self.live: dict[str, Session] = {}
        self.lost: dict[str, str | None] = {}
        self.pending: dict[str, str] = {}
        self._how: dict[str, str] = {}  # for keys of `lost`: the reason, if it is not runner_lost
        self._expired: OrderedDict[str, None] = OrderedDict()  # without work
        for draft in store.drafts():
            self._remember(draft)
        for session_id, why in quarantine.sessions(store):
            self._pend(session_id, why)
        for dead in store.dead.all():
            self.lost[dead.session_id] = None
        self.recovering = Recovering(settings, store, pool, self._recovered)

    def _remember(self, draft: Draft) -> None:
        kind, _, session_id = draft.origin.partition(":")
        if kind == "workspace_session" and draft.reason not in ENDED_IN_ORDER:
            self.lost[session_id] = draft.draft_id
            if draft.reason in (EXPIRED, RUNNER_STUCK):
                self._how[session_id] = draft.reason

    def forget_draft(self, draft_id: str) -> None:
        """Forget the lost session of a draft that was published or discarded."""
        for session_id in [lost for lost, kept in self.lost.items() if kept == draft_id]:
            del self.lost[session_id]
            self._how.pop(session_id, None)

    def _recovered(self, session_id: str, draft: Draft | None) -> None:
        """Record the end of a recovery: the work is a draft, or the session had no unpublished work."""
        if draft is not None:
            self.lost[session_id] = draft.draft_id
        elif session_id not in self._how:
            self.lost.pop(session_id, None)

    def _left(self, session: Session, error: Exception) -> None:
        """Pass a session on to recovery: its work could be neither published nor kept, usually because the
        disk is full.
        """
        self.lost[session.id] = None
        try:
            self.store.dead.abandon(session.upper, error)
        except LayerStackError as damage:
            self._pend(session.id, damage)
        self.recovering.wake()

    def _pend(self, session_id: str, why: object) -> None:
        self.lost[session_id] = None
        self.pending[session_id] = str(why).split(": '")[
            0
        ]  # without its path, which may be too long for an answer

    def folder(self, session_id: str) -> str:
        """The directory that has a session's writes until they are a draft."""
        return os.path.join(self.settings.layer_stack_root, "sessions", session_id, "upper")

    def _lost(self, session_id: str) -> OperationError:
        how, folder = self._how.get(session_id, RUNNER_LOST), self.folder(session_id)
        dead = self.store.dead.find(session_id)
        if dead is not None:
            return not_yet_kept(dead, folder, how=how)
        pending = self.pending.get(session_id)
        return session_lost(session_id, self.lost.get(session_id), how=how, pending=pending, folder=folder)

    def _new_id(self) -> str:
        return f"{next(self._counter) & 0xFFFFFF:06x}{time.time_ns():016x}"

    # Creation

    async def create(self, args: dict[str, Any], request_id: str) -> dict[str, Any]:
        """The operation create_workspace_session."""
        if args.get("draft_id") is not None and args.get("base_version") is not None:
            message = "create_workspace_session takes draft_id or base_version: a draft has a base of its own"
            raise OperationError(INVALID_REQUEST, message, {"argument": "base_version"}, reason="one_of_two")
        if args.get("draft_id") is None and args["draft_base"] == "head":
            message = "draft_base head needs the draft_id of the draft that is to be opened there"
            raise OperationError(
                INVALID_REQUEST, message, {"argument": "draft_id"}, reason="missing_argument"
            )
        choice = choice_of(args, args.get("agent") or "ours", self.settings.workspace_root)
        if choice is not None and args.get("draft_id") is None:
            message = "on_conflict and paths are about the draft that is opened: draft_id is missing"
            raise OperationError(
                INVALID_REQUEST, message, {"argument": "draft_id"}, reason="missing_argument"
            )
        session = await self._create(
            EXPLICIT,
            network=args["network_profile"],
            rootfs=args["rootfs"],
            agent=args.get("agent"),
            request_id=request_id,
            draft_id=args.get("draft_id"),
            draft_base=args["draft_base"] if choice is None else "head",
            version=args.get("base_version"),
            choice=choice,
        )
        session.ttl_s = args.get("ttl_s")
        self.expiry.watch(session)
        found: dict[str, Any] = {
            "workspace_session_id": session.id,
            "network_profile": session.spec.network,
            "finalize_policy": session.policy,
            "base_version": session.upper.snapshot.version,
            "limits": session.init.group.limits(),
            **session.lifetime(),
        }
        if session.spec.network == "isolated":
            found["network"] = "loopback_only" if session.init.address is None else "no_egress"
            if session.init.address is not None:
                found["address"] = session.init.address
        if session.draft_id is not None:
            found["draft_id"] = session.draft_id
            found |= resolved_json(session.upper.resolved)
        return found

    async def create_implicit(
        self, *, agent: str | None, request_id: str, version: int | None = None
    ) -> Session:
        return await self._create(
            IMPLICIT, network="shared", rootfs="shared", agent=agent, request_id=request_id, version=version
        )

    async def _create(
        self,
        policy: str,
        *,
        network: str,
        rootfs: str,
        agent: str | None,
        request_id: str,
        draft_id: str | None = None,
        draft_base: str = "own",
        version: int | None = None,
        choice: Choice | None = None,
    ) -> Session:
        if self._draining:
            raise OperationError(
                SERVER_SHUTTING_DOWN, "the agent is shutting down", {"retryable": True}, reason="draining"
            )
        if network == "isolated" and self.settings.get("runtime.workspace.rfc1918_egress", "allow") == "deny":
            raise OperationError(
                OPERATION_FAILED,
                "isolated sessions are unavailable: runtime.workspace.rfc1918_egress is deny, which this "
                "agent cannot enforce",
                reason="egress_not_enforceable",
            )
        spec = SessionSpec(self._new_id(), network, rootfs)
        with telemetry.span(
            "workspace_session.create",
            workspace_session_id=spec.session_id,
            finalize_policy=policy,
            network=network,
        ):
            self._making += 1
            try:
                await self._admit()
                upper, init = await self._maker.make(
                    spec,
                    agent=agent,
                    request_id=request_id,
                    draft_id=draft_id,
                    draft_base=draft_base,
                    version=version,
                    choice=choice,
                )
            finally:
                self._making -= 1
        session = Session(spec.session_id, policy, spec, upper, init, agent, request_id)
        session.draft_id = draft_id
        self.live[session.id] = session
        self.watch(session, init)
        return session

    async def _admit(self) -> None:
        """Refuse a further session, if there is no room for it, before any part of it is made. `_making`
        counts it already.

        Raises:
            OperationError: server_busy, reason sandbox_full, with the limit and the numbers.
        """
        if len(self.live) + self._making > self.max_sessions:
            raise headroom.too_many(len(self.live), self.max_sessions)
        fresh = sum(session.fresh for session in self.live.values())
        if not self.room.quick(self._making - 1, fresh):
            found = await self.pool.run(lambda: self.room.shortage(self._making - 1, fresh))
            if found is not None:
                raise headroom.refused(found, len(self.live))

    def watch(self, session: Session, init: InitHandle) -> None:

        def gone(reason: asyncio.Future[str]) -> None:
            self.lifecycle.holder_exited(reason.result())
            if not session.ending and session.init is init:
                self._task(self._lose(session, init))

        init.gone.add_done_callback(gone)

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run in the background; `drain` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Look-up

    def find(self, session_id: str, *, kind: str = OPERATION_FAILED) -> Session:
        """The live session of that id.

        Raises:
            OperationError: of `kind`, reason session_not_found; or operation_failed, reason session_lost,
                with the draft.
        """
        session = self.live.get(session_id)
        if session is not None:
            return session
        if session_id in self.lost:
            raise self._lost(session_id)
        if session_id in self._expired:
            raise session_lost(session_id, None, how=EXPIRED)
        raise session_not_found(session_id, kind)

    @contextlib.asynccontextmanager
    async def use(self, session_id: str, *, kind: str = OPERATION_FAILED) -> AsyncGenerator[Session]:
        """The session with its gate held.

        Raises:
            OperationError: as `find`; also if the session ended during the wait for the gate, or its init
                during the block.
        """
        session = self.find(session_id, kind=kind)
        try:
            async with session.gate:
                if session.ended.is_set():
                    self.find(session_id, kind=kind)
                session.touch()
                yield session
                session.touch()
        except OperationError as error:
            if error.details.get("reason") != LOST:
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.setup_timeout_s):
                    await session.ended.wait()
            raise self._lost(session_id) from None

    # Ends

    def end(self, session: Session) -> None:
        session.ending = True
        session.state = "ended"
        self.live.pop(session.id, None)
        self.expiry.forget(session)
        session.ended.set()

    async def _lose(self, session: Session, init: InitHandle) -> None:
        """Handle an init that died: the session's work becomes a draft, and its commands end without an exit
        code.
        """
        async with session.gate:
            if session.ending or session.init is not init:
                return
            reason = init.gone.result()
            await self.keep(session, RUNNER_STUCK if init.stuck else RUNNER_LOST)
            log.log("session_lost", session=session.id, reason=reason, draft=self.lost[session.id])

    async def keep(self, session: Session, reason: str) -> None:
        """Make a draft of an offline session and end it."""
        session.ending = True
        draft_id: str | None = None
        try:
            with self.lifecycle.cleaning():
                draft = await self.captures.run(lambda: session.upper.to_draft(reason=reason))
            draft_id = draft.draft_id if draft is not None else None
        except Exception as error:  # the upperdir is kept, and recovery makes the draft later
            log.failure("draft_failed", error, session=session.id)
            telemetry.event(
                "workspace_session.cleanup_failed",
                workspace_session_id=session.id,
                error=type(error).__name__,
            )
            self._left(session, error)
        else:
            self.lost[session.id] = draft_id
        if reason in (EXPIRED, RUNNER_STUCK):
            self._how[session.id] = reason
        lost = self._lost(session.id)
        for command in list(session.commands.values()):
            command.lost = OperationError(
                lost.kind, lost.message, {**lost.details, "command_session_id": command.id}
            )
            command.outcome["session_lost"] = True
            if draft_id:
                command.outcome["draft_id"] = draft_id
            command.lose()
        self.end(session)

    async def _expire(self, session: Session) -> None:
        """End an expired session, with its gate held. Its work becomes a draft, unless it is that of the
        draft on which it was opened.
        """
        session.ending = True
        session.state = "finalizing"
        await session.init.end(self.grace_s)
        if session.draft_id is not None and await self.captures.run(lambda: is_clean(session)):
            await self.pool.run(session.upper.discard)
            self.end(session)
            self.lost[session.id] = None
        else:
            await self.keep(session, EXPIRED)
        draft_id = self.lost[session.id]
        if draft_id is None and session.id not in self.pending and self.store.dead.find(session.id) is None:
            del self.lost[session.id]
            self._how.pop(session.id, None)
            self._expired[session.id] = None
            while len(self._expired) > FORGOTTEN_AFTER:
                self._expired.popitem(last=False)
        log.log("session_expired", session=session.id, ttl_s=session.ttl_s, draft=draft_id)

    async def command_ended(self, command: Command) -> dict[str, Any]:
        """Remove an ended command from its session, and finalize an implicit session after its last command.

        Returns the fields that this adds to the command's result.
        """
        session = command.session
        session.commands.pop(command.id, None)
        session.touch()
        session.unfinished = session.unfinished or command.unfinished()
        if session.policy != IMPLICIT or session.commands or session.ending or command.lost is not None:
            return {}
        session.state = "finalizing"
        with telemetry.within(command.span):
            return await self._task(self.finalize(session))

    async def finalize(self, session: Session) -> dict[str, Any]:
        """End an implicit session without running commands: publish its work, or keep it as a draft. Returns
        the fields that this adds to the result.
        """
        async with session.gate:
            if session.ending:
                if session.discarded is not None:
                    return session.discarded
                return (
                    {"session_lost": True, "draft_id": self.lost[session.id]}
                    if session.id in self.lost
                    else {}
                )
            if session.commands:  # another request started a command in it
                session.state = "active"
                return {}
            session.ending = True
            session.state = "finalizing"
            with telemetry.span("workspace_session.finalize", workspace_session_id=session.id) as span:
                await session.init.end(self.grace_s)
                try:
                    with self.lifecycle.cleaning(), telemetry.span("workspace_session.publish"):
                        outcome = await self.captures.run(
                            lambda: publish_or_keep(self.store, session), request_id=session.request_id
                        )
                except Exception as error:
                    log.failure("finalization_failed", error, session=session.id)
                    telemetry.event(
                        "workspace_session.finalize_failed",
                        workspace_session_id=session.id,
                        error=type(error).__name__,
                    )
                    self._left(session, error)
                    outcome = finalization_failed(error, self._lost(session.id).details["hint"])
                if outcome.get("publish_rejected") or outcome.get("finalization_failed"):
                    span.status = telemetry.ERROR
            self.end(session)
            return outcome

    async def destroy(self, args: dict[str, Any], request_id: str) -> dict[str, Any]:
        """The operation destroy_workspace_session: delete all unpublished work; the answer lists it.

        Also purges a dead session whose work is not a draft yet, or whose session.json is damaged; with
        `if_clean` the error is session_lost.

        Raises:
            OperationError: session_not_found, active_commands; with `if_clean` unpublished_work, after which
                nothing has changed.
        """
        session_id: str = args["workspace_session_id"]
        grace = check_grace(args)
        if session_id not in self.live and not args.get("if_clean") and self._is_left(session_id):
            return await self._purge(session_id)
        session = self.find(session_id)
        async with session.gate:
            if session.destroyed is not None:  # a second caller, which has waited for the first
                return session.destroyed
            if session.ended.is_set():
                self.find(session_id)
            await session.await_commands(grace, "destroy")
            if args.get("if_clean"):
                await self._check_clean(session)
            session.ending = True
            running = session_commands.services(session)
            await session.init.end(
                0 if args.get("if_clean") else self.grace_s
            )  # with if_clean no grace: later writes would be lost unnoticed
            stopped = await session_commands.services_ended(running, "destroy_workspace_session")

            def discard() -> tuple[int, dict[str, Any]]:
                discarded = unpublished(session.upper)
                size = session.upper.discard()
                self.store.staging.wait_removed()  # the caller may need the space at once
                return size, discarded

            try:
                with (
                    self.lifecycle.cleaning(),
                    telemetry.span("workspace_session.destroy", workspace_session_id=session_id),
                ):
                    size, discarded = await self.pool.run(discard)
            except Exception as error:
                log.failure("destroy_failed", error, session=session.id)
                self.end(session)
                raise
            session.destroyed = {
                "workspace_session_id": session_id,
                "destroyed": True,
                "evicted_upperdir_bytes": size,
                "discarded": discarded,
                **stopped,
            }
            session.discarded = {
                "publish": {"published": False, "no_op": False},
                "discarded": {**discarded, "by": "destroy_workspace_session", "request_id": request_id},
                "hint": (
                    "nothing was published: the session was destroyed by another request before its work was"
                ),
            }
            self.end(session)
            return session.destroyed

    def _is_left(self, session_id: str) -> bool:
        """True for a dead session whose work is not a draft, with no recovery in progress."""
        dead = self.store.dead.find(session_id)
        return quarantine.has_session(self.store, session_id) or (
            dead is not None and not self.recovering.is_trying(session_id)
        )

    async def recover(self, args: dict[str, Any]) -> dict[str, Any]:
        """The operation recover_workspace_session: try the recovery of a quarantined session once more.

        Raises:
            OperationError: session_not_found; session_lost, as for every call to a dead session, if the try
                failed again.
        """
        session_id: str = args["workspace_session_id"]
        if self.store.dead.find(session_id) is not None:
            await self.recovering.again(session_id)
        elif session_id in self.live or self.lost.get(session_id) is None:
            if session_id in self.pending:
                raise self._lost(session_id)
            raise session_not_found(session_id, NOT_FOUND)
        if self.store.dead.find(session_id) is not None:
            raise self._lost(session_id)
        return {"workspace_session_id": session_id, "draft_id": self.lost.get(session_id)}

    async def dead_rows(self, *, patient: bool) -> list[dict[str, Any]]:
        """Rows of dead sessions whose work is not a draft: waiting, quarantined, damaged. patient: wait first
        until recovery has tried each.
        """
        if patient:
            await self.recovering.quiet()
        return await self.pool.run(self.recovering.rows)

    async def _purge(self, session_id: str) -> dict[str, Any]:
        """Delete a quarantined or dead session with its work."""
        lost = await self.pool.run(lambda: quarantine.purge(self.store, session_id))
        for known in (self.lost, self.pending, self._how):
            known.pop(session_id, None)
        log.log("given_up", session=session_id, bytes=lost["bytes"])
        return {
            "workspace_session_id": session_id,
            "destroyed": True,
            "evicted_upperdir_bytes": lost["bytes"],
            "discarded": lost,
        }

    async def _check_clean(self, session: Session) -> None:
        """Freeze the session; thaw it and refuse if it has unpublished work."""
        await session.init.freeze()
        found: dict[str, Any] | None = None
        try:
            found = await self.captures.run(lambda: None if is_clean(session) else unpublished(session.upper))
        except BaseException:
            await session.init.thaw()
            raise
        if found is not None:
            await session.init.thaw()
            details = {
                "workspace_session_id": session.id,
                "unpublished": found,
                "hint": "publish_workspace_session keeps the work; destroy without if_clean deletes it",
            }
            message = (
                f"workspace session {session.id} has unpublished work: {found['count']} paths, "
                f"{found['bytes']} bytes"
            )
            raise OperationError(OPERATION_FAILED, message, details, reason="unpublished_work")

    async def shell(self, session: Session, *, again: bool = False) -> list[str] | None:
        """The argv that precedes a command's text, cached for all sessions; `again` asks the session's
        init."""
        if self._shell is None or again:
            self._shell = await session.init.which_shell()
        return self._shell

    async def rows(self) -> list[dict[str, Any]]:
        """The entries of list_workspace_sessions."""
        sessions = list(self.live.values())

        def sizes() -> list[int | None]:
            return [_size(session.upper) for session in sessions]

        upper_bytes = await self.pool.run(sizes)
        return [
            {
                "workspace_session_id": session.id,
                "state": session.state,
                "finalize_policy": session.policy,
                "network_profile": session.spec.network,
                "base_version": session.upper.snapshot.version,
                "created_unix_ms": session.created_unix_ms,
                "last_activity_unix_ms": session.last_activity_unix_ms,
                "upper_bytes": size,
                "active_command_session_ids": list(session.commands),
                **({"commands": session_commands.running(session)} if session.commands else {}),
                "agent": session.agent,
                "limits": session.init.group.limits(),
                **session.lifetime(),
                **checkpoint_rows.rows(session),
                **({"draft_id": session.draft_id} if session.draft_id else {}),
                **({"address": session.init.address} if session.init.address else {}),
            }
            for session, size in zip(sessions, upper_bytes, strict=True)
        ]

    async def drain(self, timeout_s: float) -> None:
        """End the sessions before the agent ends. Publications in progress finish; upperdirs are kept, and
        become drafts at the next start.
        """
        self._draining = True
        by = time.monotonic() + timeout_s
        busy = [task for task in self._tasks if not task.done()]
        if busy:
            await asyncio.wait(busy, timeout=timeout_s)
        left = [session for session in self.live.values() if not session.ending]
        for session in left:
            session.ending = True
            for (
                command
            ) in session.commands.values():  # its callers get this error instead of the signal that ended it
                command.lost = OperationError(
                    SERVER_SHUTTING_DOWN,
                    "the agent is shutting down; the session's work becomes a draft at its next start",
                    {"workspace_session_id": session.id, "command_session_id": command.id, "retryable": True},
                    reason="draining",
                )
        grace_s = min(self.grace_s, by - time.monotonic())
        await asyncio.gather(*(session.init.end(grace_s) for session in left), return_exceptions=True)
        for session in left:
            for command in list(session.commands.values()):
                command.lose()
            self.end(session)


def _size(upper: Upper) -> int | None:
    try:
        return upper.size_bytes()
    except OSError:
        return None
