"""What a session sees: the workspace overlay, /proc, terminals, and masks over what is not its business.

Two views. `shared` (Docker): root file system, /tmp and /dev are the sandbox's own, writable. `read_only` (the local provider, and on
demand): `/` is read-only, /tmp, /run and /dev are private. In both, the store's mounts leave the session's namespace for good, /proc
is its own and masked again: a fresh one would let uid 0 without any capability write /proc/sys/kernel/core_pattern. /sys is read-only where
the machine's is, and a new one in a session with a network of its own.

What is the same for all sessions is mounted once, by `prepare`, in the zygote's own mount namespace, of which each session gets a copy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from layerstack import linux

SECRET_NAMES = (".ssh", ".gnupg", ".aws", ".kube", ".docker", ".netrc")
_PROC_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_PROC_MASKED_FILES = ("kcore", "keys", "kmsg", "latency_stats", "timer_list", "timer_stats", "sched_debug")
_PROC_MASKED_FOLDERS = ("/proc/acpi", "/proc/scsi", "/proc/asound")
_MASKED_SYS = ("/sys/firmware", "/sys/devices/virtual/powercap")
_INTERFACES = "/sys/class/net"
_CGROUPS = "/sys/fs/cgroup"
_WHOLE_TREE = linux.OPEN_TREE_CLONE | linux.OPEN_TREE_CLOEXEC | linux.AT_RECURSIVE
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_KERNEL_TREES = ("dev", "proc", "sys")
_NO_SPECIALS = linux.MS_NOSUID | linux.MS_NODEV
_INERT = _NO_SPECIALS | linux.MS_NOEXEC


class SetupFailed(Exception):
    """A step of making a session was refused."""

    def __init__(self, step: str, code: int | None, message: str) -> None:
        super().__init__(message)
        self.step, self.errno, self.message = step, code, message


@contextmanager
def step(name: str) -> Generator[None]:
    """Name what is being done, for whoever reads why it failed."""
    try:
        yield
    except OSError as error:
        where = "" if error.filename is None else f" ({os.fsdecode(error.filename)})"
        raise SetupFailed(name, error.errno, f"{error.strerror or error}{where}") from error


class Scene(NamedTuple):
    """What `prepare` mounted for sessions to come. late_secrets were not there yet; sockets are looked for at each session."""

    workspace_root: str
    local: bool
    rootfs: bool
    late_secrets: list[str]


def prepare(workspace_root: str, hidden_paths: Sequence[str], private_dirs: Sequence[str], *, local: bool, rootfs: str | None) -> Scene:
    """In the zygote: a mount namespace of its own in which the store is gone and, with `local`, `/` read-only and /dev harmless.

    Raises:
        SetupFailed: no session can be made.
    """
    with step("unshare the mount namespace"):
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    secrets = secret_paths() if local and rootfs is None else []
    if rootfs is not None:
        _enter_rootfs(rootfs, workspace_root)
    if local:
        _read_only_root()
    with step("hide the store"):
        if rootfs is None:
            for path in (*hidden_paths, *private_dirs, *secrets):
                detach_below(path)
                hide(path, workspace_root)
    if local:
        _dev()
    with step("mask /sys"):
        for path in _MASKED_SYS:
            _mask_folder(path)
    return Scene(workspace_root, local, rootfs is not None, [path for path in secrets if not os.path.lexists(path)])


def stage(scene: Scene, *, read_only: bool, own_network: bool) -> None:
    """In pid 1 of a session, a copy of the zygote's namespace: what does not depend on the session and may be done before it is asked for.

    own_network: it is in a network namespace of its own, which /sys has to show instead of the machine's.

    Raises:
        SetupFailed: it names the step.
    """
    if read_only:
        if not scene.local:
            _read_only_root()
        _run()
        with step("mount /tmp"):
            if os.path.isdir("/tmp"):
                linux.mount("tmpfs", "/tmp", "tmpfs", _NO_SPECIALS, "mode=1777")
        if not scene.local:
            _dev()
        with step("mount /dev/shm"):
            linux.mount("tmpfs", "/dev/shm", "tmpfs", _NO_SPECIALS, "mode=1777")
    with step("mount /dev/pts"):
        if os.path.isdir("/dev/pts"):
            _devpts()
    _proc()
    if own_network and os.path.isdir("/sys"):
        _sys()


def show(scene: Scene, mount_fd: int, *, read_only: bool, sockets: Iterable[str]) -> None:
    """After `stage`: hide what came up since the zygote started, and show the workspace.

    Raises:
        SetupFailed: it names the step.
    """
    if read_only:
        with step("hide secrets and sockets"):
            for path in scene.late_secrets:
                hide(path, scene.workspace_root)
            if not scene.rootfs:
                for path in sockets:
                    _hide_socket(path, scene.workspace_root)
    _workspace(scene.workspace_root, mount_fd)


def writable_folders(workspace_root: str) -> list[str]:
    """The folders below which a read-only session may write, as far as they are there."""
    return [path for path in (workspace_root, "/tmp", "/run", "/dev", "/proc") if os.path.isdir(path)]


def secret_paths() -> list[str]:
    """Where people keep keys: SECRET_NAMES in the home of whoever started the agent; in every person's home when that is root."""
    homes = {os.environ.get("HOME", "")}
    try:
        with open("/proc/self/uid_map") as f:
            uid = int(f.read().split()[1])
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as f:
            for line in f:
                fields = line.split(":")
                if len(fields) > 5 and fields[2].isdigit() and (int(fields[2]) == uid or (uid == 0 and 1000 <= int(fields[2]) < 65534)):
                    homes.add(fields[5])
    except (OSError, IndexError):
        pass
    return [os.path.join(home, name) for home in sorted(homes) if home.startswith("/") and os.path.isdir(home) for name in SECRET_NAMES]


