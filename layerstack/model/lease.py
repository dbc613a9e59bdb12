"""Leases of this process: who holds which layers, so that squash and gc leave them alone. They end with the process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

READER = "reader"
"""Kind of a lease that somebody holds for the length of one look at the head: it keeps layers on disk, and no squash minds it."""


class Lease(NamedTuple):
    """The claim of one holder on the layers of one version."""

    number: int
    holder: str
    """The kind of the holder (`session`, `export`, `draft`, `pin`, or READER), and a name for people."""
    version: int
    layer_ids: tuple[str, ...]
    """Newest first, the base included."""

    @property
    def kind(self) -> str:
        return self.holder.partition(" ")[0]


class Leases:
    """The table of leases; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Condition(threading.Lock())
        self._held: dict[int, Lease] = {}
        self._numbers = itertools.count(1)
        self._waiting = 0
        """Who waits for readers; changed under the lock."""
        self.on_change: Callable[[str, Lease], object] | None = None
        """Told of each lease but readers' that was `acquired` or `released`, in whatever thread."""

    def take(self, holder: str, version: int, layer_ids: tuple[str, ...]) -> Lease:
        """A new claim. Whoever takes one that a squash must mind holds the store's lock, so that none has looked already."""
        lease = Lease(next(self._numbers), holder, version, layer_ids)
        with self._lock:
            self._held[lease.number] = lease
        if self.on_change is not None and lease.kind != READER:
            self.on_change("acquired", lease)
        return lease

    def release(self, lease: Lease) -> None:
        """Give the claim back; once more does nothing."""
        with self._lock:
            held = self._held.pop(lease.number, None)
            if self._waiting and held is not None and lease.kind == READER:
                self._lock.notify_all()
        if self.on_change is not None and held is not None and lease.kind != READER:
            self.on_change("released", lease)

    def all(self) -> tuple[Lease, ...]:
        """Those that are held now, readers' too."""
        with self._lock:
            return tuple(self._held.values())

    def boundaries(self) -> tuple[Lease, ...]:
        """The leases on a base that somebody compares with or opens again: no version of theirs may end up inside a squashed block."""
        return tuple(lease for lease in self.all() if lease.kind != READER)

    def wait_for_readers(self, layer_ids: Iterable[str], timeout_s: float) -> None:
        """Return when no reader holds any of the layers, or after the time."""
        wanted = set(layer_ids)
        with self._lock:
            self._waiting += 1
            try:
                self._lock.wait_for(
                    lambda: not any(lease.kind == READER and not wanted.isdisjoint(lease.layer_ids) for lease in self._held.values()),
                    timeout_s,
                )
            finally:
                self._waiting -= 1
