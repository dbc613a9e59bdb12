"""Guards outside of sessions: who may speak to an agent, what neighbours on an engine can reach, the limits
of one session, and exports.

A row has a name, the allowed results, and the providers for which it is tried; `findings` tries all rows of a
provider on two of its sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eos_agent.wire import proof, protocol
from eos_mcp.record.registry import SandboxRecord
from tests.end_to_end.manager_fixture import Host
from tests.eos_mcp.export_runs import shape
from tests.eos_mcp.forged_journals import forge, victim_in

PROVIDERS = {"docker": "Docker", "local": "local"}
BOTH = tuple(PROVIDERS)


class Guard(NamedTuple):
    """`expected`: the allowed results. `group`: the heading."""

    group: str
    expected: frozenset[str]
    why: str = ""
    providers: tuple[str, ...] = BOTH


PEERS = "Who speaks to an agent"
APART = "Sandboxes on one engine"
SHARE = "What one session may have"
EXPORT = "Exports"
SAID = {
    PEERS: (
        "At the agent's own ports, which every user of the machine can connect to ([ADR "
        "0039](adr/0039-who-speaks-is-proved.md)). Words are reasons, numbers the status of HTTP."
    ),
    APART: (
        "From a session of one container to a session of another ([ADR "
        "0059](adr/0059-what-neighbours-send-is-dropped.md)); each way in which a packet can be sent "
        "without a power over the network."
    ),
    SHARE: (
        "Of what all share ([ADR 0041](adr/0041-the-agent-has-memory-of-its-own.md)); in a session, "
        "beside which another one runs a command afterwards."
    ),
    EXPORT: "What is refused before anything is written, and what is left out ([ADR "
    "0036](adr/0036-a-voucher-for-each-staging.md), "
    "[0037](adr/0037-what-an-export-leaves-to-the-person.md), [0044](adr/0044-a-server-has-roots.md)).",
}


def _row(group: str, *expected: str, why: str = "", providers: tuple[str, ...] = BOTH) -> Guard:
    return Guard(group, frozenset(expected), why, providers)


CONTAINERS = ("docker",)
ROWS: dict[str, Guard] = {
    "a request without token or proof": _row(PEERS, "unauthorized"),
    "a proof of another secret": _row(PEERS, "bad_proof"),
    "the agent's own proof, sent back": _row(PEERS, "bad_proof"),
    "a proof of another connection": _row(PEERS, "bad_proof"),
    "a hello for another sandbox": _row(PEERS, "bad_proof"),
    "a right proof": _row(PEERS, "works"),
    "files by HTTP without a token": _row(PEERS, "401"),
    "a server by HTTP without a token": _row(PEERS, "401"),
    "a ticket for another port": _row(PEERS, "401"),
    "a ticket of another sandbox": _row(PEERS, "401"),
    "a ticket that is over": _row(PEERS, "401"),
    "a cookie of another sandbox": _row(PEERS, "401"),
    "a request of a page of another origin": _row(PEERS, "403"),
    "a Host that is a name": _row(PEERS, "403"),
    "a right ticket": _row(PEERS, "303"),
    "TCP to a port of another sandbox": _row(APART, "OSError", providers=CONTAINERS),
    "TCP, bound to the interface at both ends": _row(APART, "OSError", "TimeoutError", providers=CONTAINERS),
    "a datagram": _row(APART, "not heard", providers=CONTAINERS),
    "a datagram that is bound to the interface": _row(APART, "not heard", providers=CONTAINERS),
    "a broadcast": _row(APART, "not heard", providers=CONTAINERS),
    "a multicast": _row(APART, "not heard", providers=CONTAINERS),
    "more open files than a process may have": _row(SHARE, "EMFILE"),
    "more terminals than a session may have": _row(SHARE, "ENOSPC"),
    "more instances of inotify": _row(SHARE, "EMFILE"),
    "descriptors left in sockets": _row(SHARE, "ETOOMANYREFS"),
    "more processes than a session may have": _row(SHARE, "EAGAIN"),
    "more memory than a session may have": _row(SHARE, "killed"),
    "a lower oom score of its own": _row(SHARE, "EACCES"),
    "an oom score above that of its pid 1": _row(
        SHARE,
        "works",
        why="what a command takes costs a command first, then its session, and the agent last of all",
    ),
    "another session runs a command afterwards": _row(SHARE, "works"),
    "a file that the person changed": _row(EXPORT, "export_conflict"),
    "a git hook": _row(
        EXPORT,
        "left out",
        why="a repository keeps its own `.git`; `--with-git` wants `--allow-unsafe` for it",
    ),
    "a git hook, with the .git": _row(EXPORT, "unsafe_content"),
    "a name that exports use themselves": _row(EXPORT, "reserved_names"),
    "a setuid bit": _row(EXPORT, "left out"),
    "the journal of an export that this gateway did not begin": _row(EXPORT, "not followed"),
    "a destination outside a server's roots": _row(EXPORT, "outside_roots"),
    "~/.ssh as destination": _row(EXPORT, "sensitive_place"),
    "a new directory": _row(EXPORT, "works"),
}


def rows_of(provider: str) -> dict[str, Guard]:
    return {name: row for name, row in ROWS.items() if provider in row.providers}


def wrong(provider: str, found: dict[str, str]) -> dict[str, str]:
    """Return the rows whose result differs from the table, or is missing."""
    said = {name: found.get(name, "not tried") for name in rows_of(provider)}
    return {name: text for name, text in said.items() if text not in ROWS[name].expected}


async def findings(host: Host, provider: str, image: str, workspace: str) -> dict[str, str]:
    """Try all rows of a provider; takes a few seconds."""
    made = [await host.do("create_sandbox", image=image, workspace_root=workspace) for _ in range(2)]
    one, other = (str(each["id"]) for each in made)
    try:
        found = await _peers(host, one, other)
        if provider == "docker":
            found |= await _apart(host, one, other)
        found |= await _share(host, one)
        return found | await _exports(host, one, os.path.dirname(workspace))
    finally:
        for each in (one, other):
            await host.do("destroy_sandbox", sandbox_id=each)


# Who speaks to an agent


class _Line:
    """One connection to the agent's line port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, *values: Any) -> dict[str, Any]:
        self.writer.write(
            b"".join(value if isinstance(value, bytes) else protocol.encode(value) for value in values)
        )
        async with asyncio.timeout(60):
            return dict(json.loads(await self.reader.readline()))


