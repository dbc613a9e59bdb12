"""The newest version of a sandbox that was exported as a whole.

    <state>/export-records/<sandbox>/exported.json     {"format": 1, "version", "dest", "unix_ms"}

Without the file, or with one that cannot be read, nothing counts as exported: a person is then asked once
more before the sandbox is destroyed.
"""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple, cast

FORMAT = 1
NAME = "exported.json"
BYTES_MAX = 64 * 1024


class LastExport(NamedTuple):
    """An export that left nothing out. `version`: the head's number at that time."""

    version: int
    dest: str
    unix_ms: int


def note(directory: str, sandbox_id: str, version: int, dest: str) -> None:
    """Record an export, unless one of a later version is recorded. Not synced: see the module.

    Raises:
        OSError: the state directory cannot be written.
    """
    before = last(directory, sandbox_id)
    if before is not None and before.version > version:
        return
    folder = os.path.join(directory, sandbox_id)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    body = {"format": FORMAT, "version": version, "dest": dest, "unix_ms": int(time.time() * 1000)}
    data = json.dumps(body).encode("utf-8", "replace") + b"\n"
    path = os.path.join(folder, NAME)
    with open(
        os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        file.write(data)
    os.replace(f"{path}.new", path)


def last(directory: str, sandbox_id: str) -> LastExport | None:
    """Return the newest recorded export; None without one."""
    try:
        with open(os.path.join(directory, sandbox_id, NAME), "rb") as file:
            body: object = json.loads(file.read(BYTES_MAX))
    except (OSError, ValueError):
        return None
    found = cast("dict[str, object]", body) if isinstance(body, dict) else {}
    version, unix_ms = found.get("version"), found.get("unix_ms")
    if found.get("format") != FORMAT or not isinstance(version, int) or not isinstance(unix_ms, int):
        return None
    return LastExport(version, str(found.get("dest")), unix_ms)
