"""Captured work -> one layer on top of the head, or every conflict and no change.

Planning, hashing, merging and the data's fsyncs happen outside the store lock; under it there are renames and
the fsyncs of the manifest. If the head moved in that time and a newer layer meets our paths, the work is
planned again; after three rounds under the lock. The work itself is only renamed; a file that must be
rewritten is rewritten in a clone.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from layerstack.core.layer_times import KEY as TIMES
from layerstack.core.publish_rules import OFF
from layerstack.core.quota import size_of
from layerstack.core.stack import Stack
from layerstack.errors import PublishRejected
from layerstack.kernel import fsync
from layerstack.kernel import records as documents
from layerstack.layers.capture import capture_tree
from layerstack.layers.chain import Chain
from layerstack.layers.index import Index, Layer
from layerstack.layers.index_file import Indexed, build, known_digests
from layerstack.layers.index_file import write_new as write_index
from layerstack.model.conflict import TheirsLayer
from layerstack.model.lease import lease_names
from layerstack.model.manifest import Manifest, published_id
from layerstack.model.paths import parent as parent_of
from layerstack.publish import build_logs
from layerstack.publish.build_times import HeadTimes, Standing, Survey, notices, published_at, survey
from layerstack.publish.commit import HEAD, METADATA_SUFFIXES, NUMBERED, Arrival, CommitUnsynced, commit
from layerstack.publish.commit import write_new as write_manifest
from layerstack.publish.edits import Edit, Show
from layerstack.publish.fresh_index import refresh_indexes
from layerstack.publish.layer_view import LayerView
from layerstack.publish.outcome import Preview, Published
from layerstack.publish.resolve import MergePlan, plan
from layerstack.publish.three_trees import Meeting
from layerstack.text.build_roles import Roles
from layerstack.text.gitignore import Ignored
from layerstack.tree.disk import DiskTree, Tree, clone
from layerstack.tree.memory import MemoryTree
from layerstack.tree.staging import Names
from layerstack.tree.state import DIRECTORY, WHITEOUT
from layerstack.units.plan_units import may_have_repositories, meet

SYNCED = (*METADATA_SUFFIXES, HEAD)
"""Suffixes of the files that are synced with a layer before it is renamed in."""

SHORT_ID = 12
"""Characters of a session's id in names of refs."""
ROUNDS = 3
"""Optimistic rounds before the lock is held from plan to commit."""


class Work(NamedTuple):
    """Captured, unpublished work: a layer tree on disk, on top of the chain of `version`. It is never used as
    an upperdir again. The rows of its index have times.
    """

    tree: DiskTree
    indexed: Indexed
    version: int
    base: Chain
    dropped: tuple[str, ...]
    linked: Mapping[str, int] = MappingProxyType({})
    """Id of a published layer -> bytes of this work's files that are hard links to files of that layer."""
    written: Collection[str] = ()
    """Files that were last written by `file_write` or `file_edit`."""


class Author(NamedTuple):
    """Author of a layer, for its metadata."""

    owner: str
    request_id: str
    agent: str | None
    upper: str = ""
    """The token of the upper that the work comes from, so that recovery knows that it was published."""
    session_id: str | None = None
    draft_id: str | None = None
    rollback_to: int | None = None
    """The version whose tree the layer restores."""
    message: str | None = None
    """The author's own words about the change."""

    @property
    def ref_word(self) -> str:
        """Name of the author in refs and logs of git: the agent, or the session."""
        return self.agent or (self.session_id or self.owner)[:SHORT_ID]

    @property
    def leaving(self) -> tuple[str, ...]:
        """Names of the leases that end with the publish."""
        return lease_names(self.session_id, self.draft_id)


def describe(layer: Layer) -> TheirsLayer:
    """Describe a layer as a conflict names it."""
    return TheirsLayer(layer.id, layer.version, layer.about.get("owner"), layer.about.get("agent"))


