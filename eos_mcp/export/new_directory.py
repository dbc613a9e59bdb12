"""An export to a directory that does not exist yet: its tree is made as a whole in the staging directory, and one rename puts it in place.

    .eos-export-<...>/tree/      what becomes the destination
    .eos-export-<...>/new/<n>    the bytes of a file that is left out, for a later entry that is another name of it

There is nothing to compare with and nothing to take back: a kill before the rename leaves a staging to be swept, one after it a whole destination.
"""

from __future__ import annotations

import errno
import os

from eos_mcp.export.dirfd import copy_data, sync_file_system
from eos_mcp.export.guard import ExportGuard
from eos_mcp.export.hygiene import JUDGED_MAX
from eos_mcp.export.names import reserved
from eos_mcp.export.receive import Progress, Receiver, judge, write_all
from eos_mcp.export.request import ExportRequest
from eos_mcp.export.stage import SYNC_EACH_UP_TO, ExportStage, Step
from eos_mcp.export.stream import ExportStream, StreamRun, refused, shown
from layerstack.export import pax
from layerstack.kernel.fsync import begin_write_out, rename_new
from layerstack.model.run_table import RunRow

TREE = b"tree"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
WRITE_OUT_BYTES = 8 << 20


class FreshReceiver(Receiver):
    """As `Receiver`, for a destination that does not exist. `tree` is where it is made; the caller closes it."""

    def __init__(self, stream: ExportStream, stage: ExportStage, request: ExportRequest, guard: ExportGuard) -> None:
        super().__init__(stream, None, stage, request, guard)
        os.mkdir(TREE, dir_fd=stage.tree.fd)
        self.tree = stage.tree.below(TREE)
        self.owners.top(self.tree.fd, stage.tree)
        self._staging, self._step = stage.tree, stage.step
        self._late_modes: list[tuple[bytes, int]] = []  # directories that are not ours to write to in the end
        self._first: list[bytes] = []  # what was made, as far as each is synced by itself
        self.staged_files = 0
        self.made = 0
        """How many entries the tree has."""

    @property
    def atomic(self) -> bool:
        """Whether the file system keeps all names apart: else names are compared, and files staged, one by one."""
        return not self._folds

    def receive(self, progress: Progress) -> None:
        """As `Receiver.receive`; afterwards the tree is complete, but not synced."""
        said, n = 0, 0
        for told in self.stream.items():
            if isinstance(told, StreamRun):
                self._rows(n, told)
                n += len(told.rows)
            else:
                self._one(n, told)
                n += 1
            if self.stream.tar_bytes - said >= 256 << 20:
                said = self.stream.tar_bytes
                progress(f"export: {self.stream.count} entries, {said >> 20} MiB read")
        self.stream.finish()
        if self._reserved:
            self._refuse_reserved()
        self.guard.refuse(self.hygiene)
        for path, mode in reversed(self._late_modes):
            self._step("export.mode")
            self.tree.chmod(path, mode)
        progress(f"export: {self.stream.count} entries received, putting {self.staged_files} files in place")

    def _add(self, what: Step) -> None:
        """No plan is needed: nothing of it is taken back step by step."""

    # entries

    def _one(self, n: int, told: pax.Header) -> None:
        header = self.stripped.clean(told)
        path = header.path
        if (name := reserved(path)) is not None:
            if header.kind != pax.WHITEOUT:
                self._reserved[name] = None
        elif self._left_out.look(path):
            if header.type == pax.FILE and not header.kind:
                fd = os.open(b"new/%d" % n, _NEW, 0o600, dir_fd=self._staging.fd)
                self._write(fd, header, None)
            if header.type == pax.FILE:
                self.guard.gather(header, passed=True)
        elif header.kind == pax.WHITEOUT:
            self.counts["deletes_applied"] += 1
            self._done(header, writes=True)
        elif header.type == pax.DIRECTORY:
            self._folder(path, header.mode)
            self.counts["opaque_clears"] += header.kind == pax.OPAQUE
            self._done(header, writes=True)
        elif header.type in (pax.SYMLINK, pax.HARD_LINK) and self._skips(header):
            pass
        elif header.type == pax.SYMLINK:
            parent, name = self._at(path)
            os.symlink(header.target, name, dir_fd=parent)
            self.owners.symlink(self._staging, name, path, None, parent)
            os.utime(name, ns=(header.mtime_ns, header.mtime_ns), dir_fd=parent, follow_symlinks=False)
            self.made += 1
            self.counts["symlinks_written"] += 1
            self._done(header, writes=True)
        elif header.type == pax.HARD_LINK:
            self._further_name(header)
            self.counts["files_written"] += 1
            self._done(header, writes=True)
        else:
            judged = bytearray() if self.hygiene.judges(header) else None
            parent, name = self._at(path)
            came = self._write(os.open(name, _NEW, 0o600, dir_fd=parent), header, judged)
            if self._skips(header, None if judged is None else bytes(judged)):
                os.rename(name, b"new/%d" % n, src_dir_fd=parent, dst_dir_fd=self._staging.fd)
                self.guard.gather(header, passed=True)
                return
            self._wrote(path)
            self.stripped.note(told, header.mode)
            self.counts["files_written"] += 1
            self.counts["bytes_written"] += came
            self._done(header, None if judged is None else bytes(judged), writes=True)

    def _at(self, path: bytes) -> tuple[int, bytes]:
        """The directory and the name of an entry that is made."""
        return self.tree.parent(path), path[path.rfind(b"/") + 1 :]

    def _wrote(self, path: bytes) -> None:
        self.made += 1
        self.staged_files += 1
        if len(self._first) <= SYNC_EACH_UP_TO:
            self._first.append(path)

    def _folder(self, path: bytes, mode: int) -> None:
        mode = mode if self.carried else 0o700
        parent, name = self._at(path)
        os.mkdir(name, 0o700, dir_fd=parent)
        self.made += 1
        mode |= self.owners.directory(self._staging, name, path, parent)
        if mode & 0o700 != 0o700:
            self._late_modes.append((path, mode))
        elif mode != 0o700:
            self._step("export.mode")
            self.tree.chmod(path, mode)
        if len(self._first) <= SYNC_EACH_UP_TO:
            self._first.append(path)

    def _write(self, fd: int, header: pax.Header, judged: bytearray | None) -> int:
        """The content of the present entry into a new file, which is closed; how many bytes came."""
        begun = came = end = 0
        try:
            for offset, piece in self.stream.pieces():
                came += len(piece)
                if judged is not None:
                    judge(judged, offset, piece)
                if offset != end:
                    os.lseek(fd, offset, os.SEEK_SET)
                write_all(fd, piece)
                end = offset + len(piece)
                if end - begun >= WRITE_OUT_BYTES:
                    begin_write_out(fd, begun, end - begun)
                    begun = end
            if end < header.length:
                os.ftruncate(fd, header.length)  # what is behind the data is a hole
                if judged is not None:
                    judge(judged, header.length, b"")
            self.owners.file(fd, self._staging, header.path, None)
            self._finish(fd, header)
        finally:
            os.close(fd)
        return came

    def _further_name(self, header: pax.Header) -> None:
        """A hard link to an earlier file of the tree, or to one that was left out; a copy where links do not work."""
        found = self.stream.index.find(header.target)
        assert found is not None  # the stream has checked it
        there = self.tree.lstat(header.target) is not None
        source, place = (header.target, self.tree) if there else (b"new/%d" % found[0], self._staging)
        try:
            place.link(source, self.tree, header.path)
            if not there:  # of a file that was left out this is the first name that is written
                parent, name = self._at(header.path)
                fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                try:
                    self.owners.file(fd, self._staging, header.path, None)
                    os.fchmod(fd, header.mode)
                finally:
                    os.close(fd)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS):
                raise
            copied = place.open_file(source)
            if copied is None:
                raise refused(f"{shown(header.target)} vanished while it was exported", "destination_changed") from error
            try:
                parent, name = self._at(header.path)
                new = os.open(name, _NEW, 0o600, dir_fd=parent)
                try:
                    status = os.fstat(copied)
                    copy_data(copied, new, status.st_size)
                    os.ftruncate(new, status.st_size)
                    self.owners.file(new, self._staging, header.path, None)
                    self._finish(new, header._replace(mtime_ns=status.st_mtime_ns))
                finally:
                    os.close(new)
            finally:
                os.close(copied)
        self._wrote(header.path)

    def _rows(self, n: int, run: StreamRun) -> None:
        """Plain files and directories: what `_one` does of them, at once."""
        at, gathered = 0, list[RunRow]()
        above, parent, plainly = b"\0", -1, False
        odd = self.hygiene.odd
        for number, row in enumerate(run.rows, n):
            path, directory, mode, size, mtime_ns, digest = row
            data = run.data[at : at + size]
            at += size
            if reserved(path) is not None or self._left_out.look(path):
                self._row_left_out(number, row, data)
                continue
            header: pax.Header | None = None
            if not directory and odd(path, mode):
                header = pax.Header(path, pax.FILE, mode, size, mtime_ns, sha256=digest)
                if self._skips(header, bytes(data[: JUDGED_MAX + 1])):
                    self._row_left_out(number, row, data)
                    continue
            gathered.append(row)
            if directory:
                self._folder(path, mode)
                above = b"\0"
                continue
            cut = path.rfind(b"/")
            if path[:cut] != above or cut < 0:
                above, parent = path[:cut] if cut > 0 else b"", self.tree.parent(path)
                plainly = self.owners.plainly(self._staging, above)
            fd = os.open(path[cut + 1 :], _NEW, 0o600, dir_fd=parent)
            try:
                if os.write(fd, data) != size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                if not plainly:
                    self.owners.file(fd, self._staging, path, None)
                os.fchmod(fd, mode)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)
            self._wrote(path)
            self.counts["files_written"] += 1
            self.counts["bytes_written"] += size
            if header is not None:
                self.hygiene.look(header, bytes(data[: JUDGED_MAX + 1]), writes=True)
        self.guard.gather_rows(gathered)

    def _row_left_out(self, n: int, row: RunRow, data: memoryview) -> None:
        if (name := reserved(row.path)) is not None:
            self._reserved[name] = None
        elif not row.directory:
            fd = os.open(b"new/%d" % n, _NEW, 0o600, dir_fd=self._staging.fd)
            try:
                write_all(fd, data)
                os.fchmod(fd, row.mode)
                os.utime(fd, ns=(row.mtime_ns, row.mtime_ns))
            finally:
                os.close(fd)
            self.guard.gather(pax.Header(row.path, pax.FILE, row.mode, row.size, row.mtime_ns, sha256=row.digest), passed=True)

    # the whole

    def sync(self) -> None:
        """All that was made survives a power cut, where it is."""
        if len(self._first) > SYNC_EACH_UP_TO and sync_file_system(self.tree.fd):
            return
        for path in self.everything():
            parent, name = self._at(path)
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if mode & 0o170000 in (0o100000, 0o040000):
                _sync(name, parent)
        os.fsync(self.tree.fd)

    def everything(self) -> list[bytes]:
        """The paths of what is there."""
        found, waiting = list[bytes](), [b""]
        while waiting:
            directory = waiting.pop()
            for name in self.tree.names(directory):
                path = directory + b"/" + name if directory else name
                found.append(path)
                status = self.tree.lstat(path)
                if status is not None and status.st_mode & 0o170000 == 0o040000:
                    waiting.append(path)
        return found


def commit_new(stage: ExportStage, work: FreshReceiver, name: bytes) -> None:
    """Rename the tree into its place in the stage's home; from then on the export is done."""
    stage.step("export.sync")
    work.sync()
    stage.step("export.ready")
    for name_of_step in ("export.sync_names", "export.in", "export.done"):  # all of them are the one rename
        stage.step(name_of_step)
    _put(stage, name)
    try:
        stage.step("export.placed")
        os.fsync(stage.home.fd)
    except BaseException:
        if len(work.everything()) == work.made:  # else somebody has put something there already: theirs stays, and ours with it
            os.rename(name, TREE, src_dir_fd=stage.home.fd, dst_dir_fd=stage.tree.fd)
        raise


def _put(stage: ExportStage, name: bytes) -> None:
    """Raises FileExistsError: something has that name by now."""
    try:
        rename_new(f"/proc/self/fd/{stage.tree.fd}/{os.fsdecode(TREE)}", f"/proc/self/fd/{stage.home.fd}/{os.fsdecode(name)}")
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOENT):
            raise
        if stage.home.lstat(name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
        os.rename(TREE, name, src_dir_fd=stage.tree.fd, dst_dir_fd=stage.home.fd)


def _sync(name: bytes, parent: int) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
