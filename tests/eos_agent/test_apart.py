"""Neighbours on a network of two families that one bridge makes: who reaches whom once `apart` has been at
work, whichever way a packet is sent.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from eos_agent.kernel import container_isolation, netlink
from eos_agent.kernel.netlink import Netlink
from layerstack.kernel import syscalls

_NEW = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
_NODAD, _TENTATIVE = 0x02, 0x40  # of IFA_F_*: there at once; not to be used yet
_BRIDGE, _FIRST_PORT, _OWN = 1000, 1001, 999
_RTA_OIF, _RTA_GATEWAY = 4, 5
GATEWAY, GATEWAY_6, GROUP = "10.77.0.1", "fd77::1", "239.7.7.7"
WAIT_S, LONG_S = 0.3, 60.0
"""For a packet that must not come, and for one that must."""


class Member(NamedTuple):
    """A network namespace with an address of each family: `run` has a function called in it."""

    address: str
    address_6: str
    run: Callable[..., Any]


def _address(connection: Netlink, index: int, address: str, prefix: int) -> None:
    raw = socket.inet_pton(socket.AF_INET6, address)
    body = struct.pack("=BBBBI", socket.AF_INET6, prefix, _NODAD, 0, index)
    attributes = netlink.attribute(netlink.IFA_LOCAL, raw) + netlink.attribute(netlink.IFA_ADDRESS, raw)
    connection.do(netlink.RTM_NEWADDR, body, attributes, flags=_NEW)


def _default(connection: Netlink, family: int, gateway: str) -> None:
    head = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 254, 4, 0, 1, 0)
    way = netlink.attribute(_RTA_GATEWAY, socket.inet_pton(family, gateway)) + netlink.number(_RTA_OIF, _OWN)
    connection.do(24, head, way, flags=_NEW)


def _up(connection: Netlink, index: int) -> None:
    connection.do(netlink.RTM_SETLINK, netlink.link(index, up=True))


def _with_family_6() -> None:
    """An engine turns IPv6 off where it gives no address of it; what a new namespace has is inherited from
    the machine.
    """
    for name in ("all", "default"):
        with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w") as file:
            file.write("0")
        with open(f"/proc/sys/net/ipv6/conf/{name}/accept_dad", "w") as file:
            file.write("0")


@contextmanager
def neighbours() -> Generator[list[Member]]:
    """In a network namespace of the caller's own: a bridge with the gateway's addresses, and two members
    plugged into it.
    """
    syscalls.unshare(syscalls.CLONE_NEWNET)
    _with_family_6()
    here = Netlink()
    kind = netlink.nested(netlink.IFLA_LINKINFO, netlink.text(netlink.IFLA_INFO_KIND, "bridge"))
    here.do(
        netlink.RTM_NEWLINK,
        netlink.link(_BRIDGE),
        netlink.text(netlink.IFLA_IFNAME, "bridge"),
        kind,
        flags=_NEW,
    )
    here.add_address(_BRIDGE, GATEWAY, 24)
    _address(here, _BRIDGE, GATEWAY_6, 64)
    _up(here, _BRIDGE)
    members: list[Member] = []
    pids: list[int] = []
    for number in (2, 3):
        ours, theirs = os.pipe(), os.pipe()
        pid = os.fork()
        pids += [pid] if pid else []
        if pid == 0:
            os.close(ours[1])
            _live(ours[0], theirs[1])
        os.close(ours[0])
        os.close(theirs[1])
        assert os.read(theirs[0], 1) == b"x"
        peer = (
            netlink.link(_OWN)
            + netlink.text(netlink.IFLA_IFNAME, "eth0")
            + netlink.number(netlink.IFLA_NET_NS_PID, pid)
        )
        data = netlink.nested(netlink.IFLA_INFO_DATA, netlink.nested(netlink.VETH_INFO_PEER, peer))
        here.do(
            netlink.RTM_NEWLINK,
            netlink.link(_FIRST_PORT + number),
            netlink.text(netlink.IFLA_IFNAME, f"port{number}"),
            netlink.number(netlink.IFLA_MASTER, _BRIDGE),
            netlink.nested(netlink.IFLA_LINKINFO, netlink.text(netlink.IFLA_INFO_KIND, "veth"), data),
            flags=_NEW,
        )
        _up(here, _FIRST_PORT + number)
        member = Member(f"10.77.0.{number}", f"fd77::{number}", _caller(ours[1], theirs[0]))
        member.run("join", member.address, member.address_6)
        members.append(member)
    try:
        yield members
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        here.close()


def _caller(to: int, back: int) -> Callable[..., Any]:
    def call(name: str, *args: Any) -> Any:
        os.write(to, repr((name, args)).encode() + b"\n")
        said = b""
        while not said.endswith(b"\n"):
            piece = os.read(back, 4096)
            assert piece, "the member has ended"
            said += piece
        return eval(said)

    return call


def _live(orders: int, answers: int) -> None:
    """The life of a member: it carries out orders by name."""
    code = 1
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        syscalls.unshare(syscalls.CLONE_NEWNET)
        os.write(answers, b"x")
        with open(orders, "rb") as lines:
            for line in lines:
                name, args = eval(line)
                try:
                    said: Any = globals()[f"do_{name}"](*args)
                except OSError as error:
                    said = type(error).__name__
                os.write(answers, repr(said).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


_open: dict[str, socket.socket] = {}


def do_join(address: str, address_6: str) -> None:
    _with_family_6()
    connection = Netlink()
    connection.add_address(_OWN, address, 24)
    _address(connection, _OWN, address_6, 64)
    _up(connection, _OWN)
    _up(connection, 1)
    _default(connection, socket.AF_INET, GATEWAY)
    _default(connection, socket.AF_INET6, GATEWAY_6)
    connection.close()


def do_link_address() -> str:
    """Once the kernel lets it be used."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file if line.split()[-1] == "eth0"]
        found = [row[0] for row in rows if row[0].startswith("fe80")]
        if found and not any(int(row[4], 16) & _TENTATIVE for row in rows):
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(found[0]))
        time.sleep(0.01)
    raise TimeoutError("no usable address of the link")


