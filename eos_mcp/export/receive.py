"""Read one stream for a `dir` export: compare each entry with the destination, stage those that differ, plan,
count.

The destination is only read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
import time
import unicodedata
from collections.abc import Callable
from typing import Any

from eos_mcp.export import mounts, times
from eos_mcp.export.dirfd import DirTree, copy_data
from eos_mcp.export.dry_run import DryRun
from eos_mcp.export.guard import ExportGuard
from eos_mcp.export.hard_links import Names, copied, is_shared
from eos_mcp.export.incoming_file import IncomingFile
from eos_mcp.export.left_out import UNSAFE
from eos_mcp.export.merge_edited import EditedFiles, MergedFile
from eos_mcp.export.names import NAMED_MAX, reserved
from eos_mcp.export.owner import Owners
from eos_mcp.export.request import ExportRequest
from eos_mcp.export.setuid import BITS, Stripped
from eos_mcp.export.stage import ExportStage, Step
from eos_mcp.export.stream import ExportStream, refused, shown
from eos_mcp.workspace.mount_points import mounts_below
from layerstack.export import pax
from layerstack.kernel.fsync import write_all

COLLISIONS_MAX = 20

Progress = Callable[[str], None]


class Receiver:
    """Reader of one stream: stages the entries that differ from the destination, and counts. A dry run has a
    preview and no stage.
    """

    def __init__(
        self,
        stream: ExportStream,
        target: DirTree | None,
        stage: ExportStage | None,
        request: ExportRequest,
        guard: ExportGuard,
        preview: DryRun | None = None,
    ) -> None:
        self.stream, self.target, self.stage, self.carried = (
            stream,
            target,
            stage,
            request.directory_mode == "carried",
        )
        self.preview = preview
        self.staged_files = 0
        self.guard = guard
        self.hygiene = self.guard.hygiene_of(stream)
        self.stripped = Stripped(keep=request.keep_setuid)
        self._edited = EditedFiles(guard.conflicts, guard.copy, request.content_of)
        self.times = times.Times(target, keep=request.rules.times == "keep")
        self._names = Names()
        self.owners = Owners(target, None if stage is None else stage.home)
        self._reserved: dict[bytes, None] = {}
        self.counts = dict[str, int].fromkeys(
            [
                "files_written",
                "symlinks_written",
                "deletes_applied",
                "opaque_clears",
                "skipped_unchanged",
                "bytes_written",
            ],
            0,
        )
        self._state = (
            bytearray()
        )  # per entry: 1 staged, 2 staged only for later hard links to it, 0 not staged
        self._opaque: list[bytes] = []
        self._cleared = 0
        self._folds = folds(stage) if preview is None else preview.folds
        self._left_out = self.guard.left_out_of(folds=self._folds)
        self._kept: set[bytes] = set()  # directories of the delta that are not made, and nothing below them
        self._folded: dict[bytes, int] = {}
        self._collisions: list[list[str]] = []
        self._listing: tuple[bytes, set[bytes]] | None = None
        self._mounts = () if target is None else mounts_below(target.fd)
        self._systems = {} if target is None else mounts.systems_of(target, self._mounts)

    def receive(self, progress: Progress) -> None:
        """Read up to the trailer; afterwards the plan is complete.

        Raises:
            OSError, OperationError: the destination is unchanged.
        """
        said = 0
        for n, received in enumerate(self.stream.entries()):
            self._state.append(0)
            header = self.stripped.clean(received)
            if header.kind == pax.IGNORED:
                self._add(Step(b"n", False, 0, None, b""))
            elif (name := reserved(header.path)) is not None:
                self._leave_out(header, name)
            elif self._left_out.look(header.path):
                self._pass(n, header)
            elif self._kept and self._below_kept(header.path):
                self.guard.keep(header.path)
                self._pass(n, header)
            else:
                self._entry(n, header, received)
            if self.stream.tar_bytes - said >= 256 << 20:
                said = self.stream.tar_bytes
                progress(f"export: {self.stream.count} entries, {said >> 20} MiB read")
        self.stream.finish()
        if self._reserved:
            self._refuse_reserved()
        if self._collisions:
            pairs = ", ".join(f"{a} and {b}" for a, b in self._collisions)
            raise refused(
                f"the destination's file system takes these names for one file; nothing was written: {pairs}",
                "name_collision",
                collisions=self._collisions,
            )
        self._plan_clears()
        self._withdraw()
        self._separate()
        if self.preview is not None:
            self.preview.room()
            return
        self.guard.refuse(self.hygiene)
        if self.stage is not None:
            for path, mtime_ns in times.apply(
                self.stage, self.times.decide(self.stream.index, self.guard.copy)
            ):
                self.guard.retime(path, mtime_ns)
        progress(f"export: {self.stream.count} entries received, putting {self.staged_files} files in place")

    def result(self) -> dict[str, Any]:
        header = self.stream.header
        out: dict[str, Any] = {
            "manifest_version": header["manifest_version"],
            "format": "dir",
            "layers_exported": header.get("layers_exported", []),
            **self.counts,
        }
        if header.get("live_workspace_sessions"):
            out["live_workspace_sessions"] = header["live_workspace_sessions"]
        out.update(self.hygiene.to_json())
        out.update(self.stripped.to_json())
        out.update(self._edited.to_json())
        out.update(self.owners.to_json())
        out.update(self._left_out.to_json())
        out.update(self.stream.ignored_json(self.guard.rules.ignored))
        if self.preview is not None:
            out.update(self.preview.to_json())
        out.update(self.guard.to_json(self.hygiene, dry_run=self.preview is not None))
        return out

    # one entry

    def _entry(self, n: int, header: pax.Header, received: pax.Header) -> None:
        if header.kind == pax.WHITEOUT:
            self._delete(n, header)
            return
        self._collide(n, header.path)
        if header.type == pax.DIRECTORY:
            self._directory(n, header)
        elif header.type == pax.SYMLINK:
            self._symlink(n, header)
        elif header.type == pax.HARD_LINK:
            self._hard_link(n, header)
        else:
            self._file(n, header, received)

    def _stays(self, n: int, header: pax.Header, old: os.stat_result | None) -> bool:
        """Tell whether the destination's version of a path stays; call it only for a version that differs."""
        if not self.guard.on_the_way(header, old):
            self._see(n, header.path)
            return False
        if header.type in (pax.FILE, pax.HARD_LINK):
            self.times.stays(header, old, differs=True)
        if header.type == pax.DIRECTORY:
            self._kept.add(header.path)
        return True

    def _skips(self, header: pax.Header, content: bytes | None = None) -> bool:
        """Tell whether an entry that differs is left out because the host would run it by itself, and note it
        then.
        """
        if not self.guard.rules.skip_unsafe or not self.hygiene.would_run(header, content):
            return False
        self._left_out.note(header.path, UNSAFE)
        return True

    def _see(self, n: int, path: bytes) -> None:
        """Record the destination's entry at `path`: the commit may replace only that entry."""
        if self.stage is not None and self.target is not None:
            self.guard.seen.note(b"%d" % n, self.target, path)

    def _below_kept(self, path: bytes) -> bool:
        while path := path.rpartition(b"/")[0]:
            if path in self._kept:
                return True
        return False

    def _pass(self, n: int, header: pax.Header) -> None:
        """Receive an entry that is not put in place. A file is staged nevertheless: a later entry may be a
        hard link to it.
        """
        if header.type == pax.FILE and not header.kind and self.stage is not None:
            fd = self._new(n, header.path)
            try:
                for offset, piece in self.stream.pieces():
                    os.lseek(fd, offset, os.SEEK_SET)
                    write_all(fd, piece)
                os.ftruncate(fd, header.length)  # a hole follows the data
                self._finish(fd, header)
            finally:
                os.close(fd)
        self._passed(header)

    def _passed(self, header: pax.Header) -> None:
        self._add(Step(b"n", False, 0, None, b""))
        if header.type == pax.FILE:
            self._state[-1] = 2
            self.guard.gather(header, passed=True)

    def _note(self, action: str, path: bytes, size: int = 0) -> None:
        if self.preview is not None:
            self.preview.change(action, path, size, self._system(path))

    def _place(self, path: bytes) -> DirTree:
        """Return the staging directory on the file system of `path`: for its new entry, and for the replaced
        one.
        """
        assert self.stage is not None
        if (point := self._system(path)) and self.target is not None:
            self.stage.annexes.add(self.stage.voucher, self.target, point, self.stage.step)
        return self.stage.place(path)

    def _system(self, path: bytes) -> bytes:
        """Return the directory of the destination at which the file system of `path` begins; empty: the
        destination's own.
        """
        if len(self._systems) > 1:
            above = path
            while above := above.rpartition(b"/")[0]:
                if above in self._systems:
                    return above
        return b""

    def _watch(self, path: bytes, found: os.stat_result) -> None:
        """Note an existing directory at which another file system begins: the list of mounts lacks Btrfs
        subvolumes.
        """
        if path not in self._systems and self._systems[self._system(path)] != found.st_dev:
            self._systems[path] = found.st_dev

    def _done(self, header: pax.Header, content: bytes | None = None, *, writes: bool) -> None:
        """Report a planned entry to hygiene and guard."""
        self.hygiene.look(header, content, writes=writes)
        self.guard.gather(header)

    def _old(self, path: bytes) -> os.stat_result | None:
        return None if self.target is None else self.target.lstat(path)

    def _add(self, what: Step) -> None:
        if self._mounts and (what.staged or what.letter == b"w"):
            mounts.check(self._mounts, what.path)
        self._state[-1] = what.staged
        if self.stage is not None:
            self.stage.add(what)

    def _leave_out(self, header: pax.Header, name: bytes) -> None:
        """Leave out an entry under a staging name; at the end the export is refused because of it.

        A whiteout of such a name is ignored, since a base never has one: after a rename or removal in the
        sandbox the export succeeds.
        """
        if header.kind != pax.WHITEOUT:
            self._reserved[name] = None
        self._add(Step(b"n", False, 0, None, b""))

    def _refuse_reserved(self) -> None:
        names = [shown(name) for name in self._reserved]
        new = names[0].rpartition(".eos-export-")
        words = shlex.join((names[0], f"{new[0]}eos-export-{new[2]}"))
        hint = (
            f"rename it in the sandbox, for example with exec_command: mv -- {words}; then export again; "
            "or export with format tar, which takes any name"
        )
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        message = (
            f"names that begin with .eos-export- are reserved for exports; nothing was written: "
            f"{', '.join(names[:NAMED_MAX])}{more}"
        )
        raise refused(message, "reserved_names", paths=names[:NAMED_MAX], count=len(names), hint=hint)

    def _delete(self, n: int, header: pax.Header) -> None:
        old = self._old(header.path)
        if old is not None and self._stays(n, header, old):
            self._passed(header)
            return
        self.counts["deletes_applied"] += 1
        if old is not None:
            if self.stage is not None:
                self._place(header.path)
            self._note("delete", header.path)
            self._clash(self._other_spelling(header.path), header.path)
        self._add(Step(b"w", False, 0, None, header.path))
        self._done(header, writes=True)

    def _directory(self, n: int, header: pax.Header) -> None:
        old = self._old(header.path)
        if old is not None and stat.S_ISDIR(old.st_mode):
            header = self._edited.with_mode(self.guard.closed(header, old), old)
        mode = header.mode if self.carried else 0o700
        if old is not None and stat.S_ISDIR(old.st_mode):
            self._watch(header.path, old)
            self._clears(header)
            was = stat.S_IMODE(old.st_mode)
            if not self.carried:
                mode = was
            elif (
                was & ~mode & stat.S_ISGID and not (self.guard.mode_of_base(header.path) or 0) & stat.S_ISGID
            ):
                mode |= stat.S_ISGID  # the destination's own bit: new entries in it get its group
            self._add(
                Step(b"d", False, mode, was if was != mode or was & 0o700 != 0o700 else None, header.path)
            )
            if was != mode:
                self._note("mode", header.path)
            self._done(header, writes=False)
            return
        if self._stays(n, header, old):
            self._passed(header)
            return
        self._clears(header)
        self._note("write", header.path)
        if self.stage is not None:
            place, new = self._place(header.path), b"new/%d" % n
            os.mkdir(new, 0o700, dir_fd=place.fd)
            mode |= self.owners.directory(place, new, header.path)
        self._add(Step(b"d", True, mode, None, header.path))
        self._done(header, writes=True)

    def _clears(self, header: pax.Header) -> None:
        if header.kind == pax.OPAQUE:
            self.counts["opaque_clears"] += 1
            self._opaque.append(header.path)

    def _symlink(self, n: int, header: pax.Header) -> None:
        old = self._old(header.path)
        same = (
            old is not None
            and stat.S_ISLNK(old.st_mode)
            and self.target is not None
            and self.target.readlink(header.path) == header.target
        )
        if same:
            self._see(n, header.path)
        else:
            if self._skips(header) or self._stays(n, header, old):
                self._passed(header)
                return
            self._note("write", header.path)
        self.counts["symlinks_written"] += 1
        if self.stage is not None:
            place, new = self._place(header.path), b"new/%d" % n
            os.symlink(header.target, new, dir_fd=place.fd)
            self.owners.symlink(place, new, header.path, old)
            os.utime(new, ns=(header.mtime_ns, header.mtime_ns), dir_fd=place.fd, follow_symlinks=False)
        else:
            self.owners.foresee(header.path, old)
        self._add(Step(b"l", True, 0o777, None, header.path, len(header.target), header.mtime_ns))
        self._done(header, writes=not same)

    def _hard_link(self, n: int, header: pax.Header) -> None:
        found = self.stream.index.find(header.target)
        assert found is not None  # the stream has checked it
        first, old = found[0], self._old(header.path)
        staged = bool(self._state[first])
        if not staged and self.target is not None and old is not None:
            other = self._old(header.target)
            if other is not None and os.path.samestat(old, other):
                self.counts["skipped_unchanged"] += 1
                self._names.linked(n, header, old)
                self._add(Step(b"h", False, header.mode, None, header.path))
                self._done(header, writes=False)
                return
        if self._skips(header) or self._stays(n, header, old):
            self._passed(header)
            return
        self._names.linked(n, header, old)
        self._note("write", header.path)
        self.counts["files_written"] += 1
        if self.stage is not None:
            self._link(n, header, first if staged else None, old)
            self.staged_files += 1
        self._add(self._linked_step(n, header))
        if staged:
            self.times.written(n, header)
        self._done(header, writes=True)

    def _link(self, n: int, header: pax.Header, first: int | None, old: os.stat_result | None) -> None:
        """Make `new/<n>` a hard link to a staged file or to an unchanged file of the destination; make a copy
        if links fail.
        """
        place, source_place, new = self._place(header.path), self._place(header.target), b"new/%d" % n
        try:
            if first is not None:
                source_place.link(b"new/%d" % first, place, new)
            else:
                assert self.target is not None
                self.target.link(header.target, place, new)
            if (
                first is not None and self._state[first] == 2
            ):  # its first name is not put in place: this is the first name that is
                self._state[first] = 1
                fd = os.open(new, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.fd)
                try:
                    self.owners.file(fd, place, header.path, old)
                    os.fchmod(fd, header.mode)
                finally:
                    os.close(fd)
            else:
                self.owners.link(place, new, header.path, old)
            return
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
        source = (
            source_place.open_file(b"new/%d" % first)
            if first is not None
            else None
            if self.target is None
            else self.target.open_file(header.target)
        )
        if source is None:
            raise refused(
                f"{shown(header.target)} vanished while it was exported",
                "destination_changed",
                path=shown(header.target),
            )
        try:
            fd = self._new(n, header.path)
            try:
                status = os.fstat(source)
                copy_data(source, fd, status.st_size)
                os.ftruncate(fd, status.st_size)
                self.owners.file(fd, place, header.path, old)
                self._finish(fd, header._replace(mtime_ns=status.st_mtime_ns))
            finally:
                os.close(fd)
        finally:
            os.close(source)

    def _linked_step(self, n: int, header: pax.Header) -> Step:
        """Return the step of a hard link, with the size and time of its first name."""
        made = None if self.stage is None else self._place(header.path).lstat(b"new/%d" % n)
        figures = (0, 0) if made is None else (made.st_size, made.st_mtime_ns)
        return Step(b"h", True, header.mode, None, header.path, *figures)

    def _new(self, n: int, path: bytes) -> int:
        return os.open(
            b"new/%d" % n,
            os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
            0o600,
            dir_fd=self._place(path).fd,
        )

    @staticmethod
    def _finish(fd: int, header: pax.Header) -> None:
        os.fchmod(fd, header.mode)
        os.utime(fd, ns=(header.mtime_ns, header.mtime_ns))

    def _file(self, n: int, header: pax.Header, received: pax.Header) -> None:
        """Stage a file, unless the destination's file already has its content or stays as it is.

        Args:
            `received`: the entry as received, with the bits that `header` lacks.
        """
        old = self._old(header.path)
        if old is not None:
            header = self.guard.closed(header, old)
            if stat.S_ISREG(old.st_mode):
                header = self._edited.with_mode(header, old)
        judged = bytearray() if self.hygiene.judges(header) else None
        scratch = self._edited.scratch(header, old)
        create = scratch if self.stage is None else lambda: self._new(n, header.path)
        with IncomingFile(header.length, self._comparable(header, old), create, judged) as incoming:
            incoming.receive(self.stream.pieces())
            if incoming.equal_fd is not None:
                self._unchanged(n, header, received, os.fstat(incoming.equal_fd))
                return
            if self._edited.active and old is not None:
                self._see(n, header.path)  # before it is read
                merged = self._edited.merge(header, old, incoming.fd, self.target)
                if merged is not None:
                    self._merged(n, header, received, old, incoming.fd, merged)
                    return
            content = None if judged is None else bytes(judged)
            stays = self._skips(header, content) or self._stays(n, header, old)
            self._complete(None if self.stage is None else incoming.fd, header, old, stays=stays)
        if stays:
            self._passed(header)
            return
        self._note("write", header.path, header.size)
        self.stripped.note(received, header.mode)
        self.counts["files_written"] += 1
        self.counts["bytes_written"] += incoming.received
        self.staged_files += 1
        self._add(Step(b"f", True, header.mode, None, header.path, header.length, header.mtime_ns))
        self.times.written(n, header)
        self._done(header, content, writes=True)

    def _merged(
        self,
        n: int,
        header: pax.Header,
        received: pax.Header,
        old: os.stat_result,
        fd: int | None,
        merged: MergedFile,
    ) -> None:
        """Stage the merge of a file that the user edited. Its record is the sandbox's file, and its time is
        not that of the record: for the next export and import it is edited still.
        """
        content = merged.content if self.hygiene.judges(header) else None
        staged = None if self.stage is None else fd
        stays = self._skips(header, content) or merged.is_users
        if staged is not None and not stays:
            os.ftruncate(staged, 0)
            os.lseek(staged, 0, os.SEEK_SET)
            write_all(staged, merged.content)
        size, now_ns = len(merged.content), time.time_ns()
        self._complete(staged, header._replace(mtime_ns=now_ns), old, stays=stays)
        if stays:
            self._passed(header)
            return
        self._edited.note(header.path)
        self._note("write", header.path, size)
        self.stripped.note(received, header.mode)
        self.counts["files_written"] += 1
        self.counts["bytes_written"] += size
        self.staged_files += 1
        self._add(Step(b"f", True, header.mode, None, header.path, size, now_ns))
        self._done(header, content, writes=True)

    def _comparable(self, header: pax.Header, old: os.stat_result | None) -> int | None:
        """Open the destination's file for reading if it may have the content of the entry."""
        if old is None or self.target is None or not _may_be_equal(old, header, by_time=self.times.keeps):
            return None
        return self.target.open_file(header.path)

    def _complete(
        self, fd: int | None, header: pax.Header, old: os.stat_result | None, *, stays: bool
    ) -> None:
        """Set owner, mode and time of a staged file; in a dry run (no file) note a lost owner. `stays`: the
        file is not put in place, but a later hard link to it may be.
        """
        if fd is None:
            if not stays:
                self.owners.foresee(header.path, old)
            return
        if not stays:
            self.owners.file(fd, self._place(header.path), header.path, old)
        self._finish(fd, header)

    def _unchanged(self, n: int, header: pax.Header, received: pax.Header, old: os.stat_result) -> None:
        """Keep a file whose content is equal. Setuid bits that the destination's file has already are not
        stripped from it.
        """
        was = stat.S_IMODE(old.st_mode)
        header = header._replace(mode=header.mode | (was & received.mode & BITS))
        self.counts["skipped_unchanged"] += 1
        self.times.stays(header, old, differs=False)
        if was != header.mode:
            self._note("mode", header.path)
            self.stripped.note(received, header.mode)
        self._add(Step(b"f", False, header.mode, was if was != header.mode else None, header.path))
        self._done(header, writes=False)
        if is_shared(old):
            self._names.hold(n, header, old)

    def _separate(self) -> None:
        """Replace unchanged files that have further hard links outside this export by copies."""
        for held in self._names.shared():
            n, header = held.n, held.header
            if stat.S_IMODE(held.status.st_mode) == header.mode:
                self._note("write", header.path)
            self.counts["skipped_unchanged"] -= 1
            self.counts["files_written"] += 1
            self.counts["bytes_written"] += header.size
            self.staged_files += 1
            if self.stage is not None and self.target is not None:
                source = self.target.open_file(header.path)
                if source is None or not os.path.samestat(os.fstat(source), held.status):
                    raise refused(
                        f"{shown(header.path)} changed while it was exported",
                        "destination_changed",
                        path=shown(header.path),
                    )
                try:
                    place = self._place(header.path)
                    with copied(source, place, b"new/%d" % n, held.status) as fd:
                        self.owners.file(fd, place, header.path, held.status)
                        self._finish(fd, header)
                finally:
                    os.close(source)
                self.stage.put(
                    n, Step(b"f", True, header.mode, None, header.path, held.status.st_size, header.mtime_ns)
                )
                self._see(n, header.path)
            else:
                self.owners.foresee(header.path, held.status)
            for m, name in held.names:
                self._relink(n, m, name, seen=name.path in held.seen)

    def _relink(self, n: int, m: int, name: pax.Header, *, seen: bool) -> None:
        """Link a further name in the delta to the copy that `_separate` made."""
        if seen:
            self._note("write", name.path)
            self.counts["skipped_unchanged"] -= 1
            self.counts["files_written"] += 1
            self.staged_files += 1
        if self.stage is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(b"new/%d" % m, dir_fd=self._place(name.path).fd)
            self._link(m, name, n, self._old(name.path))
            self.stage.put(m, self._linked_step(m, name))
            self._see(m, name.path)

    # the whole

    def _withdraw(self) -> None:
        """Plan to delete paths that an earlier export wrote and the sandbox has removed since; call it after
        the entries of the stream.
        """
        for path in self.guard.withdrawn(self.stream.index):
            if not self._left_out.hides(path):
                self._state.append(0)
                self._delete(len(self._state) - 1, pax.Header(path, pax.FILE, 0o644, kind=pax.WHITEOUT))

    def _plan_clears(self) -> None:
        """Plan to delete the destination's entries below an opaque directory that are not in the stream."""
        if self.target is None:
            return
        seen = set(self._opaque)
        for path in self._opaque:
            above = path
            while above := above.rpartition(b"/")[0]:
                if above in seen:
                    break
            if not above:
                self._clear_below(path, self.target)

    def _clear_below(self, path: bytes, target: DirTree) -> None:
        waiting = [path]
        while waiting:
            directory = waiting.pop()
            for name in target.names(directory):
                child = directory + b"/" + name
                if self._left_out.hides(child):
                    continue
                found = self.stream.index.find(child)
                if found is None:
                    self._clear(child, path, target, waiting)
                elif found[1] == b"d":
                    waiting.append(child)

    def _clear(self, child: bytes, opaque: bytes, target: DirTree, waiting: list[bytes]) -> None:
        """Plan to delete one entry of the destination; a directory that holds the user's own work is walked
        instead.
        """
        if self.guard.holds_work(child):
            old = target.lstat(child)
            if old is not None and stat.S_ISDIR(old.st_mode):
                waiting.append(child)
            else:
                self.guard.note_cleared(child, opaque)
                self.guard.keep(child)
            return
        mounts.check(self._mounts, child)
        self.guard.note_cleared(child, opaque)
        self._note("delete", child)
        if self.stage is not None:
            self.guard.seen.note(b"c%d" % self._cleared, target, child)
            self._cleared += 1
            self._place(child)
            self.stage.add_clear(child)

    def _collide(self, n: int, path: bytes) -> None:
        """Note two names that are one file on a case-folding file system: two of the delta, or one of the
        delta and one of the destination.
        """
        if not self._folds:
            return
        other = self._folded.setdefault(folded(path), n)
        self._clash(self.stream.index.path(other) if other != n else self._other_spelling(path), path)

    def _clash(self, there: bytes | None, path: bytes) -> None:
        if there is not None and len(self._collisions) < COLLISIONS_MAX:
            self._collisions.append([shown(there), shown(path)])

    def _other_spelling(self, path: bytes) -> bytes | None:
        """Return the destination's path that is the same file on a case-folding file system under another
        spelling.
        """
        if not self._folds or self.target is None or self._old(path) is None:
            return None
        above, _, name = path.rpartition(b"/")
        if self._listing is None or self._listing[0] != above:
            self._listing = (above, set(self.target.names(above)))
        same = (
            ()
            if name in self._listing[1]
            else [there for there in self._listing[1] if folded(there) == folded(name)]
        )
        return (above + b"/" if above else b"") + same[0] if same else None


def folds(stage: ExportStage | None) -> bool:
    """Tell whether the destination's file system folds case in names; tested with a file in the staging
    directory.
    """
    if stage is None:
        return False
    probe, others = "Prob\u00e9", ("prob\u00e9", "Probe\u0301")
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=stage.tree.fd))
    try:
        return any(stage.tree.lstat(other.encode()) is not None for other in others)
    finally:
        os.unlink(probe, dir_fd=stage.tree.fd)


def folded(path: bytes) -> bytes:
    """Return one spelling for all paths that are the same to such a file system: case and composition do not
    matter.
    """
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return path
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).encode()


def _may_be_equal(old: os.stat_result, header: pax.Header, *, by_time: bool) -> bool:
    """Tell whether the contents are worth comparing.

    Args:
        by_time: a file with another time gets the sandbox's time, so it needs no comparison. Without it only
            the content counts, since an earlier export may have set the time of the file.
    """
    if not stat.S_ISREG(old.st_mode) or old.st_size != header.length:
        return False
    return not by_time or old.st_mtime_ns // 1_000_000_000 == header.mtime_ns // 1_000_000_000
