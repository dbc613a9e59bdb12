"""The native pid 1 of a session (init.c, ADR 0042): where its program is, how an init becomes it, and the order that it gets.

Without the program, or where it cannot be executed, loop.py is what it would be.
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
"""What the program says on its control socket before it waits for its order."""
EXECUTE_LIMIT_MS = 10_000
"""A spare that has not come so far by then never will."""


def find() -> str | None:
    """The program beside this file, where a compiler made it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    return path if os.access(path, os.X_OK) else None


def open_program(path: str | None) -> int:
    """A descriptor to execute it by, since its file is masked in a session; -1 where there is none."""
    if path is None:
        return -1
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def become(program_fd: int, control_fd: int) -> NoReturn:
    """Execute the program, with `control_fd` as its descriptor 3 and nothing else but 0, 1 and 2.

    Raises:
        OSError: this process goes on as it was.
    """
    program = fcntl.fcntl(program_fd, fcntl.F_DUPFD_CLOEXEC, 64)
    if control_fd != 3:
        os.dup2(control_fd, 3)
    os.set_inheritable(3, True)
    os.execve(program, ["eos-init"], {})


NETLINK, INOTIFY = b"n", b"i"
"""What a spare hands over before it executes the program: a socket of its network, the listener of inotify.py."""


def hand_over(control: socket.socket, what: bytes, fd: int) -> None:
    """In the spare, to the zygote."""
    control.sendmsg([what], frames.rights([fd]))


def await_executed(control: socket.socket) -> tuple[bool, dict[bytes, int]]:
    """Wait until the program is executed. Whether it is, and the descriptors that were handed over, which are the caller's."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    fds: dict[bytes, int] = {}
    try:
        while poll.poll(EXECUTE_LIMIT_MS):
            raw, some = frames.receive(control)  # never beyond a byte that carries a descriptor
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
    """Send what turns the program into the pid 1 of a session that has `sock_fd`. ruleset: -1 without Landlock.

    Raises:
        OSError: it is gone.
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
