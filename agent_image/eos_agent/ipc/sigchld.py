"""Descriptors that become readable when a child ends."""

from __future__ import annotations

import os
import signal

from layerstack.kernel import syscalls

SIGINFO_BYTES = 128
"""Size of struct signalfd_siginfo, read from the descriptor of `sigchld_fd`; one struct may report
several ended children."""


def sigchld_pipe() -> int:
    """Return a pipe that a signal handler writes to; empty it with `drain`."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def sigchld_fd() -> int:
    """Block SIGCHLD and return a signalfd for it. A signal handler would interrupt poll(2) instead."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    return syscalls.signalfd(signal.SIGCHLD)


def drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass
