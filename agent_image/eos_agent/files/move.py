"""Stat, delete and move inside a session's mount, by descriptors, with system calls that inotify watchers
see.

A tree is deleted entry by entry. A directory that the kernel refuses to rename is moved entry by entry too
(EXDEV: a directory of a lower layer in an ordinary user's overlay, overlayfs.rst "redirect_dir").
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Mapping
from typing import Any

from eos_agent.files.dirfd import (
    DIR_FLAGS,
    FILE_FLAGS,
    KINDS,
    already_exists,
    described,
    exists,
    in_the_way,
    inside_itself,
    kind_of,
    lstat,
    moved,
    not_a_directory,
    not_a_file,
    not_empty,
    not_found,
    opened,
    parent_of,
)
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_agent.wire.workspace_path import resolve, shown
from layerstack.kernel import syscalls, tempnames
from layerstack.model.conflict import path_json

COPY_BYTES = 1 << 20
COPY_NEEDED = "copy_needed"
PASSING = "entry"
"""The name, inside a temporary directory, of the entry that is being completed there."""


def stat_path(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Perform file_stat. A symlink is not followed: the link itself is described, with its target."""
    path = resolve(args, root, lambda p: exists(root_fd, p), allow_root=True)
    if not path:
        return described(path, os.fstat(root_fd), None)
    with parent_of(root_fd, path) as (parent, name):
        found = lstat(name, parent)
        if found is None:
            raise not_found(path)
        return described(
            path, found, os.readlink(name, dir_fd=parent) if stat.S_ISLNK(found.st_mode) else None
        )