def _reason(reply: dict[str, Any]) -> str:
    return str(reply["error"]["details"]["reason"]) if "error" in reply else "works"


async def _peers(host: Host, one: str, other: str) -> dict[str, str]:
    record, second = host.manager.registry.get(one), host.manager.registry.get(other)
    await host.manager.target(one, refresh=True)
    assert record.daemon is not None
    found: dict[str, str] = {}
    request = protocol.encode_request("list_drafts", {}, request_id="r", sandbox_id=one)
    opened: list[_Line] = []

    async def line() -> _Line:
        assert record.daemon is not None
        opened.append(_Line(*await asyncio.open_connection(record.daemon.host, record.daemon.port)))
        return opened[-1]

    async def tried(
        name: str, shown: Callable[[str, dict[str, Any]], Awaitable[Any]], *, sandbox: str = one
    ) -> None:
        here, nonce = await line(), proof.new_nonce()
        met = await here.ask(proof.hello(sandbox, nonce))
        found[name] = (
            _reason(met) if "error" in met else _reason(await here.ask(await shown(nonce, met), request))
        )

    async def right(nonce: str, met: dict[str, Any]) -> Any:
        return proof.check(record.token, one, nonce, met)

    async def of_another_secret(_nonce: str, _met: dict[str, Any]) -> Any:
        return {proof.PROOF_KEY: proof.new_nonce()}

    async def sent_back(_nonce: str, met: dict[str, Any]) -> Any:
        return {proof.PROOF_KEY: met[proof.PROVE_KEY]["proof"]}

    async def of_another_connection(nonce: str, _met: dict[str, Any]) -> Any:
        return proof.check(record.token, one, nonce, await (await line()).ask(proof.hello(one, nonce)))

    try:
        found["a request without token or proof"] = _reason(await (await line()).ask(request))
        await tried("a proof of another secret", of_another_secret)
        await tried("the agent's own proof, sent back", sent_back)
        await tried("a proof of another connection", of_another_connection)
        await tried("a hello for another sandbox", right, sandbox=other)
        await tried("a right proof", right)
    finally:
        for each in opened:
            each.writer.close()
    return found | await asyncio.to_thread(lambda: dict(_by_http(record, second)))


