"""The table: what is tried in a session, what may come out of it, and in which kinds of session. No test framework is needed to import it."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from layerstack import linux

from . import attacks
from .attacks import Attack, call, cloning, connecting, listing, node, opening, reading, write_file

READ, WRITE = os.O_RDONLY, os.O_WRONLY
DENIED = frozenset({"EPERM"})
HIDDEN = frozenset({"ENOENT", "EACCES", "EPERM", "ECONNREFUSED", "EROFS", "ENXIO", "ENODEV", "ENOTDIR"})
OK = frozenset({"ok"})
EVERYWHERE = ("local-root", "local-user", "shared")
LOCAL = ("local-root", "local-user")
# "shared" on a host has the host's /dev and /sys; in a container the engine made harmless ones
CONTAINER_TOO = ("read the kernel log", "write the kernel log", "devices of the machine", "physical memory", "write a cgroup", "write /sys")


class Row(NamedTuple):
    """What is tried, what may come out of it, and in which kinds of session."""

    attack: Attack
    expected: frozenset[str]
    where: tuple[str, ...] = EVERYWHERE


NAMESPACES = {
    "CLONE_NEWUSER": linux.CLONE_NEWUSER,
    "CLONE_NEWNS": linux.CLONE_NEWNS,
    "CLONE_NEWPID": linux.CLONE_NEWPID,
    "CLONE_NEWNET": linux.CLONE_NEWNET,
    "CLONE_NEWIPC": linux.CLONE_NEWIPC,
    "CLONE_NEWUTS": linux.CLONE_NEWUTS,
    "CLONE_NEWCGROUP": linux.CLONE_NEWCGROUP,
}

CALLS: dict[str, Row] = {
    "mount": Row(call("mount", b"none", b"/tmp", b"tmpfs", 0, None), DENIED),
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
    "unshare user": Row(call("unshare", linux.CLONE_NEWUSER), DENIED),
    "setns": Row(lambda _place: attacks.raw("setns", os.open("/proc/self/ns/mnt", READ), 0), DENIED),
    **{f"clone {name}": Row(cloning(flag), DENIED) for name, flag in NAMESPACES.items()},
    "clone3": Row(attacks.clone3, frozenset({"ENOSYS"})),
    "x32": Row(attacks.x32 if attacks.X86 else call("unshare", 0), DENIED),
    "mknod of a character device": Row(node(0o020000, os.makedev(1, 3)), DENIED),
    "mknod of a block device": Row(node(0o060000, os.makedev(253, 0)), DENIED),
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
}

ESCAPES: dict[str, Row] = {
    "read the base layer in the store": Row(reading("{store}/base/hello"), HIDDEN),
    "write into the base layer": Row(opening("{store}/base/hello", WRITE), HIDDEN),
    "list the store": Row(listing("{store}"), HIDDEN),
    "read another session's upperdir": Row(reading("{store}/other/upper/secret"), HIDDEN),
    "read the agent's token": Row(reading("{token}"), HIDDEN),
    "connect to the agent's socket": Row(connecting(socket.AF_UNIX, "{agent_socket}"), HIDDEN),
    "connect to a socket outside the private folders": Row(connecting(socket.AF_UNIX, "{engine_socket}"), HIDDEN, LOCAL),
    "connect to an abstract socket": Row(connecting(socket.AF_UNIX, "\0{abstract}"), HIDDEN, LOCAL),
    "connect to the engine": Row(connecting(socket.AF_UNIX, "/run/docker.sock"), HIDDEN, LOCAL),
    "connect to the engine by its old name": Row(connecting(socket.AF_UNIX, "/var/run/docker.sock"), HIDDEN, LOCAL),
    "list /run": Row(listing("/run"), HIDDEN, LOCAL),
    "read ~/.ssh": Row(reading("{home}/.ssh/id"), HIDDEN, LOCAL),
    "read ~/.netrc": Row(opening("{home}/.netrc", os.O_RDWR), HIDDEN, LOCAL),
    "see other processes": Row(attacks.count_processes, HIDDEN),
    "signal a process of another session": Row(attacks.kill_other, frozenset({"ESRCH"})),
    "kill pid 1": Row(attacks.kill_runner, DENIED),
    "trace pid 1": Row(attacks.ptrace_runner, DENIED),
    "open the memory of pid 1": Row(opening("/proc/1/mem", os.O_RDWR), HIDDEN),
    "read the environment of pid 1": Row(reading("/proc/1/environ"), HIDDEN),
    "look at descriptors of pid 1": Row(lambda _place: os.readlink("/proc/1/fd/3"), HIDDEN),
    "go through the root of pid 1": Row(reading("/proc/1/root/{store}/base/hello"), HIDDEN),
    "core_pattern": Row(opening("/proc/sys/kernel/core_pattern", WRITE), HIDDEN),
    "modprobe path": Row(opening("/proc/sys/kernel/modprobe", WRITE), HIDDEN),
    "drop_caches": Row(opening("/proc/sys/vm/drop_caches", WRITE), HIDDEN),
    "sysrq-trigger": Row(opening("/proc/sysrq-trigger", WRITE), HIDDEN),
    "irq": Row(opening("/proc/irq/default_smp_affinity", WRITE), HIDDEN),
    "read the kernel log": Row(opening("/dev/kmsg", READ), HIDDEN, LOCAL),
    "write the kernel log": Row(opening("/dev/kmsg", WRITE), HIDDEN, LOCAL),
    "devices of the machine": Row(attacks.machine_devices, HIDDEN, LOCAL),
    "physical memory": Row(opening("/dev/mem", READ), HIDDEN, LOCAL),
    "terminals of others": Row(listing("/dev/pts/0"), HIDDEN),
    "write /etc": Row(write_file("/etc/eos-was-here"), HIDDEN, LOCAL),
    "write /usr/bin": Row(write_file("/usr/bin/eos-was-here"), HIDDEN, LOCAL),
    "write the home folder": Row(write_file("{home}/eos-was-here"), HIDDEN, LOCAL),
    "write a cgroup": Row(opening("/sys/fs/cgroup/unified/cgroup.procs", WRITE), HIDDEN, LOCAL),
    "write /sys": Row(opening("/sys/kernel/mm/transparent_hugepage/enabled", WRITE), HIDDEN, LOCAL),
    "write /dev": Row(write_file("/dev/eos-was-here"), HIDDEN, LOCAL),
    "chroot": Row(attacks.chroot_away, DENIED),
    "sethostname": Row(lambda _place: socket.sethostname("x"), DENIED),
    "raise a hard limit": Row(attacks.raise_hard_limit, DENIED),
}

ALLOWED: dict[str, Row] = {
    "fork": Row(cloning(0), OK),
    "a thread": Row(attacks.start_thread, OK),
    "a FIFO": Row(node(0o010000), OK),
    "a regular file by mknod": Row(node(0o100000), OK),
    "rename": Row(attacks.renames, OK),
    "fchmodat2": Row(attacks.fchmodat2, OK),
    "ptrace of an own child": Row(attacks.ptrace_own_child, OK),
    "security.capability on an own file": Row(attacks.own_file_capability, OK),
    "files of other owners": Row(attacks.other_owner, OK, ("local-root", "shared")),
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


def rows_of_a_container(rootfs_mode: str) -> dict[str, Row]:
    """The rows for a session in a container: those of a shared root, or with `read_only` those of a local session too."""
    if rootfs_mode == "read_only":
        return {name: row for name, row in ROWS.items() if "local-root" in row.where}
    return {name: row for name, row in ROWS.items() if "shared" in row.where or name in CONTAINER_TOO}
