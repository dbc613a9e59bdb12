"""The state of one path, which the decision table compares; read lazily from a real file.

A state is a kind with content and attributes: permission bits, owner and group, and each xattr that a user of
the tree can see. It leaves out times, inode numbers and link counts. The state of an absent path is None.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from layerstack.kernel import content
from layerstack.kernel.whiteout import is_xattr_whiteout
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.model.conflict import ABSENT, Fingerprint

Meta = tuple[int, int, int]
"""Permission bits with setuid, setgid and sticky; owner; group."""

SYSTEM_XATTRS = frozenset({"security.selinux", "security.ima", "security.evm"})
"""Attributes that the system sets by itself: they are not part of a state."""

FILE, LINK, DIRECTORY, WHITEOUT, SPECIAL = "f", "l", "d", "w", "s"


def kind_of(mode: int) -> str:
    """Give `f`, `l`, `d`, or `s` for what a state cannot be: FIFO, socket, device."""
    if stat.S_ISREG(mode):
        return FILE
    if stat.S_ISDIR(mode):
        return DIRECTORY
    return LINK if stat.S_ISLNK(mode) else SPECIAL


class State:
    """The state of a path: attributes from its lstat, content in the file at `path` unless `body` carries
    it.
    """

    __slots__ = (
        "_xattrs",
        "allocated",
        "body",
        "inode",
        "kind",
        "linkable",
        "links",
        "meta",
        "path",
        "size",
        "target_text",
        "times",
        "xattr_namespace",
    )

    def __init__(
        self,
        path: str,
        xattr_namespace: XattrNamespace,
        status: os.stat_result | None = None,
        *,
        linkable: bool = True,
    ) -> None:
        s = os.lstat(path) if status is None else status
        self.kind = kind_of(s.st_mode)
        self.meta: Meta = (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid)
        self.path, self.xattr_namespace, self.linkable = path, xattr_namespace, linkable
        self.size, self.allocated = s.st_size, s.st_blocks * 512
        self.times = (s.st_atime_ns, s.st_mtime_ns)
        self.inode, self.links = (s.st_dev, s.st_ino), s.st_nlink
        self.body: bytes | None = None
        self.target_text: str | None = None
        self._xattrs: dict[str, bytes] | None = None

    def changed(self, *, meta: Meta, xattrs: dict[str, bytes], content: State | bytes | None = None) -> State:
        """Make a state that exists in memory only: other attributes, and the content of another state or the
        given bytes.
        """
        source = content if isinstance(content, State) else self
        new = object.__new__(State)
        new.kind, new.meta, new.xattr_namespace, new.linkable = (
            self.kind,
            meta,
            self.xattr_namespace,
            source.linkable,
        )
        new.path, new.size, new.times, new.inode = source.path, source.size, source.times, source.inode
        new.body, new.target_text, new.allocated, new.links = (
            source.body,
            source.target_text,
            source.allocated,
            source.links,
        )
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
        """xattrs as a user of the merged tree sees them: without those of overlayfs, escaped ones under their
        own name.
        """
        if self._xattrs is None:
            found: dict[str, bytes] = {}
            for name in list_xattrs(self.path):
                if name not in SYSTEM_XATTRS and (shown := self.xattr_namespace.shown(name)) is not None:
                    found[shown] = os.getxattr(self.path, name, follow_symlinks=False)
            self._xattrs = found
        return self._xattrs

    @property
    def is_xattr_whiteout(self) -> bool:
        """True for a regular file that is a whiteout."""
        return (
            self.kind == FILE
            and self.body is None
            and is_xattr_whiteout(self.path, self.size, self.xattr_namespace)
        )

    def data(self, limit: int | None = None) -> bytes:
        """Read a file, at most `limit` bytes; without a limit the caller has checked `size`."""
        if self.body is not None:
            return self.body[:limit]
        with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read(-1 if limit is None else limit)

    def digest(self, *, leaving: bool = False) -> bytes:
        """Digest a file's bytes, as `content` defines it; `leaving` starts sending them to the device."""
        if self.body is not None:
            return content.digest_of_bytes(self.body)
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return content.digest_of_file(fd, leaving=leaving)
        finally:
            os.close(fd)


class RemadeState(State):
    """A file in memory whose bytes are made again whenever they are needed, so that a plan for thousands of
    merged files does not keep all of them. The states from which they are made must stay readable.
    """

    __slots__ = ("_make",)

    def __init__(self, like: State, make: Callable[[], bytes]) -> None:
        self.kind, self.meta, self.path = like.kind, like.meta, like.path
        self.xattr_namespace = like.xattr_namespace
        self.size, self.allocated, self.times = like.size, like.allocated, like.times
        self.inode, self.links, self.linkable = (-1, id(self)), 1, False
        self.target_text, self._xattrs = like.target_text, dict(like.xattrs)
        self._make = make

    @property
    def body(self) -> bytes | None:  # type: ignore[override] # pyright: ignore[reportIncompatibleVariableOverride]
        return self._make()


def list_xattrs(path: str) -> list[str]:
    """List the names of the xattrs of `path` itself; none where the file system has none."""
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise


def same(x: State, y: State) -> bool:
    """Compare kind and content, not attributes."""
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
    """Compare two states; None is absent."""
    if x is None or y is None:
        return x is y
    if x is y:
        return True
    return x.kind == y.kind and x.meta == y.meta and x.xattrs == y.xattrs and same(x, y)


def is_one(x: State | None, y: State | None) -> bool:
    """Check whether two states are one file, link or directory on disk; None is absent. False does not
    mean that they differ.
    """
    if x is None or y is None:
        return x is y
    return x is y or (x.body is None and y.body is None and x.inode == y.inode and x.meta == y.meta)


def made_state(like: State, kind: str, meta: Meta, body: bytes) -> State:
    """Make a file or symlink that exists in memory only, with the owner's and mode's values of `meta` and no
    xattrs.
    """
    new = like.changed(meta=meta, xattrs={}, content=b"" if kind == LINK else body)
    new.kind, new.linkable, new.allocated = kind, False, 0
    if kind == LINK:
        new.target_text, new.size, new.body = os.fsdecode(body), len(body), None
    new.inode = (-1, id(new))
    return new


def fingerprint(state: State | None) -> Fingerprint:
    """Give the state as a conflict reports it. Reads a file's bytes."""
    if state is None:
        return ABSENT
    if state.kind == FILE:
        return Fingerprint("file", digest=state.digest().hex(), size=state.size, mode=state.meta[0])
    if state.kind == LINK:
        return Fingerprint("symlink", target=state.target)
    return Fingerprint("directory", mode=state.meta[0])
