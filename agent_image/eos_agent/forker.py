"""The zygote process: forks one runner per session, reaps, and dies with the agent. One thread, no event loop, nothing imported late."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from typing import TYPE_CHECKING, NoReturn

from eos_agent import channel, runner, view
from eos_agent.harden import Hardening
from layerstack import linux

if TYPE_CHECKING:
    from eos_agent.zygote import HostSpec


def main(host: HostSpec, sock: socket.socket, parent: int) -> NoReturn:
    """The life of the zygote, from the line after fork(2)."""
    status = 1
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else the agent died before the line above
            _serve(host, sock)
        status = 0
    except BaseException as error:
        os.write(2, f"zygote: {error!r}\n".encode())
    finally:
        os._exit(status)


def _serve(host: HostSpec, sock: socket.socket) -> None:
    os.setsid()  # an interrupt typed at the agent's terminal is the agent's business
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.chdir("/")
    sock = keep_only(sock)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    wake = runner.wake_on_child()
    hardening = Hardening.prepare()
    scene = _prepare(host)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it visits
    gc.disable()
    decoder = channel.Decoder()
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if wake in ready:
            runner.drain(wake)
            _reap(sock)
        if sock.fileno() in ready:
            raw, fds = channel.receive(sock)
            if not raw:
                return
            for frame in decoder.feed(raw, fds):
                _create(scene, hardening, sock, frame)


def keep_only(sock: socket.socket) -> socket.socket:
    """Close every descriptor but 0, 1, 2 and this one, which becomes 3: no child may hold a copy of another session's socket."""
    fd = sock.detach()
    if fd != 3:
        os.dup2(fd, 3, inheritable=False)
    linux.close_range(4)
    return socket.socket(fileno=3)


def _reap(sock: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.send(sock, {"event": "exited", "pid": pid, "status": status})


def _prepare(host: HostSpec) -> view.Scene | view.SetupFailed:
    """What sessions share; what went wrong with it is told to whoever asks for a session."""
    try:
        return view.prepare(host.workspace_root, host.hidden_paths, host.private_dirs, local=host.provider == "local", rootfs=host.rootfs)
    except view.SetupFailed as failed:
        return failed


def _create(scene: view.Scene | view.SetupFailed, hardening: Hardening, sock: socket.socket, frame: channel.Frame) -> None:
    number: int = frame.message["id"]
    mount_fd, theirs = frame.fds
    try:
        if isinstance(scene, view.SetupFailed):
            raise scene
        _, network, rootfs_mode = frame.message["spec"]
        read_only = scene.local or rootfs_mode == "read_only"
        flags = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | (linux.CLONE_NEWNET if network == "isolated" else 0)
        sockets = view.listening_sockets() if read_only and not scene.rootfs else []
        plan = runner.Plan(scene, network == "isolated", read_only, sockets, hardening)
        with view.step("clone"):
            pid = linux.clone(flags)
            if pid == 0:
                runner.main(plan, mount_fd, theirs)  # never returns
            pidfd = os.pidfd_open(pid)
        channel.send(sock, {"event": "started", "id": number, "pid": pid}, fds=[pidfd])
        os.close(pidfd)
    except view.SetupFailed as failed:
        channel.send(sock, {"event": "not_started", "id": number, "step": failed.step, "errno": failed.errno, "message": failed.message})
    finally:
        os.close(mount_fd)
        os.close(theirs)
