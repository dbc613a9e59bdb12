"""Dead sessions: their process died before their work was published or kept as a draft.

A *try* makes a draft of the work of one session; at most one try of a session runs. A failed try changes
nothing else.

    sessions/<id>/recovery.json   number of tries, and why the last one failed; durable before each try,
                                  removed with the session

From the moment the store is open each dead session has a lease on its base, so that no squash and no gc
removes its layers. The caller decides when and how the work is recovered: `attempt` in this process, or
`begin_try`, `layerstack.recover_one` in a process with limits, and `end_try`. A try that ends the process is
counted, because the count is written before the try. ADR 0043.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import Any

from layerstack.core.stack import Stack
from layerstack.errors import NotFound, StoreBusy, StoreCorrupt
from layerstack.kernel import fsync, overlay, records
from layerstack.model.lease import Lease
from layerstack.publish import draft_refs, drafts
from layerstack.publish.commit import give_back_layer, owner_of
from layerstack.publish.drafts import Draft
from layerstack.recovery import gc
from layerstack.recovery.dead_upper import dead_upper
from layerstack.session.upper import Upper

MARKER = "recovery.json"
TRIES_MAX = 2
"""Failed tries after which a session is quarantined: it is tried again only on request."""
WHY_MAX = 4096
DIED = "the process that tried it died"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk or quota; a try that ends with one is not counted."""


@dataclass(frozen=True)
class DeadSession:
    """A dead session; `base_version` is its base, `lease` the lease on the base."""

    session_id: str
    origin: str
    agent: str | None
    draft_id: str | None
    token: str
    base_version: int
    lease: Lease
    tries: int = 0
    why: str | None = None
    """Error that the last try ended with; None before the first."""
    no_space: bool = False
    """True when the disk had no room for the draft: the session is tried again when it has."""
    trying: bool = False
    """True while a try runs; `tries` counts it already."""

    @property
    def quarantined(self) -> bool:
        """True when the session is tried again only on request."""
        return self.tries >= TRIES_MAX and not self.trying


