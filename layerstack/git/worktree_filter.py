"""Content of files between work tree and repository: `clean` gives the blob that `git add` makes,
`smudge` the file that a checkout writes.

Done here: line ends, `ident`, `working-tree-encoding` for UTF-16, UTF-32 and Latin-1, and pointers of Git
LFS. A filter that is a program is never run. Source: gitattributes(5), convert.c, utf8.c of git; the
specification of Git LFS.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from layerstack.git import ident
from layerstack.git.attributes import GitAttributes, Value
from layerstack.git.line_ends import (
    LineEnds,
    TextStats,
    changes_on_clean,
    line_ends,
    text_value,
    to_lf,
    to_worktree,
)
from layerstack.git.object_format import BLOB_MAX, ObjectFormat, ObjectTooLarge, Oid
from layerstack.tree.state import State

CHUNK = 1 << 20
POINTER_MAX = 1024
"""Bytes of a pointer of Git LFS."""

_POINTER = re.compile(
    rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n(?:ext-\d-\w+ [^\n]*\n)*"
    rb"oid sha256:([0-9a-f]{64})\nsize (\d+)\n?"
)
_CODECS = {
    "UTF16": "utf-16",
    "UTF16LE": "utf-16-le",
    "UTF16BE": "utf-16-be",
    "UTF16LE-BOM": "utf-16-le-bom",
    "UTF32": "utf-32",
    "UTF32LE": "utf-32-le",
    "UTF32BE": "utf-32-be",
    "ISO-8859-1": "latin-1",
    "ISO8859-1": "latin-1",
    "LATIN1": "latin-1",
}
_BOMS = {
    "utf-16": (b"\xff\xfe", b"\xfe\xff"),
    "utf-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff"),
}
Indexed = Callable[[], bytes | None]
"""Function that gives the blob that the index has for the path, or None."""


class Conversion(NamedTuple):
    """All that happens to the content of one path."""

    ends: LineEnds
    ident: bool
    auto: bool
    """The line ends are guessed, and not given by `eol` or core.autocrlf."""
    filter: str | None
    """`lfs`, or the name of a filter that is not run."""
    encoding: str | None
    """A codec of `_CODECS`, or the name of an encoding that is not converted."""

    @property
    def is_known(self) -> bool:
        return self.filter in (None, "lfs") and (self.encoding is None or self.encoding in _CODECS.values())


class WorktreeFilter:
    """The conversions of one work tree.

    Args:
        autocrlf, eol: core.autocrlf (`true`, `false`, `input`) and core.eol (`lf`, `crlf`, `native`).
        lfs_content: SHA-256 in hex -> the content that the repository keeps for a pointer, if it does.
    """

    def __init__(
        self,
        attributes: GitAttributes,
        fmt: ObjectFormat,
        *,
        autocrlf: str = "false",
        eol: str = "native",
        lfs_content: Callable[[str], bytes | None] | None = None,
    ) -> None:
        self.attributes, self._fmt = attributes, fmt
        self._autocrlf, self._eol, self._lfs_content = autocrlf, eol, lfs_content
        self._last: tuple[bytes, Conversion] | None = None

    def conversion(self, path: bytes) -> Conversion:
        if self._last is None or self._last[0] != path:
            found = self.attributes.of(path)
            name = found.get("filter")
            self._last = (
                path,
                Conversion(
                    line_ends(found, self._autocrlf, self._eol),
                    found.get("ident") is True,
                    text_value(found) == "auto" and found.get("eol") != "lf",
                    name if isinstance(name, str) else None,
                    _encoding(found),
                ),
            )
        return self._last[1]

    def unknown_filter(self, path: bytes) -> bool:
        """Check whether the path has a filter or an encoding that is not done here; `clean` and `smudge`
        leave that step out.
        """
        return not self.conversion(path).is_known

    def clean(self, path: bytes, data: bytes, indexed: Indexed | None = None) -> bytes:
        """Give the blob that `git add` would make of a file's content."""
        how = self.conversion(path)
        if how.filter == "lfs":
            data = lfs_pointer(data)
        if how.encoding is not None and data:
            data = _decoded(data, how.encoding)
        data = to_lf(data, how.ends, indexed)
        return ident.collapse(data) if how.ident else data

    def smudge(self, path: bytes, blob: bytes) -> bytes:
        """Give the file that a checkout of a blob would write; the pointer where Git LFS has no content."""
        how, data = self.conversion(path), blob
        if how.ident:
            stream = how.encoding is None and how.ends != LineEnds.AUTO_CRLF and not how.auto
            data = ident.expand(blob, self._fmt.oid_of("blob", blob).hex(), stream=stream)
        data = to_worktree(data, how.ends)
        if how.encoding is not None and data:
            data = _encoded(data, how.encoding)
        if how.filter == "lfs" and self._lfs_content is not None:
            found = parse_pointer(data)
            content = self._lfs_content(found[0]) if found is not None else None
            if content is not None:
                return content
        return data

    def oid_of(self, path: bytes, state: State, indexed: Indexed | None = None) -> Oid:
        """Give the id of the blob that `git add` would make of a file, which may be of any size as long as
        its content is not converted.

        Raises:
            ObjectTooLarge: a file of more than BLOB_MAX bytes whose content is converted.
            OSError: the file cannot be read.
        """
        how = self.conversion(path)
        if state.size <= BLOB_MAX:
            return self._fmt.oid_of("blob", self.clean(path, state.data(), indexed))
        if how.filter == "lfs":
            return self._fmt.oid_of("blob", lfs_pointer_of_file(state))
        if how.encoding is not None or how.ident:
            raise ObjectTooLarge(f"{os.fsdecode(path)}: {state.size} bytes to convert, more than {BLOB_MAX}")
        if how.ends != LineEnds.NONE and changes_on_clean(TextStats(file_parts(state)), how.ends, indexed):
            raise ObjectTooLarge(f"{os.fsdecode(path)}: {state.size} bytes to convert, more than {BLOB_MAX}")
        found = hashlib.new(self._fmt.name, b"blob %d\0" % state.size, usedforsecurity=False)
        for part in file_parts(state):
            found.update(part)
        return found.digest()

    def is_clean(self, path: bytes, state: State, oid: Oid, indexed: Indexed | None = None) -> bool:
        """Check whether a file is what the work tree has for a blob, so that `git status` would not list it.

        A path with a filter that is a program counts as clean when its bytes are the blob's own, which is how
        git treats a filter that is not configured.
        """
        if self.oid_of(path, state, indexed) == oid:
            return True
        if self.conversion(path).filter is None or state.size > BLOB_MAX:
            return False
        return self._fmt.oid_of("blob", state.data()) == oid


