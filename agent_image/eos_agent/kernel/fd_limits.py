"""Limits of descriptors per process, which also limit descriptors in flight through unix sockets.

The kernel counts descriptors in flight (unix(7), SCM_RIGHTS) per user, over all sandboxes, sessions and
programs of that user. If the count exceeds the RLIMIT_NOFILE of a sender without CAP_SYS_ADMIN, the sender
gets ETOOMANYREFS. A command that leaves many descriptors in a socket could thus keep every init from sending
the output of a command to the agent. So agent, zygote and init have a higher limit than commands.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Generator
from typing import NamedTuple

MORE = 4096
"""Margin above a command's limit: the kernel may let one message (at most 253 descriptors) per processor
exceed it."""


class OpenFiles(NamedTuple):
    """RLIMIT_NOFILE of a command."""

    soft: int
    hard: int


def raise_limit() -> None:
    """Raise the limit of this process to the maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # an unlimited hard limit exceeds fs.nr_open
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def divide(most: int) -> OpenFiles:
    """Split the limit: return the limit of commands, at most `most`; this process and its forks keep a margin
    above it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    own = most + MORE if hard == unlimited else min(most + MORE, hard)
    of_commands = min(most, own - min(MORE, own // 4))
    resource.setrlimit(resource.RLIMIT_NOFILE, (own, own))
    return OpenFiles(of_commands if soft == unlimited else min(soft, of_commands), of_commands)


@contextlib.contextmanager
def for_a_command(files: OpenFiles | None) -> Generator[list[int]]:
    """Give a child started in the block the limits of a command (None: leave them unchanged).

    The child inherits the soft limit. posix_spawn(3) cannot set limits, so on exit the hard one is set for
    the pid that the block put into the list.
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
        raise_limit()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (files.soft, files.hard))
