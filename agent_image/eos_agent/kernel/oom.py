"""Who is ended when memory runs out: a command first, then the pid 1 of a session, then the zygote, and the agent last of all.

The kernel ends what has the most points: its memory in pages, and `oom_score_adj` thousandths of what the whole cgroup (or machine) has (proc(5),
mm/oom_kill.c). A process may raise its own, and lower it to what a process with CAP_SYS_RESOURCE wrote last; so all but the agent are raised, as
far above what the agent was started with as that leaves room, and the agent is lowered where it may be. No two kinds have one value, else the
larger one of them would be chosen, which is the zygote as a rule.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import NamedTuple

_FILE = "/proc/self/oom_score_adj"
_TOP = 1000
AGENT, ZYGOTE, INIT, COMMAND = -200, 100, 400, 800


class Scores(NamedTuple):
    """The value of each kind of process, lowest first."""

    agent: int
    zygote: int
    init: int
    command: int

    @staticmethod
    def above(own: int) -> Scores:
        """For an agent that was started with `own`: with less room above it than is wanted, all of them come closer."""
        room = min(COMMAND, _TOP - own)
        return Scores(max(-_TOP, own + AGENT), *(own + room * wanted // COMMAND for wanted in (ZYGOTE, INIT, COMMAND)))

    @staticmethod
    def here() -> Scores:
        """As `above`, for what this process has."""
        own = 0
        with contextlib.suppress(OSError, ValueError), open(_FILE, "rb") as file:
            own = int(file.read())
        return Scores.above(own)


def take(score: int) -> bool:
    """Give this process, and what it forks from here on, that value; whether it was allowed to."""
    try:
        fd = os.open(_FILE, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"%d" % score)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


class OomScore:
    """The value of a pid 1, raised while a command is spawned: it is inherited over fork and exec, and kept."""

    def __init__(self, scores: Scores) -> None:
        self._fd = -1
        self._own, self._raised = b"%d" % scores.init, b"%d" % scores.command
        with contextlib.suppress(OSError):
            self._fd = os.open(_FILE, os.O_RDWR | os.O_CLOEXEC)
            os.pwrite(self._fd, self._own, 0)

    @contextlib.contextmanager
    def raised(self) -> Generator[None]:
        if self._fd < 0:
            yield
            return
        os.pwrite(self._fd, self._raised, 0)
        try:
            yield
        finally:
            os.pwrite(self._fd, self._own, 0)
