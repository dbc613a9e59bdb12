"""Times of published files, such that a tool that builds by time makes an output again when it was made from
text that has been replaced (ADR 0048).

A session's outputs were made from what its base version shows. When it is published on a head that moved, its
inputs get times not before the publication, so that they are newer than the head's outputs; and its outputs
get times before those of the inputs that the session had not seen, so that they are made again. Inputs keep
their order in time, and so do outputs. Times decide nothing else: states, digests and conflicts do not
contain them.
"""

from __future__ import annotations

import errno
import os
import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from layerstack.core.layer_times import newest_in, published_ns, times_of
from layerstack.kernel import fsync
from layerstack.kernel.fsync import suppress_errno
from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer, LayerTimes
from layerstack.layers.index_file import Indexed
from layerstack.model.conflict import Notice
from layerstack.model.spread_times import MILLISECOND, SECOND, below, spread
from layerstack.publish.edits import Bring, Edit, Show, Write
from layerstack.publish.unseen_inputs import built_on, in_git_directory, lacks_input
from layerstack.text.build_roles import Roles
from layerstack.tree.disk import DiskTree, Tree
from layerstack.tree.state import DIRECTORY, FILE, LINK, WHITEOUT, State, same

if TYPE_CHECKING:
    from layerstack.core.stack import Stack
    from layerstack.model.manifest import Manifest

EPOCH_NS = SECOND
"""Bound below every input, in ns; one second, since some tools take zero for a missing time."""
_FAR = (1 << 63) - 1
"""Largest time in ns that fits into eight bytes: the year 2262. Some file systems keep later times."""
_NOTHING, _INPUT, _OUTPUT, _FOLDER, _OUTPUT_FOLDER = range(5)


class Survey(NamedTuple):
    """Result of one scan of captured work: routes of its paths, their roles in builds, and their times."""

    source_count: int
    ignored_count: int
    roles: bytes
    """Role of each row."""
    times: array[int]
    """Modification time of each row in ns, as it was before this module changed any."""
    own: LayerTimes
    newest_made: int
    """Time of the newest file on the source route that was written neither by `file_write` or `file_edit` nor
    by a merge; 0: there is none.
    """
    old: bool
    """True if an input whose content differs from the base has a time before the publication of the base."""
    written: tuple[str, ...]
    """Ignored files that are inputs since they were written by hand."""

    def has(self, role: int) -> bool:
        return self.roles.find(role) >= 0


class Standing(NamedTuple):
    """Base of the work that gets times: its version, and the roles of the paths."""

    version: int
    base: Chain
    roles: Roles
    since_ns: int
    """Time at which that version was published."""
    origin: DiskTree | None = None
    """The work that the tree is a clone of, if the work is removed when the tree is kept."""


