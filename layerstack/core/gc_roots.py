"""The tables of pins and drafts of an open store: GC roots, each with a lease, that outlive the process.

Plain values of a `Stack`; `history.pins` changes the first, `publish.draft_refs` the second.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from layerstack.layers.index import Layer
from layerstack.model.lease import Lease


class Pin(NamedTuple):
    """One pinned version."""

    version: int
    agent: str | None
    request_id: str | None
    created_unix_ms: int


@dataclass
class PinTable:
    """The pinned versions and their leases."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held during a change on disk; acquired before the lock of the stack."""
    held: dict[int, tuple[Pin, Lease]] = field(default_factory=dict[int, tuple[Pin, Lease]])
    unsynced: bool = False
    """True when the disk refused to sync the folder. `held` then has the pins that may be on disk after a
    power cut.
    """


@dataclass
class DraftTable:
    """The reference counts and leases of drafts, by draft id. Read and changed under the lock of the
    stack.
    """

    users: dict[str, int] = field(default_factory=dict[str, int])
    """Reference count of each draft: the sessions and readers that use it; no entry for 0."""
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    """The lease of each draft on its base version."""
    consumed: set[str] = field(default_factory=set[str])
    """Published drafts that are removed when their last reference is released."""
    layers: OrderedDict[tuple[str, ...], Layer] = field(default_factory=OrderedDict[tuple[str, ...], Layer])
    """The pending layers of the drafts that were read last, by draft id and the layer ids of the base."""
