"""Set up a session's init after its clone: mounts, network, hardening; then run loop.py or become the native
init.

All modules are imported before the store is masked: afterwards no module file can be opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from eos_agent.init import mounts, native
from eos_agent.init.loop import InitLoop
from eos_agent.ipc import frames
from eos_agent.kernel import inotify_limit, network
from eos_agent.kernel.cgroups import Groups
from eos_agent.kernel.fd_limits import OpenFiles
from eos_agent.kernel.harden import Hardening
from eos_agent.kernel.namespaces import bring_up_loopback
from eos_agent.kernel.oom import OomScore, Scores
from eos_agent.wire.protocol import OperationError
from layerstack.kernel import syscalls


class InitPlan(NamedTuple):
    """Values that an init inherits from the zygote when it is cloned."""

    mount_plan: mounts.MountPlan
    isolated: bool
    read_only: bool
    hardening: Hardening
    groups: Groups
    scores: Scores
    terminals: int
    files: OpenFiles
    cgroup: str = ""
    program_fd: int = -1
    """Descriptor of the native init program; -1 makes this process init."""

    def program(self) -> tuple[int, ...]:
        """The descriptor of the native init program, if any."""
        return () if self.program_fd < 0 else (self.program_fd,)

    def join(self) -> None:
        """Enter the session's cgroup. This is the first step, so that all later allocations and processes
        count for the session.
        """
        with mounts.step("join the cgroup"):
            self.groups.join(self.cgroup)


class Order(NamedTuple):
    """Values that are not known before a session is created. The receiver owns the descriptors.

    masked: paths of unix sockets and directories to mask. network_fd: pipe on which the zygote reports that
    the network of an isolated session is connected. folders: path -> detached mount that the init before had
    there.
    """

    mount_fd: int
    sock_fd: int
    masked: list[str]
    network_fd: int | None
    folders: Mapping[str, int] = MappingProxyType({})


def main(plan: InitPlan, order: Order) -> NoReturn:
    """Run a session's init; the first code after clone(2)."""
    status = 1
    try:
        failure: mounts.SetupFailed | None = None
        try:
            plan.join()
        except mounts.SetupFailed as failed:
            failure = failed
        network_fds = () if order.network_fd is None else (order.network_fd,)
        mount_fd, sock_fd, *rest = keep(
            order.mount_fd, order.sock_fd, *network_fds, *order.folders.values(), *plan.program()
        )
        network_end, rest = rest[: len(network_fds)], rest[len(network_fds) :]
        folders = dict(zip(order.folders, rest, strict=False))
        program = rest[len(folders) :]
        plan = plan._replace(program_fd=program[0] if program else -1)
        try:
            if failure is None:
                _prepare(plan)
        except mounts.SetupFailed as failed:
            failure = failed
        status = _live(
            plan,
            Order(mount_fd, sock_fd, order.masked, network_end[0] if network_end else None, folders),
            failure,
        )
    except BaseException as error:
        os.write(2, f"init: {error!r}\n".encode())
    finally:
        os._exit(status)


def main_of_spare(plan: InitPlan, control_fd: int) -> NoReturn:
    """Run a spare init: do the part of the set-up that is the same for each session, then wait for the order.

    The spare ends when the zygote closes the other end of `control_fd`, or when its set-up fails. After a
    failure the zygote clones an init for the next session, and that init reports the failure.
    """
    status = 1
    try:
        plan.join()
        control_fd, *program = keep(control_fd, *plan.program())
        _prepare(plan)
        if program:
            with socket.socket(fileno=os.dup(control_fd)) as control:
                if plan.isolated:
                    with network.own_netlink() as own:
                        native.hand_over(control, native.NETLINK, own.fileno())
                listener = inotify_limit.install()
                if listener is not None:
                    native.hand_over(control, native.INOTIFY, listener)
                    os.close(listener)
            native.become(program[0], control_fd)  # the program waits for the order itself
        _warm_up(plan)
        frame = _order(control_fd)
        if frame is not None:
            mount_fd, sock_fd, *rest = keep(*frame.fds)
            paths: list[str] = frame.message["folders"]
            network_end = rest[: len(rest) - len(paths)]
            folders = dict(zip(paths, rest[len(network_end) :], strict=True))
            status = _live(
                plan,
                Order(
                    mount_fd,
                    sock_fd,
                    frame.message["masked"],
                    network_end[0] if network_end else None,
                    folders,
                ),
                None,
            )
    except mounts.SetupFailed:
        pass
    except BaseException as error:
        os.write(2, f"init: {error!r}\n".encode())
    finally:
        os._exit(status)


def _warm_up(plan: InitPlan) -> None:
    """Run, once and without effect, the code that the order and the first command will run.

    A page shared with the zygote is copied at the first write, and an interpreter writes to every object that
    it uses (reference counts). This copies some 300 pages, at 3 µs each, before a request waits for them.
    """
    with contextlib.suppress(OSError, OperationError):
        rules = ruleset(plan)
        if rules >= 0:
            os.close(rules)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            InitLoop(ours, "/", OomScore(plan.scores), plan.files).warm_up(theirs)
    signal.set_wakeup_fd(-1)