def survey(tree: Tree, indexed: Indexed, work: Standing, edits: Sequence[Edit] = ()) -> Survey:
    """Scan the work, each row once. `edits`: those that made `tree`. Cost: a decision of the ignore rules for
    each row.
    """
    base, roles, since_ns = work.base, work.roles, work.since_ns
    brought = {edit.path for edit in edits if isinstance(edit, Bring)}
    merged = {edit.path for edit in edits if isinstance(edit, Write)}
    for edit in edits:
        if isinstance(edit, Show) and edit.state is not None:
            if edit.state.body is not None:
                merged.add(edit.path)
            elif (head := edit.trees.head.find(edit.path)) is not None and head.inode == edit.state.inode:
                brought.add(edit.path)
    routes, kinds, times = [0, 0], bytearray(), array("q")
    oldest: int | None = None
    newest = newest_made = 0
    removes = old = False
    written: list[str] = []
    for row in indexed.rows:
        path, (kind, quiet, opaque), mtime = row.path, row.record, row.mtime_ns
        role = _NOTHING
        if kind == WHITEOUT:
            under = base.find(path)
            ignored = roles.ignored(path, under is not None and under.kind == DIRECTORY)
            routes[ignored] += 1
            removes = removes or not ignored or roles.by_hand(path)
        else:
            mtime = mtime or tree.state(path).times[1]
            directory = kind == DIRECTORY
            if not quiet or directory:
                ignored = bool(path) and roles.ignored(path, directory)
                if not quiet:
                    routes[ignored] += 1
                    if mtime > newest:
                        newest = mtime
            else:
                ignored = False
            if directory:
                role = _OUTPUT_FOLDER if ignored else _FOLDER
                removes = removes or (not quiet and not ignored and (opaque or _is_file(base, path)))
            elif kind == FILE and path not in brought:
                if quiet:
                    role = _INPUT
                    if path in roles.written and roles.ignored(path, False):
                        written.append(path)
                elif ignored and not roles.by_hand(path):
                    role = _OUTPUT
                elif mtime > since_ns or not _is_as_in(base, tree, path):
                    role = _INPUT
                    old = old or (mtime <= since_ns and base.find(path) is not None)
                    oldest = mtime if oldest is None or mtime < oldest else oldest
                    if ignored and path in roles.written:
                        written.append(path)
                    if (
                        not ignored
                        and mtime > newest_made
                        and path not in roles.written
                        and path not in merged
                        and not in_git_directory(path)
                    ):
                        newest_made = mtime
            elif kind == LINK and not ignored:
                removes = removes or base.find(path) is not None  # its target may have any time
        kinds.append(role)
        times.append(mtime if -_FAR <= mtime <= _FAR else max(-_FAR, min(_FAR, mtime)))
    own = LayerTimes(oldest, newest, removes)
    return Survey(routes[False], routes[True], bytes(kinds), times, own, newest_made, old, tuple(written))


def published_at(stack: Stack, base: Chain) -> int:
    """Give the time at which a version was published, in ns since the epoch; for the first version, when the
    store was made.
    """
    at = published_ns(base.published[0])
    return os.stat(f"{stack.root}/workspace.json").st_mtime_ns if at is None else at


def _is_file(base: Chain, path: str) -> bool:
    under = base.find(path)
    return under is not None and under.kind != DIRECTORY


def _is_as_in(base: Chain, tree: Tree, path: str) -> bool:
    """Check whether the base has a file of the same content at the path: then only attributes were
    changed.
    """
    under = base.find(path)
    return under is not None and under.kind == FILE and same(under, tree.state(path))


def notices(stack: Stack, seen: Survey, work: Standing, head: Manifest) -> tuple[Notice, ...]:
    """Make the notices of a publication of the work on `head` about inputs that the work has not seen."""
    newer = [layer for layer in stack.layers.of(head) if layer.version > work.version]
    unseen = [times_of(stack, layer) for layer in newer]
    return built_on(work.version, seen.newest_made, work.base, stack.chain(head), newer, unseen, work.roles)


