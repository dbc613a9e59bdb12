"""Mount a session's view: the workspace overlay, /proc, terminals, and masks over hidden paths.

There are two views. `shared` (Docker): root file system and /tmp are those of the sandbox and writable; a
session with a network of its own gets its own /tmp. `read_only` (the local provider, whose root
machine_view.py makes; Docker on request): `/` is read-only, /tmp and /run are the session's own. In both
views /dev is read-only, the store is unmounted, and /proc is the session's own, with masks: an unmasked /proc
would let uid 0 without any capability write /proc/sys/kernel/core_pattern. /sys is read-only if the machine's
is; a session with a network of its own gets a new one.

Mounts that are the same for all sessions are made once, by `prepare`, in the zygote's own mount namespace.
Each session gets a copy of that namespace.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from eos_agent.base import git_identity
from eos_agent.kernel import machine_view, mountinfo
from eos_agent.kernel.mountinfo import is_below
from eos_agent.machine import neighbours, secret_paths
from layerstack.kernel import syscalls

_PROC_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_PROC_MASKED_FILES = ("kcore", "keys", "kmsg", "latency_stats", "timer_list", "timer_stats", "sched_debug")
_PROC_MASKED_FOLDERS = ("/proc/acpi", "/proc/scsi", "/proc/asound")
_MASKED_SYS = ("/sys/firmware", "/sys/devices/virtual/powercap")
_INTERFACES = "/sys/class/net"
_CGROUPS = "/sys/fs/cgroup"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICES_MAX = 2000
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_NO_SPECIALS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_INERT = _NO_SPECIALS | syscalls.MS_NOEXEC


class SetupFailed(Exception):
    """A step of a session's set-up failed."""

    def __init__(self, step: str, code: int | None, message: str) -> None:
        super().__init__(message)
        self.step, self.errno, self.message = step, code, message


@contextmanager
def step(name: str) -> Generator[None]:
    """Turn an OSError in the block into a SetupFailed that names the step."""
    try:
        yield
    except OSError as error:
        where = "" if error.filename is None else f" ({os.fsdecode(error.filename)})"
        raise SetupFailed(name, error.errno, f"{error.strerror or error}{where}") from error


class MountPlan(NamedTuple):
    """The result of `prepare`, valid for all sessions. late: paths to mask once their directory (the key)
    exists.
    """

    workspace_root: str
    local: bool
    late: Mapping[str, Sequence[str]]
    sockets_show: bool
    """connect(2) to a socket outside the session may succeed in a read-only view, so that each session masks
    such sockets one by one.
    """
    git_files_fd: int
    """A writable mount of `git_identity.DIRECTORY`, which every session sees read-only."""


def prepare(
    workspace_root: str,
    hidden_paths: Sequence[str],
    private_dirs: Sequence[str],
    *,
    local: bool,
    rootfs: str | None,
) -> MountPlan:
    """Give the zygote a mount namespace without the store, with a harmless /dev and, with `local`, a
    read-only `/`.

    Raises:
        SetupFailed: a step failed; no session can be created.
    """
    with step("unshare the mount namespace"):
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    hidden = [os.path.normpath(path) for path in (*hidden_paths, *private_dirs)]
    shown = machine_view.ViewPaths([], {}, True)
    if local:
        with step("enter the rootfs" if rootfs is not None else "show the machine"):
            shown = machine_view.enter(
                rootfs, [*hidden, *secret_paths.hidden_here(), *neighbours.folders()], workspace_root
            )
        _read_only_root()
    git_files_fd = _dev(keep_all=not local)
    with step("hide the store"):
        for path in shown.masked if local else _places(hidden):
            detach_below(path)
            hide(path, workspace_root)
    with step("mask /sys"):
        for path in _MASKED_SYS:
            _mask_folder(path)
    return MountPlan(workspace_root, local, shown.late, shown.bound and rootfs is None, git_files_fd)


def _places(paths: Sequence[str]) -> list[str]:
    """Return the paths and all other paths at which a mount shows the same directories; deepest first, since
    a mask hides everything below it.
    """
    seen = mountinfo.visible(mountinfo.table())
    found = dict.fromkeys(paths)
    for spot in mountinfo.Looking(seen).spots(paths):
        found.update(dict.fromkeys(mountinfo.places(spot, seen)))
    return sorted(found, key=len, reverse=True)


