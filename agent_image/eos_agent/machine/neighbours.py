"""Directories of other gateways of this machine, which sessions must not see: each gateway registers its own.

    <home>/.local/state/eos/gateways/<name>.json   mode 0600
    {"format": 1, "folders": ["/abs/state", "/abs/cache"]}

The home directory is that of the user database, not HOME, so that all gateways of a user find each other; a
gateway of root reads the registers of all users. A directory in a note counts only if it exists and belongs
to the owner of the note. The next gateway removes a note whose directories are all gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from typing import Any

from eos_agent.machine import secret_paths

FORMAT = 1
REGISTER = ".local/state/eos/gateways"
NOTES_MAX = 4096
NOTE_BYTES_MAX = 65536


def note(home: str, folders: Sequence[str]) -> None:
    """Register our own directories. Called at each start, and after one of them is made, so that readers see
    the change.

    Removes the notes of which every directory is gone or also in our own note.

    Raises:
        OSError: the register cannot be written; other gateways will not hide these directories.
    """
    import hashlib  # the agent does not need it

    register = os.path.join(home, REGISTER)
    os.makedirs(register, mode=0o700, exist_ok=True)
    text = json.dumps({"format": FORMAT, "folders": sorted(set(folders))}).encode()
    name = hashlib.sha256(text).hexdigest()[:16] + ".json"
    for other in os.listdir(register)[:NOTES_MAX]:
        named = _named(os.path.join(register, other)) if other != name and other.endswith(".json") else None
        if named is not None and not any(
            os.path.lexists(folder) for folder in named[1] if folder not in folders
        ):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(register, other))
    path = os.path.join(register, name)
    fd = os.open(
        f"{path}.{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with open(fd, "wb") as file:
        file.write(text)
    os.rename(f"{path}.{os.getpid()}", path)


def folders() -> list[str]:
    """List the directories of every gateway whose register this user can read."""
    found: dict[str, None] = {}
    for register in registers():
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(register))[:NOTES_MAX]:
                if name.endswith(".json"):
                    found.update(dict.fromkeys(_folders(os.path.join(register, name))))
    return list(found)


def registers() -> list[str]:
    return [os.path.join(home, REGISTER) for home in secret_paths.homes()]


class News:
    """Directories registered since this object was made; the zygote, which is forked later, has read the
    earlier ones itself."""

    def __init__(self) -> None:
        self._registers = registers()
        self._times: list[int] = []
        self._late: list[str] = []
        self._known = frozenset(folders())

    def late(self) -> list[str]:
        """List the directories registered since this object was made. Cost: one stat(2) for each home
        directory."""
        times = [_changed(path) for path in self._registers]
        if times != self._times:
            self._late, self._times = [folder for folder in folders() if folder not in self._known], times
        return self._late


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _named(path: str) -> tuple[int, list[str]] | None:
    """Read one note: the uid of its owner and its directories; None if the file is not a note."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            owner = os.fstat(fd)
            value: dict[str, Any] = (
                json.loads(file.read(NOTE_BYTES_MAX)) if stat.S_ISREG(owner.st_mode) else {}
            )
        named: list[Any] | None = value["folders"] if value.get("format") == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(named, list):
        return None
    return owner.st_uid, [
        os.path.normpath(name)
        for name in named
        if isinstance(name, str) and name.startswith("/") and name.strip("/") and "\0" not in name
    ]


def _folders(path: str) -> list[str]:
    """List the directories of one note that belong to its owner: a user's note must not hide files of
    others."""
    uid, named = _named(path) or (-1, [])
    found: list[str] = []
    for folder in named:
        with contextlib.suppress(OSError):
            if folder != "/" and os.stat(folder).st_uid == uid:
                found.append(folder)
    return found
