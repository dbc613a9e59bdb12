"""The bridge of a zygote, seen from outside through the zygote's netlink socket, since no process is in that
network namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time

from eos_agent.kernel import netlink


def ports_of(zygote: int) -> list[str]:
    """The ports of a zygote's bridge, seen through its own netlink socket."""
    pidfd = os.pidfd_open(zygote)
    try:
        for name in os.listdir(f"/proc/{zygote}/fd"):
            if not os.readlink(f"/proc/{zygote}/fd/{name}").startswith("socket:"):
                continue
            fd = ctypes.CDLL(None).syscall(438, pidfd, int(name), 0)  # pidfd_getfd(2)
            assert fd >= 0
            with socket.socket(fileno=fd) as sock:
                if sock.family == socket.AF_NETLINK:
                    links = netlink.Netlink(sock).links()
                    return sorted(link.name for link in links if link.name.startswith("eos-iws-"))
        return []
    finally:
        os.close(pidfd)


def wait_until(zygote: int, count: int) -> list[str]:
    """Wait for `count` ports and return them: the kernel removes a namespace asynchronously."""
    end = time.monotonic() + 60
    while len(found := ports_of(zygote)) != count and time.monotonic() < end:
        time.sleep(0.01)
    return found


def wait_until_empty(zygote: int) -> None:
    assert wait_until(zygote, 0) == []
