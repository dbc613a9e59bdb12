"""Facts about the entries at paths, in a SQLite file. The record of a sandbox and a destination is such a
file, kept between exports.

    <state>/export-records/<sandbox>/<hash of the destination>.sqlite
                               mode 0600; user_version is its format number

A row has the entry that an export wrote at a path: a file's size, time and digest, a link's digest, a
directory, or a deletion. Rows of `slot` 1 belong to a running export: they are durable before the destination
changes, and become rows of slot 0 at the end of the export. After a kill rows of both slots count as written
by an export.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import hashlib
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.identity import DirectoryIdentity
from layerstack.export import pax
from layerstack.kernel.content import digest_of_file
from layerstack.model.run_table import RunRow

FORMAT = 1
ROWS_MAX = 2_000_000
"""Maximum of rows of one record; beyond it, rows that the delta of the last export does not name are deleted.
Only that delta may exceed it.
"""
READ = 1 << 20
SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN = 10, 13, 14
ROOM = 1 << 18
"""Free bytes below which a failed write counts as a full disk."""

NOTHING, FILE, LINK, DIRECTORY, OPAQUE = "-", "f", "l", "d", "o"


class Fact(NamedTuple):
    """The entry at a path. A symlink and a file have a digest; a file with an empty digest is compared by
    size and time only.
    """

    letter: str
    size: int = 0
    mtime_ns: int = 0
    digest: bytes = b""

    def holds(self, path: bytes, found: os.stat_result, tree: DirTree, *, by_time: bool = True) -> bool:
        """Tell whether the entry at `path` equals this one: a file by size and time, else by content; modes
        are ignored.
        """
        if stat.S_ISLNK(found.st_mode):
            return self.letter == LINK and hashlib.sha256(tree.readlink(path)).digest() == self.digest
        if stat.S_ISDIR(found.st_mode):
            return self.letter in (DIRECTORY, OPAQUE)
        if not stat.S_ISREG(found.st_mode) or self.letter != FILE or self.size != found.st_size:
            return False
        return (by_time and self.mtime_ns == found.st_mtime_ns) or (
            bool(self.digest) and digest_of(tree, path) == self.digest
        )


def digest_of(tree: DirTree, path: bytes) -> bytes | None:
    """Return the digest of a regular file; None if it cannot be read."""
    fd = tree.open_file(path)
    if fd is None:
        return None
    try:
        return digest_of_file(fd)
    finally:
        os.close(fd)


def fact_of_base(state: bytes) -> Fact:
    """Read the fact about an entry of the base from the agent's text, in the form of `pax.Header.of_base`."""
    letter, *rest = state.decode("ascii").split(":")
    if letter == FILE:
        return Fact(FILE, int(rest[0]), int(rest[1]), bytes.fromhex(rest[2]))
    return Fact(LINK, digest=bytes.fromhex(rest[0])) if letter == LINK else Fact(DIRECTORY)


def fact_of(header: pax.Header) -> Fact:
    """Return the fact about an entry of the stream; for a hard link, pass its first name."""
    if header.kind == pax.WHITEOUT:
        return Fact(NOTHING)
    if header.type == pax.DIRECTORY:
        return Fact(OPAQUE if header.kind == pax.OPAQUE else DIRECTORY)
    if header.type == pax.SYMLINK:
        return Fact(LINK, digest=hashlib.sha256(header.target).digest())
    return Fact(FILE, header.length, header.mtime_ns, bytes.fromhex(header.sha256.decode("ascii")))


def fact_of_row(row: RunRow) -> Fact:
    """Return the fact about an entry of a run."""
    return (
        Fact(DIRECTORY)
        if row.directory
        else Fact(FILE, row.size, row.mtime_ns, binascii.unhexlify(row.digest))
    )


_TABLE = """
create table if not exists fact (path blob not null, slot integer not null, letter text not null, size integer not null,
    mtime_ns integer not null, digest blob not null, primary key (path, slot)) without rowid"""  # noqa: E501


