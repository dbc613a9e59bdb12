"""Write states to disk: set attributes, make directories, copy and hard-link files."""

from __future__ import annotations

import errno
import os

from layerstack.kernel import content, syscalls
from layerstack.kernel.fsync import suppress_errno
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.model import cancel
from layerstack.tree.state import LINK, SYSTEM_XATTRS, Meta, State, list_xattrs


def set_meta(path: str, meta: Meta, *, symlink: bool = False) -> None:
    """Set owner, then mode: chown(2) clears setuid and setgid."""
    os.chown(path, meta[1], meta[2], follow_symlinks=False)
    if not symlink:
        os.chmod(path, meta[0])


def set_xattrs(path: str, want: dict[str, bytes], xattr_namespace: XattrNamespace) -> None:
    """Set the user-visible xattrs of `path` to `want`; those of overlayfs stay."""
    have: dict[str, bytes] = {}
    stored: dict[str, str] = {}
    for name in list_xattrs(path):
        if name not in SYSTEM_XATTRS and (shown := xattr_namespace.shown(name)) is not None:
            have[shown] = os.getxattr(path, name, follow_symlinks=False)
            stored[shown] = name
    for name, raw in stored.items():
        if name not in want:
            os.removexattr(path, raw, follow_symlinks=False)
    for name, value in want.items():
        if have.get(name) != value:
            os.setxattr(path, xattr_namespace.stored(name), value, follow_symlinks=False)


def set_attributes(path: str, state: State) -> None:
    """Set meta and xattrs of a file or directory.

    chown(2) drops file capabilities, and an ACL changes permission bits: in this order nothing is lost.
    """
    set_meta(path, state.meta)
    set_xattrs(path, state.xattrs, state.xattr_namespace)
    os.chmod(path, state.meta[0])


def set_times(path: str, times: tuple[int, int]) -> None:
    """Set access and modification time, in ns; a symlink is not followed."""
    os.utime(path, ns=times, follow_symlinks=False)


def make_directory(path: str, like: State, *, times: bool = True) -> None:
    """Make a directory with the attributes of `like`; it must not exist."""
    os.mkdir(path, 0o700)
    set_xattrs(path, like.xattrs, like.xattr_namespace)
    set_meta(path, like.meta)
    if times:
        set_times(path, like.times)


def copy_bytes(source: str, target_fd: int) -> None:
    """Copy the bytes of a file into an empty one: a reflink where possible, else holes stay holes."""
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if syscalls.reflink(target_fd, fd):
            return
        status = os.fstat(fd)
        os.ftruncate(target_fd, status.st_size)
        for at, end in content.data_ranges(fd, status):
            os.lseek(target_fd, at, os.SEEK_SET)
            while at < end:
                cancel.check()
                sent = os.sendfile(target_fd, fd, at, min(end - at, 1 << 30))
                if sent == 0:
                    return
                at += sent
    finally:
        os.close(fd)


def write_copy(path: str, state: State, *, times: bool = True) -> None:
    """Make a file or symlink at `path` with the state's content and attributes; never the same inode."""
    if state.kind == LINK:
        os.symlink(state.target, path)
        set_meta(path, state.meta, symlink=True)
        with suppress_errno(errno.EPERM, errno.EOPNOTSUPP):
            set_xattrs(path, state.xattrs, state.xattr_namespace)
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if state.body is not None:
                view = memoryview(state.body)
                while view:
                    view = view[os.write(fd, view) :]
            else:
                copy_bytes(state.path, fd)
        finally:
            os.close(fd)
        set_attributes(path, state)
    if times and state.body is None:
        set_times(path, state.times)


def link(path: str, state: State) -> bool:
    """Make `path` a hard link to the file or symlink of the state.

    False, and no entry is made, when the inode cannot be shared: the base is a mount of its own, the file has
    the maximum number of names, or a state in memory has no inode.
    """
    if not state.linkable or state.body is not None:
        return False
    try:
        os.link(state.path, path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EMLINK, errno.EXDEV, errno.EPERM):
            raise
        return False
    return True
