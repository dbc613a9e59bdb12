"""The error of a full disk at the start of an agent, the same from the gateway and from the agent."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import Any

from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError, os_error

FULL = ("ENOSPC", "EDQUOT")


def refused(error: OSError, folder: str) -> OperationError:
    """Convert an error of the kernel during the start of the sandbox in `folder`."""
    if errno.errorcode.get(error.errno or 0) in FULL:
        return _full(os.fsdecode(error.filename) if error.filename is not None else folder, folder, [])
    return os_error(error, kind=INTERNAL_ERROR)


def disk_full(log: list[str], folder: str) -> OperationError | None:
    """Return the error if, by the end of its log, the agent ended because of a full disk."""
    for line in reversed(log):
        try:
            value: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and value.get("event") == "start_failed":  # pyright: ignore[reportUnknownMemberType]
            said: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            return _full(said.get("path") or folder, folder, log) if said.get("errno") in FULL else None
    return None


def _full(path: str, folder: str, log: list[str]) -> OperationError:
    free = 0
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
    details = {
        "stage": "start",
        "path": path,
        "free_bytes": free,
        "retryable": True,
        "hint": (
            f"free space on the file system of {folder}, then repeat the call: nothing of the sandbox "
            f"is lost; destroy_sandbox frees its space and discards its work"
        ),
        "daemon_log": log,
    }
    message = f"starting daemon: no space left on the file system of {path}: {free} bytes are free"
    return OperationError(INTERNAL_ERROR, message, details, reason="disk_full")
