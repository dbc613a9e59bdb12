"""Where a file can be seen: every mount that shows it, from /proc/self/mountinfo.

A file is named by its file system and its path in there (`Spot`), which bind mounts and second mounts of the file system share; the same
file has as many names in the tree as there are mounts that show it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from layerstack.kernel import syscalls

_ESCAPED = re.compile(rb"\\([0-7]{3})")
ENTRIES_MAX = 100_000


class Mount(NamedTuple):
    """A line of mountinfo, proc(5): `root` is the path in the file system `device` that is shown at `point`."""

    number: int
    device: str
    root: str
    point: str
    options: tuple[str, ...]
    kind: str


class Spot(NamedTuple):
    """One file or folder, whatever name it is looked up by."""

    device: str
    path: str


def table() -> list[Mount]:
    """The mounts of this process' namespace, in the order in which they were mounted."""
    found: list[Mount] = []
    with open("/proc/self/mountinfo", "rb") as lines:
        for line, _ in zip(lines, range(ENTRIES_MAX), strict=False):
            left, _, right = line.partition(b" - ")
            number, _, device, root, point, options = left.split(b" ")[:6]
            found.append(
                Mount(
                    int(number),
                    device.decode(),
                    plain(root),
                    plain(point),
                    tuple(options.decode().split(",")),
                    plain(right.split(b" ", 1)[0]),
                )
            )
    return found


def visible(mounts: Iterable[Mount]) -> list[Mount]:
    """Those that a look-up of their mount point leads to, and no other mount over it or above."""
    return [mount for mount in mounts if _number_at(mount.point) == mount.number]


class Looking:
    """Spots of many paths among `mounts`, which are visible ones: each folder is looked up once."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._at = {mount.point: Spot(mount.device, mount.root) for mount in mounts}
        self._names: dict[str, frozenset[str]] = {}
        self._folders: dict[str, tuple[str, Spot | None]] = {"/": ("/", self._at.get("/"))}

    def spots(self, paths: Iterable[str]) -> list[Spot]:
        """Of normal absolute paths, whose parents may be links and which need not exist; of a link and of what it points to. `/` is none."""
        found: dict[Spot | None, None] = {}
        for path in paths:
            folder, base = os.path.split(path)
            if not base:
                continue
            above = self._folder(folder)[1]
            plain = None if above is None else Spot(above.device, f"{above.path.rstrip('/')}/{base}")
            if base in self._names_in(folder):
                found[self._folder(path)[1]] = None
                plain = plain if os.path.islink(path) else None
            found[plain] = None
        return [here for here in found if here is not None and here != self._at.get("/")]

    def _names_in(self, folder: str) -> frozenset[str]:
        known = self._names.get(folder)
        if known is None:
            try:
                known = frozenset(os.listdir(folder))
            except OSError:
                known = frozenset[str]()
            self._names[folder] = known
        return known

    def spot(self, path: str) -> Spot | None:
        """What is behind `path`; of a link what it points to. None: it is on none of the mounts."""
        return self._folder(os.path.normpath(path))[1]

    def _folder(self, path: str) -> tuple[str, Spot | None]:
        known = self._folders.get(path)
        if known is not None:
            return known
        real, above = self._folder(os.path.dirname(path))
        real = os.path.join(real, os.path.basename(path))
        if os.path.islink(real):
            target = os.path.realpath(real)
            found = (target, self._folder(target)[1]) if not os.path.islink(target) else (real, above)  # a circle of links leads nowhere
        elif real in self._at:
            found = real, self._at[real]
        else:
            found = real, None if above is None else Spot(above.device, os.path.join(above.path, os.path.basename(path)))
        self._folders[path] = found
        return found


def places(here: Spot, mounts: Iterable[Mount]) -> list[str]:
    """Every path at which `mounts` show it, or a part of it."""
    found: dict[str, None] = {}
    for mount in mounts:
        if mount.device == here.device:
            if is_below(here.path, mount.root):
                found[os.path.normpath(os.path.join(mount.point, os.path.relpath(here.path, mount.root)))] = None
            elif is_below(mount.root, here.path):
                found[mount.point] = None
    return list(found)


def is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def plain(text: bytes) -> str:
    """A path of mountinfo without its octal escapes."""
    return os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), text))


def _number_at(path: str) -> int:
    """The number of the mount that `path` lies on; 0 when it cannot be looked up. Links are not followed, nothing is mounted by it."""
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return number_of(fd)
    finally:
        os.close(fd)


def number_of(fd: int) -> int:
    """Of the mount that an open file lies on, as mountinfo has it; 0: the kernel does not say."""
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), 0)


def clone(path: str, *, recursive: bool = False) -> int:
    """A detached copy of the mount at `path`; with `recursive` also of what is mounted below."""
    return syscalls.open_tree(path, syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | (syscalls.AT_RECURSIVE if recursive else 0))
