"""Restrict a session's processes: capabilities, no_new_privs, seccomp, Landlock, all inherited by children.

`Hardening.prepare()` runs once in the zygote (its inputs do not change), `apply()` once per session in init.
Sources: capabilities(7), seccomp(2), seccomp filter documentation of the kernel, landlock(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from layerstack.kernel import syscalls

CAP_NUMBERS = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "DAC_READ_SEARCH": 2,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "NET_BIND_SERVICE": 10,
    "NET_RAW": 13,
    "MKNOD": 27,
    "SETFCAP": 31,
}  # capabilities that commands keep: enough to install packages, run servers and change owners of files

_NAMESPACE_FLAGS = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWCGROUP
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
)

# Denied with EPERM. Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_DENIED_EVERYWHERE = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
}
_DENIED_BY_MACHINE = {
    "x86_64": {
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "unshare": 272,
        "setns": 308,
        "bpf": 321,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "fanotify_init": 300,
        "open_by_handle_at": 304,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "init_module": 175,
        "finit_module": 313,
        "delete_module": 176,
        "kexec_load": 246,
        "kexec_file_load": 320,
        "reboot": 169,
        "swapon": 167,
        "swapoff": 168,
        "quotactl": 179,
        "acct": 163,
        "syslog": 103,
    },
    "aarch64": {
        "mount": 40,
        "umount2": 39,
        "pivot_root": 41,
        "unshare": 97,
        "setns": 268,
        "bpf": 280,
        "perf_event_open": 241,
        "userfaultfd": 282,
        "fanotify_init": 262,
        "open_by_handle_at": 265,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "init_module": 105,
        "finit_module": 273,
        "delete_module": 106,
        "kexec_load": 104,
        "kexec_file_load": 294,
        "reboot": 142,
        "swapon": 224,
        "swapoff": 225,
        "quotactl": 60,
        "acct": 89,
        "syslog": 116,
    },
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_CLONE3 = 435
_MKNOD_MODE_ARGUMENT = {"x86_64": {133: 1, 259: 2}, "aarch64": {33: 2}}  # mknod, mknodat -> index of the mode
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _AF_PACKET, _AF_XDP = 1, 2, 10, 16, 17, 44
SOCKET_FAMILIES = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
_SOCK_RAW, _SOCK_PACKET, _SOCK_TYPE_MASK = 3, 10, 0xF
_PING = (1, 58)  # IPPROTO_ICMP, IPPROTO_ICMPV6

# BPF_LD|W|ABS, BPF_JMP|..|K, BPF_ALU|AND|K, BPF_RET|K
_LOAD, _JEQ, _JGE, _JSET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000
# offsets in struct seccomp_data; arguments are 8 bytes, little endian, so the low word comes first
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16


def _errno(code: int) -> int:
    return 0x00050000 | code


def _op(code: int, jump_true: int, jump_false: int, k: int) -> bytes:
    return struct.pack("HBBI", code, jump_true, jump_false, k)


def denied_calls(machine: str = syscalls.MACHINE) -> dict[str, int]:
    """Map name to number of each system call that fails with EPERM for any arguments."""
    return {**_DENIED_EVERYWHERE, **_DENIED_BY_MACHINE[machine]}


def _only_families(machine: str, *, raw_sockets: bool) -> list[bytes]:
    """Allow sockets of SOCKET_FAMILIES only; another family fails as on a kernel without it.

    AF_VSOCK connects to the machine's host and its other guests from any network namespace. The other
    families do that too, or are rarely used kernel code.

    raw_sockets: allow packet sockets and all raw sockets; else only the raw sockets of ping. Other raw
    sockets can read the traffic of the shared network, where the gateway's requests over TCP carry the
    agent's token (ADR 0026).
    """
    deny, allow, unknown = (
        _op(_RETURN, 0, 0, k) for k in (_errno(errno.EPERM), _ALLOW, _errno(errno.EAFNOSUPPORT))
    )
    domain, kind, protocol = (_op(_LOAD, 0, 0, _ARGUMENTS + 8 * n) for n in range(3))
    pairs = [domain, _op(_JEQ, 0, 1, _AF_UNIX), allow, unknown]
    body: list[bytes] = []
    if not raw_sockets:
        body += [kind, _op(_AND, 0, 0, _SOCK_TYPE_MASK), _op(_JEQ, 0, 1, _SOCK_PACKET), deny]
        body += [domain, _op(_JEQ, 0, 1, _AF_PACKET), deny, _op(_JEQ, 0, 1, _AF_XDP), deny]
    body += [domain]
    for family in (*SOCKET_FAMILIES, *((_AF_PACKET,) if raw_sockets else ())):
        if raw_sockets or family not in (_AF_INET, _AF_INET6):
            body += [_op(_JEQ, 0, 1, family), allow]
    if not raw_sockets:
        body += [_op(_JEQ, 2, 0, _AF_INET), _op(_JEQ, 1, 0, _AF_INET6), unknown]
        body += [kind, _op(_AND, 0, 0, _SOCK_TYPE_MASK), _op(_JEQ, 1, 0, _SOCK_RAW), allow]
        body += [protocol, _op(_JEQ, 1, 0, _PING[0]), _op(_JEQ, 0, 1, _PING[1]), allow, deny]
    else:
        body += [unknown]
    return [
        _op(_JEQ, 0, len(pairs), _SOCKETPAIR[machine]),
        *pairs,
        _op(_JEQ, 0, len(body), _SOCKET[machine]),
        *body,
    ]


def seccomp_program(machine: str = syscalls.MACHINE, *, raw_sockets: bool = False) -> bytes:
    """Build the BPF program of a session. raw_sockets: the session has its own network and may read every
    packet of it.

    Calls of another architecture get EPERM; x32 calls kill the process. clone3 gets ENOSYS, since a filter
    cannot read its flags in memory, and libc falls back to clone. clone with a namespace flag and mknod of a
    device get EPERM.

    Raises:
        OSError: ENOSYS, the system call numbers of this architecture are unknown.
    """
    if machine not in _AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"seccomp: no system call numbers known for {machine}")
    deny, allow = _op(_RETURN, 0, 0, _errno(errno.EPERM)), _op(_RETURN, 0, 0, _ALLOW)
    program = [
        _op(_LOAD, 0, 0, _ARCH),
        _op(_JEQ, 1, 0, _AUDIT_ARCH[machine]),
        deny,
        _op(_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_op(_JGE, 0, 1, _X32_BIT), _op(_RETURN, 0, 0, _KILL_PROCESS)]
    program += [_op(_JEQ, 0, 1, _CLONE3), _op(_RETURN, 0, 0, _errno(errno.ENOSYS))]
    for number in sorted(denied_calls(machine).values()):
        program += [_op(_JEQ, 0, 1, number), deny]
    program += _only_families(machine, raw_sockets=raw_sockets)
    for number, argument in _MKNOD_MODE_ARGUMENT[machine].items():
        mode = _ARGUMENTS + 8 * argument
        program += [_op(_JEQ, 0, 6, number), _op(_LOAD, 0, 0, mode), _op(_AND, 0, 0, 0o170000)]
        program += [_op(_JEQ, 1, 0, 0o020000), _op(_JEQ, 0, 1, 0o060000), deny, allow]
    program += [
        _op(_JEQ, 0, 3, _CLONE[machine]),
        _op(_LOAD, 0, 0, _ARGUMENTS),
        _op(_JSET, 0, 1, _NAMESPACE_FLAGS),
        deny,
        allow,
    ]
    return b"".join(program)


def install_seccomp(program: bytes) -> None:
    """Install the filter for this process; needs no_new_privs."""
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    syscalls.prctl(syscalls.PR_SET_SECCOMP, syscalls.SECCOMP_MODE_FILTER, ctypes.addressof(header))


def shrink_bounding_set(keep: int) -> None:
    """Drop all but the bit mask `keep` from the bounding set, and clear the ambient set. Permitted
    capabilities stay."""
    for number in range(64):
        if keep >> number & 1:
            continue
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno == errno.EINVAL:  # past the last capability of this kernel
                break
            raise
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)


def permitted_capabilities() -> int:
    """The permitted set of this process as a bit mask."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


