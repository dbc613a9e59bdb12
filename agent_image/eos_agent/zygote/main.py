"""The zygote process: fork one init per session, reap it, die with the agent.

The zygote has one thread and no event loop. It imports all modules that its children need before it forks the
first child.

A spare init is kept ready: it is cloned, has made all mounts that are the same for each session, and waits
for its order. A spare halves the time in which a session is created; once used, it is replaced while the
zygote is idle. If no spare fits, init is cloned when the session is created. After the first isolated session
a second spare is kept, in a network namespace of its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Generator
from typing import NamedTuple, NoReturn

from eos_agent.base import git_identity
from eos_agent.init import helper, mounts, native, setup
from eos_agent.ipc import frames, sigchld
from eos_agent.kernel import cgroups, fd_limits, machine_view, network, oom
from eos_agent.kernel.fd_limits import OpenFiles
from eos_agent.kernel.harden import Hardening
from eos_agent.zygote.specs import HostSpec, SessionSpec
from layerstack.kernel import syscalls

IDLE_MS = 20
"""Milliseconds without an event after which a spare is made. A spare is also made when a session ends, while
the agent publishes.
"""


def main(host: HostSpec, sock: socket.socket, parent: int, groups: cgroups.Groups) -> NoReturn:
    """Run the zygote; the first code after fork(2)."""
    status = 1
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else the agent died before the line above
            _serve(host, sock, groups)
        status = 0
    except BaseException as error:
        os.write(2, f"zygote: {error!r}\n".encode())
    finally:
        os._exit(status)


def _serve(host: HostSpec, sock: socket.socket, groups: cgroups.Groups) -> None:
    os.setsid()  # Ctrl-C at the agent's terminal must not signal the zygote
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.chdir("/")
    sock, program_fd = keep_only(sock, groups, native.open_program(host.init))
    scores = oom.Scores.here()
    oom.set_score(scores.zygote)
    groups.join_workload()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    wake = sigchld.sigchld_pipe()
    hardening = Hardening.prepare()
    mount_plan = _prepare(host)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it visits
    gc.disable()
    files = fd_limits.divide(host.open_files)
    ZygoteProcess(
        sock, wake, mount_plan, hardening, groups, scores, host.terminals, files, program_fd
    ).serve()


def keep_only(sock: socket.socket, groups: cgroups.Groups, program_fd: int = -1) -> tuple[socket.socket, int]:
    """Close every descriptor except 0, 1, 2, `sock` (which becomes 3), those of cgroups and that of the
    native init program.

    No child may hold a copy of another session's socket, which would keep that session alive.
    """
    parts = groups.fds()
    fd, *others = setup.keep(sock.detach(), *parts, *(() if program_fd < 0 else (program_fd,)))
    groups.inherit(others[: len(parts)])
    return socket.socket(fileno=fd), others[len(parts)] if program_fd >= 0 else -1


def _prepare(host: HostSpec) -> mounts.MountPlan | mounts.SetupFailed:
    """Make the mounts that all sessions share. A failure is returned, and reported to each create request."""
    try:
        return mounts.prepare(
            host.workspace_root,
            host.hidden_paths,
            host.private_dirs,
            local=host.provider == "local",
            rootfs=host.rootfs,
        )
    except mounts.SetupFailed as failed:
        return failed


class _Spare(NamedTuple):
    pid: int
    pidfd: int
    control: socket.socket
    names: tuple[int, int]
    """Identity of the /etc/resolv.conf in the spare's view (`_names`)."""
    cgroup: str
    native: bool
    """True if the spare executes the native init; the zygote then makes the session's own mounts."""


