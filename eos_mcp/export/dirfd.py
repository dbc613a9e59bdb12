"""Access to a directory of the host by descriptors: every path is resolved from the root's descriptor, by
openat2(2) or component by component, and symlinks are never followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Generator

from layerstack.kernel.beneath import open_beneath
from layerstack.kernel.content import data_ranges
from layerstack.kernel.fsync import write_all

_WALK = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_LIST = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
_HANDLE = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_READ = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
)


class DirTree:
    """Paths below one open directory. Methods raise the kernel's OSError with the path in the tree as
    `filename`; EINVAL, without a system call, for a path that is absolute or has a component that is empty,
    `.` or `..`.
    """

    def __init__(self, root: str | int) -> None:
        """Open an absolute path without symlinks; a symlink that replaced one of its directories is an error.
        Or take ownership of a descriptor.
        """
        self.fd = root if isinstance(root, int) else _open_root(root)
        self._parent: tuple[bytes, int] | None = None

    def below(self, path: bytes) -> DirTree:
        """Open the directory at `path` as a separate tree."""
        name, parent = _name(path), self.parent(path)
        return DirTree(os.open(name, _LIST, dir_fd=parent))

    def close(self) -> None:
        self.forget()
        os.close(self.fd)

    def forget(self) -> None:
        """Close all kept descriptors. Call it before a directory is moved."""
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def parent(self, path: bytes) -> int:
        """Return the descriptor of the parent directory of `path`, valid until the next call.

        Raises:
            FileNotFoundError, NotADirectoryError: a component is missing, a symlink or not a directory.
        """
        above, _, last = path.rpartition(b"/")
        if last in _NO_NAMES or path[:1] == b"/" or b"\0" in path:
            raise _no_path(path)
        if not above:
            return self.fd
        if self._parent is not None and self._parent[0] == above:
            return self._parent[1]
        if not _NO_NAMES.isdisjoint(above.split(b"/")):
            raise _no_path(path)
        at = open_beneath(self.fd, above, _WALK)
        if at is None:
            at = self._walk(path, above)
        self.forget()
        self._parent = (above, at)
        return at

    def _walk(self, path: bytes, above: bytes) -> int:
        """Open the directory `above` component by component."""
        at = self.fd
        try:
            for name in above.split(b"/"):
                below = os.open(name, _WALK, dir_fd=at)
                if at != self.fd:
                    os.close(at)
                at = below
        except OSError as error:
            if at != self.fd:
                os.close(at)
            raise OSError(error.errno, error.strerror, path) from None
        return at

    def lstat(self, path: bytes) -> os.stat_result | None:
        """Call lstat(2); None when the path does not exist or leads through a symlink."""
        try:
            return os.stat(_name(path), dir_fd=self.parent(path), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open_file(self, path: bytes) -> int | None:
        """Open a regular file for reading; None for anything else."""
        try:
            fd = os.open(_name(path), _READ, dir_fd=self.parent(path))
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None

    def readlink(self, path: bytes) -> bytes:
        return os.readlink(_name(path), dir_fd=self.parent(path))

    def chmod(self, path: bytes, mode: int) -> None:
        """Call chmod(2) on a file or a directory, never through a symlink.

        Raises:
            OSError: EMLINK, without a change: the file has other hard links, whose mode would change too.
        """
        name, parent = _name(path), self.parent(path)
        try:
            fd = os.open(name, _READ, dir_fd=parent)
        except PermissionError:  # ours, but not readable
            fd = os.open(name, _HANDLE, dir_fd=parent)
        try:
            status = os.fstat(fd)
            if stat.S_ISLNK(status.st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                raise OSError(
                    errno.EMLINK, f"{status.st_nlink} names lead to this file, all would get its mode", path
                )
            try:
                os.fchmod(fd, mode)
            except OSError as error:
                if error.errno != errno.EBADF:  # a descriptor opened with O_PATH
                    raise
                os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)

    def move(self, path: bytes, other: DirTree, new: bytes, *, directory: bool = False) -> None:
        """Call rename(2) to a path in another tree; an existing entry is replaced."""
        if directory:
            self.forget()
            other.forget()
        try:
            with self._held_parent(path) as parent:
                os.rename(_name(path), _name(new), src_dir_fd=parent, dst_dir_fd=other.parent(new))
        except OSError as error:
            raise OSError(error.errno, error.strerror, path, None, new) from None

    def link(self, path: bytes, other: DirTree, new: bytes) -> None:
        """Call link(2); a symlink is linked itself."""
        with self._held_parent(path) as parent:
            os.link(
                _name(path),
                _name(new),
                src_dir_fd=parent,
                dst_dir_fd=other.parent(new),
                follow_symlinks=False,
            )

    @contextlib.contextmanager
    def _held_parent(self, path: bytes) -> Generator[int]:
        """Open the parent like `parent`, valid for the whole block: the other path of a rename or link may be
        in the same tree.
        """
        held = os.dup(self.parent(path))
        try:
            yield held
        finally:
            os.close(held)

    def names(self, path: bytes) -> list[bytes]:
        """List the names in a directory; '' is the root. Empty when `path` is not a directory."""
        try:
            if path:
                fd = os.open(_name(path), _READ | getattr(os, "O_DIRECTORY", 0), dir_fd=self.parent(path))
            else:
                fd = os.dup(self.fd)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if error.errno == getattr(os, "ELOOP", 40):
                return []
            raise
        try:
            return [os.fsencode(name) for name in os.listdir(fd)]
        finally:
            os.close(fd)

    def remove(self, path: bytes) -> None:
        """Delete a file, a symlink or a whole directory, never through a symlink. Directories without write
        or search permission get it first. A missing path is not an error.
        """
        name = _name(path)
        parent = os.dup(self.parent(path))
        try:
            _remove(name, parent)
        finally:
            os.close(parent)


_NO_NAMES = frozenset((b"", b".", b".."))


def _no_path(path: bytes) -> OSError:
    return OSError(
        errno.EINVAL,
        "no path below a directory: absolute, or with a component that is empty, '.' or '..'",
        path,
    )


def _open_root(root: str) -> int:
    """Open an absolute path; a symlink that replaces one of its directories is not followed."""
    names = [name for name in root.split(os.sep) if name]
    if not os.path.isabs(root) or not names or not hasattr(os, "O_PATH"):
        return os.open(root, _LIST)
    at = os.open(os.sep, _WALK)
    try:
        if (found := open_beneath(at, os.sep.join(names), _LIST)) is not None:
            return found
        for name in names[:-1]:
            below = os.open(name, _WALK, dir_fd=at)
            os.close(at)
            at = below
        return os.open(names[-1], _LIST, dir_fd=at)
    except OSError as error:
        raise OSError(error.errno, error.strerror, root) from None
    finally:
        os.close(at)


def _name(path: bytes) -> bytes:
    return path[path.rfind(b"/") + 1 :]


def _remove(name: bytes, parent: int) -> None:
    """Delete in post-order, with one descriptor per level of the present path."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
        return
    if mode & 0o700 != 0o700:
        with contextlib.suppress(PermissionError):
            os.chmod(name, 0o700, dir_fd=parent)
    stack = [(name, os.open(name, _READ | getattr(os, "O_DIRECTORY", 0), dir_fd=parent))]
    waiting = [[os.fsencode(child) for child in os.listdir(stack[-1][1])]]
    try:
        while stack:
            own, fd = stack[-1]
            if not waiting[-1]:
                stack.pop()
                waiting.pop()
                os.close(fd)
                os.rmdir(own, dir_fd=stack[-1][1] if stack else parent)
                continue
            child = waiting[-1].pop()
            mode = os.stat(child, dir_fd=fd, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                os.unlink(child, dir_fd=fd)
                continue
            if mode & 0o700 != 0o700:
                with contextlib.suppress(PermissionError):
                    os.chmod(child, 0o700, dir_fd=fd)
            stack.append((child, os.open(child, _READ | getattr(os, "O_DIRECTORY", 0), dir_fd=fd)))
            waiting.append([os.fsencode(found) for found in os.listdir(stack[-1][1])])
    finally:
        for _, fd in stack:
            os.close(fd)


def copy_data(source: int, target: int, size: int) -> None:
    """Copy the first `size` bytes of a file to an empty file; holes stay holes. Both file offsets change."""
    for begin, end in data_ranges(source):
        os.lseek(target, begin, os.SEEK_SET)
        while begin < min(end, size) and (
            data := os.pread(source, min(1 << 20, min(end, size) - begin), begin)
        ):
            write_all(target, data)
            begin += len(data)
        if end >= size:
            break
    os.lseek(target, size, os.SEEK_SET)


def sync_file_system(fd: int) -> bool:
    """Call syncfs(2) for the file system of the descriptor; False where the system lacks the call."""
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, TypeError, AttributeError):
        return False
    if call(ctypes.c_int(fd)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"syncfs: {os.strerror(code)}")
    return True
