"""The seccomp program, executed here instruction by instruction for both machines."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from eos_agent.kernel import harden
from layerstack.kernel import syscalls

MACHINES = ["x86_64", "aarch64"]
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
CLONE = {"x86_64": 56, "aarch64": 220}
MKNODAT = {"x86_64": 259, "aarch64": 33}


def denied(code: int) -> int:
    return 0x00050000 | code


SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}


def run(
    machine: str, number: int, *arguments: int, arch: int | None = None, raw_sockets: bool = False
) -> int:
    """What the kernel would do with this call: a classic BPF machine over struct seccomp_data."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *padded)
    program = harden.seccomp_program(machine, raw_sockets=raw_sockets)
    accumulator, at = 0, 0
    while True:
        code, jump_true, jump_false, k = struct.unpack_from("HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif code == 0x54:
            accumulator &= k
        elif code == 0x06:
            return int(k)
        else:
            taken = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            at += jump_true if taken else jump_false


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_list_gets_eperm_and_its_neighbours_pass(machine: str) -> None:
    numbers = set(harden.denied_calls(machine).values())
    special = {
        SOCKET[machine],
        SOCKETPAIR[machine],
        CLONE[machine],
        435,
        MKNODAT[machine],
        133 if machine == "x86_64" else MKNODAT[machine],
    }
    for number in range(500):
        if number in special:
            continue
        assert run(machine, number) == (denied(errno.EPERM) if number in numbers else ALLOW), number


@pytest.mark.parametrize("machine", MACHINES)
def test_both_machines_deny_the_same_calls_by_name(machine: str) -> None:
    assert harden.denied_calls(machine).keys() == harden.denied_calls("x86_64").keys()
    assert len(set(harden.denied_calls(machine).values())) == len(harden.denied_calls(machine))


@pytest.mark.parametrize("machine", MACHINES)
def test_clone_is_refused_for_each_namespace_flag_and_passes_for_threads_and_processes(machine: str) -> None:
    thread = 0x003D0F00
    assert run(machine, CLONE[machine], 17) == ALLOW and run(machine, CLONE[machine], thread) == ALLOW
    for flag in (
        syscalls.CLONE_NEWNS,
        syscalls.CLONE_NEWUSER,
        syscalls.CLONE_NEWPID,
        syscalls.CLONE_NEWNET,
        syscalls.CLONE_NEWIPC,
        syscalls.CLONE_NEWUTS,
    ):
        assert run(machine, CLONE[machine], flag | 17) == denied(errno.EPERM)
    assert run(machine, 435) == denied(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_mknod_makes_fifos_and_files_but_no_device(machine: str) -> None:
    calls = [(MKNODAT[machine], (0, 0))] + ([(133, (0,))] if machine == "x86_64" else [])
    for number, before in calls:
        for kind in (0o010000, 0o100000, 0o140000, 0):
            assert run(machine, number, *before, kind | 0o644) == ALLOW
        for kind in (0o020000, 0o060000):
            assert run(machine, number, *before, kind | 0o644) == denied(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_no_socket_shows_what_others_send_over_a_network_that_is_shared_and_ping_works(machine: str) -> None:
    cloexec, raw = socket.SOCK_CLOEXEC, socket.SOCK_RAW
    for domain, kind, protocol, passes in [
        (socket.AF_INET, socket.SOCK_STREAM, 0, True),
        (socket.AF_INET6, socket.SOCK_DGRAM | cloexec, 17, True),
        (socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, True),
        (socket.AF_NETLINK, raw, 0, True),
        (socket.AF_INET, raw | cloexec, socket.IPPROTO_ICMP, True),
        (socket.AF_INET6, raw, socket.IPPROTO_ICMPV6, True),
        (socket.AF_INET, raw, socket.IPPROTO_TCP, False),
        (socket.AF_INET6, raw | cloexec, socket.IPPROTO_TCP, False),
        (socket.AF_INET, raw, socket.IPPROTO_RAW, False),
        (socket.AF_PACKET, raw, 0x0300, False),
        (socket.AF_PACKET, socket.SOCK_DGRAM | cloexec, 0x0300, False),
        (socket.AF_INET, 10, 0x0300, False),  # SOCK_PACKET: a packet socket by its oldest name
    ]:
        arguments = (int(domain), int(kind), int(protocol))
        assert run(machine, SOCKET[machine], *arguments) == (ALLOW if passes else denied(errno.EPERM)), (
            arguments
        )
        assert run(machine, SOCKET[machine], *arguments, raw_sockets=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_socket_of_another_family_than_four_is_what_a_kernel_without_it_says(machine: str) -> None:
    passing = {int(family) for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)}
    for family in range(64):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.SOCK_SEQPACKET):
            asked = (family, int(kind), 0)
            refused = errno.EPERM if family in (socket.AF_PACKET, 44) else errno.EAFNOSUPPORT
            assert run(machine, SOCKET[machine], *asked) == (
                ALLOW if family in passing else denied(refused)
            ), asked
            of_its_own = ALLOW if family in passing | {int(socket.AF_PACKET)} else denied(errno.EAFNOSUPPORT)
            assert run(machine, SOCKET[machine], *asked, raw_sockets=True) == of_its_own, asked
            pair = ALLOW if family == socket.AF_UNIX else denied(errno.EAFNOSUPPORT)
            for raw in (False, True):
                assert run(machine, SOCKETPAIR[machine], *asked, raw_sockets=raw) == pair, asked


def test_another_architecture_is_refused_and_x32_dies() -> None:
    assert run("x86_64", 1, arch=0x40000003) == denied(errno.EPERM)  # i386
    assert run("aarch64", 1, arch=0x40000028) == denied(errno.EPERM)  # arm
    assert run("x86_64", 0x40000000 + 1) == KILL


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(OSError, match="riscv64"):
        harden.seccomp_program("riscv64")


def test_the_kept_capabilities_are_the_twelve_of_the_list() -> None:
    assert sorted(harden.CAP_NUMBERS) == sorted(
        [
            "CHOWN",
            "DAC_OVERRIDE",
            "DAC_READ_SEARCH",
            "FOWNER",
            "FSETID",
            "SETUID",
            "SETGID",
            "SETFCAP",
            "KILL",
            "NET_BIND_SERVICE",
            "NET_RAW",
            "MKNOD",
        ]
    )
