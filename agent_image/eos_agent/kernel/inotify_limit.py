"""How many inotify instances one session may have: the kernel counts them by user, and root of all sessions is root of the machine.

A filter of its own asks the agent before each inotify_init (seccomp_unotify(2)); all other calls pass it at no cost, since the kernel remembers
which ones it always allows. The two calls have no pointers, so that what was looked at is what happens. A session that asks all the time is answered
with pauses, so that the agent's loop goes on. Where the kernel, or a filter that the agent itself is in, does not allow that, the kernel's own limit remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
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
"""Of one session, a quarter of what Linux gives to one user."""
LOOK_EVERY_S = 0.2
"""Between two looks at what a session holds: until then a full one is refused by what was seen last."""
BURST, PAUSE_S = 64, 0.02


def install() -> int | None:
    """Put the filter on this process, which has no_new_privs; the descriptor on which the calls of it and of its children are answered."""
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
    except OSError:  # an old kernel, or somebody above us listens already
        return None


class InotifyLimit:
    """The agent's end for one session. `processes` says which ones are its, as the agent sees them."""

    def __init__(self, fd: int, most: int, processes: Callable[[], list[int]]) -> None:
        self._fd, self._most, self._processes = fd, most, processes
        self._held = self._granted = 0  # when it was looked last, and since then
        self._granted_to: dict[int, int] = {}
        self._looked = -LOOK_EVERY_S
        self._asked, self._since = 0, 0.0
        self._timer: asyncio.TimerHandle | None = None
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
        notice = bytearray(_NOTICE_BYTES)
        try:
            fcntl.ioctl(self._fd, _RECEIVE, notice)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # who asked was killed, or a signal came
                self.close()
            return
        number, pid = struct.unpack_from("QI", notice)
        code, flags = (0, _CONTINUE) if self._allow(pid) else (-errno.EMFILE, 0)
        with contextlib.suppress(OSError):  # it does not wait any more
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
            self._timer = self._loop.call_later(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._answer)


def count(pids: list[int], granted_to: dict[int, int]) -> int:
    """How many instances these processes hold. A copy that a child has of its parent's counts once; of a process that may not be looked at,
    what it was granted. What ended is taken out of `granted_to`."""
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
    """Whether both have the same open file under that number (kcmp(2), KCMP_FILE)."""
    try:
        return syscalls.syscall("kcmp", one, other, 0, number, number) == 0
    except OSError:
        return False
