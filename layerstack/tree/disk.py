"""Layer trees that can be read and rewritten: the protocol, and the implementation on disk.

Capture, merge and flatten are written once against `Tree`. A publication runs them on a `DiskTree`. A preview
runs the same code on a `MemoryTree` over the live upperdir, which it never changes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, overload

from layerstack.kernel.fsync import Step, best_effort, no_step, remove_tree
from layerstack.kernel.whiteout import (
    get_overlay_xattr,
    has_xattr_whiteouts,
    is_opaque,
    is_whiteout,
    make_whiteout,
    set_opaque_xattr,
)
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.model.paths import join
from layerstack.tree.fileops import link, make_directory, set_meta, set_times, set_xattrs, write_copy
from layerstack.tree.state import DIRECTORY, FILE, LINK, SPECIAL, WHITEOUT, State, kind_of

PATH_MAX, NAME_MAX = 4096, 255
"""Bytes of a path with the NUL at its end, and of a name; limits.h of Linux."""
LARGE = 4096
"""Smallest number of entries of which a listing is a `Children`."""
PART = "part-"
"""Prefix of the temporary name under which an entry is completed; it is renamed or removed within the call,
or left by a killed process.
"""


class DirectoryEntry(NamedTuple):
    """A name in a directory of a layer, and its kind: `f`, `l`, `d`, `w` (whiteout) or `s` (FIFO, socket,
    device).
    """

    name: str
    kind: str


class Children(Sequence[DirectoryEntry]):
    """Entries of a large directory, in byte order of the names; the memory is that of the names."""

    def __init__(self, names: list[bytes]) -> None:
        """`names`: for each entry its name, a NUL, and its kind. The object takes over the list."""
        names.sort()
        self._names = names

    @classmethod
    def of(cls, children: Iterable[DirectoryEntry]) -> Children:
        """Make it from entries in any order."""
        return cls([b"%s\0%s" % (os.fsencode(name), kind.encode()) for name, kind in children])

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, at: int) -> DirectoryEntry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[DirectoryEntry]: ...
    def __getitem__(self, at: int | slice) -> DirectoryEntry | Sequence[DirectoryEntry]:
        if isinstance(at, slice):
            return Children(self._names[at])
        return _child(self._names[at])

    def __iter__(self) -> Iterator[DirectoryEntry]:
        return map(_child, self._names)


def _child(raw: bytes) -> DirectoryEntry:
    return DirectoryEntry(os.fsdecode(raw[:-2]), chr(raw[-1]))


class Tree(Protocol):
    """Operations that capture, merge and flatten need. Each change is one step that leaves a whole entry or
    none.
    """

    xattr_namespace: XattrNamespace

    def scan(self, path: str) -> Sequence[DirectoryEntry]:
        """List a directory of this layer alone, in order of the names."""
        ...

    def state(self, path: str) -> State:
        """Give the state of the entry at the path, which exists."""
        ...

    def kind(self, path: str) -> str | None:
        """Give the kind of this layer's own entry; None when it has none. The directories above it are
        directories of the layer.
        """
        ...

    def opaque(self, path: str) -> bool:
        """Check whether the directory is opaque."""
        ...

    def xattr_whiteouts(self, path: str) -> list[str] | None:
        """List the whiteouts that are plain files, in a directory that allows them; None in any other."""
        ...

    def redirect(self, path: str) -> str | None:
        """Give the path in the lower layers of a directory that was renamed; None for any other."""
        ...

    def put(self, path: str, state: State, *, times: bool = True) -> None:
        """Make an entry at a free path: a directory without content, a file as a hard link where possible,
        else as a copy.
        """
        ...

    def whiteout(self, path: str) -> None:
        """Make a whiteout, in the place of anything but a directory."""
        ...

    def set_opaque(self, path: str) -> None: ...
    def clear_opaque(self, path: str) -> None: ...
    def clear_redirect(self, path: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def remove(self, path: str) -> None:
        """Remove the entry with all below it."""
        ...

    def replace(self, path: str, state: State, *, times: bool = True) -> None:
        """Put a new inode in the place of the entry; the old one may be shared with a published layer."""
        ...

    def set_attributes(self, path: str, state: State) -> None:
        """Set mode, owner and xattrs of a directory: its inode belongs to this tree alone."""
        ...

    def set_times(self, path: str, times: tuple[int, int]) -> None:
        """Set access and modification time, in ns."""
        ...


class DiskTree:
    """The tree at `root`.

    `aside` is a directory of the same file system in which an entry is completed before it is renamed into
    place. An entry whose path leaves less than `room` bytes of PATH_MAX is refused with ENAMETOOLONG when its
    directory is listed.
    """

    def __init__(
        self,
        root: str,
        xattr_namespace: XattrNamespace,
        *,
        aside: str = "",
        step: Step = no_step,
        linkable: bool = True,
        room: int | None = None,
    ) -> None:
        self.root, self.xattr_namespace, self.aside, self.step, self.linkable, self.room = (
            root,
            xattr_namespace,
            aside,
            step,
            linkable,
            room,
        )
        self._copies: dict[tuple[object, ...], str] = {}
        """Inode and attributes of a file with several names that could not be linked -> path of its copy;
        cleared by any removal.
        """

    def full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def scan(self, path: str) -> Sequence[DirectoryEntry]:
        found: list[DirectoryEntry] = []
        large: list[bytes] = []
        with os.scandir(self.full(path)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    kind = DIRECTORY
                elif entry.is_file(follow_symlinks=False):
                    kind = FILE
                elif entry.is_symlink():
                    kind = LINK
                else:
                    kind = WHITEOUT if is_whiteout(entry.stat(follow_symlinks=False)) else SPECIAL
                if len(found) < LARGE:
                    found.append(DirectoryEntry(entry.name, kind))
                else:
                    large.append(b"%s\0%s" % (os.fsencode(entry.name), kind.encode()))
        if large:
            large += [b"%s\0%s" % (os.fsencode(name), kind.encode()) for name, kind in found]
            children = Children(large)
            if self.room is not None:
                self._check_room(path, children, self.room)
            return children
        found.sort()
        if self.room is not None:
            self._check_room(path, found, self.room)
        return found

    def _check_room(self, path: str, children: Sequence[DirectoryEntry], room: int) -> None:
        full = self.full(path)
        left = PATH_MAX - 2 - room - len(os.fsencode(full))
        if left < NAME_MAX:
            for name, _ in children:
                if len(os.fsencode(name)) > left:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"{full}/{name}")

    def state(self, path: str) -> State:
        return State(self.full(path), self.xattr_namespace, linkable=self.linkable)

    def kind(self, path: str) -> str | None:
        try:
            status = os.lstat(self.full(path))
        except FileNotFoundError:
            return None
        kind = kind_of(status.st_mode)
        return WHITEOUT if kind == SPECIAL else kind

    def opaque(self, path: str) -> bool:
        return is_opaque(self.full(path), self.xattr_namespace)

    def xattr_whiteouts(self, path: str) -> list[str] | None:
        if not has_xattr_whiteouts(self.full(path), self.xattr_namespace):
            return None
        return [
            name
            for name, kind in self.scan(path)
            if kind == FILE and self.state(join(path, name)).is_xattr_whiteout
        ]

    def redirect(self, path: str) -> str | None:
        value = get_overlay_xattr(self.full(path), self.xattr_namespace.redirect)
        return None if value is None else os.fsdecode(value)

    def _aside(self) -> str:
        return f"{self.aside}/{PART}{os.urandom(8).hex()}"

    def _placed(self, path: str, make: Callable[[str], None]) -> None:
        """Complete an entry in `aside` and rename it into place: a crash leaves all of it or nothing in the
        tree.
        """
        part = self._aside()
        try:
            make(part)
            os.rename(part, self.full(path))
        except BaseException:
            remove_tree(part)
            raise

    def put(self, path: str, state: State, *, times: bool = True) -> None:
        self.step(f"seal.put_{state.kind}")
        if state.kind == DIRECTORY:
            self._placed(path, lambda part: make_directory(part, state, times=times))
        elif not link(self.full(path), state):
            if state.kind == SPECIAL:  # never read: opening a FIFO waits for its other end
                os.mkfifo(self.full(path), state.meta[0])
            else:
                self._copy(path, state, times=times)

    def _copy(self, path: str, state: State, *, times: bool) -> None:
        """Copy a file; further names of it become names of the one copy."""
        several = (
            not state.linkable
            and state.kind == FILE
            and state.body is None
            and os.lstat(state.path).st_nlink > 1
        )
        key = (state.inode, state.meta, tuple(sorted(state.xattrs.items()))) if several else ()
        if key in self._copies:
            try:
                os.link(self._copies[key], self.full(path), follow_symlinks=False)
                return
            except OSError as error:
                if error.errno != errno.EMLINK:  # an inode has a limit of names
                    raise
        self._placed(path, lambda part: write_copy(part, state, times=times))
        if several:
            self._copies[key] = self.full(path)

    def whiteout(self, path: str) -> None:
        self.step("seal.whiteout")
        if os.path.lexists(self.full(path)):
            self._copies.clear()
            self._placed(path, make_whiteout)
        else:
            make_whiteout(self.full(path))

    def set_opaque(self, path: str) -> None:
        self.step("seal.opaque")
        set_opaque_xattr(self.full(path), self.xattr_namespace)

    def clear_opaque(self, path: str) -> None:
        self.step("seal.unopaque")
        os.removexattr(self.full(path), self.xattr_namespace.opaque, follow_symlinks=False)

    def clear_redirect(self, path: str) -> None:
        self.step("seal.unredirect")
        os.removexattr(self.full(path), self.xattr_namespace.redirect, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        self.step("seal.unlink")
        self._copies.clear()
        os.unlink(self.full(path))

    def rmdir(self, path: str) -> None:
        self.step("seal.rmdir")
        os.rmdir(self.full(path))

    def remove(self, path: str) -> None:
        self.step("seal.remove")
        self._copies.clear()
        remove_tree(self.full(path))

    def replace(self, path: str, state: State, *, times: bool = True) -> None:
        self.step("seal.replace")
        self._copies.clear()
        full = self.full(path)
        if state.kind == DIRECTORY:
            remove_tree(full)
            make_directory(full, state, times=times)
            return
        directory = os.path.isdir(full) and not os.path.islink(full)
        if directory:
            remove_tree(full)
        self._placed(path, lambda part: None if link(part, state) else write_copy(part, state, times=times))

    def set_attributes(self, path: str, state: State) -> None:
        self.step("seal.attributes")
        full = self.full(path)
        set_xattrs(full, state.xattrs, self.xattr_namespace)
        set_meta(full, state.meta)

    def set_times(self, path: str, times: tuple[int, int]) -> None:
        set_times(self.full(path), times)


def clone(source: DiskTree, target: DiskTree) -> None:
    """Copy a tree as hard links to `target`, which must not exist; directories and their xattrs are new."""

    def copy(path: str) -> None:
        state = source.state(path)
        make_directory(target.full(path), state, times=False)
        if source.opaque(path):
            set_opaque_xattr(target.full(path), target.xattr_namespace)
        for name, kind in source.scan(path):
            child = join(path, name)
            if kind == DIRECTORY:
                copy(child)
            elif kind == WHITEOUT:
                try:
                    os.link(source.full(child), target.full(child), follow_symlinks=False)
                except OSError:
                    make_whiteout(target.full(child))
            else:
                inner = source.state(child)
                if not link(target.full(child), inner):
                    write_copy(target.full(child), inner)
        target.set_times(path, state.times)

    copy("")


def discard(path: str) -> None:
    """Remove a temporary entry, best effort; leftovers are removed at the next open."""
    with best_effort():
        remove_tree(path)
