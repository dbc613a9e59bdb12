"""What is mounted below a directory: an export moves and removes no directory that holds the mount of another file system, or of another place."""

from __future__ import annotations

import errno
import os
import re
import stat

from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.stream import refused, shown

_OCTAL = re.compile(rb"\\([0-7]{3})")
MOUNTINFO = "/proc/self/mountinfo"


def mounts_below(fd: int) -> tuple[bytes, ...]:
    """Mount points below an open directory, relative to it; none where the system has no such list.

    Cost: one read of the list of mounts.
    """
    try:
        here = os.readlink(f"/proc/self/fd/{fd}".encode())
        with open(MOUNTINFO, "rb") as file:
            listed = file.read().splitlines()
    except OSError:
        return ()
    lead = here.rstrip(b"/") + b"/"
    found = {_OCTAL.sub(_byte, line.split(b" ", 5)[4]) for line in listed if line}
    return tuple(sorted(point[len(lead) :] for point in found if point.startswith(lead) and len(point) > len(lead)))


def kind_of(fd: int) -> str:
    """The kind of file system that an open directory lies on, `ext4`; empty where the list of mounts does not say."""
    device = os.fstat(fd).st_dev
    number = b"%d:%d" % (os.major(device), os.minor(device))
    try:
        with open(MOUNTINFO, "rb") as file:
            kinds = [line.partition(b" - ")[2].split(b" ", 1)[0] for line in file if line.split(b" ", 3)[2] == number]
    except OSError:
        return ""
    return kinds[-1].decode("ascii", "replace") if kinds else ""


def systems_of(target: DirTree, mounts: tuple[bytes, ...]) -> dict[bytes, int]:
    """Directories that begin a file system, or another view of one, with its device: the destination itself (empty) and the mount points in it."""
    found = {b"": os.fstat(target.fd).st_dev}
    for point in mounts:
        status = target.lstat(point)
        if status is not None and stat.S_ISDIR(status.st_mode):
            found[point] = status.st_dev
    return found


def check(mounts: tuple[bytes, ...], path: bytes) -> None:
    """Refuse a step that takes away what lies at `path`, if that is a mount point or holds one.

    Raises:
        OperationError: operation_failed, reason mount_in_the_way.
    """
    for point in mounts:
        if point == path or point.startswith(path + b"/"):
            name = shown(point)
            hint = f"unmount {name} of the destination, or export to another directory or in format tar"
            message = f"{name} is a mount point, and the export would remove or replace {shown(path)} with it; nothing was written"
            raise refused(message, "mount_in_the_way", path=shown(path), mount=name, hint=hint)


def check_none(fd: int, name: bytes) -> None:
    """Before the directory `name` in the open directory is removed with all that it holds.

    Raises:
        OSError: EBUSY, nothing was removed: something is mounted in it.
    """
    for point in mounts_below(fd):
        if point == name or point.startswith(name + b"/"):
            raise OSError(errno.EBUSY, "something is mounted below it", os.fsdecode(point))


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes((int(found.group(1), 8),))
