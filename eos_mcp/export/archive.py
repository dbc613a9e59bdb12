"""Formats `tar` and `tar-zst`: the delta as an archive that any tar reads and that can be an OCI layer.

Folders come before what is in them, deletions after all content, as `.wh.NAME`; an opaque directory holds `.wh..wh..opq`. A file with holes is one of
GNU tar's PAX format 1.0, which keeps them. The archive is written beside its place and renamed when the stream is known to be whole; one that
replaces nothing has no name until then where the system can do so: a kill leaves nothing of it, and it needs no record.
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

MARK = b".wh."
OPAQUE_MARK = b".wh..wh..opq"
NAMED_MAX = 20
ZSTD_LEVEL = 3
ZSTD_THREADS = 4
ZSTD_JOB_BYTES = 1 << 19
"""The least that there is: with two threads 7 MiB are in flight, with jobs of 1 MiB 11, and the whole gateway is to stay below 64."""


def apply_archive(
    stream: ExportStream, request: ExportRequest, *, journals: str, progress: Callable[[str], None], step: StepHook = no_step
) -> dict[str, Any]:
    """Write the archive `request.dest` (pinned), or nothing.

    With `dry_run` the archive is made, measured and thrown away: `bytes_written` is its size, `changes` lists what it would hold (`write`,
    or `delete` for a whiteout; directories are left out), `replaces` tells whether a file is at `dest`.

    Raises:
        OperationError: operation_failed; `export_conflict` as `export_replaced.check` says; `reserved_names` when a file of the delta is called `.wh.*`: an archive would turn it into a deletion.
    """
    dest, fmt, dry_run = request.dest, request.fmt, request.dry_run
    hygiene, stripped = Hygiene(), Stripped(keep=request.keep_setuid)
    counts = {"files_written": 0, "symlinks_written": 0, "whiteouts_emitted": 0, "bytes_written": 0}
    reserved: list[str] = []
    changes: list[dict[str, str]] = []

    def note(action: str, path: bytes) -> None:
        if dry_run and len(changes) < LISTED_MAX:
            changes.append({"action": action, "path": path.decode("utf-8", "replace")})

    overwrite = request.rules.on_conflict == "overwrite"
    replaced_archive.check(dest, overwrite=overwrite)
    try:
        with contextlib.ExitStack() as stack:
            sink = stack.enter_context(_replacing(dest, journals, dry_run, step, overwrite=overwrite))
            late = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=1 << 20))
            out = stack.enter_context(_packed(sink, fmt))
            said = 0
            for told in stream.items():
                if isinstance(told, StreamRun):
                    _write_run(told, out, hygiene, reserved, note)
                    counts["files_written"] += sum(not row.directory for row in told.rows)
                    continue
                header = stripped.clean(told)
                if MARK in header.path and any(name.startswith(MARK) for name in header.path.split(b"/")):
                    if len(reserved) < NAMED_MAX:
                        reserved.append(shown(header.path))
                    continue
                if header.kind == pax.WHITEOUT:
                    above, _, name = header.path.rpartition(b"/")
                    late.write(pax.encode(pax.Header((above + b"/" if above else b"") + MARK + name, pax.FILE, 0o644)))
                    counts["whiteouts_emitted"] += 1
                    note("delete", header.path)
                    continue
                hygiene.look(header)
                stripped.note(told, header.mode)
                out.write(pax.encode(header._replace(kind=b"", xattrs={}, sha256=b"", earlier=b""), gnu=True))
                if header.kind == pax.OPAQUE:
                    out.write(pax.encode(pax.Header(header.path + b"/" + OPAQUE_MARK, pax.FILE, 0o644)))
                if header.type != pax.DIRECTORY:
                    note("write", header.path)
                if header.type == pax.SYMLINK:
                    counts["symlinks_written"] += 1
                elif header.type != pax.DIRECTORY:
                    counts["files_written"] += 1
                    for piece in stream.content():
                        out.write(piece)
                    out.write(pax.padding(header.size))
                if stream.tar_bytes - said >= 256 << 20:
                    said = stream.tar_bytes
                    progress(f"export: {stream.count} entries, {said >> 20} MiB read")
            stream.finish()
            if reserved:
                names = ", ".join(reserved)
                raise OperationError(
                    OPERATION_FAILED,
                    f"export: an archive would turn these files into whiteout entries, that is deletions; use format dir: {names}",
                    {"paths": reserved},
                    reason="reserved_names",
                )
            late.seek(0)
            while block := late.read(1 << 16):
                out.write(block)
            out.write(pax.END)
        if isinstance(sink, _Measure):
            counts["bytes_written"] = sink.size
            check_room(os.path.dirname(dest), sink.size)
        else:
            counts["bytes_written"] = os.stat(dest).st_size
    except OSError as error:
        raise disk_refused(error, dest) from error
    header_line = stream.header
    result: dict[str, Any] = {
        "manifest_version": header_line["manifest_version"],
        "format": fmt,
        "layers_exported": header_line.get("layers_exported", []),
        **counts,
    }
    if header_line.get("live_workspace_sessions"):
        result["live_workspace_sessions"] = header_line["live_workspace_sessions"]
    result.update(hygiene.to_json())
    result.update(stripped.to_json())
    if dry_run:
        count = counts["files_written"] + counts["symlinks_written"] + counts["whiteouts_emitted"]
        result.update(dry_run=True, changes=changes, change_count=count, replaces=os.path.lexists(dest))
    return result


def _write_run(run: StreamRun, out: Any, hygiene: Hygiene, reserved: list[str], note: Callable[[str, bytes], None]) -> None:
    """Plain files and directories, as single entries would be."""
    parts: list[bytes | memoryview] = []
    at = 0
    for path, directory, mode, size, mtime_ns, _ in run.rows:
        if MARK in path and len(reserved) < NAMED_MAX and any(name.startswith(MARK) for name in path.split(b"/")):
            reserved.append(shown(path))
        if directory:
            parts.append(pax.encode(pax.Header(path, pax.DIRECTORY, mode, 0, mtime_ns)))
            continue
        if hygiene.odd(path, mode):
            hygiene.look(pax.Header(path, pax.FILE, mode, size, mtime_ns))
        parts.append(pax.encode_file(path, mode, size, mtime_ns))
        parts.append(run.data[at : at + size])
        parts.append(pax.padding(size))
        note("write", path)
        at += size
    out.write(b"".join(parts))


class _Measure(io.RawIOBase):
    """Takes any bytes and keeps their number."""

    size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        length = memoryview(data).nbytes
        self.size += length
        return length


@contextlib.contextmanager
def _replacing(dest: str, journals: str, dry_run: bool, step: StepHook, *, overwrite: bool) -> Generator[Any]:
    """A file that takes the place of `dest` when the block ends well; siblings that a killed export left are removed first.

    Args:
        overwrite: as of `export_replaced.check`, for what has taken the name of a new archive meanwhile.
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
            fd = os.open(voucher.said.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=home.fd)
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
    """A record of the unfinished file; both go when `stack` ends."""
    step("export.voucher")
    voucher = Voucher.create(journals, kind="archive", dest=dest, home=os.path.dirname(dest), home_fd=home.fd, ending=".tmp")
    stack.callback(_end, home, voucher)
    return voucher


