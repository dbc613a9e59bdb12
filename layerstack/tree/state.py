"""What the decision table compares: the state of one path, read lazily from a real file.

A state is a kind with content and attributes: permission bits, owner and group, and each xattr that a user of the tree can see. Times,
inode numbers and link counts are no part of it. An absent path is None.
"""

from __future__ import annotations

import errno
import os
import stat

from layerstack.kernel import content, syscalls
from layerstack.kernel.fsync import suppress_errno
from layerstack.kernel.whiteout import is_plain_file_whiteout
from layerstack.kernel.xattrs import Form
from layerstack.model import cancel
from layerstack.model.conflict import ABSENT, Fingerprint

Meta = tuple[int, int, int]
"""Permission bits with setuid, setgid and sticky; owner; group."""

SYSTEM_XATTRS = frozenset({"security.selinux", "security.ima", "security.evm"})
"""Set by the system on its own account, and by nobody else: no part of a state."""

FILE, LINK, DIRECTORY, WHITEOUT, SPECIAL = "f", "l", "d", "w", "s"


def kind_of(mode: int) -> str:
    """`f`, `l`, `d`, or `s` for what is no part of a state: FIFO, socket, device."""
    if stat.S_ISREG(mode):
        return FILE
    if stat.S_ISDIR(mode):
        return DIRECTORY
    return LINK if stat.S_ISLNK(mode) else SPECIAL


class State:
    """The state of a path: attributes as they stand here, content in the file at `path` unless `body` carries it."""

    __slots__ = (
        "_xattrs",
        "allocated",
        "body",
        "form",
        "inode",
        "kind",
        "linkable",
        "links",
        "meta",
        "path",
        "size",
        "target_text",
        "times",
    )

    def __init__(self, path: str, form: Form, status: os.stat_result | None = None, *, linkable: bool = True) -> None:
        s = os.lstat(path) if status is None else status
        self.kind = kind_of(s.st_mode)
        self.meta: Meta = (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid)
        self.path, self.form, self.linkable = path, form, linkable
        self.size, self.allocated = s.st_size, s.st_blocks * 512
        self.times = (s.st_atime_ns, s.st_mtime_ns)
        self.inode, self.links = (s.st_dev, s.st_ino), s.st_nlink
        self.body: bytes | None = None
        self.target_text: str | None = None
        self._xattrs: dict[str, bytes] | None = None

    def changed(self, *, meta: Meta, xattrs: dict[str, bytes], content: State | bytes | None = None) -> State:
        """A state that exists in memory only: other attributes, and the content of another state or given bytes."""
        source = content if isinstance(content, State) else self
        new = object.__new__(State)
        new.kind, new.meta, new.form, new.linkable = self.kind, meta, self.form, source.linkable
        new.path, new.size, new.times, new.inode = source.path, source.size, source.times, source.inode
        new.body, new.target_text, new.allocated, new.links = source.body, source.target_text, source.allocated, source.links
        if isinstance(content, bytes):
            new.body, new.size, new.inode, new.links = content, len(content), (-1, id(content)), 1
        new._xattrs = xattrs
        return new

    @property
    def target(self) -> str:
        if self.target_text is None:
            self.target_text = os.readlink(self.path)
        return self.target_text

    @property
    def xattrs(self) -> dict[str, bytes]:
        """As a user of the merged tree sees them: overlayfs' own left out, escaped ones under their own name."""
        if self._xattrs is None:
            found: dict[str, bytes] = {}
            for name in list_xattrs(self.path):
                if name not in SYSTEM_XATTRS and (shown := self.form.shown(name)) is not None:
                    found[shown] = os.getxattr(self.path, name, follow_symlinks=False)
            self._xattrs = found
        return self._xattrs

    @property
    def hides(self) -> bool:
        """Is the file a whiteout, in the form that needs no device?"""
        return self.kind == FILE and self.body is None and is_plain_file_whiteout(self.path, self.size, self.form)

    def data(self, limit: int | None = None) -> bytes:
        """The bytes of a file, at most `limit` of them; without one the caller has looked at `size`."""
        if self.body is not None:
            return self.body[:limit]
        with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read(-1 if limit is None else limit)

    def digest(self, *, leaving: bool = False) -> bytes:
        """The digest of a file's bytes, as `content` defines it; with `leaving` they are sent to the device meanwhile."""
        if self.body is not None:
            return content.digest_of_bytes(self.body)
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return content.digest_of_file(fd, leaving=leaving)
        finally:
            os.close(fd)