def file_parts(state: State) -> Iterator[bytes]:
    """Read a file in parts: exactly as many bytes as its state says.

    Raises:
        OSError: it is shorter now.
    """
    if state.body is not None:
        yield state.body
        return
    with open(os.open(state.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
        left = state.size
        while left:
            part = file.read(min(CHUNK, left))
            if not part:
                raise OSError(f"{state.path} is {left} bytes shorter than the {state.size} that it had")
            left -= len(part)
            yield part


def _encoding(attributes: Mapping[str, Value]) -> str | None:
    value = attributes.get("working-tree-encoding")
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return f"working-tree-encoding {value}"
    name = value.upper()
    name = "UTF" + name[3:].removeprefix("-") if name.startswith("UTF") else name
    return None if name == "UTF8" else _CODECS.get(name, value)


def _decoded(data: bytes, codec: str) -> bytes:
    """Convert to UTF-8; content that is not in the encoding stays as it is, as `git status` has it."""
    if codec not in _CODECS.values():
        return data
    boms = _BOMS.get(codec.removesuffix("-le").removesuffix("-be"))
    if boms is not None:
        has_bom = data.startswith(boms)
        if has_bom == codec.endswith(("-le", "-be")):  # required without a byte order, and forbidden with one
            return data
    try:
        return data.decode("utf-16" if codec == "utf-16-le-bom" else codec).encode()
    except UnicodeError:
        return data


def _encoded(data: bytes, codec: str) -> bytes:
    if codec not in _CODECS.values():
        return data
    try:
        if codec == "utf-16-le-bom":
            return b"\xff\xfe" + data.decode().encode("utf-16-le")
        return data.decode().encode(codec)
    except UnicodeError:
        return data


def parse_pointer(data: bytes) -> tuple[str, int] | None:
    """Parse a pointer of Git LFS: SHA-256 in hex, size; None for other content."""
    found = _POINTER.fullmatch(data) if len(data) < POINTER_MAX else None
    return None if found is None else (found[1].decode(), int(found[2]))


def lfs_pointer(data: bytes) -> bytes:
    """Give the pointer that Git LFS commits for a content; an empty file and a pointer stay as they are."""
    if not data or parse_pointer(data) is not None:
        return data
    return _pointer(hashlib.sha256(data, usedforsecurity=False).hexdigest(), len(data))


def lfs_pointer_of_file(state: State) -> bytes:
    """Give the pointer of a file that is not read whole."""
    digest = hashlib.sha256(usedforsecurity=False)
    for part in file_parts(state):
        digest.update(part)
    return _pointer(digest.hexdigest(), state.size)


def _pointer(digest: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n".encode()
