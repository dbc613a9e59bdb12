"""Spawn a command: its terminal or pipes, its program, its user."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import struct
import termios
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from eos_agent.kernel import fd_limits
from eos_agent.kernel.fd_limits import OpenFiles
from eos_agent.kernel.passwd import primary_group
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError

Action: TypeAlias = "tuple[Any, ...]"
"""A file action of posix_spawn(3): (POSIX_SPAWN_OPEN, fd, path, flags, mode) or (POSIX_SPAWN_DUP2, fd, new
fd).
"""

_TIOCSPTLCK, _TIOCGPTN = 0x40045431, 0x80045430  # asm-generic/ioctls.h
_SIGNALS = sorted(s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP))
_SIGNALS_BUT_HUP = [s for s in _SIGNALS if s != signal.SIGHUP]


def plumb(tty: bool, split: bool, stdin: bool) -> tuple[list[str], list[int], list[int], list[Action]]:
    """Open the terminal or pipes of a command. Returns names and descriptors of the agent's ends, the child's
    ends, and the file actions for posix_spawn.
    """
    if tty:
        try:
            return _terminal()
        except OSError as error:
            details = {"errno": errno.errorcode.get(error.errno or 0, "EIO")}
            raise OperationError(
                OPERATION_FAILED, f"cannot make a terminal: {error.strerror}", details, reason="no_terminal"
            ) from None
    names: list[str] = []
    ours: list[int] = []
    theirs: list[int] = []
    actions: list[Action] = []

    def pipe(name: str, child_fd: int) -> None:
        readable, writable = os.pipe()
        mine, its = (writable, readable) if child_fd == 0 else (readable, writable)
        os.set_blocking(mine, False)
        names.append(name)
        ours.append(mine)
        theirs.append(its)
        actions.append((os.POSIX_SPAWN_DUP2, its, child_fd))

    if stdin:
        pipe("stdin", 0)
    else:
        actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0))
    pipe("stdout", 1)
    if split:
        pipe("stderr", 2)
    else:
        actions.append((os.POSIX_SPAWN_DUP2, 1, 2))
    return names, ours, theirs, actions


def _terminal() -> tuple[list[str], list[int], list[int], list[Action]]:
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    number = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, b"\0\0\0\0"))[0]
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    opened = (
        os.POSIX_SPAWN_OPEN,
        0,
        f"/dev/pts/{number}",
        os.O_RDWR,
        0,
    )  # it becomes the controlling terminal when the leader opens it
    return ["tty"], [master], [], [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]


def start(
    program: str,
    argv: list[str],
    env: dict[str, str],
    actions: list[Action],
    *,
    tty: bool,
    uid: int | None,
    files: OpenFiles | None,
) -> int:
    """Start `program` as the leader of a new session (setsid(2)), in the present working directory, with
    default signals. Returns its pid.

    On a terminal SIGHUP stays ignored, as under nohup(1): when a session leader ends, the kernel sends SIGHUP
    to the foreground group of its terminal (disassociate_ctty, drivers/tty/tty_jobctrl.c), and a shell
    without job control leaves its `cmd &` in that group.

    Raises:
        OSError: execve(2) or a file action failed; no process was started.
    """
    defaults = _SIGNALS_BUT_HUP if tty else _SIGNALS
    if uid is None:
        with fd_limits.for_a_command(files) as pids:
            pids.append(
                os.posix_spawn(
                    program, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=defaults
                )
            )
        return pids[0]
    gid = primary_group(uid)
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_and_exec(program, argv, env, actions, defaults, uid, gid, files, writable)
    os.close(writable)
    failed = os.read(readable, 16)
    os.close(readable)
    if failed:
        os.waitpid(pid, 0)
        raise OSError(int(failed), os.strerror(int(failed)))
    return pid


def _become_and_exec(
    program: str,
    argv: list[str],
    env: dict[str, str],
    actions: list[Action],
    defaults: Sequence[int],
    uid: int,
    gid: int,
    files: OpenFiles | None,
    report_fd: int,
) -> NoReturn:
    try:
        os.setsid()
        for action in actions:
            if action[0] == os.POSIX_SPAWN_OPEN:
                _, fd, path, flags, mode = action
                opened = os.open(path, flags, mode)
                if opened != fd:
                    os.dup2(opened, fd)
                    os.close(opened)
            else:
                os.dup2(action[1], action[2])
        if os.isatty(0):
            os.fchown(0, uid, -1)
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, files)
        os.setgroups([gid])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        for signum in defaults:
            if signum < 32 and signal.getsignal(signum) != signal.SIG_DFL:
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(program, argv, env)
    except OSError as error:
        os.write(report_fd, str(error.errno).encode())
    finally:
        os._exit(127)


def find_program(name: str, path: str) -> str:
    if "/" in name:
        return name
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise exec_failed(name, FileNotFoundError(errno.ENOENT, "not found in PATH"))


def cwd_not_found(cwd: str, error: OSError) -> OperationError:
    details = {"cwd": cwd, "errno": errno.errorcode.get(error.errno or 0, "EIO")}
    return OperationError(
        OPERATION_FAILED,
        f"cannot enter the working directory {cwd}: {error.strerror}",
        details,
        reason="cwd_not_found",
    )


def too_many_in_flight() -> OperationError:
    """The error when programs of this user have left so many descriptors unreceived in unix sockets that the
    kernel accepts no more. The command was not run, or was killed.
    """
    details = {
        "errno": "ETOOMANYREFS",
        "retryable": True,
        "hint": "end the programs that send descriptors and do not receive them, then repeat the call",
    }
    message = "the agent cannot receive the command's output: too many descriptors of this user are in flight"
    return OperationError(OPERATION_FAILED, message, details, reason="too_many_in_flight")


def exec_failed(program: str, error: OSError) -> OperationError:
    details = {"program": program, "errno": errno.errorcode.get(error.errno or 0, "EIO")}
    return OperationError(
        OPERATION_FAILED, f"cannot run {program}: {error.strerror}", details, reason="exec_failed"
    )
