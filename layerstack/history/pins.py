"""Versions that stay openable because somebody said so: leases on disk. No squash folds past one.

pins/<version>.json: version, agent, request_id, created_unix_ms. Which layers it has its manifest says.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.model.lease import Lease

if TYPE_CHECKING:
    from layerstack.store import Store

FOLDER = "pins"


class Pin(NamedTuple):
    """One pinned version."""

    version: int
    agent: str | None
    request_id: str | None
    created_unix_ms: int


class Pins:
    """The pins of a store; every method may be called from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = f"{store.root}/{FOLDER}"
        self._lock = threading.Lock()
        """Held for the length of a change on disk; taken before the store's lock."""
        self._held: dict[int, tuple[Pin, Lease]] = {}
        self.unsynced = False
        """Did the disk refuse to sync the folder? The pins in memory are then those that it may have after a power cut."""

    def all(self) -> dict[int, Pin]:
        """By version."""
        return {version: pin for version, (pin, _) in sorted(self._held.items())}

    def load(self) -> None:
        """At open: read and check each file, take its lease. A store that never had a pin has no folder for them.

        A file that is damaged, or whose version is gone, is set apart.
        """
        if not os.path.isdir(self._folder):
            return
        for name in os.listdir(self._folder):
            stem, _, suffix = name.partition(".")
            if not stem.isdecimal() or suffix != "json":
                continue
            try:
                self._hold(self._read(f"{self._folder}/{name}", stem))
            except StoreCorrupt as error:
                self._store.set_apart(error)

    def _read(self, path: str, stem: str) -> Pin:
        """Raises StoreCorrupt, also when the version's own file is damaged: it names the one that is."""
        try:
            pin = Pin(**records.read(path))
        except TypeError as error:
            raise StoreCorrupt(f"{path}: {error}", details={"file": path}) from None
        if str(pin.version) != stem or not os.path.exists(f"{self._store.root}/manifests/{pin.version}.json"):
            raise StoreCorrupt(f"{path}: pins version {pin.version}, which is gone", details={"file": path})
        return pin

    def pin(self, version: int, *, agent: str | None = None, request_id: str | None = None) -> Pin:
        """Keep a version openable until `unpin`, over restarts too. Durable on return; once more changes nothing.

        Raises:
            NotFound: the version cannot be opened (version_not_found).
            OSError: the disk refused; it is pinned no more than before, or the same call again makes it durable.
        """
        store = self._store
        with self._lock:
            store.check_open()
            self._settle()
            if version in self._held:
                if os.path.lexists(f"{self._folder}/{version}.json"):
                    return self._held[version][0]
                self._drop(version)  # an `unpin` that did not come to its end
            pin = Pin(version, agent, request_id, time.time_ns() // 1_000_000)
            self._hold(pin)
            try:
                store.step("pin.mkdir")
                if not os.path.isdir(self._folder):
                    os.mkdir(self._folder)
                    fsync.fsync_dir(store.root)
                records.write(f"{self._folder}/{version}.json", pin._asdict(), step=store.step, name="pin")
            except BaseException:
                with fsync.best_effort():
                    os.unlink(f"{self._folder}/{version}.json")
                if os.path.lexists(f"{self._folder}/{version}.json"):
                    self.unsynced = True
                else:
                    self._drop(version)
                raise
            store.damaged.pop(f"{self._folder}/{version}.json", None)
            return pin

    def unpin(self, version: int) -> bool:
        """Let the version go: from now on a squash may close it. False when it was not pinned. Durable on return.

        Raises OSError: the disk refused; it is pinned until the same call has passed.
        """
        store = self._store
        with self._lock:
            store.check_open()
            path = f"{self._folder}/{version}.json"
            if version not in self._held and path not in store.damaged:
                return False
            store.step("unpin.unlink")
            with fsync.suppress_errno(errno.ENOENT):
                os.unlink(path)
            store.step("unpin.fsync_dir")
            self.unsynced = True
            self._settle()
            store.damaged.pop(path, None)
            if version in self._held:
                self._drop(version)
            return True

    def relist(self) -> None:
        """After a squash, under the store's lock: the leases are of the layers that the pinned versions have now."""
        for pin, old in list(self._held.values()):
            ids = self._store.manifest(pin.version).layer_ids
            if ids != old.layer_ids:
                self._held[pin.version] = (pin, self._store.leases.take(old.holder, pin.version, ids))
                self._store.leases.release(old)

    def _hold(self, pin: Pin) -> None:
        with self._store.lock:
            manifest = self._store.manifest(pin.version)
            self._held[pin.version] = (pin, self._store.leases.take(f"pin {pin.version}", pin.version, manifest.layer_ids))

    def _settle(self) -> None:
        """Sync what a change before this one could not."""
        if self.unsynced:
            fsync.fsync_dir(self._folder)
            self.unsynced = False

    def _drop(self, version: int) -> None:
        with self._store.lock:
            _, lease = self._held.pop(version)
        self._store.release(lease)