class _MountNamespace:
    """The zygote's own mount namespace; `entered` switches to a session's namespace and back."""

    def __init__(self) -> None:
        """Raises:
        OSError: the kernel has no setns(2) by pidfd, or refuses it.
        """
        self._own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        pidfd = os.pidfd_open(os.getpid())
        try:
            with self.entered(pidfd):
                pass
        finally:
            os.close(pidfd)

    @contextlib.contextmanager
    def entered(self, pidfd: int) -> Generator[None]:
        """Enter the mount namespace of the process for the length of the block."""
        with mounts.step("enter the session"):
            syscalls.setns(pidfd, syscalls.CLONE_NEWNS)
        try:
            yield
        finally:
            syscalls.setns(
                self._own, syscalls.CLONE_NEWNS
            )  # the zygote cannot work in another namespace: let it end


class ZygoteProcess:
    """The zygote's loop: read requests, clone inits, report clones and their ends."""

    def __init__(
        self,
        sock: socket.socket,
        wake: int,
        mount_plan: mounts.MountPlan | mounts.SetupFailed,
        hardening: Hardening,
        groups: cgroups.Groups,
        scores: oom.Scores,
        terminals: int,
        files: OpenFiles,
        program_fd: int,
    ) -> None:
        self.terminals, self.files = terminals, files
        self.sock, self.wake, self.mount_plan, self.hardening, self.groups, self.scores = (
            sock,
            wake,
            mount_plan,
            hardening,
            groups,
            scores,
        )
        self.cgroups: dict[int, str] = {}  # by pid of each live init
        self.plans: dict[int, setup.InitPlan] = {}  # by pid of each live init that the agent knows
        self.program_fd = program_fd
        self.namespace: _MountNamespace | None = None
        self.namespace_for_masks: _MountNamespace | None = None
        self.known: set[str] = set()  # directories of other gateways for which the views were refreshed
        if program_fd >= 0:
            with contextlib.suppress(OSError, mounts.SetupFailed):
                self.namespace = _MountNamespace()
        self.kept: dict[int, dict[str, int]] = {}  # by pid of an init that is replaced: its own folders
        self.emptied: list[str] = []  # cgroups to remove
        self.spares: dict[bool, _Spare] = {}  # by `isolated`
        self.wanted = {False} if isinstance(mount_plan, mounts.MountPlan) else set[bool]()
        self.operations: dict[str, Callable[[frames.Frame], None]] = {
            "create": self.create,
            "mask": self.mask,
            "keep": self.keep,
            "release": lambda frame: self.release(frame.message["pid"]),
            "git_files": self.write_git_files,
        }
        self.network = network.IsolatedNetwork(
            required=isinstance(mount_plan, mounts.MountPlan) and not mount_plan.local
        )

    def serve(self) -> None:
        decoder = frames.FrameDecoder()
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(IDLE_MS if self.wanted or self.emptied else None)}
            moment = not ready
            if self.wake in ready:
                sigchld.drain(self.wake)
                moment = self.reap()
            if self.sock.fileno() in ready:
                raw, fds = frames.receive(self.sock)
                if not raw:
                    return
                for frame in decoder.feed(raw, fds):
                    self.operations.get(frame.message["op"], self.help)(frame)
            elif moment and self.wanted:
                self.make_spare(min(self.wanted))
            if self.emptied:
                self.emptied = [cgroup for cgroup in self.emptied if not self.groups.remove(cgroup)]

    def reap(self) -> bool:
        """Reap ended children and report each init among them. Returns True if a session has ended."""
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid not in self.cgroups:
                continue  # a helper, or the fork that made it
            self.plans.pop(pid, None)
            cgroup = self.cgroups.pop(pid)
            if cgroup:
                self.emptied.append(cgroup)
            spare = next((isolated for isolated, spare in self.spares.items() if spare.pid == pid), None)
            if spare is not None:
                self.drop_spare(
                    spare
                )  # its set-up failed, or it was killed: make no new spare before the next session
            else:
                frames.send(self.sock, {"event": "exited", "pid": pid, "status": status})
                self.network.unplug(pid)
                ended = True

    def plan(self, mount_plan: mounts.MountPlan, spec: SessionSpec) -> setup.InitPlan:
        return setup.InitPlan(
            mount_plan,
            spec.network == "isolated",
            mount_plan.local or spec.rootfs_mode == "read_only",
            self.hardening,
            self.groups,
            self.scores,
            self.terminals,
            self.files,
            program_fd=-1 if self.namespace is None else self.program_fd,
        )

    def clone(self, plan: setup.InitPlan, order: setup.Order | int) -> tuple[int, int, str]:
        """Clone an init into a new cgroup. Returns pid, pidfd and cgroup."""
        with mounts.step("make the cgroup"):
            cgroup = self.groups.make()
        try:
            pid, pidfd = _clone(plan._replace(cgroup=cgroup), order)
        except BaseException:
            self.emptied.append(cgroup)
            raise
        self.cgroups[pid] = cgroup
        return pid, pidfd, cgroup

    def create(self, frame: frames.Frame) -> None:
        number: int = frame.message["id"]
        mount_fd, theirs = frame.fds
        try:
            if isinstance(self.mount_plan, mounts.SetupFailed):
                raise self.mount_plan
            plan = self.plan(self.mount_plan, SessionSpec(*frame.message["spec"]))
            sockets = (
                mounts.listening_sockets()
                if self.mount_plan.sockets_show and (plan.read_only or plan.isolated)
                else []
            )
            self.refresh_views(frame.message["masked"])
            folders = self.kept.get(frame.message["replaces"], {})
            order = setup.Order(mount_fd, theirs, [*sockets, *frame.message["masked"]], None, folders)
            pid, pidfd, cgroup = self.start(plan, order)
            frames.send(
                self.sock, {"event": "started", "id": number, "pid": pid, "cgroup": cgroup}, fds=[pidfd]
            )
            os.close(pidfd)
            self.plans[pid] = plan._replace(cgroup=cgroup)
            self.wanted = {
                isolated for isolated in self.wanted | {False, plan.isolated} if isolated not in self.spares
            }
        except mounts.SetupFailed as failed:
            refused = {
                "event": "not_started",
                "id": number,
                "step": failed.step,
                "errno": failed.errno,
                "message": failed.message,
            }
            frames.send(self.sock, refused)
        finally:
            self.release(frame.message["replaces"])
            os.close(mount_fd)
            os.close(theirs)

    def keep(self, frame: frames.Frame) -> None:
        """Keep the own /tmp, /var/tmp and /dev/shm of a session whose init is about to be replaced, until the
        next init of the session is created or `release`. Best effort: else they are new ones.
        """
        pid: int = frame.message["pid"]
        self.release(pid)
        plan = self.plans.get(pid)
        own = () if plan is None else mounts.own_folders(read_only=plan.read_only, own_network=plan.isolated)
        if own:
            with contextlib.suppress(OSError, mounts.SetupFailed):
                pidfd = os.pidfd_open(pid)
                try:
                    with self.namespaces().entered(pidfd):
                        self.kept[pid] = mounts.clone_folders(own)
                finally:
                    os.close(pidfd)
        frames.send(self.sock, {"event": "kept", "id": frame.message["id"]})

    def release(self, pid: int) -> None:
        """Drop what `keep` kept of the session with this init."""
        for fd in self.kept.pop(pid, {}).values():
            os.close(fd)

    def namespaces(self) -> _MountNamespace:
        """Give the way into the mount namespaces of sessions, with a native init or without. Raises as
        `_MountNamespace`.
        """
        if self.namespace is not None:
            return self.namespace
        self.namespace_for_masks = self.namespace_for_masks or _MountNamespace()
        return self.namespace_for_masks

    def refresh_views(self, paths: list[str]) -> None:
        """Drop negative dentries of the views' overlays: a new directory that an overlay has cached as
        missing cannot be masked.
        """
        if not self.known.issuperset(paths):
            self.known.update(paths)
            machine_view.refresh(os.getpid())

    def mask(self, frame: frames.Frame) -> None:
        """Mask new directories of other gateways in every live session.

        A process that has such a directory open, or as its working directory, keeps its access.
        """
        paths: list[str] = frame.message["paths"]
        failed: list[str] = []
        self.refresh_views(paths)
        for pid, plan in list(self.plans.items()):
            if not plan.read_only:
                continue
            try:
                namespace = self.namespaces()
                pidfd = os.pidfd_open(pid)
                try:
                    with namespace.entered(pidfd):
                        failed += mounts.mask(paths, plan.mount_plan.workspace_root)
                finally:
                    os.close(pidfd)
            except (OSError, mounts.SetupFailed) as error:
                if not isinstance(error, ProcessLookupError):
                    failed += paths
        frames.send(self.sock, {"event": "masked", "id": frame.message["id"], "failed": sorted(set(failed))})

    def write_git_files(self, frame: frames.Frame) -> None:
        """Write files of git's configuration, which every session sees at once."""
        error = ""
        try:
            if isinstance(self.mount_plan, mounts.SetupFailed):
                raise self.mount_plan
            for name, text in frame.message["files"].items():
                git_identity.write(self.mount_plan.git_files_fd, name, text)
        except (OSError, mounts.SetupFailed) as failed:
            error = str(failed)
        frames.send(self.sock, {"event": "git_files", "id": frame.message["id"], "error": error})

    def start(self, plan: setup.InitPlan, order: setup.Order) -> tuple[int, int, str]:
        """Start an init with `order`: the native spare, the Python spare, or a new clone. Connects the
        network of an isolated session.
        """
        native = self.use_native_spare(plan, order)
        if native is not None:
            return native
        if not plan.isolated:
            return self.use_spare(plan, order) or self.clone(plan, order)
        network_fd, plug_fd = os.pipe2(os.O_CLOEXEC)
        order = order._replace(network_fd=network_fd)
        try:
            pid, pidfd, cgroup = self.use_spare(plan, order) or self.clone(plan, order)
        except BaseException:
            os.close(plug_fd)
            raise
        finally:
            os.close(network_fd)
        self.network.plug(pid, plug_fd)
        return pid, pidfd, cgroup

    def make_spare(self, isolated: bool) -> None:
        self.wanted.discard(isolated)
        if isinstance(self.mount_plan, mounts.SetupFailed):
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        names = _names()
        try:
            pid, pidfd, cgroup = self.clone(
                self.plan(self.mount_plan, SessionSpec("", "isolated" if isolated else "shared")),
                theirs.fileno(),
            )
        except mounts.SetupFailed:
            ours.close()
        else:
            self.spares[isolated] = _Spare(pid, pidfd, ours, names, cgroup, self.namespace is not None)
        theirs.close()

    def use_spare(self, plan: setup.InitPlan, order: setup.Order) -> tuple[int, int, str] | None:
        """Send the order to the spare. Returns its pid, pidfd and cgroup, or None if no spare fits."""
        spare = self.fitting_spare(plan)
        if spare is None or spare.native:
            return None
        try:
            connect = [] if order.network_fd is None else [order.network_fd]
            frames.send(
                spare.control,
                {"masked": order.masked, "folders": list(order.folders)},
                fds=[order.mount_fd, order.sock_fd, *connect, *order.folders.values()],
            )
        except OSError:  # the spare has ended, and will be reaped
            return None
        del self.spares[plan.isolated]
        spare.control.close()
        return spare.pid, spare.pidfd, spare.cgroup

    def fitting_spare(self, plan: setup.InitPlan) -> _Spare | None:
        spare = self.spares.get(plan.isolated)
        if spare is None or plan.read_only != plan.mount_plan.local:
            return None
        if spare.names != _names():  # its view has the old name servers
            signal.pidfd_send_signal(spare.pidfd, signal.SIGKILL)
            return None
        return spare

    def use_native_spare(self, plan: setup.InitPlan, order: setup.Order) -> tuple[int, int, str] | None:
        """Do the same as `use_spare` with a spare that executes the native init: this process makes the
        mounts, in the spare's namespace.
        """
        spare = self.fitting_spare(plan)
        if spare is None or not spare.native or self.namespace is None:
            return None
        executed, handed = native.await_executed(spare.control)
        if not executed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(spare.pidfd, signal.SIGKILL)
            for fd in handed.values():
                os.close(fd)
            return None
        del self.spares[plan.isolated]
        rules = -1
        try:
            if native.INOTIFY in handed:
                with (
                    socket.socket(fileno=os.dup(order.sock_fd)) as session_sock,
                    contextlib.suppress(OSError),
                ):
                    frames.send(session_sock, {"event": "inotify"}, fds=[handed[native.INOTIFY]])
            address: str | None = None
            if plan.isolated:
                with mounts.step("join the network"):
                    address = self.network.address(spare.pid)
                    if address is not None:
                        network.join(address, socket.socket(fileno=handed.pop(native.NETLINK)))
            with self.namespace.entered(spare.pidfd):
                _enter(plan, order)
                with mounts.step("harden"):
                    rules = setup.ruleset(plan)
            root, own = plan.mount_plan.workspace_root, plan.isolated
            with contextlib.suppress(OSError):  # it has ended; `reap` reports that to the agent
                native.give_order(
                    spare.control,
                    plan.hardening,
                    plan.scores,
                    plan.files,
                    order.sock_fd,
                    rules,
                    own_network=own,
                    root=root,
                    address=address,
                )
        except mounts.SetupFailed as failed:
            with socket.socket(fileno=os.dup(order.sock_fd)) as session_sock, contextlib.suppress(OSError):
                frames.send(
                    session_sock,
                    {
                        "event": "failed",
                        "step": failed.step,
                        "errno": failed.errno,
                        "message": failed.message,
                    },
                )
            signal.pidfd_send_signal(spare.pidfd, signal.SIGKILL)
        finally:
            for fd in (*handed.values(), *((rules,) if rules >= 0 else ())):
                os.close(fd)
            spare.control.close()
        return spare.pid, spare.pidfd, spare.cgroup

    def help(self, frame: frames.Frame) -> None:
        """Fork a helper for the file operations of a session. A failure is reported on the helper's socket,
        or by the end of that socket.
        """
        try:
            plan = self.plans.get(frame.message["pid"])
            if plan is None:  # the session has ended
                return
            entry = helper.HelperPlan(
                plan.mount_plan,
                plan.hardening,
                plan.groups,
                plan.cgroup,
                isolated=plan.isolated,
                read_only=plan.read_only,
                scores=plan.scores,
            )
            with contextlib.suppress(OSError):
                if syscalls.clone(0) == 0:
                    helper.main(entry, frame.fds)  # never returns
        finally:
            for fd in frame.fds:
                os.close(fd)

    def drop_spare(self, isolated: bool) -> None:
        spare = self.spares.pop(isolated)
        spare.control.close()
        os.close(spare.pidfd)


def _clone(plan: setup.InitPlan, order: setup.Order | int) -> tuple[int, int]:
    """Clone an init with its order, or with the descriptor from which it will read the order. Returns pid and
    pidfd.
    """
    flags = (
        syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWIPC
        | (syscalls.CLONE_NEWNET if plan.isolated else 0)
    )
    with mounts.step("clone"):
        pid = syscalls.clone(flags)
        if pid == 0:
            if isinstance(order, int):
                setup.main_of_spare(plan, order)  # neither returns
            setup.main(plan, order)
        return pid, os.pidfd_open(pid)


def _enter(plan: setup.InitPlan, order: setup.Order) -> None:
    mount_fd = os.dup(order.mount_fd)
    try:
        mounts.enter_session(
            plan.mount_plan,
            mount_fd,
            read_only=plan.read_only,
            masked=order.masked,
            folders=order.folders,
        )
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(mount_fd)
        raise


def _names() -> tuple[int, int]:
    """Inode and mtime of /etc/resolv.conf; zeros if it cannot be read."""
    try:
        found = os.stat("/etc/resolv.conf")
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns
