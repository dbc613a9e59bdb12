"""A descriptor that becomes readable when a child has ended."""

from __future__ import annotations

import os
import signal

from layerstack.kernel import syscalls

SIGINFO_BYTES = 128
"""struct signalfd_siginfo: what is read of the descriptor of `hear_of_children`. SIGCHLD is pending once, however many ended."""


def wake_on_child() -> int:
    """By a signal handler; to be emptied by `drain`."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def hear_of_children() -> int:
    """Without a signal handler, which would break off poll(2) first: SIGCHLD is blocked from here on, and read from the descriptor."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    return syscalls.signalfd(signal.SIGCHLD)


def drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass
