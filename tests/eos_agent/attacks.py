"""Things that a command may try: each a function that returns when it got its way and raises OSError when the kernel refused.

They run in a fork of a session's pid 1, which has just what any command inherits from it, so that no interpreter is needed in the session.
`place` holds the paths that the test made outside: store, token, agent_socket, secret, other_pid and the like.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import resource
import signal
import socket
import stat
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from eos_agent import files, harden
from layerstack import linux

importlib.import_module("encodings.idna")  # what is imported late cannot be found behind the masks
Place = Mapping[str, Any]
Attack = Callable[[Place], object]
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
X86 = linux.MACHINE == "x86_64"
NUMBERS = {**harden.denied_calls(), **linux.NR, "clone": 56 if X86 else 220, "mknodat": 259 if X86 else 33, "fchmodat2": 452}


def raw(name: str | int, *args: int | bytes | None) -> int:
    """syscall(2), with bytes as pointers to a copy of them."""
    number = NUMBERS[name] if isinstance(name, str) else name
    converted = [ctypes.c_long(a) if isinstance(a, int) else ctypes.create_string_buffer(a) if a is not None else None for a in args]
    result = int(_libc.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def call(name: str | int, *args: int | bytes | None) -> Attack:
    return lambda _place: raw(name, *args)


def opening(path: str, flags: int) -> Attack:
    """Open a path; `{name}` in it comes from the place."""
    return lambda place: os.close(os.open(path.format(**place), flags | os.O_CLOEXEC))


def reading(path: str) -> Attack:
    def attack(place: Place) -> str:
        with open(path.format(**place), "rb") as f:
            return f.read(200).decode(errors="replace")

    return attack


def listing(path: str) -> Attack:
    def attack(place: Place) -> str:
        names = os.listdir(path.format(**place))
        if not names:
            raise OSError(errno.ENOENT, "an empty folder")
        return " ".join(names)

    return attack


def connecting(family: int, address: Any) -> Attack:
    def attack(place: Place) -> str:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(2)
            sock.connect(address.format(**place))
        return "connected"

    return attack


def in_child(body: Callable[[], object]) -> int:
    """Run it in a fork; the wait status. An exception exits with 1."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            body()
            code = 0
        os._exit(code)
    return os.waitpid(pid, 0)[1]


def cloning(flags: int) -> Attack:
    def attack(_place: Place) -> None:
        pid = raw("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    return attack


def clone3(_place: Place) -> None:
    pid = raw("clone3", struct.pack("Q" * 8, 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64)
    if pid == 0:
        os._exit(0)


def x32(_place: Place) -> None:
    status = in_child(lambda: raw(0x40000000 + 39))
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        raise OSError(errno.EPERM, "killed by SIGSYS")


def node(kind: int, device: int = 0) -> Attack:
    def attack(_place: Place) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink("made-node")
        raw("mknodat", linux.AT_FDCWD, b"made-node", kind | 0o600, device)
        assert stat.S_IFMT(os.lstat("made-node").st_mode) == kind

    return attack


def handle_of_root(_place: Place) -> None:
    fd = os.open(".", os.O_RDONLY)
    raw("open_by_handle_at", fd, struct.pack("IiQ", 8, 1, 2), 0)


def start_thread(_place: Place) -> None:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(1))
    thread.start()
    thread.join()
    assert seen == [1]


def ptrace_own_child(_place: Place) -> None:
    def traced() -> None:
        _libc.ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
        os.kill(os.getpid(), signal.SIGSTOP)

    pid = os.fork()
    if pid == 0:
        traced()
        os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    if _libc.ptrace(7, pid, 0, 0) < 0:  # PTRACE_CONT
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0)


def ptrace_runner(_place: Place) -> None:
    if _libc.ptrace(0x4206, 1, 0, 0) < 0:  # PTRACE_SEIZE
        raise OSError(ctypes.get_errno(), "ptrace")


def kill_other(place: Place) -> None:
    os.kill(int(place["other_pid"]), 0)


def kill_runner(_place: Place) -> None:
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGTERM)
    raise OSError(errno.EPERM, "sent, and pid 1 does not care")


def count_processes(_place: Place) -> None:
    names = [n for n in os.listdir("/proc") if n.isdigit()]
    if len(names) <= 3:  # pid 1, this one, the fork that it runs in
        raise OSError(errno.ENOENT, f"only {names}")


def machine_devices(_place: Place) -> str:
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"}
    found = [
        name
        for name in os.listdir("/dev")
        if name not in harmless and stat.S_IFMT(os.lstat(f"/dev/{name}").st_mode) in (stat.S_IFCHR, stat.S_IFBLK)
    ]
    if not found:
        raise OSError(errno.ENODEV, "no device but the harmless ones")
    return " ".join(found)


def chroot_away(_place: Place) -> None:
    os.mkdir("jail")
    os.chroot("jail")


def raise_hard_limit(_place: Place) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (1, resource.RLIM_INFINITY))
    except ValueError:
        raise OSError(errno.EPERM, "not allowed to raise maximum limit") from None


def own_file_capability(_place: Place) -> None:
    with open("cap-file", "w"):
        pass
    os.setxattr("cap-file", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))


def renames(_place: Place) -> None:
    with open("r1", "w"):
        pass
    os.rename("r1", "r2")
    linux.renameat2("r2", "r3", linux.RENAME_NOREPLACE)


def fchmodat2(_place: Place) -> None:
    with open("m1", "w"):
        pass
    try:
        raw("fchmodat2", linux.AT_FDCWD, b"m1", 0o640, 0)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # before Linux 6.6
            raise


def other_owner(_place: Place) -> None:
    with open("o1", "w"):
        pass
    os.chown("o1", 1234, 1234)
    os.chmod("o1", 0o600)
    with open("o1", "w") as f:
        f.write("root may")


def write_file(path: str) -> Attack:
    def attack(place: Place) -> None:
        name = path.format(**place)
        with open(name, "w") as f:
            f.write("x")
        os.unlink(name)

    return attack


def server_on_loopback(_place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def answer(table: Mapping[str, Attack], place: Place) -> dict[str, str]:
    """Every attack in a process of its own: "ok", the name of the errno, or "died" and the signal."""
    found: dict[str, str] = {}
    for name, attack in table.items():
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(writable, 3)
                linux.close_range(4)
                linux.prctl(linux.PR_SET_DUMPABLE, 1)  # as execve(2) would
                signal.alarm(20)
                os.chdir(place["workspace"])
                try:
                    value = attack(place)
                    text = "ok" + (f": {value}" if isinstance(value, str) else "")
                except OSError as error:
                    text = "ETIMEDOUT" if isinstance(error, TimeoutError) else errno.errorcode.get(error.errno or 0, str(error))
                except BaseException as error:
                    text = f"broken: {error!r}"
                os.write(3, text.encode(errors="replace")[:300])
            finally:
                os._exit(0)
        os.close(writable)
        with open(readable, "rb") as f:
            text = f.read().decode()
        _, status = os.waitpid(pid, 0)
        found[name] = text or f"died: {status}"
    return found


def become_a_file_operation(table: Mapping[str, Attack]) -> None:
    """Called before the zygote is forked: its runners answer the file operation "attack" with what `answer` found."""
    real = files.perform_in_mount

    def perform(name: str, root: str, args: Mapping[str, Any], data: bytes | None = None) -> tuple[dict[str, Any], bytes | None]:
        if name == "attack":
            return {"found": json.dumps(answer(table, args))}, None
        return real(name, root, args, data)

    files.perform_in_mount = perform  # type: ignore[assignment, unused-ignore]