def apply(tree: Tree, edits: Iterable[Edit]) -> None:
    """Apply the edits to a clone; directories keep their times."""
    view: LayerView | None = None
    for edit in edits:
        if isinstance(edit, Show):
            view = view or LayerView(tree, *edit.trees, lambda path, side: None)
            view.show(edit.path, edit.state)
            continue
        above = parent_of(edit.path)
        times = tree.state(above).times if edit.path else None
        edit.apply(tree)
        if times is not None:
            tree.set_times(above, times)


def apply_and_capture(
    tree: Tree, edits: Iterable[Edit], *, head: Chain, version: int, roles: Roles | None = None
) -> Collection[str]:
    """Apply the edits, then `recapture`."""
    apply(tree, edits)
    return recapture(tree, head=head, version=version, roles=roles)


def recapture(tree: Tree, *, head: Chain, version: int, roles: Roles | None = None) -> Collection[str]:
    """Capture again, against the head, since edits may have made entries equal to it. Only subtrees that
    newer layers meet are entered.

    Returns:
        With `roles`, the files in the entered subtrees that are kept for their time alone.
    """
    path_index = head.path_index
    return capture_tree(
        tree,
        head,
        keep=lambda path: path_index.untouched(path, version),
        is_input=None if roles is None else roles.is_input,
    ).touched


def is_touched(records: Index, found: Collection[str]) -> Callable[[str], bool]:
    """Return a predicate: True for a file that is in a rewritten tree for its time alone.

    Args:
        records: index of the tree that the rewritten tree was cloned from.
        found: files that stay for their time alone, as `apply_and_capture` returns them.
    """
    return lambda path: path in found or ((rec := records.get(path)) is not None and rec.quiet)


def count_routes(indexed: Indexed, base: Chain, ignored: Ignored) -> tuple[int, int]:
    """Count the changed paths by route: (source, ignored)."""
    routes: Counter[bool] = Counter()
    for row in indexed.rows:
        if row.record.quiet:
            continue
        if row.record.kind == WHITEOUT:
            below = base.find(row.path)
            is_directory = below is not None and below.kind == DIRECTORY
        else:
            is_directory = row.record.kind == DIRECTORY
        routes[bool(row.path) and ignored(row.path, is_directory)] += 1
    return routes[False], routes[True]


def preview(
    stack: Stack,
    tree: MemoryTree,
    *,
    base: Chain,
    version: int,
    dropped: tuple[str, ...],
    leaving: Collection[str] = (),
    written: Collection[str] = (),
    author: str = "",
) -> Preview:
    """Return the result that `publish` would have for a captured tree in memory; the tree is changed and must
    not be used again.

    Args:
        leaving: names of leases that would end with the publication.
        written: as in `Work`.
        author: as `Author.ref_word`.
    """
    with stack.reading() as snapshot:
        roles = Roles(stack.routes.ignored(version), stack.inputs, written)
        found, size = _preview(stack, tree, base, version, dropped, snapshot.manifest, roles, author)
    refused = stack.quota.refusal(size, leaving) if found.would_publish else None
    return found if refused is None else found._replace(would_publish=False, refused=refused)


def _preview(
    stack: Stack,
    tree: MemoryTree,
    base: Chain,
    version: int,
    dropped: tuple[str, ...],
    head: Manifest,
    roles: Roles,
    author: str,
) -> tuple[Preview, Callable[[], int]]:
    """Compute the preview without limits, and a function that gives the size of the layer."""
    ignored = roles.ignored
    indexed = build(tree, base, hashes=False)
    planned = _plan(stack, tree, indexed, base, version, head, author)
    if planned.conflicts:
        source, other = count_routes(indexed, base, ignored)
        return Preview(
            False, False, head.version, source, other, planned.conflicts, planned.notices, dropped
        ), int
    if planned.edits:
        over = stack.chain(head)
        apply_and_capture(tree, planned.edits, head=over, version=version)
        indexed = build(tree, over, hashes=False)
    elif _containers_met(stack, indexed, version, head):
        indexed = build(tree, stack.chain(head), hashes=False)
    no_op, all_notices = not indexed.changes, planned.notices
    if head.version == version or no_op:
        source, other = count_routes(indexed, base, ignored)
    else:
        standing = Standing(version, base, roles, published_at(stack, base))
        seen = survey(tree, indexed, standing, planned.edits)
        source, other, all_notices = (
            seen.source_count,
            seen.ignored_count,
            all_notices + notices(stack, seen, standing, head),
        )
    return Preview(not no_op, no_op, head.version, source, other, (), all_notices, dropped), lambda: size_of(
        tree, indexed
    )