def do_cut_off() -> list[str]:
    connection = Netlink()
    try:
        return sorted(map(str, container_isolation.cut_off(connection)))
    finally:
        connection.close()


def do_serve(own: str) -> str:
    for name, family, kind in (("tcp", 2, 1), ("tcp6", 10, 1), ("udp", 2, 2)):
        _open[name] = socket.socket(family, kind)
        _open[name].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == 10:
            _open[name].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _open[name].bind(("", 7000) if family == 2 else ("::", 7000))
    _open["udp"].setsockopt(
        socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton(own)
    )
    _open["tcp"].listen()
    _open["tcp6"].listen()
    return "listening"


def do_connect(to: str, bound: bool, timeout_s: float) -> str:
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        if bound:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
        scope = socket.if_nametoindex("eth0") if to.startswith("fe80") else 0
        sock.connect((to, 7000) if family == socket.AF_INET else (to, 7000, 0, scope))
    return "connected"


def do_send(own: str, to: str, bound: bool) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
        sock.bind((own, 0))
        if bound:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
        sock.sendto(f"{own} {to}".encode(), (to, 7000))
    return "sent"


def do_heard(own: str) -> list[str]:
    """Of others: what a member sends to a group comes back to itself."""
    found: list[str] = []
    while select.select([_open["udp"]], [], [], WAIT_S)[0]:
        found.append(_open["udp"].recv(100).decode())
    return sorted(one for one in found if not one.startswith(own + " "))


def tried(one: Member, other: Member, timeout_s: float) -> dict[str, Any]:
    """What `one` gets through to `other`; to the gateway it must get through."""
    one.run("link_address")
    link = other.run("link_address")
    found = {
        "gateway": one.run("connect", GATEWAY, False, LONG_S),
        "gateway 6": one.run("connect", GATEWAY_6, False, LONG_S),
    }
    for to in (other.address, other.address_6, link):
        for bound in (False, True):
            found[f"{to}{', bound' if bound else ''}"] = one.run("connect", to, bound, timeout_s)
    for to in ("10.77.0.255", "255.255.255.255", GROUP, other.address):
        for bound in (False, True):
            one.run("send", one.address, to, bound)
    return {**found, "heard": other.run("heard", other.address)}


def scenario(cut: bool) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    with neighbours() as (one, other):
        servers = [
            socket.create_server((GATEWAY, 7000)),
            socket.create_server((GATEWAY_6, 7000), family=socket.AF_INET6),
        ]
        one.run("serve", one.address)
        other.run("serve", other.address)
        networks: list[str] = one.run("cut_off") if cut else []
        timeout_s = WAIT_S if cut else LONG_S
        try:
            return networks, tried(one, other, timeout_s), tried(other, one, timeout_s)
        finally:
            for server in servers:
                server.close()


@pytest.mark.soak
@pytest.mark.needs("root")
def test_without_it_neighbours_reach_each_other_in_every_way(in_mount_namespace: Callable[..., Any]) -> None:
    networks, there, back = in_mount_namespace(scenario, False)
    assert networks == []
    for found in (there, back):
        assert len(found.pop("heard")) == 8 and set(found.values()) == {"connected"}


@pytest.mark.needs("root")
def test_no_packet_of_a_neighbour_arrives_and_no_connection_comes_about(
    in_mount_namespace: Callable[..., Any],
) -> None:
    """`one` is ours; `other` may be any container."""
    networks, there, back = in_mount_namespace(scenario, True)
    assert networks == ["10.77.0.0/24", "fd77::/64", "fe80::/64"]
    for found in (there, back):
        assert found.pop("gateway") == found.pop("gateway 6") == "connected"
    assert back.pop("heard") == []
    assert "connected" not in back.values()
    there.pop("heard")  # what ours sends away by hand is the other one's matter
    assert "connected" not in there.values()
