"""A state directory on a disk of 16 MB."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from layerstack.kernel import syscalls
from tests import in_namespace
from tests.end_to_end.cli_user import Desk, Sandbox


def on_a_small_disk(at: Desk, body: Callable[[Desk], None]) -> None:
    """Call body(at) in a mount namespace with the state on a tmpfs of 16 MB; the gateway and the sandboxes
    end with it.
    """

    def in_child() -> None:
        in_namespace.enter_mount_namespace()
        at.make_state()
        owner = at.person.uid or 0
        syscalls.mount("eos-small", str(at.state), "tmpfs", 0, f"size=16m,mode=0700,uid={owner},gid={owner}")
        try:
            body(at)
        finally:
            (at.state / "filler").unlink(missing_ok=True)
            at.destroy_all()
            at.stop()

    in_namespace.call(None, in_child)


def fill(at: Desk) -> Path:
    """Fill the small disk to its last byte."""
    path = at.state / "filler"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return path


def names_in_store(sandbox: Sandbox) -> dict[str, list[str]]:
    return {
        name: sorted(os.listdir(sandbox.store / name))
        for name in ("layers", "staging", "drafts", "manifests")
    }
