"""Limit the inotify instances of a session: the kernel counts them per user, and all sessions share root.

A seccomp filter asks the agent before each inotify_init and inotify_init1 (seccomp_unotify(2)). Other calls
cost nothing, since the kernel caches the calls that a filter always allows. The two calls have no pointer
arguments, so the arguments cannot change after the check. Answers to a session that asks continuously are
delayed, so that the agent's loop is not blocked. If the kernel, or a filter on the agent itself, does not
allow such a filter, only the kernel's own limit holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import select
import struct
import time
from collections.abc import Callable

from layerstack.kernel import syscalls

_CALLS = {"x86_64": (253, 294), "aarch64": (26,)}  # inotify_init, inotify_init1
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _JEQ, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000  # SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV, _SEND
_NOTICE_BYTES, _CONTINUE = 80, 1
_INSTANCE = "anon_inode:inotify"

INSTANCES = 32
"""Instances of one session: a quarter of the default of fs.inotify.max_user_instances."""
LOOK_EVERY_S = 0.2
"""Seconds between two counts of a session's instances; in between the last count decides."""
BURST, PAUSE_S = 64, 0.02


def install() -> int | None:
    """Install the filter for this process (with no_new_privs); return the descriptor for answering its calls
    and those of its children."""
    calls = _CALLS.get(syscalls.MACHINE)
    if calls is None:
        return None
    rest = len(calls)
    code = [(_LOAD, 0, 0, 4), (_JEQ, 0, rest + 1, _ARCH[syscalls.MACHINE]), (_LOAD, 0, 0, 0)]
    code += [(_JEQ, rest - at, 0, number) for at, number in enumerate(calls)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    raw = b"".join(struct.pack("HBBI", *step) for step in code)
    program = ctypes.create_string_buffer(raw, len(raw))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program)))
    try:
        return syscalls.syscall("seccomp", _SET_MODE_FILTER, _NEW_LISTENER, header)
    except OSError:  # an old kernel, or a listener above us
        return None


class InotifyLimit:
    """The agent's end for one session. `processes` lists its processes, by pids of the agent's namespace."""

    def __init__(self, fd: int, most: int, processes: Callable[[], list[int]]) -> None:
        self._fd, self._most, self._processes = fd, most, processes
        self._held = self._granted = 0  # at the last count, and granted since
        self._granted_to: dict[int, int] = {}
        self._looked = -LOOK_EVERY_S
        self._asked, self._since = 0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._answer)

    def close(self) -> None:
        if self._fd < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1

    def _answer(self) -> None:
        events = self._poll.poll(0)
        if not events or not events[0][1] & select.POLLIN:
            # no call waits: before Linux 6.11 the ioctl would wait for one, for ever once the last process
            # with the filter has ended; the descriptor stays readable then
            if events:
                self.close()
            return
        notice = bytearray(_NOTICE_BYTES)
        try:
            fcntl.ioctl(self._fd, _RECEIVE, notice)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # the caller was killed, or a signal came
                self.close()
            return
        number, pid = struct.unpack_from("QI", notice)
        code, flags = (0, _CONTINUE) if self._allow(pid) else (-errno.EMFILE, 0)
        with contextlib.suppress(OSError):  # the caller no longer waits
            fcntl.ioctl(self._fd, _SEND, bytearray(struct.pack("QqiI", number, 0, code, flags)))
        self._pace()

    def _allow(self, pid: int) -> bool:
        now = time.monotonic()
        if self._held + self._granted >= self._most and now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._held, self._granted = count(self._processes(), self._granted_to), 0
        if self._held + self._granted >= self._most:
            return False
        self._granted += 1
        self._granted_to[pid] = self._granted_to.get(pid, 0) + 1
        return True

    def _pace(self) -> None:
        now = time.monotonic()
        if now - self._since > PAUSE_S:
            self._asked, self._since = 0, now
        self._asked += 1
        if self._asked >= BURST:
            self._loop.remove_reader(self._fd)
            self._timer = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._answer)


def count(pids: list[int], granted_to: dict[int, int]) -> int:
    """Count the instances of these processes. A descriptor shared with a child counts once; a process that
    cannot be read counts with the number granted to it. Ended processes are removed from `granted_to`."""
    living = set(pids)
    for gone in [pid for pid in granted_to if pid not in living]:
        del granted_to[gone]
    total = 0
    seen: dict[str, list[int]] = {}  # number of a descriptor -> processes that hold different files under it
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            total += granted_to.get(pid, 0)
            continue
        except OSError:
            continue
        for number in numbers:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}") == _INSTANCE and not any(
                    _same(pid, other, int(number)) for other in seen.get(number, ())
                ):
                    seen.setdefault(number, []).append(pid)
                    total += 1
    return total


def _same(one: int, other: int, number: int) -> bool:
    """Test that both have the same open file under that number (kcmp(2), KCMP_FILE)."""
    try:
        return syscalls.syscall("kcmp", one, other, 0, number, number) == 0
    except OSError:
        return False
