"""The record of what a sandbox has of its workspace directory: per path the lstat and content at the copy, at
the last import, or at the last export to the directory.

    <state>/import-records/<sandbox>/index       the index of the copy (`workspace.tree_index`), a second name
                                                 of its file
                                     copied.json {"format": 1, "entries", "seen"}: what changed since
                                     next.json   the same with "published_as": the record that is valid once
                                                 that request is published
                                     commit.json {"format": 1, "git_ref"}: the sandbox starts from a commit
                                     content/    bytes of imported files by digest, the base of later merges

Without `index` every file is compared with the copy itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from eos_agent.machine import private_dirs
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.workspace.tree_index import RACY_COARSE_NS, Index, Stat, load_index, look, racy
from layerstack.kernel import base_xattrs, fsync
from layerstack.kernel.content import digest_at

FORMAT = 1
COMMIT = "commit.json"
FILE, LINK, DIRECTORY = "f", "l", "d"
BASE, BLOB, STORED = "base", "blob", "stored"
"""Sources of an entry's content: the base; `content/`; a layer of the sandbox, which may be gone."""
UNREAD = ""
"""`content` of a file or link of the copy that was not read yet; of a link whose target is not known."""

ShortStat = tuple[int, int, int, int, int]
"""mode, size, mtime_ns, ctime_ns, inode."""


class CopiedEntry(NamedTuple):
    """State that the sandbox has of one path of the directory."""

    kind: str
    stat: ShortStat | None
    """lstat of the file with this content; None: it must be read to be known."""
    mode: int | None
    """Permission bits; None: not known, and not compared."""
    size: int
    content: str
    """Digest of a file in hex, target of a link."""
    xattrs: str | None
    """Digest of the attributes; None: not known, and not compared."""
    source: str


class CopiedRecord:
    """One sandbox's record in memory. `changed` has the entries that differ from the copy's index; None: the
    path is absent.
    """

    def __init__(self, folder: str, copy: str, index: Index | None) -> None:
        self.folder, self.copy = folder, copy
        self.index = index if index is not None else _index_of(copy)
        self.exact = index is not None
        """True when the index has the lstat results of the directory itself."""
        self.changed: dict[str, CopiedEntry | None] = {}
        self.seen: dict[str, str] = {}
        """Path -> the fact of an export (`export.facts`) that its entry takes into account."""

    def of(self, path: str) -> CopiedEntry | None:
        """Return the entry of a path, None: the sandbox has nothing of it."""
        if path in self.changed:
            return self.changed[path]
        known = self.index.entries.get(path)
        return None if known is None else self._of_copy(path, known)

    def paths(self) -> Iterator[str]:
        """Iterate over the paths that have an entry, without the root."""
        for path in self.index.entries:
            if path and path not in self.changed:
                yield path
        for path, entry in self.changed.items():
            if entry is not None:
                yield path

    def is_unchanged(self, path: str, entry: Stat) -> bool:
        """Tell whether an lstat shows that the path is as the sandbox has it."""
        if path in self.changed:
            known = self.changed[path]
            return known is not None and known.stat == entry[:5]
        copied = self.index.entries.get(path)
        if copied is None:
            return False
        was = copied[0]
        if not self.exact:
            return was[:3] == entry[:3] and not stat.S_ISDIR(entry[0])
        if was[:5] != entry[:5]:
            return False
        near = was[3] > self.index.looked_ns - RACY_COARSE_NS
        return not (near and stat.S_ISREG(was[0]) and racy(was, self.index.looked_ns))

    def _of_copy(self, path: str, known: tuple[Stat, str]) -> CopiedEntry:
        entry, content = known
        kind = kind_of(entry[0])
        xattrs: str | None = self.index.xattrs.get(path, "")
        if not self.exact:
            where = os.path.join(self.copy, path)
            if kind == FILE:
                content = digest_at(where).hex()
            elif kind == LINK:
                content = os.readlink(where)
            xattrs = base_xattrs.digest(base_xattrs.read(where)) if kind != LINK else ""
        stat_of = entry[:5] if self.exact else None
        return CopiedEntry(kind, stat_of, stat.S_IMODE(entry[0]), entry[1], content, xattrs, BASE)

    def content(self, digest: str) -> bytes | None:
        """Read the kept bytes of an imported file."""
        return kept_content(self.folder, digest)

    # ---- the files

    def write(self, name: str, published_as: str | None = None) -> None:
        """Write `changed` and `seen` durably under a name."""
        body: dict[str, Any] = {"format": FORMAT, "entries": self.changed, "seen": self.seen}
        if published_as is not None:
            body["published_as"] = published_as
        private_dirs.make(self.folder)
        data = json.dumps(body, separators=(",", ":")).encode()
        fsync.write_file(os.path.join(self.folder, name), data, mode=0o600)

    def remove_unused_content(self) -> None:
        """Remove, best effort, kept bytes that no entry names."""
        named = {e.content for e in self.changed.values() if e is not None and e.source == BLOB}
        folder = os.path.join(self.folder, "content")
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name not in named:
                    os.unlink(os.path.join(folder, name))