def _finish(file: IO[bytes], step: StepHook) -> None:
    """All is written: it gets its mode, and is on disk."""
    file.flush()
    os.fchmod(file.fileno(), 0o666 & ~_umask())
    step("export.sync")
    os.fsync(file.fileno())


def _nameless(home: DirTree, name: bytes) -> int | None:
    """A new file without a name; None: something has `name`, or the system has no such files."""
    if home.lstat(name) is not None or not hasattr(os, "O_TMPFILE"):
        return None
    try:
        fd = os.open(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=home.fd)
    except OSError:  # the other way says what is wrong
        return None
    if os.path.exists(_proc(fd)):
        return fd
    os.close(fd)
    return None


def _named(fd: int, home: DirTree, name: bytes) -> bool:
    """Give a nameless file its name; False: something has it by now."""
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
        if found is not None and found.st_uid == os.geteuid() and (said.is_(said.id, found) or (said.id is None and empty)):
            os.unlink(name, dir_fd=home.fd)
    except OSError:  # a later export to this directory tries again
        voucher.close()
    else:
        voucher.drop()


def _umask() -> int:
    """The process's umask without changing it where /proc tells."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("Umask:")).split()[1], 8)
    return 0o022


def _sweep(dest: str, journals: str) -> None:
    """Remove the unfinished archives that killed exports of this gateway left in the same directory; no other file is touched."""
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
    """What the tar is written to."""
    if fmt == "tar":
        yield sink
        return
    import zstandard

    jobs = min(os.cpu_count() or 1, ZSTD_THREADS)
    how = zstandard.ZstdCompressionParameters(compression_level=ZSTD_LEVEL, write_checksum=True, threads=jobs, job_size=ZSTD_JOB_BYTES)
    packer = zstandard.ZstdCompressor(compression_params=how)
    with packer.stream_writer(sink, closefd=False) as out:
        yield out
