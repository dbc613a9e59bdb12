"""Sessions come and go: made whole or not at all, and gone with whoever held them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from typing import Any

import pytest

from eos_agent.handles.init_handle import InitHandle
from eos_agent.wire.protocol import OperationError
from eos_agent.zygote.specs import SessionSpec
from tests import in_namespace
from tests.conftest import drop_dir
from tests.native import both as both

from .bare_zygote import Box, in_box

NATIVE = pytest.mark.needs("cc")
AS_ROOT = pytest.mark.needs("root", "overlay")
IN_USERNS = pytest.mark.needs("userns")
both_namespaces = pytest.mark.parametrize(
    ("init", "namespace"),
    [
        pytest.param("native", "trusted", marks=[NATIVE, AS_ROOT]),
        pytest.param("native", "user", marks=[NATIVE, IN_USERNS]),
        pytest.param("python", "trusted", marks=AS_ROOT),
        # root's gate has each of the two in one of the others
        pytest.param("python", "user", marks=[IN_USERNS, *([] if os.geteuid() else [pytest.mark.soak])]),
    ],
    indirect=["init"],
)
as_root = AS_ROOT


@as_root
def test_an_idle_session_keeps_little_memory_for_itself_also_after_commands(init: str) -> None:
    async def scenario(box: Box) -> tuple[int, int]:
        live = await box.session()
        idle = own_kilobytes(live.init.pid)
        for _ in range(20):
            await live.run("echo something")
        return idle, own_kilobytes(live.init.pid)

    most = 400 if init == "native" else 4096
    assert max(in_box(scenario)) <= most


def own_kilobytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(
            int(line.split()[1]) for line in file if line.startswith(("Private_Clean:", "Private_Dirty:"))
        )


@both_namespaces
def test_a_session_shows_the_base_keeps_writes_in_its_upperdir_and_frees_it_when_it_ends(
    namespace: str,
) -> None:
    async def scenario(box: Box) -> tuple[str, str, bool, bool, str]:
        live = await box.session("one")
        done = await live.run("cat hello; echo new > made; rm pkg/m.py; pwd")
        during = box.in_use("one")
        await live.init.terminate()
        with open(f"{box.folders('one')[0]}/made") as f:
            made = f.read()
        return done.out, made, during, box.in_use("one"), await live.init.gone

    out, made, during, after, reason = in_box(scenario, namespace=namespace)
    assert out.startswith("hello\n/") and made == "new\n"
    assert during and not after and reason == "killed by SIGKILL"


@both_namespaces
def test_an_upperdir_is_free_at_the_moment_that_gone_resolves(namespace: str) -> None:
    async def scenario(box: Box) -> list[bool]:
        found: list[bool] = []
        for _ in range(15):
            live = await box.session("again")
            await live.start("while :; do echo x >> file; done")
            await live.init.terminate()
            found.append(box.in_use("again"))
        return found

    assert in_box(scenario, namespace=namespace) == [False] * 15


@both_namespaces
def test_a_refused_mount_names_the_step_and_leaves_nothing(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[str, dict[str, Any], str]:
        fd = os.open("/proc/self/status", os.O_RDONLY)
        try:
            await box.zygote.create(SessionSpec("bad"), fd, timeout_s=20)
        except OperationError as error:
            live = await box.session()  # and the zygote still works
            return error.kind, error.details, (await live.run("echo fine")).out
        finally:
            os.close(fd)
        raise AssertionError("made a session on a file that is no mount")

    kind, details, out = in_box(scenario, namespace=namespace)
    assert kind == "operation_failed" and details["reason"] == "setup_failed"
    assert (
        details["step"] == "mount the workspace"
        and details["errno"] == "EINVAL"
        and details["workspace_session_id"] == "bad"
    )
    assert out == "fine\n"


@as_root
def test_a_session_that_is_not_ready_in_time_is_killed_and_its_upperdir_is_free() -> None:
    async def scenario(box: Box) -> tuple[str, bool]:
        fd = box.mount("late")
        os.kill(box.zygote.pid, signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        loop.call_later(0.3, os.kill, box.zygote.pid, signal.SIGCONT)
        try:
            await box.zygote.create(SessionSpec("late"), fd, timeout_s=0.05)
        except OperationError as error:
            os.close(fd)
            return error.details["reason"] + ":" + error.details["step"], box.in_use("late")
        raise AssertionError("ready although the zygote was stopped")

    assert in_box(scenario) == ("setup_failed:start", False)


@as_root
def test_a_creation_that_is_cancelled_leaves_no_session() -> None:
    async def scenario(box: Box) -> list[bool]:
        used: list[bool] = []
        for turns in range(12):  # cancelled earlier and later
            fd = box.mount("cancelled")
            task = asyncio.ensure_future(box.zygote.create(SessionSpec("cancelled"), fd, timeout_s=20))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            os.close(fd)
            if isinstance(result, InitHandle):  # it was faster
                await result.terminate()
            else:
                assert isinstance(result, asyncio.CancelledError)
            used.append(box.in_use("cancelled"))
        return used

    assert in_box(scenario) == [False] * 12


async def spare_of(box: Box, *but: int) -> int:
    """The zygote's child that waits for its order, once it is there."""
    async with asyncio.timeout(30):
        while True:
            with open(f"/proc/{box.zygote.pid}/task/{box.zygote.pid}/children") as file:
                found = {int(pid) for pid in file.read().split()} - set(but)
            if found:
                return found.pop()
            await asyncio.sleep(0)


