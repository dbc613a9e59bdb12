"""The staging directory of one `dir` export, and the journal by which an incomplete one is rolled back.

    .eos-export-<...>/      inside the destination, or beside it while that does not exist; locked with
                            flock(2) by its export
      state                 {"format", "phase": ready | done | back, "created", "plan", "clears", "mac"};
                            replaced by rename; none while the stream is read, when no step needs a rollback
      plan                  one record per entry of the stream, in its order: the step, the mode to set, the
                            old mode, and size and time of the entry that is put in place
      clears                paths that opaque directories hide
      new/<n>               the entry that n puts in place, complete and synced before the phase is `ready`
      undo/<n>, undo/c<k>   the entry that was moved out of the way for it

Entries for another file system that is mounted in the destination have their `new` and `undo` there
(`export.annex`).

From `ready` on the destination changes by rename, link and chmod only, and the contents of `new` and `undo`
show which of these steps were done: a later export, or `recover`, rolls them back in reverse. Every rollback
step can be repeated, also after a kill in the middle of it. A path whose size or time differs from the entry
that was put there was written after the kill: it stays as it is.

Any program can make a directory of such a name there, so a voucher in the gateway's state directory
identifies the export's directory (`export.voucher`). `mac` is an HMAC with the voucher's key of the state,
which includes the HMACs of plan and clears: a foreign journal is never applied.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import stat
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from eos_mcp.export.annex import Annexes, clear_annexes
from eos_mcp.export.dirfd import DirTree, sync_file_system
from eos_mcp.export.flock import lock
from eos_mcp.export.mounts import check_none
from eos_mcp.export.names import flaw, reserved
from eos_mcp.export.owner import plain
from eos_mcp.export.voucher import Said, Voucher

FORMAT = 3
SYNC_EACH_UP_TO = 64
"""Largest number of files or directories that are synced one by one. For more, one syncfs(2) is cheaper; for
fewer, syncfs would also wait for writes of other programs.
"""

_NO_MODE = 0xFFFF
_RECORDS = {2: struct.Struct("<cBHHH"), 3: struct.Struct("<cBHHHQq")}
"""Records by format; 2 has no size and time."""
_SECOND = 1_000_000_000
_LETTERS = (b"f", b"h", b"l", b"d", b"w", b"n")
_OPEN = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)

StepHook = Callable[[str], None]


def no_step(name: str) -> None:
    """Do nothing. Tests pass a hook that kills the process at a step."""


class NotVouched(Exception):
    """Error for a journal that this gateway did not write."""


class Step(NamedTuple):
    """The plan of one entry of the stream."""

    letter: bytes
    """f, h, l, d as in the index of the stream; w: a deletion; n: an entry that is left out, without a path.
    """
    staged: bool
    """True: the commit moves `new/<n>` to the path."""
    mode: int
    """Permission bits afterwards, of a file or a directory."""
    old_mode: int | None
    """Earlier permission bits, of an entry that stays in place and gets other bits."""
    path: bytes
    size: int = 0
    mtime_ns: int = 0
    """Modification time of a file or symlink that is put in place, as `size`."""

    def put_there(self, found: os.stat_result) -> bool:
        """Tell by size and time whether the path still has the entry of this step. File systems with a
        granularity of a second round the time.
        """
        if self.letter == b"d":
            return stat.S_ISDIR(found.st_mode)
        kind = stat.S_IFLNK if self.letter == b"l" else stat.S_IFREG
        off = abs(found.st_mtime_ns - self.mtime_ns)
        same_time = not off or (found.st_mtime_ns % _SECOND == 0 and off < 2 * _SECOND)
        return stat.S_IFMT(found.st_mode) == kind and found.st_size == self.size and same_time


class ExportStage:
    """One staging directory, locked and on record while it is open. `home`: its parent, which the caller
    closes.
    """

    def __init__(
        self,
        home: DirTree,
        tree: DirTree,
        voucher: Voucher,
        step: StepHook,
        *,
        create: bool,
        format_number: int = FORMAT,
    ) -> None:
        self.home, self.tree, self.voucher, self.step, self.format_number = (
            home,
            tree,
            voucher,
            step,
            format_number,
        )
        self.annexes = Annexes(tree)
        how = _OPEN | (os.O_CREAT | os.O_EXCL if create else 0)
        with contextlib.ExitStack() as stack:
            self._plan = stack.enter_context(
                os.fdopen(os.open(b"plan", how, 0o600, dir_fd=tree.fd), "r+b", buffering=1 << 16)
            )
            self._clears = os.fdopen(os.open(b"clears", how, 0o600, dir_fd=tree.fd), "r+b", buffering=1 << 16)
            stack.pop_all()
        self._at = array("Q")
        self._end = 0
        self.created = False
        self.kept = False  # a rollback failed: the directory stays
        self.ended = False

    @property
    def path(self) -> str:
        return os.path.join(self.voucher.said.home, os.fsdecode(self.voucher.said.name))

    @classmethod
    def create(
        cls, folder: str, home: DirTree, home_path: str, dest: str, tag: str, step: StepHook = no_step
    ) -> ExportStage:
        """Make a staging directory in `home`. Its record in `folder` is written first, so that a kill leaves
        no unknown directory.
        """
        step("export.voucher")
        voucher = Voucher.create(folder, kind="dir", dest=dest, home=home_path, home_fd=home.fd, tag=tag)
        name = voucher.said.name
        with contextlib.ExitStack() as stack:
            stack.callback(voucher.drop)
            step("export.mkdir")
            os.mkdir(name, 0o700, dir_fd=home.fd)
            stack.callback(_rmdir, home, name)
            tree = home.below(name)
            stack.callback(tree.close)
            if os.fstat(tree.fd).st_uid != os.geteuid() or os.listdir(tree.fd) or not lock(tree.fd):
                where = os.path.join(home_path, os.fsdecode(name))
                raise OSError(
                    errno.EAGAIN, "the staging directory was replaced as soon as it was made", where
                )
            step("export.bind")
            voucher.bind(tree.fd)
            stack.callback(_empty, tree)
            step("export.bound")
            plain(tree.fd)
            os.mkdir(b"new", 0o700, dir_fd=tree.fd)
            os.mkdir(b"undo", 0o700, dir_fd=tree.fd)
            stage = cls(home, tree, voucher, step, create=True)
            stack.pop_all()
        return stage

    @classmethod
    def take_over(cls, home: DirTree, voucher: Voucher, step: StepHook = no_step) -> ExportStage | None:
        """Open the staging directory of a killed export, if it has steps to roll back; None: it needs only
        removal.

        Raises:
            NotVouched: it is not the recorded directory, or its journal differs from the one that the export
                wrote.
            OSError: it cannot be read, or a part of it is on a file system that is not mounted now (ENODEV).
        """
        if voucher.said.staging(home) is None:
            raise NotVouched
        with contextlib.ExitStack() as stack:
            tree = home.below(voucher.said.name)
            stack.callback(tree.close)
            if not voucher.said.is_(voucher.said.id, os.fstat(tree.fd)) or not lock(tree.fd):
                raise NotVouched
            state = state_of(tree, voucher.said)
            if state.get("phase") != "ready":
                return None
            try:
                stage = cls(home, tree, voucher, step, create=False, format_number=state["format"])
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
                    raise  # a read-only disk, no free descriptor: a later try may succeed
                raise NotVouched from error
            stack.callback(stage._close_files)
            stage._read_plan(state)
            stage.annexes.take_over(home, voucher.said)
            stage.created = bool(state.get("created"))
            stack.pop_all()
        return stage

    def leave(self) -> None:
        """Close the directory as it is, for the next export to take over; the caller closes the voucher."""
        self._close_files()
        self.annexes.close()
        self.tree.close()

    def _close_files(self) -> None:
        for file in (self._plan, self._clears):
            with contextlib.suppress(OSError):  # a full disk: the unwritten part is no longer needed
                file.close()

    def destroy(self) -> None:
        """Delete the directory with its contents, and its record."""
        self._close_files()
        self.annexes.close()
        self.tree.close()
        clear_away(self.home, self.voucher, self.step)

    def place(self, path: bytes) -> DirTree:
        """Return the staging directory on the file system of `path` in the destination."""
        found = self.annexes.of(path)
        assert found is not None  # a running export has one for every file system
        return found

    # writing

    def set_phase(self, phase: str) -> None:
        """Write the state so that it survives a power cut."""
        state: dict[str, Any] = {"format": self.format_number, "phase": phase, "created": self.created}
        if phase == "ready":
            state |= {
                name: self._code_of(file) for name, file in (("plan", self._plan), ("clears", self._clears))
            }
        data = json.dumps({**state, "mac": _code(self.voucher.said, state)}).encode()
        how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        fd = os.open(b"state.new", how, 0o600, dir_fd=self.tree.fd)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(b"state.new", b"state", src_dir_fd=self.tree.fd, dst_dir_fd=self.tree.fd)
        os.fsync(self.tree.fd)

    def _code_of(self, file: IO[bytes]) -> str:
        """Return the HMAC of the whole plan, or of the clears."""
        file.flush()
        file.seek(0)
        code = hmac.new(self.voucher.said.key, digestmod="sha256")
        while data := file.read(1 << 20):
            code.update(data)
        return code.hexdigest()

    def _read_plan(self, state: dict[str, Any]) -> None:
        """Find the records of the plan of a dead export.

        Raises:
            NotVouched: plan or clears do not match the state.
        """
        for name, file in (("plan", self._plan), ("clears", self._clears)):
            if not hmac.compare_digest(self._code_of(file), str(state.get(name, ""))):
                raise NotVouched
        at = 0
        while record := self._read(at):
            if record.letter not in _LETTERS or self._packed(record) != self._plain(record):
                raise NotVouched
            self._at.append(at)
            at += _RECORDS[self.format_number].size + len(record.path)
        self._end = at
        for path in self.clears():
            if flaw(path) is not None:
                raise NotVouched

    def add(self, what: Step) -> None:
        """Append the step of the next entry. OSError, EINVAL: an export must not change such a path."""
        data = self._packed(what)
        self._plan.write(data)
        self._at.append(self._end)
        self._end += len(data)

    def put(self, n: int, what: Step) -> None:
        """Replace the step of an entry; its path is unchanged."""
        assert self[n].path == what.path
        self._plan.seek(self._at[n])
        self._plan.write(self._packed(what))
        self._plan.seek(0, 2)

    def add_clear(self, path: bytes) -> None:
        if flaw(path) is not None:
            raise _no_plan(path)
        self._clears.write(struct.pack("<H", len(path)) + path)

    def ready(self, files: int) -> None:
        """Sync everything staged and planned, then write the next phase."""
        self.step("export.sync")
        self._plan.flush()
        self._clears.flush()
        if files > SYNC_EACH_UP_TO and all(sync_file_system(tree.fd) for tree in self.annexes.all()):
            pass
        else:
            for n in range(len(self._at)):
                what = self[n]
                if what.staged and what.letter in b"fh":
                    _fsync(b"new/%d" % n, self.place(what.path).fd)
            os.fsync(self._plan.fileno())
            os.fsync(self._clears.fileno())
            for tree in self.annexes.all():
                _fsync(b"new", tree.fd)
                _fsync(b"undo", tree.fd)
        self.step("export.ready")
        self.set_phase("ready")

    # reading

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
        record = _RECORDS[self.format_number]
        head = self._plan.read(record.size)
        if len(head) < record.size:
            return None
        letter, staged, mode, old, size, *figures = record.unpack(head)
        path = self._plan.read(size)
        self._plan.seek(0, 2)
        return (
            Step(letter, bool(staged), mode, None if old == _NO_MODE else old, path, *figures)
            if len(path) == size
            else None
        )

    def steps(self) -> Iterator[tuple[int, Step]]:
        """Yield all steps in order; the file's offset does not change."""
        self._plan.flush()
        fd, at, held = self._plan.fileno(), 0, b""
        record = _RECORDS[self.format_number]
        for n in range(len(self._at)):
            size = record.size
            while len(held) < size or len(held) < (size := record.size + record.unpack_from(held)[4]):
                data = os.pread(fd, 1 << 16, at)
                if not data:
                    raise OSError(errno.EIO, "the plan of the export is cut short", self.path)
                held, at = held + data, at + len(data)
            letter, staged, mode, old, _, *figures = record.unpack_from(held)
            yield (
                n,
                Step(
                    letter,
                    bool(staged),
                    mode,
                    None if old == _NO_MODE else old,
                    held[record.size : size],
                    *figures,
                ),
            )
            held = held[size:]

    def backwards(self) -> Iterator[tuple[int, Step]]:
        for n in range(len(self._at) - 1, -1, -1):
            yield n, self[n]

    def clears(self) -> list[bytes]:
        """Yield the paths to clear: names of the destination that an opaque directory hides."""
        self._clears.flush()
        self._clears.seek(0)
        out: list[bytes] = []
        while len(head := self._clears.read(2)) == 2:
            out.append(self._clears.read(struct.unpack("<H", head)[0]))
        return out

    # the destination

    def commit(self, target: DirTree) -> None:
        """Change the destination in three passes: clear opaque directories, delete, put in place; then set
        modes, then sync once. After any exception the caller calls `rollback`.
        """
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
                target.chmod(
                    what.path, what.old_mode | 0o700
                )  # so that its entries can be changed; the last pass sets its mode
        for _, what in self.backwards():
            if what.old_mode is not None or (what.letter == b"d" and what.staged and what.mode != 0o700):
                self.step("export.mode")
                target.chmod(what.path, what.mode)
                note(what.path + b"/" if what.letter == b"d" else what.path)
        self.step("export.sync_names")
        if len(touched) > SYNC_EACH_UP_TO and all(sync_file_system(tree.fd) for tree in self.annexes.all()):
            return
        for directory in sorted(touched):
            _fsync(b".", target.parent(directory + b"/x") if directory else target.fd)

    def _out(self, target: DirTree, path: bytes, place: bytes) -> bool:
        old = target.lstat(path)
        if old is None:
            return False
        target.move(path, self.place(path), place, directory=stat.S_ISDIR(old.st_mode))
        return True

    def _place(self, target: DirTree, n: int, what: Step) -> None:
        new, undo, stage = b"new/%d" % n, b"undo/%d" % n, self.place(what.path)
        old = target.lstat(what.path)
        if old is not None and stat.S_ISDIR(old.st_mode):
            if what.letter == b"d":  # made by another program since the plan
                return
            self.step("export.out")
            target.move(what.path, stage, undo, directory=True)
        elif old is not None:
            self.step("export.out")
            try:
                if what.letter == b"d":
                    raise OSError(errno.EPERM, "a directory replaces nothing by rename")
                target.link(what.path, stage, undo)
            except OSError as error:
                if error.errno not in (
                    errno.EPERM,
                    errno.EOPNOTSUPP,
                    errno.ENOTSUP,
                    errno.EMLINK,
                    errno.ENOSYS,
                ):
                    raise OSError(error.errno, error.strerror, what.path) from None
                target.move(what.path, stage, undo)
        self.step("export.in")
        try:
            stage.move(new, target, what.path, directory=what.letter == b"d")
        except OSError as error:
            raise OSError(error.errno, error.strerror, what.path) from None

    def rollback(self, target: DirTree) -> None:
        """Undo the steps that `commit` has done. Can be repeated."""
        for n, what in self.steps():
            if (stage := self.annexes.of(what.path)) is None:
                continue
            if what.letter == b"d" and (
                what.old_mode is not None or (what.staged and stage.lstat(b"new/%d" % n) is None)
            ):
                found = target.lstat(what.path)
                if found is not None and stat.S_ISDIR(found.st_mode) and found.st_mode & 0o700 != 0o700:
                    target.chmod(what.path, stat.S_IMODE(found.st_mode) | 0o700)
        for n, what in self.backwards():
            if what.staged:
                self._undo_step(target, n, what)
        for n, what in self.backwards():
            if what.letter == b"w":
                self._back(target, what.path, b"undo/%d" % n)
        for k, path in reversed(list(enumerate(self.clears()))):
            self._back(target, path, b"undo/c%d" % k)
        for _, what in self.backwards():
            if what.old_mode is not None and self.annexes.of(what.path) is not None:
                self._mode_back(target, what, what.old_mode)
        for tree in self.annexes.all():
            if not sync_file_system(tree.fd):
                os.fsync(target.fd if tree is self.tree else tree.fd)

    @staticmethod
    def _mode_back(target: DirTree, what: Step, old_mode: int) -> None:
        """Restore a mode that the commit changed, unless the entry was replaced since or has another hard
        link.
        """
        found = target.lstat(what.path)
        if (
            found is None
            or (what.letter == b"d") != stat.S_ISDIR(found.st_mode)
            or stat.S_ISLNK(found.st_mode)
        ):
            return
        mode = stat.S_IMODE(found.st_mode)
        if (
            mode != old_mode
            and mode in (what.mode, old_mode | 0o700, what.mode | 0o700)
            and (what.letter == b"d" or found.st_nlink == 1)
        ):
            target.chmod(what.path, old_mode)

    def _undo_step(self, target: DirTree, n: int, what: Step) -> None:
        """Move the new entry out, then the old one in; the entries in `new` show which steps were done.

        A file that another program wrote there since the export stays; the replaced entry is then not
        restored, since that file is newer.
        """
        new, undo, stage = b"new/%d" % n, b"undo/%d" % n, self.annexes.of(what.path)
        if stage is None:
            return
        if stage.lstat(new) is None:
            found = target.lstat(what.path)
            if found is not None:
                directory = stat.S_ISDIR(found.st_mode)
                if (self.format_number > 2 and not what.put_there(found)) or (
                    directory and target.names(what.path)
                ):
                    return
                self.step("export.take_back")
                target.move(what.path, stage, new, directory=directory)
        self._back(target, what.path, undo)

    def _back(self, target: DirTree, path: bytes, place: bytes) -> None:
        stage = self.annexes.of(path)
        old = None if stage is None else stage.lstat(place)
        if stage is not None and old is not None and target.lstat(path) is None:
            self.step("export.back")
            stage.move(place, target, path, directory=stat.S_ISDIR(old.st_mode))

    # records of the plan

    def _packed(self, what: Step) -> bytes:
        if what.letter == b"n":
            what = Step(b"n", False, 0, None, b"")
        elif flaw(what.path) is not None or reserved(what.path) is not None:
            raise _no_plan(what.path)
        return self._plain(what)

    def _plain(self, what: Step) -> bytes:
        old = _NO_MODE if what.old_mode is None else what.old_mode
        figures = (what.size, what.mtime_ns) if self.format_number > 2 else ()
        try:
            return (
                _RECORDS[self.format_number].pack(
                    what.letter, what.staged, what.mode, old, len(what.path), *figures
                )
                + what.path
            )
        except struct.error:
            raise OSError(errno.EINVAL, "no time or size that a file has", what.path) from None


