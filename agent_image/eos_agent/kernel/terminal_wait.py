"""Find out from the kernel if a program waits for input on its terminal.

Each thread of the terminal's foreground group (TIOCGPGRP, ioctl_tty(2)) that sleeps is examined in
/proc/PID/syscall (proc(5)): read(2) of the terminal; select(2) or poll(2) for nothing but its input, without
a time limit; an event loop (epoll(7)) that watches nothing else either. Where that file is closed to us,
/proc/PID/wchan says `n_tty_read` of a thread that sleeps in a read of its terminal. Output does not count: a
line that ends in a colon may be a prompt or a heading.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import stat
import struct
import termios
from collections.abc import Iterator
from typing import NamedTuple

from eos_agent.kernel import procfs

MOST_PROCESSES = 512
MOST_THREADS = 64
MOST_DESCRIPTORS = 1024
_CONTROLLING_TERMINAL = os.makedev(5, 0)
_POLLIN, _PRIORITY = 0x001 | 0x040, 0x002
_POLLFD = struct.Struct("ihh")
_READ_OF_A_TERMINAL = b"n_tty_read"


class _Calls(NamedTuple):
    """Numbers of system calls of one machine."""

    read: frozenset[int]
    select: frozenset[int]
    poll: frozenset[int]
    """poll(2), whose third argument is the number of milliseconds."""
    ppoll: frozenset[int]
    epoll: frozenset[int]
    """epoll_wait(2) and epoll_pwait, whose fourth argument is the number of milliseconds."""
    futex: frozenset[int]


_NONE = frozenset[int]()
_BY_MACHINE = {
    "x86_64": _Calls(
        read=frozenset({0, 19}),
        select=frozenset({23, 270}),
        poll=frozenset({7}),
        ppoll=frozenset({271}),
        epoll=frozenset({232, 281}),
        futex=frozenset({202}),
    ),
    "aarch64": _Calls(
        read=frozenset({63, 65}),
        select=frozenset({72}),
        poll=_NONE,
        ppoll=frozenset({73}),
        epoll=frozenset({22}),
        futex=frozenset({98}),
    ),
}
_CALLS = _BY_MACHINE.get(platform.machine(), _Calls(*[_NONE] * 6))
_WATCHED = re.compile(rb"^tfd: +(\d+) events: +([0-9a-f]+)", re.MULTILINE)
_OWN_EVENTS = ("anon_inode:[eventfd]", "anon_inode:[timerfd]", "anon_inode:[signalfd]")
TIMER_MS = 1000
"""Shortest time limit of an event loop that counts as a wait: idle programs have timers too."""


class TerminalWait(NamedTuple):
    """A program waits for input. lines: it gets whole lines, not each key (ICANON, termios(3)). echo: the
    terminal shows what is typed; not for a password, nor where the program itself shows it.
    """

    lines: bool
    echo: bool


def terminal_wait(master_fd: int, root: int) -> TerminalWait | None:
    """Return a value if a foreground process of a terminal waits for input on it, else None. None also if
    neither file of /proc can be read, or the process is beyond the bounds of this module.

    Args:
        master_fd: the master side of the terminal.
        root: pid of the init of the session that has its processes.
    """
    try:
        (group,) = struct.unpack("i", fcntl.ioctl(master_fd, termios.TIOCGPGRP, b"\0\0\0\0"))
        local = int(termios.tcgetattr(master_fd)[3])
    except (OSError, termios.error):
        return None
    if group <= 0:
        return None
    for pid, device in _members(group, root):
        for thread in (procfs.entries(f"/proc/{pid}/task") or [])[:MOST_THREADS]:
            if _waits(pid, thread, device):
                return TerminalWait(bool(local & termios.ICANON), bool(local & termios.ECHO))
    return None


def _members(group: int, root: int) -> Iterator[tuple[int, int]]:
    """Yield pid and controlling terminal of each process of a group, its leader first."""
    seen: set[int] = set()
    waiting = [root, group]
    while waiting and len(seen) < MOST_PROCESSES:
        pid = waiting.pop()
        raw = None if pid in seen else procfs.read(f"/proc/{pid}/stat")
        if not raw:
            continue
        seen.add(pid)
        fields = raw[raw.rindex(b")") + 2 :].split()
        if int(fields[2]) == group and int(fields[4]):
            yield pid, int(fields[4])
        threads = [str(pid)] if fields[17] == b"1" else procfs.entries(f"/proc/{pid}/task") or []
        for thread in threads[:MOST_THREADS]:
            children = procfs.read(f"/proc/{pid}/task/{thread}/children") or b""
            waiting += [int(child) for child in children.split()]


def _waits(pid: int, thread: str, device: int) -> bool:
    raw = procfs.read(f"/proc/{pid}/task/{thread}/syscall")
    if raw is None:
        return procfs.read(f"/proc/{pid}/task/{thread}/wchan") == _READ_OF_A_TERMINAL
    words = raw.split()
    if len(words) < 7:  # `running`, or it sleeps outside of a call
        return False
    number, *args = (int(word, 0) for word in words[:6])
    if number in _CALLS.read:
        return _is_terminal(pid, args[0], device)
    if number in _CALLS.select:  # count, to read, to write, exceptions, time limit
        count, readable, writable, _, limit = args
        return not limit and _selects_only_terminal(pid, count, readable, writable, device)
    if number in _CALLS.epoll:
        limit = args[3] & 0xFFFFFFFF  # -1: none
        return limit >= TIMER_MS and _loops_on_terminal(pid, thread, args[0], device)
    endless = args[2] & 0xFFFFFFFF == 0xFFFFFFFF if number in _CALLS.poll else not args[2]
    return (
        number in _CALLS.poll | _CALLS.ppoll
        and endless
        and _polls_only_terminal(pid, args[0], args[1], device)
    )


def _is_terminal(pid: int, fd: int, device: int) -> bool:
    """True if the descriptor is the process's controlling terminal, by its own name or as /dev/tty."""
    try:
        found = os.stat(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return False
    major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
    number = major << 8 | minor & 0xFF | (minor & ~0xFF) << 12  # as new_encode_dev of the kernel
    return stat.S_ISCHR(found.st_mode) and (found.st_rdev == _CONTROLLING_TERMINAL or number == device)


def _memory(pid: int, address: int, size: int) -> bytes:
    """Read the process's memory; empty where it cannot be read."""
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, address)
        finally:
            os.close(fd)
    except (OSError, OverflowError):
        return b""