def _by_http(record: SandboxRecord, second: SandboxRecord) -> Iterator[tuple[str, str]]:
    assert record.daemon_http is not None and second.daemon_http is not None
    prefix, until = "/forward/shared/8000", int(time.time()) + proof.TICKET_S

    def ask(of: SandboxRecord, path: str, method: str = "GET", **fields: str) -> http.client.HTTPResponse:
        assert of.daemon_http is not None
        connection = http.client.HTTPConnection(of.daemon_http.host, of.daemon_http.port, timeout=60)
        connection.request(
            method,
            path,
            body=b"{}" if method == "POST" else None,
            headers={n.replace("_", "-"): v for n, v in fields.items()},
        )
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    def redeemed(
        token: str, sandbox: str, of_prefix: str, end: int, at: SandboxRecord = record
    ) -> http.client.HTTPResponse:
        return ask(at, f"{prefix}/?{proof.TICKET_KEY}={proof.ticket(token, sandbox, of_prefix, end)}")

    yield "files by HTTP without a token", str(ask(record, "/files/list", "POST").status)
    yield "a server by HTTP without a token", str(ask(record, f"{prefix}/").status)
    yield (
        "a ticket for another port",
        str(redeemed(record.token, record.id, "/forward/shared/8001", until).status),
    )
    yield "a ticket of another sandbox", str(redeemed(second.token, second.id, prefix, until).status)
    yield (
        "a ticket that is over",
        str(redeemed(record.token, record.id, prefix, until - 2 * proof.TICKET_S).status),
    )
    theirs = redeemed(second.token, second.id, prefix, until, second).getheader("Set-Cookie") or ""
    yield (
        "a cookie of another sandbox",
        str(ask(record, f"{prefix}/", Cookie=theirs.partition(";")[0]).status),
    )
    own = redeemed(record.token, record.id, prefix, until)
    cookie = (own.getheader("Set-Cookie") or "").partition(";")[0]
    yield (
        "a request of a page of another origin",
        str(ask(record, f"{prefix}/", "POST", Cookie=cookie, Origin="http://page.example").status),
    )
    yield (
        "a Host that is a name",
        str(ask(record, f"{prefix}/", Host="page.example", X_Eos_Token=record.token).status),
    )
    yield "a right ticket", str(own.status)


# Sandboxes on one engine

