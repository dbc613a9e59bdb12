"""What is mounted below a directory: an export moves and removes no directory that holds the mount of another file system, or of another place."""

from __future__ import annotations

import errno
import os
import re

from eos_mcp.manager.export_stream import refused, shown

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
