"""Use the forms of large trees for trees of any size: packed indexes, rows in unnamed files, listings of
bytes, lines of owners.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from layerstack.history import blame_file
from layerstack.layers import index_file, packed_index
from layerstack.squash import squash
from layerstack.tree import disk, memory

P = ParamSpec("P")
T = TypeVar("T")


def as_if_large(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Treat more than two entries as large from now on, in this child of the test, and make the call."""
    packed_index.SMALL = index_file.SMALL = blame_file.SMALL = 2
    disk.LARGE = memory.LARGE = 2
    squash.LINKED_MAX = 1
    return call(*args, **kwargs)