class HeadTimes:
    """The times that work gets for one head. `undo` restores the earlier times; `again` adapts them to a
    later head, under the lock.
    """

    def __init__(self, stack: Stack, tree: DiskTree, indexed: Indexed, seen: Survey, work: Standing) -> None:
        self._stack, self._tree, self._indexed, self._seen, self._work = stack, tree, indexed, seen, work
        self._changed = bytearray(len(seen.roles))
        self._names: dict[tuple[int, int], list[tuple[int, str]]] | None = None
        """Names of each file with several names, by inode: number of the row, path."""
        self.notices: tuple[Notice, ...] = ()
        self.own = seen.own
        self._first: int | None = None
        self._bound: int | None = None
        self._moved = False

    # ---- decisions

    def fit_to(self, head: Manifest) -> None:
        """Give the work the times for a publication on `head`. Raises OSError."""
        seen = self._seen
        if head.version == self._work.version:
            if seen.old:
                self._raise_old()
            return
        layers = self._stack.layers.of(head)
        newer = [layer for layer in layers if layer.version > self._work.version]
        self._moved = True
        unseen = [times_of(self._stack, layer) for layer in newer]
        over = self._stack.chain(head)
        self.notices = notices(self._stack, seen, self._work, head)
        self._set_times(over, newest_in(layers), self._bound_of(over, unseen, newer))

    def again(self, head: Manifest, planned_on: int) -> None:
        """Set the times again if layers newer than version `planned_on` require it. Raises OSError."""
        layers = self._stack.layers.of(head)
        newer = [layer for layer in layers if layer.version > planned_on]
        unseen = [times_of(self._stack, layer) for layer in newer]
        over = self._stack.chain(head)
        bound = self._bound_of(over, unseen, newer)
        late = self._first is not None and any(one.newest + MILLISECOND > self._first for one in unseen)
        lower = bound is not None and (self._bound is None or bound < self._bound)
        if late or lower or not self._moved:
            self._moved = True
            bounds = [each for each in (bound, self._bound) if each is not None]
            self._set_times(over, newest_in(layers), min(bounds, default=None))
            self._sync()

    def _bound_of(self, head: Chain, unseen: Sequence[LayerTimes], newer: Sequence[Layer]) -> int | None:
        """Return the time in ns that outputs of ours must be older than; None: no such time or no outputs."""
        if not self._seen.has(_OUTPUT) and not self._seen.has(_OUTPUT_FOLDER):
            return None
        if any(one.removes for one in unseen) and lacks_input(self._work.base, head, newer, self._work.roles):
            return EPOCH_NS
        return min((one.oldest_input for one in unseen if one.oldest_input is not None), default=None)

    # ---- changes

    def _set_times(self, head: Chain, later_than: int, bound: int | None) -> None:
        """Make inputs newer than the time `later_than`, and outputs older than the second that contains
        `bound`, since some tools compare seconds only.
        """
        inputs, outputs, roles = set[int](), set[int](), bytearray(self._seen.roles)
        limit, kept_below = 0 if bound is None else below(bound), 0
        for at, row in enumerate(self._indexed.rows):
            mtime = self._seen.times[at]
            if roles[at] in (_FOLDER, _OUTPUT_FOLDER):
                roles[at] = self._folder(at, row.path, mtime, head)
            if roles[at] == _INPUT:
                inputs.add(mtime)
            elif roles[at] == _OUTPUT:
                if bound is None or mtime < limit:
                    roles[at], kept_below = _NOTHING, max(kept_below, mtime)
                else:
                    outputs.add(mtime)
        raised, lowered = array("q", sorted(inputs)), array("q", sorted(outputs))
        first = spread(raised, later_than + 1, time.time_ns())
        under = spread(lowered, kept_below + 1, limit)
        # outputs come first: a file that is both, by two names, has one time, which must be an input's
        for at, row in enumerate(self._indexed.rows):
            if roles[at] == _OUTPUT:
                self._set(at, row.path, under(self._seen.times[at]))
        for at, row in enumerate(self._indexed.rows):
            if roles[at] == _INPUT:
                self._set(at, row.path, first(self._seen.times[at]))
        self._first, self._bound = (first(raised[0]) if inputs else None), bound
        if inputs:
            oldest = None if self._seen.own.oldest_input is None else first(raised[0])
            self.own = self._seen.own._replace(
                oldest_input=oldest, newest=max(self._seen.own.newest, first(raised[-1]))
            )

    def _folder(self, at: int, path: str, mtime: int, head: Chain) -> int:
        """Set the time of a directory: as an input or an output if it got or lost names here, else, as a mere
        container, that of the head.
        """
        b = self._work.base.find(path)
        if b is None or b.kind != DIRECTORY or b.times[1] != mtime:
            return _OUTPUT if self._seen.roles[at] == _OUTPUT_FOLDER else _INPUT
        h = head.find(path)
        if h is not None and h.kind == DIRECTORY and h.times[1] != mtime:
            self._set(at, path, h.times[1])
        return _NOTHING

    def _raise_old(self) -> None:
        """Raise the times of inputs that are before the publication of the base, when the head did not move
        (rule 7).
        """
        base, since, seen = self._work.base, self._work.since_ns, self._seen
        old: dict[int, int] = {}
        for at, row in enumerate(self._indexed.rows):
            if (
                seen.roles[at] == _INPUT
                and seen.times[at] <= since
                and not row.record.quiet
                and base.find(row.path) is not None
            ):
                old[at] = seen.times[at]
        ranks = array("q", sorted(set(old.values())))
        first = spread(ranks, since + 1, min(time.time_ns(), since + MILLISECOND * (1 + len(ranks))))
        oldest = first(ranks[0])
        for at, row in enumerate(self._indexed.rows):
            if at in old:
                self._set(at, row.path, first(old[at]))
            elif seen.roles[at] == _INPUT and not row.record.quiet:
                oldest = min(oldest, seen.times[at])
        self.own = LayerTimes(oldest, max(seen.own.newest, first(ranks[-1])), seen.own.removes)

    def _set(self, at: int, path: str, mtime: int) -> None:
        self._changed[at] = 1
        state = self._tree.state(path)
        if state.kind == DIRECTORY or self._is_own(path, state):
            self._tree.set_times(path, (state.times[0], mtime))
            return
        inode, state.linkable, state.times = state.inode, False, (state.times[0], mtime)
        self._replace(path, state)
        if state.links > 1:
            names, copy = self._names_of(inode), self._tree.state(path)
            for other, name in names:
                if other != at:
                    self._changed[other] = 1
                    self._replace(name, copy)
            self._names_of(copy.inode).extend(names)

    def _replace(self, path: str, state: State) -> None:
        """Replace a file; its directory keeps its time."""
        above = path.rpartition("/")[0]
        times = self._tree.state(above).times
        self._tree.replace(path, state)
        self._tree.set_times(above, times)

    def _names_of(self, inode: tuple[int, int]) -> list[tuple[int, str]]:
        """Return the names in the work of a file that has several names in the store."""
        if self._names is None:
            self._names = {}
            for at, row in enumerate(self._indexed.rows):
                if row.record.kind == FILE and (found := self._tree.state(row.path)).links > 1:
                    self._names.setdefault(found.inode, []).append((at, row.path))
        return self._names.setdefault(inode, [])

    def _is_own(self, path: str, state: State) -> bool:
        """Check whether the file belongs to this work alone, or to this work and the work that it is a clone
        of. The file may have several names in this work, and the same number of further names in the
        original.
        """
        if state.links == 1:
            return True
        names, other = len(self._names_of(state.inode)), self._work.origin
        if state.links == names:
            return True
        if other is None or state.links != 2 * names:
            return False
        with suppress_errno(errno.ENOENT, errno.ENOTDIR):
            return other.state(path).inode == state.inode
        return False

    def _sync(self) -> None:
        """Fsync the paths whose times were changed, unless the file system keeps the order.

        The caller holds the lock, and a commit follows.
        """
        changed = (
            self._tree.full(row.path) for at, row in enumerate(self._indexed.rows) if self._changed[at]
        )
        if not fsync.keeps_order(self._stack.root):
            fsync.sync_files(self._stack.root, changed, ())

    def undo(self) -> None:
        """Restore the earlier times of the work, best effort, after a failed publication."""
        if not any(self._changed):
            return
        with fsync.best_effort():
            for at, row in enumerate(self._indexed.rows):
                if self._changed[at] and abs(self._seen.times[at]) < _FAR:
                    full = self._tree.full(row.path)
                    os.utime(
                        full, ns=(os.lstat(full).st_atime_ns, self._seen.times[at]), follow_symlinks=False
                    )
            self._changed = bytearray(len(self._changed))
