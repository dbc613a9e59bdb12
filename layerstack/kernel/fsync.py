"""Durable writes: write, fsync, rename, fsync the directory. Each of these calls `step` with its name first.

`step` is a hook for tests, which kill the process or copy the disk right before the named act. In production
it is `no_step`, or a function that traces.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
from collections.abc import Callable, Container, Generator, Iterable
from types import TracebackType
from typing import IO

from layerstack.kernel import syscalls

Step = Callable[[str], None]

FSYNC_EACH_UP_TO = 64
"""Number of files up to which each gets an fsync; above, one syncfs is cheaper. Below, a syncfs would also
wait for the writes of other processes.
"""

OPEN_AT_ONCE = 128
"""Files that are open at a time while their data is written out."""


def no_step(name: str) -> None:
    """Do nothing: the step of production."""


def fsync_path(path: str, *, directory: bool = False) -> None:
    """Call fsync(2) on `path`; a symlink is not followed."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_DIRECTORY if directory else 0))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_dir(path: str) -> None:
    """Make the names in the directory `path` survive a power cut."""
    fsync_path(path, directory=True)


def sync_tree_of(path: str) -> None:
    """Call syncfs(2) on the file system that holds `path`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        syscalls.syncfs(fd)
    finally:
        os.close(fd)


@functools.lru_cache(maxsize=64)
def keeps_order(root: str) -> bool:
    """Check whether the file system of `root` makes changes of names durable in the order in which they were
    made.

    ext4 and xfs write them to one journal, so that an fsync of what was changed last commits every earlier
    rename, link and mkdir with it. tmpfs loses everything alike. On any other file system, and on an ext4
    without a journal or without an entry in /sys, each directory needs its own fsync.
    """
    kind = syscalls.statfs_type(root)
    return kind in (syscalls.XFS_SUPER_MAGIC, syscalls.TMPFS_MAGIC) or (
        kind == syscalls.EXT4_SUPER_MAGIC and _has_journal(os.stat(root).st_dev)
    )


def _has_journal(device: int) -> bool:
    """Distinguish an ext4 with a journal from ext2 and from an ext4 without one, which have the same magic
    number.
    """
    try:
        name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        with open(f"/sys/fs/ext4/{name}/journal_task") as file:
            return file.read().strip().isdecimal()
    except OSError:
        return False


def fsync_dirs(root: str, paths: Iterable[str], *, followed: bool) -> None:
    """Make the names in several directories survive a power cut.

    Args:
        followed: the caller fsyncs something else of this file system before it relies on the names. Where
            `keeps_order` is true, this function then does nothing.
    """
    folders = list(paths)
    if keeps_order(root):
        folders = [] if followed else folders[-1:]
    for path in folders:
        fsync_dir(path)


def sync_files(
    root: str, files: Iterable[str], directories: Iterable[str], *, followed: bool = False
) -> None:
    """Make files and directories durable: up to 64 files by an fsync each, more by one syncfs of root's file
    system.

    The write-out of all files is started before the wait for the first, so that one commit of the journal
    covers them all: 4 small files take 0.8 ms instead of 3.9 ms.

    Args:
        root: a directory on the file system concerned.
        files, directories: paths. Anything but a regular file (a symlink, a device) is made durable by the
            fsync of its directory.
        followed: the caller fsyncs something else of this file system before it relies on them. Where
            `keeps_order` is true, this function then only writes the data out and waits for it: the later
            fsync flushes the device and commits the journal for all of them.
    """
    rest, orderly = iter(files), keeps_order(root)
    some = list(itertools.islice(rest, FSYNC_EACH_UP_TO + 1))
    many = len(some) > FSYNC_EACH_UP_TO
    if orderly and some and followed:
        while some:
            with _opened(some) as fds:
                write_out(fds)
            some = list(itertools.islice(rest, OPEN_AT_ONCE))
        return
    folders = (
        []
        if many or (orderly and some)
        else list(itertools.islice(directories, FSYNC_EACH_UP_TO + 1 - len(some)))
    )
    if many or len(some) + len(folders) > FSYNC_EACH_UP_TO:
        sync_tree_of(root)
        return
    with _opened(some) as fds:
        if len(fds) > 1:
            write_out(fds)
        for fd in fds:
            os.fsync(fd)
    for path in folders:
        fsync_dir(path)


@contextlib.contextmanager
def _opened(paths: list[str]) -> Generator[list[int]]:
    fds: list[int] = []
    try:
        for path in paths:
            fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        yield fds
    finally:
        _close(fds)


def _close(fds: list[int]) -> None:
    """Close all of them, the last one first, also after one close has failed. Raises its OSError then."""
    while fds:
        try:
            os.close(fds.pop())
        except OSError:
            _close(fds)
            raise


def write_out(fds: Iterable[int]) -> None:
    """Send the data of files to the device, all at once, and wait for it, without a flush or a commit.

    On a file system that `keeps_order`, every later change of names is durable only together with this data:
    ext4 and xfs log the new size and extents before the wait ends, and a commit of the log flushes the device
    first. Source: sync_file_range(2).
    """
    some = list(fds)
    all_of_it = (
        syscalls.SYNC_FILE_RANGE_WAIT_BEFORE
        | syscalls.SYNC_FILE_RANGE_WRITE
        | syscalls.SYNC_FILE_RANGE_WAIT_AFTER
    )
    for flags in (syscalls.SYNC_FILE_RANGE_WRITE, all_of_it) if len(some) > 1 else (all_of_it,):
        for fd in some:
            try:
                syscalls.sync_file_range(fd, flags)
            except OSError as error:
                if error.errno not in (errno.ESPIPE, errno.ENOSYS, errno.EINVAL):
                    raise
                os.fsync(fd)


def begin_write_out(fd: int, offset: int = 0, size: int = 0) -> None:
    """Start sending a part of a file, by default all of it, to the device, so that a later fsync has little
    left to do. A hint: nothing is promised.
    """
    try:  # contextlib.suppress takes 1 us, for each file of a publish
        syscalls.sync_file_range(fd, syscalls.SYNC_FILE_RANGE_WRITE, offset, size)
    except (OSError, AttributeError):
        pass


@contextlib.contextmanager
def replacing(path: str, *, mode: int = 0o644, step: Step = no_step, name: str = "") -> Generator[IO[bytes]]:
    """Write a file that takes the place of `path` in one rename. On an exception `path` is unchanged and no
    temporary file is left.

    The block is left only when the bytes and the name are on disk. Steps: `<name>.write`, `<name>.fsync`,
    `<name>.rename`, `<name>.fsync_dir`.
    """
    name = name or os.path.basename(path)
    directory = os.path.dirname(path) or "."
    temporary = os.path.join(directory, f".{os.path.basename(path)}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    step(f"{name}.write")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    renamed = False
    try:
        with open(fd, "wb") as file:
            yield file
            file.flush()
            step(f"{name}.fsync")
            os.fsync(file.fileno())
        step(f"{name}.rename")
        os.rename(temporary, path)
        renamed = True
    finally:
        if not renamed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    step(f"{name}.fsync_dir")
    fsync_dir(directory)


def write_file(path: str, data: bytes, *, mode: int = 0o644, step: Step = no_step, name: str = "") -> None:
    """Write `data` with `replacing`."""
    with replacing(path, mode=mode, step=step, name=name) as file:
        file.write(data)


def write_new(path: str, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Make a file whose bytes are on disk on return; its name is not, until its directory is synced. Raises
    EEXIST.

    Args:
        sync: False only starts the write, and `sync_files` waits for it.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data)
        if sync:
            os.fsync(fd)
        else:
            begin_write_out(fd)
    finally:
        os.close(fd)


def write_unsynced(path: str, data: bytes, *, mode: int = 0o644) -> None:
    """Make a file whose bytes reach the disk whenever the kernel writes them. Raises EEXIST."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def write_before(path: str, data: bytes, *, root: str, mode: int = 0o644) -> None:
    """Make a file whose bytes survive a power cut if any later change of names does. `root` is on the same
    file system.

    Cost: one write to the device where `keeps_order` holds, without commit or flush; elsewhere an fsync.
    """
    with writing_before(path, data, root=root, mode=mode):
        pass