class Dead:
    """Table of the dead sessions of one open store.

    Its methods may be called from any thread; a session has at most one try at a time.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._known: dict[str, DeadSession] = {}

    def all(self) -> list[DeadSession]:
        """List all dead sessions, sorted by id."""
        with self._stack.lock:
            return [self._known[session_id] for session_id in sorted(self._known)]

    def get(self, session_id: str) -> DeadSession:
        """Find a dead session by its id. Raises NotFound, reason session_not_found."""
        found = self._known.get(session_id)
        if found is None:
            text = f"session {session_id!r} is not waiting for recovery"
            raise NotFound(text, reason="session_not_found", details={"workspace_session_id": session_id})
        return found

    def find(self, session_id: str) -> DeadSession | None:
        """Find a dead session by its id; None when there is none."""
        return self._known.get(session_id)

    def begin(self, bodies: dict[str, dict[str, Any]]) -> None:
        """Fill the table when the store is opened. Walks no tree.

        A session whose work was published or made a draft is removed; each other session gets a lease on its
        base.
        Args:
            bodies: contents of each session.json that can be read, by session id.
        """
        stack = self._stack
        published = {
            member["upper"]: member["draft_id"] for layer in stack.layers.all() for member in layer.members
        }
        done = {*published, *(draft.upper for draft in drafts.all_of(stack))}
        for session_id, body in sorted(bodies.items()):
            if body["token"] in done:
                with fsync.best_effort():
                    stack.staging.discard_directory(
                        f"{stack.root}/sessions/{session_id}"
                    )  # the crash came before this removal
                continue
            layers = stack.layer_ids_at(
                body["base_version"]
            )  # a squash may have replaced those that it was opened on
            lease = stack.leases.acquire(f"session {session_id}", body["base_version"], layers)
            if body["draft_id"] is not None:
                draft_refs.claim(stack, body["draft_id"])
            self._add(session_id, body, lease)
        used = set(published.values())
        for draft in drafts.all_of(stack):
            if draft.draft_id in used:
                draft_refs.consume(stack, draft.draft_id)  # dead sessions may still use the draft

    def abandon(self, upper: Upper, why: BaseException) -> DeadSession:
        """Take over a live upper whose work could be neither published nor kept, as if its process had died.

        Raises:
            StoreCorrupt: its session.json cannot be read; the upper is unchanged.
        """
        with self._stack.lock:
            body = records.read_session(upper.directory)
            self._add(upper.session_id, body, upper.abandon())
            return self._put(self._known[upper.session_id], why=str(why), no_space=_is_no_space(why))

    def _add(self, session_id: str, body: dict[str, Any], lease: Lease) -> None:
        tries, why = self._marked(session_id)
        who = (
            session_id,
            body["origin"],
            body["agent"],
            body["draft_id"],
            body["token"],
            body["base_version"],
        )
        self._known[session_id] = DeadSession(*who, lease, tries, why)

    def _marked(self, session_id: str) -> tuple[int, str | None]:
        """Read the marker of an earlier process: (tries, why the last one failed).

        A damaged marker counts as one try.
        """
        path = self._marker(session_id)
        if not os.path.lexists(path):
            return 0, None
        try:
            body = records.read(path)
            if body["why"] is not None:
                return int(body["tries"]), str(body["why"])
            before = body.get("before")
            return int(body["tries"]), DIED if before in (None, DIED) else f"{DIED}; before that: {before}"
        except (StoreCorrupt, KeyError, TypeError, ValueError):
            return 1, f"{path}: damaged"

    def _marker(self, session_id: str) -> str:
        return f"{self._stack.root}/sessions/{session_id}/{MARKER}"

    def _put(self, session: DeadSession, **changes: Any) -> DeadSession:
        changed = DeadSession(**{**session.__dict__, **changes})
        self._known[session.session_id] = changed
        return changed

    # ---- tries

    def begin_try(self, session_id: str) -> DeadSession:
        """Count one more try, durably: if this process dies in the try, the next process reads the count.

        Raises:
            NotFound. OSError: the count could not be written; nothing was tried.
        """
        stack = self._stack
        stack.check_open()
        session = self.get(session_id)
        before = None if session.why is None else session.why[:WHY_MAX]
        body = {"session_id": session_id, "tries": session.tries + 1, "why": None, "before": before}
        records.write(self._marker(session_id), body, step=stack.step, name="recovery.json")
        with stack.lock:
            return self._put(session, tries=session.tries + 1, no_space=False, trying=True)

    def end_try(
        self,
        session_id: str,
        error: BaseException | str | None = None,
        *,
        draft_id: str | None = None,
        no_space: bool = False,
        again: bool = False,
    ) -> Draft | None:
        """End a try and decide its outcome by the files on disk.

        Args:
            draft_id: the draft that the try reports.
            error: the error that the try ended with; None: the try reports success.
            no_space: the disk was full: the try is not counted.
            again: the session could not be tried yet: the try is not counted either.
        Returns:
            The draft that the try made; None when nothing was unpublished, or when the try failed.
        Raises:
            NotFound: the session is no longer in the table.
        """
        stack = self._stack
        with stack.lock:
            session = self.get(session_id)
            kept = self._kept(session, draft_id)
            if kept is not None or error is None or self._is_over(session):
                if kept is not None:
                    drafts.adopt(stack, kept)
                self._forget(session)
                return kept
            no_space = no_space or (isinstance(error, BaseException) and _is_no_space(error))
            why = str(error)
            if no_space or again:
                session = self._put(
                    session, tries=session.tries - 1, why=why, no_space=no_space, trying=False
                )
                with fsync.best_effort():
                    if session.tries == 0:
                        os.unlink(self._marker(session_id))
                    else:  # replaces the marker that counts this try
                        records.write(
                            self._marker(session_id),
                            {"session_id": session_id, "tries": session.tries, "why": why[:WHY_MAX]},
                        )
                return None
            self._put(session, why=why, trying=False)
        with fsync.best_effort():
            records.write(
                self._marker(session_id),
                {"session_id": session_id, "tries": session.tries, "why": why[:WHY_MAX]},
            )
        return None

    def _kept(self, session: DeadSession, draft_id: str | None) -> Draft | None:
        if draft_id is not None:
            with contextlib.suppress(NotFound, StoreCorrupt):  # the draft may be discarded already
                return drafts.load(self._stack, draft_id)
        return next((draft for draft in drafts.all_of(self._stack) if draft.upper == session.token), None)

    def _is_over(self, session: DeadSession) -> bool:
        """Return True when the session has no work left to keep.

        The session's folder is removed, or its work is in a published layer, whose draft is then consumed.
        Work that is in `layers/` because a rename could not be undone counts as left: `bring_back` moves it
        back.
        """
        stack, folder = self._stack, f"{self._stack.root}/sessions/{session.session_id}"
        if not os.path.isdir(folder):
            return True
        for layer in stack.layers.all():
            if any(member["upper"] == session.token for member in layer.members):
                if session.draft_id is not None:
                    draft_refs.consume(stack, session.draft_id)
                return True
        return False

    def bring_back(self, session_id: str) -> None:
        """Move work back into the session's folder when its rename into `layers/` could not be undone.

        Called before each try.
        """
        stack = self._stack
        with stack.lock:
            if os.path.isdir(f"{stack.root}/sessions/{session_id}/upper"):
                return
            named = gc.named_by_history(stack)
            for name in sorted(os.listdir(f"{stack.root}/layers")):
                if name not in named and owner_of(stack.root, name) == f"{stack.root}/sessions/{session_id}":
                    give_back_layer(stack.root, name, keep=True)

    def _forget(self, session: DeadSession) -> None:
        """Remove a session from the table, with its folder, its lease and its reference to a draft."""
        stack = self._stack
        self._known.pop(session.session_id, None)
        folder = f"{stack.root}/sessions/{session.session_id}"
        if os.path.isdir(folder):
            with fsync.best_effort():
                stack.staging.discard_directory(folder)
        stack.release(session.lease)
        draft_refs.leave(stack, session.draft_id)

    def attempt(self, session_id: str) -> Draft | None:
        """Make a draft of the session's work in this process.

        Returns:
            The new draft; None when the session had no unpublished work beyond that of its own draft.
        Raises:
            NotFound, StoreCorrupt, OSError: the try failed; it was counted unless the disk was full.
            StoreBusy: an overlay is still mounted on its upperdir.
        """
        session = self.begin_try(session_id)
        try:
            self.bring_back(session_id)
            draft = self.make_draft(session)
        except StoreBusy as error:
            self.end_try(session_id, error, again=True)
            raise
        except (OSError, NotFound, StoreCorrupt) as error:
            made = self.end_try(session_id, error)
            if made is None and session_id in self._known:
                raise
            return made
        return self.end_try(session_id, draft_id=None if draft is None else draft.draft_id)

    def make_draft(self, session: DeadSession) -> Draft | None:
        """Do the work of a try in this process.

        Raises as `attempt`; the caller calls `end_try` afterwards.
        """
        stack = self._stack
        body = records.read_session(f"{stack.root}/sessions/{session.session_id}")
        if session.draft_id is not None:
            draft_refs.claim(stack, session.draft_id)  # the end of the upper releases this reference
        try:
            draft = dead_upper(stack, session.session_id, body, session.lease._replace(number=0)).to_draft(
                reason="recovered"
            )
        except BaseException:
            draft_refs.leave(stack, session.draft_id)
            raise
        return None if draft is not None and draft.draft_id == session.draft_id else draft

    def refused(self, session_id: str, error: BaseException) -> None:
        """Record the error of a session that could not even be tried."""
        with self._stack.lock:
            self._put(self.get(session_id), why=str(error), no_space=_is_no_space(error))

    def again(self, session_id: str) -> DeadSession:
        """Forget the failed tries, once their cause is repaired. Raises NotFound, OSError."""
        with self._stack.lock:
            session = self.get(session_id)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._marker(session_id))
            return self._put(session, tries=0, no_space=False, trying=False)

    def give_up(self, session_id: str) -> None:
        """Delete a dead session with its work.

        Raises:
            NotFound. StoreBusy: an overlay is still mounted on its upperdir.
            OSError: its folder could not be moved away and is unchanged; or it is deleted, and only the fsync
                failed.
        """
        stack = self._stack
        with stack.lock:
            stack.check_open()
            session = self.get(session_id)
            folder = f"{stack.root}/sessions/{session_id}"
            if os.path.isdir(f"{folder}/upper") and overlay.is_mounted(f"{folder}/upper"):
                raise StoreBusy(
                    f"{folder}/upper: a live overlay still writes into it",
                    details={"upperdir": f"{folder}/upper"},
                )
            stack.staging.discard_directory(folder)
            self._forget(session)
        fsync.fsync_dir(f"{stack.root}/sessions")


def _is_no_space(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in NO_SPACE
