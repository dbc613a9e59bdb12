"""Object ids, the two formats of a repository (`extensions.objectformat`), and the errors of the room."""

from __future__ import annotations

import hashlib
import os
import zlib
from typing import NamedTuple

from layerstack.errors import Rejected

Oid = bytes
"""An object id as raw bytes: 20 for SHA-1, 32 for SHA-256."""

KINDS = ("commit", "tree", "blob", "tag")
BLOB_MAX = 64 << 20
"""Bytes of one object that is read whole."""


class GitError(Rejected):
    """A repository cannot be merged by the rules; the files of both sides stay as they are. The message names
    the repository.
    """

    reason = "git_unsupported"


class GitRefused(GitError):
    """The repository uses something that is not merged, such as reftable."""


class MissingObject(GitError):
    """An object is in none of the trees: a partial clone, alternates outside of the workspace, or damage."""

    reason = "git_damaged"


class CorruptObject(GitError):
    """An object, pack or index is not what git would write, or its content does not match its id."""

    reason = "git_damaged"


class ObjectTooLarge(GitError):
    """An object or a walk is larger than the limits of this room."""

    reason = "git_limit"


class ObjectFormat(NamedTuple):
    """One of the two hash functions of git. `size` is the length of an id in bytes."""

    name: str
    size: int

    @property
    def hex_size(self) -> int:
        return 2 * self.size

    @property
    def null(self) -> Oid:
        """The id that means that there is nothing, all zero."""
        return bytes(self.size)

    @property
    def empty_tree(self) -> Oid:
        return self.oid_of("tree", b"")

    def oid_of(self, kind: str, data: bytes) -> Oid:
        found = hashlib.new(self.name, b"%s %d\0" % (kind.encode(), len(data)), usedforsecurity=False)
        found.update(data)
        return found.digest()

    def from_hex(self, text: bytes | str) -> Oid | None:
        """Parse an id in lower-case hex as git writes it; None for anything else."""
        raw = text.encode() if isinstance(text, str) else text
        if len(raw) != 2 * self.size or raw.strip(b"0123456789abcdef"):
            return None
        return bytes.fromhex(raw.decode())


SHA1, SHA256 = ObjectFormat("sha1", 20), ObjectFormat("sha256", 32)
FORMATS = {each.name: each for each in (SHA1, SHA256)}


def loose_path(oid: Oid) -> str:
    """Give the path of a loose object below the directory of its repository."""
    text = oid.hex()
    return os.path.join("objects", text[:2], text[2:])


def loose_bytes(kind: str, data: bytes) -> bytes:
    """Make the content of a loose object's file, with git's own default of compression."""
    packer = zlib.compressobj(zlib.Z_BEST_SPEED)
    return packer.compress(b"%s %d\0" % (kind.encode(), len(data))) + packer.compress(data) + packer.flush()
