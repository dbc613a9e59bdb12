"""The store: its files on disk, and all calls of an open store.

    manifest.json             the head, newest layer first; replaced by one rename
    manifests/<version>.json  every openable version, the head included
    layers/<layer_id>/        one immutable tree in overlayfs upperdir form; nothing of ours inside
    base/B000001-base/        the base, read-only, on a mount of its own
    .layer-metadata/          <id>.json owner, agent, base version, sizes, digest; <id>.index the changed
                              paths; of published layers <id>.digest, the digest alone; of squashed ones
                              <id>.blame, the authors of lines
    sessions/<id>/            the live writes of a session (layerstack.session.upper)
    workspace.json            the workspace, the base, the xattr namespace
    .storage-writer.lock      flock: one process at a time
    drafts/<id>/              work that was not published (layerstack.publish.drafts)
    pins/<version>.json       a version that stays openable (layerstack.history.pins); the first pin makes
                              the folder
    staging/                  temporary files: empty at rest, swept at open

Durability: data is synced before the rename that makes it visible, metadata is renamed in before its layer,
the layer before the manifest that names it. A crash at any step leaves the old head or the new one;
unpublished work is a draft after the next open.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from layerstack import stats
from layerstack.core.gc_roots import Pin
from layerstack.core.stack import Stack
from layerstack.fsck.check import Check
from layerstack.history import pins
from layerstack.history.blame import Cache as BlameCache
from layerstack.history.blame import blame
from layerstack.history.blame_file import Answer as Blame
from layerstack.kernel.fsync import Step, no_step
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.layers.snapshot import Snapshot
from layerstack.model.file_change import FileChange
from layerstack.model.resolution import Choice
from layerstack.publish import draft_refs
from layerstack.publish.drafts import Draft
from layerstack.publish.outcome import Preview, Published
from layerstack.publish.publish import Author
from layerstack.recovery import gc, opening, purge, reopen
from layerstack.recovery.dead_sessions import Dead
from layerstack.session import path_changes, start, update
from layerstack.session.folder import SessionIdentity
from layerstack.session.path_changes import Reshaped
from layerstack.session.rollback import rollback
from layerstack.session.upper import Upper
from layerstack.squash import finish, squash
from layerstack.squash.auto_squash import AutoSquash
from layerstack.squash.squash import Squashed

T = TypeVar("T")

PATH_DEPTH_MAX = 2_048
"""Most names of a path that fit into PATH_MAX; trees are walked by recursion."""


class Store(Stack):
    """One stack of layers on disk. One process has it open; its methods may be called from any thread."""

    def __init__(
        self, root: str, xattr_namespace: XattrNamespace, workspace: dict[str, Any], lock_fd: int, step: Step
    ) -> None:
        """Internal: callers use `open`."""
        super().__init__(root, xattr_namespace, step, lock_fd)
        self.workspace = workspace
        self.recovered: tuple[Draft, ...] = ()
        self.unrecovered: tuple[tuple[str, str], ...] = ()
        """Dead sessions whose work could not be made a draft: (session id, reason). Tried again at the next
        open unless they are quarantined.
        """
        self.behind: list[Callable[[], None]] = []
        """Removals that an open without recovery leaves to the caller, for later."""
        self.update_lock = threading.Lock()
        """Held by writers without a session, one at a time."""
        self.blames, self.auto_squash, self.dead = BlameCache(root), AutoSquash(self), Dead(self)

    # ---- create, open, close

    @staticmethod
    def create(
        root: str,
        *,
        workspace_root: str,
        base_root_hash: str,
        xattr_namespace: XattrNamespace,
        step: Step = no_step,
    ) -> None:
        """Make an empty store around a base; `root` may exist, with a mounted `base/`.

        After a crash the call is repeated. Durable on return: manifest.json is written last.
        Raises:
            Invalid: `root` has a store with another base, workspace or xattr namespace (reason store_exists);
                the store would be inside its workspace, or the workspace inside the store
                (store_in_workspace).
        """
        opening.create(
            root,
            workspace_root=workspace_root,
            base_root_hash=base_root_hash,
            xattr_namespace=xattr_namespace,
            step=step,
        )

    @staticmethod
    def open(root: str, *, step: Step = no_step, recover: bool = True) -> Store:
        """Open the store for this process: take its lock, check every file, remove the remains of a crash,
        make drafts of dead sessions' work.

        Args:
            recover: False leaves the slow steps to the caller: dead sessions are in `dead`, removals in
                `behind`.
        Raises:
            StoreBusy: another process has it open.
            StoreCorrupt: a file that the head needs is missing, damaged or of an unknown format; details.file
                names it. Nothing was changed. A damaged file that only a session, a draft, a pin or an
                earlier version needs is quarantined instead: see `damaged`.
            Unsupported: this process cannot use the store's xattr namespace.
        """
        root = os.path.realpath(
            root
        )  # the given path may change its meaning while the store is open: a symlink, the working directory
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * PATH_DEPTH_MAX))
        fd = opening.lock(root)
        try:
            workspace, xattr_namespace = opening.workspace_of(root)
            store = Store(root, xattr_namespace, workspace, fd, step)
            opening.check_xattr_namespace(root, xattr_namespace)
            store.become(reopen.load_all(store))
            pins.load(store)
            if not recover:
                store.staging.later = store.behind.append
            reopen.find_dead(store, store.dead)
            store.staging.later = None
            if recover:
                store.recovered, store.unrecovered = reopen.recover(store.dead)
        except BaseException:
            os.close(fd)
            raise
        return store

    # ---- sessions

    def open_upper(
        self,
        session_id: str,
        *,
        origin: str,
        agent: str | None = None,
        request_id: str | None = None,
        version: int | None = None,
        draft_id: str | None = None,
        draft_base: str = "own",
        choice: Choice | None = None,
    ) -> Upper:
        """Open an upper for a session's writes on a version (the head by default), or on a draft: at the
        draft's own base, or carried over to the head.

        Args:
            session_id: letters, digits, `.`, `_`, `-`; names the folder in `sessions/`.
            origin: the `origin` of a draft of this work: `workspace_session:<id>`.
            choice: sides to take where the draft is in conflict with the head; None refuses. `Upper.resolved`
                has the result for each conflict.
        Returns:
            An upper whose lease keeps the version's layers until it ends. If the process dies, the next open
                makes a draft of its work.
        Raises:
            Invalid: the id is malformed or in use. NotFound: no such version or draft. LayerLimit: more lower
                directories than the kernel mounts.
            PublishRejected: the draft cannot be carried over to the head, with every conflict.
        """
        start.check_id(session_id)
        self.check_open()
        rebased = draft_id is not None and draft_base == "head"
        identity = SessionIdentity(
            session_id, origin, agent, request_id, draft_id, os.urandom(8).hex(), rebased
        )
        if not rebased:
            return start.open_upper(self, identity, version)
        return start.open_rebased(self, identity, choice)

    def publish(
        self,
        upper: Upper,
        *,
        owner: str,
        request_id: str,
        agent: str | None = None,
        allow_unresolved: bool = False,
        message: str | None = None,
    ) -> Published:
        """Publish a session's work, as `Upper.publish`; squash first if `auto_squash` requires it."""
        with upper.exclusive():
            if upper.is_published:
                return upper.publish(owner=owner, request_id=request_id, agent=agent)
            return self.auto_squash.with_room(
                lambda: upper.publish(
                    owner=owner,
                    request_id=request_id,
                    agent=agent,
                    allow_unresolved=allow_unresolved,
                    message=message,
                )
            )

    def give_up_session(self, session_id: str) -> None:
        """Delete a dead session that waits for recovery or is quarantined, with its work. Durable on return.

        Raises:
            NotFound: no session of that id is dead or quarantined (session_not_found).
            StoreBusy: an overlay is still mounted on its upperdir.
            OSError: its folder could not be moved away and is unchanged; or it is deleted, and only the fsync
                failed.
        """
        purge.give_up(self, self.dead, session_id)

    # ---- drafts

    def drafts(self) -> list[Draft]:
        """List all drafts, oldest first."""
        return draft_refs.all_of(self)

    def draft(self, draft_id: str) -> Draft:
        """Load one draft. Raises NotFound (reason draft_not_found)."""
        return draft_refs.get(self, draft_id)

    def discard_draft(self, draft_id: str) -> int:
        """Delete a draft; returns its bytes. Durable on return.

        Raises:
            NotFound: the draft does not exist (draft_not_found).
            Busy: a session, a preview or a comparison uses it (draft_in_use).
            OSError: its folder could not be moved away and is unchanged; or it is deleted, and only the fsync
                failed.
        """
        return draft_refs.discard(self, draft_id)

    def preview_draft(self, draft_id: str) -> Preview:
        """Preview the publication of the draft, as it is, on the current head. Raises NotFound."""
        return draft_refs.preview(self, draft_id)

    # ---- sessionless writes

    def update_file(
        self,
        path: str,
        change: Callable[[bytes | None], bytes],
        *,
        owner: str,
        request_id: str,
        agent: str | None = None,
        limit: int | None = None,
        message: str | None = None,
    ) -> Published:
        """Read a file of the head, transform it, publish the result as one layer, with no other publication
        in between.

        Args:
            change: bytes of the file (None: it does not exist) -> new bytes; may be called again when the
                head moved. Its exceptions are raised.
            limit: most bytes of the file that are read for `change`, so that a huge file costs no memory.
        Returns:
            no_op when the bytes are the same. Mode, owner and xattrs of an existing file are kept; missing
                parents are made.
        Raises:
            NotAFile: the path is a directory, a symlink or special, or a parent is not a
                directory; details.kind says which.
        """

        def attempt() -> Published:
            return update.update_file(
                self,
                path,
                change,
                owner=owner,
                request_id=request_id,
                agent=agent,
                limit=limit,
                message=message,
            )

        return self._in_turn(attempt)

    def delete_path(self, path: str, author: Author, *, recursive: bool) -> Reshaped:
        """Publish the removal of a path of the head; see `layerstack.session.path_changes.delete_path`."""
        return self._in_turn(lambda: path_changes.delete_path(self, path, author, recursive=recursive))

    def move_path(self, source: str, target: str, author: Author, *, overwrite: bool) -> Reshaped:
        """Publish a rename in the head; see `layerstack.session.path_changes.move_path`."""
        return self._in_turn(
            lambda: path_changes.move_path(self, source, target, author, overwrite=overwrite)
        )

    def change_files(self, plan: Callable[[Snapshot], Sequence[FileChange]], author: Author) -> Published:
        """Publish changes of several files; see `layerstack.session.path_changes.change_files`."""
        return self._in_turn(lambda: path_changes.change_files(self, plan, author))

    def _in_turn(self, attempt: Callable[[], T]) -> T:
        """Publish without a session: one caller at a time, after a squash if `auto_squash` requires it."""
        self.check_open()
        with self.update_lock:
            return self.auto_squash.with_room(attempt)

    # ---- pins

    def pin_version(self, version: int, *, agent: str | None = None, request_id: str | None = None) -> Pin:
        """Keep a version openable until `unpin_version`, also after a restart; see
        `layerstack.history.pins.pin`.
        """
        return pins.pin(self, version, agent=agent, request_id=request_id)

    def unpin_version(self, version: int) -> bool:
        """Let a squash close the version again. False when it was not pinned; see
        `layerstack.history.pins.unpin`.
        """
        return pins.unpin(self, version)

    def pinned(self) -> dict[int, Pin]:
        """The pins by version, in order of versions."""
        return pins.all_of(self)

    # ---- history

    def blame(self, path: str) -> Blame:
        """Find the author of each line of a path of the head, or of its last text if the path is gone.

        See `layerstack.history.blame`.
        """
        return blame(self, self.blames, path)

    def rollback(self, version: int, *, owner: str, request_id: str, agent: str | None = None) -> Published:
        """Publish the tree of an earlier version on top of the head, as one layer; every version in between
        stays.

        Returns:
            no_op when the head shows that tree already.
        Raises:
            NotFound: the version cannot be opened (version_not_found). LayerLimit.
        Cost: O(paths that differ): hard links, and copies of files of the base.
        """
        author = Author(owner, request_id, agent, rollback_to=version)
        return self.auto_squash.with_room(lambda: rollback(self, version, author))

    # ---- squash

    def squash(self) -> Squashed:
        """Squash each run of layers that no lease keeps apart into one layer; the trees of openable versions
        stay the same.

        Returns:
            The new head, one version later, and the blocks; the unchanged head and no blocks when there was
                nothing to squash.
        Raises:
            SquashInFlight: another squash is running; this call did nothing.
            CommitUnsynced: the squash is done, but a power cut may still undo it. OSError: the disk refused;
                the head is as before.
        """
        return squash.squash(self)

    # ---- figures

    def layer_stats(self) -> dict[str, Any]:
        """Sizes, leases and counts, for observability; reads no layer."""
        return stats.of(self)

    def gc(self) -> None:
        """Delete layers without a reference and temporary files of failed operations. Live sessions, drafts
        and openable versions keep all their layers.
        """
        if self.cleanup_pending:
            with self.lock:
                finish.finish(self)
        if self.replaced:
            self.reclaim()
        gc.collect(self)

    @contextlib.contextmanager
    def checking(self, *, base: bool = False) -> Generator[Check]:
        """Yield a check of the open store.

        Until the end of the block no layer is removed; publishes and squashes continue.


        Args:
            base: read the base too.
        """
        with self.lock:
            there = {
                *self.head.layer_ids,
                *(layer.id for layer in self.layers.all()),
            }  # other layers on disk are being added or removed
            lease = self.leases.acquire("fsck", self.head.version, tuple(sorted(there)))
        try:
            yield Check(self.root, base=base, store=self, layers=lease.layer_ids)
        finally:
            self.release(lease)
