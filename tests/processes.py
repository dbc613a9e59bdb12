"""State of processes, read from the kernel: which are alive, their parents, their mounts. Also ends
processes, each by its pid.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

WAIT_S = 60


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def cmdline(pid: int) -> bytes:
    """Return its command line, each word ended by NUL; empty when it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def mountinfo(pid: int) -> str:
    """Empty when it has gone."""
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
    except OSError:
        return ""


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return sorted(found)


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in children_of(pid):
        found += [child, *descendants(child)]
    return found


def processes_that_name(text: str) -> list[str]:
    """Return `pid: words` of live processes whose command lines contain `text`, without this one."""
    lines = {
        pid: cmdline(pid).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        for pid in pids()
        if pid != os.getpid()
    }
    return [f"{pid}: {line}" for pid, line in lines.items() if text in line]


def mounts_that_name(text: str) -> list[str]:
    """Lines of the mountinfo of any process in which `text` occurs, but for masks: sessions of every gateway
    hide the state directory of a new one.
    """
    return sorted({line for pid in pids() for line in unmasked(mountinfo(pid)) if text in line})


def unmasked(table: str) -> list[str]:
    """Return the lines of a mountinfo without masks, which sessions mount over hidden paths."""
    return [
        line
        for line in table.splitlines()
        if not (" - tmpfs " in line and "mode=000" in line.rpartition(" ")[2].split(","))
    ]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal and wait until the process has gone."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, number)
        assert select.select([descriptor], [], [], WAIT_S)[0], f"pid {pid} lives on"
    finally:
        os.close(descriptor)


def ended(pid: int) -> bool:
    """Wait for a process that is ending."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], WAIT_S)[0])
    finally:
        os.close(descriptor)


def end_processes_that_name(text: str) -> list[str]:
    """Kill the processes that `processes_that_name` lists, and return them: a failed test must not leave
    agents behind.
    """
    found = processes_that_name(text)
    for line in found:
        try:
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        except ProcessLookupError:
            continue
    return found


def stop_gateway(env: Mapping[str, str]) -> None:
    """End the gateway of the state directory that `env` names, by the command line."""
    subprocess.run(
        [sys.executable, "-m", "eos_mcp.cli.eos", "gateway", "stop"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )
