"""Is everything in a store what was written there? Every layer against its digest, every document against its checksum and against each other.

    for damage in check("/var/lib/stack"):    # a store that nobody has open
        print(damage.file, damage.what, damage.found_by)

Nothing is repaired and nothing is written, not even the lock file. A store that is open is looked at by the process that has it:
`Store.checking`. What the next open puts in order by itself, and what could not be looked at, is no damage: those are `Check.notes`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from layerstack import documents, fsck_base, fsck_tree
from layerstack.errors import StoreBusy, StoreCorrupt
from layerstack.form import FORMS, Form
from layerstack.manifest import BASE_ID, Manifest, reference, squashed_id

if TYPE_CHECKING:
    from layerstack.store import Store

PER_TREE = 100
"""So many lines about one tree; the last one counts the rest."""
NAMES = {"manifests", "layers", "base", ".layer-metadata", "sessions", "drafts", "pins", "staging"}
FILES = {"manifest.json", "workspace.json", ".storage-writer.lock", "command-counter.json"}
"""The last one is the agent's: which numbers its commands have had."""
ORDER = ("store", "base", "pins", "layer", "draft", "session", "leases", "staging")
"""The parts of a check, in this order: each is one word, those of layers, drafts and sessions with the name after a blank."""


class Damage(NamedTuple):
    """One thing that is not as it was written."""

    file: str
    """Relative to the store."""
    what: str
    """What is wrong with it: follows the name of the file in a sentence."""
    found_by: str
    """`checksum`, `digest`, …: how it was found."""


class Note(NamedTuple):
    """What is no damage, and should be known."""

    kind: str
    """`left_over`: the next open puts it in order. `not_checked`: and `what` says why. `unknown`: nothing of this version made it."""
    file: str
    what: str


class Counts(NamedTuple):
    """How much was looked at."""

    layers: int = 0
    entries: int = 0
    bytes: int = 0


