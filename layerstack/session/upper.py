"""Writes of one session: a lease on a version, an upperdir with its workdir, pending layers between the two.

sessions/<id>/session.json   base version and layers, origin, agent, draft; a token that names the
                             session in a layer or draft
sessions/<id>/upper/ work/   the live writes
sessions/<id>/private/<n>/   pending layers: captured work that could not be published; the highest
                             number on top
sessions/<id>/saved/<n>/     saved layers of checkpoints, between the two: earlier upperdirs

While a session has checkpoints, its work is captured in memory and not in place: the upperdir and the saved
layers stay as they are until the session ends.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import threading
import time
from collections.abc import Callable, Generator

from layerstack.core.stack import Stack
from layerstack.errors import Invalid, NotFound, PublishRejected, StoreBusy, StoreCorrupt
from layerstack.kernel import fsync, overlay
from layerstack.kernel.fsync import Step
from layerstack.layers import delta
from layerstack.layers.capture import Captured, capture_tree
from layerstack.layers.chain import Chain
from layerstack.layers.flatten import flatten
from layerstack.layers.flattened_tree import FlattenedTree
from layerstack.layers.hard_links import split_links
from layerstack.layers.index import Layer
from layerstack.layers.index_file import build
from layerstack.layers.snapshot import Snapshot
from layerstack.model.conflict import Notice
from layerstack.model.lease import Lease, lease_names
from layerstack.model.manifest import LayerId, Manifest
from layerstack.model.resolution import Choice, ResolvedConflict, Unresolved
from layerstack.publish import draft_refs, drafts, unresolved
from layerstack.publish.commit import CommitUnsynced
from layerstack.publish.drafts import Draft
from layerstack.publish.outcome import Preview, Published
from layerstack.publish.publish import Author, Work, preview, publish
from layerstack.session import saved_work
from layerstack.session.checkpoints import NO_SAVED_LAYERS, Checkpoint, Checkpointed, Restored, SavedLayers
from layerstack.session.folder import SessionIdentity, make_folder
from layerstack.session.rebase import Carried, Rebased, rebase
from layerstack.text.build_roles import Roles
from layerstack.tree.disk import DiskTree
from layerstack.tree.fileops import make_directory
from layerstack.tree.memory import MemoryTree
from layerstack.tree.scanned import SeenTree
from layerstack.tree.state import State, equal

LONGEST_PLACE = 64
"""Most bytes of the path from the store's root to a tree, `/drafts/draft-0123456789abcdef/layer/`, with a
reserve. Only the pending layer of a session with a long id has a longer one.
"""
SIZE_WALK_MAX = 50_000
"""Entries after which `size_bytes` stops counting."""


class UpperState(enum.Enum):
    """State of an upper. LIVE and CAPTURED follow each other until one of the last two.

    A capture leads from LIVE to CAPTURED. The upper is LIVE again when a pending layer or a rebase has taken
    over the captured work, or when the capture changed nothing.
    """

    LIVE = enum.auto()
    """The upperdir may be mounted."""
    CAPTURED = enum.auto()
    """A capture began, complete or not: the upperdir holds captured work and may not be mounted."""
    PUBLISHED = enum.auto()
    """The head has the work, and only a sync is missing: `_late` has the error and the result."""
    ENDED = enum.auto()
    """Nothing is left to do: the work is published, kept or discarded, or the files belong to another
    owner.
    """


class Upper:
    """Writes of one session. The methods may be called from any thread and run one at a time.

    `publish`, `to_draft` and `discard` need the upper offline: its overlay is no longer mounted.
    """

    def __init__(
        self, stack: Stack, identity: SessionIdentity, manifest: Manifest, chain: Chain, lease: Lease
    ) -> None:
        self._stack, self._identity, self._manifest, self._lease = stack, identity, manifest, lease
        self._base = chain.with_pending(()) if chain.pending else chain
        self._chain = chain
        self._lock = threading.RLock()
        self._state = UpperState.LIVE
        self._late: CommitUnsynced | None = None  # set when PUBLISHED
        self._dropped: tuple[str, ...] = ()
        self._split: tuple[Notice, ...] = ()  # hard links that this session split
        self._reported = 0  # number of `_dropped` that `rebase` has reported
        self.notices: tuple[Notice, ...] = ()
        """Notices of carried-over work; publish and preview report them before their own."""
        self.resolved: tuple[ResolvedConflict, ...] = ()
        """Conflicts that were resolved when the work was carried over to its present base, in byte order of
        paths.
        """
        self._number = int(identity.rebased)
        self.saved: SavedLayers = NO_SAVED_LAYERS
        """Checkpoints, and the saved layers between the upperdir and the pending layers."""
        self._written: dict[str, int] = {}
        """Files for which `note_written` was called, with their times at that call."""

    @property
    def session_id(self) -> str:
        """Id that `Store.open_upper` was called with; it names the folder."""
        return self._identity.session_id

    @property
    def snapshot(self) -> Snapshot:
        """Snapshot of the session's base version, with its pending layers on top."""
        return Snapshot(self._manifest, self._chain)

    @property
    def directory(self) -> str:
        """Folder of the session; it is removed at the end of the upper."""
        return f"{self._stack.root}/sessions/{self.session_id}"

    @property
    def upperdir(self) -> str:
        """Directory of the live writes. While it is mounted only overlayfs may write to it."""
        return f"{self.directory}/upper"

    @property
    def workdir(self) -> str:
        """Directory that overlayfs needs beside the upperdir."""
        return f"{self.directory}/work"

    @property
    def root_changed(self) -> bool:
        """True when the session changed mode, owner or xattrs of the workspace itself.

        The names in the upperdir do not show this change.
        """
        return not equal(State(self.upperdir, self._stack.xattr_namespace), self._root_below())

    def _root_below(self) -> State:
        """State of the root on which the upperdir is mounted."""
        if self.saved.top:
            return State(saved_work.folder(self.directory, self.saved.top), self._stack.xattr_namespace)
        root = self._chain.find("")
        assert root is not None
        return root

    @property
    def has_writes(self) -> bool:
        """True when anything was written since the state that the upperdir is mounted on."""
        if not os.path.isdir(self.upperdir):
            return False
        with os.scandir(self.upperdir) as entries:
            if next(entries, None) is not None:
                return True
        own = State(self.upperdir, self._stack.xattr_namespace)
        return own.times[1] != self._root_below().times[1] or self.root_changed

    @property
    def saved_directories(self) -> list[str]:
        """Directories of the saved layers below the upperdir, the topmost first."""
        return [saved_work.folder(self.directory, number) for number in self.saved.present]

    @property
    def carried(self) -> bool:
        """True when the pending layer `session.CARRIED` is a draft's work, carried over to the head.

        The draft holds this work too.
        """
        return self._identity.rebased

    @property
    def unresolved(self) -> Unresolved:
        """Paths whose files got conflict markers, with the lines of these; later edits may have removed
        them.
        """
        return self._identity.unresolved

    @property
    def dropped(self) -> tuple[str, ...]:
        """Special files that captures have skipped so far."""
        return self._dropped

    @property
    def _leaving(self) -> tuple[str, ...]:
        return lease_names(self.session_id, self._identity.draft_id)

    def note_written(self, path: str) -> None:
        """Record a file that was just written by `file_write` or `file_edit`.

        It is an input of builds even if it is ignored, until another program writes it. The record ends with
        this process; a draft does not keep it.
        """
        with fsync.best_effort():
            self._written[path] = os.lstat(f"{self.upperdir}/{path}").st_mtime_ns

    def _roles(self) -> Roles:
        """Roles of the files that are in the upperdir now."""
        stack = self._stack
        written: set[str] = set()
        places = [self.upperdir, *self.saved_directories]
        for path, mtime in self._written.items():
            for place in places:
                with fsync.best_effort():
                    if os.lstat(f"{place}/{path}").st_mtime_ns == mtime:
                        written.add(path)
                    break
        return Roles(stack.routes.ignored(self._manifest.version), stack.inputs, written)

    @contextlib.contextmanager
    def exclusive(self) -> Generator[None]:
        """Make calls of this upper by other threads wait until the end of the block.

        Raises Invalid when the upper has ended.
        """
        with self._lock:
            self._live()
            yield

    @property
    def is_published(self) -> bool:
        """True after a publish that raised CommitUnsynced: the head has the work, and `publish` only
        syncs.
        """
        return self._state is UpperState.PUBLISHED

    def _live(self) -> None:
        self._stack.check_open()
        if self._state is UpperState.ENDED:
            raise Invalid(
                f"upper of session {self.session_id} has ended",
                reason="upper_ended",
                details={"session_id": self.session_id},
            )

    def _published_is_final(self) -> None:
        if self._late is not None:
            raise self._late

    def mount(self) -> int:
        """Create a detached overlay mount of the session's view.

        The descriptor belongs to the caller, who closes it after move_mount. Never two at a time. Raises as
        `overlay.create`; OSError when captured work could not become a pending layer, such as on a full disk;
        CommitUnsynced again after a publish that raised it: the head has the work, and new writes would have
        no base.
        """
        with self._lock:
            self._live()
            self._published_is_final()
            self._set_aside()
            if self.saved.last_layer:  # the directory that was there became a saved layer
                self._renew()
            below = (*self.saved_directories, *self.snapshot.lowerdirs)
            return overlay.create(
                below, self.upperdir, self.workdir, xattr_namespace=self._stack.xattr_namespace
            )

    def preview(self, *, allow_unresolved: bool = False) -> Preview:
        """Compute the present result of `publish` by reading alone.

        The processes of a live session should be frozen for the call.
        """
        with self._lock:
            self._live()
            self._published_is_final()
            stack = self._stack
            self._renew()
            tree, chain, dropped, linked = self._in_memory()
            if chain.pending:
                tree = MemoryTree.load(FlattenedTree(self._block(tree, chain), self._base))
                left_out, linked, _ = capture_tree(tree, self._base)
                dropped += left_out
            self._split = split_links(tree, self._base, linked)
            left = None if allow_unresolved else unresolved.refusal(self.unresolved, tree)
            found = preview(
                stack,
                tree,
                base=self._base,
                version=self._manifest.version,
                dropped=self._dropped + dropped,
                leaving=self._leaving,
                written=self._roles().written,
                author=self._ref_word,
            )
            if left is not None and found.would_publish:
                found = found._replace(would_publish=False, refused=left)
            return found._replace(notices=self._notices(found.notices))

    @property
    def _ref_word(self) -> str:
        who = self._identity
        return Author("", "", who.agent, who.token, self.session_id, who.draft_id).ref_word

    @contextlib.contextmanager
    def changes(self) -> Generator[tuple[Chain, Chain]]:
        """Give the chain of the base, and the same with the present work on top, by reading alone.

        The processes of a live session should be frozen for the length of the block, in which the content
        is read.
        """
        with self._lock:
            self._live()
            self._published_is_final()
            self._renew()
            tree, chain, _, _ = self._in_memory()
            if chain.pending:
                tree = MemoryTree.load(FlattenedTree(self._block(tree, chain), self._base))
                capture_tree(tree, self._base)
            index = build(tree, self._base, hashes=False).records
            layer = Layer(LayerId("upper"), tree, self._manifest.version, index)
            yield self._base, self._base.with_pending((layer,))

    def _notices(self, found: tuple[Notice, ...]) -> tuple[Notice, ...]:
        refused = self._stack.routes.refused(self._manifest.version)
        all_of_them = (
            *self.notices,
            *found,
            *self._split,
            *(Notice("rules_refused", path) for path in refused),
        )
        return tuple(dict.fromkeys(all_of_them))

    def publish(
        self,
        *,
        owner: str,
        request_id: str,
        agent: str | None = None,
        allow_unresolved: bool = False,
        message: str | None = None,
    ) -> Published:
        """Publish everything since the base version as one layer. The upper ends; its lease is released.

        Args:
            allow_unresolved: publish files with the conflict markers that a rebase wrote, too.
        Returns:
            `no_op` when the session changed nothing, or when the head contains all its changes.
        Raises:
            PublishRejected: nothing was published. The work is now a pending layer under a new, empty upper:
                `mount` gives the same view.
            CommitUnsynced: it is published; called again it only syncs.
            UnresolvedConflicts, LayerLimit, QuotaExceeded, OSError: nothing was published, nothing is lost;
                `mount` and `publish` can be called again.
        """
        with self._lock:
            self._live()
            stack = self._stack
            if self._late is not None:
                stack.sync_head()
                return self._finish(self._late.published)
            who = self._identity
            author = Author(
                owner,
                request_id,
                agent or who.agent,
                who.token,
                self.session_id,
                who.draft_id,
                message=message,
            )
            try:
                published = self._publish(author, allow_unresolved)
            except PublishRejected:
                with fsync.best_effort():  # what fails here is tried again by `mount`
                    self._set_aside()
                raise
            except CommitUnsynced as error:
                error.published = error.published._replace(notices=self._notices(error.published.notices))
                self._state, self._late = UpperState.PUBLISHED, error
                raise
            return self._finish(published._replace(notices=self._notices(published.notices)))

    def _publish(self, author: Author, allow_unresolved: bool) -> Published:
        stack = self._stack
        if (
            stack.quota.refusal(self.size_bytes, self._leaving) is not None
        ):  # before the capture: the session continues unchanged
            refused = self.preview(allow_unresolved=allow_unresolved).refused
            if refused is not None:
                raise refused
        with self._work() as work:
            if not work.indexed.changes:
                return Published(True, stack.head, None, 0, 0, (), work.dropped)
            if self.unresolved and not allow_unresolved:
                unresolved.check(self.unresolved, work.tree)
            return publish(stack, work, author)

    def rebase(self, choice: Choice | None = None) -> Rebased:
        """Carry the work over to the head, which becomes the base, with the changes since merged in.

        The session must be offline, as for `publish`.
        Args:
            choice: sides to take where both changed a path; None refuses every conflict. Files that get
                conflict markers are in `unresolved` from then on.
        Returns:
            Equal versions when the base was the head already: nothing was done then.
        Raises:
            PublishRejected: with every conflict. LayerLimit, OSError. The session keeps its base: `mount`
                gives the same view.
        Cost: that of planning a publish, a hard link for each entry of the work, and an fsync for each file.
        """

        with self._lock:
            self._live()
            self._published_is_final()
            stack, before = self._stack, self._manifest.version
            head, lease = stack.acquire_lease(self._identity.lease_name)
            try:
                if head.version == before:
                    stack.release(lease)
                    return Rebased(before, before, 0, 0)
                left_behind = self.saved.checkpoints
                done, updated = self._carry_over(head, choice)
            except BaseException as error:
                stack.release(lease)
                if isinstance(error, PublishRejected):
                    with fsync.best_effort():  # what fails here is tried again by `mount`
                        self._set_aside()
                raise
            left, self._lease = self._lease, lease
            stack.release(left)
            self.notices += done.notices
            self.resolved = done.resolved
            notices = done.notices + self._split
            dropped, self._reported = self._dropped[self._reported :], len(self._dropped)
            return Rebased(
                before, head.version, updated, done.merged, notices, dropped, done.resolved, left_behind
            )

    def _carry_over(self, head: Manifest, choice: Choice | None) -> tuple[Carried, int]:
        """Replace the session's folder by one on `head`.

        Returns:
            The carried-over work, and the number of paths that changed to the head's state.
        """

        stack, who = self._stack, self._identity
        with (
            self._work() as work,
            stack.staging.temporary_names() as new_name,
            contextlib.ExitStack() as undo,
        ):
            root = new_name("rebase")
            own = Layer(LayerId("upper"), work.tree, self._manifest.version, work.indexed.records)
            # else the work was flattened from layers that are kept
            ends = not self._chain.pending and not self.saved.last_checkpoint
            done = rebase(
                stack,
                self._manifest,
                own,
                head,
                root,
                written=work.written,
                ends=ends,
                choice=choice,
                author=self._ref_word,
            )
            undo.callback(done.undo)
            carried = done.layer
            pending = [] if carried is None else [carried]
            overlay.check_count(len(head.layers) + len(pending))
            chain = stack.layers.chain(head, pending)
            seen = delta.count(stack.layers.chain(self._manifest, [own]), chain)
            number = 1 + int(who.draft_id is not None)  # the draft has less than this layer: see `carried`
            left = unresolved.still(self.unresolved, chain.find)
            who = who._replace(
                rebased=who.draft_id is not None, unresolved=unresolved.joined(left, done.marked)
            )
            make_folder(
                stack, who, head, chain, root if pending else None, name=f"{number:04d}", replace=True
            )
            undo.pop_all()
            pending = [layer.at(f"{self.directory}/private/{number:04d}") for layer in pending]
            self._identity, self._manifest, self._number, self._state = who, head, number, UpperState.LIVE
            if self.saved.last_checkpoint:  # the capture in memory left them in the upperdir
                self._dropped = work.dropped
            self.saved = NO_SAVED_LAYERS
            self._chain = stack.layers.chain(head, pending)
            self._base = self._chain.with_pending(())
        return done, max(0, seen - done.merged - done.added)

    def checkpoint(self, label: str | None = None) -> Checkpointed:
        """Save the present state, so that `restore` can return to it.

        The upper must be offline if it `has_writes`, as for `publish`; else the state is that of its lower
        directories. Afterwards `mount` gives the same view.
        Raises:
            LayerLimit, OSError: the state before; `mount` gives the same view.
        Cost: one walk of the names that were written; one fsync of session.json.
        """
        with self._lock:
            self._live()
            self._published_is_final()
            self._set_aside()
            moves, changed = self._writes()
            overlay.check_count(len(self._chain.layers) + len(self.saved.present) + moves)
            now_ms = time.time_ns() // 1_000_000
            after, made = self.saved.with_checkpoint(
                moves=moves, label=label, changed_files=changed, now_ms=now_ms
            )
            return Checkpointed(made, self._save(after))

    def restore(self, checkpoint_id: str | None = None) -> Restored:
        """Return to a checkpoint, by default the newest that no restore made. The state before is a
        checkpoint too.

        The upper must be offline. Afterwards `mount` gives the view of the checkpoint: names, content,
        attributes, times, links between files.
        Raises:
            NotFound: no such checkpoint (checkpoint_not_found). LayerLimit, OSError: the state before, unless
                only a sync failed.
        Cost: as `checkpoint`.
        """
        with self._lock:
            self._live()
            self._published_is_final()
            target = self.saved.find(checkpoint_id)
            overlay.check_count(len(self._chain.layers) + len(self.saved.below(target.layer)))
            self._set_aside()
            moves, changed = self._writes()
            if not moves and target.layer == self.saved.top:
                return Restored(target, None)
            now_ms = time.time_ns() // 1_000_000
            after, undo = self.saved.with_restore(target, moves=moves, changed_files=changed, now_ms=now_ms)
            return Restored(target, undo, self._save(after))

    def _writes(self) -> tuple[bool, int]:
        """Tell if the upperdir has writes, and count them."""
        self._renew()
        return (True, saved_work.count_changes(self._tree())) if self.has_writes else (False, 0)

    def _save(self, after: SavedLayers) -> tuple[Checkpoint, ...]:
        """Make `after` the state of the session, on disk and here. Returns the checkpoints that it drops."""
        stack, before = self._stack, self.saved
        if after.moving and overlay.is_mounted(self.upperdir):
            raise StoreBusy(f"{self.upperdir}: is still mounted", details={"upperdir": self.upperdir})
        try:
            saved_work.move(stack, self.directory, after, durable=after.top != after.moving)
        except BaseException:
            if after.moving and os.path.isdir(saved_work.folder(self.directory, after.moving)):
                self.saved = after  # a sync failed after the rename
            raise
        self.saved = after
        with fsync.best_effort():  # `mount` tries it again
            self._renew()
        if after.moving and after.is_deep:
            with fsync.best_effort():  # the next checkpoint tries it again
                self.saved = saved_work.combine(
                    stack, self.directory, after, self._chain, self._manifest.version
                )
        saved_work.remove_others(stack, self.directory, self.saved)
        kept = {one.number for one in after.checkpoints}
        return tuple(one for one in before.checkpoints if one.number not in kept)

    def to_draft(self, *, reason: str) -> Draft | None:
        """Keep the work as a draft and end the upper.

        Returns:
            The draft: the one that the session was opened on, if that contains all the work. None when
                nothing was unpublished.
        Raises:
            OSError: the disk refused; the upper is unchanged.
        """
        with self._lock:
            self._live()
            stack, who = self._stack, self._identity
            if self._late is not None:
                self._finish(self._late.published)
                return None
            draft = None
            with self._work() as work:
                if (own := self._own_draft()) is not None:
                    draft = own
                elif work.indexed.changes:
                    draft = drafts.keep(
                        stack,
                        work,
                        origin=who.origin,
                        request_id=who.request_id,
                        agent=who.agent,
                        reason=reason,
                        upper=who.token,
                        unresolved=who.unresolved,
                    )
                    drafts.adopt(stack, draft)
            self._end()
            return draft

    def _own_draft(self) -> Draft | None:
        """Draft that the session was opened on, if it has all work of the session; called after capture."""
        stack, draft_id, only = self._stack, self._identity.draft_id, len(self._chain.pending) == 1
        if (
            draft_id is None or not only or self._number > int(self._identity.rebased) or self.saved.top
        ):  # a rebased session has more than its draft: see `carried`
            return None
        if build(self._tree(), self._chain, hashes=False).changes:
            return None
        with contextlib.suppress(NotFound, StoreCorrupt):
            return draft_refs.get(stack, draft_id)
        return None

    def abandon(self) -> Lease:
        """End the upper and leave all its files on disk, as if its process had died.

        The caller gets the lease.
        """
        with self._lock:
            self._state = UpperState.ENDED
            return self._lease

    def discard(self) -> int:
        """Discard the writes and end the upper. Returns the bytes discarded; the session's draft stays."""
        with self._lock:
            self._live()
            size = self.size_bytes()
            self._end()
            return size

    def size_bytes(self) -> int:
        """Bytes of the regular files that this session holds, pending layers and checkpoints included.

        Counting stops after 50,000 entries.
        """
        total = seen = 0
        stack = [self.upperdir, f"{self.directory}/private", f"{self.directory}/saved"]
        while stack:
            try:
                with os.scandir(stack.pop()) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > SIZE_WALK_MAX:
                            return total
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(entry.path)
                        elif entry.is_file(follow_symlinks=False):
                            total += entry.stat(follow_symlinks=False).st_size
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
                    raise
        return total

    # ---- capture

    def _tree(self, step: Step | None = None, root: str = "") -> SeenTree:
        """Tree of the upperdir, or of the saved layer at `root`.

        Its path lengths leave room for the longer path of a pending layer or a draft.
        """
        stack, root = self._stack, root or self.upperdir
        place = max(LONGEST_PLACE, len(f"/sessions/{self.session_id}/private/0001/"))
        room = len(os.fsencode(stack.root)) + place - len(os.fsencode(root)) - 1
        return SeenTree(
            root, stack.xattr_namespace, aside=stack.staging.path, step=step or stack.step, room=room
        )

    def _block(self, top: MemoryTree | DiskTree, chain: Chain) -> list[Layer]:
        """Unpublished layers, newest first: the captured writes, and the pending layers of `chain` below
        them.
        """
        layer = Layer(LayerId("upper"), top, self._manifest.version, build(top, chain, hashes=False).records)
        return [layer, *chain.pending]

    def _in_memory(self, is_input: Callable[[str], bool] | None = None) -> saved_work.SeenWork:
        """Capture the upperdir and the saved layers in memory."""
        trees: list[DiskTree] = [self._tree(), *(self._tree(root=root) for root in self.saved_directories)]
        return saved_work.capture_in_memory(trees, self._chain, self._manifest.version, is_input=is_input)

    def _in_place(self, roles: Roles) -> tuple[DiskTree, Captured]:
        """Capture the upperdir in place: its tree, and what the capture reports."""
        before, changed = self._state, False

        def step(name: str) -> None:
            nonlocal changed
            changed = True
            self._stack.step(name)

        tree = self._tree(step)
        self._state = UpperState.CAPTURED
        try:
            captured = capture_tree(tree, self._chain, is_input=roles.is_input)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG and not changed:
                self._state = before  # nothing was changed: the session can still remove the long path
            raise
        self._dropped += captured.dropped
        return tree, captured

    @contextlib.contextmanager
    def _work(self) -> Generator[Work]:
        """Capture in place, or in memory while the session has checkpoints.

        With pending or saved layers the result is flattened onto the base in staging, and the originals stay.
        """
        stack = self._stack
        self._renew()
        roles = self._roles()
        top: MemoryTree | DiskTree
        tree: DiskTree
        captured: Captured | None = None
        if self.saved.last_checkpoint:
            top, chain, dropped, _ = self._in_memory(roles.is_input)
            tree = self._tree()
            dropped = self._dropped + dropped
        else:
            tree, captured = self._in_place(roles)
            top, chain, dropped = tree, self._chain, self._dropped
        with stack.staging.temporary_names() as new_name:
            if captured is None or chain.pending:
                flattened = DiskTree(
                    new_name("fold"), stack.xattr_namespace, aside=stack.staging.path, step=stack.step
                )
                make_directory(flattened.root, tree.state(""))
                flatten(self._block(top, chain), self._base, flattened)
                captured = capture_tree(flattened, self._base, is_input=roles.is_input)
                dropped += captured.dropped
                tree = flattened
            self._split = split_links(tree, self._base, captured.linked)
            touched = captured.touched.__contains__ if captured.touched else None
            indexed = build(tree, self._base, leaving=True, touched=touched)
            try:
                yield Work(tree, indexed, self._manifest.version, self._base, dropped, written=roles.written)
            except OSError as error:
                if not isinstance(error, CommitUnsynced) and not os.path.isdir(self.upperdir):
                    # a rename that could not be undone: the work is in `layers/` or `drafts/`; the next open
                    # finds it
                    self._state = UpperState.ENDED
                raise

    def _set_aside(self) -> None:
        """Make captured work a pending layer, and replace it by a new empty upperdir."""
        if self._state is not UpperState.CAPTURED:
            return
        stack, tree = self._stack, self._tree()
        if os.path.isdir(self.upperdir):
            found = capture_tree(tree, self._chain, is_input=self._roles().is_input)
            self._dropped += found.dropped
            touched = found.touched.__contains__ if found.touched else None
            index = build(tree, self._chain, hashes=False, touched=touched).records
            if len(index) == 1 and index[""].quiet:
                self._state = UpperState.LIVE  # it is empty: it can be mounted as it is
                return
            pending = f"{self.directory}/private"
            if not os.path.isdir(pending):
                os.mkdir(pending)
            target = f"{pending}/{self._number + 1:04d}"
            stack.step("upper.set_aside")
            fsync.rename_new(self.upperdir, target)
            self._number += 1
            layer = Layer(
                LayerId(f"private-{self._number}"),
                DiskTree(target, stack.xattr_namespace),
                self._manifest.version,
                index,
            )
            self._chain = self._chain.with_pending((layer, *self._chain.pending))
        self._renew()
        self._state = UpperState.LIVE

    def _renew(self) -> None:
        """Make a missing upperdir.

        Its root equals that of the chain, since the session sees the upperdir's.
        """
        if not os.path.isdir(self.upperdir):
            self._stack.step("upper.renew")
            with self._stack.staging.temporary_names() as new_name:
                whole = new_name("upper")
                make_directory(whole, self._root_below())
                os.rename(whole, self.upperdir)

    def adopt(self, pending: list[str]) -> None:
        """Take over the pending layers that a dead process left, oldest first; their names are numbers."""
        stack = self._stack
        for name in pending:
            tree = DiskTree(f"{self.directory}/private/{name}", stack.xattr_namespace)
            layer = Layer(
                LayerId(f"private-{name}"),
                tree,
                self._manifest.version,
                build(tree, self._chain, hashes=False).records,
            )
            self._chain = self._chain.with_pending((layer, *self._chain.pending))
            self._number = int(name)

    # ---- the end

    def _finish(self, published: Published) -> Published:
        draft_id = self._identity.draft_id
        self._end()
        if draft_id is not None and not published.no_op:
            draft_refs.consume(self._stack, draft_id)
        return published

    def _end(self) -> None:
        self._state = UpperState.ENDED
        stack = self._stack
        with fsync.best_effort():  # the next open checks a folder that cannot be moved away
            stack.step("session.end")
            stack.staging.discard_directory(self.directory)
        stack.release(self._lease)
        draft_refs.leave(stack, self._identity.draft_id)
