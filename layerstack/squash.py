"""Fold layers with no visible effect: a block of adjacent layers that no lease keeps apart becomes one layer that shows the same.

The tree is made of hard links in staging, outside the store lock, while publishes go on. Under the lock: the check that nobody leased a
version inside a block meanwhile, the renames, one new manifest. Then earlier versions and drafts name the new layer; versions inside a
block are closed, since their trees are gone. What a crash leaves of this last part the next open finishes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from layerstack import blame, documents, drafts, durable, gc
from layerstack.chain import Chain
from layerstack.commit import Arrival, CommitUnsynced, commit
from layerstack.errors import SquashInFlight
from layerstack.fold import fold
from layerstack.index import Layer
from layerstack.index_file import Indexed, build, checksum, dump, load_digests
from layerstack.manifest import LayerId, Manifest, reference, squashed_id
from layerstack.staging import Names
from layerstack.states import DIRECTORY, State, link, make_directory, write_copy
from layerstack.tree import DiskTree

if TYPE_CHECKING:
    from layerstack.store import Store

SUFFIXES = (".json", ".index", ".blame")
READERS_WAIT_S = 5.0
"""How long replaced layers wait for those that read the head of before; afterwards they go with the last of these."""


class Block(NamedTuple):
    """Layers that one new layer stands for."""

    squashed_layer_id: str
    replaced_layer_ids: tuple[str, ...]
    """Newest first."""
    reclaimed: bool
    """Are they removed? False: somebody still holds one of them; they go with the last lease."""


class Squashed(NamedTuple):
    """What a squash did. `manifest` is the head as it left it."""

    manifest: Manifest
    blocks: tuple[Block, ...]


class _Run(NamedTuple):
    """Layers to fold, newest first, and the chain below them."""

    layers: tuple[Layer, ...]
    below: Chain

    @property
    def first_version(self) -> int:
        return self.layers[-1].first_version

    @property
    def version(self) -> int:
        """The folded layer's own: that of its newest member. Nobody's base lies inside, so one suffices."""
        return self.layers[0].version

    def holds_inside(self, version: int) -> bool:
        """Would the tree of that version be lost?"""
        return self.first_version <= version < self.version


class _Ready(NamedTuple):
    """A folded run: its tree and metadata are in staging, synced."""

    run: _Run
    tree: DiskTree
    indexed: Indexed
    about: dict[str, Any]
    stem: str


class _FoldedTree(DiskTree):
    """A tree that nobody looks at before it is complete: entries are made in place. `copied` are the files that could not be linked."""

    def __init__(self, root: str, store: Store) -> None:
        super().__init__(root, store.form, aside=store.scrap.path)
        self.copied: list[str] = []
        self._linked: dict[str, State] = {}

    def put(self, path: str, state: State, *, times: bool = True) -> None:
        full = self.full(path)
        if state.kind == DIRECTORY:
            make_directory(full, state, times=times)
        elif link(full, state):
            self._linked[path] = state
        else:
            write_copy(full, state, times=times)
            self.copied.append(full)

    def state(self, path: str) -> State:
        """What was linked is the same inode: it needs no second look."""
        return self._linked.get(path) or super().state(path)


def squash(store: Store, *, wait: bool = False) -> Squashed:
    """See `Store.squash`; with `wait` one under way is waited for. Cost: O(entries of the blocks), outside the lock; under it the renames and O(openable versions and drafts)."""
    store.check_open()
    if not store.squash_lock.acquire(blocking=wait):
        raise SquashInFlight(f"{store.root}: a squash is already in flight", details={"store": store.root})
    try:
        with store.scrap.scrap() as scrap:
            if store.unsettled:
                with store.lock:
                    finish(store)
            with store.reading() as snapshot:
                store.step("squash.plan")
                ready = [_fold(store, run, scrap) for run in plan(store, snapshot.chain)]
                head, folded, named = _commit(store, ready, scrap) if ready else (store.head, [], False)
            if not folded:
                return Squashed(head, ())
            gone = {layer.id for _, one in folded for layer in one.run.layers}
            store.leases.wait_for_readers(gone, READERS_WAIT_S)
            (store.withheld if named else store.replaced).update(gone)
            reclaim(store)
            blocks: list[Block] = []
            for layer, one in folded:
                ids = tuple(member.id for member in one.run.layers)
                blocks.append(Block(layer.id, ids, not named and store.replaced.isdisjoint(ids)))
            return Squashed(head, tuple(blocks))
    finally:
        store.squash_lock.release()


def boundaries(store: Store, layers: Sequence[Layer]) -> set[str]:
    """Ids of the layers, of those given newest first, on which somebody's base ends."""
    found: set[str] = set()
    for lease in store.leases.boundaries():
        top = next((layer for layer in layers if layer.version <= lease.version), None)
        if top is not None:
            found.add(top.id)
    return found


