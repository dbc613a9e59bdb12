"""A directory of copies of workspaces (`eos_mcp.workspace.base`), removed once all of it is durable."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from layerstack.kernel import fsync


@pytest.fixture
def cache(tmp_path: Path) -> Generator[Path]:
    yield tmp_path / "cache"
    for thread in threading.enumerate():
        if thread.name == "base-durable":
            thread.join(60)
    fsync.remove_tree(str(tmp_path / "cache"))
