"""How an entry is told that is being completed inside a live mount, for the moment before it is renamed to its place.

A directory is completed in another one, of such a name and mode; a file is written without a name, and its name says when it was written. Both
are there from the first moment on, and the entry that is renamed bears no mark: whenever a process is killed, what it leaves is told from what
the session wrote. Sealing leaves it out.
"""

from __future__ import annotations

import os
import re

PLACE_MODE = 0o1700
"""Nobody makes a private directory sticky."""
_SETGID = 0o2000
_PREFIX = ".eos-"
_NAME = re.compile(r"\.eos-([0-9a-f]{16}){1,2}")


def place_name() -> str:
    """The name of a directory to complete something in; nobody else takes it."""
    return _PREFIX + os.urandom(8).hex()


def file_name(mtime_ns: int) -> str:
    """The passing name of a file that was written then; nobody else takes it."""
    return f"{_stamp(mtime_ns)}{os.urandom(8).hex()}"


def may_be(name: str) -> bool:
    """Whether it is one of these names."""
    return name.startswith(_PREFIX) and _NAME.fullmatch(name) is not None


def is_place(name: str, mode: int) -> bool:
    """Of a directory, by the bits of its mode; set-group-id may come from the directory above."""
    return may_be(name) and len(name) == len(_PREFIX) + 16 and mode & ~_SETGID == PLACE_MODE


def is_file(name: str, mtime_ns: int) -> bool:
    """Of a regular file."""
    return may_be(name) and len(name) == len(_PREFIX) + 32 and name.startswith(_stamp(mtime_ns))


def _stamp(mtime_ns: int) -> str:
    return f"{_PREFIX}{mtime_ns & 0xFFFF_FFFF_FFFF_FFFF:016x}"
