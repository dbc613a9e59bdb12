"""Every name that an acknowledgment rests on is synced where the file system keeps no order of its own: each
new name's directory, after it.

The history of the kill harness runs once, as on a file system that does not order its acts, such as btrfs or
an ext4 without a journal. Each call that makes a name is noted with the inode of its directory, each fsync of
a directory takes its notes away, a syncfs takes all.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from layerstack.kernel import fsync, syscalls
from tests import in_namespace
from tests.layerstack import crash_history
from tests.layerstack.crash_history import Journal

PASSING = ("/staging/", "/sessions/")
"""What is in there nobody acknowledged."""


class Names:
    """New names that no sync has made durable yet: inode of the directory -> the names."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.waiting: dict[int, dict[str, str]] = {}

    def made(self, path: str, how: str) -> None:
        path = os.path.abspath(path)
        if path.startswith(self.root + "/") or path == self.root:
            above, name = os.path.split(path)
            self.waiting.setdefault(os.stat(above).st_ino, {})[name] = how

    def synced(self, fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self.waiting.pop(status.st_ino, None)

    def left(self) -> list[str]:
        """Those that are there now, in a place that counts."""
        found: list[str] = []
        for folder, _, _ in os.walk(self.root):
            if any(part in folder + "/" for part in PASSING):
                continue
            for name, how in self.waiting.get(os.lstat(folder).st_ino, {}).items():
                if os.path.lexists(f"{folder}/{name}"):
                    found.append(f"{folder[len(self.root) :]}/{name} ({how})")
        return found


def watch(names: Names) -> None:
    """In a child only: from here on every call that makes or syncs a name is seen."""

    def after(module: Any, name: str, tell: Any) -> None:
        real = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            done = real(*args, **kwargs)
            tell(done, *args)
            return done

        setattr(module, name, wrapped)

    after(os, "rename", lambda _, old, new, *rest: names.made(new, "rename"))
    after(syscalls, "renameat2", lambda _, old, new, *rest: names.made(new, "rename"))
    after(os, "link", lambda _, old, new, *rest: names.made(new, "link"))
    after(os, "mkdir", lambda _, path, *rest: names.made(path, "mkdir"))
    after(os, "open", lambda _, path, flags=0, *rest: names.made(path, "open") if flags & os.O_EXCL else None)
    after(os, "fsync", lambda _, fd: names.synced(fd))
    after(syscalls, "syncfs", lambda _, fd: names.waiting.clear())


def play(folder: str) -> int:
    """Returns how many acknowledgments there were."""
    fsync.keeps_order = lambda root: False  # type: ignore[assignment]
    places = crash_history.prepare(folder, os.path.join(folder, "mounts"), "trusted")
    names, journal, broken, count = (
        Names(places.root),
        Journal(os.path.join(folder, "journal")),
        list[str](),
        0,
    )
    watch(names)

    def acknowledged() -> None:
        nonlocal count
        count += 1
        broken.extend(f"{journal.read()[-1]}: {left}" for left in names.left())

    crash_history.play(places, journal, fsync.no_step, acknowledged)
    assert not broken, f"{len(broken)} names that no sync has made durable:\n" + "\n".join(broken[:12])
    return count


@pytest.mark.needs("overlay", "root")
def test_each_new_name_is_synced_before_what_rests_on_it_is_acknowledged(short_dir: str) -> None:
    assert in_namespace.call("trusted", play, short_dir) > 20
