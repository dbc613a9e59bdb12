"""System calls that the standard library lacks, one function each: ctypes prototypes, kernel constants,
errno.

Constants keep the name of their header; policy is elsewhere. Importing loads libc and nothing else, and works
on any OS: the calls themselves raise OSError(ENOSYS) off Linux. x86_64 and aarch64 have numbers; another
architecture gets ENOSYS with its name.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
from collections.abc import Callable
from typing import NoReturn

MOUNT_DATA_MAX = 4096

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
SIGCHLD = 17

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
MNT_FORCE = 1
MNT_DETACH = 2

FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSCONFIG_CMD_RECONFIGURE = 7
FSPICK_CLOEXEC = 1
FSPICK_EMPTY_PATH = 8
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
AT_SYMLINK_NOFOLLOW = 0x100
MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2

# Numbers from 424 on are the same on every architecture.
_COMMON = {
    "pidfd_send_signal": 424,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
_BY_MACHINE: dict[str, dict[str, int]] = {
    "x86_64": {
        "clone": 56,
        "pivot_root": 155,
        "capset": 126,
        "syncfs": 306,
        "renameat2": 316,
        "setns": 308,
        "signalfd4": 289,
        "seccomp": 317,
        "kcmp": 312,
    },
    "aarch64": {
        "clone": 220,
        "pivot_root": 41,
        "capset": 91,
        "syncfs": 267,
        "renameat2": 276,
        "setns": 268,
        "signalfd4": 74,
        "seccomp": 277,
        "kcmp": 272,
    },
}
MACHINE = platform.machine()
NR: dict[str, int] = {**_COMMON, **_BY_MACHINE.get(MACHINE, {})}

try:
    _libc: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True)
except (OSError, TypeError):  # not a POSIX system
    _libc = None
if _libc is not None:
    _libc.syscall.restype = ctypes.c_long
    if hasattr(_libc, "sync_file_range"):
        _libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def fail(call: str, filename: str | bytes | None = None, note: str = "") -> NoReturn:
    """Raise OSError from the thread's errno, the call's name in the text and `filename` as it was given."""
    code = ctypes.get_errno()
    text = f"{call}: {os.strerror(code)}" + (f" ({note})" if note else "")
    raise OSError(code, text, filename) if filename is not None else OSError(code, text)


def _need(call: str) -> ctypes.CDLL:
    if _libc is None:
        raise OSError(errno.ENOSYS, f"{call}: this is not Linux")
    return _libc


def syscall(name: str, *args: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """syscall(2) by name. An int becomes a long, bytes and buffers a pointer, None a null pointer; a negative
    result raises OSError.
    """
    libc = _need(name)
    number = NR.get(name)
    if number is None:
        raise OSError(errno.ENOSYS, f"{name}: no number known for {MACHINE}")
    converted: list[object] = [ctypes.c_long(number)]
    for a in args:
        converted.append(
            ctypes.c_long(a)
            if isinstance(a, int)
            else ctypes.c_char_p(a)
            if a is None or isinstance(a, bytes)
            else a
        )
    result = int(libc.syscall(*converted))
    if result < 0:
        fail(name)
    return result


def mount(source: str, target: str, fstype: str | None, flags: int = 0, data: str = "") -> None:
    """mount(2), arguments in the man page's order.

    Raises:
        OSError: the kernel's errno, filename=target; E2BIG without a call when data needs 4096 bytes
            or more, since the kernel cuts it there and answers ENOENT about half a path.
    """
    raw = os.fsencode(data)
    if len(raw) >= MOUNT_DATA_MAX:
        raise OSError(errno.E2BIG, f"mount: options are {len(raw)} bytes, at most 4095 fit", target)
    kind = None if fstype is None else fstype.encode()
    if _need("mount").mount(os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), raw) < 0:
        fail("mount", target)


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    if _need("umount2").umount2(os.fsencode(target), ctypes.c_int(flags)) < 0:
        fail("umount", target)


def unshare(flags: int) -> None:
    """unshare(2); namespaces are entered in a fresh child of a single-threaded process."""
    if _need("unshare").unshare(ctypes.c_int(flags)) < 0:
        fail("unshare")


def setns(fd: int, nstype: int = 0) -> None:
    """setns(2); fd of /proc/PID/ns/* or a pidfd."""
    if _need("setns").setns(ctypes.c_int(fd), ctypes.c_int(nstype)) < 0:
        fail("setns")


def clone(flags: int) -> int:
    """Raw clone(2) with a copied address space, as fork(2) plus namespaces: 0 in the child, the pid in the
    parent.

    Only from a single-threaded process: the handlers that fork(3) would run are not run; os.getpid() is right
    in both.
    """
    return syscall("clone", flags | SIGCHLD, 0, 0, 0, 0)


def signalfd(signum: int) -> int:
    """signalfd(2): a non-blocking descriptor that becomes readable when the signal, which the caller has
    blocked, is pending.
    """
    return syscall("signalfd4", -1, struct.pack("Q", 1 << (signum - 1)), 8, os.O_NONBLOCK | os.O_CLOEXEC)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    syscall("pivot_root", os.fsencode(new_root), os.fsencode(put_old))


def prctl(option: int, arg2: int = 0, arg3: int = 0, arg4: int = 0, arg5: int = 0) -> int:
    """prctl(2)."""
    unsigned = [ctypes.c_ulong(a) for a in (arg2, arg3, arg4, arg5)]
    result = int(_need("prctl").prctl(ctypes.c_int(option), *unsigned))
    if result < 0:
        fail("prctl", note=f"option {option}")
    return result


def capset(effective: int, permitted: int, inheritable: int) -> None:
    """capset(2) on the calling thread; each set is a bit mask of CAP_* numbers."""
    header = struct.pack("Ii", 0x20080522, 0)
    low, high = 0xFFFFFFFF, 32
    data = struct.pack(
        "IIIIII",
        effective & low,
        permitted & low,
        inheritable & low,
        effective >> high,
        permitted >> high,
        inheritable >> high,
    )
    syscall("capset", header, data)


def syncfs(fd: int) -> None:
    """syncfs(2): everything dirty on the file system of `fd` is on disk on return."""
    syscall("syncfs", fd)


FICLONE = 0x40049409
EXT4_SUPER_MAGIC = 0xEF53
XFS_SUPER_MAGIC = 0x58465342
TMPFS_MAGIC = 0x01021994
SYNC_FILE_RANGE_WAIT_BEFORE = 1
SYNC_FILE_RANGE_WRITE = 2
SYNC_FILE_RANGE_WAIT_AFTER = 4


def statfs_type(path: str) -> int:
    """The magic number of the file system at `path`, statfs(2)."""
    buffer = ctypes.create_string_buffer(256)
    if _need("statfs").statfs(os.fsencode(path), buffer) < 0:
        fail("statfs", path)
    return int(struct.unpack_from("l", buffer)[0]) & 0xFFFFFFFF


def sync_file_range(fd: int, flags: int, offset: int = 0, size: int = 0) -> None:
    """sync_file_range(2), by default of the whole file: writes its data out, and promises nothing about names
    and sizes.
    """
    if _need("sync_file_range").sync_file_range(fd, offset, size, flags) < 0:
        fail("sync_file_range")


def reflink(target_fd: int, source_fd: int) -> bool:
    """ioctl(FICLONE): share the source's blocks, copy on write. False where the file system or the mounts
    cannot.
    """
    import fcntl

    try:
        fcntl.ioctl(target_fd, FICLONE, source_fd)
    except OSError as error:
        if error.errno in (
            errno.EOPNOTSUPP,
            errno.EXDEV,
            errno.EINVAL,
            errno.ENOTTY,
            errno.ENOSYS,
            errno.EPERM,
        ):
            return False
        raise
    return True


def renameat2(
    old: str, new: str, flags: int, *, old_dir_fd: int = AT_FDCWD, new_dir_fd: int = AT_FDCWD
) -> None:
    """renameat2(2), by default relative to the working directory; EEXIST with RENAME_NOREPLACE when `new`
    exists.
    """
    try:
        syscall("renameat2", old_dir_fd, os.fsencode(old), new_dir_fd, os.fsencode(new), flags)
    except OSError as error:
        raise OSError(error.errno, error.strerror, old, None, new) from None


def close_range(first: int, last: int = 0xFFFFFFFF, flags: int = 0) -> None:
    """close_range(2): every descriptor from `first` to `last`, both included."""
    syscall("close_range", first, last, flags)


def fsopen(fstype: str) -> int:
    """fsopen(2), close-on-exec."""
    return syscall("fsopen", fstype.encode(), FSOPEN_CLOEXEC)


def fsconfig(fd: int, command: int, key: str | None = None, value: str | None = None, aux: int = 0) -> None:
    """fsconfig(2); after a refusal fs_messages(fd) reads the kernel's message."""
    syscall(
        "fsconfig",
        fd,
        command,
        None if key is None else key.encode(),
        None if value is None else os.fsencode(value),
        aux,
    )


def fs_messages(fd: int) -> list[str]:
    """Read the kernel's messages for an fsopen descriptor, oldest first, without the level letter."""
    out: list[str] = []
    for _ in range(64):
        try:
            out.append(os.read(fd, 4096).decode("utf-8", "replace").strip().lstrip("ewi").strip())
        except OSError:
            break
    return out


def fsmount(fd: int, attributes: int = 0) -> int:
    """fsmount(2): a detached mount. While its descriptor is open the mount is busy: close it after
    move_mount.
    """
    return syscall("fsmount", fd, FSMOUNT_CLOEXEC, attributes)


def fspick(mount_fd: int) -> int:
    """fspick(2) of the file system whose root `mount_fd` refers to, close-on-exec, to reconfigure it with
    fsconfig.
    """
    return syscall("fspick", mount_fd, b"", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH)


def move_mount(from_fd: int, target: str) -> None:
    """move_mount(2) of a detached mount onto `target`."""
    try:
        syscall("move_mount", from_fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from None


def open_tree(path: str, flags: int = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC) -> int:
    """open_tree(2): with OPEN_TREE_CLONE a detached bind mount of `path`; add AT_RECURSIVE for mounts below
    it.
    """
    try:
        return syscall("open_tree", AT_FDCWD, os.fsencode(path), flags)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def mount_setattr(
    path: str, attr_set: int = 0, attr_clr: int = 0, *, recursive: bool = False, dir_fd: int = AT_FDCWD
) -> None:
    """mount_setattr(2); an empty path means the mount of `dir_fd` itself."""
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", attr_set, attr_clr, 0, 0), 32)
    flags = (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)
    try:
        syscall("mount_setattr", dir_fd, os.fsencode(path), flags, attributes, 32)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def openat2(dir_fd: int, path: bytes, flags: int, mode: int, resolve: int) -> int:
    """openat2(2) with the three fields of struct open_how; flags that the call does not know are EINVAL."""
    how = struct.pack("QQQ", flags, mode, resolve)
    fd: int = _openat2()(NR["openat2"], dir_fd, path, how, len(how))
    if fd < 0:
        fail("openat2", path)
    return fd


@functools.cache
def _openat2() -> Callable[[int, int, bytes, bytes, int], int]:
    """Make a caller of syscall(2) with fixed types: each file operation uses it, and `syscall` is slower."""
    kind = ctypes.CFUNCTYPE(
        ctypes.c_long,
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        use_errno=True,
    )
    return kind(("syscall", _need("openat2")))
