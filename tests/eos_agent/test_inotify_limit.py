"""The agent's end of the filter that limits inotify instances, with a real filter in a process of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

from eos_agent.kernel.inotify_limit import InotifyLimit

FILTERED = """
import ctypes, os, socket, sys
from eos_agent.kernel import inotify_limit
there = socket.socket(fileno=int(sys.argv[1]))
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
listener = inotify_limit.install()
if listener is None:
    sys.exit("no filter")
socket.send_fds(there, [b"f"], [listener])
os.close(listener)
there.recv(1)
libc = ctypes.CDLL(None)
there.send(b"1" if libc.inotify_init1(0) >= 0 else b"0")
there.recv(1)
"""


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_the_listener_of_ended_processes_is_closed_and_costs_no_more() -> None:
    async def scenario() -> tuple[bytes, bool, bool]:
        here, there = socket.socketpair()
        with here, there:
            child = subprocess.Popen(
                [sys.executable, "-c", FILTERED, str(there.fileno())], pass_fds=[there.fileno()]
            )
            try:
                loop = asyncio.get_running_loop()
                _, (listener,), _, _ = await asyncio.to_thread(socket.recv_fds, here, 1, 1)
                InotifyLimit(listener, 4, list)
                here.send(b"g")
                granted = await asyncio.to_thread(here.recv, 1)
                open_while_alive = _is_open(listener)
                here.send(b"e")
                assert await asyncio.to_thread(child.wait, 60) == 0
                until = loop.time() + 20
                while _is_open(listener) and loop.time() < until:
                    await asyncio.sleep(0)
                return granted, open_while_alive, _is_open(listener)
            finally:
                child.kill()
                child.wait(60)

    assert asyncio.run(scenario()) == (b"1", True, False)
