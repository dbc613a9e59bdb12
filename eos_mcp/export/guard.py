"""The protection of the user's work and machine in a `dir` export: conflicts, left-out paths, files that run
by themselves.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.export import git_hooks
from eos_mcp.export.conflict import ComparedPaths, Conflicts, record_base_fact
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.facts import (
    FILE,
    LINK,
    ROWS_MAX,
    DestinationRecord,
    Fact,
    Facts,
    RecordFull,
    fact_of,
    fact_of_row,
)
from eos_mcp.export.gathered import GatheredFacts
from eos_mcp.export.hygiene import Ground, Hygiene, homes
from eos_mcp.export.identity import identity_of
from eos_mcp.export.left_out import LeftOut
from eos_mcp.export.request import ExportRequest
from eos_mcp.export.rules import REFERENCE, ExportRules
from eos_mcp.export.stream import IGNORED_LETTER, ExportStream, SortedPaths
from layerstack.export import pax
from layerstack.model.run_table import RunRow

UNRECORDED = (
    "the disk of the gateway's state directory is full: the record of the paths that this export wrote was "
    "not saved, and the next export to this destination may report them as conflicts; free space there"
)
DROPPED = (
    "the record of the paths that exports wrote to this destination is limited to {most:,}: {count:,} of "
    "earlier exports were deleted from it; the next export to this destination may report these paths as "
    "conflicts, and removes none of them"
)

_OTHERS = 0o077


class ExportGuard:
    """Decisions for the receiver. `target`: the destination before the export, None if it does not exist."""

    def __init__(
        self,
        rules: ExportRules,
        dest: str,
        target: DirTree | None,
        conflicts: Conflicts | None,
        record: DestinationRecord | None,
        heads: GatheredFacts | None,
    ) -> None:
        self.rules, self.dest, self.target, self.conflicts, self.record = (
            rules,
            dest,
            target,
            conflicts,
            record,
        )
        self.heads = heads
        self.copy: DirTree | None = None
        self.unrecorded = False
        self.dropped = 0
        self._ended = False
        self.seen = ComparedPaths()

    # construction

    def hygiene_of(self, stream: ExportStream) -> Hygiene:
        target = self.target

        def existed(path: bytes) -> bool:
            return target is not None and (not path or target.lstat(path) is not None)

        def there(path: bytes) -> bool:
            found = stream.index.find(path)
            return existed(path) if found is None or found[1] == IGNORED_LETTER else found[1] != b"w"

        return Hygiene(Ground(self.dest, there, existed, homes(), git_hooks.within(self.dest, target)))

    def left_out_of(self, *, folds: bool) -> LeftOut:
        return LeftOut(self.rules, self.target, folds, self.copy)

    # called by the receiver

    def on_the_way(self, header: pax.Header, old: os.stat_result | None) -> bool:
        """Tell whether the user's version stays at the path of an entry that differs."""
        return (
            self.conflicts is not None
            and self.conflicts.on_the_way(header, old, self._head(header))
            and self.keep(header.path)
        )

    def keep(self, path: bytes) -> bool:
        return self.conflicts is not None and self.conflicts.keep(path)

    def holds_work(self, path: bytes) -> bool:
        """Tell whether an entry at a path that would be cleared must stay; a directory is then walked."""
        return (
            self.conflicts is not None and self.rules.on_conflict == "keep" and self.conflicts.any_below(path)
        )

    def note_cleared(self, path: bytes, of: bytes) -> None:
        """Note that `path` and the entries below are cleared, or stay as `holds_work` decided."""
        if self.conflicts is not None:
            self.conflicts.below(path, of=of)

    def gather(self, header: pax.Header, *, passed: bool = False) -> None:
        """Note the state that an entry leaves at its path. `passed`: the entry is not written, but a later
        entry may be a hard link to it.
        """
        if self.heads is not None:
            self.heads.put(header.path, self._head(header), int(passed))

    def gather_rows(self, rows: list[RunRow]) -> None:
        """Call `gather` for plain files and directories that were all written."""
        if self.heads is not None:
            self.heads.put_all((row.path, fact_of_row(row)) for row in rows)

    def retime(self, path: bytes, mtime_ns: int) -> None:
        """Note the time that a gathered file has in the destination."""
        if self.heads is not None and (found := self.heads.get(path)):
            self.heads.put(path, found[0]._replace(mtime_ns=mtime_ns))

    def _head(self, header: pax.Header) -> Fact:
        if header.type != pax.HARD_LINK:
            return fact_of(header)
        found = self.heads.get(header.target) if self.heads is not None else []
        return found[0] if found else Fact(FILE, -1)

    def mode_of_base(self, path: bytes) -> int | None:
        """Return the permission bits of the directory in the base; None: unknown, or the base has no such
        directory.
        """
        found = None if self.copy is None else self.copy.lstat(path)
        return None if found is None or not stat.S_ISDIR(found.st_mode) else stat.S_IMODE(found.st_mode)

    def closed(self, header: pax.Header, old: os.stat_result) -> pax.Header:
        """Return the entry without the permissions of group and others that the user removed from the file or
        directory since the copy was made: the export does not grant them again.
        """
        lost = header.mode & ~old.st_mode & _OTHERS
        was = self.copy.lstat(header.path) if lost and self.copy is not None else None
        if was is None or stat.S_IFMT(was.st_mode) != stat.S_IFMT(old.st_mode):
            return header
        return header._replace(mode=header.mode & ~(lost & was.st_mode))

    def withdrawn(self, index: SortedPaths) -> Iterator[bytes]:
        """Yield paths that an earlier export wrote, that are unchanged since, and that the version no longer
        has: they were made in the sandbox and removed there later, so neither the base nor the delta names
        them.
        """
        if (
            self.target is None
            or self.record is None
            or self.copy is None
            or self.conflicts is None
            or not self.conflicts.again
        ):
            return
        for path, *row in self.record.rows():
            fact = Fact(*row)
            if (
                fact.letter not in (FILE, LINK)
                or index.find(path) is not None
                or self.copy.lstat(path) is not None
            ):
                continue
            found = self.target.lstat(path)
            if (
                found is not None
                and fact.holds(path, found, self.target)
                and not _replaced_above(index, path)
            ):
                yield path

    # before and after the destination changes

    def refuse(self, hygiene: Hygiene) -> None:
        """Refuse conflicts and unsafe files, after the stream was read and before anything is written.

        Raises:
            OperationError: operation_failed: export_conflict, unsafe_content.
        """
        if self.conflicts is not None:
            self.conflicts.refuse(self.dest, [] if self.rules.allow_unsafe else hygiene.unsafe)
        if not hygiene.unsafe_count or self.rules.allow_unsafe:
            return
        count = hygiene.unsafe_count
        first = ", ".join(f"{row['path']} ({row['why']})" for row in hygiene.unsafe[:5])
        more = f", and {count - 5} more" if count > 5 else ""
        details: dict[str, Any] = {
            "dest": self.dest,
            "unsafe": hygiene.unsafe,
            "unsafe_count": count,
            "hint": "skip_unsafe writes all others and lists what it left out; or read them in the sandbox "
            "(file_read), or export an archive, where "
            "nothing runs; a person who has read them may export with --allow-unsafe (of the command, or of "
            "eos-mcp when it starts)",
        }
        message = (
            f"export to {self.dest}: {count} file{'s' * (count != 1)} would run by "
            f"{'themselves' if count != 1 else 'itself'} there"
        )
        raise OperationError(
            OPERATION_FAILED,
            f"{message}, nothing was written: {first}{more}",
            details,
            reason="unsafe_content",
        )

    def ready(self, whole: DirTree | None = None) -> None:
        """Begin the record, before the destination changes.

        Args:
            whole: the directory that becomes the destination by one rename. If its time of birth is known, it
                cannot be confused with another directory, so the record is finished at once.
        """
        if self.record is not None and self.heads is not None:
            about = None if whole is None else identity_of(whole)
            self._ended = about is not None and about.born_ns > 0
            try:
                end = (about, self.dest) if about is not None and self._ended else None
                self.record.begin(self.heads.rows(), fresh=self.target is None, whole=end)
            except RecordFull:
                self.record, self.unrecorded = None, True

    def check(self, stages: Iterable[DirTree]) -> None:
        """Check after everything is in place, while a rollback is possible. Raises as
        `ComparedPaths.check`.
        """
        if self.conflicts is not None and self.rules.on_conflict != "overwrite":
            self.seen.check(stages, self.dest)

    def finish(self, target: DirTree) -> None:
        """Finish the record, once the export is final."""
        if self.record is not None and not self._ended:
            try:
                self.dropped = self.record.finish(identity_of(target), self.dest)
            except RecordFull:
                self.unrecorded = True

    def to_json(self, hygiene: Hygiene, *, dry_run: bool) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.conflicts is not None:
            out.update(self.conflicts.to_json(dry_run))
        elif dry_run:
            out["would_conflict"], out["would_conflict_count"] = [], 0
        if dry_run:
            knows = self.conflicts is None or self.conflicts.knows_base
            out["edited"] = None if not knows else self.conflicts.lost if self.conflicts is not None else []
            if knows:
                out["edited_count"] = self.conflicts.lost_count if self.conflicts is not None else 0
        if self.unrecorded:
            out["not_recorded"] = UNRECORDED
        elif self.dropped:
            out["not_recorded"] = DROPPED.format(most=ROWS_MAX, count=self.dropped)
        if dry_run or hygiene.unsafe_count:
            out["unsafe"], out["unsafe_count"] = hygiene.unsafe, hygiene.unsafe_count
        return out


