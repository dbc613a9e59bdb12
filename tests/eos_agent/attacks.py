"""Attacks that a command may try: each is a function that returns on success and raises OSError when the
kernel refused.

They run in a fork of a session's pid 1, which has the same inheritance as any command, so that the session
needs no interpreter; or in a command that is a Python. A `Plain` attack can also be written as a line for
attacks.c, which is the command in sessions without an interpreter. `place` holds what the test made outside:
store, token, agent_socket, other_pid and the like.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
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
from typing import Any, NamedTuple

from eos_agent.files import mounted
from eos_agent.kernel import harden
from layerstack.kernel import syscalls

importlib.import_module("encodings.idna")  # a late import would not find its file below the masks
Place = Mapping[str, Any]
Attack = Callable[[Place], object]
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
X86 = syscalls.MACHINE == "x86_64"
NUMBERS = {
    **harden.denied_calls(),
    **syscalls.NR,
    "clone": 56 if X86 else 220,
    "mknodat": 259 if X86 else 33,
    "fchmodat2": 452,
}
_NEVER_ALLOWED = {  # system calls that need a dropped capability: numbers on x86_64 and aarch64
    "settimeofday": (164, 170),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "process_vm_readv": (310, 270),
    "sched_setscheduler": (144, 119),
    "chroot": (161, 51),
}
NUMBERS |= {name: pair[0 if X86 else 1] for name, pair in _NEVER_ALLOWED.items()}


class Plain(NamedTuple):
    """An attack that attacks.c has too. A `{name}` in an argument is taken from the place."""

    run: Attack
    verb: str
    args: tuple[int | str, ...]

    def __call__(self, place: Place) -> object:
        return self.run(place)

    def line(self, place: Place) -> str:
        """Return the line for attacks.c, without the name."""
        return "\t".join(
            [self.verb, *(a.format(**place) if isinstance(a, str) else str(a) for a in self.args)]
        )


def raw(name: str | int, *args: int | bytes | None) -> int:
    """syscall(2), with bytes as pointers to a copy of them."""
    number = NUMBERS[name] if isinstance(name, str) else name
    converted = [
        ctypes.c_long(a) if isinstance(a, int) else ctypes.create_string_buffer(a) if a is not None else None
        for a in args
    ]
    result = int(_libc.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def call(name: str | int, *args: int | bytes | None) -> Plain:
    """One system call."""
    said = ["n" if a is None else f"i:{a}" if isinstance(a, int) else f"x:{a.hex()}" for a in args]
    return Plain(
        lambda _place: raw(name, *args), "call", (NUMBERS[name] if isinstance(name, str) else name, *said)
    )


def opening(paths: str, flags: int) -> Plain:
    """Open the first that can be opened of some paths with `|` between them, each a pattern of glob(3)."""

    def attack(place: Place) -> str:
        last = OSError(errno.ENOENT, paths)
        for pattern in paths.format(**place).split("|"):
            for path in glob.glob(pattern) if glob.has_magic(pattern) else [pattern]:
                try:
                    os.close(os.open(path, flags | os.O_CLOEXEC))
                except OSError as error:
                    last = error
                else:
                    return path
        raise last

    return Plain(attack, "open", (paths, flags))


def reading(path: str) -> Plain:
    def attack(place: Place) -> str:
        with open(path.format(**place), "rb") as f:
            return f.read(200).decode(errors="replace")

    return Plain(attack, "read", (path,))


def reading_something(path: str) -> Attack:
    """Read a file; an empty file counts as hidden."""

    def attack(place: Place) -> str:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not os.read(fd, 64):
                raise OSError(errno.ENOENT, "empty")
        finally:
            os.close(fd)
        return path

    return attack


def listing(path: str) -> Plain:
    """List a folder; an empty folder counts as hidden."""

    def attack(place: Place) -> str:
        names = os.listdir(path.format(**place))
        if not names:
            raise OSError(errno.ENOENT, "an empty folder")
        return " ".join(names)

    return Plain(attack, "list", (path,))


def following(path: str) -> Plain:
    return Plain(lambda place: os.readlink(path.format(**place)), "readlink", (path,))


def connecting(kind: str, address: str) -> Plain:
    """Connect a stream: kind unix, abstract or tcp (the address is a port of loopback)."""

    def attack(place: Place) -> str:
        where = address.format(**place)
        with socket.socket(socket.AF_INET if kind == "tcp" else socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(2)
            sock.connect(
                ("127.0.0.1", int(where)) if kind == "tcp" else "\0" + where if kind == "abstract" else where
            )
        return "connected"

    return Plain(attack, "connect", (kind, address))


def taking_port(port: str) -> Plain:
    """Listen at an address where another process listens."""

    def attack(place: Place) -> None:
        with socket.socket(socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(("127.0.0.1", int(port.format(**place))))
            sock.listen()

    return Plain(attack, "listen", (port,))


def hunting(what: str) -> Plain:
    """Search the text place[what] in environment, arguments and mounts of every visible process. attacks.c
    gets the text in halves, so that it does not find itself.
    """

    def attack(place: Place) -> str:
        wanted = str(place[what]).encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for name in ("environ", "cmdline", "mountinfo", "comm"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as f:
                    if wanted in f.read():
                        return f"/proc/{pid}/{name}"
        raise OSError(errno.ENOENT, "nowhere")

    return Plain(attack, "hunt", (f"{{{what}_a}}", f"{{{what}_b}}"))


def in_halves(place: dict[str, Any], what: str, text: str) -> None:
    place.update({what: text, f"{what}_a": text[: len(text) // 2], f"{what}_b": text[len(text) // 2 :]})


def _interface(_place: Place) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(
            sock, 0x8913, struct.pack("16s24x", b"lo")
        )  # SIOCGIFFLAGS, and the same flags set again
        fcntl.ioctl(sock, 0x8914, request)


def _route(_place: Place) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x890B, bytes(120))  # SIOCADDRT


def _trace(pid: int) -> None:
    if _libc.ptrace(0x4206, pid, 0, 0) < 0:  # PTRACE_SEIZE
        raise OSError(ctypes.get_errno(), "ptrace")


def _leftovers(_place: Place) -> str:
    """Find descriptors that were not passed to this command. A fork of pid 1 has closed them; attacks.c, a
    command, checks before it opens anything.
    """
    found = [f"{n}" for n in range(4, 1024) if os.path.lexists(f"/proc/self/fd/{n}")]
    if not found:
        raise OSError(errno.ENOENT, "none")
    return " ".join(found)


interface, route = Plain(_interface, "interface", ()), Plain(_route, "route", ())
leftovers = Plain(_leftovers, "leftovers", ())
joining = Plain(lambda _place: raw("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0), "setns", ())


def tracing(pid: str) -> Plain:
    return Plain(lambda place: _trace(int(pid.format(**place))), "trace", (pid,))


def signalling(pid: str) -> Plain:
    return Plain(lambda place: os.kill(int(pid.format(**place)), 0), "kill", (pid,))


def in_child(body: Callable[[], object]) -> int:
    """Run an attack in a fork; return the wait status. An exception exits with 1."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            body()
            code = 0
        os._exit(code)
    return os.waitpid(pid, 0)[1]


