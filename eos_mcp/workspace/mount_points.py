"""Mount points below a directory, read from the kernel's list.

Source: proc_pid_mountinfo(5): the fifth field is the mount point, with space, tab, newline and backslash as
three octal digits after a backslash.
"""

from __future__ import annotations

import os
import re

MOUNTINFO = "/proc/self/mountinfo"
_OCTAL = re.compile(rb"\\([0-7]{3})")


def mounts_below(fd: int) -> tuple[bytes, ...]:
    """List the mount points below an open directory, relative to it, sorted; empty where the system has no
    such list.

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
    return tuple(
        sorted(point[len(lead) :] for point in found if point.startswith(lead) and len(point) > len(lead))
    )


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes((int(found.group(1), 8),))
