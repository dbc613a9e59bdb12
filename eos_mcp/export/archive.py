"""Formats `tar` and `tar-zst`: the delta as an archive that any tar reads and that can be an OCI layer.

A directory precedes its entries; deletions follow all content, as `.wh.NAME`; an opaque directory holds
`.wh..wh..opq` (OCI image layer specification, "Whiteouts"). A file with holes has GNU tar's sparse format,
PAX 1.0. The archive is written to a file beside `dest`, which is renamed once the stream is complete. When
`dest` does not exist the file has no name (O_TMPFILE) where the system supports this: a kill leaves nothing,
and no record is needed.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tempfile
from collections.abc import Callable, Generator
from typing import IO, Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.export import replaced_archive
from eos_mcp.export.directory import disk_refused
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.dry_run import LISTED_MAX, check_home, check_room
from eos_mcp.export.hygiene import Hygiene
from eos_mcp.export.request import ExportRequest
from eos_mcp.export.setuid import Stripped
from eos_mcp.export.stage import StepHook, no_step
from eos_mcp.export.stream import ExportStream, StreamRun, shown
from eos_mcp.export.voucher import Voucher, find_records
from layerstack.export import pax

WHITEOUT_PREFIX = b".wh."
OPAQUE_WHITEOUT = b".wh..wh..opq"
NAMED_MAX = 20
ZSTD_LEVEL = 3
ZSTD_THREADS = 4
ZSTD_JOB_BYTES = 1 << 19
"""The smallest job that zstd accepts: two threads hold 7 MiB, with jobs of 1 MiB 11 MiB; the gateway stays
below 64 MiB in all.
"""


def apply_archive(
    stream: ExportStream,
    request: ExportRequest,
    *,
    journals: str,
    progress: Callable[[str], None],
    step: StepHook = no_step,
) -> dict[str, Any]:
    """Write the archive `request.dest` (pinned), or nothing.

    With `dry_run` the archive is made, measured and discarded: `bytes_written` is its size, `changes` lists
    its entries (`write`, or `delete` for a whiteout; directories are left out), `replaces` is true when a
    file is at `dest`.

    Raises:
        OperationError: operation_failed; `export_conflict` as in `replaced_archive.check`; `reserved_names`
            when a file of the delta is called `.wh.*`: in an archive it would be a deletion.
    """
    dest, overwrite = request.dest, request.rules.on_conflict == "overwrite"
    replaced_archive.check(dest, overwrite=overwrite)
    try:
        with contextlib.ExitStack() as stack:
            sink = stack.enter_context(_replacing(dest, journals, request.dry_run, step, overwrite=overwrite))
            late = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=1 << 20))
            archive = _Archive(stream, request, stack.enter_context(_packed(sink, request.fmt)), late)
            archive.write(progress)
        if isinstance(sink, _Measure):
            size_bytes = sink.size
            check_room(os.path.dirname(dest), size_bytes)
        else:
            size_bytes = os.stat(dest).st_size
    except OSError as error:
        raise disk_refused(error, dest) from error
    return archive.result(size_bytes)


class _Archive:
    """Writer of one stream's entries as tar; counts them."""

    def __init__(self, stream: ExportStream, request: ExportRequest, out: Any, late: IO[bytes]) -> None:
        """`out` takes the tar; `late` keeps the deletions, which follow all content."""
        self._stream, self._request, self._out, self._late = stream, request, out, late
        self._hygiene, self._stripped = Hygiene(), Stripped(keep=request.keep_setuid)
        self._counts = {"files_written": 0, "symlinks_written": 0, "whiteouts_emitted": 0, "bytes_written": 0}
        self._reserved: list[str] = []
        self._changes: list[dict[str, str]] = []

    def write(self, progress: Callable[[str], None]) -> None:
        """Write all entries, then the deletions and the end of the archive.

        Raises:
            OperationError: the stream is damaged; reserved_names.
        """
        said = 0
        for received in self._stream.items():
            if isinstance(received, StreamRun):
                self._run(received)
            else:
                self._entry(received)
            if self._stream.tar_bytes - said >= 256 << 20:
                said = self._stream.tar_bytes
                progress(f"export: {self._stream.count} entries, {said >> 20} MiB read")
        self._stream.finish()
        self._refuse_reserved()
        self._late.seek(0)
        while block := self._late.read(1 << 16):
            self._out.write(block)
        self._out.write(pax.END)

    def result(self, size_bytes: int) -> dict[str, Any]:
        """The result of the operation, for an archive of `size_bytes`."""
        header, counts = self._stream.header, {**self._counts, "bytes_written": size_bytes}
        result: dict[str, Any] = {
            "manifest_version": header["manifest_version"],
            "format": self._request.fmt,
            "layers_exported": header.get("layers_exported", []),
            **counts,
        }
        if header.get("live_workspace_sessions"):
            result["live_workspace_sessions"] = header["live_workspace_sessions"]
        result.update(self._hygiene.to_json())
        result.update(self._stripped.to_json())
        result.update(self._stream.ignored_json(self._request.rules.ignored))
        if self._request.dry_run:
            count = counts["files_written"] + counts["symlinks_written"] + counts["whiteouts_emitted"]
            result.update(
                dry_run=True,
                changes=self._changes,
                change_count=count,
                replaces=os.path.lexists(self._request.dest),
            )
        return result

    def _entry(self, received: pax.Header) -> None:
        header = self._stripped.clean(received)
        if self._is_reserved(header.path):
            return
        if header.kind == pax.WHITEOUT:
            self._whiteout(header.path)
            return
        self._hygiene.look(header)
        self._stripped.note(received, header.mode)
        self._out.write(pax.encode(header._replace(kind=b"", xattrs={}, sha256=b"", earlier=b""), gnu=True))
        if header.kind == pax.OPAQUE:
            self._out.write(pax.encode(pax.Header(header.path + b"/" + OPAQUE_WHITEOUT, pax.FILE, 0o644)))
        if header.type != pax.DIRECTORY:
            self._note("write", header.path)
        if header.type == pax.SYMLINK:
            self._counts["symlinks_written"] += 1
        elif header.type != pax.DIRECTORY:
            self._counts["files_written"] += 1
            for piece in self._stream.content():
                self._out.write(piece)
            self._out.write(pax.padding(header.size))

    def _whiteout(self, path: bytes) -> None:
        above, _, name = path.rpartition(b"/")
        self._late.write(
            pax.encode(pax.Header((above + b"/" if above else b"") + WHITEOUT_PREFIX + name, pax.FILE, 0o644))
        )
        self._counts["whiteouts_emitted"] += 1
        self._note("delete", path)

    def _run(self, run: StreamRun) -> None:
        """Write plain files and directories, in the same form as single entries."""
        parts: list[bytes | memoryview] = []
        at = 0
        for path, directory, mode, size, mtime_ns, _ in run.rows:
            self._is_reserved(path)
            if directory:
                parts.append(pax.encode(pax.Header(path, pax.DIRECTORY, mode, 0, mtime_ns)))
                continue
            if self._hygiene.odd(path, mode):
                self._hygiene.look(pax.Header(path, pax.FILE, mode, size, mtime_ns))
            parts.append(pax.encode_file(path, mode, size, mtime_ns))
            parts.append(run.data[at : at + size])
            parts.append(pax.padding(size))
            self._note("write", path)
            at += size
        self._out.write(b"".join(parts))
        self._counts["files_written"] += sum(not row.directory for row in run.rows)

    def _is_reserved(self, path: bytes) -> bool:
        """Note a path with the name of a whiteout in it; the export is then refused at the end of the
        stream.
        """
        if WHITEOUT_PREFIX not in path or not any(
            name.startswith(WHITEOUT_PREFIX) for name in path.split(b"/")
        ):
            return False
        if len(self._reserved) < NAMED_MAX:
            self._reserved.append(shown(path))
        return True

    def _refuse_reserved(self) -> None:
        if self._reserved:
            names = ", ".join(self._reserved)
            raise OperationError(
                OPERATION_FAILED,
                f"export: an archive would turn these files into whiteout entries, that is deletions; use "
                f"format dir: {names}",
                {"paths": self._reserved},
                reason="reserved_names",
            )

    def _note(self, action: str, path: bytes) -> None:
        if self._request.dry_run and len(self._changes) < LISTED_MAX:
            self._changes.append({"action": action, "path": path.decode("utf-8", "replace")})


