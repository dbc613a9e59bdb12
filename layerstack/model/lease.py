"""Leases of this process on layers, which squash and gc respect. They end with the process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

READER = "reader"
"""Kind of a lease held for one read of a version: it keeps the layers on disk, and a squash does not wait for
it.
"""


class Lease(NamedTuple):
    """A claim on the layers of one version."""

    number: int
    name: str
    """The kind of the owner (`session`, `export`, `draft`, `pin`, or READER), and a name for people."""
    version: int
    layer_ids: tuple[str, ...]
    """Newest first, the base included."""

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]


class Leases:
    """The table of leases; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Condition(threading.Lock())
        self._held: dict[int, Lease] = {}
        self._numbers = itertools.count(1)
        self._waiting = 0
        """Number of callers in `wait_for_readers`; changed under the lock."""
        self.on_change: Callable[[str, Lease], object] | None = None
        """Called with `acquired` or `released` and the lease, in any thread; not for leases of readers."""

    def acquire(self, name: str, version: int, layer_ids: tuple[str, ...]) -> Lease:
        """Make a lease. For any kind but READER the caller holds the store's lock, so that no running squash
        has already listed the boundaries.
        """
        lease = Lease(next(self._numbers), name, version, layer_ids)
        with self._lock:
            self._held[lease.number] = lease
        if self.on_change is not None and lease.kind != READER:
            self.on_change("acquired", lease)
        return lease

    def release(self, lease: Lease) -> None:
        """End the lease. Idempotent."""
        with self._lock:
            held = self._held.pop(lease.number, None)
            if self._waiting and held is not None and lease.kind == READER:
                self._lock.notify_all()
        if self.on_change is not None and held is not None and lease.kind != READER:
            self.on_change("released", lease)

    def all(self) -> tuple[Lease, ...]:
        """List all current leases, those of readers included."""
        with self._lock:
            return tuple(self._held.values())

    def boundaries(self) -> tuple[Lease, ...]:
        """List the leases on versions that are later compared with or opened again. A squash leaves the
        newest layer of such a version as it is.
        """
        return tuple(lease for lease in self.all() if lease.kind != READER)

    def wait_for_readers(self, layer_ids: Iterable[str], timeout_s: float) -> None:
        """Wait until no reader holds any of the layers, or until the time is over."""
        wanted = set(layer_ids)
        with self._lock:
            self._waiting += 1
            try:
                self._lock.wait_for(
                    lambda: (
                        not any(
                            lease.kind == READER and not wanted.isdisjoint(lease.layer_ids)
                            for lease in self._held.values()
                        )
                    ),
                    timeout_s,
                )
            finally:
                self._waiting -= 1


def lease_names(session_id: str | None, draft_id: str | None) -> tuple[str, ...]:
    """The leases that end with the publish of a session, or of a draft."""
    session = () if session_id is None else (f"session {session_id}",)
    return session if draft_id is None else (*session, f"draft {draft_id}")
