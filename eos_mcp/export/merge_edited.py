"""`on_conflict: merge`: files of a `dir` export that the user edited are merged with the sandbox's, by lines.

The base is what the destination had of the file before: the entry of the last export or import, else the copy
that the sandbox was made from. A file that does not merge is a conflict, as with `fail`.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from eos_mcp.export.conflict import Conflicts
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.facts import FILE, fact_of
from eos_mcp.export.request import ContentOf
from eos_mcp.export.stream import shown
from layerstack.export import pax
from layerstack.kernel.content import digest_of_bytes
from layerstack.text.lines import TEXT_MAX, is_text
from layerstack.text.merge import merge

LISTED_MAX = 200


class MergedFile(NamedTuple):
    """One merged file. `is_users`: the user's file has all of the sandbox's changes already."""

    content: bytes
    is_users: bool


class EditedFiles:
    """Merges of one export. `merged`: paths of merged files, the first of them by name."""

    def __init__(
        self, conflicts: Conflicts | None, copy: DirTree | None, content_of: ContentOf | None
    ) -> None:
        """
        Args:
            content_of: gives the content of a file that an earlier export or import left at a path, by its
                digest; None when it is not stored any more.
        """
        self.active = conflicts is not None and conflicts.rules.on_conflict == "merge"
        self._conflicts, self._copy, self._content_of = conflicts, copy, content_of
        self._count = 0
        self._listed: list[str] = []

    def to_json(self) -> dict[str, object]:
        return {"merged": self._listed, "merged_count": self._count} if self._count else {}

    def scratch(self, header: pax.Header, old: os.stat_result | None) -> Callable[[], int] | None:
        """Return a function that opens a temporary file for the content of an entry of a dry run, which has
        no staging; None for an entry that cannot be merged.
        """
        if not self.active or old is None or not stat.S_ISREG(old.st_mode) or header.length > TEXT_MAX:
            return None
        return _unnamed_file

    def with_mode(self, header: pax.Header, old: os.stat_result) -> pax.Header:
        """Return the entry with the merged mode. Where an earlier export wrote the path, the mode before is
        not known, and the sandbox's is written.
        """
        was, base = stat.S_IMODE(old.st_mode), self._mode_before(header.path, old)
        if not self.active or self._conflicts is None or base is None or was in (base, header.mode):
            return header
        if base != header.mode:
            self._conflicts.note_mode(header.path)
        return header._replace(mode=was)

    def _mode_before(self, path: bytes, old: os.stat_result) -> int | None:
        if self._copy is None or self._conflicts is None or self._conflicts.written_at(path):
            return None
        base = self._copy.lstat(path)
        if base is None or stat.S_IFMT(base.st_mode) != stat.S_IFMT(old.st_mode):
            return None
        return stat.S_IMODE(base.st_mode)

    def merge(
        self, header: pax.Header, old: os.stat_result, fd: int | None, target: DirTree | None
    ) -> MergedFile | None:
        """Merge the destination's file with the entry, if the user edited it.

        Args:
            fd: the entry's content.
        Returns:
            The merged file; None: the user did not edit it, or it does not merge.
        """
        if (
            self._conflicts is None
            or fd is None
            or target is None
            or not stat.S_ISREG(old.st_mode)
            or max(old.st_size, header.length) > TEXT_MAX
            or not self._conflicts.is_edited(header, old, fact_of(header))
        ):
            return None
        own = target.open_file(header.path)
        if own is None:
            return None
        try:
            ours = _whole(own, old.st_size)
        finally:
            os.close(own)
        written, head = self._conflicts.written_at(header.path), fact_of(header)
        if written is not None and (written.letter, written.digest) == (head.letter, head.digest):
            return MergedFile(ours, True)  # the sandbox's file is that of the last export
        base, theirs = self._base(header.path), _whole(fd, header.length)
        if base is None or not all(map(is_text, (base, ours, theirs))):
            return None
        content = merge(base, ours, theirs).content
        return None if content is None else MergedFile(content, content == ours)

    def note(self, path: bytes) -> None:
        """Note that a merged file is written."""
        self._count += 1
        if len(self._listed) < LISTED_MAX:
            self._listed.append(shown(path))

    def _base(self, path: bytes) -> bytes | None:
        assert self._conflicts is not None
        written = self._conflicts.written_at(path)
        digest = written.digest if written is not None and written.letter == FILE else None
        if written is not None and (not digest or written.size > TEXT_MAX):
            return None
        fd = None if self._copy is None else self._copy.open_file(path)
        if fd is not None:
            try:
                found = os.fstat(fd)
                fits = found.st_size <= TEXT_MAX and (written is None or written.size == found.st_size)
                data = _whole(fd, found.st_size) if fits else None
            finally:
                os.close(fd)
            if data is not None and (digest is None or digest_of_bytes(data) == digest):
                return data
        digest = digest or self._conflicts.digest_in_base(path)
        return None if not digest or self._content_of is None else self._content_of(path, digest)


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _whole(fd: int, size: int) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while at < size and (data := os.pread(fd, size - at, at)):
        pieces.append(data)
        at += len(data)
    return b"".join(pieces)
