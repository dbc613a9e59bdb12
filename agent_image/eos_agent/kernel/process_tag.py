"""Processes of a session as its pid 1 sees them in /proc, and the mark that tells whose they are.

A child that calls setsid, forks twice and closes its descriptors leaves no trace of its command in /proc; a soft resource limit stays.
Each command gets a value of its own for RLIMIT_MSGQUEUE, the least used of all: children inherit it over fork and exec, and
/proc/PID/limits shows it to everyone (getrlimit(2), proc(5)).
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

_MARKS = 65536
FREEZE_LIMIT_S = 2.0


class TaggedProcess(NamedTuple):
    """One line of /proc/PID/stat. state is its letter: R S D T t Z X I."""

    pid: int
    name: str
    state: str
    parent: int
    group: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def list_processes() -> list[TaggedProcess]:
    """Every process of this pid namespace but pid 1, by pid; one that exits meanwhile is left out."""
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
    """Whether pid 1 is the only process, zombies included."""
    return sum(entry.isdigit() for entry in os.listdir("/proc")) == 1


class Marks:
    """Hands out marks and reads them back. Without room below the hard limit `mark` is 0 and nobody bears it."""

    def __init__(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
        self._hard = hard
        unlimited = hard == resource.RLIM_INFINITY or hard < 0
        self._top = 819200 if unlimited else hard if hard > 2 * _MARKS else 0
        self._last = 0

    def take(self) -> int:
        """A new mark, put on this process until the next one: children that are spawned now bear it."""
        if not self._top:
            return 0
        self._last = self._last % (_MARKS - 1) + 1
        mark = self._top - self._last
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, self._hard))
        return mark

    def lay_down(self) -> None:
        """No mark on this process until the next one: a child that is made now is no command's."""
        if self._top:
            resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, self._hard))


def bears(process: TaggedProcess, mark: int) -> bool:
    """Whether a process descends from the command of `mark`."""
    if not mark:
        return False
    try:
        return resource.prlimit(process.pid, resource.RLIMIT_MSGQUEUE)[0] == mark
    except (ProcessLookupError, PermissionError):
        pass
    try:
        with open(f"/proc/{process.pid}/limits", "rb") as f:
            for line in f:
                if line.startswith(b"Max msgqueue size"):
                    return line.split()[3] == b"%d" % mark
    except (FileNotFoundError, ProcessLookupError):
        pass
    return False
