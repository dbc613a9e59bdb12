"""A FUSE file system on which `README` and `readme`, and composed and decomposed letters, are one name, as on
macOS and Windows.

It keeps the spelling that a name was made with. The kernel's own case-folding file systems (ext4 with
casefold, vfat) are not built into every kernel; /dev/fuse is. Source: include/uapi/linux/fuse.h, protocol
7.31.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import unicodedata
from collections.abc import Callable, Generator

from layerstack.kernel import syscalls
from tests import in_namespace

_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTR, _ENTRY = struct.Struct("<QQQQQQIIIIIIIIII"), struct.Struct("<QQQQII")
_SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME, _ATIME_NOW, _MTIME_NOW = 1, 2, 4, 8, 16, 32, 128, 256
_NOREPLACE = 1


def fold(name: bytes) -> str:
    """Return the key that two spellings of one name share."""
    return unicodedata.normalize(
        "NFD", unicodedata.normalize("NFD", name.decode("utf-8", "surrogateescape")).casefold()
    )


def _name(data: bytes) -> bytes:
    return data.partition(b"\0")[0]


class _Server:
    """Server that answers from the directory `root`, one request after the other, until the mount is gone."""

    def __init__(self, fd: int, root: bytes) -> None:
        self.fd, self.paths = fd, {1: root}
        self.answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup, 3: self.getattr, 4: self.setattr, 5: self.readlink, 6: self.symlink, 9: self.mkdir, 10: self.unlink,  # noqa: E501
            11: self.rmdir, 12: self.rename, 13: self.link, 14: self.open, 15: self.read, 16: self.write, 17: self.statfs, 18: self.release,  # noqa: E501
            20: self.done, 25: self.done, 26: self.init, 27: self.done_open, 28: self.readdir, 29: self.done, 30: self.done, 35: self.create,  # noqa: E501
            45: self.rename2,
        }  # fmt: skip

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.fd, (1 << 17) + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                raise
            _, op, unique, node, *_ = _IN.unpack_from(request)
            if op in (2, 36, 42):  # FORGET, INTERRUPT and BATCH_FORGET want no answer
                continue
            code, body = 0, b""
            try:
                answer = self.answers.get(op)
                if answer is None:
                    raise OSError(errno.ENOSYS, "")
                body = answer(node, request[_IN.size :])
            except OSError as error:
                code = -(error.errno or errno.EIO)
            with contextlib.suppress(FileNotFoundError):  # the caller is gone
                os.write(self.fd, _OUT.pack(_OUT.size + len(body), code, unique) + body)

    def there(self, node: int, name: bytes) -> bytes | None:
        """Return the path of a name, in the spelling that it was made with."""
        folder = self.paths[node]
        wanted = fold(name)
        found = [one for one in os.listdir(folder) if fold(one) == wanted]
        return folder + b"/" + found[0] if found else None

    def known(self, node: int, name: bytes) -> bytes:
        path = self.there(node, name)
        if path is None:
            raise OSError(errno.ENOENT, "")
        return path

    def fresh(self, node: int, name: bytes) -> bytes:
        if self.there(node, name) is not None:
            raise OSError(errno.EEXIST, "")
        return self.paths[node] + b"/" + name

    def attr(self, path: bytes) -> bytes:
        s = os.lstat(path)
        times = [(ns // 10**9, ns % 10**9) for ns in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
        return _ATTR.pack(
            s.st_ino, s.st_size, s.st_blocks, *(t[0] for t in times), *(t[1] for t in times), s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0  # noqa: E501
        )  # fmt: skip

    def entry(self, path: bytes) -> bytes:
        node = os.lstat(path).st_ino
        self.paths[node] = path
        return _ENTRY.pack(node, 0, 0, 0, 0, 0) + self.attr(path)

    def init(self, _: int, data: bytes) -> bytes:
        return struct.pack("<IIIIHHIIHHIIIIIIII", 7, 31, 1 << 17, 0, 8, 8, 1 << 17, 1, 32, 0, 0, *[0] * 7)

    def lookup(self, node: int, data: bytes) -> bytes:
        return self.entry(self.known(node, _name(data)))

    def getattr(self, node: int, _: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self.attr(self.paths[node])

    def setattr(self, node: int, data: bytes) -> bytes:
        valid, _, _, size, _, at, mt, _, at_ns, mt_ns, _, mode, _, uid, gid, _ = _SETATTR.unpack_from(data)
        path = self.paths[node]
        if valid & (_UID | _GID):
            os.chown(path, uid if valid & _UID else -1, gid if valid & _GID else -1, follow_symlinks=False)
        if valid & _MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & _SIZE:
            os.truncate(path, size)
        if valid & (_ATIME | _MTIME) and not valid & (_ATIME_NOW | _MTIME_NOW):
            s = os.lstat(path)
            atime = at * 10**9 + at_ns if valid & _ATIME else s.st_atime_ns
            os.utime(
                path,
                ns=(atime, mt * 10**9 + mt_ns if valid & _MTIME else s.st_mtime_ns),
                follow_symlinks=False,
            )
        return self.getattr(node, b"")

    def readlink(self, node: int, _: bytes) -> bytes:
        return os.readlink(self.paths[node])

    def symlink(self, node: int, data: bytes) -> bytes:
        name, target, _ = data.split(b"\0", 2)
        path = self.fresh(node, name)
        os.symlink(target, path)
        return self.entry(path)

    def mkdir(self, node: int, data: bytes) -> bytes:
        path = self.fresh(node, _name(data[8:]))
        os.mkdir(path, stat.S_IMODE(struct.unpack_from("<I", data)[0]))
        return self.entry(path)

    def unlink(self, node: int, data: bytes) -> bytes:
        os.unlink(self.known(node, _name(data)))
        return b""

    def rmdir(self, node: int, data: bytes) -> bytes:
        os.rmdir(self.known(node, _name(data)))
        return b""

    def rename(self, node: int, data: bytes, *, at: int = 8, flags: int = 0) -> bytes:
        (folder,) = struct.unpack_from("<Q", data)
        old_name, new_name, _ = data[at:].split(b"\0", 2)
        old, there = self.known(node, old_name), self.there(folder, new_name)
        if there is not None and there != old and flags & _NOREPLACE:
            raise OSError(errno.EEXIST, "")
        new = there if there is not None and there != old else self.paths[folder] + b"/" + new_name
        os.rename(old, new)
        for known, path in self.paths.items():
            if path == old or path.startswith(old + b"/"):
                self.paths[known] = new + path[len(old) :]
        return b""

    def rename2(self, node: int, data: bytes) -> bytes:
        flags = struct.unpack_from("<QI", data)[1]
        if flags & ~_NOREPLACE:
            raise OSError(errno.EINVAL, "")
        return self.rename(node, data, at=16, flags=flags)

    def link(self, node: int, data: bytes) -> bytes:
        path = self.fresh(node, _name(data[8:]))
        os.link(self.paths[struct.unpack_from("<Q", data)[0]], path, follow_symlinks=False)
        return self.entry(path)

    def opened(self, path: bytes, flags: int) -> bytes:
        return struct.pack(
            "<QII", os.open(path, flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW) | os.O_CLOEXEC), 0, 0
        )

    def open(self, node: int, data: bytes) -> bytes:
        return self.opened(self.paths[node], struct.unpack_from("<I", data)[0])

    def create(self, node: int, data: bytes) -> bytes:
        flags, mode, _, _ = struct.unpack_from("<IIII", data)
        path = self.fresh(node, _name(data[16:]))
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.chmod(path, stat.S_IMODE(mode))
        return self.entry(path) + self.opened(path, flags)

    def read(self, _: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return os.pread(handle, size, offset)

    def write(self, _: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return struct.pack("<II", os.pwrite(handle, data[40 : 40 + size], offset), 0)

    def release(self, _: int, data: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", data)[0])
        return b""

    def statfs(self, node: int, _: bytes) -> bytes:
        s = os.statvfs(self.paths[1])
        return struct.pack(
            "<QQQQQIIII6I",
            s.f_blocks,
            s.f_bfree,
            s.f_bavail,
            s.f_files,
            s.f_ffree,
            s.f_bsize,
            255,
            s.f_frsize,
            0,
            *[0] * 6,
        )

    def readdir(self, node: int, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        out = b""
        names = [b".", b"..", *sorted(os.listdir(self.paths[node]))]
        for at, name in list(enumerate(names))[offset:]:
            kind = os.lstat(self.paths[node] + b"/" + name).st_mode >> 12
            row = struct.pack("<QQII", 1, at + 1, len(name), kind) + name
            row += bytes(-len(row) % 8)
            if len(out) + len(row) > size:
                break
            out += row
        return out

    def done(self, _: int, data: bytes) -> bytes:
        return b""

    def done_open(self, _: int, data: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)


def open_device(folder: str) -> int:
    """Return /dev/fuse, or a new node in `folder` when /dev lacks it."""
    path = "/dev/fuse"
    if not os.path.exists(path):
        path = f"{folder}/fuse"
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(10, 229))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


@contextlib.contextmanager
def mounted(target: str, backing: str) -> Generator[None]:
    """Show the tree of `backing` at `target` with folded names, for the length of the block; needs root in a
    private mount namespace.
    """
    fd = open_device(os.path.dirname(target))
    syscalls.mount(
        "eos-folding",
        target,
        "fuse",
        0,
        f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions",
    )
    pid = in_namespace.fork()
    if pid == 0:
        code = 1
        try:
            _Server(fd, os.fsencode(backing)).serve()
            code = 0
        finally:
            os._exit(code)
    os.close(fd)
    try:
        yield
    finally:
        syscalls.umount(target)
        assert os.waitpid(pid, 0)[1] == 0, "the server of the folding file system failed"
