"""Leases of this process: who holds which layers, so that squash and gc leave them alone. They end with the process."""

from __future__ import annotations

import itertools
import threading
from typing import NamedTuple


class Lease(NamedTuple):
    """The claim of one holder on the layers of one version."""

    number: int
    holder: str
    """`session`, `export` or `draft`, and a name: for people."""
    version: int
    layer_ids: tuple[str, ...]
    """Newest first, the base included."""


class Leases:
    """The table of leases; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, Lease] = {}
        self._numbers = itertools.count(1)

    def take(self, holder: str, version: int, layer_ids: tuple[str, ...]) -> Lease:
        lease = Lease(next(self._numbers), holder, version, layer_ids)
        with self._lock:
            self._held[lease.number] = lease
        return lease

    def release(self, lease: Lease) -> None:
        """Give the claim back; once more does nothing."""
        with self._lock:
            self._held.pop(lease.number, None)

    def all(self) -> tuple[Lease, ...]:
        with self._lock:
            return tuple(self._held.values())
