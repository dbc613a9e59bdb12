"""The record of a layer at one path. All records share a dozen values, so an index takes little more memory
than its paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from layerstack.tree.state import DIRECTORY, FILE, LINK, SPECIAL, WHITEOUT


class IndexRecord(NamedTuple):
    """The record of a layer at one path."""

    kind: str
    """`f`, `l`, `d` or `w` (a whiteout); `s` (FIFO, socket, device) only among saved layers that are
    combined.
    """
    quiet: bool
    """An unchanged container: a directory whose attributes equal those below, and that is not opaque; or a
    file that is there for its time alone. Does not count as a change.
    """
    opaque: bool

    @property
    def masks(self) -> bool:
        """True when it changes everything below its path without listing it."""
        return self.kind != DIRECTORY or self.opaque


NUMBERED = tuple(
    IndexRecord(k, q, o)
    for k in (FILE, LINK, DIRECTORY, WHITEOUT, SPECIAL)
    for q in (False, True)
    for o in (False, True)
)
_SHARED = {(found.kind, found.quiet, found.opaque): found for found in NUMBERED}
_NUMBERS = {found: number for number, found in enumerate(NUMBERED)}


def record(kind: str, *, quiet: bool = False, opaque: bool = False) -> IndexRecord:
    """Give the shared record of these values."""
    return _SHARED[kind, quiet, opaque]


def number_of(found: IndexRecord) -> int:
    """Give the position of the record in NUMBERED."""
    return _NUMBERS[found]


Index = Mapping[str, IndexRecord]
