"""Refuse to move or remove a directory in which something is mounted: another file system, or another view of
one.
"""

from __future__ import annotations

import errno
import os
import stat

from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.stream import refused, shown
from eos_mcp.workspace.mount_points import MOUNTINFO, mounts_below


def kind_of(fd: int) -> str:
    """Return the type of the file system of an open directory, such as `ext4`; empty if the list of mounts
    lacks it.
    """
    device = os.fstat(fd).st_dev
    number = b"%d:%d" % (os.major(device), os.minor(device))
    try:
        with open(MOUNTINFO, "rb") as file:
            kinds = [
                line.partition(b" - ")[2].split(b" ", 1)[0]
                for line in file
                if line.split(b" ", 3)[2] == number
            ]
    except OSError:
        return ""
    return kinds[-1].decode("ascii", "replace") if kinds else ""


def systems_of(target: DirTree, mounts: tuple[bytes, ...]) -> dict[bytes, int]:
    """Return each directory at which a file system, or another view of one, begins, with its device: the
    destination itself (empty path) and the mount points in it.
    """
    found = {b"": os.fstat(target.fd).st_dev}
    for point in mounts:
        status = target.lstat(point)
        if status is not None and stat.S_ISDIR(status.st_mode):
            found[point] = status.st_dev
    return found


def check(mounts: tuple[bytes, ...], path: bytes) -> None:
    """Refuse a step that moves or removes the entry at `path`, if that is a mount point or holds one.

    Raises:
        OperationError: operation_failed, reason mount_in_the_way.
    """
    for point in mounts:
        if point == path or point.startswith(path + b"/"):
            name = shown(point)
            hint = f"unmount {name} of the destination, or export to another directory or in format tar"
            message = (
                f"{name} is a mount point, and the export would remove or replace {shown(path)} with "
                f"it; nothing was written"
            )
            raise refused(message, "mount_in_the_way", path=shown(path), mount=name, hint=hint)


def check_none(fd: int, name: bytes) -> None:
    """Refuse the recursive removal of the directory `name` in the open directory, if it is a mount point or
    holds one.

    Raises:
        OSError: EBUSY, nothing was removed: a file system is mounted in it.
    """
    for point in mounts_below(fd):
        if point == name or point.startswith(name + b"/"):
            raise OSError(errno.EBUSY, "something is mounted below it", os.fsdecode(point))
