"""Pid 1 of a session, from the clone on: sets up what the session sees, hardens itself once, then lives as loop.py says.

Everything is imported before the store is masked: afterwards no module file can be opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
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
    """What the zygote tells the child that it clones."""

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
    """Of the native pid 1, or -1: then this process is it."""

    def program(self) -> tuple[int, ...]:
        """The descriptor of the native pid 1, where there is one."""
        return () if self.program_fd < 0 else (self.program_fd,)

    def join(self) -> None:
        """First of all: what is allocated and started from here on is the session's."""
        with mounts.step("join the cgroup"):
            self.groups.join(self.cgroup)


class Order(NamedTuple):
    """What is known only once somebody asks for a session. covered: paths of unix sockets and of folders to hide. The descriptors are the receiver's; network_fd: who connects an isolated one tells it there."""

    mount_fd: int
    sock_fd: int
    masked: list[str]
    network_fd: int | None


def main(plan: InitPlan, order: Order) -> NoReturn:
    """The life of pid 1, from the line after clone(2)."""
    status = 1
    try:
        failure: mounts.SetupFailed | None = None
        try:
            plan.join()
        except mounts.SetupFailed as failed:
            failure = failed
        network_fds = () if order.network_fd is None else (order.network_fd,)
        mount_fd, sock_fd, *rest = keep(order.mount_fd, order.sock_fd, *network_fds, *plan.program())
        wire, program = rest[: len(network_fds)], rest[len(network_fds) :]
        plan = plan._replace(program_fd=program[0] if program else -1)
        try:
            if failure is None:
                _prepare(plan)
        except mounts.SetupFailed as failed:
            failure = failed
        status = _live(plan, Order(mount_fd, sock_fd, order.masked, wire[0] if wire else None), failure)
    except BaseException as error:
        os.write(2, f"runner: {error!r}\n".encode())
    finally:
        os._exit(status)


def main_of_spare(plan: InitPlan, control_fd: int) -> NoReturn:
    """The life of a pid 1 that is made before anybody asks: all that is the same for each session is done, then it waits for its order.

    It ends when the zygote closes the other end of `control_fd` or it cannot be set up: the zygote then makes sessions without it, and
    the reason is found and told there.
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
            native.become(program[0], control_fd)  # which waits for its order itself
        _warm_up(plan)
        frame = _order(control_fd)
        if frame is not None:
            mount_fd, sock_fd, *wire = keep(*frame.fds)
            status = _live(plan, Order(mount_fd, sock_fd, frame.message["masked"], wire[0] if wire else None), None)
    except mounts.SetupFailed:
        pass
    except BaseException as error:
        os.write(2, f"runner: {error!r}\n".encode())
    finally:
        os._exit(status)


def _warm_up(plan: InitPlan) -> None:
    """Go once through what the order and the first command will go through, without an effect.

    A page that is shared with the zygote is copied when it is first written to, and an interpreter writes to whatever it looks at: some 300
    pages at 3 µs each that are better paid for before somebody waits.
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
    """One frame, or None when the zygote is gone."""
    decoder = frames.FrameDecoder()
    control = socket.socket(fileno=control_fd)
    while True:
        raw, fds = frames.receive(control)
        if not raw:
            return None
        received = decoder.feed(raw, fds)
        if received:
            control.detach()  # its number is given to the session's socket next
            return received[0]


def _live(plan: InitPlan, order: Order, failure: mounts.SetupFailed | None) -> int:
    """The rest of the set-up, then the session itself. Returns the exit status."""
    sock = socket.socket(fileno=order.sock_fd)
    _install_inotify_limit(sock)
    try:
        if failure is not None:
            raise failure
        address = _enter(plan, order)
        if plan.program_fd >= 0:
            with contextlib.suppress(OSError):  # it cannot be executed: this process will do
                _become(plan, order.sock_fd, address)
        oom_score = OomScore(plan.scores)  # its file cannot be opened by a process that is not dumpable
        _harden(plan)
    except mounts.SetupFailed as failed:
        frames.send(sock, {"event": "failed", "step": failed.step, "errno": failed.errno, "message": failed.message})
        return 1
    frames.send(sock, {"event": "ready", "address": address, "namespaces": _namespaces()})
    InitLoop(sock, plan.mount_plan.workspace_root, oom_score, plan.files).serve()
    return 0


def _install_inotify_limit(sock: socket.socket) -> None:
    """From here on, in whatever program this process becomes: the agent has the descriptor on which it answers."""
    fd = inotify_limit.install()
    if fd is not None:
        frames.send(sock, {"event": "inotify"}, fds=[fd])
        os.close(fd)


def _namespaces() -> dict[str, str]:
    """Which ones it is in; nobody else can see that of a process that is not dumpable."""
    found: dict[str, str] = {}
    for name in ("pid", "mnt"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/ns/{name}")
    return found


def keep(*wanted: int) -> tuple[int, ...]:
    """Close every inherited descriptor but these, which become 3, 4, ...: a copy of another session's socket would keep that session alive."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in wanted]
    kept = tuple(range(3, 3 + len(high)))
    for fd, number in zip(high, kept, strict=True):
        os.dup2(fd, number, inheritable=False)
    syscalls.close_range(3 + len(high))
    return kept


def _prepare(plan: InitPlan) -> None:
    """What may be done before the session is asked for. The zygote may die from here on: then so do we."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o022)
    signal.set_wakeup_fd(-1)
    if plan.isolated:
        with mounts.step("bring up loopback (needs CAP_NET_ADMIN; manager.docker.net_admin gives it)"):
            bring_up_loopback()
    mounts.prepare_session(plan.mount_plan, read_only=plan.read_only, own_network=plan.isolated, terminals=plan.terminals)


def _become(plan: InitPlan, sock_fd: int, address: str | None) -> None:
    """Go on as the native pid 1, which hardens itself. Returns when there was nothing to execute."""
    with mounts.step("harden"):
        os.chdir("/")
        rules = ruleset(plan)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        root = plan.mount_plan.workspace_root
        own = plan.isolated
        native.give_order(ours, plan.hardening, plan.scores, plan.files, sock_fd, rules, own_network=own, root=root, address=address)
        try:
            native.become(plan.program_fd, theirs.fileno())
        finally:
            if rules >= 0:
                os.close(rules)


def ruleset(plan: InitPlan) -> int:
    """The Landlock rules of the session whose files this process sees, not in force yet; -1 for none."""
    landlock = plan.hardening.landlock
    return landlock.ruleset(mounts.writable_folders(plan.mount_plan.workspace_root)) if plan.read_only and landlock.abi else -1


def _enter(plan: InitPlan, order: Order) -> str | None:
    """Returns the address of an isolated session that has one."""
    mounts.enter_session(plan.mount_plan, order.mount_fd, read_only=plan.read_only, masked=order.masked)
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
        os.dup2(0, 2)  # 0 and 1 are /dev/null since the zygote
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)  # for pid 1 that means: ignored; SIGHUP stays ignored for spawn.start
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # no ptrace, no /proc/1/mem for a session's uid 0
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # last: a change of credentials would clear it
