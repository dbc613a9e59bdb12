"""Pins: versions that stay openable on request. A pin is a lease on disk, and a boundary for every squash.

pins/<version>.json: version, agent, request_id, created_unix_ms. The layers are those of the version's
manifest.
"""

from __future__ import annotations

import errno
import os
import time

from layerstack.core.gc_roots import Pin
from layerstack.core.stack import Stack
from layerstack.errors import StoreCorrupt
from layerstack.kernel import fsync, records

FOLDER = "pins"


def all_of(stack: Stack) -> dict[int, Pin]:
    """List the pins by version."""
    return {version: pin for version, (pin, _) in sorted(stack.pins.held.items())}


def load(stack: Stack) -> None:
    """Read and check each file at open, and take its lease. A store that never had a pin has no folder for
    them.

    A file that is damaged, or that names a version which no longer exists, is quarantined.
    """
    if not os.path.isdir(f"{stack.root}/{FOLDER}"):
        return
    for name in os.listdir(f"{stack.root}/{FOLDER}"):
        stem, _, suffix = name.partition(".")
        if not stem.isdecimal() or suffix != "json":
            continue
        try:
            _hold(stack, _read(stack, f"{stack.root}/{FOLDER}/{name}", stem))
        except StoreCorrupt as error:
            stack.set_apart(error)


def _read(stack: Stack, path: str, stem: str) -> Pin:
    """Read a pin. Raises StoreCorrupt, naming the damaged file: that of the pin or that of the version."""
    try:
        pin = Pin(**records.read(path))
    except TypeError as error:
        raise StoreCorrupt(f"{path}: {error}", details={"file": path}) from None
    if str(pin.version) != stem or not os.path.exists(f"{stack.root}/manifests/{pin.version}.json"):
        raise StoreCorrupt(
            f"{path}: pins version {pin.version}, which does not exist", details={"file": path}
        )
    return pin


def pin(stack: Stack, version: int, *, agent: str | None = None, request_id: str | None = None) -> Pin:
    """Keep a version openable until `unpin`, over restarts too. Durable on return; idempotent.

    Raises:
        NotFound: the version cannot be opened (version_not_found).
        OSError: the disk refused; the pin is as before, or the same call again makes it durable.
    """
    with stack.pins.lock:
        stack.check_open()
        _sync_earlier(stack)
        if version in stack.pins.held:
            if os.path.lexists(f"{stack.root}/{FOLDER}/{version}.json"):
                return stack.pins.held[version][0]
            _drop(stack, version)  # left by an `unpin` that did not finish
        pin = Pin(version, agent, request_id, time.time_ns() // 1_000_000)
        _hold(stack, pin)
        try:
            stack.step("pin.mkdir")
            if not os.path.isdir(f"{stack.root}/{FOLDER}"):
                os.mkdir(f"{stack.root}/{FOLDER}")
                fsync.fsync_dir(stack.root)
            records.write(f"{stack.root}/{FOLDER}/{version}.json", pin._asdict(), step=stack.step, name="pin")
        except BaseException:
            with fsync.best_effort():
                os.unlink(f"{stack.root}/{FOLDER}/{version}.json")
            if os.path.lexists(f"{stack.root}/{FOLDER}/{version}.json"):
                stack.pins.unsynced = True
            else:
                _drop(stack, version)
            raise
        stack.damaged.pop(f"{stack.root}/{FOLDER}/{version}.json", None)
        return pin


def unpin(stack: Stack, version: int) -> bool:
    """Remove a pin: from now on a squash may close the version. Durable on return; False: the version was not
    pinned.

    Raises OSError: the disk refused; the version stays pinned until the same call succeeds.
    """
    with stack.pins.lock:
        stack.check_open()
        path = f"{stack.root}/{FOLDER}/{version}.json"
        if version not in stack.pins.held and path not in stack.damaged:
            return False
        stack.step("unpin.unlink")
        with fsync.suppress_errno(errno.ENOENT):
            os.unlink(path)
        stack.step("unpin.fsync_dir")
        stack.pins.unsynced = True
        _sync_earlier(stack)
        stack.damaged.pop(path, None)
        if version in stack.pins.held:
            _drop(stack, version)
        return True


def relist(stack: Stack) -> None:
    """Renew the leases after a squash, under the store's lock, for the layers that the pinned versions have
    now.
    """
    for pin, old in list(stack.pins.held.values()):
        ids = stack.manifest(pin.version).layer_ids
        if ids != old.layer_ids:
            stack.pins.held[pin.version] = (pin, stack.leases.acquire(old.name, pin.version, ids))
            stack.leases.release(old)


def _hold(stack: Stack, pin: Pin) -> None:
    with stack.lock:
        manifest = stack.manifest(pin.version)
        stack.pins.held[pin.version] = (
            pin,
            stack.leases.acquire(f"pin {pin.version}", pin.version, manifest.layer_ids),
        )


def _sync_earlier(stack: Stack) -> None:
    """Sync the folder if an earlier change could not."""
    if stack.pins.unsynced:
        fsync.fsync_dir(f"{stack.root}/{FOLDER}")
        stack.pins.unsynced = False


def _drop(stack: Stack, version: int) -> None:
    with stack.lock:
        _, lease = stack.pins.held.pop(version)
    stack.release(lease)
