"""Read what changed in a workspace directory since the record of its copy, as rows for the agent.

A file is read when its lstat differs from the record. While it is read it may change: then its lstat differs
from that of the walk, and the next round reads it again.
"""

from __future__ import annotations

import base64
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from eos_agent.machine import private_dirs
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.imports.copied import (
    BLOB,
    DIRECTORY,
    FILE,
    LINK,
    STORED,
    UNREAD,
    CopiedEntry,
    CopiedRecord,
    kind_of,
)
from eos_mcp.workspace.git_directories import ALTERNATES, Borrowed
from eos_mcp.workspace.tree_index import Listing, Stat, is_still, racy
from layerstack.kernel import base_xattrs
from layerstack.kernel.base_xattrs import Keeping
from layerstack.kernel.content import ContentHash, data_ranges

PIECE = 1 << 20
BATCH_BYTES, BATCH_ROWS = 2 << 20, 2_000
"""Content and number of rows of one request."""
KEPT_MAX, KEPT_GIT_MAX = 1 << 20, 16 << 20
"""Most bytes of a file whose content is kept as the base of later merges; below a `.git`, the second."""
GITDIR = b"gitdir:"

Row = dict[str, Any]


class DirectoryChanges:
    """The changes of one directory. `new` has the entry of each path that was compared, None: absent; the
    paths of `changes` differ from the record.
    """

    def __init__(
        self, workspace: str, record: CopiedRecord, keeping: Keeping, paths: Sequence[str], *, keep: bool
    ) -> None:
        """
        Args:
            workspace: resolved.
            paths: only these, and what is below them; empty: all.
            keep: keep the content of changed files as the base of later merges.
        """
        self.workspace, self.record, self._keeping, self._keep = workspace, record, keeping, keep
        self._paths = tuple(paths)
        self.new: dict[str, CopiedEntry | None] = {}
        self.changes: dict[str, str] = {}
        """Path -> added, modified, deleted or type."""
        self.unstable: set[str] = set()
        self.kept: list[str] = []
        """Files with kept content that this import wrote."""
        self._found: Borrowed | None = None
        self._sent: set[str] = set()
        self.racy: set[str] = set()
        """Files that changed so shortly before they were read that a later change may have the same times."""
        self._whiteouts: set[str] = set()
        """Deleted paths whose row was sent; it stands for all below them."""
        self._base_sent: set[str] = set()
        self._first: dict[int, str] = {}
        self._git_files: dict[str, bool] = {}

    def settled(self) -> dict[str, CopiedEntry | None]:
        """Return `new` for the record. A file that changed so shortly before it was read that a later change
        may have the same times is read again by the next import.
        """
        return {
            path: made._replace(stat=None) if made is not None and path in self.racy else made
            for path, made in self.new.items()
        }

    def _wanted(self, path: str) -> bool:
        return not self._paths or any(path == p or path.startswith(p + "/") for p in self._paths)

    # ---- which paths

    def candidates(self, listing: Listing) -> tuple[list[str], list[str]]:
        """List the paths that must be read, parents first, and those that are gone, children first. A path
        that was read already counts with its last lstat.
        """
        self._git_files = {}
        read: list[str] = []
        for path, entry in listing.entries.items():
            if path in self.new:
                known = self.new[path]
                if known is not None and known.stat == entry[:5] and path not in self.unstable:
                    continue
            elif self.record.is_unchanged(path, entry):
                continue
            if path and self._wanted(path) and not self._left_out(path, listing):
                read.append(path)
        gone = [
            path
            for path in (*self.record.paths(), *(p for p, e in self.new.items() if e is not None))
            if path not in listing.entries
            and not (path in self.new and self.new[path] is None)
            and self._wanted(path)
            and not self._left_out(path, listing)
        ]
        return read, sorted(set(gone), reverse=True)

    def _left_out(self, path: str, listing: Listing) -> bool:
        """Tell whether the path is the `.git` of a linked worktree or submodule, a file that names a
        repository elsewhere, or in the repository that the copy has in its place; or an object that the copy
        has as its own and the directory borrows.
        """
        git, objects, _ = path.rpartition("/objects/")
        if objects and f"{git}/{ALTERNATES}" in listing.entries:
            return path not in listing.entries or path == f"{git}/{ALTERNATES}"
        at = path if os.path.basename(path) == ".git" else _repository(path)
        if at is None:
            return False
        found = self._git_files.get(at)
        if found is None:
            entry = listing.entries.get(at)
            found = entry is not None and stat.S_ISREG(entry[0]) and self._names_a_repository(at)
            self._git_files[at] = found
        return found

    def _names_a_repository(self, path: str) -> bool:
        try:
            with open(os.path.join(self.workspace, path), "rb") as file:
                return file.read(len(GITDIR)) == GITDIR
        except OSError:
            return False

    # ---- rows

    def rows(self, found: Borrowed) -> Iterator[list[Row]]:
        """Yield the rows of one round in batches: the base of the changed paths, then the changes.

        Raises:
            OperationError: operation_failed, reason workspace_unreadable.
        """
        listing, self._found = found.listing, found
        read, gone = self.candidates(listing)
        self.unstable, self._first = set(), {}
        batch: list[Row] = []
        size = 0
        for row, data in self._rows(read, gone, listing):
            batch.append(row)
            size += data
            if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _rows(self, read: list[str], gone: list[str], listing: Listing) -> Iterator[tuple[Row, int]]:
        for path in gone:
            self.new[path] = None
            if (was := self.record.of(path)) is None:
                yield from self._withdraw(path)
            else:
                self.changes[path] = "deleted"
                yield from self._base(path, was)
        for path in read:
            entry = listing.entries[path]
            try:
                yield from self._read(path, entry, listing.looked_ns)
            except FileNotFoundError:
                self.unstable.add(path)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EINVAL):
                    self.unstable.add(path)
                    continue
                raise self._unreadable(path, error) from error
        for path in sorted(path for path, change in self.changes.items() if change == "deleted"):
            if path not in self._sent and not any(map(self._covers, _above(path))):
                self._whiteouts.add(path)
                yield self._own(path, {"kind": "w"})

    def _source(self, path: str) -> str:
        found = self._found
        return os.path.join(self.workspace, path) if found is None else found.source(self.workspace, path)

    def _covers(self, above: str) -> bool:
        """Tell whether the row of a path stands for the deletion of all below it."""
        made = self.new.get(above)
        return above in self._whiteouts or (made is not None and made.kind != DIRECTORY)

    def _unreadable(self, path: str, error: OSError) -> OperationError:
        where = self._source(path)
        return OperationError(
            OPERATION_FAILED,
            f"import: {where} cannot be read: {error.strerror}",
            {
                "path": where,
                "errno": errno.errorcode.get(error.errno or 0, ""),
                "hint": "make it readable for the user that runs the gateway, or leave it out with paths",
            },
            reason="workspace_unreadable",
        )

    def _read(self, path: str, entry: Stat, looked_ns: int) -> Iterator[tuple[Row, int]]:
        where = self._source(path)
        kind, mode = kind_of(entry[0]), stat.S_IMODE(entry[0])
        self.racy.discard(path)
        if kind == FILE:
            if racy(entry, looked_ns):
                self.racy.add(path)
            yield from self._file(path, where, entry)
            return
        target = os.readlink(where) if kind == LINK else ""
        xattrs = {} if kind == LINK else base_xattrs.stored(base_xattrs.read(where), self._keeping)
        made = CopiedEntry(kind, entry[:5], mode, 0, target, base_xattrs.digest(xattrs), STORED)
        self.new[path] = made
        if not (change := self._change(path, made)):
            yield from self._withdraw(path)
            return
        self.changes[path] = change
        yield from self._base(path, self.record.of(path))
        row: Row = {"kind": kind, "mode": mode, "mtime_ns": entry[2], "target": _b64(os.fsencode(target))}
        if kind == DIRECTORY:
            row["xattrs"] = {name: _b64(value) for name, value in xattrs.items()}
        yield self._own(path, row)

    def _file(self, path: str, where: str, entry: Stat) -> Iterator[tuple[Row, int]]:
        fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not is_still(fd, entry):
                self.unstable.add(path)
                return
            xattrs = base_xattrs.stored(base_xattrs.read(fd), self._keeping)
            was, size, mode = self.record.of(path), entry[1], stat.S_IMODE(entry[0])
            tail = b"" if self._found is None else self._found.tails.get(path, b"")
            made = CopiedEntry(FILE, entry[:5], mode, size, "", base_xattrs.digest(xattrs), STORED)
            row: Row = {"kind": FILE, "mode": mode, "mtime_ns": entry[2], "size": size}
            row["xattrs"] = {name: _b64(value) for name, value in xattrs.items()}
            whole = b""
            pieces: Iterator[tuple[int, bytes]] = iter(())
            total = ContentHash()
            if size <= PIECE or (was is not None and was.kind == FILE and was.size == size):
                for at, data in _pieces(fd, size, total):
                    if size <= PIECE and at == 0:
                        whole = data
                if tail and size <= PIECE:  # a configuration, of which the copy has more
                    total.update(tail)
                    whole += tail
                    row["size"] = size + len(tail)
                made = made._replace(content=total.digest().hex())
                if not self._change(path, made):
                    self._settle(path, made, is_still(fd, entry))
                    if path not in self.unstable:
                        yield from self._withdraw(path)
                    return
            if len(whole) == row["size"]:
                row["data"] = _b64(whole)
            else:  # in pieces: large, or with holes
                total = ContentHash()
                pieces = _pieces(fd, size, total)
            yield from self._base(path, was)
            first = self._first.setdefault(entry[4], path) if entry[5] > 1 else path
            if first != path and made.content:
                row.pop("data", None)
                row["same_as"] = _b64(os.fsencode(first))
                pieces = iter(())
            yield self._own(path, row)
            for at, data in pieces:
                yield {"side": "ours", "path": _path(path), "offset": at, "data": _b64(data)}, len(data)
            if not made.content:
                made = made._replace(content=total.digest().hex())
            stable = is_still(fd, entry)
            if stable and self._keep and not tail and self._keeps(path, size):
                made = made._replace(source=BLOB)
                self._keep_content(fd, made)
            self.changes[path] = self._change(path, made) or "modified"
            self._settle(path, made, stable)
        finally:
            os.close(fd)

    def _settle(self, path: str, made: CopiedEntry, stable: bool) -> None:
        self.new[path] = made
        if not stable:
            self.unstable.add(path)

    def _change(self, path: str, made: CopiedEntry) -> str:
        """Return how an entry differs from the record; empty: not at all."""
        was = self.record.of(path)
        if was is None:
            return "added"
        if was.kind != made.kind:
            return "type"
        if made.kind != LINK and was.mode is not None and was.mode != made.mode:
            return "modified"
        if was.xattrs is not None and was.xattrs != made.xattrs:
            return "modified"
        return "" if made.kind == DIRECTORY or was.content == made.content else "modified"

    def _withdraw(self, path: str) -> Iterator[tuple[Row, int]]:
        self.changes.pop(path, None)
        self._whiteouts.discard(path)
        if path in self._sent:
            self._sent.discard(path)
            yield {"side": "ours", "path": _path(path), "kind": "n"}, 0

    def _own(self, path: str, row: Row) -> tuple[Row, int]:
        self._sent.add(path)
        if row["kind"] != "w":
            self._whiteouts.discard(path)
        return {"side": "ours", "path": _path(path), **row}, len(row.get("data", ""))

    # ---- the base

    def _base(self, path: str, was: CopiedEntry | None) -> Iterator[tuple[Row, int]]:
        """Yield the row for what the record has of a path, where it is not what the sandbox's base has."""
        if path in self._base_sent or path not in self.record.changed:
            return
        self._base_sent.add(path)
        for above in _above(path):
            yield from self._base(above, self.record.of(above))
        yield from base_rows(self.record, path, was)

    def beside(self) -> Iterator[list[Row]]:
        """Yield, in batches, the base rows of unchanged paths that publication looks at too: in the same
        directory or repository as a change, and rules of git.
        """
        folders = {path.rpartition("/")[0] for path in self.changes}
        repositories = {r for path in self.changes if (r := _repository(path)) is not None}
        batch: list[Row] = []
        for path, was in self.record.changed.items():
            if path in self._base_sent:
                continue
            if (
                path.rpartition("/")[0] in folders
                or _repository(path) in repositories
                or os.path.basename(path) in (".gitignore", ".gitattributes")
            ):
                batch += [row for row, _ in self._base(path, was)]
                if len(batch) >= BATCH_ROWS:
                    yield batch
                    batch = []
        if batch:
            yield batch

    # ---- kept content

    @staticmethod
    def _keeps(path: str, size: int) -> bool:
        return size <= (KEPT_GIT_MAX if _repository(path) is not None else KEPT_MAX)

    def _keep_content(self, fd: int, made: CopiedEntry) -> None:
        folder = os.path.join(self.record.folder, "content")
        target = os.path.join(folder, made.content)
        if os.path.exists(target):
            return
        private_dirs.make(folder)
        part = f"{target}.new"
        out = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(out, "wb") as file:
            at = 0
            while at < made.size and (data := os.pread(fd, PIECE, at)):
                file.write(data)
                at += len(data)
        os.replace(part, target)
        self.kept.append(target)


