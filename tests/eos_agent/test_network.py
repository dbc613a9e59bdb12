"""The network of isolated sessions: who has which address, who reaches whom, and what is left. Every packet
goes over a real bridge.
"""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from eos_agent.kernel import network
from eos_agent.wire.protocol import OperationError
from layerstack.kernel import syscalls
from tests import in_namespace

from .bare_zygote import Box, Live, in_box
from .bridge import ports_of, wait_until

both_namespaces = pytest.mark.parametrize(
    "namespace",
    [
        pytest.param("trusted", marks=pytest.mark.needs("root", "overlay")),
        pytest.param("user", marks=pytest.mark.needs("userns")),
    ],
)

PYTHON = ["/usr/bin/env", "python3", "-c"]
HELP = """
import os, socket, struct, sys

def own():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.244.0.1", 9))
        return probe.getsockname()[0]

def ping(address):
    "An echo request and its answer; what was sent before has arrived by then, since the path is one."
    def total(raw):
        words = sum(struct.unpack(f">{len(raw) // 2}H", raw))
        words = (words >> 16) + (words & 0xFFFF)
        return ~(words + (words >> 16)) & 0xFFFF
    head = struct.pack(">BBHHH", 8, 0, 0, os.getpid(), 1)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(20)
        raw.sendto(struct.pack(">BBHHH", 8, 0, total(head), os.getpid(), 1), (address, 0))
        while True:
            answer = raw.recv(1500)
            if answer[20] == 0 and struct.unpack_from(">H", answer, 24)[0] == os.getpid():
                return True
"""


async def serve(live: Live, name: str, port: int = 8000) -> None:
    """A server at every address of the session that says `name` to each caller, and what comes to its UDP
    port into a file.
    """
    script = f"""
import socket, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", {port}))
def note():
    while True:
        said = udp.recv(100)
        with open("udp.log", "ab", 0) as log:
            log.write(said + b"\\n")
threading.Thread(target=note, daemon=True).start()
server = socket.create_server(("0.0.0.0", {port}))
print("up", flush=True)
while True:
    server.accept()[0].sendall(b"{name}")
"""
    await (await live.start([*PYTHON, script])).saw("up")


async def python(live: Live, script: str) -> str:
    ended = await live.run([*PYTHON, HELP + script], split=True)
    assert ended.code == 0, ended.err
    return ended.out.strip()


@both_namespaces
def test_three_sessions_have_three_addresses_and_each_reaches_its_own_server_and_the_gateway_only(
    namespace: str,
) -> None:
    async def scenario(box: Box) -> tuple[list[str], list[str | None], list[bytes], list[str], list[str]]:
        lives = [await box.session(name, network="isolated") for name in ("red", "green", "blue")]
        for live in lives:
            await serve(live, live.name)
        seen = [await python(live, "print(own())") for live in lives]
        script = (
            "print(*(socket.create_connection((a, 8000), 20).recv(9).decode() for a in ('127.0.0.1', "
            "own())), ping('10.244.0.1'))"
        )
        own = [await python(live, script) for live in lives]
        others = f"""
for address in set({seen!r}) - {{own()}}:
    try:
        socket.create_connection((address, 8000), 0.7)
        print("reached")
    except OSError as error:
        print(type(error).__name__)
"""
        tried = " ".join(await asyncio.gather(*(python(live, others) for live in lives))).split()
        loop, heard = asyncio.get_running_loop(), list[bytes]()
        for live in lives:
            with socket.socket(fileno=await live.init.connect(8000)) as sock:
                heard.append(await loop.sock_recv(sock, 100))
        return seen, [live.init.address for live in lives], heard, own, tried

    seen, recorded, heard, own, tried = in_box(scenario, namespace=namespace)
    assert seen == recorded == ["10.244.0.2", "10.244.0.3", "10.244.0.4"]
    assert own == ["red red True", "green green True", "blue blue True"] and heard == [
        b"red",
        b"green",
        b"blue",
    ]
    assert len(tried) == 6 and "reached" not in tried, tried


