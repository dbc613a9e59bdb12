"""The network of isolated sessions: a bridge in a network namespace that no process is in, one isolated port of it for each session.

    session's namespace: lo, eth0 10.244.0.N/24 ---- veth ---- port of the bridge, 10.244.0.1/24: the switch's namespace

The switch belongs to the zygote, which holds nothing but a netlink socket in it: no interface, address or rule is ever made in the
network of the container or the machine, several agents never meet, and the kernel removes all of it with the last process that holds it.
Ports are isolated (IFLA_BRPORT_ISOLATED): frames pass between a session and the gateway only. Nothing listens at the gateway, and it does
not forward, so that a session reaches neither another one, nor the agent, nor the world. Source: bridge(8), veth(4).
"""

from __future__ import annotations

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
_BRIDGE_INDEX = 1000  # above what a new namespace has of itself: lo, and tunnels where their modules are loaded
_INTERFACE_INDEX = 999  # in the session's namespace, likewise
HOSTS = range(2, 255)
_NETWORK = GATEWAY.rpartition(".")[0]
_NEW = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
_ISOLATED = netlink.nested(netlink.IFLA_PROTINFO, netlink.attribute(netlink.IFLA_BRPORT_ISOLATED, b"\1"))
_NO_FORWARDING = netlink.nested(  # inherited from the machine, where an engine has turned it on
    netlink.IFLA_AF_SPEC,
    netlink.nested(socket.AF_INET, netlink.nested(netlink.IFLA_INET_CONF, netlink.number(netlink.IPV4_DEVCONF_FORWARDING, 0))),
)


class PoolExhausted(OSError):
    """Every address is in use."""

    def __init__(self) -> None:
        super().__init__(errno.EADDRNOTAVAIL, f"isolated_ip_pool_exhausted: all {len(HOSTS)} addresses are in use by live sessions")


class Switch:
    """The bridge, and who has which address. An address comes back into use as late as possible."""

    def __init__(self) -> None:
        """Make the namespace and the bridge.

        Raises:
            OSError: EPERM without CAP_NET_ADMIN; EOPNOTSUPP where the kernel has no bridges.
        """
        self._netlink = Netlink(_socket_of_new_namespace())
        self._free = deque(HOSTS)
        self._taken: dict[int, int] = {}
        self._indexes = itertools.count(_BRIDGE_INDEX + 1)
        try:
            kind = netlink.nested(netlink.IFLA_LINKINFO, netlink.text(netlink.IFLA_INFO_KIND, "bridge"))
            self._netlink.do(netlink.RTM_NEWLINK, netlink.link(_BRIDGE_INDEX), netlink.text(netlink.IFLA_IFNAME, BRIDGE), kind, flags=_NEW)
            self._netlink.do(netlink.RTM_SETLINK, netlink.link(_BRIDGE_INDEX), _NO_FORWARDING)
            self._netlink.add_address(_BRIDGE_INDEX, GATEWAY, PREFIX)
            self._netlink.do(netlink.RTM_SETLINK, netlink.link(_BRIDGE_INDEX, up=True))
        except BaseException:
            self._netlink.close()
            raise

    def plug(self, pid: int) -> str:
        """Give the network namespace of process `pid` an INTERFACE, down, whose other end is an isolated port of the bridge. Returns its address.

        Raises:
            OSError: nothing can be reached through it then; PoolExhausted.
        """
        if not self._free:
            raise PoolExhausted
        host = self._taken[pid] = self._free.popleft()
        index = next(self._indexes)
        peer = netlink.link(_INTERFACE_INDEX) + netlink.text(netlink.IFLA_IFNAME, INTERFACE) + netlink.number(netlink.IFLA_NET_NS_PID, pid)
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
        """The process has ended: its address is free. The kernel removes the link with the namespace; doing it here would take 20 ms."""
        host = self._taken.pop(pid, None)
        if host is not None:
            self._free.append(host)


class IsolatedNetwork:
    """The zygote's side: the switch, made when the first isolated session is; what each runner is told about its own connection.

    required: a session without an address is refused; else it gets a loopback only.
    """

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._switch: Switch | None = None
        self._refusal: OSError | None = None

    def plug(self, pid: int, wire_fd: int) -> None:
        """Connect the process and tell it so; `wire_fd` is closed."""
        told: dict[str, Any]
        try:
            told = {"address": self.address(pid)}
        except OSError as error:
            told = {"errno": error.errno, "message": error.strerror}
        with open(wire_fd, "wb") as wire:
            try:
                wire.write(json.dumps(told).encode())
            except BrokenPipeError:  # it has ended, and will be reaped
                pass

    def unplug(self, pid: int) -> None:
        if self._switch is not None:
            self._switch.unplug(pid)

    def address(self, pid: int) -> str | None:
        """Connect the process. Its address; None: it has a loopback only.

        Raises:
            OSError: this session can have no network.
        """
        if self._switch is None and self._refusal is None:
            try:
                self._switch = Switch()
            except OSError as error:
                why = f"{error.strerror}; a bridge needs CAP_NET_ADMIN (manager.docker.net_admin gives it) and a kernel that has bridge and veth"
                self._refusal = OSError(error.errno, why)
        if self._switch is not None:
            return self._switch.plug(pid)
        assert self._refusal is not None
        if self._required:
            raise self._refusal
        return None


def await_plug(wire_fd: int) -> str | None:
    """In pid 1 of a session: wait for what `plug` has to tell, and join. Returns the address; None: loopback only.

    Raises:
        OSError: why this session can have no network.
    """
    with open(wire_fd, "rb") as wire:
        raw = wire.read()
    if not raw:
        raise OSError(errno.EPIPE, "the process that makes sessions is gone")
    told = json.loads(raw)
    if "address" not in told:
        raise OSError(told["errno"], told["message"])
    address: str | None = told["address"]
    if address is not None:
        join(address)
    return address


def join(address: str, own: socket.socket | None = None) -> None:
    """Before a session is hardened: the interface that `plug` made gets its address and goes up. No default route.

    own: a netlink socket of the session's namespace, which is closed; None: the caller is in there.
    """
    connection = Netlink(own)
    try:
        connection.add_address(_INTERFACE_INDEX, address, PREFIX)
        connection.do(netlink.RTM_SETLINK, netlink.link(_INTERFACE_INDEX, up=True))
    finally:
        connection.close()


def own_netlink() -> socket.socket:
    """For `join` in another process: an ordinary user could enter this namespace, but not come back."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)


def unconnected(families: list[int]) -> tuple[dict[str, Any], list[int]]:
    """In pid 1 of a session: stream sockets of its network, for whoever wants to reach a server in it. -1 stands for a family that it lacks."""
    fds: list[int] = []
    found: list[int] = []
    for family in families:
        try:
            fds.append(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK).detach())
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                for fd in fds:
                    os.close(fd)
                raise
            family = -1
        found.append(family)
    return {"families": found}, fds


def _socket_of_new_namespace() -> socket.socket:
    """A netlink socket in a new network namespace. A child makes both: an ordinary user could not come back from there."""
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
