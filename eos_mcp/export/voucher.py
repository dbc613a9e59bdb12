"""The record of each running export in the gateway's state directory. Only a staging directory with a record
is taken over.

    <state>/exports/<random>.record     locked with flock(2) while its export lives; lines of JSON:
        {"format", "kind": dir | archive, "dest", "home", "home_id", "name", "key", "boot"}
        {"id"}                          device and inode of the staging, appended before it gets content
        {"annex", "home_id", "volatile"}, then
        {"annex", "id"}                 the same of a staging on another file system (`export.annex`)

A destination's content comes from sandboxes, clones and other people, so it is not trusted: the remains of a
crash are found from these records, by name, inode and device, and a journal must have a code made with the
record's key.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

from eos_mcp.export import reserve
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.flock import lock
from eos_mcp.export.names import flaw
from eos_mcp.record.boot_id import boot_id
from eos_mcp.workspace.staging_prefix import PREFIX
from layerstack.kernel.fsync import fsync_dir

FORMAT = 1
SUFFIX = ".record"
MAX_BYTES = 1 << 16

Identity = tuple[int, int]
"""Device and inode."""


def identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


class Annexed(NamedTuple):
    """The entry of a record for staging on a file system that is mounted in the destination."""

    path: bytes
    """The mount point in the destination; the staging is in its root."""
    home_id: Identity
    id: Identity | None
    volatile: bool
    """True: a restart of the machine empties the file system."""


class Said(NamedTuple):
    """A record's content."""

    kind: str
    """`dir`: the staging directory of a journal; `archive`: an unfinished file."""
    dest: str
    home: str
    """The parent of the staging: the destination, or the directory above it."""
    home_id: Identity
    name: bytes
    key: bytes
    boot: str
    id: Identity | None
    """Device and inode; None: the staging was not made yet, or is empty."""
    annexes: tuple[Annexed, ...] = ()

    def is_(self, one: Identity | None, status: os.stat_result) -> bool:
        """Tell whether `status` is that of the recorded file. Device numbers may change with a boot, inode
        numbers do not.
        """
        return (
            one is not None
            and one[1] == status.st_ino
            and (one[0] == status.st_dev or self.boot != boot_id())
        )

    def staging(self, home: DirTree) -> os.stat_result | None:
        """Return the stat of the staging in `home`, if the entry of its name has the recorded inode and
        belongs to this user.
        """
        found = home.lstat(self.name)
        return (
            found if found is not None and found.st_uid == os.geteuid() and self.is_(self.id, found) else None
        )

    def open_home(self) -> DirTree | None:
        """Open the parent of the staging; None: it is gone, or another directory is at its path."""
        try:
            tree = DirTree(self.home)
        except OSError:
            return None
        if self.is_(self.home_id, os.fstat(tree.fd)):
            return tree
        tree.close()
        return None


