"""Processes of a session as its init sees them in /proc, and the tag that identifies their command.

A child that calls setsid, forks twice and closes its descriptors has no relation to its command in /proc, but
keeps soft resource limits. So each command has its own value of RLIMIT_MSGQUEUE, the least used limit:
children inherit it over fork and exec, and /proc/PID/limits shows it to all users (getrlimit(2), proc(5)).
ADR 0014.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

_TAGS = 65536
FREEZE_LIMIT_S = 2.0


class TaggedProcess(NamedTuple):
    """A process from /proc/PID/stat; `state` is its letter: R S D T t Z X I."""

    pid: int
    name: str
    state: str
    parent: int
    group: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def list_processes() -> list[TaggedProcess]:
    """List the processes of this pid namespace except pid 1, by pid; a process that exits during the scan may
    be left out."""
    found: list[TaggedProcess] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or entry == "1":
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as f:
                text = f.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name_end = text.rindex(b")")
        fields = text[name_end + 2 :].split(b" ", 3)
        name = text[text.index(b"(") + 1 : name_end].decode("utf-8", "replace")
        found.append(TaggedProcess(int(entry), name, fields[0].decode(), int(fields[1]), int(fields[2])))
    found.sort()
    return found


def alone() -> bool:
    """Test that pid 1 is the only process, zombies included."""
    return sum(entry.isdigit() for entry in os.listdir("/proc")) == 1


class ProcessTags:
    """Allocates tags. If the hard limit leaves no room, every tag is 0, which matches no process."""

    def __init__(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
        self._hard = hard
        unlimited = hard == resource.RLIM_INFINITY or hard < 0
        self._top = 819200 if unlimited else hard if hard > 2 * _TAGS else 0
        self._last = 0

    def set_next(self) -> int:
        """Set a new tag on this process; children spawned from now on inherit it."""
        if not self._top:
            return 0
        self._last = self._last % (_TAGS - 1) + 1
        tag = self._top - self._last
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (tag, self._hard))
        return tag

    def clear(self) -> None:
        """Remove the tag from this process, so that a child made later does not belong to a command."""
        if self._top:
            resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, self._hard))


def has_tag(process: TaggedProcess, tag: int) -> bool:
    """Test that a process descends from the command of `tag`."""
    if not tag:
        return False
    try:
        return resource.prlimit(process.pid, resource.RLIMIT_MSGQUEUE)[0] == tag
    except (ProcessLookupError, PermissionError):
        pass
    try:
        with open(f"/proc/{process.pid}/limits", "rb") as f:
            for line in f:
                if line.startswith(b"Max msgqueue size"):
                    return line.split()[3] == b"%d" % tag
    except (FileNotFoundError, ProcessLookupError):
        pass
    return False
