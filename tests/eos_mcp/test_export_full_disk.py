"""An export to a disk with room, while that of the state directory has none: its record takes the place of a
reserve, and vouches as any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export import reserve
from eos_mcp.export.apply import Guards, recover
from eos_mcp.export.rules import ExportRules
from layerstack.kernel import syscalls
from tests import in_namespace
from tests.eos_mcp.export_runs import Killer, run, shape
from tests.export_streams import directory, file, made_by_digests

Call = Callable[..., Any]
DELTA = made_by_digests(directory(b"d"), file(b"d/f", b"new"), file(b"z", b"z"))


class Disk:
    """A state directory on a disk of its own, 1 MiB, in this mount namespace."""

    def __init__(self, root: Path) -> None:
        self.state, self.dest = root / "state", root / "dest"
        self.state.mkdir()
        (self.dest / "d").mkdir(parents=True)
        (self.dest / "d/f").write_text("old")
        syscalls.mount("tmpfs", str(self.state), "tmpfs", 0, "size=1m,mode=0700")
        self.exports, self.records = str(self.state / "exports"), str(self.state / "records/s/d.sqlite")
        self.places = Guards(home="/nonexistent-home", own=(), journals=self.exports)

    def fill(self) -> None:
        with open(self.state / "filler", "wb", buffering=0) as filler:
            with pytest.raises(OSError, match="No space"):
                while True:
                    filler.write(bytes(4096))

    def names(self) -> list[str]:
        return sorted(os.listdir(self.exports))

    def run(self, data: bytes = DELTA, fmt: str = "dir", **more: Any) -> dict[str, Any]:
        rules = ExportRules("include", "fail", True, record=self.records)
        dest = self.dest if fmt == "dir" else self.dest.parent / "x.tar"
        return run(data, dest, fmt, places=self.places, **{"rules": rules, "base": str(self.dest), **more})


RESERVES = [f"{number}{reserve.SUFFIX}" for number in range(reserve.FILES)]


def test_an_export_needs_no_room_beside_the_state(short_dir: str, in_mount_namespace: Call) -> None:
    def child() -> None:
        disk = Disk(Path(short_dir))
        reserve.keep(disk.exports)
        disk.fill()
        for _ in range(3):  # it goes back each time
            result = disk.run()
            assert disk.names() == RESERVES and "is full" in result["not_recorded"]
        assert (disk.dest / "d/f").read_text() == "new"
        disk.run(fmt="tar")
        assert disk.names() == RESERVES and (disk.dest.parent / "x.tar").exists()
        os.unlink(disk.state / "filler")
        assert "not_recorded" not in disk.run()
        disk.fill()
        kept = disk.run(made_by_digests(file(b"y", b"y")))
        assert "is full" in kept["not_recorded"] and (disk.dest / "y").exists()

    in_mount_namespace(child)


def test_a_killed_one_is_taken_back_by_its_record_in_the_reserve(
    short_dir: str, in_mount_namespace: Call
) -> None:
    def child() -> None:
        disk = Disk(Path(short_dir))
        reserve.keep(disk.exports)
        disk.fill()
        before = shape(disk.dest)
        for step in (
            "export.mkdir",
            "export.bind",
            "export.bound",
            "export.in",
            "export.sync_names",
            "export.remove",
            "export.forget",
        ):
            with pytest.raises(in_namespace.ChildDied):
                in_namespace.call(None, disk.run, step=Killer(step, 1))
            assert len([name for name in disk.names() if name.endswith(".record")]) == 1
            done = step in ("export.remove", "export.forget")
            recover(str(disk.dest), disk.exports)
            assert (shape(disk.dest) == before) is not done and disk.names() == RESERVES, step
            assert not list(disk.dest.glob(".eos-export-*"))
            (disk.dest / "d/f").write_text("old")
            (disk.dest / "z").unlink(missing_ok=True)
            before = shape(disk.dest)

    in_mount_namespace(child)


def test_more_at_once_than_there_are_reserves_are_refused_before_anything_is_made(
    short_dir: str, in_mount_namespace: Call
) -> None:
    def child() -> None:
        disk = Disk(Path(short_dir))
        reserve.keep(disk.exports)
        disk.fill()
        held = [reserve.acquire(disk.exports, f"held-{number}") for number in range(reserve.FILES)]
        assert all(fd is not None for fd in held)
        before = shape(disk.dest)
        with pytest.raises(OperationError) as caught:
            disk.run()
        assert caught.value.details["errno"] == "ENOSPC" and "state directory" in caught.value.details["hint"]
        assert shape(disk.dest) == before
        assert all(
            reserve.give_back(fd, f"{disk.exports}/held-{number}")
            for number, fd in enumerate(held)
            if fd is not None
        )
        for fd in held:
            os.close(fd or -1)
        disk.run()
        assert disk.names() == RESERVES

    in_mount_namespace(child)