class Voucher:
    """One record, locked by this process."""

    def __init__(self, path: str, fd: int, said: Said) -> None:
        self.path, self.said = path, said
        self._fd = fd

    @classmethod
    def create(
        cls, folder: str, *, kind: str, dest: str, home: str, home_fd: int, tag: str = "", ending: str = ""
    ) -> Voucher:
        """Write, durably, the record of a staging that is about to be made, under a random name that others
        cannot predict.
        """
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            fsync_dir(os.path.dirname(folder))
        name = PREFIX + tag.encode() + os.urandom(16).hex().encode() + ending.encode()
        said = Said(kind, dest, home, identity(os.fstat(home_fd)), name, os.urandom(32), boot_id(), None)
        line = {
            "format": FORMAT,
            "kind": kind,
            "dest": dest,
            "home": home,
            "home_id": said.home_id,
            "name": name.decode(),
            "key": said.key.hex(),
            "boot": said.boot,
        }
        while True:
            path = os.path.join(folder, os.urandom(8).hex() + SUFFIX)
            try:
                fd = _written(path, line)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                taken = reserve.acquire(folder, os.path.basename(path))
                if taken is None:
                    raise
                fd = taken
                _append(fd, line)
            if fd is not None:
                fsync_dir(folder)
                return cls(path, fd, said)

    def bind(self, fd: int) -> None:
        """Record the inode of the staging, durably; afterwards it may be used."""
        self.said = self.said._replace(id=identity(os.fstat(fd)))
        _append(self._fd, {"id": self.said.id})

    def annex(self, path: bytes, home_fd: int, *, volatile: bool) -> None:
        """Record, durably, that a staging is about to be made in a directory of the destination on another
        file system.
        """
        one = Annexed(path, identity(os.fstat(home_fd)), None, volatile)
        _append(self._fd, {"annex": os.fsdecode(path), "home_id": one.home_id, "volatile": volatile})
        self.said = self.said._replace(annexes=(*(a for a in self.said.annexes if a.path != path), one))

    def bind_annex(self, path: bytes, fd: int) -> None:
        """Record the inode of an annex, as `bind`."""
        found = identity(os.fstat(fd))
        _append(self._fd, {"annex": os.fsdecode(path), "id": found})
        self.said = self.said._replace(
            annexes=tuple(a._replace(id=found) if a.path == path else a for a in self.said.annexes)
        )

    def close(self) -> None:
        """Release the lock and keep the record for the next export. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def drop(self) -> None:
        """Remove the record of an export that left nothing behind."""
        try:
            if self._fd < 0 or not reserve.give_back(self._fd, self.path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path)
        finally:
            self.close()


class VoucherRecords(NamedTuple):
    """The records that concern one destination."""

    dead: list[Voucher]
    """Records of exports that ended without cleaning up. They are locked; the caller closes them."""
    alive: list[Said]
    """Records of running exports."""


def find_records(
    folder: str, dest: str, *, but: Voucher | None = None, archive: bool = False
) -> VoucherRecords:
    """Read the records of exports to `dest` (resolved, absolute), to a directory inside it, or to one that
    contains it.

    Args:
        but: the caller's own record, left out.
        archive: `dest` is an archive: return the records of archives in the same directory instead.
    """
    out = VoucherRecords([], [])
    here = _Here(dest, archive)
    for path in _records(folder):
        if but is not None and path == but.path:
            continue
        try:
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # removed by another process
            continue
        keep = False
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                continue
            said = _read(fd)
            if said is None or not here.concerns(said):
                _forget_torn(fd, path)
            elif not lock(fd):
                out.alive.append(said)
            elif os.fstat(fd).st_nlink and (said := _read(fd)) is not None:
                out.dead.append(Voucher(path, fd, here.moved(said)))
                keep = True
        finally:
            if not keep:
                os.close(fd)
    return out


class _Here:
    """A destination in a form that is compared with records."""

    def __init__(self, dest: str, archive: bool) -> None:
        self.dest, self.archive = dest, archive
        self.parent = os.path.dirname(dest)
        self.own, self.above = _stat(dest), _stat(self.parent)

    def concerns(self, said: Said) -> bool:
        if self.archive or said.kind != "dir":
            return (
                self.archive
                and said.kind == "archive"
                and (said.home == self.parent or self._same(said, self.above))
            )
        return (
            _within(said.dest, self.dest) or _within(self.dest, said.dest) or self._renamed(said) is not None
        )

    def moved(self, said: Said) -> Said:
        """Return the record with the present path of its staging: a directory may have been renamed since."""
        home = (
            self.parent
            if self.archive and self._same(said, self.above)
            else None
            if self.archive
            else self._renamed(said)
        )
        if home is None:
            return said
        return said._replace(home=home, dest=said.dest if self.archive else self.dest)

    def _renamed(self, said: Said) -> str | None:
        if said.dest == said.home:
            return self.dest if self._same(said, self.own) else None
        same_name = os.path.basename(said.dest) == os.path.basename(self.dest)
        return self.parent if same_name and self._same(said, self.above) else None

    @staticmethod
    def _same(said: Said, status: os.stat_result | None) -> bool:
        return status is not None and said.is_(said.home_id, status)


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _records(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    yield from sorted(os.path.join(folder, name) for name in names if name.endswith(SUFFIX))


def _read(fd: int) -> Said | None:
    """Read a record; None: torn, of another format, or not a record."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return None
    lines = os.pread(fd, MAX_BYTES, 0).split(b"\n")
    try:
        first: dict[str, Any] = json.loads(lines[0])
        if first["format"] != FORMAT:
            return None
        name = os.fsencode(first["name"])
        if not name.startswith(PREFIX) or b"/" in name:
            return None
        home_id, key = _pair(first["home_id"]), bytes.fromhex(first["key"])
        said = Said(
            first["kind"],
            str(first["dest"]),
            str(first["home"]),
            home_id,
            name,
            key,
            str(first["boot"]),
            None,
        )
        annexes: dict[bytes, Annexed] = {}
        for line in lines[1:-1]:  # complete lines: each ends with a newline
            more: dict[str, Any] = json.loads(line)
            if "annex" not in more:
                said = said._replace(id=_pair(more["id"]))
                continue
            path = os.fsencode(more["annex"])
            if flaw(path) is not None:
                return None
            if "id" in more:
                annexes[path] = annexes[path]._replace(id=_pair(more["id"]))
            else:
                annexes[path] = Annexed(path, _pair(more["home_id"]), None, bool(more["volatile"]))
        said = said._replace(annexes=tuple(annexes.values()))
    except (ValueError, KeyError, TypeError):
        return None
    return (
        said
        if said.kind in ("dir", "archive") and os.path.isabs(said.dest) and os.path.isabs(said.home)
        else None
    )


def _pair(value: Any) -> Identity:
    one, other = value
    return int(one), int(other)


def _forget_torn(fd: int, path: str) -> None:
    """Remove a record without a complete first line: its export was killed before it changed anything."""
    if b"\n" not in os.pread(fd, MAX_BYTES, 0) and lock(fd) and os.fstat(fd).st_nlink:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _written(path: str, line: dict[str, Any]) -> int | None:
    """Make a new record and lock it; None: another process removed it before the lock, as a record of a dead
    export.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        if lock(fd) and os.fstat(fd).st_nlink:
            _append(fd, line)
            return fd
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    os.close(fd)
    return None


def _append(fd: int, value: dict[str, Any]) -> None:
    """Write a line after the last complete one; the zero bytes of a reserve are overwritten."""
    data = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    at = os.pread(fd, MAX_BYTES, 0).rfind(b"\n") + 1
    if at + len(data) > MAX_BYTES:
        raise OSError(
            errno.E2BIG,
            f"the record of an export has room for {MAX_BYTES} bytes: too many file systems are mounted in "
            f"the destination",
        )
    while data:
        size = os.pwrite(fd, data, at)
        data, at = data[size:], at + size
    os.fsync(fd)
