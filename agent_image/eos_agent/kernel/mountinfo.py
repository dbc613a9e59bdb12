"""Find every mount that shows a file, from /proc/self/mountinfo.

A file is identified by its file system and its path in that file system (`Spot`). Bind mounts and further
mounts of the file system share both; a file has one name in the tree for each mount that shows it.
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
    """A line of mountinfo, proc(5): `root` of the file system `device` is mounted at `point`."""

    number: int
    device: str
    root: str
    point: str
    options: tuple[str, ...]
    kind: str


class Spot(NamedTuple):
    """A file or directory, independent of the name under which it is looked up."""

    device: str
    path: str


def table() -> list[Mount]:
    """List the mounts of this process' namespace, in the order in which they were mounted."""
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
    """Keep the mounts that a look-up of their mount point finds: no later mount at or above that point hides
    them."""
    return [mount for mount in mounts if _number_at(mount.point) == mount.number]


class Looking:
    """Find the spots of many paths on `mounts` (visible ones); each directory is looked up once."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._at = {mount.point: Spot(mount.device, mount.root) for mount in mounts}
        self._names: dict[str, frozenset[str]] = {}
        self._folders: dict[str, tuple[str, Spot | None]] = {"/": ("/", self._at.get("/"))}

    def spots(self, paths: Iterable[str]) -> list[Spot]:
        """Find the spots of normalised absolute paths; a symlink adds the spot of its target. Parents may be
        symlinks; a path need not exist.

        `/` has no spot.
        """
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
        """Find the spot of `path`, or of its target if it is a symlink; None if no mount in `mounts` shows
        it."""
        return self._folder(os.path.normpath(path))[1]

    def _folder(self, path: str) -> tuple[str, Spot | None]:
        known = self._folders.get(path)
        if known is not None:
            return known
        real, above = self._folder(os.path.dirname(path))
        real = os.path.join(real, os.path.basename(path))
        if os.path.islink(real):
            target = os.path.realpath(real)
            # a loop of links has no target
            found = (target, self._folder(target)[1]) if not os.path.islink(target) else (real, above)
        elif real in self._at:
            found = real, self._at[real]
        else:
            found = (
                real,
                None
                if above is None
                else Spot(above.device, os.path.join(above.path, os.path.basename(path))),
            )
        self._folders[path] = found
        return found


def places(here: Spot, mounts: Iterable[Mount]) -> list[str]:
    """List every path at which `mounts` show `here` or a directory or file below it."""
    found: dict[str, None] = {}
    for mount in mounts:
        if mount.device == here.device:
            if is_below(here.path, mount.root):
                found[os.path.normpath(os.path.join(mount.point, os.path.relpath(here.path, mount.root)))] = (
                    None
                )
            elif is_below(mount.root, here.path):
                found[mount.point] = None
    return list(found)


def is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def plain(text: bytes) -> str:
    """Decode the octal escapes of a path of mountinfo."""
    return os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), text))


def _number_at(path: str) -> int:
    """The id of the mount of `path`; 0 if it cannot be looked up. Does not follow links or trigger
    automounts."""
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return number_of(fd)
    finally:
        os.close(fd)


def number_of(fd: int) -> int:
    """The id, as in mountinfo, of the mount of an open file; 0: unknown."""
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), 0)


def clone(path: str, *, recursive: bool = False) -> int:
    """Make a detached copy of the mount at `path`; with `recursive` also of the mounts below."""
    return syscalls.open_tree(
        path,
        syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | (syscalls.AT_RECURSIVE if recursive else 0),
    )
