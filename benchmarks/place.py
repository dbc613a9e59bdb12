"""A gateway of the benchmark's own, and sandboxes in it; everything is gone when the block ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from eos_mcp.gateway_client import sync


class Place:
    """One gateway with its own state directory, and the requests that go to it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        os.environ["EOS_STATE_DIR"] = str(home / "state")
        os.environ["EOS_SHARED_BASE_CACHE"] = str(home / "bases")
        for name in ("SANDBOX_GATEWAY_SOCKET", "SANDBOX_GATEWAY_AUTH_TOKEN", "SANDBOX_GATEWAY_TOKEN_FILE"):
            os.environ.pop(name, None)

    def ask(self, op: str, args: dict[str, Any], sandbox_id: str | None = None) -> dict[str, Any]:
        """One request on a connection of its own, as a CLI makes it; an error envelope raises."""
        reply = sync.call(sync.discover(), op, args, sandbox_id=sandbox_id)
        if "error" in reply:
            raise RuntimeError(f"{op}: {reply['error']}")
        return reply

    @contextlib.contextmanager
    def sandbox(self, image: str, files: int = 3) -> Generator[str]:
        """A sandbox on a workspace of `files` small files."""
        workspace = Path(tempfile.mkdtemp(prefix="w", dir=self.home))
        fill(workspace, files)
        made = self.ask("create_sandbox", {"image": image, "workspace_root": str(workspace)})["id"]
        try:
            yield made
        finally:
            self.ask("destroy_sandbox", {"sandbox_id": made})


def fill(directory: Path, files: int) -> None:
    """`files` small files, a hundred to a directory."""
    for n in range(files):
        if n % 100 == 0:
            (directory / f"d{n // 100:04d}").mkdir()
        (directory / f"d{n // 100:04d}" / f"f{n:06d}.txt").write_text(f"line one of {n}\nline two\n")


@contextlib.contextmanager
def place(folder: str | None = None) -> Generator[Place]:
    """In a new directory of the given one, or where temporary files go."""
    home = Path(tempfile.mkdtemp(prefix="eos-bench-", dir=folder))
    try:
        yield Place(home)
    finally:
        subprocess.run(
            [sys.executable, "-m", "eos_mcp.cli.eos", "gateway", "stop"],
            capture_output=True,
            timeout=60,
            check=False,
        )
        shutil.rmtree(home, ignore_errors=True)


def docker_image() -> str | None:
    """The busybox image for the rows that want Docker, or None without an engine that has it."""
    if shutil.which("docker") is None:
        return None
    seen = subprocess.run(
        ["docker", "image", "inspect", "eos-test/busybox"], capture_output=True, timeout=30, check=False
    )
    return "eos-test/busybox" if seen.returncode == 0 else None
