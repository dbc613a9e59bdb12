"""Carry captured work over to the head: merge its changes with those that were published since.

The result is a separate tree, of hard links to the files of the work, and of new files where lines were
merged. The work is unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import PublishRejected
from layerstack.kernel import fsync
from layerstack.layers.index import Layer
from layerstack.layers.index_file import build
from layerstack.model.conflict import Conflict, Notice
from layerstack.model.manifest import LayerId, Manifest
from layerstack.model.resolution import NOTHING_UNRESOLVED, REFUSE, Choice, ResolvedConflict, Unresolved
from layerstack.publish import build_logs, unresolved
from layerstack.publish.build_times import HeadTimes, Standing, published_at, survey
from layerstack.publish.edits import Edit, Show, Write
from layerstack.publish.fresh_index import refresh_indexes
from layerstack.publish.kept_sides import ChosenSides
from layerstack.publish.publish import apply, describe, is_touched, recapture
from layerstack.publish.resolve import MergePlan, plan
from layerstack.publish.take_sides import Taken, take_sides, unit_sides
from layerstack.publish.three_trees import Meeting, Trees
from layerstack.session.checkpoints import Checkpoint
from layerstack.session.folder import CARRIED
from layerstack.text.build_roles import Roles
from layerstack.tree.disk import PATH_MAX, DiskTree, clone
from layerstack.tree.state import FILE

ROOM = 256
"""Most bytes of the path from the store's root to the tree of a session or a draft, with a reserve."""


class Carried(NamedTuple):
    """Work on top of the head; `layer` is None when the head already contains all changes."""

    layer: Layer | None
    merged: int
    """Files that both sides had changed."""
    notices: tuple[Notice, ...]
    undo: Callable[[], None] = lambda: None
    """Restores the earlier times of the files that it shares with the work, after a failure."""
    resolved: tuple[ResolvedConflict, ...] = ()
    marked: Unresolved = NOTHING_UNRESOLVED
    added: int = 0
    """Paths that were written to resolve conflicts."""


class Rebased(NamedTuple):
    """Result of `Upper.rebase`: the earlier and the new base version, and the numbers of changed paths."""

    from_version: int
    to_version: int
    updated: int
    """Paths that changed to the head's state."""
    merged: int
    """Files that show the changes of both sides."""
    notices: tuple[Notice, ...] = ()
    """Notices about ignored files, as a publish reports them; the session's own publish reports these too."""
    dropped: tuple[str, ...] = ()
    """FIFOs, sockets and devices that the rebase left out of the session; its publication reports them
    too.
    """
    resolved: tuple[ResolvedConflict, ...] = ()
    """Conflicts that were resolved, in byte order of paths."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Checkpoints of the session, which ended: they are states on the earlier base."""


