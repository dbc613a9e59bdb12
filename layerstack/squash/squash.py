"""Squash layers with no visible effect: a block of adjacent layers becomes one layer that shows the same.

No lease may keep the layers of a block apart. The tree is made of hard links in staging, outside the store
lock, while publishes continue. The lock is held for the check that no lease was taken on a version inside a
block since the plan, for the renames, and for one new manifest. Afterwards the records of earlier versions
and drafts are rewritten to name the new layer, and versions inside a block are closed, since their trees are
lost. After a crash the next open finishes this last part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from layerstack.core.layer_times import KEY as TIMES
from layerstack.core.layer_times import joined, times_of
from layerstack.core.stack import Stack
from layerstack.errors import SquashInFlight, StoreCorrupt
from layerstack.fsck.one_tree import check_index
from layerstack.history import blame, blame_file
from layerstack.kernel import fsync, records
from layerstack.layers.chain import Chain
from layerstack.layers.flatten import flatten
from layerstack.layers.index import Layer
from layerstack.layers.index_cursor import Digests
from layerstack.layers.index_file import Indexed, Known, build
from layerstack.layers.index_file import write_new as write_index
from layerstack.model.manifest import LayerId, Manifest, squashed_id
from layerstack.model.messages import bounded_messages
from layerstack.publish.commit import HEAD, NUMBERED, Arrival, CommitUnsynced, commit
from layerstack.publish.commit import write_new as write_manifest
from layerstack.squash import finish
from layerstack.squash.plan import SquashRun, plan
from layerstack.tree.disk import DiskTree
from layerstack.tree.fileops import link, make_directory, write_copy
from layerstack.tree.staging import Names
from layerstack.tree.state import DIRECTORY, State

SUFFIXES = (".json", ".index", ".blame")
LINKED_MAX = 2_000
"""Linked files whose state is remembered until they are indexed; the state of all others is read again."""
READERS_WAIT_S = 5.0
"""Seconds that a squash waits for readers of replaced layers; afterwards the last reader's end removes
these.
"""


class Block(NamedTuple):
    """Layers that one new layer replaces."""

    squashed_layer_id: str
    replaced_layer_ids: tuple[str, ...]
    """Newest first."""
    reclaimed: bool
    """True when the squash released all replaced layers for removal.

    False: a lease still holds one of them, and they are removed with the last lease; or a file on disk may
    still name one, and they are removed after `finish`.
    """


class Squashed(NamedTuple):
    """Result of a squash; `manifest` is the head after it."""

    manifest: Manifest
    blocks: tuple[Block, ...]


class _SquashedRun(NamedTuple):
    """Squashed run: its tree and metadata are in staging, synced."""

    run: SquashRun
    tree: DiskTree
    indexed: Indexed
    about: dict[str, Any]
    stem: str


class _SquashTree(DiskTree):
    """Tree that has no reader before it is complete: entries are made in place.

    `copied` are the files that could not be linked.
    """

    def __init__(self, root: str, stack: Stack) -> None:
        super().__init__(root, stack.xattr_namespace, aside=stack.staging.path)
        self.copied: list[str] = []
        self._linked: dict[str, State] = {}

    def put(self, path: str, state: State, *, times: bool = True) -> None:
        full = self.full(path)
        if state.kind == DIRECTORY:
            make_directory(full, state, times=times)
        elif link(full, state):
            if len(self._linked) < LINKED_MAX:
                self._linked[path] = state
        else:
            write_copy(full, state, times=times)
            self.copied.append(full)

    def state(self, path: str) -> State:
        """State of an entry, from memory for a linked file: it is the same inode.

        The link count leaves out the name that the file has in its source layer.
        """
        found = self._linked.get(path)
        if found is None:
            found = super().state(path)
            if found.kind != DIRECTORY:
                found.links -= 1
        return found


def squash(stack: Stack, *, wait: bool = False) -> Squashed:
    """See `Store.squash`; with `wait` the call first waits for a squash that runs already.

    Cost: O(entries of the blocks) outside the lock; under it the renames and O(openable versions and drafts).
    """
    stack.check_open()
    if not stack.squash_lock.acquire(blocking=wait):
        raise SquashInFlight(f"{stack.root}: a squash is already in flight", details={"store": stack.root})
    try:
        with stack.staging.temporary_names() as new_name:
            if stack.cleanup_pending:
                with stack.lock:
                    finish.finish(stack)
            with stack.reading() as snapshot:
                stack.step("squash.plan")
                ready = _flatten_all(stack, snapshot.chain, new_name)
                head, new_layers, named = (
                    _commit(stack, ready, new_name) if ready else (stack.head, [], False)
                )
            if not new_layers:
                return Squashed(head, ())
            gone = {layer.id for _, one in new_layers for layer in one.run.layers}
            stack.leases.wait_for_readers(gone, READERS_WAIT_S)
            (stack.still_named if named else stack.replaced).update(gone)
            stack.reclaim()
            blocks: list[Block] = []
            for layer, one in new_layers:
                ids = tuple(member.id for member in one.run.layers)
                blocks.append(Block(layer.id, ids, not named and stack.replaced.isdisjoint(ids)))
            return Squashed(head, tuple(blocks))
    finally:
        stack.squash_lock.release()


def _flatten_all(stack: Stack, chain: Chain, new_name: Names) -> list[_SquashedRun]:
    """Squash every run of the chain in staging.

    A layer with a damaged file makes this squash fail with an error that names it. Later squashes leave this
    layer out, so that it does not stop them.
    """
    try:
        return [_flatten_run(stack, run, new_name) for run in plan(stack, chain)]
    except StoreCorrupt as error:
        damaged = os.path.basename(str(error.details.get("file", ""))).partition(".")[0]
        stack.not_squashed.update(layer.id for layer in chain.published if layer.id == damaged)
        raise


def _flatten_run(stack: Stack, run: SquashRun, new_name: Names) -> _SquashedRun:
    stack.step("squash.fold")
    tree = _SquashTree(new_name("squash"), stack)
    make_directory(tree.root, run.layers[0].tree.state(""))
    flattened = flatten(run.layers, run.below, tree)
    for layer in run.layers:
        check_index(f"{stack.root}/.layer-metadata/{layer.id}.index")
    digests = Digests(stack.root)
    try:
        indexed = build(
            tree, run.below, known=_known(digests, flattened.source), touched=flattened.is_touched
        )
    finally:
        digests.close()
    about = _about(stack, run, indexed)
    stem = new_name("metadata", *SUFFIXES)
    stack.step("squash.write")
    about["index_sha256"] = write_index(f"{stem}.index", indexed)
    ranges = blame.of_block(stack, run.layers, run.below)
    about["blame_sha256"] = blame_file.write_new(f"{stem}.blame", ranges, aside=stack.staging.path)
    fsync.write_new(f"{stem}.json", records.dump(about), sync=False)
    stack.step("squash.sync")
    folders = map(tree.full, indexed.folders())
    fsync.sync_files(
        stack.root, [*tree.copied, *(stem + suffix for suffix in SUFFIXES)], folders, followed=True
    )
    return _SquashedRun(run, tree, indexed, about, stem)


def _known(digests: Digests, source: Callable[[str], Layer | None]) -> Known:
    """Digests from the index files of the source layers: no file is read again."""

    def known(path: str, _state: State) -> bytes | None:
        layer = source(path)
        return None if layer is None else digests(layer.id, path)

    return known


def _about(stack: Stack, run: SquashRun, indexed: Indexed) -> dict[str, Any]:
    """Make the metadata of the new layer.

    Recovery, conflicts and blame read the authors of its changes from `members`; a single owner or agent is
    named as in any layer.
    """
    members = bounded_messages(member for layer in run.layers for member in layer.members)
    written = [
        path for layer in run.layers for path in layer.about.get("written", ()) if _newest(run, path) is layer
    ]
    owners, agents = ({member[key] for member in members} for key in ("owner", "agent"))
    return ({"written": written} if written else {}) | {
        TIMES: joined(times_of(stack, layer) for layer in run.layers).to_json(),
        "version": run.version,
        "first_version": run.first_version,
        "replaced": [layer.id for layer in run.layers],
        "members": members,
        "digest": indexed.digest,
        "owner": owners.pop() if len(owners) == 1 else None,
        "agent": agents.pop() if len(agents) == 1 else None,
        "created_unix_ms": time.time_ns() // 1_000_000,
        "paths": indexed.changes,
        "bytes": indexed.size_bytes,
        "allocated_bytes": indexed.allocated_bytes,
    }


def _newest(run: SquashRun, path: str) -> Layer | None:
    """The newest layer that lists a path."""
    return next((layer for layer in run.layers if layer.get(path) is not None), None)


class _Named(NamedTuple):
    """Prepared result of a squash of `head`: ids of the new layers, and the manifests in staging.

    `manifest.json` and the files of earlier versions are synced.
    """

    head: Manifest
    fit: list[_SquashedRun]
    names: list[LayerId]
    manifest: Manifest
    stem: str
    """Common path of the manifest's two files, without their suffixes."""
    rewritten: list[tuple[str, str]]
    """Files of earlier versions: the path in staging, and the path that it is renamed to."""


