"""The cgroup hierarchies of this kernel, version 2 (named "") and version 1: our path in each, reading and
writing their files, removal of cgroups.

Root uses detached mounts of its own, since an engine mounts the hierarchies read-only. cgroups(7),
fsmount(2).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time

from layerstack.kernel import syscalls

REMOVE_S = 2.0
_MOUNTED = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


def memberships() -> dict[str, str]:
    """Map hierarchy to our path in our cgroup namespace, version 2 ("") last. Named hierarchies are left
    out."""
    found: dict[str, str] = {}
    with (
        contextlib.suppress(FileNotFoundError),
        open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file,
    ):
        for line in file:
            _, hierarchy, path = line.rstrip("\n").split(":", 2)
            if not hierarchy.startswith("name="):
                found[hierarchy] = path
    return found


def root_of(hierarchy: str) -> int:
    """Open the root of a hierarchy, through a mount of our own if we may make one."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            return _detached(hierarchy)
    for path in _MOUNTED if not hierarchy else (f"/sys/fs/cgroup/{hierarchy}",):
        if hierarchy or os.path.exists(f"{path}/cgroup.controllers"):
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    raise FileNotFoundError(errno.ENOENT, "not mounted", name_of(hierarchy))


def _detached(hierarchy: str) -> int:
    """Mount a hierarchy detached. Of version 1 only an existing hierarchy is mounted: a new one would take
    controllers from version 2."""
    context = syscalls.fsopen("cgroup" if hierarchy else "cgroup2")
    try:
        for name in hierarchy.split(",") if hierarchy else ():
            syscalls.fsconfig(context, syscalls.FSCONFIG_SET_FLAG, name)
        syscalls.fsconfig(context, syscalls.FSCONFIG_CMD_CREATE)
        mount = syscalls.fsmount(context)
    finally:
        os.close(context)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)


def descend(root: int, path: str) -> int:
    return os.open(path.lstrip("/") or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)


def name_of(hierarchy: str) -> str:
    return f"cgroup v1 {hierarchy}" if hierarchy else "cgroup v2"


# Removing


def remove_tree(dir_fd: int, path: str) -> bool:
    """Kill all processes in and below a cgroup and remove it; return whether it existed.

    Raises:
        OSError: EBUSY, a process in the cgroup does not end.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    deadline = time.monotonic() + REMOVE_S
    try:
        while True:
            with contextlib.suppress(OSError):
                write(fd, "cgroup.kill", "1")
            with contextlib.suppress(FileNotFoundError):
                with os.scandir(fd) as entries:
                    folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                for name in folders:
                    remove_tree(fd, name)
            for pid in members(fd, "."):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            try:
                os.rmdir(path, dir_fd=dir_fd)
                return True
            except FileNotFoundError:  # removed by the zygote
                return True
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.002)
    finally:
        os.close(fd)


# Files of a cgroup


def members(dir_fd: int, leaf: str) -> list[int]:
    """List the processes of a cgroup by their pids in our namespace; processes outside of it are left out."""
    with contextlib.suppress(FileNotFoundError, OSError):
        return [pid for pid in map(int, read(dir_fd, f"{leaf}/cgroup.procs").split()) if pid]
    return []


def read(dir_fd: int, path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        found = b""
        while piece := os.read(fd, 65536):
            found += piece
        return found.decode("ascii", "replace")
    finally:
        os.close(fd)


def write(dir_fd: int, path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