def _plan(
    stack: Stack,
    tree: Tree,
    indexed: Indexed,
    base: Chain,
    version: int,
    head: Manifest,
    author: str = "",
    *,
    merge: bool = True,
    restores: bool = False,
) -> MergePlan:
    if head.version == version and not (
        merge and stack.rules.git != OFF and may_have_repositories(indexed.records)
    ):
        return MergePlan((), (), ())
    ignored = stack.routes.for_merge(version, head.version)
    over = base if head.version == version else stack.chain(head)
    rules = stack.rules if merge else stack.rules._replace(git=OFF)
    found = plan(
        Meeting(
            tree,
            indexed.records,
            base,
            over,
            version,
            ignored,
            describe,
            rules,
            author=author,
            restores=restores,
        )
    )
    if head.version == version:
        return found
    return build_logs.leave_out(stack, found, indexed.records, ignored, version, head)


class Metadata(NamedTuple):
    """The metadata files of a layer: their path in staging without suffix, and the content of the JSON
    file.
    """

    stem: str
    about: dict[str, Any]


class HeadMoved(Exception):
    """A newer layer met the paths of work that must not be merged, or the head is not the required version.
    Nothing was published.
    """


def publish(
    stack: Stack, work: Work, author: Author, *, merge: bool = True, exact: bool = False
) -> Published:
    """Append the work on top of the head as one layer, or change nothing.

    Args:
        work: on the store's file system; its tree is renamed into `layers/` or stays in its place.
        merge: False for work that must be published unchanged or not at all.
        exact: publish only if the head is the version that the work is based on.
    Returns:
        The head afterwards, which survives a power cut.
    Raises:
        PublishRejected: with every conflict; the work stays in its place. HeadMoved instead when `merge` is
            False or `exact` is not met.
        LayerLimit: the head has as many layers as the kernel can mount. QuotaExceeded: the store's quota is
            used up.
        OSError: the disk refused; the head is unchanged, or new if only the last fsync failed; the work stays
            in its place.
    Cost: O(paths of the work); content is hashed once and read again where a path is in doubt.
    """
    with stack.staging.temporary_names() as new_name:
        for _ in range(ROUNDS):
            with stack.reading() as snapshot:
                ready = _prepare(stack, work, author, new_name, snapshot.manifest, merge=merge)
                published = _commit(stack, work, ready, author, final=False, exact=exact)
            if published is not None:
                return published
            ready.undo()
        with stack.lock, stack.reading() as snapshot:
            ready = _prepare(stack, work, author, new_name, snapshot.manifest, merge=merge)
            published = _commit(stack, work, ready, author, final=True, exact=exact)
            assert published is not None
            return published


class _MergedTree(NamedTuple):
    """A tree that shows the merge on top of `head`, with its metadata written and synced in staging."""

    tree: DiskTree
    indexed: Indexed
    head: Manifest
    planned: MergePlan
    seen: Survey | None = None
    head_times: HeadTimes | None = None
    """None: nothing is left to publish, or the times must not change."""
    metadata: Metadata | None = None
    """None: nothing is left to publish."""

    def undo(self) -> None:
        """Undo the changes of times, after a failed publication."""
        if self.head_times is not None:
            self.head_times.undo()


