"""File operations on a directory tree by descriptor, performed by a session's init or helper inside the
mount.

Symlinks are never followed (dirfd.py). Init imports this module before `/eos` is masked; the module uses the
standard library only. Errors are OperationError in wire form. `head` has the same operations without a mount.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import stat
from collections.abc import Callable, Mapping
from typing import IO, Any

from eos_agent.files import page_cursor, text
from eos_agent.files.dirfd import (
    DIR_FLAGS,
    carry_xattrs,
    directory,
    exists,
    give,
    kind_of,
    lstat,
    open_regular,
    opened,
    parent_of,
    regular,
)
from eos_agent.files.glob_list import list_glob
from eos_agent.files.move import PASSING, delete, move, passing_place, stat_path
from eos_agent.files.patch_mount import apply_patch, undo_patch
from eos_agent.files.search import Tell, search
from eos_agent.kernel.passwd import find_account
from eos_agent.wire.encoding import BASE64, UTF8, encoding_of, read_window
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_agent.wire.workspace_path import resolve, shown
from layerstack.kernel import tempnames
from layerstack.kernel.fsync import write_all
from layerstack.model.conflict import path_json

MAX_LIST_ENTRIES = 2000
EDIT_ROUNDS = 20


def perform_in_mount(
    name: str, root: str, args: Mapping[str, Any], data: bytes | None = None, tell: Tell | None = None
) -> tuple[dict[str, Any], bytes | None]:
    """Perform one file operation below `root`.

    Args:
        name: read | write | edit | list | glob | stat | delete | move | patch | search; account: look up
            the `user` of a command; undo_patch.
        args: the operation's checked arguments; `max_bytes` and `max_entries` are the configured limits. A
            search and a glob set a timer and limits of the process that runs them, so each needs a process of
            its own.
        data: the content to write.
        tell: for a search, see `search.search`.
    Returns:
        The result object, and bytes sent after it (at present every operation returns None for them).
    Raises:
        OperationError: as contract 1.2.5 to 1.2.7; any other refusal of the kernel is an OSError.
    """
    if name == "account":
        return find_account(args["user"]), None
    with opened(root, DIR_FLAGS) as root_fd:
        operation = _OPERATIONS.get(name)
        if operation is not None:
            return operation(root_fd, root, args), None
        if name == "search":
            return search(root_fd, root, args, tell), None
        if name == "write":
            return _write(root_fd, root, args, data or b""), None
    raise OperationError(OPERATION_FAILED, f"no such file operation: {name}", reason="unknown_op")


def _read(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    path = resolve(args, root, lambda p: exists(root_fd, p))
    with (
        parent_of(root_fd, path) as (parent, name),
        open(open_regular(path, name, parent), "rb", buffering=0) as file,
    ):
        return {**path_json(path), **read_content(file, path, args)}


def read_content(file: IO[bytes], path: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Read the window of a file that file_read asks for, in its encoding."""
    encoding, max_bytes = encoding_of(args), args.get("max_bytes", text.MAX_WINDOW_BYTES)
    if encoding == BASE64:
        return read_window(file, path, args["offset"], args["limit"], max_bytes)
    found = text.read_window(file, path, args["offset"], args["limit"], max_bytes, encoding).to_json()
    return found if encoding == UTF8 else {**found, "encoding": encoding}


def _write(root_fd: int, root: str, args: Mapping[str, Any], content: bytes) -> dict[str, Any]:
    path = resolve(args, root, lambda p: exists(root_fd, p))
    with parent_of(root_fd, path, make=True) as (parent, name):
        before = regular(path, name, parent)
        _replace(parent, name, content, before)
    return {
        "type": "create" if before is None else "update",
        **path_json(path),
        "bytes_written": len(content),
    }


