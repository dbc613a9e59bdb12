"""The root of a local session: this machine's file systems (or a rootfs), each behind a read-only overlay that leaves out what is hidden.

An overlay has inodes of its own. So a unix socket or a FIFO of the machine is a name in there and nothing else: connect(2) looks for the inode
that was bound and does not find it, whatever name it was bound by and whenever; a read-only mount alone stops no connect(2). What is hidden
is a whiteout in a layer above, found by file system and path in it (mounts.py) on every mount that shows it; it stays hidden when its file
is replaced, which takes a mount over it away.

An overlay remembers what it looked up: `refresh` makes it look again (ADR 0038).

The powers of a user namespace do not reach to an overlay of a folder with mounts below it, which could show what these mounts cover (EINVAL).
Such a folder becomes an ordinary one, whose entries are looked at one by one. What no overlay can be made of is bound, and the sockets in
there are hidden one by one, as far as they are known (view.py).
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
"""Each session mounts its own there."""
_STAGES = ("/tmp", "/mnt", "/run", "/dev/shm")
_MARK = "eos-view"
"""The source of our overlays, as mountinfo shows it."""
_ENTRIES_MAX = 400
"""A folder with mounts below it and more entries than this is bound as it is: each entry is a mount that each session copies."""
_NOT_SHOWN = frozenset(
    {"autofs", "nsfs", "proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "binfmt_misc", "debugfs", "tracefs"}
)
_HARMLESS = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV


class ViewPaths(NamedTuple):
    """Paths in the new root. masked: hidden, but a mount over it has to do that. late: hidden, its folder (the key) is not there yet. bound: some of
    it is no overlay, so that its sockets are not cut off."""

    masked: list[str]
    late: dict[str, list[str]]
    bound: bool


def enter(rootfs: str | None, hidden: Sequence[str], workspace_root: str) -> ViewPaths:
    """Make it the root of this mount namespace.

    Args:
        rootfs: a folder, or None for this machine's own root.
        hidden: absolute paths of this machine; what is behind them is left out on every mount.

    Raises:
        OSError: it cannot be made; EACCES: `rootfs` is itself a part of what is hidden.
    """
    return _Composer(rootfs or "/", hidden, workspace_root).compose()


class _Composer:
    """`inside` is a path as sessions will see it; `_outside(inside)` the same place on this machine."""

    def __init__(self, source: str, hidden: Sequence[str], workspace_root: str) -> None:
        self._source = os.path.realpath(source)
        self._workspace = os.path.realpath(workspace_root) if self._source == "/" else workspace_root
        self._mounts = mountinfo.visible(mountinfo.table())
        looking = Looking(self._mounts)
        self._hidden = _outermost(looking.spots(hidden))
        here = looking.spot(self._source)
        if self._source != "/" and here is not None and self._is_hidden(here):
            raise OSError(errno.EACCES, "what is hidden from sessions cannot be their root", self._source)
        self._shown = ViewPaths([], {}, False)
        self._done: set[int] = set()
        self._layers = 0
        self._fd = self._stage = self._root = ""

    def compose(self) -> ViewPaths:
        names = os.path.realpath("/etc/resolv.conf")
        text = _read(names)
        trees = {f"/{name}": mountinfo.clone(f"/{name}", recursive=True) for name in KERNEL_TREES}
        if self._source == "/" and text is not None and is_below(names, "/run"):  # the whole folder: the file is replaced now and then
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
        """On this machine, but for what the stage covers: looked up from a descriptor that was opened before."""
        return self._fd + inside if inside != "/" else self._fd + "/"

    def _inside(self, point: str) -> str | None:
        if not is_below(point, self._source):
            return None
        return "/" + point[len(self._source.rstrip("/")) :].lstrip("/")

    def _spot(self, inside: str) -> tuple[Mount, Spot]:
        """The mount that `inside` is looked up on, and what is there."""
        place = os.path.normpath(self._source + "/" + inside)
        mount = max((mount for mount in self._mounts if is_below(place, mount.point)), key=lambda mount: len(mount.point))
        return mount, Spot(mount.device, os.path.normpath(os.path.join(mount.root, os.path.relpath(place, mount.point))))

    def _is_hidden(self, here: Spot) -> bool:
        return here in self._hidden or any(Spot(here.device, above) in self._hidden for above in _above(here.path))

    def _hidden_below(self, inside: str, here: Spot) -> list[str]:
        """What is hidden of it, as paths in it."""
        top = here.path.rstrip("/") + "/"
        return [spot.path[len(top) :] for spot in self._hidden if spot.device == here.device and spot.path.startswith(top)]

    def _mounted(self, mount: Mount, inside: str) -> None:
        """What is mounted somewhere below."""
        self._done.add(mount.number)
        target = self._root + inside
        try:
            kind = stat.S_IFMT(os.lstat(target).st_mode)
        except OSError:  # it is mounted on what is hidden
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
        """Show the folder at `inside`, as far as one mount shows it; `names` becomes /etc/resolv.conf."""
        mount, here = self._spot(inside)
        fd = os.open(self._outside(inside), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        before = ViewPaths(list(self._shown.masked), {folder: list(paths) for folder, paths in self._shown.late.items()}, self._shown.bound)
        try:
            layer = self._layer(inside, mount, here, fd)
            if names is not None:
                _add_folders(layer, fd, "etc")
                with open(f"{layer}/etc/resolv.conf", "wb") as file:
                    file.write(names)
            attributes = _HARMLESS | (syscalls.MOUNT_ATTR_NOEXEC if "noexec" in mount.options else 0)
            try:
                merged = _overlay((layer, f"/proc/self/fd/{fd}") if os.listdir(layer) else (f"/proc/self/fd/{fd}", layer), attributes)
            except OSError as error:
                self._shown = before
                self._without_overlay(inside, fd, error)
            else:
                _attach(merged, self._root + inside)
                self._done.add(mount.number)
        finally:
            os.close(fd)

    def _layer(self, inside: str, mount: Mount, here: Spot, fd: int) -> str:
        """A folder for above it: whiteouts of what is hidden, and the mount points that it lacks."""
        layer = f"{self._stage}/{self._layers}"
        self._layers += 1
        os.mkdir(layer)
        _copy_attributes(f"/proc/self/fd/{fd}", layer)
        folders: dict[str, bool] = {}  # whether it is there, and then in the layer too
        top = inside.rstrip("/") + "/"
        for path in self._hidden_below(inside, here):
            place = top + path
            folder = path.rpartition("/")[0]
            if folder not in folders:
                folders[folder] = not _is_private(top + folder) and os.path.isdir(f"/proc/self/fd/{fd}/{folder}")
                if folders[folder]:
                    _add_folders(layer, fd, folder)
            if is_below(self._workspace, place):
                self._shown.masked.append(place)
            elif folders[folder]:
                os.mknod(f"{layer}/{path}", stat.S_IFCHR, 0)
            elif not _is_private(place):
                self._shown.late.setdefault(top + folder, []).append(place)
        for point in (*(f"/{name}" for name in KERNEL_TREES), *_PRIVATE, self._workspace):
            if is_below(point, inside) and point != inside and self._spot(os.path.dirname(point))[0].number == mount.number:
                path = os.path.relpath(point, inside)
                if not os.path.isdir(f"/proc/self/fd/{fd}/{path}"):
                    with contextlib.suppress(FileExistsError, NotADirectoryError):
                        _add_folders(layer, fd, path)
        return layer

    def _without_overlay(self, inside: str, fd: int, error: OSError) -> None:
        """`inside` by its entries, where mounts below it are what the overlay was refused for; else bound."""
        below = [
            mount
            for mount in self._mounts
            if (point := self._inside(mount.point)) is not None and point != inside and is_below(point, inside)
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
        """One entry of a folder that became an ordinary one."""
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
            if inside in _PRIVATE or inside.lstrip("/") in KERNEL_TREES or (inside == mount.point and mount.kind in _NOT_SHOWN):
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
    """Have the overlays of that process' root look again at what they remember and do not use: entries that were not there, files that were replaced.

    The caller has CAP_SYS_ADMIN in the user namespace that made them. What could not be done is not told: they show what they remember.
    """
    points: list[tuple[int, bytes]] = []
    with contextlib.suppress(OSError), open(f"/proc/{namespace_of}/mountinfo", "rb") as table:
        ours = [line.split(b" ", 5) for line in table if f" - overlay {_MARK} ".encode() in line]
        points = [(int(words[0]), words[4]) for words in ours]
    for number, point in points:
        with contextlib.suppress(OSError), _opened(f"/proc/{namespace_of}/root{mountinfo.plain(point)}") as fd:
            # what lies over it must not be made read-only: it may be a file system of the machine
            if mountinfo.number_of(fd) != number:
                continue
            picked = syscalls.fspick(fd)
            try:
                syscalls.fsconfig(picked, syscalls.FSCONFIG_SET_FLAG, "ro")  # as it is: without, the kernel takes it for a wish to write
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
    """Without those that lie in another one."""
    found: dict[Spot, None] = {}
    last = Spot("", "")
    for spot in sorted(spots, key=lambda spot: (spot.device, spot.path + "/")):
        if spot.device != last.device or not is_below(spot.path, last.path):
            found[spot] = None
            last = spot
    return found


def _above(path: str) -> Generator[str]:
    """The folders that it lies in, from the nearest on."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _is_private(inside: str) -> bool:
    return any(is_below(inside, top) for top in (*_PRIVATE, *(f"/{name}" for name in KERNEL_TREES)))


def _overlay(lowerdirs: Sequence[str], attributes: int) -> int:
    """Detached, of paths without special characters, together of up to 255: any kernel takes them as one `lowerdir`."""
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
    """`path` as folders of the layer, with the attributes of those that are there in the folder `fd` below it."""
    at = ""
    for name in path.split("/"):
        at = f"{at}/{name}"
        if name and not os.path.isdir(layer + at):
            os.mkdir(layer + at, 0o755)
            _copy_attributes(f"/proc/self/fd/{fd}{at}", layer + at)


def _copy_attributes(source: str, target: str) -> None:
    """Mode and owner of a folder; an owner that has no name in this user namespace is left out."""
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