def _order(control_fd: int) -> frames.Frame | None:
    """Wait for the order and return its frame; None if the zygote has ended."""
    decoder = frames.FrameDecoder()
    control = socket.socket(fileno=control_fd)
    while True:
        raw, fds = frames.receive(control)
        if not raw:
            return None
        received = decoder.feed(raw, fds)
        if received:
            control.detach()  # the session's socket gets its number next
            return received[0]


def _live(plan: InitPlan, order: Order, failure: mounts.SetupFailed | None) -> int:
    """Finish the set-up, then serve the session. Returns the exit status."""
    sock = socket.socket(fileno=order.sock_fd)
    _install_inotify_limit(sock)
    try:
        if failure is not None:
            raise failure
        address = _enter(plan, order)
        if plan.program_fd >= 0:
            with contextlib.suppress(OSError):  # the program cannot be executed: this process stays init
                _become(plan, order.sock_fd, address)
        oom_score = OomScore(plan.scores)  # opens a file that a process which is not dumpable cannot open
        _harden(plan)
    except mounts.SetupFailed as failed:
        frames.send(
            sock, {"event": "failed", "step": failed.step, "errno": failed.errno, "message": failed.message}
        )
        return 1
    frames.send(sock, {"event": "ready", "address": address, "namespaces": _namespaces()})
    InitLoop(sock, plan.mount_plan.workspace_root, oom_score, plan.files).serve()
    return 0


def _install_inotify_limit(sock: socket.socket) -> None:
    """Let the agent decide on inotify_init(2) calls of this process and its children, also after an exec."""
    fd = inotify_limit.install()
    if fd is not None:
        frames.send(sock, {"event": "inotify"}, fds=[fd])
        os.close(fd)


def _namespaces() -> dict[str, str]:
    """Names of init's pid and mnt namespace; no other process can read them once init is not dumpable."""
    found: dict[str, str] = {}
    for name in ("pid", "mnt"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/ns/{name}")
    return found


def keep(*wanted: int) -> tuple[int, ...]:
    """Close every inherited descriptor except `wanted`, which become 3, 4, ...

    A copy of another session's socket would keep that session alive.
    """
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in wanted]
    kept = tuple(range(3, 3 + len(high)))
    for fd, number in zip(high, kept, strict=True):
        os.dup2(fd, number, inheritable=False)
    syscalls.close_range(3 + len(high))
    return kept


def _prepare(plan: InitPlan) -> None:
    """Do the part of the set-up that needs no order. From this call on the process dies with the zygote."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o022)
    signal.set_wakeup_fd(-1)
    if plan.isolated:
        with mounts.step("bring up loopback (needs CAP_NET_ADMIN; manager.docker.net_admin gives it)"):
            bring_up_loopback()
    mounts.prepare_session(
        plan.mount_plan, read_only=plan.read_only, own_network=plan.isolated, terminals=plan.terminals
    )


def _become(plan: InitPlan, sock_fd: int, address: str | None) -> None:
    """Execute the native init, which hardens itself.

    Raises:
        OSError: the program cannot be executed; this process is unchanged.
    """
    with mounts.step("harden"):
        os.chdir("/")
        rules = ruleset(plan)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        root = plan.mount_plan.workspace_root
        own = plan.isolated
        native.give_order(
            ours,
            plan.hardening,
            plan.scores,
            plan.files,
            sock_fd,
            rules,
            own_network=own,
            root=root,
            address=address,
        )
        try:
            native.become(plan.program_fd, theirs.fileno())
        finally:
            if rules >= 0:
                os.close(rules)


def ruleset(plan: InitPlan) -> int:
    """Make the Landlock ruleset for the mounts of this namespace, not in force yet; -1 if the session needs
    no ruleset.
    """
    landlock = plan.hardening.landlock
    return (
        landlock.ruleset(mounts.writable_folders(plan.mount_plan.workspace_root))
        if plan.read_only and landlock.abi
        else -1
    )


def _enter(plan: InitPlan, order: Order) -> str | None:
    """Do the session's own mounts and wait for its network. Returns the address of an isolated session; None
    without an address.
    """
    mounts.enter_session(
        plan.mount_plan,
        order.mount_fd,
        read_only=plan.read_only,
        masked=order.masked,
        folders=order.folders,
    )
    for fd in order.folders.values():
        os.close(fd)
    address: str | None = None
    if order.network_fd is not None:
        with mounts.step("join the network"):
            address = network.await_plug(order.network_fd)
    return address


def _harden(plan: InitPlan) -> None:
    with mounts.step("harden"):
        os.chdir("/")
        writable = mounts.writable_folders(plan.mount_plan.workspace_root) if plan.read_only else None
        plan.hardening.apply(writable, own_network=plan.isolated)
        os.dup2(0, 2)  # the zygote has opened /dev/null as 0 and 1
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(
                signum, signal.SIG_DFL
            )  # SIG_DFL: pid 1 then ignores them (pid_namespaces(7)); SIGHUP stays ignored for spawn.start
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # no ptrace, no /proc/1/mem for a session's uid 0
        syscalls.prctl(
            syscalls.PR_SET_PDEATHSIG, signal.SIGKILL
        )  # last: a change of credentials would clear it