def _set(pid: int, count: int, address: int) -> list[int] | None:
    """Descriptors of an fd_set below `count`; None if it cannot be read."""
    if not address:
        return []
    size = (count + 63) // 64 * 8
    raw = _memory(pid, address, size)
    if len(raw) < size:
        return None
    return [fd for fd in range(count) if raw[fd // 8] >> (fd % 8) & 1]


def _selects_only_terminal(pid: int, count: int, readable: int, writable: int, device: int) -> bool:
    if not 0 < count <= MOST_DESCRIPTORS or _set(pid, count, writable) != []:
        return False
    found = _set(pid, count, readable)
    return bool(found) and all(_is_terminal(pid, fd, device) for fd in found or [])


def _loops_on_terminal(pid: int, thread: str, epoll_fd: int, device: int) -> bool:
    """True if an event loop watches the terminal and, beside it, only what its own process wakes it with, and
    no other thread and no child works for it.
    """
    info = procfs.read(f"/proc/{pid}/fdinfo/{epoll_fd}") or b""
    watched = [(int(fd), int(events, 16)) for fd, events in _WATCHED.findall(info)]
    if not 0 < len(watched) <= MOST_THREADS:
        return False
    terminal = [fd for fd, events in watched if events & _POLLIN and _is_terminal(pid, fd, device)]
    links = [procfs.link(f"/proc/{pid}/fd/{fd}") for fd in (procfs.entries(f"/proc/{pid}/fd") or [])]
    for fd, _ in watched:
        link = procfs.link(f"/proc/{pid}/fd/{fd}") or ""
        own_pipe = link.startswith("pipe:") and links.count(link) > 1
        if fd not in terminal and link not in _OWN_EVENTS and not own_pipe:
            return False
    threads = procfs.entries(f"/proc/{pid}/task") or []
    if not terminal or len(threads) > MOST_THREADS:
        return False
    return all(
        not procfs.read(f"/proc/{pid}/task/{other}/children") and (other == thread or _idles(pid, other))
        for other in threads
    )


def _idles(pid: int, thread: str) -> bool:
    """True for a thread that sleeps until another one of its process wakes it."""
    words = (procfs.read(f"/proc/{pid}/task/{thread}/syscall") or b"").split()
    return len(words) > 1 and words[0].isdigit() and int(words[0]) in _CALLS.futex | _CALLS.epoll


def _polls_only_terminal(pid: int, address: int, count: int, device: int) -> bool:
    if not 0 < count <= MOST_DESCRIPTORS:
        return False
    raw = _memory(pid, address, count * _POLLFD.size)
    if len(raw) < count * _POLLFD.size:
        return False
    wanted = [(fd, events) for fd, events, _ in _POLLFD.iter_unpack(raw) if fd >= 0]
    return bool(wanted) and all(
        events & _POLLIN and not events & ~(_POLLIN | _PRIORITY) and _is_terminal(pid, fd, device)
        for fd, events in wanted
    )
