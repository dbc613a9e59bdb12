"""The table of attacks in a session: the allowed results, and the kinds of session. Importing it needs no
test framework.
"""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

from layerstack.kernel import syscalls

from . import attacks
from .attacks import (
    Attack,
    call,
    cloning,
    connecting,
    following,
    hunting,
    listing,
    node,
    opening,
    reading,
    signalling,
    tracing,
    write_file,
)

READ, WRITE = os.O_RDONLY, os.O_WRONLY
DENIED = frozenset({"EPERM"})
HIDDEN = frozenset({"ENOENT", "EACCES", "EPERM", "ECONNREFUSED", "EROFS", "ENXIO", "ENODEV", "ENOTDIR"})
GONE = frozenset({"ESRCH", "ENOENT"})
OK = frozenset({"ok"})
NO_FAMILY = frozenset({"EAFNOSUPPORT"})
ONE_WORD = (0x1000).to_bytes(8, "little") + (8).to_bytes(8, "little")  # struct iovec

KINDS = {
    "docker": "Docker",
    "docker-read-only": "Docker, `rootfs: read_only`",
    "local-root": "local, root",
    "local-user": "local, ordinary user",
    "docker-isolated": "Docker, isolated network",
    "local-isolated": "local, isolated network",
}
"""The kinds of session that a person can have, as the page of results heads its columns."""
SHARED_VIEW = "shared"
"""The view of a container without an engine: this machine's root file system, writable. Attacks that would
write there are not tried.
"""
EVERYWHERE = (*KINDS, SHARED_VIEW)
LOCAL = ("local-root", "local-user", "local-isolated")
OWN_ROOT = (*LOCAL, "docker-read-only")
"""Sessions whose `/` is read-only, whose /tmp, /run and /dev are their own."""
REAL = tuple(KINDS)
ISOLATED = ("docker-isolated", "local-isolated")
CONTAINERS = tuple(kind for kind in KINDS if kind.startswith("docker"))
SHARED_ROOT = "the root file system and /tmp of a container are shared by its sessions, as on any machine"
AS_ROOT = tuple(kind for kind in EVERYWHERE if kind != "local-user")
SHARING = tuple(kind for kind in EVERYWHERE if kind not in ISOLATED)
OWN_NETWORK = "all packets there are the session's own"
SHARED_NETWORK = "sessions that are not isolated share one network, loopback included"


class Row(NamedTuple):
    """An attack and its allowed results in the kinds of `where`. In other kinds the result is `otherwise`,
    for the reason `why`, or the attack is not tried; it is tried only in `kinds`.
    """

    attack: Attack
    expected: frozenset[str]
    where: tuple[str, ...] = EVERYWHERE
    otherwise: frozenset[str] | None = None
    why: str = ""
    kinds: tuple[str, ...] = EVERYWHERE

    def expects(self, kind: str) -> frozenset[str] | None:
        """Return the allowed results in this kind of session; None: not tried there."""
        if kind not in self.kinds:
            return None
        if kind in self.where:
            return self.expected
        return None if kind == SHARED_VIEW else self.otherwise


def rows_of(kind: str) -> dict[str, Row]:
    return {name: row for name, row in ROWS.items() if row.expects(kind) is not None}


def wrong(kind: str, found: dict[str, str]) -> dict[str, str]:
    """Return the rows whose result differs from the table, or is missing."""
    said = {name: found.get(name, "not tried") for name in rows_of(kind)}
    return {
        name: text
        for name, text in said.items()
        if text.split(":")[0] not in (ROWS[name].expects(kind) or ())
    }


def lines_of(kind: str, place: dict[str, Any]) -> str:
    """The rows that attacks.c can try, as its input."""
    return "".join(
        f"{name}\t{row.attack.line(place)}\n"
        for name, row in rows_of(kind).items()
        if isinstance(row.attack, attacks.Plain)
    )


