"""A write to a command's input that waits for room while the command ends."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import struct
import termios
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eos_agent.sessions.command import Command
from eos_agent.wire.protocol import OperationError
from tests.native import both as both

from .bare_zygote import PATH, WAIT_S, Box, in_box

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

SCRIPT = "exec 3<&0; setsid sh -c 'echo up; exec sleep 1000' <&3 & exec sleep 1000"
"""Beside its group lives a process that keeps the other end of its input open and takes nothing."""


def held(fd: int) -> int:
    """Bytes that lie in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])


def test_a_write_that_waits_for_room_is_refused_once_the_command_has_ended(init: str) -> None:
    """It waited until its deadline, and the input that came with a command, which has none, for good."""

    async def scenario(box: Box) -> str:
        live = await box.session()
        session = cast("Any", SimpleNamespace(id=live.name, init=live.init))
        command = Command("c1", session, SCRIPT, "r", f"{box.top}/private/c1", split=False, max_bytes=1 << 20)
        spawned = await live.init.spawn(
            "c1",
            argv=["/bin/sh", "-c", SCRIPT],
            env={"PATH": PATH},
            cwd="",
            tty=False,
            split=False,
            stdin=True,
            on_event=command.on_event,
        )
        command.attach(dict(spawned.fds))
        async with asyncio.timeout(WAIT_S):
            while not command.output.total_rows:
                await asyncio.sleep(0.001)
            write = asyncio.create_task(command.write("x" * 1_000_000, deadline_s=None))
            while held(spawned.fds["stdin"]) < 1 << 16:
                await asyncio.sleep(0.001)
            await live.init.signal("c1", signal.SIGKILL)
            with pytest.raises(OperationError) as refused:
                await write
        return str(refused.value.details.get("reason"))

    assert in_box(scenario) == "stdin_closed"
