"""The staging directory of one `dir` export, and the journal that takes a half-done one back.

    .eos-export-<...>/      inside the destination, or beside it while that does not exist yet; locked with flock(2) by its export
      state                 {"format", "phase": receiving | ready | done, "created"}; replaced by rename
      plan                  one record per entry of the stream, in its order: what to do, with which mode, and which mode was there
      clears                paths that opaque directories hide
      new/<n>               what entry n puts in place, complete and synced before the phase is `ready`
      undo/<n>, undo/c<k>   what was moved out of the way for it

From `ready` on the destination changes by rename, link and chmod only, and each of them can be told from what lies in `new` and `undo`:
a later export, or `recover`, takes the steps back in reverse. Every rollback step can be repeated, so a kill in the middle of it is fine too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from eos_mcp.manager.export_tree import Tree, sync_file_system

PREFIX = b".eos-export-"
FORMAT = 1
SYNC_EACH_UP_TO = 64
"""Above so many files or directories one syncfs is cheaper; below, it would wait for strangers' writes."""

_NO_MODE = 0xFFFF
_RECORD = struct.Struct("<cBHHH")

StepHook = Callable[[str], None]


def no_step(name: str) -> None:
    """The step of production: nothing happens. Tests kill a child here."""


class Step(NamedTuple):
    """What one entry of the stream asks for."""

    letter: bytes
    """f, h, l, d as in the index of the stream; w for a deletion."""
    staged: bool
    """`new/<n>` is to be put at the path."""
    mode: int
    """Permission bits afterwards, of a file or a directory."""
    old_mode: int | None
    """Permission bits of what stays in place and is to be changed."""
    path: bytes