NAMESPACES = {
    "CLONE_NEWUSER": syscalls.CLONE_NEWUSER,
    "CLONE_NEWNS": syscalls.CLONE_NEWNS,
    "CLONE_NEWPID": syscalls.CLONE_NEWPID,
    "CLONE_NEWNET": syscalls.CLONE_NEWNET,
    "CLONE_NEWIPC": syscalls.CLONE_NEWIPC,
    "CLONE_NEWUTS": syscalls.CLONE_NEWUTS,
    "CLONE_NEWCGROUP": syscalls.CLONE_NEWCGROUP,
}

CALLS: dict[str, Row] = {
    "mount": Row(call("mount", b"none", b"/tmp", b"tmpfs", 0, None), DENIED),
    "mount: remount / writable": Row(call("mount", None, b"/", None, syscalls.MS_REMOUNT, None), DENIED),
    "mount: bind": Row(call("mount", b"/proc", b"/tmp", None, syscalls.MS_BIND, None), DENIED),
    "mount over the workspace": Row(call("mount", b"none", b".", b"tmpfs", 0, None), DENIED),
    "umount2 of the workspace": Row(call("umount2", b".", 2), DENIED),
    "umount2": Row(call("umount2", b"/proc", 2), DENIED),
    "pivot_root": Row(call("pivot_root", b".", b"."), DENIED),
    "move_mount": Row(call("move_mount", -100, b"/proc", -100, b"/tmp", 0), DENIED),
    "open_tree": Row(call("open_tree", -100, b"/", 0), DENIED),
    "open_tree cloned": Row(call("open_tree", -100, b"/", 1), DENIED),
    "fsopen": Row(call("fsopen", b"tmpfs", 0), DENIED),
    "fsconfig": Row(call("fsconfig", 0, 6, None, None, 0), DENIED),
    "fsmount": Row(call("fsmount", 0, 0, 0), DENIED),
    "fspick": Row(call("fspick", -100, b"/", 0), DENIED),
    "mount_setattr": Row(call("mount_setattr", -100, b"/", 0, bytes(32), 32), DENIED),
    "unshare of nothing": Row(call("unshare", 0), DENIED),
    "unshare user": Row(call("unshare", syscalls.CLONE_NEWUSER), DENIED),
    "setns": Row(attacks.joining, DENIED),
    **{f"clone {name}": Row(cloning(flag), DENIED) for name, flag in NAMESPACES.items()},
    "clone3": Row(attacks.clone3, frozenset({"ENOSYS"})),
    "x32": Row(attacks.x32, frozenset({"killed by SIGSYS"}))
    if attacks.X86
    else Row(call("unshare", 0), DENIED),
    "mknod of a character device": Row(node(0o020000, os.makedev(1, 3)), DENIED),
    "mknod of a block device": Row(node(0o060000, "{disk}"), DENIED),
    "mknod of a whiteout": Row(node(0o020000, 0), DENIED),
    "keyctl": Row(call("keyctl", 0, -3, 0), DENIED),
    "add_key": Row(call("add_key", b"user", b"k", b"v", 1, -2), DENIED),
    "request_key": Row(call("request_key", b"user", b"k", None, -2), DENIED),
    "open_by_handle_at": Row(attacks.handle_of_root, DENIED),
    "bpf": Row(call("bpf", 0, bytes(128), 128), DENIED),
    "io_uring_setup": Row(call("io_uring_setup", 4, bytes(120)), DENIED),
    "io_uring_enter": Row(call("io_uring_enter", 0, 0, 0, 0, None, 0), DENIED),
    "io_uring_register": Row(call("io_uring_register", 0, 0, None, 0), DENIED),
    "perf_event_open": Row(call("perf_event_open", bytes(128), 0, -1, -1, 0), DENIED),
    "userfaultfd": Row(call("userfaultfd", 1), DENIED),
    "fanotify_init": Row(call("fanotify_init", 0, 0), DENIED),
    "init_module": Row(call("init_module", b"x", 1, b""), DENIED),
    "finit_module": Row(call("finit_module", 0, b"", 0), DENIED),
    "delete_module": Row(call("delete_module", b"x", 0), DENIED),
    "kexec_load": Row(call("kexec_load", 0, 0, None, 0), DENIED),
    "kexec_file_load": Row(call("kexec_file_load", 0, 0, 0, b"", 0), DENIED),
    "reboot": Row(call("reboot", 0, 0, 0, None), DENIED),
    "swapon": Row(call("swapon", b"/x", 0), DENIED),
    "swapoff": Row(call("swapoff", b"/x"), DENIED),
    "quotactl": Row(call("quotactl", 0, None, 0, None), DENIED),
    "quotactl_fd": Row(call("quotactl_fd", 0, 0, 0, None), DENIED),
    "acct": Row(call("acct", None), DENIED),
    "syslog": Row(call("syslog", 10, None, 0), DENIED),
    "settimeofday": Row(call("settimeofday", bytes(16), None), DENIED),
    "setdomainname": Row(call("setdomainname", b"x", 1), DENIED),
    "vhangup": Row(call("vhangup"), DENIED),
    "sched_setscheduler to real time": Row(call("sched_setscheduler", 0, 1, b"\1\0\0\0"), DENIED),
    "process_vm_readv of pid 1": Row(call("process_vm_readv", 1, ONE_WORD, 1, ONE_WORD, 1, 0), DENIED),
    "socket AF_PACKET": Row(
        call(41 if attacks.X86 else 198, socket.AF_PACKET, socket.SOCK_RAW, 0x300),
        DENIED,
        SHARING,
        OK,
        OWN_NETWORK,
    ),
    "socket AF_VSOCK": Row(
        call(41 if attacks.X86 else 198, socket.AF_VSOCK, socket.SOCK_STREAM, 0), NO_FAMILY
    ),
    "socket AF_ALG": Row(
        call(41 if attacks.X86 else 198, socket.AF_ALG, socket.SOCK_SEQPACKET, 0), NO_FAMILY
    ),
    "socket AF_BLUETOOTH": Row(call(41 if attacks.X86 else 198, 31, socket.SOCK_STREAM, 0), NO_FAMILY),
    "socket AF_TIPC": Row(call(41 if attacks.X86 else 198, 30, socket.SOCK_STREAM, 0), NO_FAMILY),
    "socketpair AF_TIPC": Row(call(53 if attacks.X86 else 199, 30, socket.SOCK_STREAM, 0, None), NO_FAMILY),
    "socket SOCK_RAW of TCP": Row(
        call(41 if attacks.X86 else 198, socket.AF_INET, socket.SOCK_RAW, 6), DENIED, SHARING, OK, OWN_NETWORK
    ),
}

