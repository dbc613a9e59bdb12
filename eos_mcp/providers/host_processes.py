"""Processes of this machine, identified by pid and start time, since pids are used again."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NamedTuple


class HostProcess(NamedTuple):
    """`started` is field 22 of /proc/PID/stat, clock ticks since boot."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Tell whether it still runs; a zombie does not."""
        found = _stat(self.pid)
        return found is not None and found[1] == self.started and found[2] not in ("Z", "X")

    def is_stopped(self) -> bool:
        """Tell whether it is stopped by a signal (SIGSTOP)."""
        found = _stat(self.pid)
        return found is not None and found[1] == self.started and found[2] in ("T", "t")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal through a pidfd, which cannot mean another process; does nothing when the process is
        gone.
        """
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)


def agents_of(settings_path: str, bundles: str) -> list[HostProcess]:
    """Find the agents of this user that were started as `sandbox-daemon serve --settings <settings_path>`,
    oldest first, without those whose parent is such a process too.

    A process can set its own argument list, so its owner and its executable are checked as well: see
    `is_agent`.
    """
    found: dict[int, tuple[HostProcess, int]] = {}
    for pid in _pids():
        if is_agent(pid, settings_path, bundles):
            status = _stat(pid)
            if status is not None and status[2] not in ("Z", "X"):
                found[pid] = (HostProcess(pid, status[1]), status[0])
    return sorted(
        (process for process, parent in found.values() if parent not in found),
        key=lambda process: (process.started, process.pid),
    )


def is_agent(pid: int, settings_path: str, bundles: str) -> bool:
    """Tell whether the process `pid` was started with this settings file, belongs to this user, and runs the
    loader of a bundle below `bundles`.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return (
        os.fsencode(settings_path) in words
        and b"serve" in words
        and is_ours(pid)
        and _runs_bundle(pid, bundles)
    )


def is_ours(pid: int) -> bool:
    """Tell whether `pid` is a process of this user. Root owns the /proc directory of a process that is not
    dumpable (proc(5)).
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return (
                next((int(line.split()[1]) for line in file if line.startswith(b"Uid:")), None)
                == os.geteuid()
            )
    except (OSError, ValueError, IndexError):
        return False


def _runs_bundle(pid: int, bundles: str) -> bool:
    """Compare by device and inode: the path of a link in /proc may be of another mount namespace.

    An unprivileged user cannot read the `exe` link of a process that made a user namespace after its exec, as
    agents do. The link is readable when the exec was inside such a namespace, as for every process of a
    session. So a process with an unreadable link does not belong to a session.
    """
    try:
        path = os.readlink(f"/proc/{pid}/exe")
        runs, there = os.stat(f"/proc/{pid}/exe"), os.stat(path)
    except PermissionError:
        return os.geteuid() != 0
    except OSError:
        return False
    below = os.path.realpath(path).startswith(os.path.realpath(bundles) + os.sep)
    return below and (runs.st_dev, runs.st_ino) == (there.st_dev, there.st_ino)


def descendants(pid: int) -> list[HostProcess]:
    """List every process below `pid`, its children first."""
    children: dict[int, list[HostProcess]] = {}
    for each in _pids():
        status = _stat(each)
        if status is not None:
            children.setdefault(status[0], []).append(HostProcess(each, status[1]))
    found: list[HostProcess] = []
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(0), []):
            found.append(child)
            pending.append(child.pid)
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[int, int, str] | None:
    """Read (parent, start time, state) of a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19]), fields[0].decode()
    except (OSError, IndexError, ValueError):
        return None
