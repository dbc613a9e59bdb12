"""`readable`: sentences for the creator of a sandbox on what its sessions can read beside the workspace."""

from __future__ import annotations

import os

from eos_mcp.providers.image_name import HOST_IMAGE, ROOTFS_PREFIX
from eos_mcp.record.registry import SandboxRecord

HIDDEN = (
    "keys, tokens and histories of homes, the state of gateways and the data of container engines "
    "(`eos doctor` lists them), manager.local_daemon.hidden_paths"
)
NETWORK = "that of %s, with its servers on loopback; none in a session with network_profile isolated"


OWN_OF_SESSIONS = ("/tmp", "/run", "/dev/shm")
"""Directories that a session with image `host` has of its own, in place of the machine's."""


def unseen_on_path(path: str, workspace: str) -> list[str]:
    """Return a warning for each directory of PATH that holds programs and that sessions with image `host` do
    not see.
    """
    return [
        (
            f"PATH: sessions do not see {entry}, since they have {own} of their own: its programs are "
            f"not found "
            f"there; install them elsewhere"
        )
        for entry in dict.fromkeys(path.split(":"))
        for own in OWN_OF_SESSIONS
        if os.path.isdir(entry) and _lies_in(entry, own) and not _lies_in(entry, workspace)
    ]


def _lies_in(path: str, folder: str) -> bool:
    real, above = os.path.realpath(path), os.path.realpath(folder)
    return real == above or real.startswith(above + "/")


def of(record: SandboxRecord) -> dict[str, str]:
    """Return `files`, `hidden` and `network`, a sentence each."""
    if record.provider == "docker":
        return {
            "files": (
                f"all of the image {record.image}, shared by the sessions of the sandbox; of this "
                f"machine only the copy of {record.workspace_root}"
            ),
            "hidden": "everything else of this machine; the store, the agent and its token",
            "network": NETWORK % "the container",
        }
    if record.image == HOST_IMAGE:
        files = (
            "whatever the user that runs the gateway may read on this machine, read-only and as it is "
            "when a command begins"
        )
    else:
        files = f"all of {record.image.removeprefix(ROOTFS_PREFIX)}, read-only, and what is mounted below it"
    return {"files": files, "hidden": HIDDEN, "network": NETWORK % "this machine"}