class Facts:
    """Facts by path, opened and used in one thread."""

    def __init__(self, path: str = "") -> None:
        """Open the file `path`, or a temporary one, which is on disk only when it is large."""
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._db.execute(f"pragma cache_size = {-4096}")
        if not path:
            self._db.execute(_TABLE)
            self._db.execute("begin")

    def close(self) -> None:
        self._db.close()

    def put(self, path: bytes, fact: Fact, slot: int = 0) -> None:
        self._db.execute(
            "insert or replace into fact values (?, ?, ?, ?, ?, ?)",
            (path, slot, fact.letter, *in_range(fact), fact.digest),
        )

    def put_all(self, facts: Iterable[tuple[bytes, Fact]]) -> None:
        """Put each fact in slot 0."""
        rows = ((path, fact.letter, *in_range(fact), fact.digest) for path, fact in facts)
        self._db.executemany("insert or replace into fact values (?, 0, ?, ?, ?, ?)", rows)

    def get(self, path: bytes) -> list[Fact]:
        """List the facts about the path, that of slot 0 first."""
        rows = self._db.execute(
            "select letter, size, mtime_ns, digest from fact where path = ? order by slot", (path,)
        )
        return [Fact(*row) for row in rows]

    def above(self, path: bytes) -> bytes | None:
        """Return the nearest path above whose fact rules out unknown entries: a deletion, a file, a symlink,
        or a directory with only known names.
        """
        while path := path.rpartition(b"/")[0]:
            fact = self.finished(path)
            if fact is not None and fact.letter != DIRECTORY:
                return path
        return None

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield path, letter, size, time and digest of all facts in slot 0, in order of the paths."""
        return iter(
            self._db.execute(
                "select path, letter, size, mtime_ns, digest from fact where slot = 0 order by path"
            )
        )

    def finished(self, path: bytes) -> Fact | None:
        """Return the fact of the last finished export about the path; None without one."""
        row = self._db.execute(
            "select letter, size, mtime_ns, digest from fact where path = ? and slot = 0", (path,)
        ).fetchone()
        return None if row is None else Fact(*row)


class RecordFull(Exception):
    """The disk of the state directory has no room for the record of an export."""


def in_range(fact: Fact) -> tuple[int, int]:
    """Return size and time within the range of SQLite's integers."""
    if 0 <= fact.size < 1 << 63 and -(1 << 63) <= fact.mtime_ns < 1 << 63:
        return fact.size, fact.mtime_ns
    return max(-(1 << 63), min(fact.size, (1 << 63) - 1)), max(-(1 << 63), min(fact.mtime_ns, (1 << 63) - 1))


