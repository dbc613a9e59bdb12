"""Staging on file systems that are mounted in a destination: rename(2) does not cross file systems, so each
has its own staging directory, the annex.

An annex has the name of the export's staging directory and is in the mount point (or in the root of a
subvolume), with its own `new` and `undo`. State and plan are in the main staging directory; a path belongs to
the annex of the nearest mount point above it. The voucher of the export names each annex: before it is made,
its path in the destination and the device and inode of the mount point; before it is used, its own device and
inode. A file system that a restart empties (tmpfs) needs no rollback after a restart.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.mounts import check_none, kind_of
from eos_mcp.export.owner import plain
from eos_mcp.export.voucher import Annexed, Said, Voucher
from eos_mcp.record.boot_id import boot_id

VOLATILE = ("tmpfs", "ramfs", "devtmpfs")


class Annexes:
    """Annexes of one export, by mount point in the destination. `main` is the staging directory itself, which
    the caller closes.
    """

    def __init__(self, main: DirTree) -> None:
        self._main = main
        self._open: dict[bytes, DirTree] = {}
        self._lost: set[bytes] = set()

    def of(self, path: bytes) -> DirTree | None:
        """Return the staging directory for `path` in the destination; None: it was on a file system that a
        restart emptied.
        """
        if self._open or self._lost:
            above = path
            while above := above.rpartition(b"/")[0]:
                if above in self._lost:
                    return None
                if (found := self._open.get(above)) is not None:
                    return found
        return self._main

    def all(self) -> Iterator[DirTree]:
        yield self._main
        yield from self._open.values()

    def add(self, voucher: Voucher, target: DirTree, point: bytes, step: Callable[[str], None]) -> None:
        """Make the annex in the mount point, vouched for; an annex that exists already is kept.

        Raises:
            OSError: the annex cannot be made there. `clear_annexes` removes a partly made one.
        """
        if point in self._open:
            return
        home = target.below(point)
        try:
            voucher.annex(point, home.fd, volatile=kind_of(home.fd) in VOLATILE)
            name = voucher.said.name
            step("export.annex")
            os.mkdir(name, 0o700, dir_fd=home.fd)
            tree = home.below(name)
            try:
                if os.fstat(tree.fd).st_uid != os.geteuid() or os.listdir(tree.fd):
                    raise OSError(
                        errno.EAGAIN,
                        "the staging directory was replaced as soon as it was made",
                        point + b"/" + name,
                    )
                step("export.annex_bind")
                voucher.bind_annex(point, tree.fd)
                step("export.annex_bound")
                plain(tree.fd)
                os.mkdir(b"new", 0o700, dir_fd=tree.fd)
                os.mkdir(b"undo", 0o700, dir_fd=tree.fd)
            except BaseException:
                tree.close()
                raise
            self._open[point] = tree
        except OSError as error:
            raise OSError(error.errno, error.strerror, point) from None
        finally:
            home.close()

    def take_over(self, home: DirTree, said: Said) -> None:
        """Open the annexes that a dead export left. `home` is the destination.

        Raises:
            OSError: ENODEV: a file system is not mounted as it was during that export.
        """
        for one in said.annexes:
            if one.id is None:
                continue
            if _emptied(said, one):
                self._lost.add(one.path)
                continue
            tree = None if (point := _point(home, said, one)) is None else _below(point, said, one)
            if point is not None:
                point.close()
            if tree is None:
                raise OSError(
                    errno.ENODEV, "what was mounted there when the export was killed is not there", one.path
                )
            self._open[one.path] = tree

    def close(self) -> None:
        for tree in self._open.values():
            tree.close()
        self._open.clear()


def clear_annexes(home: DirTree, said: Said) -> None:
    """Remove the annexes of an export that has ended or was rolled back. `home` is the destination.

    Raises:
        OSError: ENODEV: a file system is not mounted as it was; EBUSY: something is mounted in one.
    """
    for one in said.annexes:
        if _emptied(said, one):
            continue
        point = _point(home, said, one)
        if point is None:
            raise OSError(errno.ENODEV, "what was mounted there during the export is not there", one.path)
        try:
            found = point.lstat(said.name)
            if found is None or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if one.id is None:
                os.rmdir(said.name, dir_fd=point.fd)
            elif said.is_(one.id, found):
                check_none(point.fd, said.name)
                point.remove(said.name)
                os.fsync(point.fd)
        finally:
            point.close()


def _emptied(said: Said, one: Annexed) -> bool:
    return one.volatile and said.boot != boot_id()


def _point(home: DirTree, said: Said, one: Annexed) -> DirTree | None:
    """Return the mount point; None when another file system, or none, is mounted there."""
    try:
        tree = home.below(one.path)
    except OSError:
        return None
    if said.is_(one.home_id, os.fstat(tree.fd)):
        return tree
    tree.close()
    return None


def _below(point: DirTree, said: Said, one: Annexed) -> DirTree | None:
    try:
        tree = point.below(said.name)
    except OSError:
        return None
    status = os.fstat(tree.fd)
    if status.st_uid == os.geteuid() and said.is_(one.id, status):
        return tree
    tree.close()
    return None
