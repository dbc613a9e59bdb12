"""Recognise temporary entries inside a live mount that were not yet renamed into place.

A directory is completed inside another one that has such a name and mode. A file is written without a name;
its temporary name contains its modification time. Both can be recognised as soon as they exist, and an entry
that was renamed into place has no trace of them. Whenever a process is killed, its leftovers thus differ from
what the session wrote, and a capture leaves them out.
"""

from __future__ import annotations

import os
import re

PLACE_MODE = 0o1700
"""Mode of a private, sticky directory, which is not used otherwise."""
_SETGID = 0o2000
_PREFIX = ".eos-"
_NAME = re.compile(r"\.eos-([0-9a-f]{16}){1,2}")


def place_name() -> str:
    """Make a unique name for a directory in which something is completed."""
    return _PREFIX + os.urandom(8).hex()


def file_name(mtime_ns: int) -> str:
    """Make a unique temporary name for a file that was written at that time."""
    return f"{_stamp(mtime_ns)}{os.urandom(8).hex()}"


def may_be(name: str) -> bool:
    """Check whether `name` has the form of these names."""
    return name.startswith(_PREFIX) and _NAME.fullmatch(name) is not None


def is_place(name: str, mode: int) -> bool:
    """Check whether a directory of that name and mode is a temporary one; it may have inherited
    set-group-id.
    """
    return may_be(name) and len(name) == len(_PREFIX) + 16 and mode & ~_SETGID == PLACE_MODE


def is_file(name: str, mtime_ns: int) -> bool:
    """Check whether a regular file of that name and time is a temporary one."""
    return may_be(name) and len(name) == len(_PREFIX) + 32 and name.startswith(_stamp(mtime_ns))


def _stamp(mtime_ns: int) -> str:
    return f"{_PREFIX}{mtime_ns & 0xFFFF_FFFF_FFFF_FFFF:016x}"
