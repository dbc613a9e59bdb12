"""The file operations on a real directory tree, by descriptor: what a session's runner does inside the mount.

No link is ever followed: each parent is opened with O_NOFOLLOW from the one above it. The module is imported by the runner before `/eos` is
masked and uses the standard library alone; errors are OperationError as they go on the wire. `files_of_head` is the twin without a mount.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import stat
from collections.abc import Generator, Mapping
from typing import Any

from eos_agent import text
from eos_agent.account import find_account
from eos_agent.protocol import INVALID_REQUEST, NOT_FOUND, OPERATION_FAILED, OperationError
from eos_agent.workspace_path import resolve, shown
from layerstack.changes import path_json

MAX_EDIT_BYTES = 4 * 1024 * 1024
MAX_LIST_ENTRIES = 2000
DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def perform_in_mount(name: str, root: str, args: Mapping[str, Any], data: bytes | None = None) -> tuple[dict[str, Any], bytes | None]:
    """One file operation below `root`, as the caller sees it there.

    Args:
        name: read | write | edit | list; account: look up the `user` of a command.
        args: the operation's checked arguments; `max_bytes` and `max_entries` carry the configured limits.
        data: the content to write.
    Returns:
        The result object, and bytes that go beside it (none of the present operations has any).
    Raises:
        OperationError: as contract 1.2.5 to 1.2.7; any other refusal of the kernel is an OSError.
    """
    if name == "account":
        return find_account(args["user"]), None
    with _opened(root, DIR_FLAGS) as root_fd:
        operation = {"read": _read, "edit": _edit, "list": _list}.get(name)
        if operation is not None:
            return operation(root_fd, root, args), None
        if name == "write":
            return _write(root_fd, root, args, data or b""), None
    raise OperationError(OPERATION_FAILED, f"no such file operation: {name}", reason="unknown_op")


def not_found(path: str) -> OperationError:
    return OperationError(NOT_FOUND, f"file not found: {shown(path)}", path_json(path), reason="file_not_found")


def not_a_file(path: str, kind: str, at: str | None = None, target: str | None = None) -> OperationError:
    """`kind` is Directory, Symlink or Other; `at` is the path of the symlink when it is a parent of `path`, `target` where it points."""
    details: dict[str, Any] = {**path_json(path), "kind": kind}
    note = ""
    if at is not None and at != path:
        details["at"] = shown(at)
        note = f", its parent {shown(at)} is a symlink"
    if target is not None:
        details["target"] = shown(target)
        note += f" to {shown(target)}" if note else f" points to {shown(target)}"
    return OperationError(INVALID_REQUEST, f"path is not a regular file ({kind}): {shown(path)}{note}", details, reason="not_a_file")


def not_a_directory(path: str, kind: str) -> OperationError:
    return OperationError(
        INVALID_REQUEST, f"path is not a directory ({kind}): {shown(path)}", {**path_json(path), "kind": kind}, reason="not_a_directory"
    )


@contextlib.contextmanager
def _opened(path: str, flags: int, dir_fd: int | None = None) -> Generator[int]:
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "Directory"
    return "Symlink" if stat.S_ISLNK(mode) else "File" if stat.S_ISREG(mode) else "Other"


def _lstat(name: str, dir_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _exists(root_fd: int, path: str) -> bool:
    try:
        with _parent(root_fd, path) as (parent, name):
            return _lstat(name, parent) is not None
    except (OperationError, OSError):
        return False


@contextlib.contextmanager
def _parent(root_fd: int, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
    """The directory that holds `path`, open, and the last name.

    Raises:
        OperationError: invalid_request when a parent is a symlink or no directory, not_found when one is absent and not to be made.
    """
    *parents, name = path.split("/")
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
        yield fd, name
    finally:
        os.close(fd)


def _bad_parent(path: str, at: str, name: str, dir_fd: int) -> OperationError:
    found = _lstat(name, dir_fd)
    if found is not None and stat.S_ISLNK(found.st_mode):
        return not_a_file(path, "Symlink", at, os.readlink(name, dir_fd=dir_fd))
    return OperationError(
        INVALID_REQUEST,
        f"path is not a regular file: {shown(path)}, its parent {shown(at)} is no directory",
        {**path_json(path), "at": shown(at)},
        reason="not_a_file",
    )


def _make_directory(name: str, dir_fd: int) -> int:
    """A new directory, mode 0755, owner and group of its parent; one that somebody else made meanwhile is as good."""
    made = True
    try:
        os.mkdir(name, 0o755, dir_fd=dir_fd)
    except FileExistsError:
        made = False
    fd = os.open(name, DIR_FLAGS, dir_fd=dir_fd)
    if made:
        os.fchmod(fd, 0o755)
        _give(fd, os.fstat(dir_fd))
    return fd


def _give(fd: int, owner: os.stat_result) -> None:
    """chown to the owner and group of `owner`; ids that this namespace does not map stay as they are."""
    mine = os.fstat(fd)
    if (mine.st_uid, mine.st_gid) != (owner.st_uid, owner.st_gid):
        with contextlib.suppress(PermissionError, OSError):
            os.fchown(fd, owner.st_uid, owner.st_gid)


def _regular(path: str, name: str, dir_fd: int) -> os.stat_result | None:
    """What is at `path`: None when absent; anything but a regular file is refused."""
    found = _lstat(name, dir_fd)
    if found is None or stat.S_ISREG(found.st_mode):
        return found
    target = os.readlink(name, dir_fd=dir_fd) if stat.S_ISLNK(found.st_mode) else None
    raise not_a_file(path, _kind(found.st_mode), target=target)


def _open_regular(path: str, name: str, dir_fd: int) -> int:
    if _regular(path, name, dir_fd) is None:
        raise not_found(path)
    try:
        fd = os.open(name, FILE_FLAGS, dir_fd=dir_fd)
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise not_a_file(path, "Symlink") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # replaced since it was looked at
        os.close(fd)
        raise not_a_file(path, "Other")
    return fd


def _read(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    path = resolve(args, root, lambda p: _exists(root_fd, p))
    with _parent(root_fd, path) as (parent, name), open(_open_regular(path, name, parent), "rb", buffering=0) as file:
        window = text.read_window(file, path, args["offset"], args["limit"], args.get("max_bytes", text.MAX_WINDOW_BYTES))
    return {**path_json(path), **window.to_json()}


def _write(root_fd: int, root: str, args: Mapping[str, Any], content: bytes) -> dict[str, Any]:
    path = resolve(args, root, lambda p: _exists(root_fd, p))
    with _parent(root_fd, path, make=True) as (parent, name):
        before = _regular(path, name, parent)
        _replace(parent, name, content, before)
    return {"type": "create" if before is None else "update", **path_json(path), "bytes_written": len(content)}


def _edit(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    edits = text.parse_edits(args["edits"])
    path = resolve(args, root, lambda p: _exists(root_fd, p))
    max_bytes = args.get("max_bytes", MAX_EDIT_BYTES)
    with _parent(root_fd, path) as (parent, name):
        with open(_open_regular(path, name, parent), "rb") as file:
            before = os.fstat(file.fileno())
            edited = text.apply_edits(file.read(max_bytes + 1), edits, path, max_bytes)
        _replace(parent, name, edited.content, before)
    return edit_result(path, len(edits), edited)


def edit_result(path: str, count: int, edited: text.Edited) -> dict[str, Any]:
    return {
        "type": "edit",
        **path_json(path),
        "edits_applied": count,
        "replacements": edited.replacements,
        "bytes_written": len(edited.content),
    }


def _replace(dir_fd: int, name: str, content: bytes, before: os.stat_result | None) -> None:
    """Make `name` hold `content` in one step: readers see the old file or the new one, whole.

    A new file is written without a name and linked; only to take the place of another it gets a passing name first. Mode and owner of the
    file before stay; a new one has mode 0644 and the owner of its directory.
    """
    mode = 0o644 if before is None else stat.S_IMODE(before.st_mode)
    try:
        fd, temporary = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=dir_fd), ""
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
        temporary = _passing_name()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        _write_all(fd, content)
        _give(fd, os.fstat(dir_fd) if before is None else before)
        os.fchmod(fd, mode)
        if before is not None:
            _carry_xattrs(dir_fd, name, fd)
        if not temporary:
            if before is None:
                try:
                    _link(fd, name, dir_fd)
                    return
                except FileExistsError:
                    pass  # somebody made it since: replace that
            temporary = _passing_name()
            _link(fd, temporary, dir_fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        temporary = ""
    finally:
        os.close(fd)
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=dir_fd)


def _passing_name() -> str:
    return f".eos-{os.urandom(8).hex()}"


def _link(fd: int, name: str, dir_fd: int) -> None:
    os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=dir_fd, follow_symlinks=True)


def _write_all(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def _carry_xattrs(dir_fd: int, name: str, fd: int) -> None:
    """Access lists and user attributes of the file before; what cannot be set here is left, as an editor would."""
    try:
        with _opened(name, FILE_FLAGS, dir_fd) as old:
            for key in os.listxattr(old):
                if key.startswith(("user.", "system.posix_acl")):
                    os.setxattr(fd, key, os.getxattr(old, key))
    except OSError:
        return


def list_limit(args: Mapping[str, Any]) -> int:
    """The number of entries that the caller may get: `limit`, within the configured roof."""
    roof: int = args.get("max_entries", MAX_LIST_ENTRIES)
    limit: int = args.get("limit", roof)
    return min(limit, roof)


def list_entry(directory: str, name: str, kind: str, size: int | None) -> dict[str, Any]:
    """One row of a listing; a name that is not UTF-8 has the whole path in `path_b64` beside it."""
    entry: dict[str, Any] = {"name": shown(name), "kind": kind, "size": size if kind == "file" else None}
    raw = os.fsencode(name)
    if entry["name"].encode() != raw:
        entry["path_b64"] = base64.b64encode(os.fsencode(directory + "/" if directory else "") + raw).decode("ascii")
    return entry


def _list(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    path = resolve(args, root, lambda p: _exists(root_fd, p), allow_root=True)
    limit = list_limit(args)
    with _directory(root_fd, path) as fd:
        with os.scandir(fd) as scan:
            names = sorted(os.fsencode(entry.name) for entry in scan)
        entries: list[dict[str, Any]] = []
        for raw in names[:limit]:
            name = os.fsdecode(raw)
            found = _lstat(name, fd)
            if found is None:
                continue
            kind = {"Directory": "directory", "Symlink": "symlink", "File": "file"}.get(_kind(found.st_mode), "other")
            entries.append(list_entry(path, name, kind, found.st_size))
    return {**path_json(path), "entries": entries, "truncated": len(names) > limit}


@contextlib.contextmanager
def _directory(root_fd: int, path: str) -> Generator[int]:
    """The directory at `path` ('' is the root), open."""
    if not path:
        with _opened(".", DIR_FLAGS, root_fd) as fd:
            yield fd
        return
    with _parent(root_fd, path) as (parent, name):
        found = _lstat(name, parent)
        if found is None:
            raise not_found(path)
        if not stat.S_ISDIR(found.st_mode):
            raise not_a_directory(path, _kind(found.st_mode))
        with _opened(name, DIR_FLAGS, parent) as fd:
            yield fd
