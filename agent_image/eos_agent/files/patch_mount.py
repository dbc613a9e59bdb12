"""Apply a patch inside a session's mount: all of its files are changed, or none.

The new files are completed in a temporary directory (`layerstack.kernel.tempnames`), which also has a
journal. Then each is exchanged with the old file (renameat2, RENAME_EXCHANGE). The old files are kept there
until the last exchange is done; after a failure, or if the worker was killed, the exchanges are undone from
the journal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from eos_agent.files.dirfd import (
    DIR_FLAGS,
    FILE_FLAGS,
    carry_xattrs,
    exists,
    give,
    lstat,
    opened,
    parent_of,
    regular,
)
from eos_agent.files.move import clear_place, passing_place
from eos_agent.files.patch_plan import plan_patch
from eos_agent.files.text import MAX_EDIT_BYTES
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_agent.wire.workspace_path import shown
from layerstack.kernel import syscalls
from layerstack.kernel.fsync import write_all
from layerstack.model.conflict import path_json
from layerstack.model.file_change import FileChange
from layerstack.model.paths import ancestors

JOURNAL, DONE = "journal", "done"
FORMAT = 1
EXCHANGE, NEW, GONE = "exchange", "new", "gone"
WORKER_S = 100.0
"""Seconds that `clear_after_patch` waits for a worker whose helper was killed."""
_NEW_FILE = 0o644
_NAME_CUT, _NAMES_TRIED = 230, 1000


class _Step(NamedTuple):
    kind: str
    path: str
    inode: int
    """Inode number of the completed file; 0 for a deletion."""


def apply_patch(root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Perform apply_patch.

    Raises:
        OperationError: as `plan_patch`; operation_failed, reason file_changed, if another process changed a
            file at the same time. OSError: the kernel refused. After an error no file is changed.
    """
    seen: dict[str, os.stat_result] = {}
    max_bytes: int = args.get("max_bytes", MAX_EDIT_BYTES)

    def read(path: str) -> bytes | None:
        return _read(root_fd, path, max_bytes, seen)

    plan = plan_patch(args["patch"], root, read, lambda path: exists(root_fd, path), max_bytes)
    with passing_place(root_fd, args.get("passing", "")) as place_fd:
        _lock(place_fd)  # until this process ends: `clear_after_patch` waits for that
        steps = [_stage(root_fd, place_fd, str(at), one, seen) for at, one in enumerate(plan.changes)]
        made = _missing_folders(root_fd, plan.changes)
        _write_journal(place_fd, steps, made)
        try:
            for at, step in enumerate(steps):
                _exchange(root_fd, place_fd, str(at), step, seen.get(step.path))
        except BaseException:
            _roll_back(root_fd, place_fd, steps, made)
            raise
        os.close(os.open(DONE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=place_fd))
    return plan.to_json()


