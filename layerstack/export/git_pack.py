"""Entries of a pack of git, one after another: what the receiver puts a header and a checksum around."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from layerstack.git.worktree_filter import file_parts
from layerstack.tree.state import State

KINDS = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}


def _head(kind: str, size: int) -> bytes:
    byte, size = KINDS[kind] << 4 | size & 15, size >> 4
    out = bytearray()
    while size:
        out.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    out.append(byte)
    return bytes(out)


def entry(kind: str, data: bytes) -> bytes:
    """Make the entry of an object, whole. Source: gitformat-pack(5)."""
    return _head(kind, len(data)) + zlib.compress(data, 1 if len(data) > 1 << 16 else 6)


def blob_of_file(state: State) -> Iterator[bytes]:
    """Make the entry of a file's content in parts.

    Raises:
        OSError: the file is shorter than its state says.
    """
    yield _head("blob", state.size)
    packer = zlib.compressobj(1)
    for part in file_parts(state):
        if packed := packer.compress(part):
            yield packed
    yield packer.flush()