def cloning(flags: int) -> Plain:
    def attack(_place: Place) -> None:
        pid = raw("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    return Plain(attack, "clone", (flags,))


def _clone3(_place: Place) -> None:
    pid = raw("clone3", struct.pack("Q" * 8, 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64)
    if pid == 0:
        os._exit(0)


clone3 = Plain(_clone3, "clone3", ())


def x32(_place: Place) -> None:
    status = in_child(lambda: raw(0x40000000 + 39))
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        raise OSError("killed by SIGSYS")


def node(kind: int, device: int | str = 0) -> Plain:
    """mknod(2) in the workspace."""

    def attack(place: Place) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink("made-node")
        raw("mknodat", syscalls.AT_FDCWD, b"made-node", kind | 0o600, int(str(device).format(**place)))
        assert stat.S_IFMT(os.lstat("made-node").st_mode) == kind

    return Plain(attack, "node", (kind, device))


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


def kill_runner(_place: Place) -> None:
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGTERM)
    raise OSError(errno.EPERM, "sent, and pid 1 does not care")


def strangers(_place: Place) -> str:
    """Return the processes that are neither this one nor its ancestors; the ancestors end at pid 1."""
    family, pid = {"1"}, "self"
    while pid not in family | {"0"}:
        with open(f"/proc/{pid}/status") as f:
            status = dict(line.split(":\t", 1) for line in f.read().splitlines() if ":\t" in line)
        family.add(status["Pid"])
        pid = status["PPid"]
    found: list[str] = []
    for n in os.listdir("/proc"):
        if n.isdigit() and n not in family:
            with open(f"/proc/{n}/stat") as f:
                if (
                    f.read().rpartition(")")[2].split()[1] != "0"
                ):  # that is the session's file helper, whose parent is outside
                    found.append(n)
    if not found:
        raise OSError(errno.ENOENT, f"only {sorted(family)}")
    return " ".join(found)


def machine_devices(_place: Place) -> str:
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"}
    found = [
        name
        for name in os.listdir("/dev")
        if name not in harmless
        and stat.S_IFMT(os.lstat(f"/dev/{name}").st_mode) in (stat.S_IFCHR, stat.S_IFBLK)
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
    syscalls.renameat2("r2", "r3", syscalls.RENAME_NOREPLACE)


def fchmodat2(_place: Place) -> None:
    with open("m1", "w"):
        pass
    try:
        raw("fchmodat2", syscalls.AT_FDCWD, b"m1", 0o640, 0)
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


def write_file(path: str) -> Plain:
    def attack(place: Place) -> None:
        name = path.format(**place)
        with open(name, "w") as f:
            f.write("x")
        os.unlink(name)

    return Plain(attack, "write", (path,))


def removing(path: str) -> Plain:
    return Plain(lambda _place: os.unlink(path), "unlink", (path,))


def replacing(path: str) -> Plain:
    """Put a folder in its place."""

    def attack(_place: Place) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{path}-folder")
        syscalls.renameat2(f"{path}-folder", path, syscalls.RENAME_EXCHANGE)

    return Plain(attack, "exchange", (path,))


def cgroup_files(_place: Place) -> str:
    """Open for writing what moves a process, or names a program that the kernel runs, in any cgroup tree that
    is mounted.
    """
    last = OSError(errno.ENOENT, "no cgroup tree")
    with open("/proc/self/mountinfo") as table:
        tops = [line.split()[4] for line in table if line.partition(" - ")[2].startswith("cgroup")]
    for path in (
        f"{top}/{name}" for top in tops for name in ("release_agent", "cgroup.procs", "notify_on_release")
    ):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            last = error
        else:
            return path
    raise last


def symlink_races(place: Place) -> None:
    """Make the agent read or write where a link of the workspace points: it is another session's business, so
    the links alone are tried here.
    """
    for name, target in (
        ("to-store", "{store}"),
        ("to-base", "{base_file}"),
        ("to-token", "{token}"),
        ("to-root", "/proc/1/root"),
    ):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        os.symlink(target.format(**place), name)
    for path in ("to-store/manifest.json", "to-base", "to-token", "to-root/etc/passwd"):
        with contextlib.suppress(OSError), open(path, "rb") as f:
            raise AssertionError(f"{path} shows {f.read(40)!r}")
    raise OSError(errno.ENOENT, "no link leads anywhere")


def copying_a_descriptor(_place: Place) -> None:
    """pidfd_getfd(2) from pid 1, whose third is the agent's socket."""
    pidfd = os.pidfd_open(1)
    try:
        os.close(raw(438, pidfd, 3, 0))
    finally:
        os.close(pidfd)


def asking_agent(method: str, path: str) -> Attack:
    """A request without a token to the agent's HTTP port, from inside of the sandbox."""

    def attack(place: Place) -> str:
        with socket.create_connection(("127.0.0.1", int(place["http_port"])), timeout=5) as sock:
            sock.sendall(
                (
                    f"{method} {path.format(**place)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: "
                    f"0\r\nConnection: close\r\n\r\n"
                ).encode()
            )
            status = sock.recv(1000).split()[1].decode()
        if status in ("401", "403"):
            raise PermissionError(errno.EACCES, status)
        return status

    return attack


def sniffing(_place: Place) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)):
        pass