def undo_patch(_root_fd: int, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Undo a patch whose worker and helper were killed; an operation of the agent alone."""
    clear_after_patch(root, args)
    return {"type": "undo_patch"}


def clear_after_patch(root: str, args: Mapping[str, Any]) -> None:
    """Undo a patch whose worker was killed, unless all its files were exchanged; remove the temporary
    directory. A worker that lives on, since only its helper was killed, finishes the patch first.

    Raises:
        OSError: the temporary directory is in use; a capture leaves it out.
    """
    with opened(root, DIR_FLAGS) as root_fd:
        with contextlib.suppress(FileNotFoundError), opened(args["passing"], DIR_FLAGS, root_fd) as place_fd:
            _lock(place_fd)
            if lstat(DONE, place_fd) is None and lstat(JOURNAL, place_fd) is not None:
                with open(os.open(JOURNAL, FILE_FLAGS, dir_fd=place_fd), "rb") as file:
                    noted = json.loads(file.read() or b"{}")
                if noted.get("format") == FORMAT:
                    _roll_back(root_fd, place_fd, [_Step(*step) for step in noted["steps"]], noted["made"])
        clear_place(args["passing"], root_fd)


def _lock(place_fd: int) -> None:
    """Lock the temporary directory. Raises BlockingIOError when another process holds the lock for
    WORKER_S.
    """
    due = time.monotonic() + WORKER_S
    while True:
        try:
            fcntl.flock(place_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > due:
                raise
            time.sleep(0.01)


def _read(root_fd: int, path: str, max_bytes: int, seen: dict[str, os.stat_result]) -> bytes | None:
    try:
        with parent_of(root_fd, path) as (parent, name):
            if regular(path, name, parent) is None:
                return None
            with open(os.open(name, FILE_FLAGS, dir_fd=parent), "rb") as file:
                seen[path] = os.fstat(file.fileno())
                return file.read(max_bytes + 1)
    except OperationError as error:
        if error.details.get("reason") != "file_not_found":
            raise
        return None


def _stage(
    root_fd: int, place_fd: int, name: str, change: FileChange, seen: Mapping[str, os.stat_result]
) -> _Step:
    """Complete the new file `name` in the temporary directory, with mode, owner and xattrs."""
    if change.data is None:
        return _Step(GONE, change.path, 0)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _created(name, flags, place_fd) as fd:
        write_all(fd, change.data)
        like = seen.get(change.like) if change.like is not None else None
        if change.like is None or like is None:
            with _nearest_folder(root_fd, change.path) as folder:
                give(fd, os.fstat(folder))
            os.fchmod(fd, change.mode(_NEW_FILE))
        else:
            give(fd, like)
            os.fchmod(fd, change.mode(stat.S_IMODE(like.st_mode)))
            with parent_of(root_fd, change.like) as (parent, old):
                carry_xattrs(parent, old, fd)
            os.fchmod(fd, change.mode(stat.S_IMODE(like.st_mode)))  # an ACL changes permission bits
        return _Step(EXCHANGE if change.path in seen else NEW, change.path, os.fstat(fd).st_ino)


@contextlib.contextmanager
def _created(name: str, flags: int, dir_fd: int) -> Generator[int]:
    fd = os.open(name, flags, 0o600, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _nearest_folder(root_fd: int, path: str) -> Generator[int]:
    """Open the nearest existing directory above `path`; a new file gets its owner."""
    for above in reversed(list(ancestors(path))):
        if not above:
            break
        with contextlib.suppress(OperationError, OSError), parent_of(root_fd, above) as (parent, name):
            fd = os.open(name, DIR_FLAGS, dir_fd=parent)
            try:
                yield fd
            finally:
                os.close(fd)
            return
    yield root_fd


def _missing_folders(root_fd: int, changes: list[FileChange]) -> list[str]:
    """The directories that the patch makes, parents first."""
    found: dict[str, None] = {}
    for change in changes:
        if change.data is not None:
            for above in ancestors(change.path):
                if above and above not in found and not exists(root_fd, above):
                    found[above] = None
    return list(found)


def _write_journal(place_fd: int, steps: list[_Step], made: list[str]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _created(JOURNAL + ".new", flags, place_fd) as fd:
        write_all(fd, json.dumps({"format": FORMAT, "steps": steps, "made": made}).encode())
    os.rename(JOURNAL + ".new", JOURNAL, src_dir_fd=place_fd, dst_dir_fd=place_fd)


def _exchange(root_fd: int, place_fd: int, name: str, step: _Step, before: os.stat_result | None) -> None:
    """Move one completed file to its path, and the old file to the temporary directory."""
    with parent_of(root_fd, step.path, make=step.kind != GONE) as (parent, own):
        found = lstat(own, parent)
        if (before is None) != (found is None) or (
            before is not None and found is not None and _identity(before) != _identity(found)
        ):
            raise _changed_by_another(step.path)
        try:
            if step.kind == EXCHANGE:
                syscalls.renameat2(
                    name, own, syscalls.RENAME_EXCHANGE, old_dir_fd=place_fd, new_dir_fd=parent
                )
            elif step.kind == NEW:
                syscalls.renameat2(
                    name, own, syscalls.RENAME_NOREPLACE, old_dir_fd=place_fd, new_dir_fd=parent
                )
            else:
                syscalls.renameat2(
                    own, name, syscalls.RENAME_NOREPLACE, old_dir_fd=parent, new_dir_fd=place_fd
                )
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EEXIST):
                raise
            raise _changed_by_another(step.path) from None
    if before is not None:
        old = lstat(name, place_fd)
        if old is None or old.st_size != before.st_size or old.st_mtime_ns > before.st_mtime_ns:
            raise _changed_by_another(step.path)  # written since; a copy-up may only make the time less exact


def _roll_back(root_fd: int, place_fd: int, steps: list[_Step], made: list[str]) -> None:
    """Put the old files back, the last first. One that cannot be put back, since its directory was moved or
    the kernel refuses, is kept as NAME.before-patch in the nearest directory.
    """
    for at, step in reversed(list(enumerate(steps))):
        name = str(at)
        try:
            _undo(root_fd, place_fd, name, step)
        except (OperationError, OSError):
            old = lstat(name, place_fd)
            if old is not None and old.st_ino != step.inode:
                with _nearest_folder(root_fd, step.path) as folder_fd:
                    _keep_beside(place_fd, name, folder_fd, step.path.rpartition("/")[2])
    for folder in reversed(made):
        with contextlib.suppress(OperationError, OSError), parent_of(root_fd, folder) as (parent, own):
            os.rmdir(own, dir_fd=parent)


def _undo(root_fd: int, place_fd: int, name: str, step: _Step) -> None:
    """Undo one step, if it was done. A file is the patch's if it has the inode of the step."""
    with parent_of(root_fd, step.path) as (parent, own):
        found = lstat(own, parent)
        if step.kind == GONE:
            if lstat(name, place_fd) is not None:
                _restore(place_fd, name, parent, own)
        elif found is not None and found.st_ino == step.inode:
            if step.kind == NEW:
                os.unlink(own, dir_fd=parent)
            else:
                syscalls.renameat2(
                    name, own, syscalls.RENAME_EXCHANGE, old_dir_fd=place_fd, new_dir_fd=parent
                )


def _restore(place_fd: int, name: str, parent: int, own: str) -> None:
    """Undo a deletion. If another process has made a file at the path since, the deleted file is restored
    beside it."""
    try:
        syscalls.renameat2(name, own, syscalls.RENAME_NOREPLACE, old_dir_fd=place_fd, new_dir_fd=parent)
    except FileExistsError:
        _keep_beside(place_fd, name, parent, own)


def _keep_beside(place_fd: int, name: str, folder_fd: int, own: str) -> None:
    """Move an old file out of the temporary directory, as NAME.before-patch or the first free
    NAME.before-patch.N.
    """
    start = os.fsdecode(os.fsencode(own)[:_NAME_CUT])
    for number in range(_NAMES_TRIED):
        end = ".before-patch" + (f".{number}" if number else "")
        with contextlib.suppress(FileExistsError):
            syscalls.renameat2(
                name, start + end, syscalls.RENAME_NOREPLACE, old_dir_fd=place_fd, new_dir_fd=folder_fd
            )
            return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), own)


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _changed_by_another(path: str) -> OperationError:
    details = {
        **path_json(path),
        "retryable": True,
        "hint": "no file was changed; read it again, then repeat the patch",
    }
    return OperationError(
        OPERATION_FAILED,
        f"{shown(path)} was changed by another process while the patch was applied",
        details,
        reason="file_changed",
    )
