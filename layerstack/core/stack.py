"""The open stack: head, layers, leases, limits. Free functions take it; `Store` adds the calls."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Sequence
from types import TracebackType

from layerstack.core.gc_roots import DraftTable, PinTable
from layerstack.core.ignore_cache import IgnoreCache
from layerstack.core.publish_rules import DEFAULT, PublishRules
from layerstack.core.quota import Quota
from layerstack.errors import Invalid, NotFound, StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.kernel.fsync import Step
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.layers import version_files
from layerstack.layers.cache import Layers
from layerstack.layers.chain import Chain
from layerstack.layers.delta import Deltas
from layerstack.layers.index import Layer
from layerstack.layers.snapshot import Snapshot
from layerstack.model.lease import READER, Lease, Leases
from layerstack.model.manifest import LayerId, Manifest
from layerstack.text.build_roles import INPUTS, patterns
from layerstack.tree.staging import Staging

CHAINS_KEPT = 32
"""Versions whose chains are remembered and shared."""


class Stack:
    """The versions of one store. Readers never wait for a publish: the head is an immutable value, which is
    replaced under the lock.
    """

    def __init__(self, root: str, xattr_namespace: XattrNamespace, step: Step, lock_fd: int) -> None:
        """Begin without a head; `become` sets it."""
        self.root, self.xattr_namespace, self.step = root, xattr_namespace, step
        self.lock = threading.RLock()
        """Held for bookkeeping: renames into `layers/`, the manifest, the head in memory."""
        self.layers, self.leases = Layers(root, xattr_namespace, self.lock), Leases()
        self.squash_lock = threading.Lock()
        """Held by the one squash that runs."""
        self.routes = IgnoreCache(self.reading, self.layers.path_index.untouched)
        self.staging = Staging(f"{root}/staging")
        self.pins, self.draft_table, self.deltas = PinTable(), DraftTable(), Deltas()
        self.rules: PublishRules = DEFAULT
        self.quota = Quota(root, self.layers, self.leases, lambda: self._head)
        self.inputs = patterns(INPUTS)
        """Patterns of ignored files that are inputs of builds nevertheless; a new value applies to later
        publications.
        """
        self.damaged: dict[str, str] = {}
        """Quarantined documents: file -> the damage. See `set_apart`."""
        self.lost: list[int] = []
        """Versions whose files lost their bytes in a power cut; empty once they are written again."""
        self.unsynced = False
        """True while the last fsync of the head is still to be done. Set and read under the lock."""
        self.replaced: set[str] = set()
        """Layers that a squash replaced and that a lease still keeps."""
        self.still_named: set[str] = set()
        """Layers that a squash replaced and that a file on disk still names, since the disk refused to
        replace that file: see `cleanup_pending`.
        """
        self.not_squashed: set[str] = set()
        """Layers whose metadata a squash of this process found damaged and reported; later squashes leave
        them out.
        """
        self.cleanup_pending = False
        """True when the disk refused to delete or replace the files that still name replaced layers; the next
        squash, gc or open tries again.
        """
        self.on_new_head: Callable[[], object] | None = None
        """Called after each new head, in any thread and under the lock."""
        self._chains: dict[int, tuple[Manifest, Chain]] = {}
        self._head: Manifest
        self._lock_fd = lock_fd

    # ---- the lock of the store

    @property
    def lock_fd(self) -> int:
        """The descriptor that holds the store; a child process that inherits it holds the store too. -1 after
        `close`.
        """
        return self._lock_fd

    def check_open(self) -> None:
        """Raise Invalid (reason store_closed) after `close`: another process may have opened the store
        since.
        """
        if self._lock_fd < 0:
            raise Invalid(
                f"{self.root}: the store was closed", reason="store_closed", details={"store": self.root}
            )

    def close(self) -> None:
        """Let another process open the store. Live uppers stay on disk: the next open makes drafts of
        them.
        """
        with self.lock:
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    # ---- versions

    @property
    def head(self) -> Manifest:
        """The newest version, an immutable value; reading it never waits."""
        return self._head

    def manifest(self, version: int | None) -> Manifest:
        """The layers of a version, the head by default. Raises NotFound (reason version_not_found) when it is
        not openable.
        """
        head = self._head
        if version is None or version == head.version:
            return head
        path = f"{self.root}/manifests/{version}.json"
        try:
            at = None if version > head.version else version_files.place(self.chain(head).published, version)
            if at is None:
                raise FileNotFoundError
            data = records.content(path)
            if not version_files.lost(data) and version_files.load(data, source=path).version != version:
                raise StoreCorrupt(f"{path}: belongs to another version", details={"file": path})
            return Manifest(version, head.layers[at:])
        except FileNotFoundError:
            text = f"version {version} cannot be opened (head is {head.version})"
            raise NotFound(text, reason="version_not_found", details={"version": version}) from None

    def chain(self, manifest: Manifest) -> Chain:
        """The layers of a version; the last few are kept, so that publishes share them."""
        kept = self._chains.get(manifest.version)
        if kept is not None and kept[0] == manifest:
            return kept[1]
        chain = self.layers.chain(manifest)
        self._keep_chain(manifest, chain)
        return chain

    def _keep_chain(self, manifest: Manifest, chain: Chain) -> None:
        if len(self._chains) >= CHAINS_KEPT:
            self._chains = {}
        self._chains[manifest.version] = (manifest, chain)

    def snapshot(self, version: int | None = None) -> Snapshot:
        """A version to read from, the head by default. Without a lease its layers may be removed after a
        squash: see `lease`.
        """
        manifest = self.manifest(version)
        return Snapshot(manifest, self.chain(manifest))

    def layer_ids_at(self, version: int) -> tuple[LayerId, ...]:
        """The layers of the head that make the tree of an earlier version: those that are not newer. The
        version must not be inside a squashed block.
        """
        return tuple(layer.id for layer in self.chain(self._head).up_to(version).published)

    # ---- leases

    @contextlib.contextmanager
    def lease(self, version: int | None = None) -> Generator[Snapshot]:
        """A version whose layers stay on disk during the block."""
        manifest, lease = self.acquire_lease("export", version)
        try:
            yield Snapshot(manifest, self.chain(manifest))
        finally:
            self.release(lease)

    def reading(self) -> contextlib.AbstractContextManager[Snapshot]:
        """The head, whose layers stay on disk during the block. Unlike `lease` it takes no lock, and it does
        not keep a squash from closing the version.
        """
        return _Reading(self)

    def acquire_lease(self, lease_name: str, version: int | None = None) -> tuple[Manifest, Lease]:
        """A version, the head by default, and a lease on it. Raises NotFound."""
        with self.lock:
            manifest = self.manifest(version)
            ids = self.chain(manifest).ids if manifest is self._head else manifest.layer_ids
            return manifest, self.leases.acquire(lease_name, manifest.version, ids)

    def release(self, lease: Lease) -> None:
        """Release a lease; replaced layers that only this lease kept are removed."""
        self.leases.release(lease)
        if self.replaced:
            self.reclaim()

    def reclaim(self) -> None:
        """Remove the replaced layers that no lease keeps."""
        with self.lock:
            held: set[str] = set()
            for lease in self.leases.all():
                held.update(lease.layer_ids)
            free = self.replaced - held
            self.replaced -= free
            self.layers.forget(free)
        if free:
            self._remove_layers(sorted(free))

    def _remove_layers(self, layer_ids: Sequence[str]) -> None:
        """Remove layers, best effort, each before its metadata. A layer that cannot be removed is named by no
        document, so gc or the next open removes it.
        """
        folder = self.staging.name("replaced")
        metadata: list[str] = []
        with fsync.best_effort():
            self.step("squash.remove_layers")
            os.mkdir(folder)
            for layer_id in layer_ids:
                self.step("squash.remove_layer")
                os.rename(f"{self.root}/layers/{layer_id}", f"{folder}/{layer_id}")
                suffixes = (".json", ".index", ".blame" if layer_id.startswith("S") else ".digest")
                metadata.extend(f"{self.root}/.layer-metadata/{layer_id}{suffix}" for suffix in suffixes)
        with fsync.best_effort():
            self.staging.discard_directory(folder, metadata)
        self.staging.forget(folder)

    # ---- a new head

    def become(self, manifest: Manifest, layers: Sequence[Layer] = ()) -> None:
        """Make the manifest, which is the head on disk, the head in memory; the caller holds the lock."""
        self.layers.put(layers)
        if len(layers) == 1 and manifest.layers[1:] == self._head.layers:
            before = self._chains.get(self._head.version)
            if before is not None and before[0] == self._head:
                self._keep_chain(manifest, before[1].above(layers[0]))
        self._head = manifest
        if self.on_new_head is not None:
            self.on_new_head()

    def sync_head(self) -> None:
        """Make the head that the caller saw survive a power cut: wait for its commit, and repeat its last
        fsync if that failed.
        """
        with self.lock:
            if self.unsynced:
                fsync.fsync_dir(self.root)
                self.unsynced = False

    # ---- damage

    def set_apart(self, error: StoreCorrupt) -> None:
        """Quarantine a damaged document that a single session, draft, pin or earlier version needs; all
        others stay usable.

        The document stays in its place, with the work beside it, and `damaged` lists it. The layers that it
        names are unknown, so no layer is removed and nothing is squashed while one is listed.
        """
        file = str(error.details["file"])
        self.damaged[file] = error.message.removeprefix(f"{file}: ")


class _Reading:
    """Block of `Stack.reading`: a class, since a publish reads `.gitignore` files one by one."""

    __slots__ = ("_lease", "_stack")

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def __enter__(self) -> Snapshot:
        stack = self._stack
        while True:
            head = stack.head
            chain = stack.chain(head)
            lease = stack.leases.acquire(READER, head.version, chain.ids)
            if stack.head is head:
                break
            stack.leases.release(lease)  # a squash that came in between may not have seen it
        self._lease = lease
        return Snapshot(head, chain)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.leases.release(self._lease)
