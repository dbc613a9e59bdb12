"""The network of isolated sessions: a bridge in a network namespace without processes, an isolated port per
session.

    session's namespace                  bridge's namespace
    lo, eth0 10.244.0.N/24  -- veth --   port of the bridge, 10.244.0.1/24

The zygote holds the bridge's namespace by a netlink socket. Interfaces, addresses and rules of the container
or the machine are never changed, several agents do not conflict, and the kernel removes everything with the
last process that holds the socket. Ports are isolated (IFLA_BRPORT_ISOLATED): frames pass only between a
session and the bridge's own address, which has no listener and does not forward. So a session can connect
neither to another session, nor to the agent, nor to an outside network. Source: bridge(8), veth(4).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import socket
from collections import deque
from typing import Any

from eos_agent.ipc import frames
from eos_agent.kernel import netlink
from eos_agent.kernel.netlink import Netlink
from layerstack.kernel import syscalls

BRIDGE = "eos-shared0"
INTERFACE = "eth0"
GATEWAY, PREFIX = "10.244.0.1", 24
_BRIDGE_INDEX = 1000  # above the interfaces of a new namespace: lo, and tunnels of loaded modules
_INTERFACE_INDEX = 999  # in the session's namespace, likewise
HOSTS = range(2, 255)
_NETWORK = GATEWAY.rpartition(".")[0]
_NEW = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
_ISOLATED = netlink.nested(netlink.IFLA_PROTINFO, netlink.attribute(netlink.IFLA_BRPORT_ISOLATED, b"\1"))
_NO_FORWARDING = netlink.nested(  # inherited from the machine, where an engine has enabled it
    netlink.IFLA_AF_SPEC,
    netlink.nested(
        socket.AF_INET,
        netlink.nested(netlink.IFLA_INET_CONF, netlink.number(netlink.IPV4_DEVCONF_FORWARDING, 0)),
    ),
)


class PoolExhausted(OSError):
    """All addresses are in use."""

    def __init__(self) -> None:
        super().__init__(
            errno.EADDRNOTAVAIL,
            f"isolated_ip_pool_exhausted: all {len(HOSTS)} addresses are in use by live sessions",
        )


class Switch:
    """The bridge and the addresses of sessions. A freed address is reused as late as possible."""

    def __init__(self) -> None:
        """Make the namespace and the bridge.

        Raises:
            OSError: EPERM without CAP_NET_ADMIN; EOPNOTSUPP if the kernel lacks bridges.
        """
        self._netlink = Netlink(_socket_of_new_namespace())
        self._free = deque(HOSTS)
        self._taken: dict[int, int] = {}
        self._indexes = itertools.count(_BRIDGE_INDEX + 1)
        try:
            kind = netlink.nested(netlink.IFLA_LINKINFO, netlink.text(netlink.IFLA_INFO_KIND, "bridge"))
            self._netlink.do(
                netlink.RTM_NEWLINK,
                netlink.link(_BRIDGE_INDEX),
                netlink.text(netlink.IFLA_IFNAME, BRIDGE),
                kind,
                flags=_NEW,
            )
            self._netlink.do(netlink.RTM_SETLINK, netlink.link(_BRIDGE_INDEX), _NO_FORWARDING)
            self._netlink.add_address(_BRIDGE_INDEX, GATEWAY, PREFIX)
            self._netlink.do(netlink.RTM_SETLINK, netlink.link(_BRIDGE_INDEX, up=True))
        except BaseException:
            self._netlink.close()
            raise

    def plug(self, pid: int) -> str:
        """Make INTERFACE, still down, in the network namespace of process `pid`; its other end is an isolated
        port of the bridge. Returns the address for it.

        Raises:
            OSError: the interface cannot be made. PoolExhausted: no address is free.
        """
        if not self._free:
            raise PoolExhausted
        host = self._taken[pid] = self._free.popleft()
        index = next(self._indexes)
        peer = (
            netlink.link(_INTERFACE_INDEX)
            + netlink.text(netlink.IFLA_IFNAME, INTERFACE)
            + netlink.number(netlink.IFLA_NET_NS_PID, pid)
        )
        data = netlink.nested(netlink.IFLA_INFO_DATA, netlink.nested(netlink.VETH_INFO_PEER, peer))
        self._netlink.do(
            netlink.RTM_NEWLINK,
            netlink.link(index),
            netlink.text(netlink.IFLA_IFNAME, f"eos-iws-{index}"),
            netlink.number(netlink.IFLA_MASTER, _BRIDGE_INDEX),
            netlink.nested(netlink.IFLA_LINKINFO, netlink.text(netlink.IFLA_INFO_KIND, "veth"), data),
            flags=_NEW,
        )
        self._netlink.do(netlink.RTM_SETLINK, netlink.link(index, family=socket.AF_BRIDGE), _ISOLATED)
        self._netlink.do(netlink.RTM_SETLINK, netlink.link(index, up=True))
        return f"{_NETWORK}.{host}"

    def unplug(self, pid: int) -> None:
        """Free the address of an ended process. The kernel removes the link with the namespace; removing it
        here would take 20 ms."""
        host = self._taken.pop(pid, None)
        if host is not None:
            self._free.append(host)


class IsolatedNetwork:
    """The zygote's side: the bridge, made for the first isolated session, and the message to each init.

    required: refuse a session that gets no address; False gives it a loopback only.
    """

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._switch: Switch | None = None
        self._refusal: OSError | None = None

    def plug(self, pid: int, wire_fd: int) -> None:
        """Connect the process and send it its address; `wire_fd` is closed."""
        answer: dict[str, Any]
        try:
            answer = {"address": self.address(pid)}
        except OSError as error:
            answer = {"errno": error.errno, "message": error.strerror}
        # The process may have ended, which is reported when it is reaped; the write happens at the close.
        with contextlib.suppress(BrokenPipeError), open(wire_fd, "wb") as wire:
            wire.write(json.dumps(answer).encode())

    def unplug(self, pid: int) -> None:
        if self._switch is not None:
            self._switch.unplug(pid)

    def address(self, pid: int) -> str | None:
        """Connect the process; return its address, None for a loopback only.

        Raises:
            OSError: the session cannot have a network.
        """
        if self._switch is None and self._refusal is None:
            try:
                self._switch = Switch()
            except OSError as error:
                why = (
                    f"{error.strerror}; a bridge needs CAP_NET_ADMIN (manager.docker.net_admin gives it) "
                    f"and a kernel with bridge and veth"
                )
                self._refusal = OSError(error.errno, why)
        if self._switch is not None:
            return self._switch.plug(pid)
        assert self._refusal is not None
        if self._required:
            raise self._refusal
        return None


def await_plug(wire_fd: int) -> str | None:
    """Wait, in the init of a session, for the message of `plug`, and configure the interface. Returns the
    address; None: loopback only.

    Raises:
        OSError: the errno and text with which the zygote refused the network, or EPIPE if it has ended.
    """
    with open(wire_fd, "rb") as wire:
        raw = wire.read()
    if not raw:
        raise OSError(errno.EPIPE, "the zygote has ended")
    answer = json.loads(raw)
    if "address" not in answer:
        raise OSError(answer["errno"], answer["message"])
    address: str | None = answer["address"]
    if address is not None:
        join(address)
    return address


def join(address: str, own: socket.socket | None = None) -> None:
    """Set the address of the interface made by `plug` and bring it up, before the session is hardened. No
    default route is added.

    own: a netlink socket of the session's namespace, closed on return; None: the caller is in that namespace.
    """
    connection = Netlink(own)
    try:
        connection.add_address(_INTERFACE_INDEX, address, PREFIX)
        connection.do(netlink.RTM_SETLINK, netlink.link(_INTERFACE_INDEX, up=True))
    finally:
        connection.close()


def own_netlink() -> socket.socket:
    """Open a netlink socket for `join` in another process: an ordinary user can enter this namespace, but not
    return."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)


def unconnected(families: list[int]) -> tuple[dict[str, Any], list[int]]:
    """Open, in the init of a session, an unconnected stream socket of its network for each family; -1 for a
    family that is not available."""
    fds: list[int] = []
    found: list[int] = []
    for family in families:
        try:
            fds.append(
                socket.socket(
                    family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                ).detach()
            )
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                for fd in fds:
                    os.close(fd)
                raise
            family = -1
        found.append(family)
    return {"families": found}, fds


def _socket_of_new_namespace() -> socket.socket:
    """Open a netlink socket in a new network namespace, in a child: an ordinary user could not return from
    it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        pid = syscalls.clone(syscalls.CLONE_NEWNET)
        if pid == 0:
            try:
                made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
                frames.send(theirs, {}, fds=[made.fileno()])
            finally:
                os._exit(0)
        theirs.close()
        _, fds = frames.receive(ours)
        os.waitpid(pid, 0)
    if not fds:
        raise OSError(errno.EIO, "the child that made a network namespace ended")
    return socket.socket(fileno=fds[0])
