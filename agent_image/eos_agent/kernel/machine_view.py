"""The root of a local session: read-only overlays of this machine's file systems (or of those of a rootfs).

An overlay has its own inodes, so that no name in it leads to the inode of a unix socket or FIFO of the
machine; a read-only mount alone does not prevent connect(2). A hidden path is a whiteout in an upper layer,
on every mount that shows the file; mountinfo.py finds these mounts by file system and path. The path stays
hidden when its file is replaced, while a mount over it would vanish.

An overlay caches lookups; `refresh` drops its cache (ADR 0038).

In a user namespace the kernel refuses an overlay of a directory with mounts below it (EINVAL), since it could
show files that the mounts hide. Such a directory is rebuilt from its entries, one by one. A path that cannot
be a lowerdir is bind-mounted, and known sockets in it are hidden one by one (mounts.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

from eos_agent.kernel import mountinfo
from eos_agent.kernel.mountinfo import Looking, Mount, Spot, is_below
from layerstack.kernel import syscalls

KERNEL_TREES = ("dev", "proc", "sys")
_PRIVATE = ("/tmp", "/run")
"""Paths at which each session has mounts of its own."""
_STAGES = ("/tmp", "/mnt", "/run", "/dev/shm")
_MARK = "eos-view"
"""Source of our overlays in mountinfo."""
_ENTRIES_MAX = 400
"""Most entries of a directory that is rebuilt. One with more is bind-mounted, since each entry would be a
mount."""
_NOT_SHOWN = frozenset(
    {
        "autofs",
        "nsfs",
        "proc",
        "sysfs",
        "cgroup",
        "cgroup2",
        "devpts",
        "devtmpfs",
        "mqueue",
        "binfmt_misc",
        "debugfs",
        "tracefs",
    }
)
_HARMLESS = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV


class ViewPaths(NamedTuple):
    """Paths in the new root.

    masked: to be hidden by a mount. late: hidden paths whose directory (the key) does not exist yet. bound: a
    part of the view is bind-mounted, so that connect(2) to its sockets works.
    """

    masked: list[str]
    late: dict[str, list[str]]
    bound: bool


def enter(rootfs: str | None, hidden: Sequence[str], workspace_root: str) -> ViewPaths:
    """Build the view and make it the root of this mount namespace.

    Args:
        rootfs: a directory, or None for this machine's own root.
        hidden: absolute paths of this machine, hidden on every mount that shows them.

    Raises:
        OSError: the view cannot be made; EACCES: `rootfs` is in a hidden path.
    """
    return _Composer(rootfs or "/", hidden, workspace_root).compose()


class _Composer:
    """Builds the view. `inside` is a path as sessions will see it; `_outside(inside)` is the same file on
    this machine."""

    def __init__(self, source: str, hidden: Sequence[str], workspace_root: str) -> None:
        self._source = os.path.realpath(source)
        self._workspace = os.path.realpath(workspace_root) if self._source == "/" else workspace_root
        self._mounts = mountinfo.visible(mountinfo.table())
        looking = Looking(self._mounts)
        self._hidden = _outermost(looking.spots(hidden))
        here = looking.spot(self._source)
        if self._source != "/" and here is not None and self._is_hidden(here):
            raise OSError(
                errno.EACCES, "a path that is hidden from sessions cannot be their root", self._source
            )
        self._shown = ViewPaths([], {}, False)
        self._done: set[int] = set()
        self._layers = 0
        self._fd = self._stage = self._root = ""

    def compose(self) -> ViewPaths:
        names = os.path.realpath("/etc/resolv.conf")
        text = _read(names)
        trees = {f"/{name}": mountinfo.clone(f"/{name}", recursive=True) for name in KERNEL_TREES}
        # the whole directory: the file in it may be replaced
        if self._source == "/" and text is not None and is_below(names, "/run"):
            trees[os.path.dirname(names)] = mountinfo.clone(os.path.dirname(names), recursive=True)
        source = os.open(self._source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fd = f"/proc/self/fd/{source}"
        self._stage = next(path for path in _STAGES if os.path.isdir(path))
        self._root = f"{self._stage}/root"
        syscalls.mount("tmpfs", self._stage, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
        os.mkdir(self._root)
        syscalls.mount("tmpfs", self._root, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
        self._cover("/", text if self._source != "/" else None)
        for mount in self._mounts:
            inside = self._inside(mount.point)
            if inside not in (None, "/") and mount.number not in self._done and not _is_private(inside):
                self._mounted(mount, inside)
        for inside, fd in trees.items():
            os.makedirs(self._root + inside, exist_ok=True)
            _attach(fd, self._root + inside)
        os.chdir(self._root)
        syscalls.pivot_root(".", ".")
        syscalls.umount(".", syscalls.MNT_DETACH)
        os.chdir("/")
        os.close(source)
        return self._shown

    def _outside(self, inside: str) -> str:
        """The path on this machine, below a descriptor that was opened before the new root was mounted over
        it."""
        return self._fd + inside if inside != "/" else self._fd + "/"

    def _inside(self, point: str) -> str | None:
        if not is_below(point, self._source):
            return None
        return "/" + point[len(self._source.rstrip("/")) :].lstrip("/")

    def _spot(self, inside: str) -> tuple[Mount, Spot]:
        """Find the mount and the spot of `inside`."""
        place = os.path.normpath(self._source + "/" + inside)
        mount = max(
            (mount for mount in self._mounts if is_below(place, mount.point)),
            key=lambda mount: len(mount.point),
        )
        return mount, Spot(
            mount.device, os.path.normpath(os.path.join(mount.root, os.path.relpath(place, mount.point)))
        )

    def _is_hidden(self, here: Spot) -> bool:
        return here in self._hidden or any(
            Spot(here.device, above) in self._hidden for above in _above(here.path)
        )

    def _hidden_below(self, inside: str, here: Spot) -> list[str]:
        """List hidden paths below `here`, relative to it."""
        top = here.path.rstrip("/") + "/"
        return [
            spot.path[len(top) :]
            for spot in self._hidden
            if spot.device == here.device and spot.path.startswith(top)
        ]

    def _mounted(self, mount: Mount, inside: str) -> None:
        """Add the mounts below `inside`."""
        self._done.add(mount.number)
        target = self._root + inside
        try:
            kind = stat.S_IFMT(os.lstat(target).st_mode)
        except OSError:  # its mount point is hidden
            return
        if self._is_hidden(Spot(mount.device, mount.root)):
            if is_below(self._workspace, inside):
                self._shown.masked.append(inside)
            return
        if kind == stat.S_IFDIR and mount.kind not in _NOT_SHOWN:
            with contextlib.suppress(OSError):
                self._cover(inside)
        elif kind == stat.S_IFREG and mount.kind not in _NOT_SHOWN:
            with contextlib.suppress(OSError):
                self._bind(inside, recursive=False)

    def _cover(self, inside: str, names: bytes | None = None) -> None:
        """Mount an overlay of the directory `inside`, without the mounts below it; `names` becomes
        /etc/resolv.conf."""
        mount, here = self._spot(inside)
        fd = os.open(self._outside(inside), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        before = ViewPaths(
            list(self._shown.masked),
            {folder: list(paths) for folder, paths in self._shown.late.items()},
            self._shown.bound,
        )
        try:
            layer = self._layer(inside, mount, here, fd)
            if names is not None:
                _add_folders(layer, fd, "etc")
                with open(f"{layer}/etc/resolv.conf", "wb") as file:
                    file.write(names)
            attributes = _HARMLESS | (syscalls.MOUNT_ATTR_NOEXEC if "noexec" in mount.options else 0)
            try:
                merged = _overlay(
                    (layer, f"/proc/self/fd/{fd}") if os.listdir(layer) else (f"/proc/self/fd/{fd}", layer),
                    attributes,
                )
            except OSError as error:
                self._shown = before
                self._without_overlay(inside, fd, error)
            else:
                _attach(merged, self._root + inside)
                self._done.add(mount.number)
        finally:
            os.close(fd)

    def _layer(self, inside: str, mount: Mount, here: Spot, fd: int) -> str:
        """Make the upper layer: whiteouts of hidden paths, and missing mount points."""
        layer = f"{self._stage}/{self._layers}"
        self._layers += 1
        os.mkdir(layer)
        _copy_attributes(f"/proc/self/fd/{fd}", layer)
        folders: dict[str, bool] = {}  # directory -> whether it exists below, and so in the layer
        top = inside.rstrip("/") + "/"
        for path in self._hidden_below(inside, here):
            place = top + path
            folder = path.rpartition("/")[0]
            if folder not in folders:
                folders[folder] = not _is_private(top + folder) and os.path.isdir(
                    f"/proc/self/fd/{fd}/{folder}"
                )
                if folders[folder]:
                    _add_folders(layer, fd, folder)
            if is_below(self._workspace, place):
                self._shown.masked.append(place)
            elif folders[folder]:
                os.mknod(f"{layer}/{path}", stat.S_IFCHR, 0)
            elif not _is_private(place):
                self._shown.late.setdefault(top + folder, []).append(place)
        for point in (*(f"/{name}" for name in KERNEL_TREES), *_PRIVATE, self._workspace):
            if (
                is_below(point, inside)
                and point != inside
                and self._spot(os.path.dirname(point))[0].number == mount.number
            ):
                path = os.path.relpath(point, inside)
                if not os.path.isdir(f"/proc/self/fd/{fd}/{path}"):
                    with contextlib.suppress(FileExistsError, NotADirectoryError):
                        _add_folders(layer, fd, path)
        return layer

    def _without_overlay(self, inside: str, fd: int, error: OSError) -> None:
        """Rebuild `inside` from its entries if the overlay was refused because of mounts below it; else
        bind-mount it."""
        below = [
            mount
            for mount in self._mounts
            if (point := self._inside(mount.point)) is not None
            and point != inside
            and is_below(point, inside)
        ]
        names = os.listdir(f"/proc/self/fd/{fd}/") if below else []
        if below and len(names) <= _ENTRIES_MAX:
            _copy_attributes(f"/proc/self/fd/{fd}", self._root + inside)
            for name in sorted(names):
                self._entry(os.path.join(inside, name))
            if is_below(self._workspace, inside) and not os.path.lexists(self._root + self._workspace):
                with contextlib.suppress(OSError):
                    os.makedirs(self._root + self._workspace)
            return
        if inside == "/":
            raise error
        self._bind(inside, recursive=True)
        self._shown = self._shown._replace(bound=True)
        self._done.update(mount.number for mount in below)
        for path in self._hidden_below(inside, self._spot(inside)[1]):
            self._shown.masked.append(os.path.normpath(f"{inside}/{path}"))

    def _entry(self, inside: str) -> None:
        """Add one entry of a rebuilt directory."""
        mount, here = self._spot(inside)
        source, target = self._outside(inside), self._root + inside
        try:
            found = os.lstat(source)
        except OSError:
            return
        if self._is_hidden(here) and not is_below(self._workspace, inside):
            return
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(source), target)
        elif stat.S_ISDIR(found.st_mode):
            os.mkdir(target, 0o755)
            if (
                inside in _PRIVATE
                or inside.lstrip("/") in KERNEL_TREES
                or (inside == mount.point and mount.kind in _NOT_SHOWN)
            ):
                return
            if self._is_hidden(here):
                self._shown.masked.append(inside)
            elif os.access(source, os.R_OK | os.X_OK):
                self._cover(inside)
            else:
                os.chmod(target, 0)
        elif stat.S_ISREG(found.st_mode):
            with contextlib.suppress(OSError):
                self._bind(inside, recursive=False)

    def _bind(self, inside: str, *, recursive: bool) -> None:
        target = self._root + inside
        tree = mountinfo.clone(self._outside(inside), recursive=recursive)
        if not os.path.lexists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        _attach(tree, target)


def refresh(namespace_of: int) -> None:
    """Drop cached lookups (absent entries, replaced files) of the overlays that make up the root of that
    process.

    The caller has CAP_SYS_ADMIN in the user namespace that made the overlays. Errors are ignored: the view is
    then as old as its cache.
    """
    points: list[tuple[int, bytes]] = []
    with contextlib.suppress(OSError), open(f"/proc/{namespace_of}/mountinfo", "rb") as table:
        ours = [line.split(b" ", 5) for line in table if f" - overlay {_MARK} ".encode() in line]
        points = [(int(words[0]), words[4]) for words in ours]
    for number, point in points:
        with (
            contextlib.suppress(OSError),
            _opened(f"/proc/{namespace_of}/root{mountinfo.plain(point)}") as fd,
        ):
            # a mount over it must not become read-only: it may be a file system of the machine
            if mountinfo.number_of(fd) != number:
                continue
            picked = syscalls.fspick(fd)
            try:
                # unchanged; without this flag the kernel reconfigures the mount for writing
                syscalls.fsconfig(picked, syscalls.FSCONFIG_SET_FLAG, "ro")
                syscalls.fsconfig(picked, syscalls.FSCONFIG_CMD_RECONFIGURE)
            finally:
                os.close(picked)


@contextlib.contextmanager
def _opened(path: str) -> Generator[int]:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _outermost(spots: Iterable[Spot]) -> dict[Spot, None]:
    """Drop spots below another one."""
    found: dict[Spot, None] = {}
    last = Spot("", "")
    for spot in sorted(spots, key=lambda spot: (spot.device, spot.path + "/")):
        if spot.device != last.device or not is_below(spot.path, last.path):
            found[spot] = None
            last = spot
    return found


def _above(path: str) -> Generator[str]:
    """The parent directories of `path`, nearest first."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _is_private(inside: str) -> bool:
    return any(is_below(inside, top) for top in (*_PRIVATE, *(f"/{name}" for name in KERNEL_TREES)))