def kind_of(mode: int) -> str:
    return DIRECTORY if stat.S_ISDIR(mode) else LINK if stat.S_ISLNK(mode) else FILE


def folder_of(records: str, sandbox_id: str) -> str:
    return os.path.join(records, sandbox_id)


def kept_content(folder: str, digest: str) -> bytes | None:
    """Read the kept bytes of an imported file, by the folder of the record; None: they were not kept."""
    try:
        with open(os.path.join(folder, "content", digest), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def note_copy(folder: str, index_path: str) -> None:
    """Keep the index of a copy for a sandbox that starts from it, as a second name of the file, or as a copy
    of it on another file system. Best effort: without it files are compared with the copy.
    """
    with contextlib.suppress(OSError):
        private_dirs.make(folder)
        target = os.path.join(folder, "index")
        try:
            os.link(index_path, target)
        except OSError:
            shutil.copyfile(index_path, target)


def note_commit(folder: str, git_ref: str) -> None:
    """Note that a sandbox starts from a commit and not from the directory's state.

    Raises:
        OSError: without the note an import would bring in all that differs from the commit.
    """
    private_dirs.make(folder)
    body = {"format": FORMAT, "git_ref": git_ref}
    fsync.write_file(os.path.join(folder, COMMIT), json.dumps(body).encode(), mode=0o600)


def forget(records: str, sandbox_id: str) -> None:
    """Remove the record of a sandbox that is gone."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder_of(records, sandbox_id))


def load(folder: str, root_hash: str, copy: str) -> CopiedRecord:
    """Read the record of a sandbox.

    Args:
        root_hash: of the sandbox's base; an index of another copy is not used.
        copy: the base on this machine's disk, read only without an index.
    Raises:
        OperationError: operation_failed, reason import_record_unreadable: a file is damaged, or of a later
            version; copy_unknown: neither index nor copy is on this machine; made_from_commit.
    """
    if (commit := _read(os.path.join(folder, COMMIT))) is not None:
        raise OperationError(
            OPERATION_FAILED,
            f"import: the sandbox was made from the commit {commit['git_ref']} and not from the directory: "
            f"changes of the directory since then are not known",
            {
                "git_ref": commit["git_ref"],
                "hint": "take its work out with export_changes --format git and merge there, or create a "
                "sandbox without git_ref",
            },
            reason="made_from_commit",
        )
    index = load_index(os.path.join(folder, "index"))
    if index is not None and index.root_hash != root_hash:
        index = None
    if index is None and not os.path.isdir(copy):
        raise OperationError(
            OPERATION_FAILED,
            f"import: the copy that the sandbox was made from, {copy}, is not on this machine any more, so "
            f"changes since then cannot be found",
            {"path": copy, "hint": "create another sandbox, or bring the changes in by file_write"},
            reason="copy_unknown",
        )
    record = CopiedRecord(folder, copy, index)
    body = _read(os.path.join(folder, "copied.json"))
    if body is not None:
        _take(record, body)
    return record


def pending(record: CopiedRecord) -> str | None:
    """Return the id of the request whose result is not recorded yet; None without one."""
    body = _read(os.path.join(record.folder, "next.json"))
    return None if body is None else str(body.get("published_as"))


def accept_pending(record: CopiedRecord) -> None:
    """Make the pending record the valid one: its request was published."""
    body = _read(os.path.join(record.folder, "next.json"))
    if body is not None:
        _take(record, body)
        os.replace(os.path.join(record.folder, "next.json"), os.path.join(record.folder, "copied.json"))
        fsync.fsync_dir(record.folder)


def drop_pending(record: CopiedRecord) -> None:
    """Remove the pending record: its request was not published."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(record.folder, "next.json"))
        fsync.fsync_dir(record.folder)


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            body: dict[str, Any] = json.load(file)
        if body["format"] != FORMAT:
            raise ValueError(f"its format is {body['format']}, this version reads {FORMAT}")
        return body
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        hint = f"move {path} aside: the next import then compares with the copy that the sandbox began with"
        raise OperationError(
            OPERATION_FAILED,
            f"import: the record of earlier imports, {path}, cannot be used: {error}",
            {"path": path, "hint": hint},
            reason="import_record_unreadable",
        ) from error


def _take(record: CopiedRecord, body: Mapping[str, Any]) -> None:
    record.changed = {path: _entry(row) for path, row in body["entries"].items()}
    record.seen = dict(body["seen"])


def _entry(row: Any) -> CopiedEntry | None:
    if row is None:
        return None
    kind, stat_of, *rest = row
    if stat_of is None:
        return CopiedEntry(kind, None, *rest)
    mode, size, mtime, ctime, inode = stat_of
    return CopiedEntry(kind, (mode, size, mtime, ctime, inode), *rest)


def _index_of(copy: str) -> Index:
    """Make an index of a copy itself: digests are read when an entry is asked for."""
    listing = look(copy)
    entries = {path: (entry, UNREAD) for path, entry in listing.entries.items()}
    return Index("", listing.looked_ns, 0, (), entries, {}, base_xattrs.ALL, False)