def _edit(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    encoding = encoding_of(args, text_only=True)
    edits = text.parse_edits(args["edits"], encoding)
    path = resolve(args, root, lambda p: exists(root_fd, p))
    max_bytes = args.get("max_bytes", text.MAX_EDIT_BYTES)
    with parent_of(root_fd, path) as (parent, name):
        for _ in range(EDIT_ROUNDS):
            with open(open_regular(path, name, parent), "rb") as file:
                before = os.fstat(file.fileno())
                edited = text.apply_edits(file.read(max_bytes + 1), edits, path, max_bytes, encoding)
            if _replace(parent, name, edited.content, before, unchanged=True):
                return edit_result(path, len(edits), edited)
    details = {
        **path_json(path),
        "retryable": True,
        "hint": "a process of the session keeps changing it: wait until it ends, then repeat the edit",
    }
    raise OperationError(
        OPERATION_FAILED,
        f"{shown(path)} was changed by another process during each of {EDIT_ROUNDS} attempts to edit it",
        details,
        reason="file_changed",
    )


def _same(one: os.stat_result, other: os.stat_result | None) -> bool:
    """Test that the file is the same one as at the read, unchanged."""
    return other is not None and (one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) == (
        other.st_dev,
        other.st_ino,
        other.st_size,
        other.st_mtime_ns,
    )


def edit_result(path: str, count: int, edited: text.Edited) -> dict[str, Any]:
    return {
        "type": "edit",
        **path_json(path),
        "edits_applied": count,
        "replacements": edited.replacements,
        "bytes_written": len(edited.content),
    }


def _replace(
    dir_fd: int, name: str, content: bytes, before: os.stat_result | None, *, unchanged: bool = False
) -> bool:
    """Replace the content of `name` in one step: readers see the whole old file or the whole new one.

    With `unchanged`, a file that differs from `before` is left alone and the result is False. rename(2) has
    no such check, so a write in the last microseconds is not noticed.

    The content is written to a file without a name (O_TMPFILE), which is then linked. To replace an existing
    file it gets a temporary name first (`layerstack.kernel.tempnames`). Mode and owner of the old file are
    kept; a new file has mode 0644 and the owner of its directory.
    """
    mode = 0o644 if before is None else stat.S_IMODE(before.st_mode)
    with contextlib.ExitStack() as undo:
        try:
            fd, aside_fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=dir_fd), -1
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                raise
            aside_fd = undo.enter_context(passing_place(dir_fd))
            fd = os.open(
                PASSING,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=aside_fd,
            )
        undo.callback(os.close, fd)
        temporary = PASSING
        write_all(fd, content)
        give(fd, os.fstat(dir_fd) if before is None else before)
        os.fchmod(fd, mode)
        if before is not None:
            carry_xattrs(dir_fd, name, fd)
        if aside_fd < 0:
            if before is None:
                try:
                    _link(fd, name, dir_fd)
                    return True
                except FileExistsError:
                    pass  # another process has made the file by now: replace it
            aside_fd, temporary = dir_fd, tempnames.file_name(os.fstat(fd).st_mtime_ns)
            _link(fd, temporary, dir_fd)
            undo.callback(_unlink, temporary, dir_fd)
        if unchanged and before is not None and not _same(before, lstat(name, dir_fd)):
            return False
        os.rename(temporary, name, src_dir_fd=aside_fd, dst_dir_fd=dir_fd)
        return True


def _link(fd: int, name: str, dir_fd: int) -> None:
    os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=dir_fd, follow_symlinks=True)


def _unlink(name: str, dir_fd: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)


def list_limit(args: Mapping[str, Any]) -> int:
    """The number of entries of a page: `limit`, at most the configured maximum."""
    roof: int = args.get("max_entries", MAX_LIST_ENTRIES)
    limit: int = args.get("limit", roof)
    return min(limit, roof)


def list_after(args: Mapping[str, Any]) -> bytes:
    """Decode the cursor of the previous page: the name after which the listing continues; b"" for the
    first."""
    return page_cursor.decode(args.get("cursor") or "", "file_list")


def list_page(path: str, entries: list[dict[str, Any]], last: bytes | None) -> dict[str, Any]:
    """The result of file_list; `last` is the name of the last entry if there are more."""
    more = {} if last is None else {"next": page_cursor.encode(last)}
    return {**path_json(path), "entries": entries, "truncated": last is not None, **more}


def list_entry(directory: str, name: str, kind: str, size: int | None) -> dict[str, Any]:
    """One row of a listing; for a name that is not UTF-8 `path_b64` has the whole path."""
    entry: dict[str, Any] = {"name": shown(name), "kind": kind, "size": size if kind == "file" else None}
    raw = os.fsencode(name)
    if entry["name"].encode() != raw:
        entry["path_b64"] = base64.b64encode(os.fsencode(directory + "/" if directory else "") + raw).decode(
            "ascii"
        )
    return entry


def _list(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    path = resolve(args, root, lambda p: exists(root_fd, p), allow_root=True)
    limit, after = list_limit(args), list_after(args)
    with directory(root_fd, path) as fd:
        with os.scandir(fd) as scan:
            names = sorted(raw for entry in scan if (raw := os.fsencode(entry.name)) > after)
        entries: list[dict[str, Any]] = []
        for raw in names[:limit]:
            name = os.fsdecode(raw)
            found = lstat(name, fd)
            if found is None:
                continue
            kind = {"Directory": "directory", "Symlink": "symlink", "File": "file"}.get(
                kind_of(found.st_mode), "other"
            )
            entries.append(list_entry(path, name, kind, found.st_size))
    return list_page(path, entries, names[limit - 1] if len(names) > limit else None)


_OPERATIONS: dict[str, Callable[[int, str, Mapping[str, Any]], dict[str, Any]]] = {
    "read": _read,
    "edit": _edit,
    "list": _list,
    "glob": list_glob,
    "stat": stat_path,
    "delete": delete,
    "move": move,
    "patch": apply_patch,
    "undo_patch": undo_patch,
}
