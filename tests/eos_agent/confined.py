"""The table of escapes.py, tried in sessions without an agent around them, and attacks.c as a program."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from layerstack.kernel import syscalls
from tests import probes

from . import attacks, escapes
from .bare_zygote import Box, in_box

OF_BOXES = {  # kind -> namespace, provider, network
    "local-root": ("trusted", "local", "shared"),
    "local-user": ("user", "local", "shared"),
    "local-isolated": ("trusted", "local", "isolated"),
    escapes.SHARED_VIEW: ("trusted", "docker", "shared"),
}
POWERS = {
    "local-root": ("root", "overlay"),
    "local-user": ("userns",),
    "local-isolated": ("root", "overlay"),
    "shared": ("root", "overlay"),
}


class Findings(NamedTuple):
    """Results in forks of pid 1, of the program at the end of a chain of shells, and of the program as a
    daemon.
    """

    forked: dict[str, str]
    nested: dict[str, str]
    daemon: dict[str, str]


@functools.cache
def program() -> bytes:
    """attacks.c, linked statically: it runs in any image. Needs the power "musl"."""
    compiler = shutil.which("musl-gcc")
    assert compiler is not None
    with tempfile.TemporaryDirectory(dir=probes.scratch_root()) as folder:
        source = Path(__file__).with_name("attacks.c")
        done = subprocess.run(
            [
                compiler,
                "-static",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-o",
                f"{folder}/attacks",
                str(source),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return Path(folder, "attacks").read_bytes()


def parse(output: str) -> dict[str, str]:
    """Return the results of attacks.c, in the form of attacks.answer."""
    import errno

    found: dict[str, str] = {}
    for line in output.splitlines():
        name, _, text = line.partition("\t")
        text = text.strip()
        died = text == f"died {int(signal.SIGSYS)}"
        found[name] = (
            "EPERM"
            if died
            else errno.errorcode.get(int(text[1:]), text)
            if text[:1] == "E" and text[1:].isdigit()
            else text
        )
    return found


def by_other_names(folder: str) -> list[socket.socket]:
    """Make listening sockets at `relative`, `renamed`, `linked` and `elsewhere`, which the kernel lists under
    other names, and a FIFO.
    """
    os.mkdir(folder)
    os.mkfifo(f"{folder}/fifo")
    found = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    before = os.open(
        ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )  # its path may lead through another user's home
    os.chdir(folder)
    try:
        found[0].bind("relative")
    finally:
        os.fchdir(before)
        os.close(before)
    found[1].bind(f"{folder}/first-name")
    found[2].bind(f"{folder}/first-link")
    os.rename(f"{folder}/first-name", f"{folder}/renamed")
    os.link(f"{folder}/first-link", f"{folder}/linked")
    os.unlink(f"{folder}/first-link")
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            syscalls.unshare(syscalls.CLONE_NEWNET)
            there = socket.socket(socket.AF_UNIX)
            there.bind(f"{folder}/elsewhere")
            socket.send_fds(theirs, [b"x"], [there.fileno()])
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(pid, 0)
    found.append(socket.socket(fileno=fd))
    for sock in found:
        sock.listen()
    os.chmod(f"{folder}/fifo", 0o666)
    for sock, name in zip(found, ("relative", "renamed", "linked", "elsewhere"), strict=True):
        os.chmod(f"{folder}/{name}", 0o666)
        with socket.socket(socket.AF_UNIX) as trial:
            trial.connect(f"{folder}/{name}")  # on the machine itself each of them answers
            sock.accept()[
                0
            ].close()  # until then the kernel lists that end, by the name, in the network namespace of who connected  # noqa: E501
    return found


@functools.cache
def findings(kind: str) -> Findings:
    """Try the whole table for this kind of session."""
    return try_all(kind)


def try_all(kind: str, only: str = "", tamper: Callable[[], object] | None = None) -> Findings:
    """Run `findings` for one row, in a fork only, after `tamper` has removed a protection."""
    namespace, provider, network = OF_BOXES[kind]
    table = {name: row.attack for name, row in escapes.rows_of(kind).items() if only in ("", name)}
    code = b"" if tamper or not probes.power("musl").on else program()
    disk = os.stat(probes.scratch_root()).st_dev

    def before_fork(top: str) -> None:
        os.makedirs(f"{top}/home/.ssh")
        os.makedirs(f"{top}/private/bundle/lib")
        os.makedirs(f"{top}/store/layers/L000002-00000000")
        os.makedirs(f"{top}/home/.config/gh")
        of_home = (".ssh/id", ".netrc", ".git-credentials", ".claude.json", ".config/gh/hosts.yml")
        for path in (
            f"{top}/private/token",
            *(f"{top}/home/{name}" for name in of_home),
            f"{top}/store/manifest.json",
        ):
            Path(path).write_text("secret")
        for name, shown in (("second", f"{top}/private"), ("again", top)):
            os.mkdir(f"{top}/{name}")
            syscalls.mount(shown, f"{top}/{name}", None, syscalls.MS_BIND)
        Path(f"{top}/store/base/attacks").write_bytes(code)
        os.chmod(f"{top}/store/base/attacks", 0o755)
        attacks.become_a_file_operation(table)
        if tamper:
            syscalls.unshare(
                syscalls.CLONE_NEWUTS
            )  # one of the attacks changes the name of the host, and here it may succeed
            tamper()

    async def scenario(box: Box) -> Findings:
        listening: list[socket.socket] = []
        abstract = f"eos-test-{os.getpid()}"
        engine, late = f"/var/tmp/eos-test-{os.getpid()}.sock", f"/var/tmp/eos-test-{os.getpid()}-late.sock"
        for address in (f"{box.top}/private/agent.sock", engine, "\0" + abstract):
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(address)
            sock.listen()
            listening.append(sock)
        listening += by_other_names(f"{box.top}/sockets")
        fifo = os.open(f"{box.top}/sockets/fifo", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        listening.append(socket.create_server(("127.0.0.1", 0)))
        place: dict[str, Any] = {
            "store": f"{box.top}/store",
            "base_file": f"{box.top}/store/base/attacks",
            "upper": f"{box.top}/store/other/upper/secret",
            "home": f"{box.top}/home",
            "bundle": f"{box.top}/private/bundle",
            "token": f"{box.top}/private/token",
            "agent_socket": f"{box.top}/private/agent.sock",
            "agent_port": listening[-1].getsockname()[1],
            "engine_socket": engine,
            "late_socket": late,
            "sockets": f"{box.top}/sockets",
            "second_token": f"{box.top}/second/token",
            "again_token": f"{box.top}/again/private/token",
            "again_key": f"{box.top}/again/home/.ssh/id",
            "abstract": abstract,
            "other_abstract": f"{abstract}-other",
            "other_tmp": f"/tmp/eos-test-{os.getpid()}",
            "workspace": box.workspace,
            "disk": disk,
        }
        attacks.in_halves(place, "secret", f"secret-{os.urandom(8).hex()}")
        attacks.in_halves(place, "token_text", f"token-{os.urandom(8).hex()}")
        try:
            other = await box.session("other", network=network)
            running = await other.start(
                "exec sleep 1000", env={"PATH": "/usr/bin:/bin", "SECRET": place["secret"]}
            )
            with open(f"/proc/{other.init.pid}/task/{other.init.pid}/children") as f:
                place["other_pid"] = int(f.read().split()[0])
            served, _ = await other.init.file_op("serve", place)
            place["other_port"] = served["port"]
            live = await box.session("attacker", network=network)
            listening.append(socket.socket(socket.AF_UNIX))
            listening[-1].bind(late)
            listening[-1].listen()
            Path(f"{box.top}/home/.claude.json.new").write_text("another secret")
            os.rename(f"{box.top}/home/.claude.json.new", f"{box.top}/home/.claude.json")
            result, _ = await live.init.file_op("attack", place)
            there = [
                place[name] for name in ("store", "base_file", "upper", "token", "bundle", "agent_socket")
            ]
            assert all(map(os.path.exists, there)), there
            forked = dict(json.loads(result["found"]))
            nested: dict[str, str] = {}
            daemon: dict[str, str] = {}
            if code:
                await live.run(
                    ["/bin/sh", "-c", 'cat > lines <<"END"\n' + escapes.lines_of(kind, place) + "END"]
                )
                nested = parse((await live.run("sh -c 'sh -c \"./attacks lines; true\"; true'; true")).out)
                daemon = parse(
                    (
                        await live.run(
                            "sh -c 'sh -c \"./attacks lines daemon\"'; until [ -e lines.out ]; do :; done; "
                            "cat lines.out"
                        )
                    ).out
                )
            assert await other.init.signal(running.key, signal.SIGCONT)
            return Findings(forked, nested, daemon)
        finally:
            os.unlink(engine)
            os.close(fifo)
            for name in ("second", "again"):
                syscalls.umount(f"{box.top}/{name}", syscalls.MNT_DETACH)
            for path in (place["other_tmp"], f"{place['other_tmp']}.sock", late):
                if os.path.exists(path):
                    os.unlink(path)
            for sock in listening:
                sock.close()

    hidden = ["TOP/store", "TOP/private"] if provider == "docker" else []
    parent = (
        "/var/tmp" if provider == "local" else None
    )  # /tmp is private in local sessions: everything there is hidden anyway
    return in_box(
        scenario,
        namespace=namespace,
        provider=provider,
        hidden=hidden,
        before_fork=before_fork,
        parent=parent,
    )
