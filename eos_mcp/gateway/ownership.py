"""The owner of a state directory: the gateway that holds the lock on its pid file. The kernel releases the
lock when the process ends, for any reason.
"""

from __future__ import annotations

import fcntl
import os
import time

from eos_agent.machine import private_dirs
from eos_mcp.config import paths


class AlreadyRunning(Exception):
    def __init__(self, pid: int | None) -> None:
        who = "a gateway" if pid is None else f"a gateway (pid {pid})"
        super().__init__(f"{who} already runs for {paths.state_dir()}; stop it with: eos gateway stop")
        self.pid = pid


class Ownership:
    """The lock, held for the life of a gateway. `claim` writes the pid, `release` removes the file."""

    def __init__(self) -> None:
        self._fd = -1

    def claim(self, *, wait_s: float) -> None:
        """Become the owner of the state directory.

        Args:
            wait_s: longest wait for a predecessor that is ending.
        Raises:
            AlreadyRunning: another gateway owns it.
            OSError: the state directory cannot be written.
        """
        path = paths.pid_path()
        private_dirs.make(os.path.dirname(path))
        deadline = time.monotonic() + wait_s
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = _pid_of(fd)
                os.close(fd)
                if time.monotonic() >= deadline:
                    raise AlreadyRunning(pid) from None
                time.sleep(0.02)
                continue
            if _same_file(fd, path):  # a predecessor unlinked the file between our open and our lock
                break
            os.close(fd)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            if _same_file(self._fd, paths.pid_path()):
                os.unlink(paths.pid_path())
            os.close(self._fd)
            self._fd = -1


def running_pid() -> int | None:
    """Return the pid of the running gateway of this state directory; None without one."""
    try:
        fd = os.open(paths.pid_path(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_of(fd)
    finally:
        os.close(fd)
    return None


def instance_id() -> str:
    """Return the id that labels the containers of this state directory. It is made once, so that two users or
    two test runs on one engine never adopt each other's containers.
    """
    path = os.path.join(paths.state_dir(), "instance_id")
    for _ in range(2):
        try:
            with open(path) as file:
                found = file.read().strip()
            if found:
                return found
        except FileNotFoundError:
            pass
        minted = f"eos-{os.urandom(6).hex()}"
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w") as file:
            file.write(minted + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    raise OSError(f"{path} cannot be kept")


def _pid_of(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None


def _same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False