class _Measure(io.RawIOBase):
    """A sink that counts bytes and keeps none."""

    size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        length = memoryview(data).nbytes
        self.size += length
        return length


@contextlib.contextmanager
def _replacing(dest: str, journals: str, dry_run: bool, step: StepHook, *, overwrite: bool) -> Generator[Any]:
    """Open a file that replaces `dest` when the block ends without an error; first remove unfinished archives
    of killed exports beside it.

    Args:
        overwrite: for `replaced_archive.check`, when another program has made a file at `dest` during the
            export.
    """
    directory, name = os.path.split(dest)
    if dry_run:
        check_home(directory)
        yield _Measure()
        return
    final = os.fsencode(name)
    with contextlib.ExitStack() as stack:
        home = DirTree(directory)
        stack.callback(home.close)
        _sweep(dest, journals)
        nameless = _nameless(home, final)
        if nameless is not None:
            with open(nameless, "wb") as file:
                yield file
                _finish(file, step)
                step("export.rename")
                if not _named(nameless, home, final):
                    replaced_archive.check(dest, overwrite=overwrite)
                    voucher = _vouch(stack, home, dest, journals, step)
                    step("export.bind")
                    voucher.bind(nameless)
                    step("export.bound")
                    os.link(_proc(nameless), voucher.said.name, dst_dir_fd=home.fd)
                    step("export.linked")
                    os.rename(voucher.said.name, final, src_dir_fd=home.fd, dst_dir_fd=home.fd)
        else:
            voucher = _vouch(stack, home, dest, journals, step)
            step("export.mkdir")
            fd = os.open(
                voucher.said.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=home.fd
            )
            with open(fd, "wb") as file:
                step("export.bind")
                voucher.bind(fd)
                step("export.bound")
                yield file
                _finish(file, step)
            step("export.rename")
            os.rename(voucher.said.name, final, src_dir_fd=home.fd, dst_dir_fd=home.fd)
        step("export.sync_names")
        os.fsync(home.fd)


