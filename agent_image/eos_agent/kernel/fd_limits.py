"""How many descriptors a process may have, which is also how many its user may have on their way through unix sockets when it sends some.

The kernel counts descriptors in flight (unix(7), SCM_RIGHTS) by user, for all sandboxes, sessions and programs of that user together, and refuses a
sender (ETOOMANYREFS) for whom they are more than its own RLIMIT_NOFILE, unless it has CAP_SYS_ADMIN. A command that leaves many lying in a socket
would so keep the pid 1 of each session from handing a command's output over. So the agent, the zygote and each pid 1 may have more than commands may:
what commands can leave lying stays below that.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Generator
from typing import NamedTuple

MORE = 4096
"""Of the agent's own above what a command may have: one message, of 253 at most, may be let pass on each processor at once."""


class OpenFiles(NamedTuple):
    """RLIMIT_NOFILE of a command."""

    soft: int
    hard: int


def take_all() -> None:
    """As many for this process as it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # an unlimited one is more than the kernel has for a process
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def divide(most: int) -> OpenFiles:
    """Leave this process, and what it forks from here on, what is more than commands may have; that is at most `most`, and less where the machine gives little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    own = most + MORE if hard == unlimited else min(most + MORE, hard)
    of_commands = min(most, own - min(MORE, own // 4))
    resource.setrlimit(resource.RLIMIT_NOFILE, (own, own))
    return OpenFiles(of_commands if soft == unlimited else min(soft, of_commands), of_commands)


@contextlib.contextmanager
def for_a_command(files: OpenFiles | None) -> Generator[list[int]]:
    """A child that is started in the block has the soft limit of a command; its pid, which the block puts into the list, gets the hard one at the end (None: neither):
    posix_spawn(3) has no way to say it before.
    """
    pids: list[int] = []
    if files is None:
        yield pids
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files.soft, hard), hard))
    try:
        yield pids
    finally:
        take_all()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (files.soft, files.hard))
