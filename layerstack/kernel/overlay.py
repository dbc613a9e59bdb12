"""Mount overlays. A mount is detached until the caller moves it, and ends with its last descriptor or
namespace.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import tempfile
import warnings
from collections.abc import Generator, Sequence

from layerstack.errors import LayerLimit, OverlayUnsupported
from layerstack.kernel import syscalls
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.model.manifest import LOWER_LIMIT

_VALUE_MAX = 255
"""fsconfig(2) refuses a longer string."""


def create(
    lowerdirs: Sequence[str],
    upperdir: str | None = None,
    workdir: str | None = None,
    *,
    xattr_namespace: XattrNamespace,
    attributes: int = 0,
) -> int:
    """Make a detached overlay mount. The caller closes its descriptor after move_mount: while open it keeps
    the mount busy.

    Args:
        lowerdirs: absolute, topmost first, 1 to 500.
        upperdir, workdir: absolute, in one mount; without them the mount is read-only.
        attributes: MOUNT_ATTR_*.
    Raises:
        LayerLimit: more lower directories than the kernel takes.
        OverlayUnsupported: no privilege, no overlayfs, or a file system that cannot hold an upperdir, with
            the kernel's own message.
        OSError: a directory is missing, the disk is full, the upperdir is in use.
    Source: overlayfs.rst, "Multiple lower layers"; `lowerdir+` exists since Linux 6.8, before that mount(2)
    is used with relative names.
    """
    check_count(len(lowerdirs))
    try:
        fd = syscalls.fsopen("overlay")
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return create_legacy(
                lowerdirs, upperdir, workdir, xattr_namespace=xattr_namespace, attributes=attributes
            )
        raise _unsupported(error, []) from error
    try:
        if _takes_any_parameter():
            return create_legacy(
                lowerdirs, upperdir, workdir, xattr_namespace=xattr_namespace, attributes=attributes
            )
        with contextlib.ExitStack() as stack:
            try:
                syscalls.fsconfig(fd, syscalls.FSCONFIG_SET_STRING, "source", "eos")
                for path in lowerdirs:
                    syscalls.fsconfig(
                        fd, syscalls.FSCONFIG_SET_STRING, "lowerdir+", stack.enter_context(_short(path))
                    )
            except OSError as error:
                said = syscalls.fs_messages(fd)
                if error.errno == errno.EINVAL and any("Unknown parameter" in line for line in said):
                    return create_legacy(
                        lowerdirs, upperdir, workdir, xattr_namespace=xattr_namespace, attributes=attributes
                    )
                raise _refused(error, said, lowerdirs, upperdir) from error
            try:
                if upperdir is not None and workdir is not None:
                    syscalls.fsconfig(
                        fd, syscalls.FSCONFIG_SET_STRING, "upperdir", stack.enter_context(_short(upperdir))
                    )
                    syscalls.fsconfig(
                        fd, syscalls.FSCONFIG_SET_STRING, "workdir", stack.enter_context(_short(workdir))
                    )
                for option in xattr_namespace.options:
                    key, equals, value = option.partition("=")
                    if equals:
                        syscalls.fsconfig(fd, syscalls.FSCONFIG_SET_STRING, key, value)
                    else:
                        syscalls.fsconfig(fd, syscalls.FSCONFIG_SET_FLAG, key)
                syscalls.fsconfig(fd, syscalls.FSCONFIG_CMD_CREATE)
                return syscalls.fsmount(fd, attributes)
            except OSError as error:
                raise _refused(error, syscalls.fs_messages(fd), lowerdirs, upperdir) from error
    finally:
        os.close(fd)


@functools.cache
def _takes_any_parameter() -> bool:
    """Check whether fsconfig(2) keeps any parameter: before Linux 6.5 overlayfs has no parameters of its own,
    `lowerdir+` is accepted too, and the mount then fails without a message.
    """
    fd = syscalls.fsopen("overlay")
    try:
        syscalls.fsconfig(fd, syscalls.FSCONFIG_SET_STRING, "eos-is-no-parameter", "x")
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def check_count(lowers: int) -> None:
    """Raise LayerLimit when that many lower directories cannot be mounted."""
    if lowers > LOWER_LIMIT:
        raise LayerLimit(
            f"overlay: {lowers} lower directories, the kernel mounts at most {LOWER_LIMIT}: squash the "
            f"stack first",
            details={"layers": lowers, "limit": LOWER_LIMIT},
        )


@contextlib.contextmanager
def _short(path: str) -> Generator[str]:
    """Give `path`, or an alias of it that fsconfig accepts and that is valid within the block. A backslash
    escapes in upperdir and workdir, not in `lowerdir+`; a colon separates in `lowerdir`; before Linux 6.5 a
    value cannot contain a comma.
    """
    if len(os.fsencode(path)) <= _VALUE_MAX and not set(path) & set("\\:,"):
        yield path
        return
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _unsupported(error: OSError, said: Sequence[str], upperdir: str | None = None) -> OverlayUnsupported:
    sentence = "; ".join(said) or os.strerror(error.errno or 0)
    if error.errno in (errno.EPERM, errno.EACCES):
        hint = (
            "mounting needs CAP_SYS_ADMIN: run as root, in a user namespace, or in a container with "
            "cap_add SYS_ADMIN"
        )
    elif upperdir is not None and "upperdir" in sentence:
        hint = (
            f"{upperdir} must be on ext4, xfs, btrfs or tmpfs, not on another overlay or a network "
            f"file system"
        )
    else:
        hint = (
            "this kernel or this file system cannot mount it: try another kernel or a state directory on ext4"
        )
    return OverlayUnsupported(
        f"overlay: {sentence} ({hint})",
        details={"errno": errno.errorcode.get(error.errno or 0, "?"), "kernel": list(said)},
    )


def _refused(
    error: OSError, said: Sequence[str], lowerdirs: Sequence[str], upperdir: str | None
) -> Exception:
    if error.errno in (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP):
        return _unsupported(error, said, upperdir)
    missing = next(
        (path for path in (*lowerdirs, *([upperdir] if upperdir else [])) if not os.path.isdir(path)), None
    )
    text = f"overlay: {os.strerror(error.errno or 0)}" + (f" ({'; '.join(said)})" if said else "")
    return OSError(error.errno, text, missing) if missing is not None else OSError(error.errno, text)


def create_legacy(
    lowerdirs: Sequence[str],
    upperdir: str | None = None,
    workdir: str | None = None,
    *,
    xattr_namespace: XattrNamespace,
    attributes: int = 0,
) -> int:
    """`create` by mount(2), for kernels before 6.8: a child in its own mount namespace mounts, and sends back
    a clone of the mount.

    The option page holds 4,095 bytes, so the child changes into the directory that all paths share and names
    them relative to it; `:` and `,` in a name are escaped. Raises as `create`.
    """
    check_count(len(lowerdirs))
    paths = [*lowerdirs, *(p for p in (upperdir, workdir) if p is not None)]
    shared = os.path.commonpath(paths) if len(paths) > 1 else os.path.dirname(paths[0])

    def named(path: str) -> str:
        return os.path.relpath(path, shared).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")

    options = ["lowerdir=" + ":".join(map(named, lowerdirs))]
    if upperdir is not None and workdir is not None:
        options += ["upperdir=" + named(upperdir), "workdir=" + named(workdir)]
    data = ",".join([*options, *xattr_namespace.options])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    target = tempfile.mkdtemp(prefix="eos-mount-")
    with ours, theirs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child makes system calls and exits
            pid = os.fork()
        if pid == 0:
            try:
                syscalls.unshare(syscalls.CLONE_NEWNS)
                syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
                os.chdir(shared)
                syscalls.mount("eos", target, "overlay", 0, data)
                fd = syscalls.open_tree(target)
                if attributes:
                    syscalls.mount_setattr("", attributes, dir_fd=fd)
                socket.send_fds(theirs, [b"0"], [fd])
            except OSError as error:
                theirs.sendall(b"%d" % (error.errno or errno.EIO))
            finally:
                os._exit(0)
        theirs.close()
        try:
            message, fds, _, _ = socket.recv_fds(ours, 64, 1)
        finally:
            os.waitpid(pid, 0)
            os.rmdir(target)
    if fds:
        os.set_inheritable(fds[0], False)
        return fds[0]
    code = int(message or b"0") or errno.EIO
    raise _refused(OSError(code, os.strerror(code)), [], lowerdirs, upperdir)


def in_use(upperdir: str, other_fs_dir: str) -> bool:
    """Check whether a live overlay in any namespace writes into `upperdir`. Nothing is written and nothing
    stays mounted.

    Args:
        other_fs_dir: any directory of another file system.

    overlayfs with index=on claims the upperdir (EBUSY when it is claimed already) before it checks the
    workdir, which is invalid here (EINVAL). Takes about 1.5 ms: good for an assertion, too slow to poll.
    Source: ovl_get_upper, ovl_get_workdir in fs/overlayfs/super.c.
    """
    fd = syscalls.fsopen("overlay")
    try:
        for key, value in (
            ("lowerdir", other_fs_dir),
            ("upperdir", upperdir),
            ("workdir", other_fs_dir),
            ("index", "on"),
        ):
            with _short(value) as short:
                syscalls.fsconfig(fd, syscalls.FSCONFIG_SET_STRING, key, short)
        try:
            syscalls.fsconfig(fd, syscalls.FSCONFIG_CMD_CREATE)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return True
            if error.errno == errno.EINVAL:
                return False
            raise
        raise OSError(errno.EINVAL, "in_use: the probe's directories are on one file system", other_fs_dir)
    finally:
        os.close(fd)


_ELSEWHERE = ("/proc", "/dev/shm", "/sys", "/tmp", "/dev", "/run")


def is_mounted(upperdir: str) -> bool:
    """Find a directory of another file system and call `in_use` with it; False after any error."""
    device = os.stat(upperdir).st_dev
    for other in _ELSEWHERE:
        try:
            if os.stat(other).st_dev == device:
                continue
            return in_use(upperdir, other)
        except OSError:
            continue
    return False
