"""Links and addresses by rtnetlink(7): one request at a time, its acknowledgement or the kernel's error
message.

A netlink socket belongs to the network namespace in which it was made and keeps it alive.
Numbers: include/uapi/linux/{netlink,rtnetlink,if_link,if_addr}.h.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from typing import NamedTuple

RTM_NEWLINK, RTM_GETLINK, RTM_SETLINK, RTM_NEWADDR = 16, 18, 19, 20
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x300, 0x200, 0x400
IFLA_IFNAME, IFLA_MASTER, IFLA_PROTINFO, IFLA_LINKINFO, IFLA_NET_NS_PID, IFLA_AF_SPEC = 3, 10, 12, 18, 19, 26
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFLA_BRPORT_ISOLATED = 33
IFLA_INET_CONF, IPV4_DEVCONF_FORWARDING, IPV4_DEVCONF_RP_FILTER = 1, 1, 8
IFA_ADDRESS, IFA_LOCAL, IFA_BROADCAST = 1, 2, 4
IFF_UP = 0x1
_NESTED = 0x8000
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_CAPPED = 0x100  # NLM_F_CAPPED: the error does not repeat the request
_ERROR_MESSAGE = 1  # NLMSGERR_ATTR_MSG
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")


class Interface(NamedTuple):
    """One network interface of a namespace."""

    number: int
    name: str
    up: bool


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(attributes))


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def link(index: int = 0, *, family: int = socket.AF_UNSPEC, up: bool | None = None) -> bytes:
    """struct ifinfomsg; up: None leaves the state of the link alone."""
    return _LINK.pack(family, 0, index, IFF_UP if up else 0, 0 if up is None else IFF_UP)


def attributes_of(raw: bytes) -> dict[int, bytes]:
    """Attributes by number; a truncated one ends the list."""
    found: dict[int, bytes] = {}
    while len(raw) >= 4:
        length, kind = struct.unpack_from("=HH", raw)
        if not 4 <= length <= len(raw):
            break
        found[kind & 0x3FFF] = raw[4:length]
        raw = raw[length + -length % 4 :]
    return found


class Netlink:
    """A connection to rtnetlink of one network namespace."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        """sock: a socket made in another namespace; None: a new one in the caller's."""
        self._sock = sock or socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._sock.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        self._sock.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        self._numbers = itertools.count(1)

    def close(self) -> None:
        self._sock.close()

    def do(self, kind: int, *parts: bytes, flags: int = 0) -> None:
        """Send one request and wait for its acknowledgement.

        Raises:
            OSError: the kernel's error, with its own message if it sent one.
        """
        self._exchange(kind, b"".join(parts), flags | NLM_F_ACK)

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """List the objects of a dump request."""
        return self._exchange(kind, body, NLM_F_DUMP)

    def links(self) -> list[Interface]:
        """Every interface of the namespace, in the kernel's order."""
        found: list[Interface] = []
        for body in self._exchange(RTM_GETLINK, link(), NLM_F_DUMP):
            _, _, index, flags, _ = _LINK.unpack_from(body)
            name = attributes_of(body[_LINK.size :])[IFLA_IFNAME]
            found.append(Interface(index, os.fsdecode(name.rstrip(b"\0")), bool(flags & IFF_UP)))
        return found

    def add_address(self, index: int, address: str, prefix: int) -> None:
        """Add an IPv4 address to an interface; the kernel adds the route to its network."""
        raw = socket.inet_aton(address)
        host = (1 << (32 - prefix)) - 1
        broadcast = struct.pack(">I", struct.unpack(">I", raw)[0] | host)
        body = _ADDRESS.pack(socket.AF_INET, prefix, 0, 0, index)
        addresses = (
            attribute(IFA_LOCAL, raw) + attribute(IFA_ADDRESS, raw) + attribute(IFA_BROADCAST, broadcast)
        )
        self.do(RTM_NEWADDR, body, addresses, flags=NLM_F_CREATE | NLM_F_EXCL)

    def _exchange(self, kind: int, body: bytes, flags: int) -> list[bytes]:
        sequence = next(self._numbers)
        self._sock.send(
            _HEADER.pack(_HEADER.size + len(body), kind, flags | NLM_F_REQUEST, sequence, 0) + body
        )
        answers: list[bytes] = []
        while True:
            raw = self._sock.recv(1 << 16)
            while len(raw) >= _HEADER.size:
                length, answered, answer_flags, answer_to, _ = _HEADER.unpack_from(raw)
                content, raw = raw[_HEADER.size : length], raw[length + -length % 4 :]
                if answer_to != sequence:  # of an abandoned request
                    continue
                if answered == _NLMSG_ERROR:
                    _raise(content, answer_flags)
                    return answers
                if answered == _NLMSG_DONE:
                    return answers
                answers.append(content)


def _raise(content: bytes, flags: int) -> None:
    code = -struct.unpack_from("=i", content)[0]
    if code == 0:
        return
    skip = 4 + (_HEADER.size if flags & _CAPPED else struct.unpack_from("=I", content, 4)[0])
    said = attributes_of(content[skip:]).get(_ERROR_MESSAGE, b"").rstrip(b"\0").decode(errors="replace")
    raise OSError(code, os.strerror(code) + (f": {said}" if said else ""))
