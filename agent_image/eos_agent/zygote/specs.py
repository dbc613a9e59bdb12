"""Values that the agent sends to the zygote: once for the sandbox, and for each session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class HostSpec(NamedTuple):
    """Values that are the same for all sessions of a sandbox.

    hidden_paths and private_dirs (the local provider's own state) appear as empty directories. rootfs: the
    directory that is the root of each session, or None for the agent's own root. terminals: the most of one
    session. open_files: the most of one process.
    """

    provider: str
    workspace_root: str
    hidden_paths: Sequence[str] = ("/eos",)
    private_dirs: Sequence[str] = ()
    rootfs: str | None = None
    runtime_dir: str = ""
    terminals: int = 64
    open_files: int = 65536
    init: str | None = None
    """Path of the native init program (init/native.py), or None."""


class SessionSpec(NamedTuple):
    """Values of one session. network: "shared" or "isolated" (own network namespace). rootfs_mode: "shared"
    or "read_only".
    """

    session_id: str
    network: str = "shared"
    rootfs_mode: str = "shared"