def listening_sockets() -> list[str]:
    """Path names of the unix sockets that somebody holds open in this network namespace; engines, buses and key agents are among them."""
    paths: set[str] = set()
    with open("/proc/net/unix", "rb") as table:
        for line in table:
            columns = line.rstrip(b"\n").split(None, 7)
            if len(columns) == 8 and columns[7].startswith(b"/"):
                paths.add(os.fsdecode(columns[7]))
    return sorted(paths)


def detach_below(path: str) -> None:
    """Take every mount at or below `path` out of this mount namespace, so that nothing remains under the mask.

    A mount that came from a more powerful namespace is locked (EINVAL, user_namespaces(7)); the mask alone hides that one.
    """
    for point in reversed(_mount_points(path)):
        try:
            linux.umount(point, linux.MNT_DETACH)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise


def hide(path: str, keep: str) -> None:
    """Show `path` as an empty folder that nobody can write to, or an empty file. Folders towards the workspace `keep` stay passable."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # what cannot even be looked at is hidden enough
        return
    if stat.S_ISLNK(found.st_mode):
        path = os.path.realpath(path)
        if not os.path.exists(path):
            return
    if not os.path.isdir(path):
        linux.mount("/dev/null", path, None, linux.MS_BIND)
        return
    if is_below(keep, path):
        linux.mount("tmpfs", path, "tmpfs", _INERT, "size=64k,mode=0711")
        os.makedirs(keep, exist_ok=True)
        linux.mount_setattr(path, linux.MOUNT_ATTR_RDONLY)
    else:
        linux.mount("tmpfs", path, "tmpfs", _INERT | linux.MS_RDONLY, "size=4k,mode=000")


def is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _read_only_root() -> None:
    with step("make / read-only"):
        linux.mount_setattr("/", linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID, recursive=True)


def _mount_points(top: str) -> list[str]:
    """Mount points at or below `top`, in the order in which they were mounted."""
    points: list[str] = []
    needle = os.fsencode(top).replace(b"\\", b"\\134").replace(b" ", b"\\040").replace(b"\t", b"\\011").replace(b"\n", b"\\012")
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            point = line.split(b" ", 5)[4]
            if point == needle or point.startswith(needle + b"/"):
                plain = point.replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\012", b"\n").replace(b"\\134", b"\\")
                points.append(os.fsdecode(plain))
    return points


def _proc() -> None:
    with step("mount /proc"):
        if not os.path.isdir("/proc"):
            os.mkdir("/proc")
        linux.mount("proc", "/proc", "proc", _INERT)
    with step("mask /proc"):
        attributes = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC
        for path in _PROC_READ_ONLY:
            if os.path.exists(path):
                linux.mount(path, path, None, linux.MS_BIND | linux.MS_REC)
                linux.mount_setattr(path, attributes)
        for name in _PROC_MASKED_FILES:
            if os.path.exists(f"/proc/{name}"):
                linux.mount("/dev/null", f"/proc/{name}", None, linux.MS_BIND)
        for path in _PROC_MASKED_FOLDERS:
            _mask_folder(path)


def _sys() -> None:
    """A /sys that shows the interfaces of this network namespace: which ones a sysfs shows is settled when it is mounted (sysfs(5)).

    The kernel refuses a new one in a user namespace that sees parts of the old one masked for good (EPERM): interfaces are hidden there.
    """
    with step("mount /sys"):
        groups = linux.open_tree(_CGROUPS, _WHOLE_TREE) if os.path.isdir(_CGROUPS) else -1
        try:
            try:
                linux.mount("sysfs", "/sys", "sysfs", _INERT | linux.MS_RDONLY)
            except PermissionError:
                _hide_interfaces()
                return
            for path in _MASKED_SYS:
                _mask_folder(path)
            if groups >= 0:
                linux.move_mount(groups, _CGROUPS)
        finally:
            if groups >= 0:
                os.close(groups)


def _hide_interfaces() -> None:
    """Empty folders in the place of those that hold what /sys/class/net points to, and of that."""
    names = os.listdir(_INTERFACES) if os.path.isdir(_INTERFACES) else []
    for path in sorted({_INTERFACES, *(os.path.dirname(os.path.realpath(f"{_INTERFACES}/{name}")) for name in names)}):
        _mask_folder(path)


def _mask_folder(path: str) -> None:
    if os.path.isdir(path):
        linux.mount("tmpfs", path, "tmpfs", _INERT | linux.MS_RDONLY, "size=4k,mode=555")


def _devpts() -> None:
    options = "newinstance,ptmxmode=0666,mode=0620"
    try:
        linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options + ",gid=5")
    except OSError as error:
        if error.errno != errno.EINVAL:  # gid 5, tty, has no name in a user namespace of one group
            raise
        linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)


def _dev() -> None:
    """A read-only /dev of harmless devices, with places for /dev/shm and /dev/pts."""
    with step("mount /dev"):
        nodes = {name: linux.open_tree(f"/dev/{name}") for name in _DEVICES if os.path.exists(f"/dev/{name}")}
        linux.mount("tmpfs", "/dev", "tmpfs", linux.MS_NOSUID | linux.MS_NOEXEC, "mode=0755,size=64k")
        for name, tree in nodes.items():
            os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            linux.move_mount(tree, f"/dev/{name}")
            os.close(tree)
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, f"/dev/{name}")
        os.mkdir("/dev/shm")
        os.mkdir("/dev/pts")
        linux.mount_setattr("/dev", linux.MOUNT_ATTR_RDONLY)


def _run() -> None:
    """An empty /run: engine sockets, D-Bus and ssh-agents live there. What resolv.conf points to comes back."""
    with step("mount /run"):
        for run in ("/run", "/var/run"):
            if not os.path.isdir(run) or os.path.islink(run):
                continue
            names = os.path.realpath("/etc/resolv.conf")
            kept = linux.open_tree(names) if is_below(names, run) and os.path.isfile(names) else -1
            linux.mount("tmpfs", run, "tmpfs", _NO_SPECIALS, "mode=0755")
            if kept >= 0:
                os.makedirs(os.path.dirname(names), exist_ok=True)
                os.close(os.open(names, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
                linux.move_mount(kept, names)
                os.close(kept)


def _hide_socket(path: str, workspace_root: str) -> None:
    if is_below(path, workspace_root):
        return
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # what we cannot reach, nobody of this user can
        return
    if stat.S_ISSOCK(found.st_mode):
        with contextlib.suppress(FileNotFoundError):
            linux.mount("/dev/null", path, None, linux.MS_BIND)


def _workspace(workspace_root: str, mount_fd: int) -> None:
    with step("mount the workspace"):
        if not os.path.isdir(workspace_root):
            os.makedirs(workspace_root)
        linux.move_mount(mount_fd, workspace_root)
        os.close(mount_fd)  # an open descriptor of a mount keeps it busy


def _enter_rootfs(rootfs: str, workspace_root: str) -> None:
    """Make `rootfs` the root: read-only, with the mount points that it lacks added by a layer of empty folders above it."""
    with step("enter the rootfs"):
        tree = linux.open_tree(rootfs, _WHOLE_TREE)
        kernel = {name: linux.open_tree(f"/{name}", _WHOLE_TREE) for name in _KERNEL_TREES}
        names = _read("/etc/resolv.conf")
        stage = next(path for path in ("/tmp", "/mnt", "/run", "/dev/shm") if os.path.isdir(path))
        linux.mount("tmpfs", stage, "tmpfs", _NO_SPECIALS, "mode=0755")
        base, skeleton, root = (os.path.join(stage, name) for name in ("base", "skeleton", "root"))
        for path in (base, skeleton, root):
            os.mkdir(path)
        linux.move_mount(tree, base)
        os.close(tree)
        for path in (*(f"/{name}" for name in _KERNEL_TREES), "/run", "/tmp", workspace_root):
            _add_mount_point(skeleton, base, path)
        if names is not None:
            _add_mount_point(skeleton, base, "/etc")
            with open(skeleton + "/etc/resolv.conf", "wb") as f:
                f.write(names)
        merged = _read_only_overlay((skeleton, base))
        linux.move_mount(merged, root)
        os.close(merged)
        for name, fd in kernel.items():
            linux.move_mount(fd, f"{root}/{name}")
            os.close(fd)
        os.chdir(root)
        linux.pivot_root(".", ".")
        linux.umount(".", linux.MNT_DETACH)
        os.chdir("/")


def _add_mount_point(skeleton: str, base: str, path: str) -> None:
    """`path` as folders of the skeleton; one that the base has keeps the base's mode."""
    at = ""
    for name in path.strip("/").split("/"):
        at += "/" + name
        if os.path.isdir(skeleton + at):
            continue
        os.mkdir(skeleton + at)
        try:
            found = os.lstat(base + at)
            os.chmod(skeleton + at, stat.S_IMODE(found.st_mode) if stat.S_ISDIR(found.st_mode) else 0o755)
        except (FileNotFoundError, NotADirectoryError):
            os.chmod(skeleton + at, 0o755)


def _read_only_overlay(lowerdirs: Sequence[str]) -> int:
    """Of paths without special characters, together of up to 255: any kernel takes them as one `lowerdir`."""
    fd = linux.fsopen("overlay")
    try:
        linux.fsconfig(fd, linux.FSCONFIG_SET_STRING, "lowerdir", ":".join(lowerdirs))
        linux.fsconfig(fd, linux.FSCONFIG_CMD_CREATE)
        return linux.fsmount(fd, linux.MOUNT_ATTR_RDONLY)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {'; '.join(linux.fs_messages(fd))}") from None
    finally:
        os.close(fd)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return None
