"""The order in which the kernel kills when memory runs out: first a command, then an init, the zygote, and
last the agent.

The kernel kills the process with the highest score: its memory in pages plus `oom_score_adj` thousandths of
the memory of the cgroup (or machine) (proc(5), mm/oom_kill.c). A process may raise its own value, and lower
it to the value last written with CAP_SYS_RESOURCE. So all other processes are raised above the value that the
agent was started with, and the agent is lowered if allowed. Each kind of process has its own value: with
equal values the larger process, usually the zygote, would be killed.
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
        """The values for an agent that was started with `own`; they are closer to each other if little room
        is left above `own`."""
        room = min(COMMAND, _TOP - own)
        return Scores(
            max(-_TOP, own + AGENT), *(own + room * wanted // COMMAND for wanted in (ZYGOTE, INIT, COMMAND))
        )

    @staticmethod
    def here() -> Scores:
        """The values for an agent that has the value of this process."""
        own = 0
        with contextlib.suppress(OSError, ValueError), open(_FILE, "rb") as file:
            own = int(file.read())
        return Scores.above(own)


def set_score(score: int) -> bool:
    """Set the value of this process and its later forks; return whether that was allowed."""
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
    """The value of an init, raised while it spawns a command, which inherits it over fork and exec."""

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