ESCAPES: dict[str, Row] = {
    # the store, the agent, the engine
    "read the base layer in the store": Row(reading("{base_file}"), HIDDEN),
    "write into the base layer": Row(opening("{base_file}", WRITE), HIDDEN),
    "read the head's manifest": Row(reading("{store}/manifest.json"), HIDDEN),
    "list the store": Row(listing("{store}"), HIDDEN),
    "list the layers": Row(listing("{store}/layers"), HIDDEN),
    "read another session's upperdir": Row(reading("{upper}"), HIDDEN),
    "write into another session's upperdir": Row(opening("{upper}", WRITE), HIDDEN),
    "read the agent's token": Row(reading("{token}"), HIDDEN),
    ("read the agent's token by a bind mount of "
    "its folder"): Row(reading("{second_token}"), HIDDEN, kinds=(*LOCAL, SHARED_VIEW)),
    ("read the agent's token by a second mount of its "
    "file system"): Row(reading("{again_token}"), HIDDEN, kinds=(*LOCAL, SHARED_VIEW)),
    "write the agent's token": Row(opening("{token}", WRITE), HIDDEN),
    "find the agent's token in /proc": Row(hunting("token_text"), HIDDEN),
    "connect to the agent's socket": Row(connecting("unix", "{agent_socket}"), HIDDEN),
    "take the agent's port": Row(attacks.taking_port("{agent_port}"), frozenset({"EADDRINUSE"}), SHARING, OK, OWN_NETWORK),  # noqa: E501
    ("connect to the agent's port, which wants "
    "its token"): Row(connecting("tcp", "{agent_port}"), HIDDEN, ISOLATED, OK, SHARED_NETWORK),
    ("see the agent's files by HTTP "
    "without a token"): Row(attacks.asking_agent("POST", "/files/list"), HIDDEN, kinds=CONTAINERS),
    ("reach an isolated session's server through "
    "the agent"): Row(attacks.asking_agent("GET", "/forward/isolated={other_id}/{other_port}/"), HIDDEN, kinds=CONTAINERS),  # noqa: E501
    "list the bundle": Row(listing("{bundle}"), HIDDEN),
    "follow links of the workspace out of it": Row(attacks.symlink_races, HIDDEN),
    ("connect to a socket outside the "
    "private folders"): Row(connecting("unix", "{engine_socket}"), HIDDEN, REAL),
    ("connect to such a socket that came after "
    "the session"): Row(connecting("unix", "{late_socket}"), HIDDEN, REAL),
    ("connect to one that was bound by a "
    "relative name"): Row(connecting("unix", "{sockets}/relative"), HIDDEN, kinds=LOCAL),
    "connect to one that was renamed": Row(connecting("unix", "{sockets}/renamed"), HIDDEN, kinds=LOCAL),
    ("connect to one by its second "
    "hard link"): Row(connecting("unix", "{sockets}/linked"), HIDDEN, kinds=LOCAL),
    ("connect to one of another network "
    "namespace"): Row(connecting("unix", "{sockets}/elsewhere"), HIDDEN, kinds=LOCAL),
    ("write into a FIFO of "
    "the machine"): Row(opening("{sockets}/fifo", WRITE | os.O_NONBLOCK), HIDDEN, kinds=LOCAL),
    "connect to an abstract socket of the machine": Row(connecting("abstract", "{abstract}"), HIDDEN, REAL),
    "connect to the engine": Row(connecting("unix", "/run/docker.sock"), HIDDEN, REAL),
    "connect to the engine by its old name": Row(connecting("unix", "/var/run/docker.sock"), HIDDEN, REAL),
    # other sessions
    "see other processes": Row(attacks.strangers, HIDDEN),
    "find a secret of another session in /proc": Row(hunting("secret"), HIDDEN),
    "signal a process of another session": Row(signalling("{other_pid}"), GONE),
    "trace a process of another session": Row(tracing("{other_pid}"), GONE),
    "read the environment of another session": Row(reading("/proc/{other_pid}/environ"), HIDDEN),
    "open the memory of another session": Row(opening("/proc/{other_pid}/mem", os.O_RDWR), HIDDEN),
    "list the descriptors of another session": Row(listing("/proc/{other_pid}/fd"), HIDDEN),
    "go through the root of another session": Row(listing("/proc/{other_pid}/root"), HIDDEN),
    "read what another session has in its workspace": Row(reading("{workspace}/of-another"), HIDDEN),
    ("read what another session "
    "has in /tmp"): Row(reading("{other_tmp}"), HIDDEN, (*OWN_ROOT, *ISOLATED), OK, SHARED_ROOT),
    ("connect to a socket that another session "
    "has in /tmp"): Row(connecting("unix", "{other_tmp}.sock"), HIDDEN, (*OWN_ROOT, *ISOLATED), OK, SHARED_ROOT),  # noqa: E501
    "connect to an abstract socket of another session": Row(
        connecting("abstract", "{other_abstract}"), HIDDEN, (*OWN_ROOT, *ISOLATED), OK, SHARED_NETWORK + "; Landlock keeps those with an own root apart"  # noqa: E501
    ),
    ("connect to a server of "
    "another session"): Row(connecting("tcp", "{other_port}"), HIDDEN, ISOLATED, OK, SHARED_NETWORK),
    # pid 1, what it left open, its terminal
    "copy a descriptor of pid 1": Row(attacks.copying_a_descriptor, DENIED),
    "kill pid 1": Row(attacks.kill_runner, DENIED),
    "trace pid 1": Row(tracing("1"), DENIED),
    "open the memory of pid 1": Row(opening("/proc/1/mem", os.O_RDWR), HIDDEN),
    "read the environment of pid 1": Row(reading("/proc/1/environ"), HIDDEN),
    "open a descriptor of pid 1": Row(opening("/proc/1/fd/*", READ), HIDDEN),
    "look at a descriptor of pid 1": Row(following("/proc/1/fd/3"), HIDDEN),
    "go through the root of pid 1": Row(reading("/proc/1/root{base_file}"), HIDDEN),
    "join a namespace of pid 1": Row(opening("/proc/1/ns/mnt", READ), HIDDEN),
    "descriptors that were left open": Row(attacks.leftovers, HIDDEN),
    ("type into a terminal that is not "
    "one's own"): Row(attacks.typing_into_terminal, HIDDEN | {"EIO", "ENOTTY"}),
    "terminals of others": Row(listing("/dev/pts/0"), HIDDEN),
    # the kernel
    "core_pattern": Row(opening("/proc/sys/kernel/core_pattern", WRITE), HIDDEN),
    "modprobe path": Row(opening("/proc/sys/kernel/modprobe", WRITE), HIDDEN),
    "drop_caches": Row(opening("/proc/sys/vm/drop_caches", WRITE), HIDDEN),
    "binfmt_misc": Row(opening("/proc/sys/fs/binfmt_misc/register", WRITE), HIDDEN),
    "sysrq-trigger": Row(opening("/proc/sysrq-trigger", WRITE), HIDDEN),
    "irq": Row(opening("/proc/irq/default_smp_affinity", WRITE), HIDDEN),
    "read the kernel's keys": Row(attacks.reading_something("/proc/keys"), HIDDEN),
    "read the kernel's memory": Row(attacks.reading_something("/proc/kcore"), HIDDEN),
    "read the kernel log in /proc": Row(attacks.reading_something("/proc/kmsg"), HIDDEN),
    "read the kernel log": Row(opening("/dev/kmsg", READ), HIDDEN, REAL),
    "write the kernel log": Row(opening("/dev/kmsg", WRITE), HIDDEN, REAL),
    "devices of the machine": Row(attacks.machine_devices, HIDDEN, REAL),
    "a disk of the machine": Row(opening("/dev/[shvx]d[a-z]*|/dev/nvme*|/dev/dm-*|/dev/loop*|/dev/block/*|/dev/mapper/*", READ), HIDDEN, REAL),  # noqa: E501
    "physical memory": Row(opening("/dev/mem|/dev/port|/dev/kmem", READ), HIDDEN, REAL),
    "fuse, tun, kvm": Row(opening("/dev/fuse|/dev/net/tun|/dev/kvm|/dev/vhost*", os.O_RDWR), HIDDEN, REAL),
    "cgroups": Row(attacks.cgroup_files, HIDDEN, REAL),
    ("release_agent of "
    "a cgroup"): Row(opening("/sys/fs/cgroup/release_agent|/sys/fs/cgroup/*/release_agent", WRITE), HIDDEN, REAL),  # noqa: E501
    "uevent_helper": Row(opening("/sys/kernel/uevent_helper", WRITE), HIDDEN, REAL),
    "write /sys": Row(opening("/sys/kernel/mm/transparent_hugepage/enabled", WRITE), HIDDEN, REAL),
    "the machine's firmware": Row(listing("/sys/firmware"), HIDDEN),
    "chroot": Row(attacks.chroot_away, DENIED),
    "sethostname": Row(lambda _place: socket.sethostname("x"), DENIED),
    "raise a hard limit": Row(attacks.raise_hard_limit, DENIED),
    # the network
    "set the loopback interface": Row(attacks.interface, DENIED),
    "add a route": Row(attacks.route, DENIED),
    "read the packets of others": Row(attacks.sniffing, DENIED, SHARING, OK, OWN_NETWORK),
    # the rest of the file system
    "list /run": Row(listing("/run"), HIDDEN, OWN_ROOT),
    "read ~/.ssh": Row(reading("{home}/.ssh/id"), HIDDEN, REAL),
    "read ~/.netrc": Row(opening("{home}/.netrc", os.O_RDWR), HIDDEN, REAL),
    "read ~/.git-credentials": Row(reading("{home}/.git-credentials"), HIDDEN, REAL),
    "read ~/.claude.json after its replacement": Row(reading("{home}/.claude.json"), HIDDEN, REAL),
    "read ~/.config/gh/hosts.yml": Row(reading("{home}/.config/gh/hosts.yml"), HIDDEN, REAL),
    "read ~/.ssh by a second mount of the home": Row(reading("{again_key}"), HIDDEN, kinds=LOCAL),
    "list the engine's data": Row(listing("/var/lib/docker"), HIDDEN, REAL),
    "write /etc": Row(write_file("/etc/eos-was-here"), HIDDEN, OWN_ROOT, OK, SHARED_ROOT),
    "write /bin": Row(write_file("/bin/eos-was-here"), HIDDEN, OWN_ROOT, OK, SHARED_ROOT),
    ("a library for programs of other "
    "sessions"): Row(write_file("/etc/ld.so.preload"), HIDDEN, OWN_ROOT, OK, SHARED_ROOT + ("; the agent's "
                                                                                           "loader reads no "
                                                                                           "such file")),
    "write the home folder": Row(write_file("{home}/eos-was-here"), HIDDEN, OWN_ROOT, OK, SHARED_ROOT),
    "write /dev": Row(write_file("/dev/eos-was-here"), HIDDEN, REAL),
    "remove /dev/null": Row(attacks.removing("/dev/null"), HIDDEN | {"EBUSY"}, REAL),
    "make a folder in the place of /dev/null": Row(attacks.replacing("/dev/null"), HIDDEN | {"EBUSY"}, REAL),
    "write /eos": Row(write_file("/eos/eos-was-here"), HIDDEN, REAL),
}  # fmt: skip