def prepare_session(mount_plan: MountPlan, *, read_only: bool, own_network: bool, terminals: int) -> None:
    """Do the mounts of a session's init that are possible before its order arrives, in its copy of the
    zygote's namespace.

    own_network: the session has a network namespace of its own, which /sys must show. terminals: the most
    that it may have.

    Raises:
        SetupFailed: names the step.
    """
    if read_only:
        if not mount_plan.local:
            _read_only_root()
        _run()
        if not mount_plan.local:
            _dev(first=False)
    # of own_network: as isolated as its network: no socket or file of another session is visible there
    _mount_folders(own_folders(read_only=read_only, own_network=own_network))
    with step("mount /dev/pts"):
        if os.path.isdir("/dev/pts"):
            _devpts(terminals)
    _proc()
    if own_network and os.path.isdir("/sys"):
        _sys()


def _mount_folders(paths: Iterable[str]) -> None:
    for path in paths:
        with step(f"mount {path}"):
            if os.path.isdir(path):
                syscalls.mount("tmpfs", path, "tmpfs", _NO_SPECIALS, "mode=1777")


def own_folders(*, read_only: bool, own_network: bool) -> tuple[str, ...]:
    """List the directories for temporary files that are a session's own."""
    if read_only:
        return ("/tmp", "/dev/shm")
    return ("/tmp", "/var/tmp", "/dev/shm") if own_network else ()


def clone_folders(paths: Iterable[str]) -> dict[str, int]:
    """Clone the mounts of a session's own directories, in its namespace: path -> descriptor of a detached
    mount, which keeps the files.
    """
    return {path: syscalls.open_tree(path) for path in paths if os.path.isdir(path)}


def enter_session(
    mount_plan: MountPlan,
    mount_fd: int,
    *,
    read_only: bool,
    masked: Iterable[str],
    folders: Mapping[str, int] | None = None,
) -> None:
    """Mask `masked` and paths that appeared since the zygote started, then mount the workspace.
    `prepare_session` was called before.

    folders: path -> detached mount, as `clone_folders` gave it in the namespace of the init before.

    Raises:
        SetupFailed: names the step.
    """
    if read_only:
        with step("hide secrets"):
            for folder, paths in mount_plan.late.items():
                if os.path.lexists(folder):
                    for path in paths:
                        hide(path, mount_plan.workspace_root)
    with step("hide sockets and late folders"):
        for path in masked:
            _mask(path, mount_plan.workspace_root)
    for path, fd in (folders or {}).items():
        with step(f"keep {path}"):
            if os.path.isdir(path):
                syscalls.move_mount(fd, path)
    _workspace(mount_plan.workspace_root, mount_fd)


def writable_folders(workspace_root: str) -> list[str]:
    """Return the existing directories below which a read-only session may write."""
    return [path for path in (workspace_root, "/tmp", "/run", "/dev", "/proc") if os.path.isdir(path)]


def listening_sockets() -> list[str]:
    """Return the paths of the open unix sockets of this network namespace: engines, buses, key agents."""
    paths: set[str] = set()
    with open("/proc/net/unix", "rb") as table:
        for line in table:
            columns = line.rstrip(b"\n").split(None, 7)
            if len(columns) == 8 and columns[7].startswith(b"/"):
                paths.add(os.fsdecode(columns[7]))
    return sorted(paths)


def detach_below(path: str) -> None:
    """Unmount every mount at or below `path` in this mount namespace, so that no mount remains under the
    mask.

    A mount from a more privileged namespace is locked (EINVAL, user_namespaces(7)): only the mask hides it.
    """
    for point in reversed(_mount_points(path)):
        try:
            syscalls.umount(point, syscalls.MNT_DETACH)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise


def hide(path: str, keep: str) -> None:
    """Mask `path` by an empty read-only directory or file. If the workspace `keep` is below `path`, the
    directories that lead to it can still be traversed.
    """
    try:
        found = os.lstat(path)
    except (
        FileNotFoundError,
        NotADirectoryError,
        PermissionError,
    ):  # lstat(2) fails, so it is hidden already
        return
    if stat.S_ISLNK(found.st_mode):
        path = os.path.realpath(path)
        if not os.path.exists(path):
            return
    if not os.path.isdir(path):
        syscalls.mount("/dev/null", path, None, syscalls.MS_BIND)
        return
    if is_below(keep, path):
        syscalls.mount("tmpfs", path, "tmpfs", _INERT, "size=64k,mode=0711")
        os.makedirs(keep, exist_ok=True)
        syscalls.mount_setattr(path, syscalls.MOUNT_ATTR_RDONLY)
    else:
        syscalls.mount("tmpfs", path, "tmpfs", _INERT | syscalls.MS_RDONLY, "size=4k,mode=000")


def _read_only_root() -> None:
    with step("make / read-only"):
        syscalls.mount_setattr("/", syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID, recursive=True)


def _mount_points(top: str) -> list[str]:
    """Mount points at or below `top`, in the order in which they were mounted."""
    return [mount.point for mount in mountinfo.table() if is_below(mount.point, top)]


