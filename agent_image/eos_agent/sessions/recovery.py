"""Make drafts of the work of dead sessions in the background: one session at a time, each within its limits,
while requests are served.

A session whose recovery fails twice is quarantined (`layerstack.recovery.dead_sessions`): it is listed, and
tried again on request. A recovery that a full disk stopped is repeated when space is free, and when a call
names the session. ADR 0043.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eos_agent.base import log, telemetry
from eos_agent.base.pool import Pool
from eos_agent.sessions import quarantine
from eos_agent.sessions.recovery_child import RecoveryAnswer, RecoveryProcess
from eos_agent.sessions.unpublished import of_trees
from layerstack.errors import LayerStackError
from layerstack.recovery.purge import trees_of

if TYPE_CHECKING:
    from eos_agent.base.settings import Settings
    from layerstack.publish.drafts import Draft
    from layerstack.recovery.dead_sessions import DeadSession
    from layerstack.store import Store

SWEPT = "boot storage sweep done: {} sessions of an earlier agent became drafts"
SECOND_TRY = 10
"""Factor by which the time limit of the second try is longer than that of the first."""
PATIENCE_S = 5.0
"""Seconds that a call waits for the recovery of one session."""
QUIET_S = 30.0
LOOK_S = 1.0
"""Seconds between two checks of the free space while a recovery waits for it."""
ROOM_BYTES = 64 * 1024
"""A session is tried again when this many bytes more are free than at its failure."""
AGAIN_S = 30.0
"""Seconds after which a session is tried again in any case, since free space does not show a quota."""
BUSY_S = 0.5
WALK_MAX = 10_000


class Recovering:
    """The queue of recoveries, on the event loop. Call `start` once the agent listens, `close` before the
    store is closed.

    Args:
        recovered: called with a session's id and the draft that has its work, or None if it had no
            unpublished work.
    """

    def __init__(
        self, settings: Settings, store: Store, pool: Pool, recovered: Callable[[str, Draft | None], None]
    ) -> None:
        self._store, self._pool, self._recovered = store, pool, recovered
        self._timeout_s: float = settings.get("runtime.workspace.recovery_timeout_s", 60)
        self._child = RecoveryProcess(store)
        self._thread = Pool(1)
        self._asked = asyncio.Event()
        self._moved = asyncio.Event()  # replaced at each end of a try
        self._current: str | None = None
        self._since = 0.0
        self._not_before: dict[
            str, tuple[float, int]
        ] = {}  # time of the next try, and free bytes at the failure
        self._tries: dict[str, int] = {}  # tries that ended in this process
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._sizes: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Start recovering, beginning with the sessions of earlier agents."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End a try in progress, which does not count as failed."""
        self._closing = True
        self._child.stop()
        self._asked.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=PATIENCE_S)
            self._task.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._child.end)

    # Requests

    def wake(self) -> None:
        """Wake the queue: a session was added, or may be tried again."""
        self._asked.set()

    async def wait_for_session(self, session_id: str) -> None:
        """Wait for a dead session that a call names, until it is recovered or quarantined, one more try has
        ended, or PATIENCE_S have passed.
        """
        tries, until = self._tries.get(session_id, 0), time.monotonic() + PATIENCE_S
        self._not_before.pop(session_id, None)
        self.wake()
        while (found := self._store.dead.find(session_id)) is not None and not found.quarantined:
            if (
                self._closing
                or self._tries.get(session_id, 0) != tries
                or not await self._wait(until - time.monotonic())
            ):
                return

    async def quiet(self) -> None:
        """Wait until no session can be tried now, at most PATIENCE_S for one session and QUIET_S for all."""
        until = time.monotonic() + QUIET_S
        while not self._closing and (self._current is not None or self._next() is not None):
            left = PATIENCE_S if self._current is None else self._since + PATIENCE_S - time.monotonic()
            if not await self._wait(min(left, until - time.monotonic())) and self._current is not None:
                return

    async def _wait(self, timeout_s: float) -> bool:
        """Wait for the end of the next try; False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    def is_trying(self, session_id: str) -> bool:
        return self._current == session_id

    # Tries

    async def _run(self) -> None:
        made, first = 0, self._next() is not None
        while not self._closing:
            session = self._next()
            if session is None:
                if first:
                    first = False
                    log.line(SWEPT.format(made))
                self._asked.clear()
                await self._sleep()
                continue
            self._current, self._since = session.session_id, time.monotonic()
            try:
                made += await self._try(session)
            except Exception as error:  # the error of one session must not stop the others
                log.failure("recovery_failed", error, session=session.session_id)
                self._postpone(session.session_id, AGAIN_S)
            self._tries[session.session_id] = self._tries.get(session.session_id, 0) + 1
            self._current = None
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    def _next(self) -> DeadSession | None:
        """The session to try now, the one with the fewest tries; None if no session can be tried now."""
        now, free = time.monotonic(), -1
        ready: list[DeadSession] = []
        for session in self._store.dead.all():
            if session.quarantined:
                continue
            wait = self._not_before.get(session.session_id)
            if wait is not None and now < wait[0]:
                if not session.no_space:
                    continue
                free = self._free() if free < 0 else free
                if free < wait[1] + ROOM_BYTES:
                    continue
            ready.append(session)
        return min(ready, key=lambda session: (session.tries, session.session_id), default=None)

    async def _sleep(self) -> None:
        waiting = [session for session in self._store.dead.all() if not session.quarantined]
        timeout_s = (
            None if not waiting else LOOK_S if any(session.no_space for session in waiting) else BUSY_S
        )
        try:
            async with asyncio.timeout(timeout_s):
                await self._asked.wait()
        except TimeoutError:
            pass

    def _free(self) -> int:
        found = os.statvfs(self._store.root)
        return found.f_bavail * found.f_frsize

    def _postpone(self, session_id: str, by_s: float) -> None:
        self._not_before[session_id] = (time.monotonic() + by_s, self._free())

    async def _try(self, session: DeadSession) -> bool:
        """Try once; True if the work became a draft."""
        session_id, dead = session.session_id, self._store.dead
        try:
            session = await self._pool.run(lambda: dead.begin_try(session_id))
        except OSError as error:
            if dead.find(session_id) is not None:
                dead.refused(session_id, error)
                self._postpone(session_id, AGAIN_S)
            log.log("draft_pending", session=session_id, why=str(error))
            return False
        timeout_s = self._timeout_s * (1 if session.tries <= 1 else SECOND_TRY)
        with telemetry.span("workspace_session.recover", workspace_session_id=session_id):
            answer = await self._thread.run(lambda: self._one(session, timeout_s))
            if self._closing and answer.error is not None:
                answer = answer._replace(busy=True)
            draft = await self._pool.run(
                lambda: dead.end_try(
                    session_id,
                    answer.error,
                    draft_id=answer.draft_id,
                    no_space=answer.no_space,
                    again=answer.busy,
                )
            )
        left = dead.find(session_id)
        if left is None:
            self._not_before.pop(session_id, None)
            self._sizes.pop(session_id, None)
            self._recovered(
                session_id,
                draft if draft is not None else await self._pool.run(lambda: self._stands_on(session)),
            )
            if draft is not None:
                log.log(
                    "draft_recovered",
                    draft=draft.draft_id,
                    origin=draft.origin,
                    paths=draft.paths,
                    bytes=draft.bytes,
                )
            return draft is not None
        if left.no_space:
            self._postpone(session_id, AGAIN_S)
        elif answer.busy:
            self._postpone(session_id, BUSY_S)
        event = "quarantined" if left.quarantined else "draft_pending"
        log.log(event, session=session_id, tries=left.tries, why=left.why)
        return False

    def _stands_on(self, session: DeadSession) -> Draft | None:
        """The draft on which the session was opened and which it left unchanged; None without one, or if it
        is published or discarded by now.
        """
        with contextlib.suppress(LayerStackError):
            return None if session.draft_id is None else self._store.draft(session.draft_id)
        return None

    def _one(self, session: DeadSession, timeout_s: float) -> RecoveryAnswer:
        """Perform one try, in the recovery's thread."""
        try:
            self._store.dead.bring_back(session.session_id)
            if self._child.possible:
                return self._child.recover(session, timeout_s)
            draft = self._store.dead.make_draft(session)
        except (OSError, LayerStackError) as error:
            return RecoveryAnswer(str(error)[:4096])
        return RecoveryAnswer(draft_id=None if draft is None else draft.draft_id)

    # Operations

    async def again(self, session_id: str) -> None:
        """Try a quarantined session once more. Raises NotFound, OSError."""
        await self._pool.run(lambda: self._store.dead.again(session_id))
        await self.wait_for_session(session_id)

    def rows(self) -> list[dict[str, Any]]:
        """Rows of list_workspace_sessions for dead sessions, and for sessions whose record is damaged.
        Blocking."""
        found = [
            {
                "workspace_session_id": session.session_id,
                "state": "quarantined" if session.quarantined else "recovering",
                "reason": session.why,
                **self._size(session.session_id),
                "tries": session.tries,
                "base_version": session.base_version,
                "agent": session.agent,
            }
            for session in self._store.dead.all()
        ]
        unknown = {"tries": 0, "base_version": None, "agent": None}
        return found + [
            {
                "workspace_session_id": session_id,
                "state": "damaged",
                "reason": why,
                **self._size(session_id),
                **unknown,
            }
            for session_id, why in quarantine.sessions(self._store)
        ]

    def _size(self, session_id: str) -> dict[str, Any]:
        """`paths` (their number) and `bytes` of the session's files, `truncated` if only WALK_MAX of them
        were counted. Counted once, since a dead session does not change.
        """
        known = self._sizes.get(session_id)
        if known is None:
            try:
                found = of_trees(trees_of(self._store, self._store.dead, session_id), walk_max=WALK_MAX)
            except LayerStackError:  # another caller recovered or deleted it
                return {"paths": 0, "bytes": 0, "truncated": False}
            whole = found["count"] < WALK_MAX
            known = self._sizes[session_id] = {
                "paths": found["count"],
                "bytes": found["bytes"],
                "truncated": not whole,
            }
        return known