class DestinationRecord(Facts):
    """The record of one sandbox and one destination.

    Raises:
        RecordFull: no record exists yet, and the disk has no room for one.
        OperationError: operation_failed, export_record_unreadable: the file is damaged, or of a later
            version.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise RecordFull from error
        with self._reading():
            super().__init__(path)
            self._db.execute("pragma synchronous = full")
            (number,) = self._db.execute("pragma user_version").fetchone()
            if number not in (0, FORMAT):
                raise sqlite3.DatabaseError(f"its format is {number}, this version reads {FORMAT}")
            if number == 0:  # ended by `begin`: one transaction, synced once; without it the file stays empty
                self._db.execute("begin immediate")
                self._db.execute(_TABLE)
                self._db.execute(
                    "create table if not exists about (key text primary key, value text not null) "
                    "without rowid"
                )
                self._db.execute(f"pragma user_version = {FORMAT}")

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if self._full(error):
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("rollback")
                raise RecordFull from error
            hint = (
                f"move {self.path} aside: what earlier exports wrote to this destination then counts as "
                f"edited there, and is not overwritten unasked"
            )
            raise OperationError(
                OPERATION_FAILED,
                f"export: the record of earlier exports, {self.path}, cannot be used: {error}",
                {"path": self.path, "hint": hint},
                reason="export_record_unreadable",
            ) from error

    def _full(self, error: sqlite3.DatabaseError) -> bool:
        """Tell whether the disk was full: SQLite reports it, or a write failed with nothing free."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == SQLITE_FULL:
            return True
        found = os.statvfs(os.path.dirname(self.path))
        return code in (SQLITE_IOERR, SQLITE_CANTOPEN) and found.f_bavail * found.f_frsize < ROOM

    def identity(self) -> DirectoryIdentity | None:
        """Return the directory of the last finished export."""
        with self._reading():
            row = self._db.execute("select value from about where key = 'identity'").fetchone()
        return None if row is None else DirectoryIdentity(*json.loads(row[0]))

    def begin(
        self,
        rows: Iterable[tuple[Any, ...]],
        *,
        fresh: bool,
        whole: tuple[DirectoryIdentity, str] | None = None,
    ) -> None:
        """Record the coming state of the destination, durably, before it changes.

        Args:
            rows: path, letter, size, time and digest of each fact.
            fresh: the destination does not exist: the facts of earlier exports are dropped.
            whole: for a fresh destination whose complete tree is renamed into place: the argument of
                `finish`, which is then not called.
        Raises:
            RecordFull: nothing was recorded.
        """
        with self._reading():
            if not self._db.in_transaction:
                self._db.execute("begin immediate")
            self._db.execute("delete from fact" if fresh else "delete from fact where slot = 1")
            # no separate slot is needed: the earlier entries are gone, and so is the directory of the record
            if fresh:
                self._db.execute("delete from about where key = 'identity'")
            self._db.executemany(
                f"insert or replace into fact values (?, {int(not fresh)}, ?, ?, ?, ?)", rows
            )
            if whole is not None:
                self._about(*whole)
            self._db.execute("commit")

    def finish(self, identity: DirectoryIdentity, dest: str) -> int:
        """Record that the gathered state is in place. Raises RecordFull: the record stays as `begin` wrote
        it.

        Returns:
            The number of paths of earlier exports that were deleted from the record because of `ROWS_MAX`.
        """
        dropped = 0
        with self._reading():
            self._db.execute("begin immediate")
            hiding = self._db.execute(
                "select path from fact where slot = 1 and letter <> 'd' and path in (select path from fact "
                "where slot = 0 and letter in ('d', 'o'))"
            ).fetchall()
            for (path,) in hiding:
                self._db.execute(
                    "delete from fact where slot = 0 and path > ? and path < ?", (path + b"/", path + b"0")
                )
            self._db.execute(
                "insert or replace into fact select path, 0, letter, size, mtime_ns, digest from fact where "
                "slot = 1"
            )
            (rows,) = self._db.execute("select count(*) from fact where slot = 0").fetchone()
            if rows > ROWS_MAX:
                gone = (
                    "delete from fact where slot = 0 and path not in (select path from fact where slot = 1)"
                )
                dropped = self._db.execute(gone).rowcount
            self._db.execute("delete from fact where slot = 1")
            self._about(identity, dest)
            self._db.execute("commit")
        return dropped

    def _about(self, identity: DirectoryIdentity, dest: str) -> None:
        for key, value in (("identity", json.dumps(identity)), ("dest", dest)):
            self._db.execute("insert or replace into about values (?, ?)", (key, value))


def place_of(directory: str, sandbox_id: str, dest: str) -> str:
    """Return the file of a record; `dest` is resolved."""
    return os.path.join(directory, sandbox_id, hashlib.sha256(os.fsencode(dest)).hexdigest()[:32] + ".sqlite")


def forget(directory: str, sandbox_id: str) -> None:
    """Remove the records of a sandbox that is gone."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(os.path.join(directory, sandbox_id))
