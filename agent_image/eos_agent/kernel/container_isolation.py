"""Isolate the containers of one engine from each other: only the gateway of their shared network keeps a
route.

    172.17.0.0/16 dev eth0   ->   172.17.0.1 dev eth0, unreachable 172.17.0.0/16

The IPv6 networks fd00::/64 and fe80::/64 likewise.

A container neither connects to addresses of these networks nor answers them. A packet from there (bound to
the interface by its sender, broadcast, multicast) has no return route; IPv4 drops it (rp_filter). IPv6 has no
such filter: a datagram bound to the interface arrives, but is not answered. All other networks, and the host
with its published ports, remain reachable through the gateway. Sessions cannot change the routes, since they
lack CAP_NET_ADMIN. ADR 0039, 0059.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

from eos_agent.base import log
from eos_agent.kernel import netlink
from eos_agent.kernel.netlink import NLM_F_CREATE, Netlink, attribute, attributes_of, nested, number
from eos_agent.machine.plain_file import read_lines
from layerstack.kernel import fsync

RESOLV_CONF = "/etc/resolv.conf"
RESOLV_CONF_BYTES = 64 << 10
_RTM_NEWROUTE, _RTM_GETROUTE, _NLM_F_REPLACE = 24, 26, 0x100
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 4, 5, 6
_UNICAST, _UNREACHABLE = 1, 7
_MAIN, _STATIC, _SCOPE_UNIVERSE, _SCOPE_LINK = 254, 4, 0, 253
_ROUTE = struct.Struct("=BBBBBBBBI")
_ONLY_FROM_WHERE_IT_GOES = nested(  # strict: drop a packet if its source's route is elsewhere or missing
    netlink.IFLA_AF_SPEC,
    nested(socket.AF_INET, nested(netlink.IFLA_INET_CONF, number(netlink.IPV4_DEVCONF_RP_FILTER, 1))),
)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class KernelRoute(NamedTuple):
    """A unicast route of the main table; gateway None: the network is on the link. Of several routes to a
    network the one with the lowest metric counts."""

    to: Network
    link: int
    gateway: Address | None
    metric: int


def leave_neighbours(record: str) -> None:
    """Isolate this container; called at the start of its agent. Failures are logged: every port still
    requires the token.

    Args:
        record: file that sessions cannot access, with the name servers of the first start. Sessions may write
            to /etc/resolv.conf, and a neighbour added there as name server would stay reachable.
    """
    try:
        connection = Netlink()
        try:
            for network in cut_off(connection, _first_nameservers(record)):
                log.log("neighbours_unreachable", network=str(network))
        finally:
            connection.close()
    except OSError as error:  # without CAP_NET_ADMIN (manager.docker.net_admin: false)
        log.log("neighbours_reachable", error=str(error))


def _first_nameservers(record: str) -> list[Address]:
    """Read the name servers of the record, or make the record. A record that cannot be read counts as
    empty."""
    if not os.path.lexists(record):
        found = nameservers()
        fsync.write_file(
            record,
            json.dumps({"format": 1, "nameservers": [str(address) for address in found]}).encode() + b"\n",
            mode=0o600,
        )
        return found
    try:
        with open(record, "rb") as file:
            return [ipaddress.ip_address(address) for address in json.load(file)["nameservers"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.log("nameservers_unreadable", path=record, error=str(error))
        return []


def cut_off(connection: Netlink, kept: Iterable[Address] = ()) -> list[Network]:
    """Make the networks of our gateways and the link-local networks of the same links unreachable, except for
    the gateways and `kept`. Returns these networks.

    Raises:
        OSError: the kernel refused; some networks may be unreachable already, and no address is more
            reachable than before.
    """
    kept = list(kept)
    done: list[Network] = []
    links: dict[int, None] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        routes = list(_routes(connection, family))
        gateways = [
            (way.link, way.gateway) for way in routes if way.gateway is not None and not way.to.prefixlen
        ]
        links.update((link, None) for link, _ in gateways)
        for near in routes:
            if near.gateway is not None or near.to.prefixlen in (0, near.to.max_prefixlen):
                continue
            own = [gateway for link, gateway in gateways if link == near.link and gateway in near.to]
            if own or (near.to.is_link_local and near.link in links):
                for address in dict.fromkeys((*own, *(each for each in kept if each in near.to))):
                    _put(connection, _UNICAST, ipaddress.ip_network(address), near)
                _put(connection, _UNREACHABLE, near.to, near)
                done.append(near.to)
    for link in links:
        connection.do(netlink.RTM_SETLINK, netlink.link(link), _ONLY_FROM_WHERE_IT_GOES)
    return done


def nameservers(path: str = RESOLV_CONF) -> list[Address]:
    """List the name servers of resolv.conf. A slirp network has a name server that is not its gateway."""
    found: list[Address] = []
    for line in read_lines(path, RESOLV_CONF_BYTES):
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                found.append(ipaddress.ip_address(words[1]))
    return found


def _routes(connection: Netlink, of: int) -> Iterable[KernelRoute]:
    for body in connection.dump(_RTM_GETROUTE, _ROUTE.pack(of, 0, 0, 0, 0, 0, 0, 0, 0)):
        family, length, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(body)
        found = attributes_of(body[_ROUTE.size :])
        if family != of or table != _MAIN or kind != _UNICAST or _RTA_OIF not in found:
            continue
        gateway = found.get(_RTA_GATEWAY)
        to = ipaddress.ip_network((found.get(_RTA_DST, bytes(4 if of == socket.AF_INET else 16)), length))
        metric = struct.unpack("=I", found.get(_RTA_PRIORITY, bytes(4)))[0]
        yield KernelRoute(
            to,
            struct.unpack("=I", found[_RTA_OIF])[0],
            None if gateway is None else ipaddress.ip_address(gateway),
            metric,
        )


def _put(connection: Netlink, kind: int, to: Network, near: KernelRoute) -> None:
    """Add or replace a route, with the metric of the route to `near`: IPv6 keeps one route for each
    metric."""
    scope = _SCOPE_UNIVERSE if kind == _UNREACHABLE else _SCOPE_LINK
    family = socket.AF_INET if to.version == 4 else socket.AF_INET6
    head = _ROUTE.pack(family, to.prefixlen, 0, 0, _MAIN, _STATIC, scope, kind, 0)
    parts = attribute(_RTA_DST, to.network_address.packed) + (
        b"" if kind == _UNREACHABLE else number(_RTA_OIF, near.link)
    )
    parts += number(_RTA_PRIORITY, near.metric) if near.metric else b""
    connection.do(_RTM_NEWROUTE, head, parts, flags=NLM_F_CREATE | _NLM_F_REPLACE)
