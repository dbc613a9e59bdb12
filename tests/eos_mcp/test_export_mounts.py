"""Destinations that hold what cannot be moved or removed as a directory can: mounts, immutable files."""

from __future__ import annotations

import array
import fcntl
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from eos_mcp.export.apply import recover
from eos_mcp.export.recover import roll_back_killed
from eos_mcp.export.rules import ExportRules
from layerstack.kernel import syscalls
from tests import in_namespace
from tests.eos_mcp.export_runs import failure, run, shape
from tests.export_streams import directory, file, gone, journals, made
from tests.layerstack import power_cut

GET_FLAGS, SET_FLAGS, IMMUTABLE = 0x80086601, 0x40086602, 0x10
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL."""


@pytest.fixture(autouse=True)
def no_record_is_left() -> Iterator[None]:
    shutil.rmtree(journals(), ignore_errors=True)
    yield
    shutil.rmtree(journals(), ignore_errors=True)


def _over_a_mount(tmp: str, delta: bytes) -> None:
    dest, gold = Path(tmp, "dest"), Path(tmp, "important")
    (dest / "sub/mnt a").mkdir(parents=True)
    (dest / "sub/file").write_text("file")
    gold.mkdir()
    (gold / "gold").write_text("gold")
    syscalls.mount(str(gold), str(dest / "sub/mnt a"), None, syscalls.MS_BIND)
    before = shape(dest)
    error = failure(delta, dest)
    assert (error.details["reason"], error.details["mount"]) == ("mount_in_the_way", "sub/mnt a")
    assert shape(dest) == before
    assert (gold / "gold").read_text() == "gold"
    assert os.listdir(journals()) == []
    run(made(directory(b"sub"), file(b"sub/file", b"new")), dest)  # beside it is nothing in the way
    assert (dest / "sub/file").read_text() == "new"


@pytest.mark.parametrize(
    "delta",
    [
        made(gone(b"sub")),
        made(file(b"sub", b"a file")),
        made(directory(b"sub"), gone(b"sub/mnt a")),
        made(directory(b"sub", opaque=True)),
    ],
    ids=["deleted", "replaced", "itself", "opaque"],
)
def test_what_is_mounted_below_a_destination_is_neither_moved_nor_emptied(
    tmp_path: Path, in_mount_namespace: Callable[..., Any], delta: bytes
) -> None:
    in_mount_namespace(_over_a_mount, str(tmp_path), delta)


def set_immutable(path: Path, on: bool) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        flags = array.array("l", [0])
        fcntl.ioctl(fd, GET_FLAGS, flags, True)
        flags[0] = flags[0] | IMMUTABLE if on else flags[0] & ~IMMUTABLE
        fcntl.ioctl(fd, SET_FLAGS, flags)
    finally:
        os.close(fd)


def on_ext4(short_dir: str, body: Callable[[Path], None]) -> None:
    """body(a directory on an ext4 of its own), in a child: not every file system knows the flag."""

    def in_child() -> None:
        power_cut.make_disk(f"{short_dir}/disk")
        power_cut.mount_disk(f"{short_dir}/disk", f"{short_dir}/mounted")
        try:
            body(Path(short_dir, "mounted"))
        finally:
            syscalls.umount(f"{short_dir}/mounted")

    in_namespace.call("trusted", in_child)


def _remains(disk: Path) -> None:
    dest = disk / "dest"
    (dest / "sub").mkdir(parents=True)
    (dest / "sub/file").write_text("file")
    set_immutable(dest / "sub/file", True)
    try:
        first = run(made(gone(b"sub")), dest)
        (left,) = dest.iterdir()
        assert first["left_staging"] == [str(left)]
        second = run(made(file(b"new", b"new")), dest)
        assert second["ignored_staging"] == [str(left)]
        assert recover(str(dest), journals()) == ["left"]
        roll_back_killed(str(dest), journals())
    finally:
        for path in disk.rglob("file"):
            set_immutable(path, False)
    assert recover(str(dest), journals()) == ["swept"]
    assert os.listdir(dest) == ["new"]


@pytest.mark.needs("loopfs")
def test_remains_that_cannot_be_removed_are_in_no_later_exports_way(short_dir: str) -> None:
    on_ext4(short_dir, _remains)


def _cannot_be_changed(disk: Path) -> None:
    dest = disk / "dest"
    (dest / "sub").mkdir(parents=True)
    for name in ("sub/file", "sub/other"):
        (dest / name).write_text(name)
    set_immutable(dest / "sub/file", True)
    delta = made(directory(b"sub"), file(b"sub/file", b"new"))
    try:
        assert "lsattr" in failure(delta, dest).details["hint"]
        set_immutable(dest / "sub/file", False)
        set_immutable(dest / "sub", True)
        for one in (
            delta,
            made(directory(b"sub"), gone(b"sub/other")),
            made(directory(b"sub"), file(b"sub/third", b"new")),
        ):
            assert failure(one, dest).details["errno"] == "EPERM"
    finally:
        set_immutable(dest / "sub", False)
        set_immutable(dest / "sub/file", False)
    assert run(delta, dest)["files_written"] == 1


@pytest.mark.needs("loopfs")
def test_a_dry_run_foretells_what_cannot_be_changed_and_the_error_says_how_to_see_it(short_dir: str) -> None:
    on_ext4(short_dir, _cannot_be_changed)


@pytest.mark.parametrize("fmt", ["tar", "tar-zst"])
def test_an_archive_replaces_archives_and_nobodys_work(tmp_path: Path, fmt: str) -> None:
    dest, other = tmp_path / "README.md", tmp_path / "other"
    delta = made(file(b"new", b"new"))
    for make in (lambda: dest.write_text("work"), lambda: dest.symlink_to(other), lambda: os.mkfifo(dest)):
        make()
        before = os.lstat(dest)
        error = failure(delta, dest, fmt)
        assert error.details["reason"] == "export_conflict"
        assert "move that one away" in error.details["hint"]
        after = os.lstat(dest)
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
        dest.rename(tmp_path / "away")
    for _ in range(2):
        run(delta, dest, fmt)
    run(delta, dest, "tar")
    run(delta, dest, "tar-zst")
    dest.write_bytes(b"")
    run(delta, dest, fmt)
    assert os.listdir(journals()) == []


@pytest.mark.parametrize("fmt", ["tar", "tar-zst"])
def test_a_persons_own_archive_is_replaced_only_where_that_is_said(tmp_path: Path, fmt: str) -> None:
    """Backups and images of disks: of any program's form, with a first block of zeros, compressed."""
    dest, delta, asked = tmp_path / "backup", made(file(b"new", b"new")), ExportRules(on_conflict="fail")
    (tmp_path / "precious").write_text("the only copy")
    empty = made()
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(dest, "w", format=form) as archive:
            archive.add(tmp_path / "precious", "precious")
        plain = dest.read_bytes()
        for data in (
            plain,
            zstandard.compress(plain),
            zstandard.compress(b"a dump"),
            b"\x28\xb5\x2f\xfd torn",
        ):
            dest.write_bytes(data)
            error = failure(delta, dest, fmt, rules=asked)
            assert error.details["reason"] == "export_conflict" and "overwrite" in error.details["hint"]
            assert dest.read_bytes() == data
    for data in (bytes(1024) + b"a disk whose first sector is empty", bytes(1 << 20)):
        dest.write_bytes(data)
        assert failure(delta, dest, fmt, rules=asked).details["reason"] == "export_conflict"
    dest.write_bytes(plain)
    run(delta, dest, fmt, rules=asked._replace(on_conflict="overwrite"))
    for stream in (delta, empty, delta):  # what exports made, whichever way, makes room without a word
        for other in ("tar", "tar-zst"):
            run(stream, dest, other, rules=asked)
            run(stream, dest, fmt, rules=asked)


def test_what_is_no_record_in_the_folder_of_records_is_passed_over(tmp_path: Path) -> None:
    os.makedirs(journals())
    os.mkfifo(f"{journals()}/a.record")
    os.mkdir(f"{journals()}/b.record")
    run(made(file(b"new", b"new")), tmp_path / "dest")
    assert (tmp_path / "dest/new").read_text() == "new"