def plan(store: Store, chain: Chain) -> list[_Run]:
    """The maximal runs of two or more layers that are neither the base nor the newest layer of a lease.

    None while damaged work is set apart: on which version it stands nobody knows.
    """
    if store.damaged:
        return []
    layers, stops = chain.published, boundaries(store, chain.published)
    runs: list[_Run] = []
    start = 0
    for at, layer in enumerate(layers):
        if layer.is_base or layer.id in stops:
            if at - start >= 2:
                runs.append(_Run(layers[start:at], Chain(layers[at:], chain.shelf, chain.form)))
            start = at + 1
    return runs


def gain(store: Store) -> int:
    """By how many layers a squash would shorten the head now."""
    return sum(len(run.layers) - 1 for run in plan(store, store.chain(store.head)))


def _fold(store: Store, run: _Run, scrap: Names) -> _Ready:
    store.step("squash.fold")
    tree = _FoldedTree(scrap("squash"), store)
    make_directory(tree.root, run.layers[0].tree.state(""))
    sources = fold(run.layers, run.below, tree)
    indexed = build(tree, run.below, digests=_digests(store, sources))
    about = _about(run, indexed)
    stem = scrap("metadata", *SUFFIXES)
    store.step("squash.write")
    told, index = blame.dump(blame.of_block(store, run.layers, run.below)), dump(indexed)
    about["index_sha256"], about["blame_sha256"] = checksum(index), hashlib.sha256(told).hexdigest()
    for suffix, data in zip(SUFFIXES, (documents.dump(about), index, told), strict=True):
        durable.write_new(stem + suffix, data, sync=False)
    store.step("squash.sync")
    folders = [tree.full(row.path) for row in indexed.rows if row.record.kind == DIRECTORY]
    durable.sync_files(store.root, [*tree.copied, *(stem + suffix for suffix in SUFFIXES)], folders, followed=True)
    return _Ready(run, tree, indexed, about, stem)


def _digests(store: Store, sources: dict[str, Layer]) -> dict[str, bytes]:
    """SHA-256 of each file, from the index files of the layers that they are from: nothing is read again."""
    listed: dict[str, dict[str, bytes]] = {}
    found: dict[str, bytes] = {}
    for path, layer in sources.items():
        if layer.id not in listed:
            source = f"{store.root}/.layer-metadata/{layer.id}.index"
            listed[layer.id] = load_digests(documents.content(source), source=source)
        digest = listed[layer.id].get(path)
        if digest is not None:
            found[path] = digest
    return found


def _about(run: _Run, indexed: Indexed) -> dict[str, Any]:
    """The metadata. Whose work is in it recovery, conflicts and blame ask `members`; a single owner or agent is named as in any layer."""
    members = [member for layer in run.layers for member in layer.members]
    owners, agents = ({member[key] for member in members} for key in ("owner", "agent"))
    return {
        "version": run.version,
        "first_version": run.first_version,
        "replaced": [layer.id for layer in run.layers],
        "members": members,
        "digest": indexed.digest,
        "owner": owners.pop() if len(owners) == 1 else None,
        "agent": agents.pop() if len(agents) == 1 else None,
        "created_unix_ms": time.time_ns() // 1_000_000,
        "paths": len(indexed.changed),
        "bytes": indexed.size_bytes,
        "allocated_bytes": indexed.allocated_bytes,
    }