def list_xattrs(path: str) -> list[str]:
    """Names of the xattrs of `path` itself; none where the file system has none."""
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise


def same(x: State, y: State) -> bool:
    """Equal kind and content, attributes aside."""
    if x.kind != y.kind:
        return False
    if x.kind == DIRECTORY or (x.inode == y.inode and x.body is None and y.body is None):
        return True
    if x.kind == LINK:
        return x.target == y.target
    if x.size != y.size:
        return False
    if x.body is not None or y.body is not None:
        return x.data() == y.data()
    f = os.open(x.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        g = os.open(y.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return content.same_content(f, g)
        finally:
            os.close(g)
    finally:
        os.close(f)


def equal(x: State | None, y: State | None) -> bool:
    """Equal states; None is absent."""
    if x is None or y is None:
        return x is y
    if x is y:
        return True
    return x.kind == y.kind and x.meta == y.meta and x.xattrs == y.xattrs and same(x, y)


def fingerprint(state: State | None) -> Fingerprint:
    """The state as a conflict shows it. Reads a file's bytes."""
    if state is None:
        return ABSENT
    if state.kind == FILE:
        return Fingerprint("file", digest=state.digest().hex(), size=state.size, mode=state.meta[0])
    if state.kind == LINK:
        return Fingerprint("symlink", target=state.target)
    return Fingerprint("directory", mode=state.meta[0])


def set_meta(path: str, meta: Meta, *, symlink: bool = False) -> None:
    """Owner first: chown(2) clears setuid and setgid."""
    os.chown(path, meta[1], meta[2], follow_symlinks=False)
    if not symlink:
        os.chmod(path, meta[0])


def set_xattrs(path: str, want: dict[str, bytes], form: Form) -> None:
    """The user-visible xattrs of `path` become `want`; overlayfs' own stay."""
    have: dict[str, bytes] = {}
    stored: dict[str, str] = {}
    for name in list_xattrs(path):
        if name not in SYSTEM_XATTRS and (shown := form.shown(name)) is not None:
            have[shown] = os.getxattr(path, name, follow_symlinks=False)
            stored[shown] = name
    for name, raw in stored.items():
        if name not in want:
            os.removexattr(path, raw, follow_symlinks=False)
    for name, value in want.items():
        if have.get(name) != value:
            os.setxattr(path, form.stored(name), value, follow_symlinks=False)


def set_attributes(path: str, state: State) -> None:
    """Meta and xattrs of a file or directory. chown(2) drops file capabilities, and an ACL touches the bits: in this order nothing is lost."""
    set_meta(path, state.meta)
    set_xattrs(path, state.xattrs, state.form)
    os.chmod(path, state.meta[0])


def set_times(path: str, times: tuple[int, int]) -> None:
    """Access and modification time in ns, of a symlink its own."""
    os.utime(path, ns=times, follow_symlinks=False)


def make_directory(path: str, like: State, *, times: bool = True) -> None:
    """A new directory with the attributes of `like`; it must not exist."""
    os.mkdir(path, 0o700)
    set_xattrs(path, like.xattrs, like.form)
    set_meta(path, like.meta)
    if times:
        set_times(path, like.times)


def copy_bytes(source: str, target_fd: int) -> None:
    """The bytes of a file into an empty one: a reflink where the file system can, else holes stay holes."""
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
    """A new file or symlink at `path` with the state's content and attributes; never the same inode."""
    if state.kind == LINK:
        os.symlink(state.target, path)
        set_meta(path, state.meta, symlink=True)
        with suppress_errno(errno.EPERM, errno.EOPNOTSUPP):
            set_xattrs(path, state.xattrs, state.form)
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
    """Make `path` a hard link to the file or symlink of the state. False, and nothing there, where its inode cannot be shared: the base lies
    on a mount of its own, a file has a limit of names, a state in memory has no inode.
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
