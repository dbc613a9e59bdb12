"""Open files below a directory by descriptors, without following symlinks: the parent directory by one
openat2(2), or each directory on the path by openat(2) with O_NOFOLLOW.

Shared by the file operations of a session. Standard library only: init imports it before `/eos` is masked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from typing import Any

from eos_agent.wire.protocol import INVALID_REQUEST, NOT_FOUND, OperationError
from eos_agent.wire.workspace_path import shown
from layerstack.kernel.beneath import open_beneath
from layerstack.model.conflict import path_json

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
KINDS = {"Directory": "directory", "Symlink": "symlink", "File": "file", "Other": "other"}
"""Map the kind in an error to the kind in a listing."""
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def not_found(path: str) -> OperationError:
    return OperationError(
        NOT_FOUND, f"file not found: {shown(path)}", path_json(path), reason="file_not_found"
    )


def not_a_file(path: str, kind: str, at: str | None = None, target: str | None = None) -> OperationError:
    """`kind` is Directory, Symlink or Other; `at` is the symlink if it is a parent of `path`, `target` its
    target."""
    details: dict[str, Any] = {**path_json(path), "kind": kind}
    note = ""
    if at is not None and at != path:
        details["at"] = shown(at)
        note = f", its parent {shown(at)} is a symlink"
    if target is not None:
        details["target"] = shown(target)
        note += f" to {shown(target)}" if note else f" points to {shown(target)}"
    return OperationError(
        INVALID_REQUEST,
        f"path is not a regular file ({kind}): {shown(path)}{note}",
        details,
        reason="not_a_file",
    )


def not_a_directory(path: str, kind: str) -> OperationError:
    return OperationError(
        INVALID_REQUEST,
        f"path is not a directory ({kind}): {shown(path)}",
        {**path_json(path), "kind": kind},
        reason="not_a_directory",
    )


@contextlib.contextmanager
def opened(path: str, flags: int, dir_fd: int | None = None) -> Generator[int]:
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "Directory"
    return "Symlink" if stat.S_ISLNK(mode) else "File" if stat.S_ISREG(mode) else "Other"


def lstat(name: str, dir_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def exists(root_fd: int, path: str) -> bool:
    try:
        with parent_of(root_fd, path) as (parent, name):
            return lstat(name, parent) is not None
    except (OperationError, OSError):
        return False


@contextlib.contextmanager
def parent_of(root_fd: int, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
    """Open the parent directory of `path`; yield its descriptor and the last name.

    Raises:
        OperationError: invalid_request if a parent is a symlink or not a directory; not_found if a parent is
            absent and `make` is false.
    """
    above, slash, name = path.rpartition("/")
    fd = open_beneath(root_fd, above, DIR_FLAGS) if slash else os.dup(root_fd)
    if fd is None:
        fd = _walk(root_fd, path, above.split("/"), make)
    try:
        yield fd, name
    finally:
        os.close(fd)


def _walk(root_fd: int, path: str, parents: list[str], make: bool) -> int:
    """Open the last of `parents`, going down from `root_fd` one by one."""
    fd = os.dup(root_fd)
    try:
        for depth, part in enumerate(parents, 1):
            try:
                below = os.open(part, DIR_FLAGS, dir_fd=fd)
            except FileNotFoundError:
                if not make:
                    raise not_found(path) from None
                below = _make_directory(part, fd)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                raise _bad_parent(path, "/".join(parents[:depth]), part, fd) from None
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd


def _bad_parent(path: str, at: str, name: str, dir_fd: int) -> OperationError:
    found = lstat(name, dir_fd)
    if found is not None and stat.S_ISLNK(found.st_mode):
        return not_a_file(path, "Symlink", at, os.readlink(name, dir_fd=dir_fd))
    return below_a_file(path, at)


def below_a_file(path: str, at: str) -> OperationError:
    """The error for a parent `at` of `path` that is neither a directory nor a symlink."""
    return OperationError(
        INVALID_REQUEST,
        f"path is not a regular file: {shown(path)}, its parent {shown(at)} is not a directory",
        {**path_json(path), "at": shown(at)},
        reason="not_a_file",
    )


def _make_directory(name: str, dir_fd: int) -> int:
    """Make and open a directory with mode 0755 and its parent's owner and group; if another process made it
    first, open that."""
    made = True
    try:
        os.mkdir(name, 0o755, dir_fd=dir_fd)
    except FileExistsError:
        made = False
    fd = os.open(name, DIR_FLAGS, dir_fd=dir_fd)
    if made:
        os.fchmod(fd, 0o755)
        give(fd, os.fstat(dir_fd))
    return fd


def give(fd: int, owner: os.stat_result) -> None:
    """Set owner and group to those of `owner`; ids that this namespace does not map are not changed."""
    mine = os.fstat(fd)
    if (mine.st_uid, mine.st_gid) != (owner.st_uid, owner.st_gid):
        with contextlib.suppress(PermissionError, OSError):
            os.fchown(fd, owner.st_uid, owner.st_gid)


def carry_xattrs(dir_fd: int, name: str, fd: int) -> None:
    """Copy ACLs and user xattrs of the old file; as in editors, one that cannot be set is left out."""
    try:
        with opened(name, FILE_FLAGS, dir_fd) as old:
            for key in os.listxattr(old):
                if key.startswith(("user.", "system.posix_acl")):
                    os.setxattr(fd, key, os.getxattr(old, key))
    except OSError:
        return


def regular(path: str, name: str, dir_fd: int) -> os.stat_result | None:
    """Stat the regular file at `path`; None if it is absent. Any other kind of file is refused."""
    found = lstat(name, dir_fd)
    if found is None or stat.S_ISREG(found.st_mode):
        return found
    target = os.readlink(name, dir_fd=dir_fd) if stat.S_ISLNK(found.st_mode) else None
    raise not_a_file(path, kind_of(found.st_mode), target=target)


def open_regular(path: str, name: str, dir_fd: int) -> int:
    if regular(path, name, dir_fd) is None:
        raise not_found(path)
    try:
        fd = os.open(name, FILE_FLAGS, dir_fd=dir_fd)
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise not_a_file(path, "Symlink") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # replaced since lstat(2)
        os.close(fd)
        raise not_a_file(path, "Other")
    return fd


@contextlib.contextmanager
def directory(root_fd: int, path: str) -> Generator[int]:
    """Open the directory at `path` ('' is the root)."""
    if not path:
        with opened(".", DIR_FLAGS, root_fd) as fd:
            yield fd
        return
    if (below := open_beneath(root_fd, path, DIR_FLAGS)) is not None:
        try:
            yield below
        finally:
            os.close(below)
        return
    with parent_of(root_fd, path) as (parent, name):
        found = lstat(name, parent)
        if found is None:
            raise not_found(path)
        if not stat.S_ISDIR(found.st_mode):
            raise not_a_directory(path, kind_of(found.st_mode))
        with opened(name, DIR_FLAGS, parent) as fd:
            yield fd


def described(path: str, found: os.stat_result, target: str | None) -> dict[str, Any]:
    """The result of file_stat for `path` itself; `target` of a symlink."""
    kind = KINDS[kind_of(found.st_mode)]
    about: dict[str, Any] = {
        **path_json(path),
        "kind": kind,
        "size": found.st_size if kind == "file" else None,
    }
    about["mode"] = f"{stat.S_IMODE(found.st_mode):04o}"
    about["uid"], about["gid"] = found.st_uid, found.st_gid
    about["mtime_unix_ms"] = found.st_mtime_ns // 1_000_000
    if kind == "file":
        about["links"] = found.st_nlink
    if target is not None:
        about["target"] = shown(target)
    return about


def not_empty(path: str) -> OperationError:
    hint = "recursive also deletes its content"
    return OperationError(
        INVALID_REQUEST,
        f"directory is not empty: {shown(path)}",
        {**path_json(path), "hint": hint},
        reason="directory_not_empty",
    )


def in_the_way(path: str) -> OperationError:
    """The error for a move onto a directory that is not empty."""
    return OperationError(
        INVALID_REQUEST,
        f"directory is not empty: {shown(path)}",
        path_json(path),
        reason="directory_not_empty",
    )


def already_exists(path: str) -> OperationError:
    hint = "overwrite replaces it; to move into a directory give the complete new path"
    return OperationError(
        INVALID_REQUEST,
        f"path exists already: {shown(path)}",
        {**path_json(path), "hint": hint},
        reason="already_exists",
    )


def inside_itself(source: str, target: str) -> OperationError:
    message = f"cannot move {shown(source)} to {shown(target)}: that is the same path, or inside of it"
    return OperationError(
        INVALID_REQUEST, message, {"argument": "to", **path_json(target)}, reason="invalid_path"
    )


def moved(source: str, target: str, kind: str) -> dict[str, Any]:
    """The result of file_move."""
    result: dict[str, Any] = {"type": "move", "kind": kind}
    for name, path in (("from", source), ("to", target)):
        for key, value in path_json(path).items():
            result[name + key.removeprefix("path")] = value
    return result
