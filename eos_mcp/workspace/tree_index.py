"""The index of a workspace: lstat and digest of each entry at the last copy. An unchanged file is recognised
by it without a read.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from eos_agent.machine import private_dirs
from eos_mcp.workspace.staging_prefix import PREFIX
from layerstack.kernel import base_xattrs, fsync
from layerstack.kernel.base_entry import base_entry
from layerstack.kernel.base_xattrs import Keeping
from layerstack.kernel.content import digest_at
from layerstack.model import git_temporary

INDEX_FORMAT = 3
RACY_NS = 100_000_000
RACY_COARSE_NS = 2_100_000_000
"""A file whose times are this close to its lstat may change again with the same times: its content is read
again next time. The granularity of time stamps is a few milliseconds, on some file systems (FAT) two seconds.
Git: "racy-git.txt".
"""

_STAGING = os.fsdecode(PREFIX)

Stat = tuple[int, int, int, int, int, int]
"""mode, size, mtime_ns, ctime_ns, inode, number of links."""


class Index(NamedTuple):
    """The last copy of one workspace: per path its lstat, and for a file the digest of the content
    (`layerstack.kernel.content`), for a symlink the target.
    """

    root_hash: str
    looked_ns: int
    size_bytes: int
    warnings: tuple[str, ...]
    entries: dict[str, tuple[Stat, str]]
    xattrs: dict[str, str]
    """Path -> digest (`layerstack.kernel.base_xattrs`) of its attributes in the copy; paths without
    attributes are absent.
    """
    keeping: Keeping
    varies: bool
    """True when another `keeping` would have stored the attributes differently."""


class Listing(NamedTuple):
    """One walk over a workspace: lstat by relative path ('' is the root), in the order of the walk, without
    the entries of `special` and `staging`.
    """

    looked_ns: int
    entries: dict[str, Stat]
    special: tuple[str, ...]
    """Entries that are not a regular file, directory or symlink."""
    staging: tuple[str, ...] = ()
    """Entries with the name of an export's staging, at any depth; their contents were not read."""


def look(workspace: str, *, git: bool = False) -> Listing:
    """Call lstat(2) on `workspace` and every entry below it; entries that vanish during the walk are left
    out, and so are locks and temporary files of git (`layerstack.model.git_temporary`) in a `.git`.

    git: `workspace` is itself a git directory.
    """
    looked = time.time_ns()
    root = os.stat(workspace)
    entries: dict[str, Stat] = {"": (root.st_mode, 0, root.st_mtime_ns, root.st_ctime_ns, root.st_ino, 0)}
    special: list[str] = []
    staging: list[str] = []
    pending = [""]
    isdir, isreg, islnk = stat.S_ISDIR, stat.S_ISREG, stat.S_ISLNK
    while pending:
        prefix = pending.pop()
        try:
            found = os.scandir(os.path.join(workspace, prefix))
        except (FileNotFoundError, NotADirectoryError):
            continue
        lead = prefix + "/" if prefix else ""
        in_git = git or "/.git/" in f"/{lead}"
        with found:
            for entry in found:
                if in_git and git_temporary.may_be(entry.name) and _left_by_git(entry, lead):
                    continue
                if entry.name.startswith(_STAGING):
                    staging.append(lead + entry.name)
                    continue
                try:
                    s = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                mode, path = s.st_mode, lead + entry.name
                if isreg(mode) or islnk(mode):
                    entries[path] = (mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_nlink)
                elif isdir(mode):
                    entries[path] = (mode, 0, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, 0)
                    pending.append(path)
                else:
                    special.append(path)
    return Listing(looked, entries, tuple(sorted(special)), tuple(sorted(staging)))


def _left_by_git(entry: os.DirEntry[str], lead: str) -> bool:
    """Tell whether an entry of a git directory is a lock or temporary file; `lead` is the path up to it."""
    below = f"/{lead}{entry.name}".rpartition("/.git/")[2].lstrip("/")
    return git_temporary.is_temporary(below, directory=entry.is_dir(follow_symlinks=False))


