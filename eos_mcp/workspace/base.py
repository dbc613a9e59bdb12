"""The base: a copy of a workspace, made once per content and shared by every sandbox that starts from it.

    <cache>/<root_hash>/base/B000001-base/...     the copy, immutable
    <cache>/<root_hash>/boot                      the boot id of the boot that made it
    <cache>/<root_hash>/durable                   exists once the copy survives a power cut
    <cache>/index/<hash of the workspace's path>  lstat and SHA-256 of each file at the last copy

An unchanged workspace is recognised by its lstat results alone, as in git. A workspace with few changes is
hard linked from the previous copy, and only the changed files are read. Times, permission bits, symlinks,
hard links, `user.` attributes and access control lists are kept; owners are not.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from eos_agent.machine import private_dirs
from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError, os_error
from eos_mcp.record.boot_id import boot_id
from eos_mcp.workspace import checkout, git_directories
from eos_mcp.workspace.git_directories import Borrowed, Refusal
from eos_mcp.workspace.mount_points import mounts_below
from eos_mcp.workspace.tree_index import (
    Index,
    Listing,
    Stat,
    is_still,
    load_index,
    look,
    racy,
    root_hash_of,
    save_index,
    tree_hash,
    unchanged,
)
from layerstack.kernel import base_xattrs, fsync
from layerstack.kernel.base_xattrs import ALL, Keeping
from layerstack.kernel.content import ContentHash, data_ranges

BASE_LAYER = "B000001-base"
ROUNDS = 4
"""Number of rounds in which files that changed during the copy are copied again. After the last, the
workspace counts as changing.
"""
GIT_WAIT_S = 60.0
"""Seconds for which the copy waits for a repository in which git works, such as a gc in the background."""
GIT_PAUSE_S = 0.05
COPY_THREADS = 2
LARGE_BYTES = 256 * 1024
"""Files of at least this size are read and hashed in a thread; for smaller files, threads only wait for each
other.
"""
PIECE = 1 << 20
NAMED_MAX = 20
"""Maximum of paths that an error names."""


class BaseTree(NamedTuple):
    """A base on this machine's disk. `path` has the directory `B000001-base`; `size_bytes` is the sum of its
    files.
    """

    path: str
    root_hash: str
    reused: bool
    size_bytes: int
    warnings: tuple[str, ...]

    @property
    def source(self) -> str:
        return os.path.join(self.path, BASE_LAYER)


def cache_dir(default: str) -> str:
    """Return the directory of the bases: EOS_SHARED_BASE_CACHE, else `default`."""
    return os.environ.get("EOS_SHARED_BASE_CACHE") or default


def index_of(workspace: str, cache: str) -> str:
    """Return the file with the index of the last copy of a workspace, which is resolved."""
    return os.path.join(cache, "index", hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32])


def check_workspace(workspace: str, own: Iterable[str]) -> None:
    """Refuse a path that cannot be a workspace.

    Args:
        own: the gateway's directories, absolute: state, cache, token.
    Raises:
        OperationError: invalid_request: `workspace` is not absolute, not a directory, or it contains (or is
            inside) one of the gateway's directories.
    """
    details = {"argument": "workspace_root", "value": workspace}
    if not os.path.isabs(workspace) or "\0" in workspace:
        raise OperationError(
            INVALID_REQUEST,
            f"workspace_root must be an absolute path: {workspace!r}",
            details,
            reason="not_absolute",
        )
    if not os.path.isdir(workspace):
        what = "is not a directory" if os.path.lexists(workspace) else "does not exist"
        hint = "name an existing directory of the machine where the gateway runs"
        message = f"workspace_root {workspace} {what} on this machine"
        raise OperationError(INVALID_REQUEST, message, {**details, "hint": hint}, reason="workspace_missing")
    real = os.path.realpath(workspace)
    if real == "/":
        raise OperationError(
            INVALID_REQUEST,
            "workspace_root must not be the filesystem root",
            details,
            reason="workspace_root_is_filesystem_root",
        )
    for path in own:
        ours = os.path.realpath(path)
        if os.path.commonpath([real, ours]) in (real, ours):
            hint = (
                "choose a directory below it, or set EOS_STATE_DIR and EOS_SHARED_BASE_CACHE to other "
                "directories"
            )
            message = (
                f"workspace_root {workspace} and the gateway's own directory {path} contain one "
                f"another; {hint}"
            )
            raise OperationError(
                INVALID_REQUEST,
                message,
                {**details, "hint": hint, "directory": path},
                reason="workspace_holds_own_directory",
            )


def prepare(
    workspace: str,
    cache: str,
    *,
    special_files: str = "skip",
    keeping: Keeping = ALL,
    check_idle: Callable[[], None] = lambda: None,
    refusal: Refusal = lambda _, __: None,
    git_ref: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> BaseTree:
    """Copy `workspace` as it is now, or find the copy of the same content. Git repositories outside that
    belong to it come along (git_directories.py).

    Args:
        refusal: as for `git_directories.complete`.
        git_ref: check this commit out (checkout.py) in place of the directory's present state.
        keeping: the attributes that the store over the base can have, and their xattr namespace.
        check_idle: called before the copy and after it; raises OperationError while an export changes the
            workspace.
    Returns:
        A complete tree; `reused` when a copy of the content existed. A thread makes it durable in the
        background: after a power cut before that, the next call compares its content with its hash and copies
        it again if it was torn.
    Raises:
        OperationError: operation_failed: a file of the workspace cannot be read, it kept changing, it has a
            special file and `special_files` is "abort", or the cache cannot be written. The staging directory
            is removed.
    Cost: one lstat per entry when nothing changed; else a read of each changed file, and a link or copy of
    every file.
    """
    try:
        check_idle()
        tree = _prepare(
            os.path.realpath(workspace), cache, special_files, keeping, refusal, git_ref, progress
        )
        check_idle()
        return tree
    except private_dirs.NotPrivate as error:
        details = {"path": error.filename, "hint": error.hint}
        message = f"workspace preparation failed: the cache of bases, {error.filename}, {error.strerror}"
        raise OperationError(OPERATION_FAILED, message, details, reason="not_private") from error
    except OSError as error:
        refused = os_error(error)
        where = str(refused.details.get("path", ""))
        if where.startswith(os.path.realpath(workspace)):
            refused.details["reason"] = "workspace_unreadable"
            refused.details["hint"] = (
                "make it readable for the user that runs the gateway, or choose a workspace without it"
            )
        elif refused.details["reason"] == "disk_full":
            refused.details["hint"] = (
                "free space on the file system of the cache, or move it with EOS_SHARED_BASE_CACHE"
            )
        elif refused.details.get("errno") in ("EROFS", "EACCES", "EPERM"):
            refused.details["hint"] = (
                "set XDG_CACHE_HOME (or EOS_SHARED_BASE_CACHE, for bases alone) to a directory that can "
                "be written"
            )
        message = f"workspace preparation failed: {refused.message}" + (
            f": {where}" if where else f" while copying to {cache}"
        )
        raise OperationError(OPERATION_FAILED, message, refused.details) from error


def _prepare(
    workspace: str,
    cache: str,
    special_files: str,
    keeping: Keeping,
    refusal: Refusal,
    git_ref: str | None,
    progress: Callable[[str], None],
) -> BaseTree:
    _make_cache(cache)
    index_path = index_of(workspace, cache)

    def walk() -> Borrowed:
        found = git_directories.complete(workspace, look(workspace), refusal)
        return found if git_ref is None else checkout.repository_of(found, workspace, git_ref)

    borrowed = walk()
    listing = borrowed.listing
    if listing.special and special_files == "abort":
        shown = ", ".join(listing.special[:5])
        message = (
            f"workspace preparation failed: the base must be a full copy: "
            f"special={len(listing.special)} [{shown}] unstable=0 []"
        )
        raise OperationError(
            OPERATION_FAILED, message, {"special": list(listing.special[:50])}, reason="special_files"
        )
    index = load_index(index_path) if git_ref is None else None  # git writes into the copy: it has no links
    if index is not None and index.varies and index.keeping != keeping:
        index = None
    mounted = _mounted(workspace, listing) if git_ref is None else ()
    if index is not None and unchanged(index, listing) and usable(cache, index.root_hash):
        return BaseTree(
            os.path.join(cache, index.root_hash, "base"),
            index.root_hash,
            True,
            index.size_bytes,
            (*borrowed.warnings, *mounted, *_left_out(listing), *index.warnings),
        )
    progress(f"copying {len(listing.entries)} entries of {workspace}")
    staging = os.path.join(cache, f".building-{os.getpid()}-{os.urandom(4).hex()}")
    target = os.path.join(staging, "base", BASE_LAYER)
    try:
        private_dirs.make(target)
        linked = (
            index is not None and not index.warnings
        )  # after warnings all files are read, so that the same warnings are reported again
        previous = (
            os.path.join(cache, index.root_hash, "base", BASE_LAYER) if index is not None and linked else None
        )
        copy = _BaseCopy(workspace, target, keeping, index, previous)
        rounds, until = 0, 0.0
        while True:
            copy.bring_to(borrowed)
            again = walk()
            changed = copy.unstable | _changed(listing, again.listing)
            borrowed, listing = again, again.listing
            if not changed:
                break
            rounds += 1
            if rounds < ROUNDS:
                continue
            until = until or time.monotonic() + GIT_WAIT_S
            if all(map(_is_gits, changed)) and time.monotonic() < until:
                progress(f"git works in {workspace}, waiting for it: {min(changed)}")
                time.sleep(min(GIT_PAUSE_S * (rounds - ROUNDS + 1), 1))
                continue
            shown = ", ".join(sorted(changed)[:5])
            message = (
                f"workspace preparation failed: files keep changing during the copy: special=0 [] "
                f"unstable={len(changed)} [{shown}]"
            )
            raise OperationError(
                OPERATION_FAILED,
                message,
                {"unstable": sorted(changed)[:50], "retryable": True},
                reason="workspace_changing",
            )
        copy.finish_directories(listing)
        warnings = copy.warnings()
        if git_ref is not None:
            progress(f"checking out {git_ref}")
            made = checkout.check_out(target, workspace, git_ref)
            size = sum(s[1] for s in look(target).entries.values() if stat.S_ISREG(s[0]))
            root_hash = tree_hash(target)
            reused = _store(staging, cache, root_hash)
            path = os.path.join(cache, root_hash, "base")
            return BaseTree(path, root_hash, reused, size, (*made.warnings, *borrowed.warnings, *warnings))
        size = sum(entry[1] for entry in listing.entries.values() if stat.S_ISREG(entry[0]))
        tails = borrowed.tails
        entries_of = (
            (path, entry[0], entry[1] + (len(tails[path]) if path in tails else 0), copy.content[path])
            for path, entry in listing.entries.items()
        )
        root_hash = root_hash_of(entries_of, copy.xattrs)
        reused = _store(staging, cache, root_hash)
        entries = {path_: (entry, copy.content[path_]) for path_, entry in listing.entries.items()}
        save_index(
            index_path,
            Index(root_hash, listing.looked_ns, size, warnings, entries, copy.xattrs, keeping, copy.varies),
        )
        return BaseTree(
            os.path.join(cache, root_hash, "base"),
            root_hash,
            reused,
            size,
            (*borrowed.warnings, *mounted, *_left_out(listing), *warnings),
        )
    finally:
        fsync.remove_tree(staging)


def _store(staging: str, cache: str, root_hash: str) -> bool:
    """Give a complete copy its name in the cache; True: the cache had one of this content."""
    if usable(cache, root_hash):
        return True
    path = os.path.join(cache, root_hash)
    fsync.write_new(os.path.join(staging, "boot"), boot_id().encode(), mode=0o600, sync=False)
    try:
        os.rename(staging, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return True
    threading.Thread(target=_make_durable, args=(path,), name="base-durable", daemon=True).start()
    return False


def _make_cache(cache: str) -> None:
    """Make the directory of the bases and set mode 0700 on it and its entries. Trees that other users could
    write are compared with their hash again.
    """
    open_to = private_dirs.make(cache)
    if not open_to:
        return
    for name in os.listdir(cache):
        path = os.path.join(cache, name)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            continue
        could_write = (open_to | found.st_mode) & private_dirs.MAY_WRITE
        if found.st_uid != os.geteuid() or (could_write and name == "index"):
            os.rename(path, os.path.join(cache, f".torn-{name[:16]}-{os.urandom(4).hex()}"))
            continue
        os.chmod(path, 0o700)
        if could_write:
            for mark in ("durable", "boot"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(path, mark))


def _changed(before: Listing, after: Listing) -> set[str]:
    """List the paths that differ between two walks. Times of directories of git do not count: a temporary
    file, which no walk shows, changes them.
    """
    if before.entries == after.entries:
        return set()
    found = before.entries.keys() ^ after.entries.keys()
    for path, entry in before.entries.items():
        now = after.entries.get(path, entry)
        if now != entry and not (stat.S_ISDIR(entry[0]) and _is_gits(path) and now[0] == entry[0]):
            found.add(path)
    return found


def _is_gits(path: str) -> bool:
    return "/.git/" in f"/{path}/"


def _left_out(listing: Listing) -> tuple[str, ...]:
    return (
        *(f"left out, not a regular file, directory or symlink: {path}" for path in listing.special),
        *(f"left out, a name reserved for exports: {path}" for path in listing.staging),
    )


def _mounted(workspace: str, listing: Listing) -> tuple[str, ...]:
    """List the mounts below a workspace, of directories and single files: they are copied with the rest."""
    fd = os.open(workspace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        points = [os.fsdecode(point) for point in mounts_below(fd)]
    finally:
        os.close(fd)
    found = [point for point in points if point in listing.entries]
    more = (
        (f"mounted there, and copied with the rest: {len(found) - NAMED_MAX} more",)
        if len(found) > NAMED_MAX
        else ()
    )
    return (*(f"mounted there, and copied with the rest: {point}" for point in found[:NAMED_MAX]), *more)


def usable(cache: str, root_hash: str) -> bool:
    """Tell whether the cache has the complete tree of this hash. An incomplete tree is moved aside.

    Cost: two look-ups; a read of the whole tree when the machine went down before the tree was durable.
    """
    path = os.path.join(cache, root_hash)
    if not os.path.isdir(os.path.join(path, "base", BASE_LAYER)):
        return False
    if os.path.exists(os.path.join(path, "durable")):
        return True
    try:
        with open(os.path.join(path, "boot"), encoding="ascii") as file:
            if file.read() == boot_id():
                return True
    except OSError:
        pass
    if tree_hash(os.path.join(path, "base", BASE_LAYER)) == root_hash:
        _make_durable(path)
        return True
    os.rename(path, os.path.join(cache, f".torn-{root_hash[:16]}-{os.urandom(4).hex()}"))
    return False


def _make_durable(path: str) -> None:
    with contextlib.suppress(
        OSError
    ):  # the cache was removed, or the system has no syncfs(2): then the boot id decides
        fsync.sync_tree_of(path)
        fsync.write_file(os.path.join(path, "durable"), b"", mode=0o600)


class _BaseCopy:
    """A copy in progress. `content` has the digest or target of each path, `unstable` the paths that changed
    while they were read.
    """

    def __init__(
        self, workspace: str, target: str, keeping: Keeping, index: Index | None, previous: str | None
    ) -> None:
        self.workspace, self.target, self._keeping = workspace, target, keeping
        self.content: dict[str, str] = {}
        self.xattrs: dict[str, str] = {}
        self.varies = False
        self._of_directories: dict[str, dict[str, bytes]] = {}
        self._lost: dict[str, dict[str, None]] = {}
        self.unstable: set[str] = set()
        self._done: dict[str, Stat] = {}
        self._borrowed: Borrowed
        self._index = index
        self._previous = previous if previous is not None and os.path.isdir(previous) else None

    def bring_to(self, borrowed: Borrowed) -> None:
        """Make the copy equal to a walk; files that are equal already are not touched."""
        listing, self._borrowed = borrowed.listing, borrowed
        self.unstable = set()
        for path in sorted(self._done.keys() - listing.entries.keys(), reverse=True):  # deeper entries first
            self._drop(path)
        changed = {path: entry for path, entry in listing.entries.items() if self._done.get(path) != entry}
        for path, entry in changed.items():  # in the order of the walk: a directory before its entries
            if (
                path
                and self._done.get(path) is not None
                and not (stat.S_ISDIR(entry[0]) and stat.S_ISDIR(self._done[path][0]))
            ):
                self._drop(path)
            if stat.S_ISDIR(entry[0]):
                if path and path not in self._done:
                    os.mkdir(os.path.join(self.target, path), 0o700)
                self.content[path] = ""
                self._done[path] = entry
                self._look_at_directory(path)
        links: dict[int, list[str]] = {}
        alone: list[str] = []
        for path, entry in changed.items():
            if stat.S_ISLNK(entry[0]):
                self._link_or_gone(path, entry)
            elif stat.S_ISREG(entry[0]):
                if entry[5] > 1:
                    links.setdefault(entry[4], []).append(path)
                else:
                    alone.append(path)
        files = [*alone, *(paths[0] for paths in links.values())]
        with ThreadPoolExecutor(COPY_THREADS) as pool:
            large = [
                pool.submit(self._file, path, changed[path])
                for path in files
                if changed[path][1] >= LARGE_BYTES
            ]
            for path in files:
                if changed[path][1] < LARGE_BYTES:
                    self._file(path, changed[path])
            for each in large:
                each.result()
        for first, *others in links.values():
            for path in others:
                if first in self.unstable:
                    self.unstable.add(path)
                else:
                    os.link(
                        os.path.join(self.target, first),
                        os.path.join(self.target, path),
                        follow_symlinks=False,
                    )
                    self.content[path], self._done[path] = self.content[first], changed[path]
                    if first in self.xattrs:
                        self.xattrs[path] = self.xattrs[first]

    def finish_directories(self, listing: Listing) -> None:
        """Set modes and times of directories, after the last write below them."""
        for path, entry in sorted(listing.entries.items(), key=lambda item: item[0], reverse=True):
            if stat.S_ISDIR(entry[0]):
                where = os.path.join(self.target, path) if path else self.target
                if path in self._of_directories:
                    self._keep(path, where, self._of_directories[path])
                os.utime(where, ns=(entry[2], entry[2]))
                os.chmod(where, stat.S_IMODE(entry[0]))

    def warnings(self) -> tuple[str, ...]:
        """List the attributes that were not kept, by name."""
        return tuple(
            (
                f"left out, {name} of "
                f"{min(paths) or '.'}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: the "
                f"copy cannot "
                f"have it here"
            )
            for name, paths in sorted(self._lost.items())
        )

    def _look_at_directory(self, path: str) -> None:
        self._of_directories.pop(path, None)
        try:
            found = base_xattrs.read(self._borrowed.source(self.workspace, path))
        except FileNotFoundError:
            return
        if found:
            self._of_directories[path] = found

    def _keep(self, path: str, where: str | int, found: dict[str, bytes]) -> None:
        """Give a copy the attributes of its original, as far as the sandbox's store and this file system
        support them.
        """
        kept: dict[str, bytes] = {}
        self.varies = self.varies or base_xattrs.varies(found)
        wanted = base_xattrs.stored(found, self._keeping)
        for name in found:
            if name in base_xattrs.ACLS and name not in wanted:
                self._lost.setdefault("the access control list", {})[path] = None
        for name, value in wanted.items():
            try:
                os.setxattr(where, name, value)
            except OSError as error:
                if error.errno not in (
                    errno.EOPNOTSUPP,
                    errno.ENOSPC,
                    errno.E2BIG,
                    errno.ERANGE,
                    errno.EPERM,
                    errno.EINVAL,
                ):
                    raise
                self._lost.setdefault(name, {})[path] = None
            else:
                kept[name] = value
        if xattr_digest := base_xattrs.digest(kept):
            self.xattrs[path] = xattr_digest

    def _drop(self, path: str) -> None:
        """Remove one entry; the entries of a directory are removed before it."""
        self.xattrs.pop(path, None)
        where = os.path.join(self.target, path)
        if stat.S_ISDIR(self._done.pop(path)[0]):
            os.rmdir(where)
        else:
            os.unlink(where)
        del self.content[path]

    def _link_or_gone(self, path: str, entry: Stat) -> None:
        try:
            target = os.readlink(self._borrowed.source(self.workspace, path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL, errno.ENOTDIR):
                raise
            self.unstable.add(path)
            return
        where = os.path.join(self.target, path)
        os.symlink(target, where)
        os.utime(where, ns=(entry[2], entry[2]), follow_symlinks=False)
        self.content[path], self._done[path] = target, entry

    def _file(self, path: str, entry: Stat) -> None:
        where = os.path.join(self.target, path)
        if self._index is not None and self._previous is not None:
            known = self._index.entries.get(path)
            if (
                known is not None
                and known[0] == entry
                and not racy(entry, self._index.looked_ns)
                and entry[5] == 1
            ):
                try:
                    os.link(os.path.join(self._previous, path), where, follow_symlinks=False)
                except OSError as error:
                    if error.errno not in (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.ENOENT):
                        raise
                else:
                    self.content[path], self._done[path] = known[1], entry
                    self.varies = self.varies or self._index.varies
                    if path in self._index.xattrs:
                        self.xattrs[path] = self._index.xattrs[path]
                    return
        digest = self._read(path, where, entry)
        if digest is None:
            fsync.remove_tree(where)
            self.unstable.add(path)
        else:
            self.content[path], self._done[path] = digest, entry

    def _read(self, path: str, where: str, entry: Stat) -> str | None:
        """Copy one file; return its digest, or None when the file was replaced since the walk or changed
        during the copy.
        """
        try:
            source = os.open(
                self._borrowed.source(self.workspace, path),
                os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
            )
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                return None
            raise
        try:
            target = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                digest, size = ContentHash(), 0
                for begin, end in data_ranges(source):
                    digest.skip(begin - size)
                    os.lseek(source, begin, os.SEEK_SET)
                    os.lseek(target, begin, os.SEEK_SET)
                    size = begin
                    while size < end and (data := os.read(source, min(PIECE, end - size))):
                        digest.update(data)
                        size += len(data)
                        fsync.write_all(target, data)
                    if size > entry[1] or size < end:
                        return None
                if size < entry[1]:
                    digest.skip(entry[1] - size)
                    size = entry[1]
                    os.ftruncate(target, size)
                if (tail := self._borrowed.tails.get(path)) is not None:
                    digest.update(tail)
                    os.lseek(target, 0, os.SEEK_END)
                    fsync.write_all(target, tail)
                found = base_xattrs.read(source)
                if not is_still(source, entry) or size != entry[1]:
                    return None
                if found:
                    self._keep(path, target, found)
                os.fchmod(target, stat.S_IMODE(entry[0]))
                os.utime(target, ns=(entry[2], entry[2]))
            finally:
                os.close(target)
        finally:
            os.close(source)
        return digest.digest().hex()
