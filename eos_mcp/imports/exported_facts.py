"""Exchange between the record of a copy and that of exports to the workspace directory. Entries that an
export wrote are not the person's changes, and are the base of the next import; entries that an import brought
in are not lost by the next export, and are its base.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.facts import (
    DIRECTORY,
    FILE,
    LINK,
    NOTHING,
    DestinationRecord,
    Fact,
    in_range,
    place_of,
)
from eos_mcp.export.identity import identity_of
from eos_mcp.imports.copied import DIRECTORY as COPIED_DIRECTORY
from eos_mcp.imports.copied import FILE as COPIED_FILE
from eos_mcp.imports.copied import LINK as COPIED_LINK
from eos_mcp.imports.copied import STORED, UNREAD, CopiedEntry, CopiedRecord, kind_of
from eos_mcp.imports.directory_changes import DirectoryChanges
from eos_mcp.workspace.tree_index import racy
from layerstack.kernel import base_xattrs
from layerstack.kernel.base_xattrs import Keeping


def absorb(record: CopiedRecord, exports: str, sandbox_id: str, workspace: str, keeping: Keeping) -> int:
    """Give each path that an export wrote since the last call the entry that it wrote.

    Args:
        exports: the directory of the records of exports.
        workspace: the directory, resolved.
    Returns:
        The number of paths whose entry is new.
    """
    place = place_of(exports, sandbox_id, workspace)
    if not os.path.exists(place):
        return 0
    facts = DestinationRecord(place)
    try:
        rows = [
            row
            for row in facts.rows()
            if _text(*row[1:]) not in record.seen.get(os.fsdecode(row[0]), "").split()
        ]
        known = {os.fsdecode(row[0]) for row in facts.rows()} if rows else set[str]()
    finally:
        facts.close()
    hiding: list[str] = []
    for row in rows:
        path, letter = os.fsdecode(row[0]), row[1]
        record.seen[path] = _text(*row[1:])
        record.changed[path] = None if letter == NOTHING else _entry(workspace, path, row, keeping)
        if letter != DIRECTORY:
            hiding.append(path)
    _hide_below(record, hiding, known)
    return len(rows)


def facts_of(changes: DirectoryChanges) -> dict[str, Fact]:
    """Return the facts that the changes of an import are for later exports, by path."""
    found: dict[str, Fact] = {}
    for path in changes.changes:
        made = changes.new[path]
        if made is None:
            found[path] = Fact(NOTHING)
        elif made.kind == COPIED_FILE:
            mtime_ns = made.stat[2] if made.stat is not None and path not in changes.racy else 0
            found[path] = Fact(FILE, made.size, mtime_ns, bytes.fromhex(made.content))
        elif made.kind == COPIED_LINK:
            found[path] = Fact(LINK, digest=hashlib.sha256(os.fsencode(made.content)).digest())
        else:
            found[path] = Fact(DIRECTORY)
    return found


def will_see(record: CopiedRecord, coming: dict[str, Fact]) -> None:
    """Let `absorb` pass over the facts of an import, and over those that they replace: after a kill the
    record of exports has either.
    """
    for path, fact in coming.items():
        before = record.seen.get(path, "").split()[-1:]
        record.seen[path] = " ".join([*before, _text(*fact)])


def note_import(coming: dict[str, Fact], exports: str, sandbox_id: str, workspace: str) -> None:
    """Record the facts of an import that was published.

    Raises:
        RecordFull, OperationError, OSError: the next export takes what was imported for edited.
    """
    rows = [(os.fsencode(path), f.letter, *in_range(f), f.digest) for path, f in coming.items()]
    facts = DestinationRecord(place_of(exports, sandbox_id, workspace))
    try:
        tree = DirTree(workspace)
        try:
            facts.begin(rows, fresh=False)
            facts.finish(identity_of(tree), workspace)
        finally:
            tree.close()
    finally:
        facts.close()


def _text(letter: str, size: int, mtime_ns: int, digest: bytes) -> str:
    return f"{letter}:{size}:{mtime_ns}:{digest.hex()}"


def _entry(workspace: str, path: str, row: tuple[Any, ...], keeping: Keeping) -> CopiedEntry:
    _, letter, size, mtime_ns, digest = row
    where = os.path.join(workspace, path)
    try:
        s = os.lstat(where)
    except OSError:
        s = None
    kind = {FILE: COPIED_FILE, LINK: COPIED_LINK}.get(letter, COPIED_DIRECTORY)
    stat_of = None if s is None else short(s)
    if s is None or stat_of is None or kind_of(s.st_mode) != kind:
        return CopiedEntry(
            kind, None, None, size, digest.hex() if kind == COPIED_FILE else UNREAD, None, STORED
        )
    mode = s.st_mode & 0o7777
    if kind == COPIED_DIRECTORY:
        return CopiedEntry(kind, stat_of, mode, 0, "", None, STORED)
    if kind == COPIED_LINK:
        target = os.readlink(where)
        same = hashlib.sha256(os.fsencode(target)).digest() == digest
        return CopiedEntry(kind, stat_of if same else None, None, 0, target if same else UNREAD, None, STORED)
    if (s.st_size, s.st_mtime_ns) != (size, mtime_ns):
        return CopiedEntry(kind, None, None, size, digest.hex(), None, STORED)
    xattrs = base_xattrs.digest(base_xattrs.stored(base_xattrs.read(where), keeping))
    if racy((*stat_of, s.st_nlink), time.time_ns()):
        stat_of = None
    return CopiedEntry(kind, stat_of, mode, size, digest.hex(), xattrs, STORED)


def short(s: os.stat_result) -> tuple[int, int, int, int, int]:
    """Shorten an lstat to the fields of `CopiedEntry.stat`."""
    size = 0 if kind_of(s.st_mode) == COPIED_DIRECTORY else s.st_size
    return s.st_mode, size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino


def _hide_below(record: CopiedRecord, hiding: list[str], known: set[str]) -> None:
    """Make absent what was below a path that an export deleted or replaced, unless it wrote it itself."""
    if not hiding:
        return
    gone = set(hiding)
    for path in list(record.paths()):
        at = path
        while at := at.rpartition("/")[0]:
            if at in gone and path not in known:
                record.changed[path] = None
                break