def root_hash_of(entries: Iterable[tuple[str, int, int, str]], xattrs: Mapping[str, str] = {}) -> str:
    """Hash (path, mode, size, content) entries, in byte order of paths, to the root hash of a base in hex.

    Args:
        entries: `content` is the hex digest of a file (`layerstack.kernel.content`) or the target of a
            symlink.
        xattrs: the digest of the attributes of each path that has any.
    """
    digest = hashlib.sha256()
    for path, mode, size, content in sorted(entries, key=lambda entry: os.fsencode(entry[0])):
        digest.update(base_entry(os.fsencode(path), mode, size, os.fsencode(content), xattrs.get(path, "")))
    return digest.hexdigest()


def racy(entry: Stat, looked_ns: int) -> bool:
    """Tell whether an entry changed so shortly before `looked_ns` that a later change may have the same
    times.
    """
    newest = max(entry[2], entry[3])
    return looked_ns - newest < (RACY_NS if entry[3] % 1_000_000_000 else RACY_COARSE_NS)


def is_still(fd: int, entry: Stat) -> bool:
    """Tell whether the open file is as an lstat of the walk showed it; the number of links does not count."""
    now = os.fstat(fd)
    return (now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino) == entry[:5]


def unchanged(index: Index, listing: Listing) -> bool:
    """Tell whether every lstat equals that of the index, and no time is so close to the last walk that a
    later change would not show.
    """
    if len(index.entries) != len(listing.entries):
        return False
    before, limit = index.entries, index.looked_ns - RACY_COARSE_NS
    for path, entry in listing.entries.items():
        known = before.get(path)
        if known is None or known[0] != entry:
            return False
        if entry[3] > limit and stat.S_ISREG(entry[0]) and racy(entry, index.looked_ns):
            return False
    return True


def tree_hash(tree: str) -> str:
    """Compute the root hash of a tree on disk; reads every file."""
    entries: list[tuple[str, int, int, str]] = []
    xattrs: dict[str, str] = {}
    for path, entry in look(tree).entries.items():
        content = ""
        if not stat.S_ISLNK(entry[0]) and (
            xattr_digest := base_xattrs.digest(base_xattrs.read(os.path.join(tree, path) if path else tree))
        ):
            xattrs[path] = xattr_digest
        if stat.S_ISLNK(entry[0]):
            content = os.readlink(os.path.join(tree, path))
        elif stat.S_ISREG(entry[0]):
            content = digest_at(os.path.join(tree, path)).hex()
        entries.append((path, entry[0], entry[1], content))
    return root_hash_of(entries, xattrs)


def load_index(path: str) -> Index | None:
    """Read the index at `path`; None when it is missing, of another format or damaged: then every file is
    read again.
    """
    try:
        with open(path, "rb") as file:
            raw = json.load(file)
        if raw["format"] != INDEX_FORMAT:
            return None
        numbers = iter(raw["numbers"])
        stats = zip(*[numbers] * 6, strict=True)
        entries: dict[str, tuple[Stat, str]] = dict(
            zip(raw["paths"], zip(stats, raw["content"], strict=True), strict=True)
        )
        keeping = Keeping(*raw["keeping"])
        return Index(
            raw["root_hash"],
            raw["looked_ns"],
            raw["size_bytes"],
            tuple(raw["warnings"]),
            entries,
            raw["xattrs"],
            keeping,
            raw["varies"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_index(path: str, index: Index) -> None:
    private_dirs.make(os.path.dirname(path))
    known: Sequence[tuple[Stat, str]] = list(index.entries.values())
    value = {
        "format": INDEX_FORMAT,
        "root_hash": index.root_hash,
        "looked_ns": index.looked_ns,
        "size_bytes": index.size_bytes,
        "warnings": index.warnings,
        "paths": list(index.entries),
        "numbers": list(itertools.chain.from_iterable(entry[0] for entry in known)),
        "content": [entry[1] for entry in known],
        "xattrs": index.xattrs,
        "keeping": index.keeping,
        "varies": index.varies,
    }
    fsync.write_file(path, json.dumps(value, separators=(",", ":")).encode(), mode=0o600)