def _no_plan(path: bytes) -> OSError:
    return OSError(errno.EINVAL, "no path that an export may change", path)


def _code(said: Said, state: dict[str, Any]) -> str:
    """Return the HMAC of a state, without the key `mac`."""
    what = json.dumps(
        [said.name.decode(), {key: value for key, value in state.items() if key != "mac"}], sort_keys=True
    )
    return hmac.new(said.key, what.encode(), "sha256").hexdigest()


def state_of(tree: DirTree, said: Said) -> dict[str, Any]:
    """Read the state file of a staging directory; empty without one: the directory was just made, or partly
    removed.

    Raises:
        NotVouched: the export did not write it. OSError: it cannot be read now.
    """
    fd = tree.open_file(b"state")
    if fd is None:
        found = tree.lstat(b"state")
        if found is not None and stat.S_ISREG(found.st_mode):
            raise OSError(errno.EIO, "the state of an earlier export cannot be read", b"state")
        return {}
    with os.fdopen(fd, "rb") as file:
        try:
            value = json.loads(file.read(4096))
            known = value["format"] in _RECORDS and hmac.compare_digest(str(value["mac"]), _code(said, value))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NotVouched from error
    if not known:
        raise NotVouched
    state: dict[str, Any] = value
    return state


def clear_away(home: DirTree, voucher: Voucher, step: StepHook = no_step) -> None:
    """Remove the staging of a voucher, then its record: after a kill in between the record still names the
    rest.
    """
    try:
        step("export.remove")
        clear_annexes(home, voucher.said)
        if voucher.said.staging(home) is not None:
            check_none(home.fd, voucher.said.name)
            home.remove(voucher.said.name)
            os.fsync(home.fd)
        step("export.forget")
    except BaseException:
        voucher.close()
        raise
    voucher.drop()


def _rmdir(home: DirTree, name: bytes) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=home.fd)


def _empty(tree: DirTree) -> None:
    for name in tree.names(b""):
        tree.remove(name)


def _fsync(name: bytes, dir_fd: int) -> None:
    fd = os.open(name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