class Landlock(NamedTuple):
    """Landlock of this kernel: its ABI, 0 without Landlock."""

    abi: int

    @staticmethod
    def probe() -> Landlock:
        try:
            return Landlock(syscalls.syscall("landlock_create_ruleset", None, 0, 1))
        except OSError:
            return Landlock(0)

    def restrict(self, writable: Sequence[str]) -> None:
        """Allow writing below `writable` only, reading and executing everywhere; scope abstract sockets and
        signals (ABI 6)."""
        if self.abi == 0:
            return
        ruleset = self.ruleset(writable)
        try:
            syscalls.syscall("landlock_restrict_self", ruleset, 0)
        finally:
            os.close(ruleset)

    def ruleset(self, writable: Sequence[str]) -> int:
        """Make the ruleset, not yet in force, and return its descriptor."""
        every = (1 << 13) - 1
        for abi, bit in ((2, 13), (3, 14), (5, 15)):  # refer, truncate, ioctl_dev
            if self.abi >= abi:
                every |= 1 << bit
        attributes = struct.pack("QQQ", every, 0, 3) if self.abi >= 6 else struct.pack("Q", every)
        ruleset = syscalls.syscall("landlock_create_ruleset", attributes, len(attributes), 0)
        try:
            read = 1 | 4 | 8  # execute, read_file, read_dir
            for path, access in (("/", read), *((w, every) for w in writable)):
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    syscalls.syscall("landlock_add_rule", ruleset, 1, struct.pack("=Qi", access, fd), 0)
                finally:
                    os.close(fd)
        except BaseException:
            os.close(ruleset)
            raise
        return ruleset


class Hardening(NamedTuple):
    """The restrictions that are the same for each session."""

    capabilities: int
    program: bytes
    program_of_own_network: bytes
    landlock: Landlock

    @staticmethod
    def prepare() -> Hardening:
        """Shrink the bounding set of the zygote and set no_new_privs, which sessions inherit; the zygote
        keeps its own capabilities.

        Raises:
            OSError: the kernel lacks seccomp or refuses; without it no session can be made.
        """
        keep = permitted_capabilities() & sum(1 << number for number in CAP_NUMBERS.values())
        shrink_bounding_set(keep)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        return Hardening(keep, seccomp_program(), seccomp_program(raw_sockets=True), Landlock.probe())

    def apply(self, writable: Sequence[str] | None, *, own_network: bool) -> None:
        """Restrict the init of a session. This is the last step of its set-up, since it cannot mount
        afterwards.

        writable: the directories to which writes are confined; None: no confinement.
        """
        if writable is not None:
            self.landlock.restrict(writable)
        syscalls.capset(self.capabilities, self.capabilities, 0)
        install_seccomp(self.program_of_own_network if own_network else self.program)