def rebase(
    stack: Stack,
    base: Manifest,
    work: Layer,
    head: Manifest,
    root: str,
    *,
    written: Collection[str] = (),
    ends: bool = False,
    choice: Choice | None = None,
    author: str = "",
) -> Carried:
    """Carry captured work over to `head`: write a synced tree at `root`, with the times that its publish
    would set.

    Args:
        base, work: the work and its base version; the caller holds a lease on the base.
        root: a path in staging that does not exist.
        written: as in `Work`.
        ends: the work is discarded when the rebase has succeeded, so that its files may get other times.
        choice: sides to take where the work is in conflict; None refuses.
        author: as `Author.ref_word`.
    Raises:
        PublishRejected: a conflict is refused; lists every conflict, as the publish would. Nothing was
            changed.
    Cost: that of planning a publish, and a hard link for each entry of the work.
    """
    below, over = stack.layers.chain(base), stack.chain(head)
    assert work.index is not None and isinstance(work.tree, DiskTree)
    stack.step("rebase.plan")
    ignored = stack.routes.for_merge(base.version, head.version)
    roles = Roles(stack.routes.ignored(base.version), stack.inputs, written)
    meeting = Meeting(
        work.tree, work.index, below, over, base.version, ignored, describe, stack.rules, author=author
    )
    planned = plan(meeting)
    planned = build_logs.leave_out(stack, planned, work.index, ignored, base.version, head)
    refused = choice is None or any(choice.side(one.path) == REFUSE for one in planned.conflicts)
    if planned.git.conflicts and not refused:
        # commits are merged as far as the sides say, and what is in the files is resolved as in any file
        assert choice is not None
        meeting = meeting._replace(side=choice.side)
        planned = plan(meeting)
        if planned.git.conflicts:
            raise PublishRejected(planned.conflicts, base=base.version, head=head.version)
    conflicts = planned.conflicts
    if conflicts and (choice is None or any(choice.side(one.path) == REFUSE for one in conflicts)):
        raise PublishRejected(conflicts, base=base.version, head=head.version)
    units = tuple(one for one in conflicts if one.unit is not None)
    if choice is not None and units:
        planned = plan(meeting, unit_sides(units, choice))
    stack.step("rebase.clone")
    tree = DiskTree(root, stack.xattr_namespace, aside=stack.staging.path)
    clone(work.tree, tree)
    apply(tree, planned.edits)
    taken = None
    if choice is not None and conflicts:
        stack.step("rebase.resolve")
        taken = _resolve_conflicts(stack, tree, planned, meeting, units, choice)
    edits: tuple[Edit, ...] = (*planned.edits, *(() if taken is None else taken.view.edits))
    found = recapture(tree, head=over, version=base.version, roles=roles) if edits else ()
    touched = is_touched(work.index, found)
    indexed = build(tree, over, hashes=False, touched=touched)
    merged = sum(isinstance(edit, Write) and edit.state.kind == FILE for edit in planned.edits)
    resolved = () if taken is None else taken.resolved
    marked: Unresolved = NOTHING_UNRESOLVED if taken is None else taken.marked
    marked = unresolved.joined(marked, _merges_to_commit(planned.edits))
    added = 0 if taken is None else len(taken.view.added)
    if not indexed.changes:
        return Carried(None, merged, planned.notices, resolved=resolved)
    standing = Standing(base.version, below, roles, published_at(stack, below), work.tree if ends else None)
    head_times = HeadTimes(stack, tree, indexed, survey(tree, indexed, standing, edits), standing)
    try:
        head_times.fit_to(head)
        indexed = refresh_indexes(tree, indexed, over, planned.git.refresh)
        stack.step("rebase.sync")
        fsync.sync_files(stack.root, map(tree.full, indexed.files()), map(tree.full, indexed.folders()))
    except BaseException:
        head_times.undo()
        raise
    layer = Layer(LayerId(f"private-{CARRIED}"), tree, head.version, indexed.records)
    return Carried(
        layer, merged, planned.notices + head_times.notices, head_times.undo, resolved, marked, added
    )


def _merges_to_commit(edits: Collection[Edit]) -> Unresolved:
    """Find the merges that the plan leaves to commit: MERGE_HEAD -> the ids in it."""
    return {
        edit.path: tuple(edit.state.data().decode("ascii", "replace").split())
        for edit in edits
        if isinstance(edit, Show) and edit.path.endswith(unresolved.MERGE_HEAD) and edit.state is not None
    }


def _resolve_conflicts(
    stack: Stack,
    tree: DiskTree,
    planned: MergePlan,
    meeting: Meeting,
    units: Collection[Conflict],
    choice: Choice,
) -> Taken:
    """Resolve the conflicts that the plan left, and keep the other side of the units that it decided."""
    trees = Trees(meeting)
    left = {one.path for one in planned.conflicts if one.unit is not None}
    return take_sides(
        tree,
        planned.conflicts,
        [one for one in units if one.path not in left],
        planned.below,
        ChosenSides(
            meeting.base,
            trees.shown,
            meeting.head,
            meeting.version,
            stack.rules,
            choice,
            PATH_MAX - ROOM - len(os.fsencode(stack.root)),
        ),
    )