def _overlay(lowerdirs: Sequence[str], attributes: int) -> int:
    """Make a detached overlay of paths without special characters, at most 255 characters: one `lowerdir`
    option."""
    fd = syscalls.fsopen("overlay")
    try:
        syscalls.fsconfig(fd, syscalls.FSCONFIG_SET_STRING, "source", _MARK)
        syscalls.fsconfig(fd, syscalls.FSCONFIG_SET_STRING, "lowerdir", ":".join(lowerdirs))
        syscalls.fsconfig(fd, syscalls.FSCONFIG_CMD_CREATE)
        return syscalls.fsmount(fd, attributes)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {'; '.join(syscalls.fs_messages(fd))}") from None
    finally:
        os.close(fd)


def _attach(fd: int, target: str) -> None:
    try:
        syscalls.move_mount(fd, target)
    finally:
        os.close(fd)


def _add_folders(layer: str, fd: int, path: str) -> None:
    """Make the directories of `path` in the layer, with the attributes of those in the directory `fd`."""
    at = ""
    for name in path.split("/"):
        at = f"{at}/{name}"
        if name and not os.path.isdir(layer + at):
            os.mkdir(layer + at, 0o755)
            _copy_attributes(f"/proc/self/fd/{fd}{at}", layer + at)


def _copy_attributes(source: str, target: str) -> None:
    """Copy mode and owner of a directory; an owner that this user namespace does not map is not set."""
    with contextlib.suppress(OSError):
        found = os.stat(source)
        if stat.S_ISDIR(found.st_mode):
            with contextlib.suppress(OSError):
                os.chown(target, found.st_uid, found.st_gid)
            os.chmod(target, stat.S_IMODE(found.st_mode))


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return None
