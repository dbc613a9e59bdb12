"""What a layer lists at one path, and what an index is: records are a dozen shared values, so an index costs its paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from layerstack.tree.state import DIRECTORY, FILE, LINK, WHITEOUT


class IndexRecord(NamedTuple):
    """What a layer lists at one path."""

    kind: str
    """`f`, `l`, `d` or `w` (a whiteout)."""
    quiet: bool
    """A directory that is here only as a container: its attributes equal those below, and it is not opaque. It is no touch."""
    opaque: bool

    @property
    def covers(self) -> bool:
        """Does it change everything below its path without listing it?"""
        return self.kind != DIRECTORY or self.opaque


NUMBERED = tuple(IndexRecord(k, q, o) for k in (FILE, LINK, DIRECTORY, WHITEOUT) for q in (False, True) for o in (False, True))
_SHARED = {(found.kind, found.quiet, found.opaque): found for found in NUMBERED}
_NUMBERS = {found: number for number, found in enumerate(NUMBERED)}


def record(kind: str, *, quiet: bool = False, opaque: bool = False) -> IndexRecord:
    """The shared one."""
    return _SHARED[kind, quiet, opaque]


def number_of(found: IndexRecord) -> int:
    """Its place in NUMBERED."""
    return _NUMBERS[found]


Index = Mapping[str, IndexRecord]