def _prepare(
    stack: Stack, work: Work, author: Author, new_name: Names, head: Manifest, *, merge: bool
) -> _MergedTree:
    roles = Roles(stack.routes.ignored(work.version), stack.inputs, work.written)
    stack.step("publish.plan")
    keeps_commits = author.rollback_to is not None and head.version == work.version
    planned = _plan(
        stack,
        work.tree,
        work.indexed,
        work.base,
        work.version,
        head,
        author.ref_word,
        merge=merge or keeps_commits,
        restores=keeps_commits,
    )
    if not merge and not keeps_commits and (planned.conflicts or planned.edits):
        raise HeadMoved
    if planned.conflicts:
        raise PublishRejected(planned.conflicts, base=work.version, head=head.version)
    tree, indexed = work.tree, work.indexed
    if planned.edits:
        over = stack.chain(head)
        root = new_name("rewrite")
        stack.step("publish.clone")
        tree = DiskTree(root, stack.xattr_namespace, aside=stack.staging.path, step=stack.step)
        clone(work.tree, tree)
        found = apply_and_capture(tree, planned.edits, head=over, version=work.version, roles=roles)
        touched = is_touched(work.indexed.records, found)
        indexed = build(tree, over, known=known_digests(work.tree, work.indexed), touched=touched)
    elif _containers_met(stack, indexed, work.version, head):
        touched = is_touched(work.indexed.records, ())
        indexed = build(tree, stack.chain(head), known=known_digests(tree, indexed), touched=touched)
    if not indexed.changes:
        return _MergedTree(tree, indexed, head, planned)
    stack.quota.admit(head, lambda: _wanted(work, indexed), author.leaving)
    standing = Standing(
        work.version,
        work.base,
        roles,
        published_at(stack, work.base),
        work.tree if tree is not work.tree else None,
    )
    seen = survey(tree, indexed, standing, planned.edits)
    head_times = None if author.rollback_to is not None else HeadTimes(stack, tree, indexed, seen, standing)
    try:
        if head_times is not None:
            head_times.fit_to(head)
        indexed = refresh_indexes(tree, indexed, stack.chain(head), planned.git.refresh)
        return _complete(
            stack, work, author, new_name, _MergedTree(tree, indexed, head, planned, seen, head_times)
        )
    except BaseException:
        if head_times is not None:
            head_times.undo()
        raise


def _complete(stack: Stack, work: Work, author: Author, new_name: Names, ready: _MergedTree) -> _MergedTree:
    """Write the metadata of the layer, and fsync it with the tree."""
    tree, indexed = ready.tree, ready.indexed
    metadata = _write_metadata(stack, work, ready, author, new_name)
    files = itertools.chain(map(tree.full, indexed.files()), [metadata.stem + suffix for suffix in SYNCED])
    stack.step("publish.sync_layer")
    fsync.sync_files(stack.root, files, map(tree.full, indexed.folders()), followed=True)
    return ready._replace(metadata=metadata)


def _wanted(work: Work, indexed: Indexed) -> int:
    """Count the bytes that the layer adds to the store."""
    return indexed.size_bytes - sum(work.linked.values())


def _containers_met(stack: Stack, indexed: Indexed, version: int, head: Manifest) -> bool:
    """Check whether a directory that is a mere container on the base may be a change on the head: an ignored
    directory that the head removed.
    """
    return head.version != version and any(
        row.record.quiet and not stack.layers.path_index.untouched(row.path, version)
        for row in indexed.rows
        if row.path
    )