def _proc() -> None:
    with step("mount /proc"):
        if not os.path.isdir("/proc"):
            os.mkdir("/proc")
        syscalls.mount("proc", "/proc", "proc", _INERT)
    with step("mask /proc"):
        attributes = (
            syscalls.MOUNT_ATTR_RDONLY
            | syscalls.MOUNT_ATTR_NOSUID
            | syscalls.MOUNT_ATTR_NODEV
            | syscalls.MOUNT_ATTR_NOEXEC
        )
        for path in _PROC_READ_ONLY:
            if os.path.exists(path):
                syscalls.mount(path, path, None, syscalls.MS_BIND | syscalls.MS_REC)
                syscalls.mount_setattr(path, attributes)
        for name in _PROC_MASKED_FILES:
            if os.path.exists(f"/proc/{name}"):
                syscalls.mount("/dev/null", f"/proc/{name}", None, syscalls.MS_BIND)
        for path in _PROC_MASKED_FOLDERS:
            _mask_folder(path)


def _sys() -> None:
    """Mount a /sys of this network namespace: a sysfs shows the namespace that it was mounted in (sysfs(5)).

    In a user namespace in which parts of the old /sys are masked and locked, the kernel refuses a new one
    (EPERM); then the interfaces are masked.
    """
    with step("mount /sys"):
        groups = mountinfo.clone(_CGROUPS, recursive=True) if os.path.isdir(_CGROUPS) else -1
        try:
            try:
                syscalls.mount("sysfs", "/sys", "sysfs", _INERT | syscalls.MS_RDONLY)
            except PermissionError:
                _hide_interfaces()
                return
            for path in _MASKED_SYS:
                _mask_folder(path)
            if groups >= 0:
                syscalls.move_mount(groups, _CGROUPS)
        finally:
            if groups >= 0:
                os.close(groups)


def _hide_interfaces() -> None:
    """Mask /sys/class/net and the directories that its links point into."""
    names = os.listdir(_INTERFACES) if os.path.isdir(_INTERFACES) else []
    for path in sorted(
        {_INTERFACES, *(os.path.dirname(os.path.realpath(f"{_INTERFACES}/{name}")) for name in names)}
    ):
        _mask_folder(path)


def _mask_folder(path: str) -> None:
    if os.path.isdir(path):
        syscalls.mount("tmpfs", path, "tmpfs", _INERT | syscalls.MS_RDONLY, "size=4k,mode=555")