@contextlib.contextmanager
def writing_before(path: str, data: bytes, *, root: str, mode: int = 0o644) -> Generator[None]:
    """`write_before` that is complete at the end of the block, in which the caller does other work while the
    device writes.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data)
        begin_write_out(fd)
        yield
        if keeps_order(root):
            write_out([fd])
        else:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data` at the descriptor's offset: write(2) may take less than it is given."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def rename_new(old: str, new: str) -> None:
    """rename(2) that refuses to replace: EEXIST when `new` exists. Neither directory is synced."""
    syscalls.renameat2(old, new, syscalls.RENAME_NOREPLACE)


def rename_exchange(one: str, other: str) -> None:
    """Exchange two names in one act (renameat2(2), RENAME_EXCHANGE). Neither directory is synced."""
    syscalls.renameat2(one, other, syscalls.RENAME_EXCHANGE)


class _Ignoring:
    """Block that ignores some errnos. Stateless: one object serves any number of blocks and threads. A class,
    since a publish has a dozen such blocks, and a generator costs three times as much.
    """

    __slots__ = ("_codes",)

    def __init__(self, codes: Container[object]) -> None:
        self._codes = codes

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return isinstance(error, OSError) and error.errno in self._codes


_ANY = _Ignoring(range(1, 134))


def suppress_errno(*codes: int) -> contextlib.AbstractContextManager[None]:
    """Ignore the listed errnos in best-effort clean-up; any other OSError is raised."""
    return _Ignoring(codes)


def best_effort() -> contextlib.AbstractContextManager[None]:
    """Ignore every errno of the kernel: for work that gc or the next open repeats, or that undoes something
    after a more important error.

    An OSError with any other errno is a bug of ours, and is raised.
    """
    return _ANY


def remove_tree(path: str) -> None:
    """Delete `path` and all below it, through no symlink and no mount; an absent path is fine. Directories of
    mode 000 are made accessible first.

    A tree may be deeper than PATH_MAX or than Python's recursion: a command that descends with `cd` can make
    one.
    """
    try:
        _remove(path)
    except RecursionError:
        _remove_flattened(path)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _remove_flattened(path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
        return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError) as error:
        if error.errno not in (errno.EISDIR, errno.EPERM, errno.EACCES):
            raise
    _remove_directory(path)


def _remove_directory(path: str) -> None:
    for name, is_directory in _opened_up(path):
        if is_directory:
            _remove_directory(f"{path}/{name}")
        else:
            os.unlink(f"{path}/{name}")
    os.rmdir(path)


def _remove_flattened(path: str) -> None:
    """Move each directory below `path` up into `path` first, so that paths stay short and the recursion
    shallow.
    """
    moved, left = 0, [path]
    mark = f".flat-{os.urandom(6).hex()}"
    while left:
        directory = left.pop()
        for name, is_directory in _opened_up(directory):
            if is_directory:
                target, moved = f"{path}/{mark}-{moved}", moved + 1
                if os.geteuid() != 0:
                    os.chmod(f"{directory}/{name}", 0o700)
                os.rename(f"{directory}/{name}", target)
                left.append(target)
            else:
                os.unlink(f"{directory}/{name}")
        if directory != path:
            os.rmdir(directory)
    os.rmdir(path)


def _opened_up(path: str) -> list[tuple[str, bool]]:
    """List (name, is it a directory) after making the directory readable and writable for its owner."""
    if os.geteuid() != 0:
        with suppress_errno(errno.EPERM):
            os.chmod(path, 0o700, follow_symlinks=True)
    try:
        return _listed(path)
    except PermissionError:  # root without CAP_DAC_OVERRIDE
        os.chmod(path, 0o700, follow_symlinks=True)
        return _listed(path)


def _listed(path: str) -> list[tuple[str, bool]]:
    with os.scandir(path) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