LOOK = (
    "cut -d' ' -f4- /proc/self/mountinfo | sed 's/ s[0-9]*-eos / /; s/upperdir=[^,]*//; "
    "s/workdir=[^,]*//' | sort; grep -E '^(Cap|NoNew|Secc)' /proc/self/status; ls -l /proc/self/fd | wc "
    "-l; trap; umask"
)


@both_namespaces
def test_a_session_from_the_spare_is_like_one_that_was_cloned_when_it_was_asked_for(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[bool, str, str]:
        spare = await spare_of(box)
        warm = await box.session("warm")
        again = await spare_of(box, warm.init.pid)
        pidfd = os.pidfd_open(again)
        os.kill(again, signal.SIGKILL)
        assert select.select([pidfd], [], [], 30)[0]
        os.close(pidfd)
        cold = await box.session("cold")
        return (
            warm.init.pid == spare and cold.init.pid != again,
            (await warm.run(LOOK)).out,
            (await cold.run(LOOK)).out,
        )

    as_meant, warm, cold = in_box(scenario, namespace=namespace)
    assert as_meant and "overlay" in warm and "NoNewPrivs:\t1" in warm and "Seccomp:\t2" in warm
    assert warm == cold


@both_namespaces
def test_after_an_isolated_session_the_next_one_comes_from_a_spare_with_a_network_of_its_own(
    namespace: str,
) -> None:
    look = LOOK + "; cut -d: -f1 /proc/net/dev; ls /sys/class/net"

    async def scenario(box: Box) -> tuple[bool, list[str], set[str | None]]:
        shared = await spare_of(box)
        cold = await box.session("cold", network="isolated")
        spare = await spare_of(box, shared, cold.init.pid)
        warm = await box.session("warm", network="isolated")
        again = await spare_of(box, shared, cold.init.pid, warm.init.pid)
        ordinary = await box.session("ordinary")
        as_meant = warm.init.pid == spare and ordinary.init.pid == shared and again != spare
        seen = [(await live.run(look)).out for live in (cold, warm)]
        networks = {(await live.run("readlink /proc/self/ns/net")).out for live in (cold, warm, ordinary)}
        assert (cold.init.address is None) == (warm.init.address is None) and len(networks) == 3
        return as_meant, seen, {cold.init.address, warm.init.address}

    as_meant, (cold, warm), addresses = in_box(scenario, namespace=namespace)
    assert as_meant and cold == warm and "overlay" in cold
    assert len(addresses) == 2 or addresses == {None}


@as_root
def test_the_spare_dies_with_the_zygote() -> None:
    async def scenario(box: Box) -> bool:
        pidfd = os.pidfd_open(await spare_of(box))
        os.kill(box.zygote.pid, signal.SIGKILL)
        return bool(select.select([pidfd], [], [], 30)[0])

    assert in_box(scenario)


@both_namespaces
def test_fifty_sessions_at_once_are_separate_worlds(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[set[str], set[str]]:
        lives = await asyncio.gather(*(box.session() for _ in range(50)))
        done = await asyncio.gather(
            *(
                live.run(f"echo {n} > mine; cat mine; ls /proc | grep -c '^[0-9]'")
                for n, live in enumerate(lives)
            )
        )
        pids = {f"{live.init.pid}" for live in lives}
        return {d.out.split("\n")[0] for d in done}, pids

    seen, pids = in_box(scenario, namespace=namespace)
    assert seen == {str(n) for n in range(50)} and len(pids) == 50


@as_root
def test_a_killed_runner_is_reported_and_calls_that_wait_for_it_fail_as_session_lost() -> None:
    async def scenario(box: Box) -> tuple[str, list[str], bool]:
        live = await box.session("lost")
        await live.start("exec sleep 1000")
        asyncio.get_running_loop().call_soon(os.kill, live.init.pid, signal.SIGKILL)
        reason = await live.init.gone
        failures: list[str] = []
        for call in (live.init.which_shell(), live.init.file_op("read", {"path": "hello"})):
            try:
                await call
            except OperationError as error:
                failures.append(error.details["reason"])
        return reason, failures, box.in_use("lost")

    assert in_box(scenario) == ("killed by SIGKILL", ["session_lost", "session_lost"], False)


@both_namespaces
def test_when_the_zygote_is_killed_every_session_goes_and_the_agent_hears_of_it(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[str, list[str], list[bool], str]:
        lives = [await box.session(f"z{n}") for n in range(3)]
        for live in lives:
            await live.start("setsid sleep 1000 & exec sleep 1000")
        os.kill(box.zygote.pid, signal.SIGKILL)
        reasons = [await live.init.gone for live in lives]
        lost = await box.zygote.lost
        used = [box.in_use(live.name) for live in lives]
        try:
            await box.zygote.create(SessionSpec("more"), 0, timeout_s=5)
        except OperationError as error:
            return lost, reasons, used, error.details["reason"]
        raise AssertionError("made a session without a zygote")

    lost, reasons, used, reason = in_box(scenario, namespace=namespace)
    assert (
        "ended" in lost
        and reasons == ["was lost with the zygote"] * 3
        and used == [False] * 3
        and reason == "setup_failed"
    )


@both_namespaces
def test_when_the_agent_is_killed_nothing_of_its_sessions_lives_on(namespace: str) -> None:
    readable, writable = os.pipe()

    async def scenario(box: Box) -> None:
        live = await box.session()
        await live.start("setsid sleep 1000 & exec sleep 1000")
        os.write(writable, f"{box.top} {box.zygote.pid} {live.init.pid}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(in_namespace.ChildDied):
        in_box(scenario, namespace=namespace)
    os.close(writable)
    top, *pids = os.read(readable, 200).decode().split()
    os.close(readable)
    for pid in pids:
        try:
            pidfd = os.pidfd_open(int(pid))
        except ProcessLookupError:
            continue
        assert select.select([pidfd], [], [], 20)[0], f"process {pid} outlived its agent"
        os.close(pidfd)
    drop_dir(top)


@both_namespaces
def test_servers_of_isolated_sessions_use_the_same_port_and_the_agent_reaches_each(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[list[bytes], str]:
        answers: list[bytes] = []
        loop = asyncio.get_running_loop()
        for name in ("red", "blue"):
            live = await box.session(name, network="isolated")
            script = (
                f"import socket; s = socket.create_server(('127.0.0.1', 8000)); print('up', "
                f"flush=True); s.accept()[0].sendall(b'{name}')"
            )
            server = await live.start(["/usr/bin/env", "python3", "-c", script])
            await server.saw("up")
            with socket.socket(fileno=await live.init.connect(8000)) as sock:
                answers.append(await loop.sock_recv(sock, 100))
            await server.ended()
        try:
            await live.init.connect(8001)
        except OperationError as error:
            return answers, error.details["reason"] + " " + error.details["errno"]
        raise AssertionError("connected to nobody")

    answers, refused = in_box(scenario, namespace=namespace)
    assert answers == [b"red", b"blue"] and refused.startswith("connect_failed")


@as_root
def test_an_isolated_session_has_its_own_loopback_and_reaches_no_server_of_the_host() -> None:
    async def scenario(box: Box) -> tuple[str, str]:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        live = await box.session(network="isolated")
        address = await live.run("cat /proc/net/dev | grep -c :; cat /proc/net/fib_trie | grep -c 127.0.0.1")
        refused = await live.run(["/bin/bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"])
        server.close()
        return address.out, refused.out

    address, refused = in_box(scenario)
    interfaces, routes = address.split()
    assert int(interfaces) >= 1 and int(routes) > 0 and "refused" in refused