class _Named(NamedTuple):
    """The outcome of a squash of `head` on paper: what the new layers are called, and the manifests, written to staging and synced."""

    head: Manifest
    fit: list[_Ready]
    names: list[LayerId]
    manifest: Manifest
    prepared: str
    rewritten: list[tuple[str, str]]
    """Of earlier versions: where it lies, and the path that it is for."""


def _name(store: Store, fit: list[_Ready], head: Manifest, scrap: Names) -> _Named:
    version, layers = head.version + 1, list(store.layers_of(head))
    names: list[LayerId] = []
    for one in fit:
        replaced = [layer.id for layer in one.run.layers]
        names.append(squashed_id(version, one.indexed.digest, replaced))
        at = layers.index(one.run.layers[0])
        layers[at : at + len(replaced)] = [store.new_layer(names[-1], one.run.version, one.indexed.records, one.about)]
    manifest = _at(layers, version)
    prepared = scrap("manifest")
    rewritten = _write_anew(store, layers, [layer for layer in layers if layer.id in names], head.version, scrap)
    durable.write_new(prepared, manifest.dump(), sync=False)
    durable.sync_files(store.root, [prepared, *(new for new, _ in rewritten)], (), followed=True)
    return _Named(head, fit, names, manifest, prepared, rewritten)


def _at(layers: Sequence[Layer], version: int) -> Manifest:
    """An openable version of the stack of these layers: those that are not newer."""
    return Manifest(version, tuple(reference(layer.id) for layer in layers if layer.version <= version))


def _commit(store: Store, ready: list[_Ready], scrap: Names) -> tuple[Manifest, list[tuple[Layer, _Ready]], bool]:
    """The new head with what could be folded after all; and whether something on disk still names the layers that were replaced."""
    guess = _name(store, ready, store.head, scrap)
    with store.lock:
        store.check_open()
        head = store.head
        leased = [lease.version for lease in store.leases.boundaries()]
        fit = [one for one in ready if not any(map(one.run.holds_inside, leased)) and _is_in(one.run, head)]
        if not fit:
            return head, [], False
        named = guess if head is guess.head and fit == guess.fit else _name(store, fit, head, scrap)
        folded = [
            (store.new_layer(name, one.run.version, one.indexed.records, one.about), one)
            for name, one in zip(named.names, fit, strict=True)
        ]
        for layer, _ in folded:
            store.shelf.add(layer)
        late: CommitUnsynced | None = None
        try:
            arrivals = [Arrival(layer, one.tree.root, one.stem, SUFFIXES) for layer, one in folded]
            commit(store, named.manifest, arrivals, named.prepared, written=True)
        except CommitUnsynced as error:
            late = error
        except BaseException:
            for layer, _ in folded:
                store.shelf.drop(layer)
            raise
        settled = _settle(store, [layer for layer, _ in folded], named.rewritten)
        store.unsettled = store.unsettled or not settled
        if late is not None:
            raise late
        return named.manifest, folded, not settled


def _is_in(run: _Run, head: Manifest) -> bool:
    """Are the layers of the run still neighbours in the head?"""
    ids, wanted = head.layer_ids, tuple(layer.id for layer in run.layers)
    if wanted[0] not in ids:
        return False
    at = ids.index(wanted[0])
    return ids[at : at + len(wanted)] == wanted


def _settle(store: Store, squashed: Sequence[Layer], rewritten: Sequence[tuple[str, str]]) -> bool:
    """Close the versions inside the blocks; let other versions and drafts name the new layers. False: the disk refused a part of it."""
    folders = [f"{store.root}/manifests"]
    try:
        store.step("squash.close_versions")
        for version in _versions(store):
            if _is_inside(version, squashed):
                os.unlink(f"{store.root}/manifests/{version}.json")
        for new, path in rewritten:
            store.step("squash.rename_version")
            os.rename(new, path)
        store.pins.relist()
        store.step("squash.drafts")
        for draft in drafts.all_of(store):
            ids = store.layer_ids_at(draft.base_version)
            if draft.layer_ids != ids:
                drafts.rewrite(store, draft, ids)
                folders.append(drafts.folder_of(store, draft.draft_id))
        if store.damaged:
            return False  # one that was damaged meanwhile may name any layer
        store.step("squash.fsync")
        durable.fsync_dirs(store.root, folders, followed=True)
    except OSError:
        return False
    return True