LISTEN = """
import select, socket, sys
servers = []
for port, bound in ((8001, False), (8002, True)):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if bound: server.setsockopt(socket.SOL_SOCKET, 25, b"eth0\\0")
    server.bind(("", port)); server.listen(); servers.append(server)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 8003))
udp.setsockopt(0, 35, socket.inet_aton("239.7.7.7") + socket.inet_aton(sys.argv[1]))
print("up", flush=True)
while True:
    said = udp.recv(100)
    print(said.decode(), flush=True)
"""
SEND = """
import json, socket, sys
own, to = sys.argv[1:]
def connect(port, bound):
    try:
        with socket.socket() as sock:
            sock.settimeout(2)
            if bound: sock.setsockopt(socket.SOL_SOCKET, 25, b"eth0\\0")
            sock.connect((to, port))
    except TimeoutError: return "TimeoutError"
    except OSError: return "OSError"
    return "connected"
def send(name, to, bound=False):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setsockopt(0, 32, socket.inet_aton(own))
        if bound: sock.setsockopt(socket.SOL_SOCKET, 25, b"eth0\\0")
        try: sock.sendto(name.encode(), (to, 8003))
        except OSError: pass
print(json.dumps({"TCP to a port of another sandbox": connect(8001, False), "TCP, bound to the interface at both ends": connect(8002, True)}))
for _ in range(3):
    send("a datagram", to)
    send("a datagram that is bound to the interface", to, True)
    send("a broadcast", to.rpartition(".")[0].rpartition(".")[0] + ".255.255")
    send("a multicast", "239.7.7.7")
"""  # noqa: E501
ADDRESS = "hostname -i | cut -d' ' -f1"


async def _script(host: Host, sandbox: str, name: str, text: str) -> str:
    session = str((await host.ask(sandbox, "create_workspace_session"))["workspace_session_id"])
    await host.ask(sandbox, "file_write", path=name, content=text, workspace_session_id=session)
    return session


async def _apart(host: Host, one: str, other: str) -> dict[str, str]:
    listening, sending = (
        await _script(host, other, "listen.py", LISTEN),
        await _script(host, one, "send.py", SEND),
    )
    own, to = [(await host.run(each, ADDRESS, tty=False)).strip() for each in (one, other)]
    running = await host.ask(
        other,
        "exec_command",
        cmd=f"exec python3 listen.py {to}",
        workspace_session_id=listening,
        tty=False,
        yield_time_ms=0,
    )
    key = running["command_session_id"]

    async def heard() -> list[str]:
        return str(
            (await host.ask(other, "read_command_lines", command_session_id=key))["output"]
        ).splitlines()

    while "up" not in await heard():
        pass
    said = json.loads(
        await host.run(one, f"python3 send.py {own} {to}", workspace_session_id=sending, tty=False)
    )
    await host.run(
        other,
        f"python3 -c \"import socket; socket.socket(2, 2).sendto(b'end', ('{to}', 8003))\"",
        workspace_session_id=listening,
        tty=False,
    )
    async with asyncio.timeout(60):
        while "end" not in (lines := await heard()):
            pass
    names = [name for name, row in ROWS.items() if "not heard" in row.expected]
    return {**said, **{name: "heard" if name in lines else "not heard" for name in names}}


# What one session may have

HOG = """
import array, ctypes, errno, json, os, resource, signal, socket, subprocess, sys
found = {}
def tried(name, act):
    pid = os.fork()
    readable, writable = os.pipe()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    pid = os.fork()
    if pid == 0:
        try:
            act()
            said = "works"
        except OSError as error: said = errno.errorcode[error.errno]
        os.write(writable, said.encode())
        os._exit(0)
    os.close(writable)
    said = os.read(readable, 100).decode()
    os.close(readable)
    _, status = os.waitpid(pid, 0)
    found[name] = said or ("killed" if os.WIFSIGNALED(status) else "ended")
held = []
def files():
    while True: held.append(os.open("/dev/null", 0))
def terminals():
    while True: held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
def inotify():
    libc = ctypes.CDLL(None, use_errno=True)
    while libc.inotify_init1(0) >= 0: pass
    raise OSError(ctypes.get_errno(), "")
def sockets():
    while True:
        one, other = socket.socketpair()
        one.setblocking(False)
        held.extend([one, other])
        try:
            while True: one.sendmsg([b"x"], [(1, 1, array.array("i", [0] * 50))])
        except BlockingIOError: pass
def processes():
    pids = []
    try:
        while True:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            pids.append(pid)
    finally:
        for pid in pids: os.kill(pid, 9)
        for pid in pids: os.waitpid(pid, 0)
def memory():
    while True: held.append(bytearray(1 << 20))
def score():
    with open("/proc/self/oom_score_adj", "w") as file: file.write("-1000")
def above():
    if int(open("/proc/self/oom_score_adj").read()) <= int(open("/proc/1/oom_score_adj").read()): raise OSError(errno.EPERM, "")
tried("more open files than a process may have", files)
tried("more terminals than a session may have", terminals)
tried("more instances of inotify", inotify)
tried("descriptors left in sockets", sockets)
tried("more processes than a session may have", processes)
tried("a lower oom score of its own", score)
tried("an oom score above that of its pid 1", above)
tried("more memory than a session may have", memory)
print(json.dumps(found))
"""  # noqa: E501


