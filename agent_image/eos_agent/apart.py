"""Sandboxes of one engine do not reach each other: of the network that a container shares with others, its routes leave the gateway alone.

    172.17.0.0/16 dev eth0   ->   172.17.0.1 dev eth0, unreachable 172.17.0.0/16

A container answers nobody there, and asks nobody: no connection comes about, whichever side begins it. The rest of the world is behind the
gateway, as before, and so is the host with the published ports. Sessions have no CAP_NET_ADMIN to take it back. ADR 0039.
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

from eos_agent import log
from eos_agent.netlink import NLM_F_CREATE, Netlink, attribute, attributes_of, number
from eos_agent.plain_file import read_lines
from layerstack import durable

RESOLV_CONF = "/etc/resolv.conf"
RESOLV_CONF_BYTES = 64 << 10
_RTM_NEWROUTE, _RTM_GETROUTE, _NLM_F_REPLACE = 24, 26, 0x100
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_UNICAST, _UNREACHABLE = 1, 7
_MAIN, _STATIC, _SCOPE_UNIVERSE, _SCOPE_LINK = 254, 4, 0, 253
_ROUTE = struct.Struct("=BBBBBBBBI")
Network = ipaddress.IPv4Network
Address = ipaddress.IPv4Address


class Route(NamedTuple):
    """One unicast route of the main table; gateway None: the network is on the link itself."""

    to: Network
    link: int
    gateway: Address | None


def leave_neighbours(record: str) -> None:
    """Called at the start of an agent in a container; what could not be done is logged, and the token at each port of ours remains.

    Args:
        record: where the name servers of the first start are remembered, out of reach of sessions. They may write to /etc/resolv.conf, and a name
            server that they add would be a neighbour that stays reachable.
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
    """Those of the record, which is made when there is none. One that cannot be read counts as empty."""
    if not os.path.lexists(record):
        found = nameservers()
        durable.write_file(
            record, json.dumps({"format": 1, "nameservers": [str(address) for address in found]}).encode() + b"\n", mode=0o600
        )
        return found
    try:
        with open(record, "rb") as file:
            return [Address(address) for address in json.load(file)["nameservers"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.log("nameservers_unreadable", path=record, error=str(error))
        return []


def cut_off(connection: Netlink, kept: Iterable[Address] = ()) -> list[Network]:
    """Make each network that a gateway of ours lies in unreachable, but for that gateway and `kept`. Returns those networks.

    Raises:
        OSError: the kernel refused; nothing or a part of it was done, and nothing more is reachable than before.
    """
    routes = list(_routes(connection))
    kept = list(kept)
    done: list[Network] = []
    for way in routes:
        if way.gateway is None or way.to.prefixlen:
            continue
        for near in routes:
            if near.gateway is None and near.link == way.link and near.to.prefixlen < 32 and way.gateway in near.to:
                for address in dict.fromkeys((way.gateway, *(each for each in kept if each in near.to))):
                    _put(connection, _UNICAST, Network(address), near.link)
                _put(connection, _UNREACHABLE, near.to, None)
                done.append(near.to)
    return done


def nameservers(path: str = RESOLV_CONF) -> list[Address]:
    """Of IPv4; a network that one process serves for one container (slirp) has its own beside the gateway."""
    found: list[Address] = []
    for line in read_lines(path, RESOLV_CONF_BYTES):
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                found.append(Address(words[1]))
    return found


def _routes(connection: Netlink) -> Iterable[Route]:
    for body in connection.dump(_RTM_GETROUTE, _ROUTE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)):
        family, length, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(body)
        found = attributes_of(body[_ROUTE.size :])
        if family != socket.AF_INET or table != _MAIN or kind != _UNICAST or _RTA_OIF not in found:
            continue
        gateway = found.get(_RTA_GATEWAY)
        to = Network((found.get(_RTA_DST, bytes(4)), length))
        yield Route(to, struct.unpack("=I", found[_RTA_OIF])[0], None if gateway is None else Address(gateway))


def _put(connection: Netlink, kind: int, to: Network, through: int | None) -> None:
    scope = _SCOPE_UNIVERSE if through is None else _SCOPE_LINK
    head = _ROUTE.pack(socket.AF_INET, to.prefixlen, 0, 0, _MAIN, _STATIC, scope, kind, 0)
    parts = attribute(_RTA_DST, to.network_address.packed) + (b"" if through is None else number(_RTA_OIF, through))
    connection.do(_RTM_NEWROUTE, head, parts, flags=NLM_F_CREATE | _NLM_F_REPLACE)