def _is_inside(version: int, squashed: Sequence[Layer]) -> bool:
    return any(layer.first_version <= version < layer.version for layer in squashed)


def _versions(store: Store) -> list[int]:
    stems = (name.partition(".json")[0] for name in os.listdir(f"{store.root}/manifests"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _write_anew(store: Store, layers: Sequence[Layer], squashed: Sequence[Layer], last: int, scrap: Names) -> list[tuple[str, str]]:
    """Write the manifests of the versions up to `last` that hold a squashed block to staging, by the layers of now. Not synced."""
    lowest = min(layer.version for layer in squashed)
    written: list[tuple[str, str]] = []
    for version in _versions(store):
        if lowest <= version <= last and not _is_inside(version, squashed):
            store.step("squash.rewrite_version")
            new = scrap("manifest")
            durable.write_new(new, _at(layers, version).dump(), sync=False)
            written.append((new, f"{store.root}/manifests/{version}.json"))
    return written


def is_closed(store: Store, version: int) -> bool:
    """Does the version lie inside a squashed block?"""
    return _is_inside(version, [layer for layer in store.layers_of(store.head) if layer.id.startswith("S")])


def finish(store: Store) -> None:
    """At open, and after a disk that refused it: what was left undone between the commit of a squash and its end.

    Not while damaged work is set apart: files would be replaced that somebody may still want to look at.
    """
    if store.damaged:
        store.unsettled = True
        return
    store.unsettled = False
    layers = store.layers_of(store.head)
    squashed = [layer for layer in layers if layer.id.startswith("S")]
    if not squashed:
        return
    if any(_is_inside(version, squashed) for version in _versions(store)) or set(os.listdir(f"{store.root}/layers")) - set(
        store.head.layer_ids
    ):
        with store.scrap.scrap() as scrap:
            rewritten: list[tuple[str, str]] = []
            written = False
            with durable.suppress_errno(*range(1, 134)):  # on a full disk the versions stay as they are until it is tried again
                new = _write_anew(store, layers, squashed, store.head.version - 1, scrap)
                durable.sync_files(store.root, [path for path, _ in new], (), followed=True)
                rewritten, written = new, True
            store.unsettled = not (_settle(store, squashed, rewritten) and written)
    if not store.unsettled:
        store.replaced |= store.withheld
        store.withheld.clear()


def reclaim(store: Store) -> None:
    """Remove the replaced layers that nobody holds any more."""
    with store.lock:
        held: set[str] = set()
        for lease in store.leases.all():
            held.update(lease.layer_ids)
        free = store.replaced - held
        store.replaced -= free
        store.forget_layers(free)
    if free:
        _remove(store, sorted(free))


def _remove(store: Store, layer_ids: Sequence[str]) -> None:
    """Best effort: what stays is named by nothing, and gc or the next open takes it."""
    folder = store.scrap.name("replaced")
    with durable.suppress_errno(*range(1, 134)):
        store.step("squash.remove_layers")
        os.mkdir(folder)
        for layer_id in layer_ids:
            store.step("squash.remove_layer")
            os.rename(f"{store.root}/layers/{layer_id}", f"{folder}/{layer_id}")
            for suffix in gc.SUFFIXES:
                with durable.suppress_errno(errno.ENOENT):
                    os.rename(f"{store.root}/.layer-metadata/{layer_id}{suffix}", f"{folder}/{layer_id}{suffix}")
    with durable.suppress_errno(*range(1, 134)):
        store.scrap.throw_away(folder)
    store.scrap.forget(folder)