ALLOWED: dict[str, Row] = {
    "fork": Row(cloning(0), OK),
    "a thread": Row(attacks.start_thread, OK),
    "a FIFO": Row(node(0o010000), OK),
    "a regular file by mknod": Row(node(0o100000), OK),
    "rename": Row(attacks.renames, OK),
    "fchmodat2": Row(attacks.fchmodat2, OK),
    "ptrace of an own child": Row(attacks.ptrace_own_child, OK),
    "security.capability on an own file": Row(attacks.own_file_capability, OK),
    "files of other owners": Row(
        attacks.other_owner, OK, AS_ROOT, frozenset({"EINVAL"}), "one uid is mapped"
    ),
    "a raw socket of ping": Row(
        call(41 if attacks.X86 else 198, socket.AF_INET, socket.SOCK_RAW, 1),
        OK,
        AS_ROOT,
        DENIED,
        "no such power over the machine's network",
    ),
    "a server on loopback": Row(attacks.server_on_loopback, OK),
    "write in the workspace": Row(write_file("{workspace}/made"), OK),
    "write in /tmp": Row(write_file("/tmp/eos-test-made"), OK),
    "write in /dev/shm": Row(write_file("/dev/shm/eos-test-made"), OK),
    "/dev/null": Row(opening("/dev/null", os.O_RDWR), OK),
    "/dev/urandom": Row(opening("/dev/urandom", READ), OK),
    "a new terminal": Row(opening("/dev/ptmx", os.O_RDWR), OK),
    "own /proc entries": Row(opening("/proc/self/comm", WRITE), OK),
}

ROWS = {**CALLS, **ESCAPES, **ALLOWED}
