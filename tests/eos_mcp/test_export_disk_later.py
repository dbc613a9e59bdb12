"""A destination that cannot be written when the next export comes: what a killed one left there is kept until
it can be taken back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.apply import recover
from eos_mcp.export.recover import roll_back_killed
from layerstack.kernel import syscalls
from tests.eos_mcp.export_runs import fill, killed_at, run, shape
from tests.export_streams import file, journals, made

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    syscalls.mount("none", str(place), "tmpfs")
    shutil.rmtree(journals(), ignore_errors=True)
    yield place
    syscalls.umount(str(place), syscalls.MNT_DETACH)
    shutil.rmtree(journals(), ignore_errors=True)


def test_a_journal_on_a_disk_that_is_read_only_for_now_is_not_forgotten(disk: Path) -> None:
    dest = disk / "d"
    fill(dest)
    before = shape(dest)
    assert killed_at("export.sync_names", 1, dest)
    syscalls.mount("none", str(disk), None, syscalls.MS_REMOUNT | syscalls.MS_RDONLY)
    for attempt in (
        lambda: recover(str(dest), journals()),
        lambda: roll_back_killed(str(dest), journals()),
        lambda: run(made(file(b"f")), dest),
    ):
        with pytest.raises(OperationError) as refused:
            attempt()
        assert refused.value.details["reason"] == "rollback_failed" and "Read-only" in refused.value.message
        assert "writ" in refused.value.details["hint"]
    assert len(os.listdir(journals())) == 1
    syscalls.mount("none", str(disk), None, syscalls.MS_REMOUNT)
    assert recover(str(dest), journals()) == ["rolled_back"] and shape(dest) == before