@both_namespaces
def test_frames_made_by_hand_reach_no_other_session_directly_or_over_the_gateway(namespace: str) -> None:
    """With NET_RAW a session sends what it likes. The answer to its ping shows that the frames before it have
    arrived where they could.
    """

    async def scenario(box: Box) -> tuple[str, str]:
        red, blue = [await box.session(name, network="isolated") for name in ("red", "blue")]
        await serve(blue, "blue")
        mac = await python(blue, MAC)
        await python(
            red,
            f"""
def check(raw):
    words = sum(struct.unpack(f">{{len(raw) // 2}}H", raw))
    words = (words >> 16) + (words & 0xFFFF)
    return ~(words + (words >> 16)) & 0xFFFF
ping("10.244.0.1")
with open("/proc/net/arp") as table:
    gateway = next(line.split()[3] for line in table if line.startswith("10.244.0.1 "))
me = socket.inet_aton(own())
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as raw:
    raw.bind(("eth0", 0))
    mine = raw.getsockname()[4]
    for target in ({mac!r}, "ff:ff:ff:ff:ff:ff", gateway):
        payload = b"forged"
        udp = struct.pack(">HHHH", 9, 8000, 8 + len(payload), 0) + payload
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, me, socket.inet_aton({blue.init.address!r}))
        head = head[:10] + struct.pack(">H", check(head)) + head[12:]
        raw.send(bytes.fromhex(target.replace(":", "")) + mine + b"\\x08\\x00" + head + udp)
ping("10.244.0.1")
""",  # noqa: E501
        )
        await python(
            blue,
            """
ping("10.244.0.1")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(b"own", (own(), 8000))
""",
        )
        return await python(blue, LOG), mac

    log, mac = in_box(scenario, namespace=namespace)
    assert log == "own" and len(mac) == 17


LOG = """
import time
while not os.path.exists("udp.log") or "own" not in open("udp.log").read():
    time.sleep(0.01)
print(open("udp.log").read())
"""

MAC = """
import fcntl
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    raw = fcntl.ioctl(any_socket, 0x8927, struct.pack("256s", b"eth0"))
print(raw[18:24].hex(":"))
"""


@both_namespaces
def test_an_isolated_session_has_no_way_out_and_learns_it_at_once(namespace: str) -> None:
    async def scenario(box: Box) -> list[str]:
        listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "0.0.0.0", 0)
        port = listener.sockets[0].getsockname()[1]
        live = await box.session(network="isolated")
        tried = await python(
            live,
            f"""
for address in ("192.0.2.1", "127.0.0.1", "10.244.0.1"):
    try:
        socket.create_connection((address, {port}), 20)
        print("reached")
    except OSError as error:
        import errno
        print(errno.errorcode[error.errno])
""",
        )
        listener.close()
        return tried.split()

    assert in_box(scenario, namespace=namespace) == ["ENETUNREACH", "ECONNREFUSED", "ECONNREFUSED"]


@both_namespaces
def test_addresses_come_back_when_sessions_end_and_nothing_of_them_stays_in_the_bridge(
    namespace: str,
) -> None:
    async def scenario(box: Box) -> tuple[list[str | None], list[str], list[str]]:
        lives = [await box.session(network="isolated") for _ in range(3)]
        addresses = [live.init.address for live in lives]
        before = ports_of(box.zygote.pid)
        for live in lives:
            await live.init.terminate()
        again = [await box.session(network="isolated") for _ in range(2)]
        addresses += [live.init.address for live in again]
        return addresses, before, wait_until(box.zygote.pid, 2)

    addresses, before, left = in_box(scenario, namespace=namespace)
    assert addresses == [f"10.244.0.{n}" for n in (2, 3, 4, 5, 6)]
    assert before == ["eos-iws-1001", "eos-iws-1002", "eos-iws-1003"] and left == [
        "eos-iws-1004",
        "eos-iws-1005",
    ]


@pytest.mark.soak
@both_namespaces
def test_more_sessions_than_there_are_addresses_one_after_the_other_leave_no_descriptor_and_no_port(
    namespace: str,
) -> None:
    async def scenario(box: Box) -> tuple[set[str | None], int, int, list[str]]:
        def descriptors() -> int:
            return len(os.listdir(f"/proc/{box.zygote.pid}/fd"))

        await (await box.session(network="isolated")).init.terminate()
        before, addresses = descriptors(), set[str | None]()
        for _ in range(300):
            live = await box.session(network="isolated")
            addresses.add(live.init.address)
            await live.init.terminate()
        return addresses, before, descriptors(), wait_until(box.zygote.pid, 0)

    addresses, before, after, left = in_box(scenario, namespace=namespace)
    assert len(addresses) == 253 and left == []
    assert abs(after - before) <= 4, "two spares, each with two descriptors, come and go"


@both_namespaces
def test_when_all_addresses_are_in_use_the_next_session_is_refused_by_name_until_one_ends(
    namespace: str,
) -> None:
    def three(_top: str) -> None:
        network.HOSTS = range(2, 5)  # the zygote is forked from this process

    async def scenario(box: Box) -> tuple[str, dict[str, Any], str | None]:
        lives = [await box.session(network="isolated") for _ in range(3)]
        try:
            await box.session("more", network="isolated")
        except OperationError as error:
            await lives[1].init.terminate()
            return error.message, error.details, (await box.session(network="isolated")).init.address
        raise AssertionError("there was a fourth address")

    message, details, address = in_box(scenario, namespace=namespace, before_fork=three)
    assert "isolated_ip_pool_exhausted" in message and address == "10.244.0.3"
    assert (details["reason"], details["step"], details["errno"]) == (
        "setup_failed",
        "join the network",
        "EADDRNOTAVAIL",
    )


