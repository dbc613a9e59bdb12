"""State that all parts of a check share: the path of the store, records that were read, damage and notes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import StoreCorrupt
from layerstack.kernel import records
from layerstack.kernel.xattrs import XATTR_NAMESPACES, XattrNamespace
from layerstack.layers import version_files
from layerstack.model.manifest import BASE_ID, Manifest


class Damage(NamedTuple):
    """One difference between the store and what was written."""

    file: str
    """Relative to the store."""
    what: str
    """The fault, as a predicate after the name of the file."""
    found_by: str
    """The comparison that found it: `checksum`, `digest`, …"""


class Note(NamedTuple):
    """A finding that is not damage."""

    kind: str
    """`left_over`: the next open removes or completes it. `not_checked`: `what` says why. `unknown`: this
    version does not make such a file.
    """
    file: str
    what: str


class Counts(NamedTuple):
    """Numbers of checked layers, entries and bytes."""

    layers: int = 0
    entries: int = 0
    bytes: int = 0


class CheckContext:
    """One check of a store; `notes` and `counts` grow during it."""

    def __init__(
        self,
        root: str,
        *,
        base: bool = False,
        base_dir: str | None = None,
        store: Stack | None = None,
        layers: Iterable[str] = (),
    ) -> None:
        """Start a check.

        Args:
            base: read the base too, and compare it with the hash that the store was made with.
            base_dir: the directory that contains B000001-base, if not the store.
            store: it is open in this process. Findings are checked again under its lock, so that a change in
                progress is not reported as damage; leftovers are not reported: an operation in progress may
                own them.
            layers: those on which the caller has a lease, in an open store.
        """
        self.root, self.base, self.base_dir, self.store = root, base, base_dir or f"{root}/base", store
        self.leased = frozenset(layers)
        self.notes: list[Note] = []
        self.counts = Counts()
        self.body: dict[str, Any] = {}
        """Body of workspace.json; empty when that cannot be read."""
        self.head: Manifest | None = None
        with contextlib.suppress(StoreCorrupt, OSError):
            self.body = self.document("workspace.json")
        with contextlib.suppress(StoreCorrupt, OSError):
            self.head = self.manifest("manifest.json")
        self.xattr_namespace: XattrNamespace | None = XATTR_NAMESPACES.get(str(self.body.get("form")))
        self._abouts: dict[str, dict[str, Any]] = {}

    def confirmed(self, part: Callable[[], Iterator[Damage]]) -> list[Damage]:
        """Give the findings of a check; in an open store, those that a second check under the lock finds
        too.
        """
        known = len(self.notes)
        found = list(part())
        if found and self.store is not None:
            with self.store.lock:
                del self.notes[known:]
                with contextlib.suppress(StoreCorrupt, OSError):
                    self.head = self.manifest("manifest.json")
                found = list(part())
        return found

    def corrupt(self, error: StoreCorrupt | OSError, name: str) -> Iterator[Damage]:
        """Report the error of a reader about the file `name`."""
        if isinstance(error, StoreCorrupt):
            file = str(error.details.get("file", ""))
            what = error.message.removeprefix(f"{file}: ")
            how = (
                "its name"
                if what == "missing"
                else "reading it"
                if what.startswith("cannot be read")
                else "checksum"
            )
            yield Damage(os.path.relpath(file, self.root) if file else name, what, how)
        elif error.errno in (errno.EACCES, errno.EPERM):
            self.note("not_checked", name, "this user may not read it")
        else:
            yield Damage(name, f"cannot be read: {error.strerror}", "reading it")

    def note(self, kind: str, file: str, what: str) -> None:
        """Record a note. `left_over` is dropped for an open store: an operation in progress may own the
        file.
        """
        if kind != "left_over" or self.store is None:
            self.notes.append(Note(kind, file, what))

    def names(self, folder: str) -> list[str]:
        """List a folder, sorted; empty when it does not exist."""
        try:
            return sorted(os.listdir(f"{self.root}/{folder}"))
        except OSError:
            return []

    def layers(self) -> list[str]:
        """List the layers to check: all on disk and all that the head names; in an open store those on which
        the caller has a lease.
        """
        if self.store is not None:
            return sorted(self.leased - {BASE_ID})
        return sorted(
            {*self.names("layers"), *(self.head.layer_ids if self.head is not None else ())} - {BASE_ID}
        )

    def manifest(self, name: str) -> Manifest:
        """Read the manifest at a path below the store. Raises StoreCorrupt, OSError."""
        path = f"{self.root}/{name}"
        try:
            return Manifest.load(records.content(path), source=path)
        except FileNotFoundError:
            raise StoreCorrupt(f"{path}: missing", details={"file": path}) from None

    def version(self, name: str) -> version_files.VersionRecord | None:
        """Read the file of a version at a path below the store; None: it was lost. Raises StoreCorrupt,
        OSError.
        """
        path = f"{self.root}/{name}"
        try:
            data = records.content(path)
            return None if version_files.lost(data) else version_files.load(data, source=path)
        except FileNotFoundError:
            raise StoreCorrupt(f"{path}: missing", details={"file": path}) from None

    def document(self, name: str) -> dict[str, Any]:
        """Read the record at a path below the store. Raises StoreCorrupt, OSError."""
        return records.read(f"{self.root}/{name}")

    def about(self, layer_id: str) -> dict[str, Any] | None:
        """Read a layer's metadata; None for the base and where it cannot be read."""
        if layer_id not in self._abouts:
            with contextlib.suppress(StoreCorrupt, OSError):
                if layer_id != BASE_ID:
                    self._abouts[layer_id] = self.document(f".layer-metadata/{layer_id}.json")
        return self._abouts.get(layer_id)

    def other_layers(self, version: int, layer_ids: Iterable[str]) -> bool:
        """Check whether the tree of these layers differs from that of the version, according to the head. A
        squashed layer equals the layers that it replaced.

        False where it cannot be decided: the version is above the head, or the metadata of a squashed layer
        cannot be read.
        """
        if self.head is None or version > self.head.version:
            return False
        now, then = self._published(self.head.layer_ids), self._published(layer_ids)
        return now is not None and then is not None and [one for one in now if one[0] <= version] != then

    def another_top(self, version: int, layer_id: str) -> bool:
        """Check whether the layer, or the newest that it replaced, differs from the newest of the version.
        False where it cannot be decided.
        """
        if self.head is None or version > self.head.version:
            return False
        now, then = self._published(self.head.layer_ids), self._published([layer_id])
        if now is None or then is None:
            return False
        return [one for one in now if one[0] <= version][:1] != then[:1]

    def _published(self, layer_ids: Iterable[str]) -> list[tuple[int, str]] | None:
        """List the publications in these layers, newest first, each with its version; without the base."""
        found: list[tuple[int, str]] = []
        for layer_id in layer_ids:
            if layer_id.startswith("S"):
                about = self.about(layer_id)
                if about is None:
                    return None
                found += [(int(member["version"]), str(member["layer_id"])) for member in about["members"]]
            elif layer_id != BASE_ID:
                found.append((int(layer_id[1:].partition("-")[0]), layer_id))
        return found