def _vouch(stack: contextlib.ExitStack, home: DirTree, dest: str, journals: str, step: StepHook) -> Voucher:
    """Make the record of the unfinished file; both are removed when `stack` ends."""
    step("export.voucher")
    voucher = Voucher.create(
        journals, kind="archive", dest=dest, home=os.path.dirname(dest), home_fd=home.fd, ending=".tmp"
    )
    stack.callback(_end, home, voucher)
    return voucher


def _finish(file: IO[bytes], step: StepHook) -> None:
    """Set the mode of the complete file and sync it."""
    file.flush()
    os.fchmod(file.fileno(), 0o666 & ~_umask())
    step("export.sync")
    os.fsync(file.fileno())


def _nameless(home: DirTree, name: bytes) -> int | None:
    """Open a new file without a name; None: `name` is taken, or the file system has no O_TMPFILE."""
    if home.lstat(name) is not None or not hasattr(os, "O_TMPFILE"):
        return None
    try:
        fd = os.open(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=home.fd)
    except OSError:  # writing a named file reports the error
        return None
    if os.path.exists(_proc(fd)):
        return fd
    os.close(fd)
    return None


def _named(fd: int, home: DirTree, name: bytes) -> bool:
    """Give a nameless file its name; False: another file took the name during the export."""
    try:
        os.link(_proc(fd), name, dst_dir_fd=home.fd)
    except FileExistsError:
        return False
    return True


def _proc(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _end(home: DirTree, voucher: Voucher) -> None:
    """Remove the unfinished file, if it is the recorded one, then the record."""
    name, said = voucher.said.name, voucher.said
    try:
        found = home.lstat(name)
        empty = found is not None and stat.S_ISREG(found.st_mode) and not found.st_size
        if (
            found is not None
            and found.st_uid == os.geteuid()
            and (said.is_(said.id, found) or (said.id is None and empty))
        ):
            os.unlink(name, dir_fd=home.fd)
    except OSError:  # a later export to this directory tries again
        voucher.close()
    else:
        voucher.drop()


def _umask() -> int:
    """Read the process's umask from /proc, since umask(2) would change it; 022 without /proc."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("Umask:")).split()[1], 8)
    return 0o022


def _sweep(dest: str, journals: str) -> None:
    """Remove the unfinished archives that killed exports of this gateway left in the same directory, and no
    other file.
    """
    for voucher in find_records(journals, dest, archive=True).dead:
        home = voucher.said.open_home()
        if home is None:
            voucher.close()
            continue
        try:
            _end(home, voucher)
        finally:
            home.close()


@contextlib.contextmanager
def _packed(sink: IO[bytes], fmt: str) -> Generator[Any]:
    """Open the output of the tar: `sink`, or a compressor that writes to it."""
    if fmt == "tar":
        yield sink
        return
    import zstandard

    jobs = min(os.cpu_count() or 1, ZSTD_THREADS)
    how = zstandard.ZstdCompressionParameters(
        compression_level=ZSTD_LEVEL, write_checksum=True, threads=jobs, job_size=ZSTD_JOB_BYTES
    )
    packer = zstandard.ZstdCompressor(compression_params=how)
    with packer.stream_writer(sink, closefd=False) as out:
        yield out