@pytest.mark.needs("userns")
@pytest.mark.parametrize("provider", ["local", "docker"])
def test_where_the_kernel_gives_no_bridge_there_is_a_loopback_locally_and_a_refusal_in_docker(
    provider: str,
) -> None:
    def one_namespace(_top: str) -> None:
        with open(
            "/proc/sys/user/max_net_namespaces", "w"
        ) as limit:  # of this user namespace: the session's, and none for the bridge
            limit.write("1")

    async def scenario(box: Box) -> tuple[Any, Any]:
        try:
            live = await box.session(network="isolated")
        except OperationError as error:
            return error.message, error.details
        await serve(live, "alone")
        with socket.socket(fileno=await live.init.connect(8000)) as sock:
            return live.init.address, await asyncio.get_running_loop().sock_recv(sock, 100)

    found = in_box(scenario, namespace="user", provider=provider, before_fork=one_namespace)
    if provider == "local":
        assert found == (None, b"alone")
    else:
        message, details = found
        assert "manager.docker.net_admin" in message
        assert (details["step"], details["errno"]) == ("join the network", "ENOSPC")


INTERFACES = """
import glob, os
named = sorted(line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line)
links = {name: os.path.realpath(f"/sys/class/net/{name}") for name in os.listdir("/sys/class/net")}
found = [path for top in ("/sys/devices/*", "/sys/devices/*/*", "/sys/devices/*/*/*") for path in glob.glob(top + "/net/*")]
firmware = os.listdir("/sys/firmware") if os.path.isdir("/sys/firmware") else []
groups = sorted(os.listdir("/sys/fs/cgroup")) if os.path.isdir("/sys/fs/cgroup") else []
try:
    os.close(os.open("/sys/class/net/lo/mtu", os.O_WRONLY))
    writable = True
except OSError:
    writable = False
print(repr((named, sorted(links), sorted({os.path.basename(path) for path in (*found, *links.values())}), firmware, groups, writable)))
"""  # noqa: E501


@both_namespaces
@pytest.mark.parametrize("provider", ["local", "docker"])
def test_an_isolated_session_sees_no_interface_but_its_own_in_sys_and_the_rest_of_it_as_any_session_does(
    namespace: str, provider: str
) -> None:
    async def scenario(box: Box) -> tuple[Any, Any]:
        own, shared = await box.session(network="isolated"), await box.session()
        return ast.literal_eval(await python(own, INTERFACES)), ast.literal_eval(
            await python(shared, INTERFACES)
        )

    (named, links, found, firmware, groups, writable), theirs = in_box(
        scenario, namespace=namespace, provider=provider
    )
    assert "lo" in named and "eth0" in named and links == found == named
    assert (firmware, groups, writable) == ([], theirs[4], False)


@pytest.mark.needs("userns")
@pytest.mark.skipif(not os.path.isdir("/sys/firmware"), reason="nothing is there to be masked for good")
def test_where_the_kernel_gives_no_sysfs_an_isolated_session_sees_no_interface_in_sys() -> None:
    def masked_for_good(_top: str) -> None:
        syscalls.mount("tmpfs", "/sys/firmware", "tmpfs", 0, "size=4k")
        # what was mounted before cannot be taken away in it, user_namespaces(7)
        in_namespace.enter_user_namespace()

    async def scenario(box: Box) -> Any:
        return ast.literal_eval(await python(await box.session(network="isolated"), INTERFACES))

    named, links, found, firmware, _, writable = in_box(
        scenario, namespace="user", before_fork=masked_for_good
    )
    assert "lo" in named and (links, found, firmware, writable) == ([], [], [], False)


PLUG_AN_ENDED_INIT = """
import os
from eos_agent.kernel.network import IsolatedNetwork
read_fd, wire_fd = os.pipe()
os.close(read_fd)
ended = os.spawnlp(os.P_NOWAIT, "true", "true")
os.waitpid(ended, 0)
IsolatedNetwork(required=True).plug(ended, wire_fd)
try:
    os.fstat(wire_fd)
except OSError:
    print("closed")
"""


def test_the_zygote_survives_an_init_that_ends_before_it_has_its_address() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLUG_AN_ENDED_INIT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"closed\n", done.stderr
