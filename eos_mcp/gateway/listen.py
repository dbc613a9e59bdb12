"""Listening sockets: a unix socket of mode 0600, TCP, or a descriptor that the client that started this
gateway had bound.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

from eos_mcp.config import paths
from eos_mcp.gateway_client import sync
from eos_mcp.gateway_client.sync import GatewayEndpoint


class ListenError(Exception):
    """Error with the endpoint, the fault and the next step."""


@dataclass(slots=True)
class Listener:
    """A listening socket. `identity` is the device and inode of a unix socket's file while that file is this
    process's to remove, and None from then on.
    """

    endpoint: GatewayEndpoint
    socket: socket.socket
    identity: tuple[int, int] | None


def inherited(fd: int, endpoint: GatewayEndpoint) -> Listener:
    """Use the listening socket that a client passed to this process."""
    listening = socket.socket(fileno=fd)
    listening.set_inheritable(False)
    listening.setblocking(False)
    return Listener(endpoint, listening, _identity(endpoint.path))


def unix(path: str) -> Listener:
    """Listen at `path`; a socket without a listener is replaced. The caller holds the start lock.

    Raises:
        ListenError: another process listens there, it is not a socket, or it cannot be bound.
    """
    endpoint = GatewayEndpoint("unix", path=path)
    try:
        paths.make_folder(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            error = probe.connect_ex(path)
        if error not in (errno.ECONNREFUSED, errno.ENOENT):  # 0, or EAGAIN: its backlog is full
            raise ListenError(
                f"something already listens at {endpoint}; stop it, or choose another --gateway-endpoint"
            )
        listening = sync.bind_unix(path)
    except OSError as error:
        raise ListenError(f"cannot listen at {endpoint}: {error.strerror or error}") from None
    listening.setblocking(False)
    return Listener(endpoint, listening, _identity(path))


def tcp(endpoint: GatewayEndpoint) -> Listener:
    """Listen on a TCP address; for port 0 the kernel chooses a free port, which the result's `endpoint`
    names.

    Raises:
        ListenError: the port is taken, or the address is not ours.
    """
    listening: socket.socket | None = None
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, number)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        listening.bind(address)
        listening.listen(sync.BACKLOG)
    except OSError as error:
        if listening is not None:
            listening.close()
        if error.errno == errno.EADDRINUSE:
            step = "stop what listens there, or choose another --gateway-endpoint"
            raise ListenError(f"port {endpoint.port} of {endpoint.host} is taken; {step}") from None
        raise ListenError(f"cannot listen at {endpoint}: {error.strerror or error}") from None
    listening.setblocking(False)
    return Listener(
        GatewayEndpoint("tcp", host=endpoint.host, port=int(listening.getsockname()[1])), listening, None
    )


def unlink_own(listener: Listener) -> None:
    """Remove the file of a unix socket once, unless another socket replaced it. After the socket is closed,
    the file of the next gateway may have the same inode.
    """
    identity, listener.identity = listener.identity, None
    if identity is not None and _identity(listener.endpoint.path) == identity:
        os.unlink(listener.endpoint.path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
