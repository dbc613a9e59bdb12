"""Stop a running gateway: check that the process is a gateway, send SIGTERM, and wait for its end."""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.config import paths

STOP_S = 30.0


def running() -> int | None:
    """Stop the gateway of this state directory; return its pid, or None when none ran.

    Raises:
        OperationError: it does not end.
    """
    from eos_mcp.gateway.ownership import running_pid

    pid = running_pid()
    if pid is None:
        return None
    end(pid)
    deadline = time.monotonic() + STOP_S
    while running_pid() == pid and time.monotonic() < deadline:
        time.sleep(0.01)
    return pid


def by_pid_file(path: str) -> int | None:
    """Stop the gateway that a pid file names. A pid that another program has since got is left alone.

    Raises:
        OperationError: it does not end.
    """
    try:
        with open(path) as file:
            text = file.read(64).strip()
    except OSError:
        return None
    if not text.isascii() or not text.isdigit() or not is_gateway(int(text)):
        return None
    end(int(text))
    return int(text)


def is_gateway(pid: int) -> bool:
    """Check by its command line that a process is a gateway: a pid file may be older than the last reboot."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        if os.path.isdir("/proc/self"):
            return False
        import subprocess  # no /proc: not Linux

        words = subprocess.run(
            ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False
        ).stdout.split()
    return any(b"gateway" in word for word in words) and b"serve" in words


def end(pid: int) -> None:
    """Send SIGTERM, then SIGKILL after `STOP_S`.

    Raises:
        OperationError: the process is another user's.
    """
    try:
        if _ended(pid, signal.SIGTERM, STOP_S) or _ended(pid, signal.SIGKILL, 5.0):
            return
    except ProcessLookupError:
        return
    except PermissionError:
        raise OperationError(
            OPERATION_FAILED, f"the gateway (pid {pid}) belongs to another user", reason="not_permitted"
        ) from None
    raise OperationError(
        OPERATION_FAILED,
        f"the gateway (pid {pid}) of {paths.state_dir()} does not end",
        reason="gateway_hangs",
    )


def _ended(pid: int, number: signal.Signals, wait_s: float) -> bool:
    """Send a signal and wait for the end, by pidfd where there is one: a pid may be reused
    (pidfd_open(2)).
    """
    if sys.platform == "linux":
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, number)
            return bool(select.select([descriptor], [], [], wait_s)[0])
        finally:
            os.close(descriptor)
    os.kill(pid, number)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        time.sleep(0.01)
        os.kill(pid, 0)
    return False
