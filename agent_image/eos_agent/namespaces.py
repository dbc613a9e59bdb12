"""Namespaces of the agent and of a session: what is mounted where, and what cannot be seen."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from layerstack import linux

_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def enter_user_namespace() -> None:
    """Give this single-threaded, ordinary process the powers that sessions need: own user and mount namespaces, its uid as 0.

    Raises:
        OSError: EPERM or ENOSPC where user namespaces are forbidden (sysctl user.max_user_namespaces, AppArmor, a container's seccomp).
    """
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)


def enter_mount_namespace() -> None:
    """As root: a mount namespace of our own, from which nothing propagates and which ends with its last process."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)


def bind_base(base_dir: str, target: str) -> None:
    """Show `base_dir` read-only at `target` (<store>/base), which is made when missing; only in our own mount namespace."""
    os.makedirs(target, exist_ok=True)
    tree = linux.open_tree(base_dir)
    try:
        linux.mount_setattr("", linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV, dir_fd=tree)
        linux.move_mount(tree, target)
    finally:
        os.close(tree)


def _write(path: str, text: str) -> None:
    with open(path, "w") as f:
        f.write(text)


def bring_up_loopback() -> None:
    """`lo` up, in a network namespace of our own; without CAP_NET_ADMIN there: EPERM."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING))
