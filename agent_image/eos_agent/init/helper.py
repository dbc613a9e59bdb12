"""The helper: a child of the zygote that does the file operations of a session with a native init.

The helper enters the session's namespaces and hardens itself. It is forked for the first file operation, and
ends when the agent closes its socket some seconds after the last operation. The session's processes see the
helper as a process without a parent (ppid 0). Like a Python init, it answers requests with loop.py.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import NoReturn

from eos_agent.init import mounts
from eos_agent.init.loop import InitLoop
from eos_agent.init.setup import keep
from eos_agent.ipc import frames
from eos_agent.kernel import oom
from eos_agent.kernel.cgroups import Groups
from eos_agent.kernel.harden import Hardening
from eos_agent.kernel.oom import OomScore, Scores
from layerstack.kernel import syscalls

_KINDS = (syscalls.CLONE_NEWPID, syscalls.CLONE_NEWNET, syscalls.CLONE_NEWIPC, syscalls.CLONE_NEWNS)
"""Kinds of namespace, in the order in which init.c sends the namespaces."""


class HelperPlan:
    """Values of the session that the helper enters."""

    def __init__(
        self,
        mount_plan: mounts.MountPlan,
        hardening: Hardening,
        groups: Groups,
        cgroup: str,
        *,
        isolated: bool,
        read_only: bool,
        scores: Scores,
    ) -> None:
        self.mount_plan, self.hardening, self.groups, self.cgroup = mount_plan, hardening, groups, cgroup
        self.isolated, self.read_only, self.scores = isolated, read_only, scores


def main(plan: HelperPlan, fds: tuple[int, ...]) -> NoReturn:
    """Run the helper; the first code after clone(2). fds: its socket, then the namespaces."""
    status = 1
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        plan.groups.join(plan.cgroup)
        oom.set_score(plan.scores.init)
        sock_fd, *spaces = keep(*fds)
        sock = socket.socket(fileno=sock_fd)
        try:
            with mounts.step("enter the session"):
                _enter(spaces, plan.isolated)
        except mounts.SetupFailed as failed:
            frames.send(
                sock,
                {"event": "failed", "step": failed.step, "errno": failed.errno, "message": failed.message},
            )
        else:
            status = _live(plan, sock)
    except BaseException as error:
        os.write(2, f"helper: {error!r}\n".encode())
    finally:
        os._exit(status)


def _enter(spaces: list[int], isolated: bool) -> None:
    """Enter the namespaces. setns(2) to a pid namespace affects children only, so a child continues as the
    helper and this process ends.
    """
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # before a process in there can see this one
    for fd, kind in zip(spaces, _KINDS, strict=True):
        if (
            kind != syscalls.CLONE_NEWNET or isolated
        ):  # a shared session has the zygote's network, which an ordinary user may not setns to
            syscalls.setns(fd, kind)
    if syscalls.clone(syscalls.CLONE_PARENT) != 0:
        os._exit(0)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    syscalls.close_range(4)


def _live(plan: HelperPlan, sock: socket.socket) -> int:
    try:
        with mounts.step("harden"):
            os.chdir("/")
            os.umask(0o022)
            signal.set_wakeup_fd(-1)
            writable = mounts.writable_folders(plan.mount_plan.workspace_root) if plan.read_only else None
            plan.hardening.apply(writable, own_network=plan.isolated)
            os.dup2(0, 2)
            for signum in (signal.SIGINT, signal.SIGTERM):
                signal.signal(signum, signal.SIG_IGN)
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
            syscalls.prctl(
                syscalls.PR_SET_PDEATHSIG, signal.SIGKILL
            )  # last: a change of credentials would clear it
    except mounts.SetupFailed as failed:
        frames.send(
            sock, {"event": "failed", "step": failed.step, "errno": failed.errno, "message": failed.message}
        )
        return 1
    frames.send(sock, {"event": "ready"})
    InitLoop(sock, plan.mount_plan.workspace_root, OomScore(plan.scores), None).serve()
    return 0
