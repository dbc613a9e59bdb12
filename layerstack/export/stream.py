"""Export a version: the flattened changes above the base as one stream of bytes, which is a pure function of
the version.

    header    one JSON line: {"format", "manifest_version", "root_hash", "layers_exported", ...}
    frames    u32 big-endian length and that many bytes; joined they are a pax tar (layerstack.export.pax)
              in byte order of paths
    end       a frame of length 0
    trailer   one JSON line: {"entries", "files", "symlinks", ..., "tar_bytes", "content_bytes", "sha256"},
              or {"error": ...}

Format 1: the trailer's SHA-256 is that of the whole tar.

Format 2: each file has the SHA-256 that was computed when it was published, in the record `EOS.sha256`; the
trailer's SHA-256 is that of the tar without the content of files. No content is read to be hashed, and large
files are sent to the socket by sendfile(2).

Format 3 is format 2 with holes: digests are those of `layerstack.kernel.content`, which are the SHA-256 of
the bytes of a file without 64 KiB of zeros, and a file with holes (`EOS.sparse`, its size) has a map in front
of its data, in the form of GNU tar 1.0.

Format 4 is format 3 with runs of small plain files (`layerstack.model.run_table`), for a receiver that does
not compare single files.

On request the trailer counts the paths that git ignores (`ignored`: files, bytes), and their content is left
out. For a receiver that compares, an entry of kind `ignored` then stands for each of them that is not below
another one.

An entry comes after all directories that contain it. Entries of the base are not sent, and layers contain no
special files. Deletions and opaque directories are typed by `EOS.kind`; further names of one file are hard
links to its first name.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from layerstack.errors import LayerStackError, StoreCorrupt
from layerstack.export import pax, small_files
from layerstack.export.ignored import MARK, IgnoredMark, IgnoredPaths
from layerstack.export.small_files import Decided, FileRun, was_directory
from layerstack.kernel import content
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.layers.snapshot import Snapshot
from layerstack.model.manifest import Manifest

FORMAT, FORMAT_OF_DIGESTS, FORMAT_OF_HOLES, FORMAT_OF_RUNS = 1, 2, 3, 4
FRAME_BYTES = 1 << 20
RANGE_BYTES, RANGE_MAX = 1 << 18, 1 << 24
"""Size from which on a file is yielded as ranges instead of being read here (format 2 and later); and the
largest range.
"""

_KEPT_PARENTS = 4096


class EntryLike(Protocol):
    """An entry of a version, as `Snapshot` gives it."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def mode(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def layer_id(self) -> str: ...
    @property
    def real_path(self) -> str: ...


Digests = Callable[[str, str], bytes | None]
"""(layer, path) -> SHA-256 of that file's content, or None where unknown; called in byte order of paths."""


Outputs = Callable[[str, str], bool]
"""Predicate (layer, path): True when that file is an output of builds."""


Earlier = Callable[[str], Sequence[tuple[int, int]]]
"""Function: path -> size and mtime_ns of the files that older layers have at it, see `Snapshot.earlier`."""


class FileRange(NamedTuple):
    """The next bytes, in an open file; the descriptor is valid until the next piece is requested."""

    fd: int
    offset: int
    size: int