def _replaced_above(index: SortedPaths, path: bytes) -> bool:
    while path := path.rpartition(b"/")[0]:
        above = index.find(path)
        if above is not None and above[1] != b"d":
            return True
    return False


@contextlib.contextmanager
def guarding(request: ExportRequest, target: DirTree | None, stream: ExportStream) -> Generator[ExportGuard]:
    """Open the guard of one export, with the facts about the base and earlier exports, for the length of a
    block. When this machine has no copy of the base, the stream describes it on request.
    """
    rules, dest, base, dry_run = request.rules, request.dest, request.base, request.dry_run
    with contextlib.ExitStack() as open_:
        record: DestinationRecord | None = None
        unrecorded = False
        if rules.record is not None and (not dry_run or os.path.exists(rules.record)):
            try:
                record = open_.enter_context(contextlib.closing(DestinationRecord(rules.record)))
            except RecordFull:
                unrecorded = True
        conflicts: Conflicts | None = None
        copy: DirTree | None = None
        base_facts: Facts | None = None
        if stream.header.get("base") is True:
            base_facts = open_.enter_context(contextlib.closing(Facts()))
            stream.on_base_entry = _recorder(base_facts)
        if target is not None and base is not None and os.path.isdir(base):
            copy = DirTree(os.path.realpath(base))
            open_.callback(copy.close)
        if target is not None and (dry_run or rules != REFERENCE):
            conflicts = Conflicts(rules, target, copy, base_facts, record)
        heads = (
            None
            if conflicts is None and record is None
            else open_.enter_context(contextlib.closing(GatheredFacts()))
        )
        guard = ExportGuard(rules, dest, target, conflicts, record, heads)
        guard.copy, guard.unrecorded = copy, unrecorded
        yield guard


def _recorder(base_facts: Facts) -> Any:
    def record_entry(header: pax.Header) -> None:
        record_base_fact(base_facts, header)

    return record_entry