def delete(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Perform file_delete. A symlink is deleted, not its target.

    A tree is deleted entry by entry. An entry that another process makes during the deletion is deleted too,
    or makes the last rmdir(2) fail.
    """
    path = resolve(args, root, lambda p: exists(root_fd, p))
    with parent_of(root_fd, path) as (parent, name):
        found = lstat(name, parent)
        if found is None:
            raise not_found(path)
        kind = KINDS[kind_of(found.st_mode)]
        if kind != "directory":
            os.unlink(name, dir_fd=parent)
        elif args["recursive"]:
            remove_tree(name, parent)
        else:
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise not_empty(path) from None
    return {"type": "delete", **path_json(path), "kind": kind}


def remove_tree(name: str, dir_fd: int) -> None:
    """Delete a directory recursively without following links, with an open descriptor for each level."""
    # descriptor of a directory, its name in its parent, names left in it
    stack: list[tuple[int, str, list[str]]] = []

    def enter(inner: str, above: int) -> None:
        fd = os.open(inner, DIR_FLAGS, dir_fd=above)
        try:
            stack.append((fd, inner, os.listdir(fd)))
        except BaseException:
            os.close(fd)
            raise

    enter(name, dir_fd)
    try:
        while stack:
            fd, own, names = stack[-1]
            if names:
                entry = names.pop()
                try:
                    os.unlink(entry, dir_fd=fd)
                except FileNotFoundError:
                    continue
                except (
                    IsADirectoryError,
                    PermissionError,
                ):  # unlink(2) of a directory: EISDIR, elsewhere EPERM
                    found = lstat(entry, fd)
                    if found is None:
                        continue
                    if not stat.S_ISDIR(found.st_mode):
                        raise
                    enter(entry, fd)
                continue
            stack.pop()
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(own, dir_fd=stack[-1][0] if stack else dir_fd)
    finally:
        for fd, _, _ in stack:
            os.close(fd)


@contextlib.contextmanager
def passing_place(dir_fd: int, name: str = "") -> Generator[int]:
    """Make and open a temporary directory in which an entry is completed before its rename; at the end remove
    the directory with its remaining content."""
    name = name or tempnames.place_name()
    os.mkdir(name, tempnames.PLACE_MODE, dir_fd=dir_fd)
    try:
        with opened(name, DIR_FLAGS, dir_fd) as fd:
            yield fd
    finally:
        clear_place(name, dir_fd)


def clear_place(name: str, dir_fd: int) -> None:
    """Remove a temporary directory with its content, if it exists."""
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        remove_tree(name, dir_fd)


def clear_after_move(root: str, args: Mapping[str, Any]) -> None:
    """Remove the temporary directory `tempnames` of a move that was killed.

    Raises:
        OperationError, OSError: the directory was moved or is in use; a capture leaves it out.
    """
    with opened(root, DIR_FLAGS) as root_fd:
        target = resolve(args, root, lambda p: exists(root_fd, p), argument="to")
        with parent_of(root_fd, target) as (to_fd, _):
            clear_place(args["passing"], to_fd)


def move(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Perform file_move: make missing parents of the new path, then rename(2). Concurrent moves lose nothing.

    With `copy`, an entry that the kernel refuses to rename is copied and deleted, which may take long;
    without it the error has reason COPY_NEEDED. `tempnames` is the name of the copy's temporary directory,
    for `clear_after_move`.
    """
    source = resolve(args, root, lambda p: exists(root_fd, p), argument="from")
    target = resolve(args, root, lambda p: exists(root_fd, p), argument="to")
    if target == source or target.startswith(source + "/"):
        raise inside_itself(source, target)
    with parent_of(root_fd, source) as (from_fd, old):
        found = lstat(old, from_fd)
        if found is None:
            raise not_found(source)
        with parent_of(root_fd, target, make=True) as (to_fd, new):
            try:
                over = lstat(new, to_fd)
                _may_replace(found, target, over, overwrite=args["overwrite"])
                if over is not None and (over.st_dev, over.st_ino) == (found.st_dev, found.st_ino):
                    os.unlink(old, dir_fd=from_fd)  # two names of one file: rename(2) would leave both
                else:
                    _rename(from_fd, old, to_fd, new, overwrite=args["overwrite"])
            except FileExistsError:
                raise (in_the_way(target) if args["overwrite"] else already_exists(target)) from None
            except OSError as error:
                if error.errno == errno.ENOTEMPTY:
                    raise in_the_way(target) from None
                if error.errno != errno.EXDEV:
                    raise
                if not args.get("copy"):
                    message = f"{shown(source)} cannot be renamed here, only copied and deleted"
                    raise OperationError(
                        OPERATION_FAILED, message, path_json(source), reason=COPY_NEEDED
                    ) from None
                _move_by_copy(
                    from_fd, old, to_fd, new, overwrite=args["overwrite"], tempnames=args.get("passing", "")
                )
    return moved(source, target, KINDS[kind_of(found.st_mode)])


def _may_replace(found: os.stat_result, target: str, over: os.stat_result | None, *, overwrite: bool) -> None:
    """Check as rename(2) does: a file or symlink may replace a file or symlink, a directory may replace an
    empty directory."""
    if over is None:
        return
    if not overwrite:
        raise already_exists(target)
    if stat.S_ISDIR(over.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise not_a_file(target, "Directory")
    if stat.S_ISDIR(found.st_mode) and not stat.S_ISDIR(over.st_mode):
        raise not_a_directory(target, kind_of(over.st_mode))


def _rename(from_fd: int, old: str, to_fd: int, new: str, *, overwrite: bool) -> None:
    if overwrite:
        os.rename(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)
    else:
        syscalls.renameat2(old, new, syscalls.RENAME_NOREPLACE, old_dir_fd=from_fd, new_dir_fd=to_fd)


def _move_by_copy(from_fd: int, old: str, to_fd: int, new: str, *, overwrite: bool, tempnames: str) -> None:
    """Move a directory by copy: copy it into the directory of its target, rename the copy, then delete the
    original."""
    with passing_place(to_fd, tempnames) as aside_fd:
        _TreeCopy(aside_fd).entry(from_fd, old, aside_fd, PASSING, PASSING)
        _rename(aside_fd, PASSING, to_fd, new, overwrite=overwrite)
    remove_tree(old, from_fd)


class _TreeCopy:
    """Copies a tree below one directory like cp -a, hard links included."""

    def __init__(self, top_fd: int) -> None:
        self._top_fd = top_fd
        # inode of a file with several names -> path of its copy below `top_fd`
        self._first: dict[tuple[int, int], str] = {}

    def entry(self, from_fd: int, old: str, to_fd: int, new: str, path: str) -> None:
        found = os.stat(old, dir_fd=from_fd, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(new, 0o700, dir_fd=to_fd)
            with opened(old, DIR_FLAGS, from_fd) as source, opened(new, DIR_FLAGS, to_fd) as target:
                for name in os.listdir(source):
                    self.entry(source, name, target, name, f"{path}/{name}")
                _carry(source, target, found)
        elif stat.S_ISREG(found.st_mode):
            self._file(found, from_fd, old, to_fd, new, path)
        else:
            if stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(old, dir_fd=from_fd), new, dir_fd=to_fd)
            else:
                os.mknod(new, found.st_mode, found.st_rdev, dir_fd=to_fd)
            with contextlib.suppress(PermissionError):
                os.chown(new, found.st_uid, found.st_gid, dir_fd=to_fd, follow_symlinks=False)
            os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=to_fd, follow_symlinks=False)

    def _file(self, found: os.stat_result, from_fd: int, old: str, to_fd: int, new: str, path: str) -> None:
        inode = (found.st_dev, found.st_ino)
        if inode in self._first:
            os.link(self._first[inode], new, src_dir_fd=self._top_fd, dst_dir_fd=to_fd, follow_symlinks=False)
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            opened(old, FILE_FLAGS, from_fd) as source,
            open(os.open(new, flags, 0o600, dir_fd=to_fd), "wb", 0) as target,
        ):
            while piece := os.read(source, COPY_BYTES):
                target.write(piece)
            _carry(source, target.fileno(), found)
        if found.st_nlink > 1:
            self._first[inode] = path


def _carry(source: int, target: int, found: os.stat_result) -> None:
    """Copy owner, mode, xattrs and times from one open file to another."""
    with contextlib.suppress(PermissionError):
        os.fchown(target, found.st_uid, found.st_gid)
    for key in os.listxattr(source):
        with contextlib.suppress(OSError):
            os.setxattr(target, key, os.getxattr(source, key))
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
