"""An export to a directory that does not exist yet: the whole tree is made in the staging directory, and one
rename puts it in place.

    .eos-export-<...>/tree/      the future destination
    .eos-export-<...>/new/<n>    the bytes of a file that is left out, for a later entry that is another name
                                 of it

Nothing is compared and nothing is rolled back: a kill before the rename leaves a staging directory, which the
next export removes; a kill after it leaves a complete destination.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import Future, ThreadPoolExecutor

from eos_mcp.export.dirfd import copy_data, sync_file_system
from eos_mcp.export.guard import ExportGuard
from eos_mcp.export.hygiene import JUDGED_MAX
from eos_mcp.export.incoming_file import IncomingFile
from eos_mcp.export.names import reserved
from eos_mcp.export.receive import Progress, Receiver
from eos_mcp.export.request import ExportRequest
from eos_mcp.export.stage import SYNC_EACH_UP_TO, ExportStage, Step
from eos_mcp.export.stream import ExportStream, StreamRun, refused, shown
from eos_mcp.workspace.staging_prefix import PREFIX
from layerstack.export import pax
from layerstack.kernel.fsync import rename_new, write_all
from layerstack.model.run_table import RunRow

TREE = b"tree"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class FreshReceiver(Receiver):
    """A `Receiver` for a destination that does not exist. The destination is made in `tree`; the caller calls
    `close`.
    """

    def __init__(
        self, stream: ExportStream, stage: ExportStage, request: ExportRequest, guard: ExportGuard
    ) -> None:
        super().__init__(stream, None, stage, request, guard)
        os.mkdir(TREE, dir_fd=stage.tree.fd)
        self.tree = stage.tree.below(TREE)
        self.owners.top(self.tree.fd, stage.tree)
        self._staging, self._step = stage.tree, stage.step
        self._late_modes: list[
            tuple[bytes, int]
        ] = []  # directories whose final mode has no write permission for their owner
        self._first: list[bytes] = []  # the first entries: if these are all, each is synced separately
        self._syncing: Future[bool] | None = None
        self.staged_files = 0
        self.made = 0
        """Number of entries in the tree."""

    def close(self) -> None:
        """Close `tree` after the end of a running sync."""
        if self._syncing is not None:
            self._syncing.exception()
        self.tree.close()

    @property
    def atomic(self) -> bool:
        """True if the file system does not fold case in names; else `Receiver` compares names and stages
        files one by one.
        """
        return not self._folds

    def receive(self, progress: Progress) -> None:
        """Read up to the trailer; afterwards the tree is complete, but not synced."""
        said, n = 0, 0
        for sent in self.stream.items():
            if isinstance(sent, StreamRun):
                self._rows(n, sent)
                n += len(sent.rows)
            else:
                self._one(n, sent)
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
        """Do nothing: no step needs a rollback."""

    # entries

    def _one(self, n: int, sent: pax.Header) -> None:
        header = self.stripped.clean(sent)
        if (name := reserved(header.path)) is not None:
            if header.kind != pax.WHITEOUT:
                self._reserved[name] = None
        elif self._left_out.look(header.path):
            self._leave(n, header)
        elif header.kind == pax.WHITEOUT:
            self.counts["deletes_applied"] += 1
            self._done(header, writes=True)
        elif header.type == pax.DIRECTORY:
            self._folder(header.path, header.mode)
            self.counts["opaque_clears"] += header.kind == pax.OPAQUE
            self._done(header, writes=True)
        elif header.type in (pax.SYMLINK, pax.HARD_LINK):
            if not self._skips(header):
                self._link_to(header)
        else:
            self._new_file(n, header, sent)

    def _leave(self, n: int, header: pax.Header) -> None:
        """Keep the bytes of a file that is left out: a later entry may be a hard link to it."""
        if header.type == pax.FILE and not header.kind:
            fd = os.open(b"new/%d" % n, _NEW, 0o600, dir_fd=self._staging.fd)
            self._write(fd, header, None)
        if header.type == pax.FILE:
            self.guard.gather(header, passed=True)

    def _link_to(self, header: pax.Header) -> None:
        if header.type == pax.SYMLINK:
            parent, name = self._at(header.path)
            os.symlink(header.target, name, dir_fd=parent)
            self.owners.symlink(self._staging, name, header.path, None, parent)
            os.utime(name, ns=(header.mtime_ns, header.mtime_ns), dir_fd=parent, follow_symlinks=False)
            self.made += 1
            self.counts["symlinks_written"] += 1
        else:
            self._further_name(header)
            self.counts["files_written"] += 1
        self._done(header, writes=True)

    def _new_file(self, n: int, header: pax.Header, sent: pax.Header) -> None:
        """Write a file in its place; a file that would run by itself is moved out of the tree once its
        content is known.
        """
        judged = bytearray() if self.hygiene.judges(header) else None
        parent, name = self._at(header.path)
        received = self._write(os.open(name, _NEW, 0o600, dir_fd=parent), header, judged)
        content = None if judged is None else bytes(judged)
        if self._skips(header, content):
            os.rename(name, b"new/%d" % n, src_dir_fd=parent, dst_dir_fd=self._staging.fd)
            self.guard.gather(header, passed=True)
            return
        self._wrote(header.path)
        self.stripped.note(sent, header.mode)
        self.counts["files_written"] += 1
        self.counts["bytes_written"] += received
        self._done(header, content, writes=True)

    def _at(self, path: bytes) -> tuple[int, bytes]:
        """Return the open parent directory of a new entry, and its name."""
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
        """Write the content of the present entry to a new file and close it; return the number of received
        bytes.
        """
        with IncomingFile(header.length, None, lambda: fd, judged) as incoming:
            incoming.receive(self.stream.pieces())
            self.owners.file(fd, self._staging, header.path, None)
            self._finish(fd, header)
        return incoming.received

    def _further_name(self, header: pax.Header) -> None:
        """Make a hard link to an earlier file of the tree or a left-out file; make a copy if links fail."""
        found = self.stream.index.find(header.target)
        assert found is not None  # the stream has checked it
        there = self.tree.lstat(header.target) is not None
        source, place = (header.target, self.tree) if there else (b"new/%d" % found[0], self._staging)
        try:
            place.link(source, self.tree, header.path)
            if not there:  # the file was left out: this is its first name in the tree
                parent, name = self._at(header.path)
                fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                try:
                    self.owners.file(fd, self._staging, header.path, None)
                    os.fchmod(fd, header.mode)
                finally:
                    os.close(fd)
        except OSError as error:
            if error.errno not in (
                errno.EPERM,
                errno.EOPNOTSUPP,
                errno.ENOTSUP,
                errno.EMLINK,
                errno.EXDEV,
                errno.ENOSYS,
            ):
                raise
            copied = place.open_file(source)
            if copied is None:
                raise refused(
                    f"{shown(header.target)} vanished while it was exported", "destination_changed"
                ) from error
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
        """Make plain files and directories, many entries in one call; the same rules as `_one`."""
        at, gathered = 0, list[RunRow]()
        above, parent, plainly = b"\0", -1, False
        odd = self.hygiene.odd
        paths = b"\0".join([row.path for row in run.rows])
        all_plain = PREFIX not in paths and not self._left_out.may_have(paths)
        for number, row in enumerate(run.rows, n):
            path, directory, mode, size, mtime_ns, digest = row
            data = run.data[at : at + size]
            at += size
            if not all_plain and (reserved(path) is not None or self._left_out.look(path)):
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
            self.guard.gather(
                pax.Header(row.path, pax.FILE, row.mode, row.size, row.mtime_ns, sha256=row.digest),
                passed=True,
            )

    # the whole

    def begin_sync(self) -> None:
        """Start the sync in a thread, if one call syncs the whole tree, so that it runs beside the syncs of
        the record; `sync` waits for it.
        """
        if len(self._first) > SYNC_EACH_UP_TO:
            thread = ThreadPoolExecutor(1, "export-sync")
            self._syncing = thread.submit(sync_file_system, self.tree.fd)
            thread.shutdown(wait=False)

    def sync(self) -> None:
        """Make the tree durable in the staging directory."""
        if self._syncing is not None and self._syncing.result():
            return
        for path in self.everything():
            parent, name = self._at(path)
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if mode & 0o170000 in (0o100000, 0o040000):
                _sync(name, parent)
        os.fsync(self.tree.fd)

    def everything(self) -> list[bytes]:
        """List the paths of all entries in the tree."""
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
    """Sync the tree and rename it into its place in the stage's home. The rename is the commit."""
    stage.step("export.sync")
    work.sync()
    stage.step("export.ready")
    for name_of_step in ("export.sync_names", "export.in", "export.done"):  # one rename is all three
        stage.step(name_of_step)
    _put(stage, name)
    try:
        stage.step("export.placed")
        os.fsync(stage.home.fd)
    except BaseException:
        if (
            len(work.everything()) == work.made
        ):  # else another process has already written to it: the tree stays where it is
            os.rename(name, TREE, src_dir_fd=stage.home.fd, dst_dir_fd=stage.tree.fd)
        raise


def _put(stage: ExportStage, name: bytes) -> None:
    """Rename without replacing.

    Raises:
        FileExistsError: another program took the name during the export.
    """
    try:
        rename_new(
            f"/proc/self/fd/{stage.tree.fd}/{os.fsdecode(TREE)}",
            f"/proc/self/fd/{stage.home.fd}/{os.fsdecode(name)}",
        )
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