def _name(stack: Stack, fit: list[_SquashedRun], head: Manifest, new_name: Names) -> _Named:
    version, layers = head.version + 1, list(stack.layers.of(head))
    names: list[LayerId] = []
    for one in fit:
        replaced = [layer.id for layer in one.run.layers]
        names.append(squashed_id(version, one.indexed.digest, replaced))
        at = layers.index(one.run.layers[0])
        layers[at : at + len(replaced)] = [
            stack.layers.new(names[-1], one.run.version, one.indexed.records, one.about)
        ]
    manifest = finish.version_of(layers, version)
    stem = new_name("manifest", HEAD, NUMBERED)
    rewritten = finish.write_anew(
        stack, layers, [layer for layer in layers if layer.id in names], head.version, new_name
    )
    write_manifest(stem, manifest)
    fsync.sync_files(stack.root, [stem + HEAD, *(new for new, _ in rewritten)], (), followed=True)
    return _Named(head, fit, names, manifest, stem, rewritten)


def _commit(
    stack: Stack, ready: list[_SquashedRun], new_name: Names
) -> tuple[Manifest, list[tuple[Layer, _SquashedRun]], bool]:
    """Commit the runs that can still be squashed.

    Returns:
        The new head, the new layers with their runs, and True when a file may still name replaced layers.
    """
    guess = _name(stack, ready, stack.head, new_name)
    with stack.lock:
        stack.check_open()
        head = stack.head
        leased = [lease.version for lease in stack.leases.boundaries()]
        fit = [one for one in ready if not any(map(one.run.holds_inside, leased)) and one.run.is_in(head)]
        if not fit:
            return head, [], False
        named = guess if head is guess.head and fit == guess.fit else _name(stack, fit, head, new_name)
        new_layers = [
            (stack.layers.new(name, one.run.version, one.indexed.records, one.about), one)
            for name, one in zip(named.names, fit, strict=True)
        ]
        for layer, _ in new_layers:
            stack.layers.path_index.add(layer)
        late: CommitUnsynced | None = None
        try:
            arrivals = [Arrival(layer, one.tree.root, one.stem, SUFFIXES) for layer, one in new_layers]
            commit(stack, named.manifest, arrivals, named.stem, written=True)
        except CommitUnsynced as error:
            late = error
        except BaseException:
            for layer, _ in new_layers:
                stack.layers.path_index.drop(layer)
            raise
        released = finish.release_replaced(stack, [layer for layer, _ in new_layers], named.rewritten)
        stack.cleanup_pending = stack.cleanup_pending or not released
        if late is not None:
            raise late
        return named.manifest, new_layers, not released