class Check:
    """One look at a store. Not for callers: `check`, `offline` and `Store.checking` make it.

    Damage comes as it is found; `notes` and `counts` grow meanwhile.
    """

    def __init__(self, root: str, *, base: bool = False, base_dir: str | None = None, store: Store | None = None) -> None:
        """
        Args:
            base: read the base too, and compare it with the hash that the store was made with.
            base_dir: where the base lies, if not in the store: the folder with B000001-base in it.
            store: it is open in this process. What looks wrong is looked at again under its lock, so that no change under way is called damage.
        """
        self.root, self.base, self.base_dir, self._store = root, base, base_dir or f"{root}/base", store
        self.notes: list[Note] = []
        self.counts = Counts()
        self._body: dict[str, Any] = {}
        self._head: Manifest | None = None
        with contextlib.suppress(StoreCorrupt, OSError):
            self._body = documents.read(f"{root}/workspace.json")
        with contextlib.suppress(StoreCorrupt, OSError):
            self._head = self._manifest("manifest.json")
        self.form: Form | None = FORMS.get(str(self._body.get("form")))
        self._abouts: dict[str, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[Damage]:
        for part in self.parts():
            for found in self.of(part):
                if found is not None:
                    yield found

    def parts(self, after: str | None = None) -> list[str]:
        """What there is to look at, or what is left after a part that was looked at."""
        found = ["store", "base", "pins", *(f"layer {name}" for name in self._layers())]
        found += [f"draft {name}" for name in self._names("drafts")] + [f"session {name}" for name in self._names("sessions")]
        found += (["leases"] if self._store is not None else []) + ["staging"]
        found.sort(key=_place)
        return found if after is None else [part for part in found if _place(part) > _place(after)]

    def of(self, part: str) -> Iterator[Damage | None]:
        """The damage in one part; None now and then, so that whoever iterates can look at the clock."""
        what, _, name = part.partition(" ")
        if what == "layer":
            yield from self._layer(name)
        elif what == "draft":
            yield from self._draft(name)
        elif what == "base":
            yield from self._base()
        else:
            looks: dict[str, Callable[[], Iterator[Damage]]] = {
                "store": self._top,
                "pins": self._pins,
                "session": lambda: self._session(name),
                "leases": self._leases,
                "staging": self._staging,
            }
            yield from self._settled(looks[what])

    # ---- how damage is told

    def _settled(self, look: Callable[[], Iterator[Damage]]) -> list[Damage]:
        """What is found; in an open store, what is still found while nobody changes anything."""
        known = len(self.notes)
        found = list(look())
        if found and self._store is not None:
            del self.notes[known:]
            with self._store.lock, contextlib.suppress(StoreCorrupt, OSError):
                self._head = self._manifest("manifest.json")
                found = list(look())
        return found

    def _corrupt(self, error: StoreCorrupt | OSError, name: str) -> Iterator[Damage]:
        """What a reader raised about the file `name`."""
        if isinstance(error, StoreCorrupt):
            file = str(error.details.get("file", ""))
            yield Damage(os.path.relpath(file, self.root) if file else name, error.message.removeprefix(f"{file}: "), "checksum")
        elif error.errno in (errno.EACCES, errno.EPERM):
            self._note("not_checked", name, "this user may not read it")
        else:
            yield Damage(name, f"cannot be read: {error.strerror}", "reading it")

    def _note(self, kind: str, file: str, what: str) -> None:
        self.notes.append(Note(kind, file, what))

    def _names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(f"{self.root}/{folder}"))
        except OSError:
            return []

    def _layers(self) -> list[str]:
        return sorted({*self._names("layers"), *(self._head.layer_ids if self._head is not None else ())} - {BASE_ID})

    def _manifest(self, name: str) -> Manifest:
        path = f"{self.root}/{name}"
        try:
            with open(path, "rb") as file:
                return Manifest.load(file.read(), source=path)
        except FileNotFoundError:
            raise StoreCorrupt(f"{path}: missing", details={"file": path}) from None

    def _document(self, name: str) -> dict[str, Any]:
        return documents.read(f"{self.root}/{name}")

    # ---- the store's own files

    def _top(self) -> Iterator[Damage]:
        try:
            body = self._document("workspace.json")
            if str(body.get("form")) not in FORMS:
                yield Damage("workspace.json", f"form {body.get('form')!r} is not known", "its content")
        except (StoreCorrupt, OSError) as error:
            yield from self._corrupt(error, "workspace.json")
        head: Manifest | None = None
        try:
            head = self._manifest("manifest.json")
        except (StoreCorrupt, OSError) as error:
            yield from self._corrupt(error, "manifest.json")
        yield from self._versions(head)
        yield from self._metadata()
        for name in self._names("."):
            if name.startswith(".") and name.endswith(".tmp"):
                self._note("left_over", name, "half-written; the next open removes it")
            elif name not in NAMES | FILES:
                self._note("unknown", name, "nothing of this version made it")
        for name in sorted(NAMES - {"pins"}):
            if not os.path.isdir(f"{self.root}/{name}"):
                yield Damage(name, "is missing", "its name")

    def _versions(self, head: Manifest | None) -> Iterator[Damage]:
        there, told = {BASE_ID, *self._names("layers")}, set[str]()
        blocks = [about for about in map(self._about, head.layer_ids if head is not None else ()) if about and about.get("first_version")]
        seen_head = head is None
        for name in self._names("manifests"):
            file, (stem, _, suffix) = f"manifests/{name}", name.partition(".")
            if not stem.isdecimal() or suffix != "json":
                self._note("left_over" if name.endswith(".tmp") else "unknown", file, "no manifest of a version")
                continue
            if head is not None and int(stem) > head.version:
                self._note("left_over", file, "of a version that never became the head; the next open removes it")
                continue
            try:
                found = self._manifest(file)
            except (StoreCorrupt, OSError) as error:
                seen_head = seen_head or (head is not None and int(stem) == head.version)
                yield from self._corrupt(error, file)
                continue
            if found.version != int(stem):
                yield Damage(file, f"is of version {found.version}", "its name")
            if head is not None and found.version == head.version:
                seen_head = True
                if found != head:
                    yield Damage(file, "names other layers than manifest.json, of the same version", "comparing the two")
            if any(int(about["first_version"]) <= int(stem) < int(about["version"]) for about in blocks):
                self._note("left_over", file, "of a version inside a squashed block; the next open removes it")
                continue
            for layer_id in found.layer_ids:
                if layer_id not in there and layer_id not in told:
                    told.add(layer_id)
                    yield Damage(reference(layer_id).path, f"is missing; {file} names it", "the manifest")
        if not seen_head and head is not None:
            yield Damage(f"manifests/{head.version}.json", "is missing, the head is that version", "the manifest")
        if head is not None:
            for layer_id in head.layer_ids:
                if layer_id not in there and layer_id not in told:
                    yield Damage(reference(layer_id).path, "is missing; manifest.json names it", "the manifest")

    def _metadata(self) -> Iterator[Damage]:
        there = set(self._names("layers"))
        for name in self._names(".layer-metadata"):
            stem, suffix = os.path.splitext(name)
            if suffix not in (".json", ".index", ".digest", ".blame"):
                self._note("unknown", f".layer-metadata/{name}", "nothing of this version made it")
            elif stem not in there and (self._head is None or stem not in self._head.layer_ids):
                self._note("left_over", f".layer-metadata/{name}", "of a layer that is not there; the next open removes it")
        yield from ()

    def _pins(self) -> Iterator[Damage]:
        for name in self._names("pins"):
            file, (stem, _, suffix) = f"pins/{name}", name.partition(".")
            if not stem.isdecimal() or suffix != "json":
                self._note("left_over" if name.endswith(".tmp") else "unknown", file, "no pin")
                continue
            try:
                body = self._document(file)
            except (StoreCorrupt, OSError) as error:
                yield from self._corrupt(error, file)
                continue
            if body.get("version") != int(stem):
                yield Damage(file, f"pins version {body.get('version')}", "its name")
            elif not os.path.exists(f"{self.root}/manifests/{stem}.json"):
                yield Damage(file, f"pins version {stem}, which is gone", "the manifests")

    # ---- layers

    def _about(self, layer_id: str) -> dict[str, Any] | None:
        """A layer's metadata, None for the base and where it cannot be read."""
        if layer_id not in self._abouts:
            with contextlib.suppress(StoreCorrupt, OSError):
                if layer_id != BASE_ID:
                    self._abouts[layer_id] = self._document(f".layer-metadata/{layer_id}.json")
        return self._abouts.get(layer_id)

    def _layer(self, layer_id: str) -> Iterator[Damage | None]:
        folder, stem = f"layers/{layer_id}", f".layer-metadata/{layer_id}"
        if not os.path.isdir(f"{self.root}/{folder}"):
            return  # whoever names it says so
        if not self._is_named(layer_id):
            self._note("left_over", folder, "no manifest and no draft names it; the next open gives it back or removes it")
        about: dict[str, Any] | None = None
        index: str | None = None
        try:
            about = self._document(f"{stem}.json")
            yield from self._identity(layer_id, about, stem)
        except (StoreCorrupt, OSError) as error:
            yield from self._corrupt(error, f"{stem}.json")
        try:
            checksum = fsck_tree.check_index(f"{self.root}/{stem}.index")
            if about is not None and about.get("index_sha256", checksum) != checksum:
                yield Damage(f"{stem}.index", "is whole, and the index of another layer", "its checksum in the layer's metadata")
            else:
                index = f"{self.root}/{stem}.index"
        except FileNotFoundError:
            yield Damage(f"{stem}.index", "missing", "its name")
        except (StoreCorrupt, OSError) as error:
            yield from self._corrupt(error, f"{stem}.index")
        digest = None if about is None else str(about.get("digest"))
        yield from self._tree(folder, index, digest)
        self.counts = self.counts._replace(layers=self.counts.layers + 1)

    def _identity(self, layer_id: str, about: dict[str, Any], stem: str) -> Iterator[Damage]:
        """Do the small files belong to that layer?"""
        try:
            squashed = layer_id.startswith("S")
            mark = squashed_id(0, about["digest"], about["replaced"])[-8:] if squashed else str(about["digest"])[:8]
        except (KeyError, TypeError) as error:
            yield Damage(f"{stem}.json", f"lacks {error}", "its content")
            return
        if layer_id[-8:] != mark:
            yield Damage(f"{stem}.json", "is the metadata of another layer", "the digest in the layer's name")
        suffix = ".blame" if squashed else ".digest"
        try:
            with open(f"{self.root}/{stem}{suffix}", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            yield Damage(stem + suffix, "missing", "its name")
            return
        if not squashed:
            if data != str(about["digest"]).encode() + b"\n":
                yield Damage(f"{stem}.digest", "is not the layer's digest", "the layer's metadata")
            return
        body = documents.parse(data, f"{self.root}/{stem}.blame")
        checksum = hashlib.sha256(data).hexdigest()
        if about.get("blame_sha256", checksum) != checksum or not isinstance(body.get("paths"), dict):
            yield Damage(f"{stem}.blame", "is whole, and of another layer", "its checksum in the layer's metadata")

    def _is_named(self, layer_id: str) -> bool:
        if self._head is None or layer_id in self._head.layer_ids or self._store is not None:
            return True
        for name in self._names("manifests"):
            with contextlib.suppress(StoreCorrupt, OSError):
                if layer_id in self._manifest(f"manifests/{name}").layer_ids:
                    return True
        for name in self._names("drafts"):
            with contextlib.suppress(StoreCorrupt, OSError):
                if layer_id in self._document(f"drafts/{name}/draft.json").get("layer_ids", ()):
                    return True
        return False

    def _tree(self, folder: str, index: str | None, digest: str | None, size: int | None = None) -> Iterator[Damage | None]:
        """A tree against its index and its digest, or against what is known of it."""
        if self.form is None:
            self._note("not_checked", folder, "the form of the marks is not known: workspace.json cannot be read")
            return
        if self.form.name == "trusted" and os.geteuid() != 0:
            self._note("not_checked", folder, f"only root sees {self.form.namespace}*")
            return
        found: list[Damage] = []
        said = 0

        def say(path: str, what: str, how: str) -> None:
            nonlocal said
            said += 1
            if said <= PER_TREE:
                found.append(Damage(f"{folder}/{path}" if path else folder, what, how))

        def blind(path: str) -> None:
            self._note("not_checked", f"{folder}/{path}", "this user may not read it")

        rows = fsck_tree.rows(index) if index is not None else None
        looking = fsck_tree.compare(f"{self.root}/{folder}", self.form, rows, say, blind)
        seen: fsck_tree.Seen | None = None
        while True:
            try:
                next(looking)
            except StopIteration as end:
                seen = end.value
                break
            except StoreCorrupt as error:
                yield from self._corrupt(error, index or folder)
                break
            yield from found
            found.clear()
            yield None
        yield from found
        if said > PER_TREE:
            yield Damage(folder, f"has {said - PER_TREE} more that are not listed here", "the index")
        if seen is None:
            return
        self.counts = self.counts._replace(entries=self.counts.entries + seen.entries, bytes=self.counts.bytes + seen.bytes)
        if digest is not None and seen.digest != digest:
            yield Damage(folder, f"is not what was written: its digest is {seen.digest[:16]}…, recorded is {digest[:16]}…", "digest")
        if digest is None and size is not None and seen.bytes != size:
            yield Damage(folder, f"holds {seen.bytes} bytes, recorded are {size}", "its size")

    def _base(self) -> Iterator[Damage | None]:
        path = f"{self.base_dir}/{BASE_ID}"
        if not os.path.isdir(path):
            if self._store is None and not self._names("base"):
                self._note("not_checked", f"base/{BASE_ID}", "it is mounted there only while the sandbox runs")
            else:
                yield Damage(f"base/{BASE_ID}", "is missing", "its name")
            return
        if not self.base:
            self._note("not_checked", f"base/{BASE_ID}", "every file of it would have to be read: ask for it")
            return
        told: list[Damage] = []
        blind: list[str] = []
        looking = fsck_base.tree_hash(path, lambda error: self._base_failed(error, told, blind))
        found: str | None = None
        while True:
            try:
                next(looking)
            except StopIteration as end:
                found = end.value
                break
            yield None
        yield from told
        want = self._body.get("base_root_hash")
        if blind:
            self._note("not_checked", f"base/{BASE_ID}", f"this user may not read {len(blind)} of its entries")
        elif not told and want is not None and found != want:
            yield Damage(
                f"base/{BASE_ID}", f"is not the base of this store: its hash is {str(found)[:16]}…, recorded is {want[:16]}…", "hash"
            )

    def _base_failed(self, error: OSError, told: list[Damage], blind: list[str]) -> None:
        name = os.path.relpath(os.fsdecode(error.filename or ""), self.base_dir)
        if error.errno in (errno.EACCES, errno.EPERM):
            blind.append(name)
        else:
            told.append(Damage(f"base/{name}", f"cannot be read: {error.strerror}", "reading it"))

    # ---- work that is not published

    def _draft(self, name: str) -> Iterator[Damage | None]:
        folder, body = f"drafts/{name}", dict[str, Any]()

        def look() -> Iterator[Damage]:
            body.clear()
            if not os.path.isdir(f"{self.root}/{folder}/layer"):
                if self._store is None:
                    self._note("left_over", folder, "the start of a draft whose work never arrived; the next open removes it")
                return
            try:
                body.update(self._document(f"{folder}/draft.json"))
            except (StoreCorrupt, OSError) as error:
                yield from self._corrupt(error, f"{folder}/draft.json")
                return
            if body.get("draft_id") != name:
                yield Damage(f"{folder}/draft.json", f"belongs to {body.get('draft_id')}", "its name")
            for layer_id in body.get("layer_ids", ()):
                if layer_id != BASE_ID and not os.path.isdir(f"{self.root}/layers/{layer_id}"):
                    yield Damage(f"layers/{layer_id}", f"is missing; {folder}/draft.json names it", "the draft")

        yield from self._settled(look)
        if body:
            for found in self._tree(f"{folder}/layer", None, body.get("digest") or None, body.get("bytes")):
                if found is None or self._store is None or os.path.isdir(f"{self.root}/{folder}/layer"):  # it may be discarded meanwhile
                    yield found

    def _session(self, name: str) -> Iterator[Damage]:
        folder = f"sessions/{name}"
        if not os.path.isdir(f"{self.root}/{folder}"):
            return
        try:
            body = self._document(f"{folder}/session.json")
        except (StoreCorrupt, OSError) as error:
            yield from self._corrupt(error, f"{folder}/session.json")
            return
        if body.get("session_id") != name:
            yield Damage(f"{folder}/session.json", f"belongs to session {body.get('session_id')}", "its name")
            return
        version, head = body.get("base_version"), self._head
        if head is not None and (not isinstance(version, int) or version > head.version):
            yield Damage(f"{folder}/session.json", f"stands on version {version}, the head is {head.version}", "the manifest")
        draft_id = body.get("draft_id")
        if draft_id is not None and not body.get("rebased") and not os.path.isdir(f"{self.root}/drafts/{draft_id}/layer"):
            yield Damage(f"{folder}/session.json", f"stands on {draft_id}, which is gone", "the drafts")
        if self._store is None:
            self._note("left_over", folder, "work of a process that is gone; the next open makes a draft of it, unless it was published")

    def _leases(self) -> Iterator[Damage]:
        """What this process holds is there."""
        assert self._store is not None
        told = set[str]()
        for lease in self._store.leases.all():
            for layer_id in lease.layer_ids:
                if layer_id not in told and layer_id != BASE_ID and not os.path.isdir(f"{self.root}/layers/{layer_id}"):
                    told.add(layer_id)
                    yield Damage(f"layers/{layer_id}", f"is missing; {lease.holder} stands on it", "the leases")

    def _staging(self) -> Iterator[Damage]:
        names = self._names("staging") if self._store is None else self._store.scrap.unheld()
        for name in names:
            self._note("left_over", f"staging/{name}", "of an operation that did not end; the next open removes it")
        yield from ()


def _place(part: str) -> tuple[int, str]:
    what, _, name = part.partition(" ")
    return (ORDER.index(what) if what in ORDER else -1, name)


@contextlib.contextmanager
def offline(root: str, *, base: bool = False, base_dir: str | None = None) -> Generator[Check]:
    """A check of a store that no process has open, and that none can open meanwhile.

    Raises:
        StoreCorrupt: no store is here. StoreBusy: a process has it open. OSError: this user may not look.
    """
    import fcntl

    os.stat(root)
    if not os.path.lexists(f"{root}/workspace.json") and not os.path.lexists(f"{root}/manifest.json"):
        raise StoreCorrupt(f"{root}: no store is here", details={"file": f"{root}/workspace.json"})
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(f"{root}/.storage-writer.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            pass  # nobody ever opened it
        else:
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreBusy(f"{root}: another process has this store open", details={"store": root}) from None
        yield Check(root, base=base, base_dir=base_dir)


def check(root: str, *, base: bool = False) -> Iterator[Damage]:
    """Everything that is damaged in a store that no process has open; nothing is changed.

    Args:
        base: read the base too.
    Raises:
        StoreCorrupt: no store is here. StoreBusy: a process has it open.
    Cost: every byte of every layer is read once; memory is that of the widest directory.
    """
    with offline(root, base=base) as looking:
        yield from looking