class VersionLike(Protocol):
    """The part of a Snapshot that an export needs; the caller holds its lease until the stream has ended."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def xattr_namespace(self) -> XattrNamespace: ...
    def changed(self) -> Iterator[tuple[str, Any, bool]]: ...
    def stat(self, path: str) -> Any: ...
    def in_base(self, path: str) -> Any: ...
    def below_in_base(self, path: str) -> Iterator[Any]: ...


class ExportEntry(NamedTuple):
    """One changed path. `real_path` is where a file's bytes are; None for a hard link and for entries that
    are not files.
    """

    header: pax.Header
    real_path: str | None
    ranges: Sequence[tuple[int, int]] | None = None
    """(offset, size) of the data of a file that is sent with its holes."""
    run: FileRun | None = None
    """Several entries that are sent as this one."""


def flatten_changes(
    version: VersionLike,
    *,
    xattrs: bool = False,
    digests: Digests | None = None,
    earlier: Earlier | None = None,
    holes: bool = False,
    changed: Iterator[Decided | FileRun | IgnoredMark] | None = None,
    outputs: Outputs | None = None,
) -> Iterator[ExportEntry]:
    """Give the changes above the base in byte order of paths, one entry per path; a deletion only where its
    directory still exists.

    Args:
        changed: `version.changed()`, with runs in it, or marks.
    Memory: a few thousand paths, and one name for each file that has several.
    Raises:
        StoreCorrupt: the root is opaque, or a layer contains a special file.
    """
    first_names: dict[tuple[int, int], bytes] = {}
    parents: dict[str, bool] = {"": True}

    def is_directory(path: str) -> bool:
        known = parents.get(path)
        if known is None:
            if len(parents) > _KEPT_PARENTS:
                parents.clear()
                parents[""] = True
            above = path.rpartition("/")[0]
            entry = version.stat(path) if is_directory(above) else None
            known = parents[path] = entry is not None and entry.kind == "directory"
        return known

    def before(path: str) -> bytes:
        return b"" if earlier is None else b" ".join(b"%d:%d" % pair for pair in earlier(path))

    for found in version.changed() if changed is None else changed:
        if isinstance(found, FileRun):
            size = len(found.table) + len(found.data)
            yield ExportEntry(
                pax.Header(pax.RUN, pax.FILE, 0o644, size, kind=pax.RUN, table=len(found.table)),
                None,
                run=found,
            )
            continue
        if isinstance(found, IgnoredMark):
            yield ExportEntry(pax.Header(os.fsencode(found.path), pax.FILE, 0o644, kind=pax.IGNORED), None)
            continue
        path, entry, opaque = found
        raw = os.fsencode(path)
        if not path:
            if opaque:
                raise StoreCorrupt(
                    "the root of a layer is opaque: an export would clear its whole destination",
                    reason="opaque_root",
                )
            continue
        if entry is None:
            if is_directory(path.rpartition("/")[0]):
                yield ExportEntry(
                    pax.Header(raw, pax.FILE, 0o644, kind=pax.WHITEOUT, earlier=before(path)), None
                )
        elif entry.kind == "directory":
            kind = pax.OPAQUE if opaque else b""
            more = _xattrs(entry.real_path, version.xattr_namespace) if xattrs else {}
            yield ExportEntry(
                pax.Header(
                    raw, pax.DIRECTORY, entry.mode & 0o7777, 0, entry.mtime_ns, kind=kind, xattrs=more
                ),
                None,
            )
        elif entry.kind == "symlink":
            target = os.fsencode(os.readlink(entry.real_path))
            yield ExportEntry(pax.Header(raw, pax.SYMLINK, 0o777, 0, entry.mtime_ns, target), None)
        elif entry.kind == "file":
            status = os.lstat(entry.real_path)
            if status.st_nlink > 1:
                key = (status.st_dev, status.st_ino)
                first = first_names.setdefault(key, raw)
                if first is not raw:
                    header = pax.Header(
                        raw,
                        pax.HARD_LINK,
                        entry.mode & 0o7777,
                        0,
                        entry.mtime_ns,
                        first,
                        earlier=before(path),
                    )
                    header = header._replace(output=outputs is not None and outputs(entry.layer_id, path))
                    yield ExportEntry(header, None)
                    continue
            more = _xattrs(entry.real_path, version.xattr_namespace) if xattrs else {}
            digest = b"" if digests is None else _digest(entry, path, digests, plain=not holes).hex().encode()
            header = pax.Header(
                raw, pax.FILE, entry.mode & 0o7777, entry.size, entry.mtime_ns, xattrs=more, sha256=digest
            )
            ranges = _ranges(entry.real_path) if holes and content.has_holes(status) else None
            if ranges is not None:
                held = len(pax.sparse_map(ranges, entry.size)) + sum(size for _, size in ranges)
                header = header._replace(size=held, sparse=entry.size)
            header = header._replace(earlier=before(path)) if earlier is not None else header
            if outputs is not None and outputs(entry.layer_id, path):
                header = header._replace(output=True)
            yield ExportEntry(header, entry.real_path, ranges)
        else:
            raise StoreCorrupt(f"a layer contains a FIFO, socket or device at {path}", details={"path": path})


def _digest(entry: EntryLike, path: str, digests: Digests, *, plain: bool) -> bytes:
    """Give the digest of a file, from the index if it has it."""
    if plain and entry.size >= content.BLOCK:
        return content.digest_at(
            entry.real_path, plain=True
        )  # for a gateway from before the second kind of digest
    return digests(entry.layer_id, path) or content.digest_at(entry.real_path)


def _ranges(path: str) -> list[tuple[int, int]] | None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return content.sparse_map(fd)
    finally:
        os.close(fd)


def states_of_base(version: VersionLike) -> Iterator[ExportEntry]:
    """Give the base's entries at changed paths, and below directories that changes hide: for a host without a
    copy of the base.

    One entry of kind `base` for each path, in any order, and possibly two for one path; none for a path that
    the base does not have. Cost: every regular file among them is read.
    """
    for path, entry, opaque in version.changed():
        was = version.in_base(path) if path else None
        if was is None:
            continue
        yield _state_of_base(was)
        if was.kind == "directory" and (opaque or entry is None or entry.kind != "directory"):
            for below in version.below_in_base(path):
                yield _state_of_base(below)


def _state_of_base(entry: Any) -> ExportEntry:
    if entry.kind == "directory":
        state = b"d"
    elif entry.kind == "symlink":
        state = b"l:" + hashlib.sha256(os.fsencode(os.readlink(entry.real_path))).hexdigest().encode()
    elif entry.kind == "file":
        state = b"f:%d:%d:%s" % (
            entry.size,
            entry.mtime_ns,
            content.digest_at(entry.real_path).hex().encode(),
        )
    else:
        raise StoreCorrupt(
            f"the base contains a FIFO, socket or device at {entry.path}", details={"path": entry.path}
        )
    return ExportEntry(
        pax.Header(os.fsencode(entry.path), pax.FILE, 0o644, kind=pax.BASE, of_base=state), None
    )


def _xattrs(path: str, xattr_namespace: XattrNamespace) -> dict[bytes, bytes]:
    """Read the `user.` attributes that a session sees, under the names that it sees."""
    out: dict[bytes, bytes] = {}
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM):
            return out
        raise
    for name in names:
        if name.startswith("user.") and (shown := xattr_namespace.shown(name)) is not None:
            out[os.fsencode(shown)] = os.getxattr(path, name, follow_symlinks=False)
    return out


_NUMBERS: tuple[str, ...] = (
    "entries",
    "files",
    "hard_links",
    "symlinks",
    "directories",
    "whiteouts",
    "opaques",
    "content_bytes",
    "tar_bytes",
)


class _Count:
    """Numbers and digest of the trailer."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = dict.fromkeys(_NUMBERS, 0)
        self.digest = hashlib.sha256()

    def run(self, run: FileRun) -> None:
        self.numbers["entries"] += run.files + run.directories
        self.numbers["files"] += run.files
        self.numbers["directories"] += run.directories
        self.numbers["content_bytes"] += len(run.data)

    def entry(self, header: pax.Header) -> None:
        names = {
            pax.FILE: "files",
            pax.HARD_LINK: "hard_links",
            pax.SYMLINK: "symlinks",
            pax.DIRECTORY: "directories",
        }
        self.numbers["entries"] += 1
        if header.kind not in (pax.BASE, pax.IGNORED):
            self.numbers["whiteouts" if header.kind == pax.WHITEOUT else names[header.type]] += 1
        self.numbers["opaques"] += header.kind == pax.OPAQUE
        self.numbers["content_bytes"] += header.size

    def to_json(self) -> dict[str, Any]:
        return {**self.numbers, "sha256": self.digest.hexdigest()}