def _write_metadata(
    stack: Stack, work: Work, ready: _MergedTree, author: Author, new_name: Names
) -> Metadata:
    """Write the layer's files for `.layer-metadata` under their names in staging, and the manifest for the
    case that the head does not move. Not synced.
    """
    tree, indexed, head, seen = ready.tree, ready.indexed, ready.head, ready.seen
    assert seen is not None
    about: dict[str, Any] = {
        "base_version": work.version,
        "digest": indexed.digest,
        "owner": author.owner,
        "agent": author.agent,
        "request_id": author.request_id,
        "session_id": author.session_id,
        "draft_id": author.draft_id,
        "upper": author.upper,
        "moved": tree is work.tree and not tree.root.startswith(stack.staging.path),
        "created_unix_ms": time.time_ns() // 1_000_000,
        "paths": indexed.changes,
        "bytes": indexed.size_bytes,
        "allocated_bytes": indexed.allocated_bytes,
    }
    about[TIMES] = (seen.own if ready.head_times is None else ready.head_times.own).to_json()
    if seen.written:
        about["written"] = list(seen.written)
    if author.rollback_to is not None:
        about["rollback_to"] = author.rollback_to
    if author.message is not None:
        about["message"] = author.message
    if work.linked:
        about["linked"] = dict(work.linked)
    stem = new_name("metadata", *SYNCED, NUMBERED)
    manifest = head.with_layer(published_id(head.version + 1, indexed.digest))
    stack.step("publish.write.index")
    about["index_sha256"] = write_index(f"{stem}.index", indexed)
    for suffix, data in ((".json", documents.dump(about)), (".digest", indexed.digest.encode() + b"\n")):
        stack.step(f"publish.write{suffix}")
        fsync.write_new(stem + suffix, data, sync=False)
    stack.step("publish.write.manifest")
    write_manifest(stem, manifest)
    return Metadata(stem, about)


def _write_about(metadata: Metadata) -> None:
    """Write the JSON file again, synced."""
    os.unlink(f"{metadata.stem}.json")
    fsync.write_new(f"{metadata.stem}.json", documents.dump(metadata.about))


def _commit(
    stack: Stack, work: Work, ready: _MergedTree, author: Author, *, final: bool, exact: bool
) -> Published | None:
    """Commit the prepared layer; None when the head moved in a way that concerns the work."""
    if exact and ready.head.version != work.version:
        raise HeadMoved
    if ready.metadata is None or ready.seen is None:
        stack.sync_head()
        return Published(True, ready.head, None, 0, 0, ready.planned.notices, work.dropped)
    source, other = ready.seen.source_count, ready.seen.ignored_count
    about, version = ready.metadata.about, ready.head.version + 1
    layer = stack.layers.new(
        published_id(version, ready.indexed.digest), version, ready.indexed.records, about
    )
    stack.layers.path_index.add(layer)
    named = False
    all_notices = ready.planned.notices + (() if ready.head_times is None else ready.head_times.notices)
    try:
        with stack.lock:
            head = stack.head
            if exact and head.version != work.version:
                raise HeadMoved
            if head is not ready.head:
                planned_on = ready.head.version
                newer = [moved for moved in stack.layers.of(head) if moved.version > planned_on]
                lost = any(
                    moved.first_version <= planned_on for moved in newer
                )  # squashed: the changes since then are unknown
                own = (ready.indexed.records, work.indexed.records)
                if (
                    lost
                    or any(moved.meets(index) for moved in newer for index in own)
                    or meet(own, newer, stack.rules.units)
                ):
                    assert not final
                    return None
                stack.quota.admit(head, lambda: _wanted(work, ready.indexed), author.leaving)
                if ready.head_times is not None:
                    ready.head_times.again(head, planned_on)
                    if (times := ready.head_times.own.to_json()) != about[TIMES]:
                        about[TIMES] = times
                        _write_about(ready.metadata)
                stack.layers.path_index.drop(layer)
                version = head.version + 1
                layer = stack.layers.new(
                    published_id(version, ready.indexed.digest), version, ready.indexed.records, about
                )
                stack.layers.path_index.add(layer)
            manifest = head.with_layer(layer.id)
            published = Published(
                False,
                manifest,
                layer.id,
                source,
                other,
                all_notices,
                work.dropped,
                ready.planned.git.rewritten,
                ready.planned.git.kept_refs,
            )
            try:
                stem = ready.metadata.stem
                commit(
                    stack, manifest, [Arrival(layer, ready.tree.root, stem)], stem, written=head is ready.head
                )
            except CommitUnsynced as error:
                error.published, named = published, True
                raise
            named = True
        stack.staging.forget(
            *[stem + suffix for suffix in (*SYNCED, NUMBERED)], ready.tree.root
        )  # they were renamed away: the end of the block has nothing to remove
        return published
    except BaseException:
        if not named:
            ready.undo()
        raise
    finally:
        if not named:
            stack.layers.path_index.drop(layer)
