"""Owner, group and attributes of files that a `dir` export writes: a replacement has those of the replaced
file, a new file those that its directory gives.

As root, the export gives a new file the owner and the group of its directory; for other users the kernel's
rule holds, by which a directory with the setgid bit gives its group. A new file inherits the default ACL of
its directory. Modes are those of the version: in an ACL they set the entries of owner, mask and others, like
chmod(1). The result (`not_kept`) names what the system refuses; the file is written nevertheless.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.stream import shown

ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
CAPABILITY = "security.capability"
LISTED_MAX = 100
FOLDERS_MAX = 4096

_OF_THE_CONTENT = ("security.ima", "security.evm")
"""Attributes that sign the old content: the system makes new ones for the new content."""
_OF_OVERLAYS = ("user.overlay.", "trusted.overlay.")
"""Attributes by which overlayfs finds the content of a file; the new file has its own content."""
_KNOWS = hasattr(os, "listxattr")


class Folder(NamedTuple):
    """Owner, group and attributes that new entries of a directory inherit."""

    uid: int
    gid: int
    setgid: bool
    acl: bytes | None
    """Default ACL of the directory."""


class Owners:
    """Setter of owner and attributes of staged files. `target`: the destination, None if it does not exist;
    `home`: its parent.

    The caller closes both.
    """

    def __init__(self, target: DirTree | None, home: DirTree | None) -> None:
        self._target, self._home = target, home
        self._uid, self._gid = os.geteuid(), os.getegid()
        self._groups = {self._gid, *os.getgroups()}
        self._folders: dict[bytes, Folder] = {}
        self._made: dict[int, Folder] = {}
        self.listed: list[dict[str, str]] = []
        self.count = 0

    @property
    def root(self) -> bool:
        return self._uid == 0

    # staged entries

    def file(self, fd: int, place: DirTree, path: bytes, old: os.stat_result | None) -> None:
        """Set owner and attributes of a new file, open for writing, before its mode. `place`: its staging
        directory; `old`: the entry that it replaces.
        """
        if old is None or not stat.S_ISREG(old.st_mode):
            folder = self._folder(path.rpartition(b"/")[0])
            lost = self._own(fd, place, *self._gives(folder))
            lost += self._set(fd, [(ACL, folder.acl)] if folder.acl else [])
        else:
            lost = self._own(fd, place, old.st_uid, old.st_gid)
            lost += self._attributes(fd, path)
        self._name(path, lost)

    def plainly(self, place: DirTree, folder: bytes) -> bool:
        """Tell whether a new file in the directory `folder` of the destination already has the right owner
        and attributes.
        """
        found, made = self._folder(folder), self._of(place)
        return not found.acl and (made.uid, made.gid) == self._gives(found)

    def top(self, fd: int, place: DirTree) -> None:
        """Set owner and attributes of the future destination, made in a staging directory."""
        folder = self._folder(b"")
        self._own(fd, place, folder.uid, folder.gid)
        self._set(fd, [(ACL, folder.acl), (DEFAULT_ACL, folder.acl)] if folder.acl else [])

    def directory(self, place: DirTree, name: bytes, path: bytes, parent: int | None = None) -> int:
        """Set owner and attributes of a new directory, `name` in a staging directory, or in `parent` there.

        Returns: bits to add to its mode: setgid, if its parent has it.
        """
        folder = self._folder(path.rpartition(b"/")[0])
        made, gives = self._of(place), self._gives(folder)
        if folder.acl or made.setgid or (made.uid, made.gid) != gives:
            at = place.fd if parent is None else parent
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            try:
                lost = self._own(fd, place, *gives)
                lost += self._set(fd, [(ACL, folder.acl), (DEFAULT_ACL, folder.acl)] if folder.acl else [])
                os.fchmod(fd, 0o700)
            finally:
                os.close(fd)
            self._name(path, lost)
        return stat.S_ISGID if folder.setgid else 0

    def symlink(
        self, place: DirTree, name: bytes, path: bytes, old: os.stat_result | None, parent: int | None = None
    ) -> None:
        """Set the owner of a new symlink, `name` in a staging directory, or in `parent` there."""
        if old is not None and stat.S_ISLNK(old.st_mode):
            uid, gid = old.st_uid, old.st_gid
        else:
            uid, gid = self._gives(self._folder(path.rpartition(b"/")[0]))

        def chown(uid: int, gid: int) -> None:
            os.chown(name, uid, gid, dir_fd=place.fd if parent is None else parent, follow_symlinks=False)

        self._name(path, self._chown(chown, place, uid, gid))

    def link(self, place: DirTree, name: bytes, path: bytes, old: os.stat_result | None) -> None:
        """Note a further name of a staged file if the old entry had another owner: the file has the owner of
        its first name.
        """
        if old is None or not stat.S_ISREG(old.st_mode):
            return
        new = os.stat(name, dir_fd=place.fd, follow_symlinks=False)
        lost = ["owner"] if new.st_uid != old.st_uid else []
        self._name(path, lost + (["group"] if new.st_gid != old.st_gid else []))

    # dry run

    def foresee(self, path: bytes, old: os.stat_result | None) -> None:
        """Note the owner or attributes that a file or symlink would lose if it were written."""
        if old is None or stat.S_ISDIR(old.st_mode):
            return
        lost = [] if self.root or old.st_uid == self._uid else ["owner"]
        if (
            not self.root
            and old.st_gid not in self._groups
            and old.st_gid != self._folder(path.rpartition(b"/")[0]).gid
        ):
            lost.append("group")
        if stat.S_ISREG(old.st_mode) and CAPABILITY in self._names(path):
            lost.append("capabilities")
        self._name(path, lost)

    def to_json(self) -> dict[str, Any]:
        """Return the result's fields; empty when all was kept."""
        return {"not_kept": self.listed, "not_kept_count": self.count} if self.count else {}

    # folders

    def _folder(self, path: bytes) -> Folder:
        """Return the directory at `path` as it is in the destination, else as the export will make it."""
        known = self._folders.get(path)
        if known is None:
            if len(self._folders) >= FOLDERS_MAX:
                self._folders.clear()
            known = self._folders[path] = self._look(path)
        return known

    def _look(self, path: bytes) -> Folder:
        if not path:
            if self._target is not None:
                return _folder_of(self._target.fd)
            above = (
                Folder(self._uid, self._gid, setgid=False, acl=None)
                if self._home is None
                else _folder_of(self._home.fd)
            )
        else:
            found = None if self._target is None else self._target.lstat(path)
            if found is not None and stat.S_ISDIR(found.st_mode) and self._target is not None:
                with contextlib.suppress(PermissionError):  # cannot be read: its default ACL is not known
                    return self._opened(path)
                return Folder(found.st_uid, found.st_gid, bool(found.st_mode & stat.S_ISGID), None)
            above = self._folder(path.rpartition(b"/")[0])
        uid, gid = self._gives(above)
        return above._replace(uid=uid, gid=gid)

    def _opened(self, path: bytes) -> Folder:
        assert self._target is not None
        below = self._target.below(path)
        try:
            return _folder_of(below.fd)
        finally:
            below.close()

    def _gives(self, folder: Folder) -> tuple[int, int]:
        """Return owner and group of new entries of a directory."""
        inherits = self.root or folder.setgid or sys.platform == "darwin"
        return folder.uid if self.root else self._uid, folder.gid if inherits else self._gid

    def _of(self, place: DirTree) -> Folder:
        """Return the stat of a new entry in a staging directory."""
        known = self._made.get(place.fd)
        if known is None:
            found = os.stat(b"new", dir_fd=place.fd, follow_symlinks=False)
            setgid = bool(found.st_mode & stat.S_ISGID)
            gid = found.st_gid if setgid or sys.platform == "darwin" else self._gid
            known = self._made[place.fd] = Folder(self._uid, gid, setgid, None)
        return known

    # one file

    def _own(self, fd: int, place: DirTree, uid: int, gid: int) -> list[str]:
        return self._chown(lambda uid, gid: os.fchown(fd, uid, gid), place, uid, gid)

    def _chown(self, chown: Callable[[int, int], None], place: DirTree, uid: int, gid: int) -> list[str]:
        """Set owner and group; return the parts that the system refuses. No system call if the file already
        has both.
        """
        made = self._of(place)
        uid, gid = (-1 if uid == made.uid else uid), (-1 if gid == made.gid else gid)
        if uid == gid == -1:
            return []
        try:
            chown(uid, gid)
        except OSError:
            lost = ["owner"] if uid != -1 else []
            if gid != -1:
                try:
                    chown(-1, gid)
                except OSError:
                    lost.append("group")
            return lost
        return []

    def _attributes(self, fd: int, path: bytes) -> list[str]:
        """Copy the attributes of the replaced file."""
        lost: list[str] = []
        wanted: list[tuple[str, bytes | None]] = []
        for name in self._names(path):
            if name in _OF_THE_CONTENT or name.startswith(_OF_OVERLAYS):
                continue
            if name == CAPABILITY:
                lost.append("capabilities")
                continue
            try:
                wanted.append((name, os.getxattr(self._handle(path), name, follow_symlinks=False)))
            except OSError:
                wanted.append((name, None))
        return lost + self._set(fd, wanted)

    @staticmethod
    def _set(fd: int, wanted: list[tuple[str, bytes | None]]) -> list[str]:
        lost: list[str] = []
        for name, value in wanted:
            try:
                if value is None:
                    raise PermissionError
                os.setxattr(fd, name, value)
            except OSError:
                if not name.startswith("security."):  # the system sets labels
                    lost.append("access control list" if name in (ACL, DEFAULT_ACL) else name)
        return lost

    def _names(self, path: bytes) -> list[str]:
        if not _KNOWS or self._target is None:
            return []
        try:
            return os.listxattr(self._handle(path), follow_symlinks=False)
        except OSError:  # a file system without attributes
            return []

    def _handle(self, path: bytes) -> bytes:
        """Return the path of a file through the descriptor of its directory: no xattr call takes a descriptor
        and a name.
        """
        assert self._target is not None
        return b"/proc/self/fd/%d/%s" % (self._target.parent(path), path.rpartition(b"/")[2])

    def _name(self, path: bytes, lost: list[str]) -> None:
        if lost:
            self.count += 1
            if len(self.listed) < LISTED_MAX:
                self.listed.append({"path": shown(path), "what": ", ".join(dict.fromkeys(lost))})


def _folder_of(fd: int) -> Folder:
    found = os.fstat(fd)
    acl: bytes | None = None
    if _KNOWS:
        with contextlib.suppress(OSError):  # none, or a file system without attributes
            acl = os.getxattr(fd, DEFAULT_ACL)
    return Folder(found.st_uid, found.st_gid, bool(found.st_mode & stat.S_ISGID), acl)


def owned_by_folder(fd: int, folder: int) -> None:
    """As root, give a new directory the owner and group of its parent."""
    if os.geteuid() == 0:
        found = os.fstat(folder)
        with contextlib.suppress(OSError):
            os.fchown(fd, found.st_uid, found.st_gid)


def plain(fd: int) -> None:
    """Remove from a staging directory the attributes that its new entries would inherit."""
    if _KNOWS:
        with contextlib.suppress(OSError):
            os.removexattr(fd, DEFAULT_ACL)