def base_rows(record: CopiedRecord, path: str, was: CopiedEntry | None) -> Iterator[tuple[Row, int]]:
    """Make the rows of the base side for an entry of a record."""
    row: Row = {"side": "base", "path": _path(path)}
    if was is None:
        yield {**row, "kind": "w"}, 0
        return
    row |= {"kind": was.kind, "mode": was.mode, "size": was.size}
    data = record.content(was.content) if was.source == BLOB else None
    if was.kind == LINK:
        unknown = was.content == UNREAD
        row["target"] = _b64(os.urandom(16).hex().encode() if unknown else os.fsencode(was.content))
    elif was.kind == FILE and data is not None:
        row["data"] = _b64(data[:PIECE])
    elif was.kind == FILE:
        row["digest"] = _b64(bytes.fromhex(was.content))
    yield row, len(row.get("data", ""))
    for at in range(PIECE, len(data or b""), PIECE):
        piece = (data or b"")[at : at + PIECE]
        yield {"side": "base", "path": _path(path), "offset": at, "data": _b64(piece)}, len(piece)


def _pieces(fd: int, size: int, total: ContentHash) -> Iterator[tuple[int, bytes]]:
    """Yield the data of a file without its holes, and digest all of it."""
    done = 0
    for begin, end in data_ranges(fd):
        end = min(end, size)
        total.skip(max(0, begin - done))
        done = max(done, begin)
        while done < end and (data := os.pread(fd, min(PIECE, end - done), done)):
            total.update(data)
            yield done, data
            done += len(data)
    if done < size:
        total.skip(size - done)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _repository(path: str) -> str | None:
    """Return the `.git` that a path is in, or is; None for any other path."""
    parts = path.split("/")
    return "/".join(parts[: parts.index(".git") + 1]) if ".git" in parts else None


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _path(path: str) -> str:
    return _b64(os.fsencode(path))