class Stage:
    """One staging directory, locked as long as it is open."""

    def __init__(self, path: str, tree: Tree, step: StepHook) -> None:
        self.path, self.tree, self.step = path, tree, step
        self._plan = os.fdopen(os.open(b"plan", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=tree.fd), "r+b", buffering=1 << 16)
        self._clears = os.fdopen(os.open(b"clears", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=tree.fd), "r+b", buffering=1 << 16)
        self._at = array("Q")
        self._end = 0
        self.created = False
        self.kept = False  # a rollback failed: the directory stays

    @classmethod
    def create(cls, directory: str, tag: str, step: StepHook = no_step) -> Stage:
        """A new one below `directory`."""
        while True:
            path = os.path.join(directory, os.fsdecode(PREFIX) + tag + os.urandom(6).hex())
            os.mkdir(path, 0o700)
            tree = Tree(path)
            try:
                if not lock(tree.fd) or not _is_still(tree.fd, path):  # a recovery took it for a dead one
                    tree.close()
                    continue
                os.mkdir(b"new", 0o700, dir_fd=tree.fd)
                os.mkdir(b"undo", 0o700, dir_fd=tree.fd)
                stage = cls(path, tree, step)
                stage.set_phase("receiving")
            except BaseException:
                tree.close()
                remove(path)
                raise
            return stage

    @classmethod
    def take_over(cls, path: str, step: StepHook = no_step) -> Stage | None:
        """The one that a dead export left; None when its owner lives, or when it is not this user's."""
        try:
            tree = Tree(path)
        except OSError:
            return None
        if os.fstat(tree.fd).st_uid != os.geteuid() or not lock(tree.fd) or not _is_still(tree.fd, path):
            tree.close()
            return None
        stage = cls(path, tree, step)
        at = 0
        while record := stage._read(at):
            stage._at.append(at)
            at += _RECORD.size + len(record.path)
        stage._end = at
        stage.created = bool(stage.state().get("created"))
        return stage

    def close(self) -> None:
        for file in (self._plan, self._clears):
            with contextlib.suppress(OSError):  # a full disk: what is not written is not needed any more
                file.close()
        self.tree.close()

    def destroy(self) -> None:
        """Delete it with all that it holds, and let go of the lock."""
        self.close()
        remove(self.path)

    # what is written

    def state(self) -> dict[str, Any]:
        return state_of(self.tree)

    def set_phase(self, phase: str) -> None:
        """Write the state so that it survives a power cut."""
        data = json.dumps({"format": FORMAT, "phase": phase, "created": self.created}).encode()
        fd = os.open(b"state.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=self.tree.fd)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(b"state.new", b"state", src_dir_fd=self.tree.fd, dst_dir_fd=self.tree.fd)
        os.fsync(self.tree.fd)

    def add(self, what: Step) -> None:
        old = _NO_MODE if what.old_mode is None else what.old_mode
        self._plan.write(_RECORD.pack(what.letter, what.staged, what.mode, old, len(what.path)) + what.path)
        self._at.append(self._end)
        self._end += _RECORD.size + len(what.path)

    def add_clear(self, path: bytes) -> None:
        self._clears.write(struct.pack("<H", len(path)) + path)

    def ready(self, files: int) -> None:
        """Everything staged and planned is on disk, then the phase changes."""
        self.step("export.sync")
        self._plan.flush()
        self._clears.flush()
        if files > SYNC_EACH_UP_TO and sync_file_system(self.tree.fd):
            pass
        else:
            for n in range(len(self._at)):
                what = self[n]
                if what.staged and what.letter in b"fh":
                    _fsync(b"new/%d" % n, self.tree.fd)
            os.fsync(self._plan.fileno())
            os.fsync(self._clears.fileno())
            _fsync(b"new", self.tree.fd)
            _fsync(b"undo", self.tree.fd)
        self.step("export.ready")
        self.set_phase("ready")

    # what is read

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, n: int) -> Step:
        found = self._read(self._at[n])
        if found is None:
            raise OSError(errno.EIO, "the plan of the export is cut short", self.path)
        return found

    def _read(self, at: int) -> Step | None:
        self._plan.flush()
        self._plan.seek(at)
        head = self._plan.read(_RECORD.size)
        if len(head) < _RECORD.size:
            return None
        letter, staged, mode, old, size = _RECORD.unpack(head)
        path = self._plan.read(size)
        self._plan.seek(0, 2)
        return Step(letter, bool(staged), mode, None if old == _NO_MODE else old, path) if len(path) == size else None

    def steps(self) -> Iterator[tuple[int, Step]]:
        """All steps in order, read through a descriptor of their own."""
        self._plan.flush()
        with os.fdopen(os.open(b"plan", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.tree.fd), "rb", buffering=1 << 16) as file:
            for n in range(len(self._at)):
                letter, staged, mode, old, size = _RECORD.unpack(file.read(_RECORD.size))
                yield n, Step(letter, bool(staged), mode, None if old == _NO_MODE else old, file.read(size))

    def backwards(self) -> Iterator[tuple[int, Step]]:
        for n in range(len(self._at) - 1, -1, -1):
            yield n, self[n]

    def clears(self) -> list[bytes]:
        """Paths to clear; as many as the destination has hidden names."""
        self._clears.flush()
        self._clears.seek(0)
        out: list[bytes] = []
        while len(head := self._clears.read(2)) == 2:
            out.append(self._clears.read(struct.unpack("<H", head)[0]))
        return out

    # the destination

    def commit(self, target: Tree) -> None:
        """Three passes: clear opaque directories, delete, put in place; then modes, then one sync. Any exception: call `rollback`."""
        touched: set[bytes] = set()

        def note(path: bytes) -> None:
            if len(touched) <= SYNC_EACH_UP_TO:
                touched.add(path.rpartition(b"/")[0])

        for k, path in enumerate(self.clears()):
            self.step("export.clear")
            self._out(target, path, b"undo/c%d" % k)
            note(path)
        for n, what in self.steps():
            if what.letter == b"w":
                self.step("export.delete")
                self._out(target, what.path, b"undo/%d" % n)
                note(what.path)
        for n, what in self.steps():
            if what.staged:
                self._place(target, n, what)
                note(what.path)
            elif what.letter == b"d" and what.old_mode is not None and what.old_mode & 0o700 != 0o700:
                target.chmod(what.path, what.old_mode | 0o700)  # so that its children can be changed; the last pass sets what it gets
        for _, what in self.backwards():
            if what.old_mode is not None or (what.letter == b"d" and what.staged and what.mode != 0o700):
                self.step("export.mode")
                target.chmod(what.path, what.mode)
                note(what.path + b"/" if what.letter == b"d" else what.path)
        self.step("export.sync_names")
        if len(touched) > SYNC_EACH_UP_TO and sync_file_system(target.fd):
            return
        for directory in sorted(touched):
            _fsync(b".", target.parent(directory + b"/x") if directory else target.fd)

    def _out(self, target: Tree, path: bytes, place: bytes) -> bool:
        old = target.lstat(path)
        if old is None:
            return False
        target.move(path, self.tree, place, directory=stat.S_ISDIR(old.st_mode))
        return True

    def _place(self, target: Tree, n: int, what: Step) -> None:
        new, undo = b"new/%d" % n, b"undo/%d" % n
        old = target.lstat(what.path)
        if old is not None and stat.S_ISDIR(old.st_mode):
            if what.letter == b"d":  # made by somebody since the plan
                return
            self.step("export.out")
            target.move(what.path, self.tree, undo, directory=True)
        elif old is not None:
            self.step("export.out")
            try:
                if what.letter == b"d":
                    raise OSError(errno.EPERM, "a directory replaces nothing by rename")
                target.link(what.path, self.tree, undo)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
                    raise OSError(error.errno, error.strerror, what.path) from None
                target.move(what.path, self.tree, undo)
        self.step("export.in")
        try:
            self.tree.move(new, target, what.path, directory=what.letter == b"d")
        except OSError as error:
            raise OSError(error.errno, error.strerror, what.path) from None

    def rollback(self, target: Tree) -> None:
        """Take back what `commit` did, as far as it came. Can be repeated."""
        for n, what in self.steps():
            if what.letter == b"d" and (what.old_mode is not None or (what.staged and self.tree.lstat(b"new/%d" % n) is None)):
                found = target.lstat(what.path)
                if found is not None and stat.S_ISDIR(found.st_mode) and found.st_mode & 0o700 != 0o700:
                    target.chmod(what.path, stat.S_IMODE(found.st_mode) | 0o700)
        for n, what in self.backwards():
            if what.staged:
                self._take_back(target, n, what)
        for n, what in self.backwards():
            if what.letter == b"w":
                self._back(target, what.path, b"undo/%d" % n)
        for k, path in reversed(list(enumerate(self.clears()))):
            self._back(target, path, b"undo/c%d" % k)
        for _, what in self.backwards():
            if what.old_mode is not None:
                found = target.lstat(what.path)
                if found is not None and not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) != what.old_mode:
                    target.chmod(what.path, what.old_mode)
        os.fsync(target.fd)

    def _take_back(self, target: Tree, n: int, what: Step) -> None:
        """First the new one out, then the old one in: what lies in `new` says how far this came."""
        new, undo = b"new/%d" % n, b"undo/%d" % n
        if self.tree.lstat(new) is None:
            found = target.lstat(what.path)
            if found is not None:
                directory = stat.S_ISDIR(found.st_mode)
                if directory and target.names(what.path):  # somebody else put something there: it stays
                    if self.tree.lstat(undo) is not None:
                        raise OSError(errno.ENOTEMPTY, "a directory that the export made holds files of somebody else", what.path)
                    return
                self.step("export.take_back")
                target.move(what.path, self.tree, new, directory=directory)
        self._back(target, what.path, undo)

    def _back(self, target: Tree, path: bytes, place: bytes) -> None:
        old = self.tree.lstat(place)
        if old is not None and target.lstat(path) is None:
            self.step("export.back")
            self.tree.move(place, target, path, directory=stat.S_ISDIR(old.st_mode))


def state_of(tree: Tree) -> dict[str, Any]:
    """The state file of a staging directory; empty when there is none that can be read."""
    fd = tree.open_file(b"state")
    if fd is None:
        return {}
    with os.fdopen(fd, "rb") as file:
        try:
            value = json.loads(file.read(4096))
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def lock(fd: int) -> bool:
    """flock(2), not waiting; where directories cannot be locked everybody gets it."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
    return True


def remove(path: str) -> None:
    """Delete a staging directory by its path."""
    with contextlib.suppress(FileNotFoundError):
        parent = Tree(os.path.dirname(path))
        try:
            parent.remove(os.fsencode(os.path.basename(path)))
        finally:
            parent.close()


def _is_still(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _fsync(name: bytes, dir_fd: int) -> None:
    fd = os.open(name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
