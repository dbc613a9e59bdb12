"""The store: the on-disk names; create, open, lock.

    manifest.json             the head, newest layer first; replaced by one rename
    manifests/<version>.json  every openable version, the head included
    layers/<layer_id>/        one immutable tree in overlayfs upperdir form; nothing of ours inside
    base/B000001-base/        the base, read-only, on a mount of its own
    .layer-metadata/<id>.json owner, agent, base version, sizes, digest; <id>.index the changed paths, <id>.digest the digest alone (L layers)
    sessions/<id>/            the live writes of a session (layerstack.upper)
    workspace.json            which workspace, which base, xattr form
    .storage-writer.lock      flock: one process at a time
    drafts/<id>/              work that was not published (layerstack.drafts)
    pins/<version>.json       a version that stays openable (layerstack.pins); the folder comes with the first
    staging/                  scrap: empty at rest, swept at open

Durability: data is synced before the rename that makes it visible, metadata is renamed in before its layer, the layer before the manifest
that names it. A crash at any step leaves the old head or the new one, and what was not published is a draft after the next open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from layerstack import documents, durable, figures, gc, overlay, recovery, squash, update
from layerstack.blame import Answer as Blame
from layerstack.blame import Cache as BlameCache
from layerstack.blame import blame
from layerstack.capture import seal
from layerstack.chain import Chain
from layerstack.delta import Deltas
from layerstack.draft_book import DraftBook
from layerstack.drafts import Draft
from layerstack.durable import Step, no_step
from layerstack.errors import Invalid, NotFound, StoreBusy, StoreCorrupt, Unsupported
from layerstack.form import FORMS, Form
from layerstack.fsck import Check
from layerstack.ignore import IgnoreRules
from layerstack.index import Index, Layer, Shelf, base_layer
from layerstack.index_file import checksum, load
from layerstack.lease import READER, Lease, Leases
from layerstack.manifest import BASE_ID, FIRST_VERSION, LayerId, Manifest, reference, squashed_id
from layerstack.pins import Pins
from layerstack.projection import Snapshot
from layerstack.publish import Author, Preview, Published, preview
from layerstack.quota import Quota, holders
from layerstack.rebase import CARRIED, open_rebased
from layerstack.resolve import Ignored
from layerstack.rollback import rollback
from layerstack.squash import Squashed
from layerstack.staging import Staging
from layerstack.states import FILE, make_directory
from layerstack.tree import DiskTree, MemoryTree
from layerstack.upper import Identity, Upper

FOLDERS = ("manifests", "layers", "base", ".layer-metadata", "sessions", "drafts", "staging")
MANIFEST, WORKSPACE, LOCK = "manifest.json", "workspace.json", ".storage-writer.lock"
IGNORE_FILE_MAX = 1 << 20
"""A larger .gitignore is no list of rules."""
RULES_KEPT = 16
"""Versions whose .gitignore rules stay parsed."""

PATH_DEPTH_MAX = 2_048
"""Names that fit into PATH_MAX; trees are walked by recursion."""

_SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Store:
    """One stack of layers on disk. One process has it open; its methods may be called from any thread."""

    def __init__(self, root: str, form: Form, workspace: dict[str, Any], lock_fd: int, step: Step) -> None:
        """Not for callers: `open` is."""
        self.root, self.form, self.workspace, self.step = root, form, workspace, step
        self.lock = threading.RLock()
        """Held for bookkeeping: renames into `layers/`, the manifest, the head in memory."""
        self.shelf, self.leases, self.scrap = Shelf(), Leases(), Staging(f"{root}/staging")
        self.recovered: tuple[Draft, ...] = ()
        self.unrecovered: tuple[tuple[str, str], ...] = ()
        """Dead sessions whose work could not be made a draft for want of disk: (session id, why). Tried again at the next open."""
        self.damaged: dict[str, str] = {}
        """What is set apart: file -> what is wrong with it. See `set_apart`."""
        self.unsynced = False
        """Is the last fsync of the head still to be done? Set and read under the lock."""
        self.update_lock = threading.Lock()
        self.squash_lock = threading.Lock()
        self.replaced: set[str] = set()
        """Layers that a squash replaced and that somebody's lease still keeps."""
        self.withheld: set[str] = set()
        """Layers that a squash replaced and that something on disk still names, since the disk refused to let it be replaced: see `unsettled`."""
        self.on_head: Callable[[], object] | None = None
        """Told, in any thread and under the lock, that there is a new head."""
        self.unsettled = False
        """The disk refused to delete or replace what still names them; it is tried again by the next squash or gc, or at the next open."""
        self.blames, self.deltas, self.pins, self.draft_book, self.quota = BlameCache(), Deltas(), Pins(self), DraftBook(self), Quota(self)
        self._lock_fd = lock_fd
        self._layers: dict[str, Layer] = {}
        self._chains: dict[int, tuple[Manifest, Chain]] = {}
        self._rules: dict[int, IgnoreRules] = {}
        self._head: Manifest

    # ---- create, open, close

    @staticmethod
    def create(root: str, *, workspace_root: str, base_root_hash: str, form: Form, step: Step = no_step) -> None:
        """Make an empty store around a base; `root` may be there and hold a mounted `base/` already.

        After a crash it is called again. Durable on return: manifest.json is written last.
        Raises:
            Invalid: a store with another base, workspace or form is there (reason store_exists); the store would lie in its workspace, or the
                workspace in the store (store_in_workspace).
        """
        inner, outer = os.path.realpath(root) + "/", os.path.realpath(workspace_root) + "/"
        if inner.startswith(outer) or outer.startswith(inner):
            details = {"store": root, "workspace_root": workspace_root}
            raise Invalid(f"{root} and its workspace {workspace_root} lie inside one another", reason="store_in_workspace", details=details)
        body = {"workspace_root": workspace_root, "layer_stack_root": root, "base_root_hash": base_root_hash, "form": form.name}
        if os.path.exists(f"{root}/{MANIFEST}"):
            there = documents.read(f"{root}/{WORKSPACE}")
            different = sorted(key for key, value in body.items() if there.get(key) != value and key != "layer_stack_root")
            if different:
                raise Invalid(
                    f"{root}: there is a store with another {', '.join(different)}", reason="store_exists", details={"store": root}
                )
            return
        step("create.mkdir")
        for folder in FOLDERS:
            os.makedirs(f"{root}/{folder}", exist_ok=True)
        with durable.suppress_errno(*_READ_ONLY):
            os.makedirs(f"{root}/base/{BASE_ID}", exist_ok=True)
        documents.write(f"{root}/{WORKSPACE}", body, step=step, name="create.workspace.json")
        data = Manifest(FIRST_VERSION, (reference(BASE_ID),)).dump()
        durable.write_file(f"{root}/manifests/{FIRST_VERSION}.json", data, step=step, name="create.manifests")
        step("create.fsync_root")
        durable.fsync_dir(root)
        durable.fsync_dir(os.path.dirname(root) or "/")
        durable.write_file(f"{root}/{MANIFEST}", data, step=step, name="create.manifest.json")

    @staticmethod
    def open(root: str, *, step: Step = no_step) -> Store:
        """Open the store for this process: take its lock, check every file, sweep what a crash left, make drafts of dead sessions' work.

        Raises:
            StoreBusy: another process has it open.
            StoreCorrupt: a file that the head needs is missing, damaged or of an unknown format; details.file names it. Nothing was changed.
                What only a session, a draft, a pin or an earlier version needs is set apart: see `damaged`.
            Unsupported: the store has the other form of xattrs than this process can use.
        """
        import fcntl

        sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * PATH_DEPTH_MAX))
        if not os.path.exists(f"{root}/{WORKSPACE}"):
            raise StoreCorrupt(f"{root}/{WORKSPACE}: missing: no store is here", details={"file": f"{root}/{WORKSPACE}"})
        fd = os.open(f"{root}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreBusy(f"{root}: another process has this store open", details={"store": root}) from None
            workspace = documents.read(f"{root}/{WORKSPACE}")
            form = FORMS.get(str(workspace.get("form")))
            if form is None:
                raise StoreCorrupt(
                    f"{root}/{WORKSPACE}: form {workspace.get('form')!r} is not known", details={"file": f"{root}/{WORKSPACE}"}
                )
            store = Store(root, form, workspace, fd, step)
            store._check_form()
            store._head = recovery.load_all(store)
            store.pins.load()
            store.recovered, store.unrecovered = recovery.recover(store)
        except BaseException:
            os.close(fd)
            raise
        return store

    def close(self) -> None:
        """Let another process open the store. Live uppers stay on disk: the next open makes drafts of them."""
        with self.lock:
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def check_open(self) -> None:
        """Nothing may be written once another process may have the store: raises Invalid (reason store_closed) after `close`."""
        if self._lock_fd < 0:
            raise Invalid(f"{self.root}: the store was closed", reason="store_closed", details={"store": self.root})

    def _check_form(self) -> None:
        probe = f"{self.scrap.path}/form-{os.urandom(4).hex()}"
        try:
            os.mkdir(probe)
        except OSError:
            return  # a full disk is no reason not to open: reading and discarding still work
        try:
            os.setxattr(probe, self.form.opaque, b"y")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
                return
            raise Unsupported(
                f"{self.root}: this store keeps its marks as {self.form.namespace}* and this process cannot set them ({os.strerror(error.errno or 0)})",
                reason="store_form",
                details={"form": self.form.name},
            ) from error
        finally:
            os.rmdir(probe)

    # ---- versions

    @property
    def head(self) -> Manifest:
        """The newest version, an immutable value; reading it never waits."""
        return self._head

    def manifest(self, version: int | None) -> Manifest:
        """The layers of a version, the head by default. Raises NotFound (reason version_not_found) when it is not openable."""
        head = self._head
        if version is None or version == head.version:
            return head
        path = f"{self.root}/manifests/{version}.json"
        try:
            if version > head.version or (self.unsettled and squash.is_closed(self, version)):
                raise FileNotFoundError
            found = Manifest.load(documents.content(path), source=path)
        except FileNotFoundError:
            raise NotFound(
                f"version {version} cannot be opened (head is {head.version})", reason="version_not_found", details={"version": version}
            ) from None
        return found

    def layers_of(self, manifest: Manifest) -> list[Layer]:
        """Newest first, each read from disk at first use. Raises StoreCorrupt."""
        return [self.shelf_layer(layer_id) for layer_id in manifest.layer_ids]

    def chain(self, manifest: Manifest) -> Chain:
        """The layers of a version; the last few are kept, so that publishes share them."""
        kept = self._chains.get(manifest.version)
        if kept is not None and kept[0] == manifest:
            return kept[1]
        chain = Chain(self.layers_of(manifest), self.shelf, self.form)
        if len(self._chains) >= 32:
            self._chains = {}
        self._chains[manifest.version] = (manifest, chain)
        return chain

    def snapshot(self, version: int | None = None) -> Snapshot:
        """A version to read from, the head by default. Without a lease its layers may be folded away later: see `lease`."""
        manifest = self.manifest(version)
        return Snapshot(manifest, self.chain(manifest))

    @contextlib.contextmanager
    def lease(self, version: int | None = None) -> Generator[Snapshot]:
        """A version whose layers stay on disk for the length of the block."""
        with self.lock:
            manifest = self.manifest(version)
            lease = self.leases.take("export", manifest.version, manifest.layer_ids)
        try:
            yield Snapshot(manifest, self.chain(manifest))
        finally:
            self.release(lease)

    @contextlib.contextmanager
    def reading(self) -> Generator[Snapshot]:
        """The head, whose layers stay on disk for the length of the block. Unlike `lease` it waits for nobody, and no squash minds it."""
        while True:
            head = self._head
            chain = self.chain(head)
            lease = self.leases.take(READER, head.version, chain.ids)
            if self._head is head:
                break
            self.leases.release(lease)  # a squash that came in between may not have seen it
        try:
            yield Snapshot(head, chain)
        finally:
            self.leases.release(lease)

    def ignored(self, version: int) -> Ignored:
        """The ignored route of a base version: by its own .gitignore files."""
        rules = self._rules.get(version)
        if rules is None:
            then: dict[Chain, Chain] = {}  # by the head's chain, of which it keeps one

            def read(path: str) -> bytes | None:
                with self.reading() as snapshot:  # by the layers of now: those of then may be folded away
                    chain = then.get(snapshot.chain)
                    if chain is None:
                        then.clear()
                        chain = then[snapshot.chain] = snapshot.chain.up_to(version)
                    state = chain.find(path)
                    return state.data() if state is not None and state.kind == FILE and state.size <= IGNORE_FILE_MAX else None

            rules = IgnoreRules(read)
            if len(self._rules) >= RULES_KEPT:
                self._rules = {}
            self._rules[version] = rules
        return rules.ignored

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
    ) -> Upper:
        """A place for a session's writes on a version (the head by default), or on a draft: at its own base, or carried over to the head.

        Args:
            session_id: letters, digits, `.`, `_`, `-`; names the folder in `sessions/`.
            origin: who it is for, as a later draft says it: `workspace_session:<id>`.
        Returns:
            An upper whose lease keeps the version's layers until it ends. If the process dies, the next open makes a draft of its work.
        Raises:
            Invalid: the id is malformed or in use. NotFound: no such version or draft. LayerLimit: more lowers than the kernel mounts.
            PublishRejected: the draft cannot be carried over to the head, with every conflict.
        """
        if not _SESSION_ID.fullmatch(session_id) or session_id in (".", ".."):
            raise Invalid(f"session id {session_id!r} is malformed", reason="invalid_session_id", details={"session_id": session_id})
        private: list[Layer] = []
        holder = f"session {session_id}"
        self.check_open()
        rebased = draft_id is not None and draft_base == "head"
        identity = Identity(session_id, origin, agent, request_id, draft_id, os.urandom(8).hex(), rebased)
        if rebased:
            return open_rebased(self, identity, holder)
        if draft_id is not None:
            manifest, layer, lease = self.draft_book.stand_on(draft_id, holder)
            private.append(layer)
        else:
            manifest, lease = self.take_lease(holder, version)
        try:
            return self.make_upper(identity, manifest, lease, private)
        except BaseException:
            self.release(lease)
            self.draft_book.leave(draft_id)
            raise

    def take_lease(self, holder: str, version: int | None = None) -> tuple[Manifest, Lease]:
        """A version, the head by default, and a lease on it. Raises NotFound."""
        with self.lock:
            manifest = self.manifest(version)
            return manifest, self.leases.take(holder, manifest.version, manifest.layer_ids)

    def make_upper(
        self, identity: Identity, manifest: Manifest, lease: Lease, private: list[Layer], *, carried: str | None = None
    ) -> Upper:
        """A session's folder and its upper, which the lease goes to.

        Args:
            private: sealed work to stand on, the top first.
            carried: where the tree of the only one of these lies in staging: it becomes the session's own.
        """
        overlay.check_count(len(manifest.layers) + len(private))
        layers = self.layers_of(manifest)
        self._make_session(identity, manifest, Chain(layers, self.shelf, self.form, private), carried)
        if carried is not None:
            private = [private[0].at(f"{self.root}/sessions/{identity.session_id}/private/{CARRIED}")]
        return Upper(self, identity, manifest, Chain(layers, self.shelf, self.form, private), lease)

    def _make_session(self, identity: Identity, manifest: Manifest, chain: Chain, carried: str | None) -> None:
        """Complete in staging, then one rename: a folder in `sessions/` is whole."""
        folder = self.scrap.name(f"session-{identity.session_id}")
        try:
            self.step("session.mkdir")
            os.mkdir(folder, 0o700)
            root = chain.find("")
            assert root is not None
            make_directory(f"{folder}/upper", root)
            os.mkdir(f"{folder}/work")
            if carried is not None:
                os.mkdir(f"{folder}/private")
                os.rename(carried, f"{folder}/private/{CARRIED}")
            body = {
                **identity._asdict(),
                "base_version": manifest.version,
                "layers": list(manifest.layer_ids),
                "created_unix_ms": time.time_ns() // 1_000_000,
            }
            self.step("session.write")
            durable.write_before(f"{folder}/session.json", documents.dump(body), root=self.root)
            self.step("session.rename")
            try:
                durable.rename_new(folder, f"{self.root}/sessions/{identity.session_id}")
            except FileExistsError:
                raise Invalid(
                    f"session {identity.session_id} exists", reason="session_exists", details={"session_id": identity.session_id}
                ) from None
        finally:
            self.scrap.discard(folder)

    def end_upper(self, session_id: str, lease: Lease, draft_id: str | None) -> None:
        """Remove a session's folder and give its lease back; a folder that cannot be moved away is looked at by the next open."""
        with durable.suppress_errno(*range(1, 134)):
            self.step("session.end")
            self.scrap.throw_away(f"{self.root}/sessions/{session_id}")
        self.release(lease)
        self.draft_book.leave(draft_id)

    # ---- drafts

    def drafts(self) -> list[Draft]:
        """Every draft, oldest first."""
        return self.draft_book.all()

    def draft(self, draft_id: str) -> Draft:
        """One draft. Raises NotFound (reason draft_not_found)."""
        return self.draft_book.get(draft_id)

    def discard_draft(self, draft_id: str) -> int:
        """Delete a draft; returns its bytes. Durable on return: no power cut brings it back.

        Raises:
            NotFound: there is none (draft_not_found).
            Busy: a session, a preview or a comparison stands on it (draft_in_use).
            OSError: it could not be moved away, and is there as it was; or it is gone, and only the sync of that failed.
        """
        return self.draft_book.discard(draft_id)

    def preview_draft(self, draft_id: str) -> Preview:
        """What publishing the draft as it is would do against the head of now. Raises NotFound."""
        manifest, layer, lease = self.draft_book.stand_on(draft_id, READER)
        try:
            base = Chain(self.layers_of(manifest), self.shelf, self.form)
            assert isinstance(layer.tree, DiskTree)
            tree = MemoryTree.load(layer.tree)
            seal(tree, base)
            return preview(self, tree, base=base, version=manifest.version, dropped=(), leaving=holders(None, draft_id))
        finally:
            self.release(lease)
            self.draft_book.leave(draft_id)

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
    ) -> Published:
        """Read a file of the head, transform it, publish the result as one layer; nothing comes in between.

        Args:
            change: bytes of the file (None: there is none) -> new bytes; may be called again when the head moved on. What it raises passes.
            limit: how many bytes of the file `change` gets at most, so that a huge file costs no memory.
        Returns:
            no_op when the bytes are the same. Mode, owner and xattrs of an existing file are kept; missing parents are made.
        Raises:
            NotAFile: the path is a directory, a symlink or special, or a parent is no directory; details.kind says which.
        """
        return update.update_file(self, path, change, owner=owner, request_id=request_id, agent=agent, limit=limit)

    # ---- history

    def blame(self, path: str) -> Blame:
        """Who wrote each line of a path of the head, or of its last text when it is gone; see `layerstack.blame`."""
        return blame(self, path)

    def rollback(self, version: int, *, owner: str, request_id: str, agent: str | None = None) -> Published:
        """Publish the tree of an earlier version on top of the head, as one layer; every version in between stays.

        Returns:
            no_op when the head shows that tree already.
        Raises:
            NotFound: the version cannot be opened (version_not_found). LayerLimit.
        Cost: O(paths that differ): hard links, and copies of files of the base.
        """
        return rollback(self, version, Author(owner, request_id, agent, rollback_to=version))

    # ---- squash

    def squash(self) -> Squashed:
        """Fold runs of layers that no lease keeps apart into one layer each; no tree of any version changes.

        Returns:
            The head afterwards, one version on, and the blocks; the head as it was and no blocks when there was nothing to fold.
        Raises:
            SquashInFlight: one is under way; this one did nothing.
            CommitUnsynced: it is done, and a power cut may still undo it. OSError: the disk refused; the head is as before.
        """
        return squash.squash(self)

    # ---- figures

    def layer_stats(self) -> dict[str, Any]:
        """Sizes, leases and counts, for observability; reads no layer."""
        return figures.of(self)

    def gc(self) -> None:
        """Delete layers that nothing names and scrap of failed operations. Live sessions, drafts and openable versions keep all they need."""
        if self.unsettled:
            with self.lock:
                squash.finish(self)
        if self.replaced:
            squash.reclaim(self)
        gc.collect(self)

    @contextlib.contextmanager
    def checking(self, *, base: bool = False) -> Generator[Check]:
        """Is everything what was written? For the length of the block no layer is removed; publishes and squashes go on.

        Args:
            base: read the base too.
        """
        with self.lock:
            there = {*self._head.layer_ids, *self._layers}  # others on disk are on their way out, or in
            lease = self.leases.take("fsck", self._head.version, tuple(sorted(there)))
        try:
            yield Check(self.root, base=base, store=self, layers=lease.layer_ids)
        finally:
            self.release(lease)

    # ---- for the modules that write

    def set_apart(self, error: StoreCorrupt) -> None:
        """A document that one session, draft, pin or earlier version has for itself is damaged: the others go on without it.

        It stays where it is, with the work beside it, and `damaged` lists it. What it stood on nobody can say any more, so that as long as one
        is listed no layer is removed and nothing is folded.
        """
        file = str(error.details["file"])
        self.damaged[file] = error.message.removeprefix(f"{file}: ")

    def new_layer(self, layer_id: LayerId, version: int, index: Index, about: dict[str, Any]) -> Layer:
        """A layer that is about to be renamed into `layers/`."""
        return Layer(layer_id, DiskTree(f"{self.root}/layers/{layer_id}", self.form), version, index, about)

    def shelf_layer(self, layer_id: str) -> Layer:
        """The layer of that id, read from disk at first use. Raises StoreCorrupt, naming what is missing or damaged."""
        found = self._layers.get(layer_id)
        if found is not None:
            return found
        path = f"{self.root}/{reference(layer_id).path}"
        if not os.path.isdir(path):
            raise StoreCorrupt(f"{path}: missing", details={"file": path, "layer_id": layer_id})
        tree = DiskTree(path, self.form, linkable=layer_id != BASE_ID)
        if layer_id == BASE_ID:
            layer = base_layer(tree)
        else:
            stem = f"{self.root}/.layer-metadata/{layer_id}"
            about = documents.read(f"{stem}.json")
            squashed = layer_id.startswith("S")
            try:
                data = documents.content(f"{stem}.index")
                index = load(data, source=f"{stem}.index")
                if squashed:
                    digest = about["digest"].encode() + b"\n"
                else:
                    digest = documents.content(f"{stem}.digest")
            except FileNotFoundError as error:
                raise StoreCorrupt(f"{error.filename}: missing", details={"file": error.filename, "layer_id": layer_id}) from None
            mark = squashed_id(0, about["digest"], about["replaced"])[-8:] if squashed else about["digest"][:8]
            if digest != about["digest"].encode() + b"\n" or layer_id[-8:] != mark:
                wrong = f"{stem}.json" if squashed else f"{stem}.digest"
                raise StoreCorrupt(f"{wrong}: is not the layer's", details={"file": wrong, "layer_id": layer_id})
            if about.get("index_sha256", checksum(data)) != checksum(data):  # layers of before this key do not have it
                wrong = f"{stem}.index"
                raise StoreCorrupt(f"{wrong}: is the index of another layer", details={"file": wrong, "layer_id": layer_id})
            version = about.get("version") or int(layer_id[1:].partition("-")[0])
            layer = Layer(LayerId(layer_id), tree, version, index, about)
        with self.lock:
            there = self._layers.get(layer_id)
            if there is not None:
                return there
            if layer.index is not None:
                self.shelf.add(layer)
            self._layers[layer_id] = layer
        return layer

    def loaded_layers(self) -> tuple[Layer, ...]:
        """Every layer that is in memory: those of the head, and those that a draft, a session or a reader asked for."""
        return tuple(self._layers.values())

    def forget_layers(self, layer_ids: Iterable[str]) -> None:
        """Take layers that nothing names out of memory."""
        with self.lock:
            known = [self._layers.pop(layer_id) for layer_id in layer_ids if layer_id in self._layers]
            self.shelf.drop(*(layer for layer in known if layer.index is not None))

    def become(self, manifest: Manifest, layers: Sequence[Layer]) -> None:
        """The head in memory follows the one on disk; the caller holds the lock."""
        for layer in layers:
            self._layers[layer.id] = layer
        self._head = manifest
        if self.on_head is not None:
            self.on_head()

    def settle_head(self) -> None:
        """On return the head that the caller saw survives a power cut: its commit is over, and a last fsync that failed is done again."""
        with self.lock:
            if self.unsynced:
                durable.fsync_dir(self.root)
                self.unsynced = False

    def layer_ids_at(self, version: int) -> tuple[LayerId, ...]:
        """The layers of the head that make the tree of an earlier version: those that are not newer. Not for one inside a squashed block."""
        return tuple(layer.id for layer in self.chain(self._head).up_to(version).published)

    def release(self, lease: Lease) -> None:
        """Give a lease back; replaced layers that only it kept are removed."""
        self.leases.release(lease)
        if self.replaced:
            squash.reclaim(self)


_READ_ONLY = (errno.EROFS, errno.EEXIST)
"""The base is mounted read-only already, or is there."""