def typing_into_terminal(_place: Place) -> str:
    """TIOCSTI on every terminal that can be opened without having made it."""
    last = OSError(errno.ENOENT, "no terminal")
    for path in ("/dev/tty", "/dev/console", "/dev/tty1", "/dev/pts/0", "/proc/1/fd/0", "/proc/1/fd/2"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(fd, 0x5412, b" ")
            finally:
                os.close(fd)
        except OSError as error:
            last = error
        else:
            return path
    raise last


def server_on_loopback(_place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def answer(table: Mapping[str, Attack], place: Place) -> dict[str, str]:
    """Run every attack in a separate process: "ok", the name of the errno, or "died" and the signal."""
    found: dict[str, str] = {}
    for name, attack in table.items():
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(writable, 3)
                syscalls.close_range(4)
                syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # as execve(2) would
                signal.alarm(20)
                os.chdir(place["workspace"])
                try:
                    value = attack(place)
                    text = "ok" + (f": {value}" if isinstance(value, str) else "")
                except OSError as error:
                    text = (
                        "ETIMEDOUT"
                        if isinstance(error, TimeoutError)
                        else errno.errorcode.get(error.errno or 0, str(error))
                    )
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


def serve(abstract: str, tmp: str, ready: Callable[[int], object]) -> None:
    """Make the targets in another session: a server on a loopback port (passed to `ready`), one on an
    abstract socket and one in /tmp, and files there and in the workspace.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as hidden,
        socket.socket(socket.AF_UNIX) as named,
    ):
        hidden.bind("\0" + abstract)
        hidden.listen()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{tmp}.sock")
        named.bind(f"{tmp}.sock")
        named.listen()
        for path in (tmp, "of-another", "secret"):
            with open(path, "w") as f:
                f.write("of another session")
        ready(server.getsockname()[1])
        signal.pause()


def _serve_in_child(args: Mapping[str, Any]) -> int:
    readable, writable = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            os.chdir(args["workspace"])
            serve(
                args["other_abstract"], args["other_tmp"], lambda port: os.write(writable, str(port).encode())
            )
        os._exit(1)
    os.close(writable)
    with open(readable) as f:
        return int(f.read(5))


def become_a_file_operation(table: Mapping[str, Attack]) -> None:
    """Called before the zygote is forked: its inits answer the file operation "attack" with what `answer`
    found, and "serve" with a port.
    """
    real = mounted.perform_in_mount

    def perform(
        name: str, root: str, args: Mapping[str, Any], data: bytes | None = None, *more: Any
    ) -> tuple[dict[str, Any], bytes | None]:
        if name == "attack":
            return {"found": json.dumps(answer(table, args))}, None
        if name == "serve":
            return {"port": _serve_in_child(args)}, None
        return real(name, root, args, data, *more)

    mounted.perform_in_mount = perform  # type: ignore[assignment, unused-ignore]