async def _share(host: Host, one: str) -> dict[str, str]:
    beside = str((await host.ask(one, "create_workspace_session"))["workspace_session_id"])
    session = await _script(host, one, "hog.py", HOG)
    found: dict[str, str] = json.loads(
        await host.run(one, "python3 hog.py", workspace_session_id=session, tty=False)
    )
    said = await host.run(one, "echo here", workspace_session_id=beside, tty=False)
    return {**found, "another session runs a command afterwards": "works" if said == "here" else said}


# Exports

MAKE = (
    "mkdir -p .git/hooks d && printf '#!/bin/sh\\n' > .git/hooks/pre-commit && chmod 755 "
    ".git/hooks/pre-commit && echo ours > a.txt && cp /bin/true d/set && chmod 4755 d/set"
)


async def _exports(host: Host, one: str, folder: str) -> dict[str, str]:
    assert (await host.ask(one, "exec_command", cmd=MAKE, tty=False, yield_time_ms=30_000)).get(
        "status"
    ) == "ok"
    found: dict[str, str] = {}

    async def refused(name: str, **args: Any) -> None:
        error = await host.refused("export_changes", sandbox_id=one, **args)
        found[name] = str(error.details["reason"])

    def place(name: str, **files: str) -> str:
        dest = os.path.join(folder, name)
        os.makedirs(f"{dest}/.git")
        for file, text in {"a.txt": "", **files}.items():
            with open(f"{dest}/{file}", "w") as out:
                out.write(text)
        return dest

    await refused("a file that the person changed", dest=place("changed", **{"a.txt": "the person's own"}))
    await refused(
        "a destination outside a server's roots",
        dest=f"{folder}/elsewhere",
        allowed_roots=[f"{folder}/roots"],
    )
    await refused("~/.ssh as destination", dest=os.path.expanduser("~/.ssh/x"))
    kept = place("repository")
    os.unlink(f"{kept}/a.txt")
    await refused("a git hook, with the .git", dest=kept, with_git=True, on_conflict="overwrite")
    victim = victim_in(Path(folder))
    forge(Path(kept), "../victim")
    before = shape(victim)
    await host.do("export_changes", sandbox_id=one, dest=kept, on_conflict="overwrite")
    found["a git hook"] = "left out" if os.listdir(f"{kept}/.git") == [] else "written"
    found["a setuid bit"] = "left out" if not os.stat(f"{kept}/d/set").st_mode & stat.S_ISUID else "written"
    found["the journal of an export that this gateway did not begin"] = (
        "not followed" if shape(victim) == before else "followed"
    )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}/new/a.txt")
    await host.do("export_changes", sandbox_id=one, dest=f"{folder}/new", skip_unsafe=True)
    found["a new directory"] = "works" if os.path.exists(f"{folder}/new/a.txt") else "nothing"
    cmd = "mkdir -p x/.eos-export-1 && echo 1 > x/.eos-export-1/plan"
    assert (await host.ask(one, "exec_command", cmd=cmd, tty=False, yield_time_ms=30_000)).get(
        "status"
    ) == "ok"
    await refused("a name that exports use themselves", dest=f"{folder}/other")
    return found