def _devpts(most: int) -> None:
    # kernel.pty.max, the limit of the machine, is shared by all
    options = f"newinstance,ptmxmode=0666,mode=0620,max={most}"
    try:
        syscalls.mount(
            "devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options + ",gid=5"
        )
    except OSError as error:
        if error.errno != errno.EINVAL:  # gid 5, tty, is not mapped in a user namespace of one group
            raise
        syscalls.mount("devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options)


def _dev(*, keep_all: bool = False, first: bool = True) -> int:
    """Mount a read-only /dev of harmless devices with /dev/shm and /dev/pts; with `keep_all`, of all devices
    and mounts that /dev has.

    first: make the directory of git's files and return a descriptor of a writable mount of it; otherwise the
    /dev before has it, and -1 is returned.

    The new /dev is a file system of its own: otherwise a session could replace /dev/null for all sessions.
    """
    with step("mount /dev"):
        if not os.path.isdir("/dev"):
            os.mkdir("/dev")
        found = _devices("/dev") if keep_all else {}
        for name in _DEVICES:
            if os.path.exists(f"/dev/{name}"):
                found[name] = os.stat(f"/dev/{name}")
        trees = {
            name: mountinfo.clone(f"/dev/{name}")
            for name, node in found.items()
            if not stat.S_ISDIR(node.st_mode)
        }
        below = (
            [os.path.relpath(point, "/dev") for point in _mount_points("/dev") if point != "/dev"]
            if keep_all
            else []
        )
        places = {
            name: mountinfo.clone(f"/dev/{name}", recursive=True)
            for name in below
            if "/" not in name and name not in trees and f"/dev/{name}" != git_identity.DIRECTORY
        }
        links = (
            {
                name: os.readlink(f"/dev/{name}")
                for name in os.listdir("/dev")
                if os.path.islink(f"/dev/{name}")
            }
            if keep_all
            else {}
        )
        git_files = -1 if first else mountinfo.clone(git_identity.DIRECTORY)
        syscalls.mount(
            "tmpfs", "/dev", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "mode=0755,size=256k"
        )
        for name in sorted(found):
            if stat.S_ISDIR(found[name].st_mode):
                os.makedirs(f"/dev/{name}", exist_ok=True)
            else:
                _device(f"/dev/{name}", found[name], trees.pop(name))
        for name, target in {**links, **_DEVICE_LINKS}.items():
            if not os.path.lexists(f"/dev/{name}"):
                os.symlink(target, f"/dev/{name}")
        for name in ("shm", "pts", *places):
            os.makedirs(f"/dev/{name}", exist_ok=True)
            if name in places:
                syscalls.move_mount(places[name], f"/dev/{name}")
                os.close(places.pop(name))
        os.makedirs(git_identity.DIRECTORY, 0o755, exist_ok=True)
        if first:
            git_files = _git_files()
        else:
            syscalls.move_mount(git_files, git_identity.DIRECTORY)
            os.close(git_files)
        syscalls.mount_setattr("/dev", syscalls.MOUNT_ATTR_RDONLY)
        return git_files if first else -1


def _git_files() -> int:
    """Mount an empty directory for git's files, read-only. Returns a descriptor of a writable mount of it."""
    top = git_identity.DIRECTORY
    syscalls.mount("tmpfs", top, "tmpfs", _INERT, "mode=0755,size=8m,nr_inodes=4k")
    writable_fd = mountinfo.clone(top)
    syscalls.mount_setattr(top, syscalls.MOUNT_ATTR_RDONLY)
    return writable_fd


def _devices(top: str) -> dict[str, os.stat_result]:
    """Return directories and devices below `top` by relative path; mounts of other file systems are not
    entered."""
    found: dict[str, os.stat_result] = {}
    here = os.lstat(top).st_dev
    for folder, names, files in os.walk(top):
        names[:] = [name for name in names if os.lstat(f"{folder}/{name}").st_dev == here]
        for name in (*names, *files):
            node = os.lstat(f"{folder}/{name}")
            if (
                stat.S_IFMT(node.st_mode) in (stat.S_IFDIR, stat.S_IFCHR, stat.S_IFBLK)
                and len(found) < _DEVICES_MAX
            ):
                found[os.path.relpath(f"{folder}/{name}", top)] = node
    return found


def _device(path: str, node: os.stat_result, tree: int) -> None:
    """Make the device node; without the right to do so, mount `tree`, a clone of the old node. `tree` is
    closed."""
    try:
        os.mknod(path, node.st_mode, node.st_rdev)
        os.chmod(path, stat.S_IMODE(node.st_mode))
        os.chown(path, node.st_uid, node.st_gid)
        os.close(os.open(path, os.O_PATH | os.O_CLOEXEC))
    except PermissionError:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        syscalls.move_mount(tree, path)
    finally:
        os.close(tree)


def _run() -> None:
    """Mount an empty /run over the machine's, which has the sockets of engines, D-Bus and ssh-agents. The
    target of resolv.conf is mounted again.
    """
    with step("mount /run"):
        for run in ("/run", "/var/run"):
            if not os.path.isdir(run) or os.path.islink(run):
                continue
            names = os.path.realpath("/etc/resolv.conf")
            kept = syscalls.open_tree(names) if is_below(names, run) and os.path.isfile(names) else -1
            syscalls.mount("tmpfs", run, "tmpfs", _NO_SPECIALS, "mode=0755")
            if kept >= 0:
                os.makedirs(os.path.dirname(names), exist_ok=True)
                os.close(os.open(names, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
                syscalls.move_mount(kept, names)
                os.close(kept)


def mask(paths: Iterable[str], workspace_root: str) -> list[str]:
    """Mask new paths in a live session. Returns the paths that were not masked: a parent of the workspace, or
    one whose mount the kernel refused.
    """
    failed: list[str] = []
    for path in paths:
        try:
            if is_below(workspace_root, path):  # a mask would hide the mounted workspace
                failed.append(path)
            else:
                _mask(path, workspace_root)
        except OSError:
            failed.append(path)
    return failed


def _mask(path: str, workspace_root: str) -> None:
    if is_below(path, workspace_root):
        return
    try:
        found = os.lstat(path)
    except (
        FileNotFoundError,
        NotADirectoryError,
        PermissionError,
    ):  # no process of this user can open it
        return
    if stat.S_ISDIR(found.st_mode):
        hide(path, workspace_root)
    if stat.S_ISSOCK(found.st_mode):
        try:
            syscalls.mount("/dev/null", path, None, syscalls.MS_BIND)
        except FileNotFoundError:
            pass


def _workspace(workspace_root: str, mount_fd: int) -> None:
    with step("mount the workspace"):
        if not os.path.isdir(workspace_root):
            os.makedirs(workspace_root)
        syscalls.move_mount(mount_fd, workspace_root)
        os.close(mount_fd)  # an open descriptor of a mount keeps it busy
