"""Enter user, mount and network namespaces, for the agent and for sessions."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from layerstack.kernel import syscalls

_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def enter_user_namespace() -> None:
    """Enter own user and mount namespaces, with this uid as 0: the capabilities that sessions need.

    For a single-threaded process of an ordinary user.

    Raises:
        OSError: EPERM or ENOSPC if user namespaces are forbidden (sysctl user.max_user_namespaces, AppArmor,
            a container's seccomp).
    """
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def enter_mount_namespace() -> None:
    """Enter, as root, a private mount namespace, which ends with its last process."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def bind_base(base_dir: str, target: str) -> None:
    """Mount `base_dir` read-only at `target` (<store>/base, made if missing), in our own mount namespace."""
    os.makedirs(target, exist_ok=True)
    tree = syscalls.open_tree(base_dir)
    try:
        syscalls.mount_setattr(
            "",
            syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV,
            dir_fd=tree,
        )
        syscalls.move_mount(tree, target)
    finally:
        os.close(tree)


def _write(path: str, text: str) -> None:
    with open(path, "w") as f:
        f.write(text)


def bring_up_loopback() -> None:
    """Set `lo` up in our own network namespace; EPERM without CAP_NET_ADMIN in it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING))
