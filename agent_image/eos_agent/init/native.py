"""The native init (init.c, ADR 0042): find the program, execute it, send the order to it.

If the program is missing or cannot be executed, loop.py does the same work in Python.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
from typing import NoReturn

from eos_agent.ipc import frames
from eos_agent.kernel.fd_limits import OpenFiles
from eos_agent.kernel.harden import Hardening
from eos_agent.kernel.oom import Scores
from layerstack.kernel import syscalls

NAME = f"eos-init-{syscalls.MACHINE}"
ORDER = struct.Struct("<IIQiiIIIIII")  # struct order of init.c
_MAGIC, _HAS_RULESET = 0x31494F45, 1
EXECUTED = b"1"
"""The byte that the program writes to its control socket before it waits for its order."""
EXECUTE_LIMIT_MS = 10_000
"""Milliseconds after which a spare counts as hung."""


def find() -> str | None:
    """Path of the program, in the directory of this file; None if it was not compiled."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    return path if os.access(path, os.X_OK) else None


def open_program(path: str | None) -> int:
    """Open the program for fexecve(3), since its file is masked in a session; -1 without a program."""
    if path is None:
        return -1
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def become(program_fd: int, control_fd: int) -> NoReturn:
    """Execute the program. It gets `control_fd` as descriptor 3, and 0, 1 and 2; all others are closed.

    Raises:
        OSError: execve(2) failed; this process is unchanged.
    """
    program = fcntl.fcntl(program_fd, fcntl.F_DUPFD_CLOEXEC, 64)
    if control_fd != 3:
        os.dup2(control_fd, 3)
    os.set_inheritable(3, True)
    os.execve(program, ["eos-init"], {})


NETLINK, INOTIFY = b"n", b"i"
"""Tags of the descriptors that a spare sends before it executes the program: a netlink socket of its network,
the inotify listener.
"""


def hand_over(control: socket.socket, what: bytes, fd: int) -> None:
    """Send a descriptor from the spare to the zygote."""
    control.sendmsg([what], frames.rights([fd]))


def await_executed(control: socket.socket) -> tuple[bool, dict[bytes, int]]:
    """Wait until the program is executed. Returns True if it is (False if the spare ended or hangs), and the
    descriptors that were sent, which the caller owns.
    """
    poll = select.poll()
    poll.register(control, select.POLLIN)
    fds: dict[bytes, int] = {}
    try:
        while poll.poll(EXECUTE_LIMIT_MS):
            raw, some = frames.receive(control)  # recvmsg(2) never reads past a byte with descriptors
            fds.update((raw[-1:], fd) for fd in some)
            if EXECUTED in raw:
                return True, fds
            if not raw:
                break
    except OSError:
        pass
    return False, fds


def give_order(
    control: socket.socket,
    hardening: Hardening,
    scores: Scores,
    files: OpenFiles,
    sock_fd: int,
    ruleset: int,
    *,
    own_network: bool,
    root: str,
    address: str | None,
) -> None:
    """Send the order that makes the program the init of the session with `sock_fd`. ruleset: -1 without
    Landlock.

    Raises:
        OSError: the program has ended.
    """
    program = hardening.program_of_own_network if own_network else hardening.program
    place, ready = os.fsencode(root), json.dumps(address).encode()
    flags = _HAS_RULESET if ruleset >= 0 else 0
    sizes = len(program), len(place), len(ready)
    head = ORDER.pack(_MAGIC, flags, hardening.capabilities, scores.init, scores.command, *sizes, *files, 0)
    raw = head + program + place + ready
    sent = control.sendmsg([raw], frames.rights([sock_fd] if ruleset < 0 else [sock_fd, ruleset]))
    if sent < len(raw):
        control.sendall(raw[sent:])
