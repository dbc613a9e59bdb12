"""The state of a disk after a power cut: ext4 in a file on a loop mount, copied at a step."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from layerstack.kernel import content, fsync, syscalls
from layerstack.kernel.xattrs import TRUSTED
from tests.layerstack import crash_history
from tests.layerstack.crash_history import Expected, Journal, Places
from tests.trees import Tree

DISK_BYTES = 64 << 20


SOAK = os.environ.get("EOS_SOAK", "") not in ("", "0")


UNCUT = ("seal.", "upper.", *(() if SOAK else ("session.", "publish.")))
"""Steps before which nothing new was acknowledged and nothing of the store's own is renamed; the latter two
are cut at in a soak.
"""


OFTEN = 10_000 if SOAK else 2
"""Maximum of cuts at one step."""


ACKNOWLEDGED = "acknowledged"


def named(step: str) -> bool:
    """Is this a step to cut at?"""
    return not step.startswith(UNCUT)


def none(step: str) -> bool:
    """Only after acknowledgments."""
    return False


class Cut(NamedTuple):
    """A copy of the disk, the journal at that time, and the step."""

    copy: str
    notes: list[tuple[str, str]]
    where: str


def run(*argv: str) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=60)


def make_disk(path: str, *how: str) -> None:
    """An empty ext4 in a sparse file, small journal."""
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)
    run("mkfs.ext4", "-q", "-F", "-b", "1024", *(how or ("-J", "size=1")), path)


def mount_disk(path: str, target: str, options: str = "commit=3600") -> None:
    """Mount the disk with write-back by timer turned off, so that only synced data is on it."""
    os.makedirs(target, exist_ok=True)
    run("mount", "-o", f"loop,noatime,{options}", path, target)


def copy_disk(source: str, target: str) -> None:
    """Holes stay holes."""
    with open(source, "rb") as old, open(target, "wb") as new:
        at = 0
        while True:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:  # no data is left
                break
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            while at < end:
                at += os.copy_file_range(old.fileno(), new.fileno(), end - at, at, at)
        new.truncate(DISK_BYTES)


def play_and_cut(folder: str, *, steps: Callable[[str], bool] = named) -> tuple[list[Cut], Expected]:
    """The history on a loop disk, with a copy after every acknowledgment, and at each step that `steps`
    chooses.
    """
    backing, disk, mounts = (os.path.join(folder, name) for name in ("backing", "disk", "mounts"))
    make_disk(backing)
    mount_disk(backing, disk)
    places = crash_history.prepare(disk, mounts, "trusted")
    os.sync()  # the base is there before the store is
    journal = Journal(os.path.join(folder, "journal"))
    cuts: list[Cut] = []
    passed: Counter[str] = Counter()

    def cut(where: str) -> None:
        passed[where] += 1
        if where.startswith(ACKNOWLEDGED) or (steps(where) and passed[where] <= OFTEN):
            copy = os.path.join(folder, f"cut-{len(cuts)}")
            copy_disk(backing, copy)
            cuts.append(Cut(copy, journal.read(), where))

    trees: dict[int, Tree] = {}
    crash_history.play(places, journal, cut, lambda: cut(f"{ACKNOWLEDGED} {journal.read()[-1]}"), trees)
    expected = Expected(trees)
    syscalls.umount(disk)
    return cuts, expected


def check_cut(folder: str, cut: Cut, expected: Expected) -> None:
    """Mount the copy, as after a power cut, and compare."""
    disk = os.path.join(folder, "again")
    mount_disk(cut.copy, disk)
    try:
        places = Places(os.path.join(disk, "store"), os.path.join(folder, "mounts"), TRUSTED)
        crash_history.check(places, cut.notes, expected, power_cut=True)
    finally:
        syscalls.umount(disk)
        os.unlink(cut.copy)


def cut_everywhere(
    folder: str, *, steps: Callable[[str], bool] = named, all_of_them: bool = True
) -> list[str]:
    """Returns where it was cut. Runs in a child with mounts of its own.

    Args:
        all_of_them: look at every cut, and tell all that are broken; else the first one ends it.
    """
    for module in (
        fsync,
        content,
    ):  # a hint, of which nothing is promised: the slowest device has not begun yet
        setattr(module, fsync.begin_write_out.__name__, lambda *_where: None)
    syscalls.mount("tmpfs", folder, "tmpfs", 0, "mode=755")
    cuts, expected = play_and_cut(folder, steps=steps)
    broken: list[str] = []
    for cut in cuts:
        try:
            check_cut(folder, cut, expected)
        except Exception as error:
            broken.append(f"{cut.where}: {type(error).__name__}: {error}")
            if not all_of_them:
                break
    assert not broken, f"{len(broken)} of {len(cuts)} power cuts:\n" + "\n".join(broken[:12])
    return [cut.where for cut in cuts]