def tar(
    entries: Iterator[ExportEntry], count: _Count | None = None, *, whole: bool = True
) -> Iterator[bytes | FileRange]:
    """Write the pax tar of `entries` in pieces of at most FRAME_BYTES; small entries share a piece.

    Args:
        whole: the digest of `count` is that of all bytes. Else it leaves out the content of files, and large
            files are given as ranges.
    Raises:
        StoreCorrupt: a file is shorter or longer than its entry says. Layers do not change.
    """
    count = _Count() if count is None else count
    waiting = bytearray()

    def full() -> bytes:
        data = bytes(waiting)
        waiting.clear()
        count.numbers["tar_bytes"] += len(data)
        if whole:
            count.digest.update(data)
        return data

    def frame(data: bytes) -> None:
        """Add bytes of the tar that are not content."""
        nonlocal waiting
        waiting += data
        if not whole:
            count.digest.update(data)

    for header, real_path, ranges, run in entries:
        frame(pax.encode(header))
        if run is not None:
            count.run(run)
            frame(run.table)
            waiting += run.data
            frame(pax.padding(header.size))
            yield full()
            continue
        count.entry(header)
        if real_path is not None and header.size:
            if ranges is not None:
                waiting += pax.sparse_map(ranges, header.sparse)
            fd = os.open(real_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if ranges is not None:
                    _check_size(real_path, header, os.fstat(fd).st_size)
                for begin, size in ranges if ranges is not None else ((0, header.size),):
                    os.lseek(fd, begin, os.SEEK_SET)
                    left = size
                    if not whole and left >= RANGE_BYTES:
                        yield full()
                        if ranges is None:
                            _check_size(real_path, header, os.fstat(fd).st_size)
                        while left:
                            piece = FileRange(fd, begin + size - left, min(left, RANGE_MAX))
                            count.numbers["tar_bytes"] += piece.size
                            yield piece
                            left -= piece.size
                    while left:
                        if len(waiting) >= FRAME_BYTES:
                            yield full()
                        data = os.read(fd, min(left, FRAME_BYTES - len(waiting)))
                        if not data:
                            _check_size(real_path, header, begin + size - left)
                        left -= len(data)
                        waiting += data
            finally:
                os.close(fd)
            frame(pax.padding(header.size))
        if len(waiting) >= FRAME_BYTES // 2:
            yield full()
    frame(pax.END)
    yield full()


def _check_size(real_path: str, header: pax.Header, size: int) -> None:
    if size != header.length:
        raise StoreCorrupt(
            f"{real_path} has {size} bytes instead of {header.length}",
            details={"path": os.fsdecode(header.path)},
        )


def stream(
    version: VersionLike,
    *,
    live_workspace_sessions: Sequence[str] = (),
    offset: int = 0,
    xattrs: bool = False,
    digests: Digests | None = None,
    earlier: Earlier | None = None,
    holes: bool = False,
    base: bool = False,
    root: str | None = None,
    outputs: Outputs | None = None,
    ignored: IgnoredPaths | None = None,
) -> Iterator[bytes | FileRange]:
    """Export `version` from byte `offset` of its tar on, in pieces to be sent one after the other.

    Args:
        live_workspace_sessions: sessions to name in the header, since a version does not contain their
            unpublished work.
        offset: number of bytes of the tar that the receiver has; these are made and hashed again, but not
            sent.
        digests: those of files; with them the format is 2, without them 1.
        holes: with digests: the format is 3.
        root: of the store; with holes, and without xattrs and earlier, small plain files come in runs: the
            format is 4.
        earlier: files of older layers; each file and deletion then lists them in the record `EOS.earlier`,
            for a receiver that compares.
        outputs: True for an output of builds; each such file then has the record `EOS.output`.
        ignored: counts the ignored paths of a `Snapshot`, and decides what is sent of them.
        base: first send the base's entries at changed paths (`states_of_base`).
    Yields:
        Byte strings of any length, from format 2 on also ranges of files. An error of the disk or the store
            ends the frames and becomes the trailer's `error`, so that the receiver never mistakes a part for
            the whole.
    """
    manifest = version.manifest
    runs = (
        root is not None
        and holes
        and digests is not None
        and earlier is None
        and not xattrs
        and isinstance(version, Snapshot)
    )
    header: dict[str, Any] = {
        "format": FORMAT
        if digests is None
        else FORMAT_OF_RUNS
        if runs
        else FORMAT_OF_HOLES
        if holes
        else FORMAT_OF_DIGESTS,
        "manifest_version": manifest.version,
        "root_hash": manifest.root_hash,
        "layers_exported": [layer.layer_id for layer in manifest.layers[:-1]],
    }
    if live_workspace_sessions:
        header["live_workspace_sessions"] = list(live_workspace_sessions)
    if offset:
        header["offset"] = offset
    if base:
        header["base"] = True
    if ignored is not None:
        header["ignored"] = ignored.treatment
    yield _line(header)
    count = _Count()
    skip = offset
    trailer: dict[str, Any]
    try:
        changed: Iterator[Decided | FileRun | IgnoredMark] | None = None
        if runs and root is not None and isinstance(version, Snapshot):
            changed = small_files.changed(version, root, ignored)
        elif ignored is not None and isinstance(version, Snapshot):
            changed = _without_ignored(version, ignored)
        entries = flatten_changes(
            version,
            xattrs=xattrs,
            digests=digests,
            earlier=earlier,
            holes=holes and digests is not None,
            changed=changed,
            outputs=outputs,
        )
        if base:
            entries = itertools.chain(states_of_base(version), entries)
        for piece in tar(entries, count, whole=digests is None):
            size = piece.size if isinstance(piece, FileRange) else len(piece)
            if skip >= size:
                skip -= size
                continue
            length = struct.pack(">I", size - skip)
            if isinstance(piece, FileRange):
                yield length
                yield FileRange(piece.fd, piece.offset + skip, size - skip)
            else:
                yield length + (piece[skip:] if skip else piece)
            skip = 0
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        details: dict[str, Any] = {"reason": "os_error", "errno": name}
        trailer = {
            "error": {
                "kind": "operation_failed",
                "message": f"export: {error.strerror} [{name}]",
                "details": details,
            }
        }
    except LayerStackError as error:
        details = {**error.details, "reason": error.reason}
        trailer = {"error": {"kind": error.kind, "message": error.message, "details": details}}
    else:
        if skip:
            details = {"reason": "bad_offset", "offset": offset}
            trailer = {
                "error": {
                    "kind": "invalid_request",
                    "message": f"offset {offset} is past the end of the stream",
                    "details": details,
                }
            }
        else:
            trailer = count.to_json()
            if ignored is not None:
                trailer["ignored"] = ignored.to_json()
    yield bytes(4)
    yield _line(trailer)


def _without_ignored(version: Snapshot, ignored: IgnoredPaths) -> Iterator[Decided | IgnoredMark]:
    """Give `version.changed()` with all that `ignored` leaves out replaced by marks, if it wants them."""
    for item in version.changed():
        if not ignored.leaves_out(item, was_directory=was_directory(version, item)):
            yield item
        elif ignored.treatment == MARK and not ignored.below_ignored(item[0]):
            yield IgnoredMark(item[0])


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
