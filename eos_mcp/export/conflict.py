"""Find changes of the user in the destination that an export would lose, while the stream is read and before
anything is written.

The entry at a path is not work of the user if it equals the base (the copy that the sandbox started from),
the state after an earlier export (the record, or the `earlier` of the stream), or the entry that this export
would write. Any other entry is a conflict. So is a missing path that the base or an earlier export had. See
ADR 0037.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.facts import (
    DIRECTORY,
    FILE,
    LINK,
    NOTHING,
    OPAQUE,
    DestinationRecord,
    Fact,
    Facts,
    fact_of_base,
)
from eos_mcp.export.identity import identity_of
from eos_mcp.export.names import derived
from eos_mcp.export.rules import ExportRules
from eos_mcp.export.stream import shown
from layerstack.export import pax
from layerstack.kernel.content import same_content

MERGE_HINT = "on_conflict merge merges texts line by line, and writes nothing if one does not merge; "


LISTED_MAX = 200


class Conflicts:
    """Decisions for each path that would change. `target`: the destination, None if it does not exist; the
    caller closes it.

    Args:
        copy: the copy of the workspace that the sandbox was made from, if this machine has it; else
            `base_facts` are the agent's facts about it.
        record: the record of earlier exports of this sandbox to this destination.
    """

    def __init__(
        self,
        rules: ExportRules,
        target: DirTree | None,
        copy: DirTree | None,
        base_facts: Facts | None,
        record: DestinationRecord | None,
    ) -> None:
        self.rules, self.target, self.copy, self.base_facts, self.record = (
            rules,
            target,
            copy,
            base_facts,
            record,
        )
        self.found: list[dict[str, str]] = []
        self.kept: list[str] = []
        self.count = self.lost_count = self.kept_count = 0
        self.lost: list[str] = []
        self._workspace = self._is_workspace()
        self._again = self._is_again()

    # called by the receiver

    def on_the_way(self, header: pax.Header, found: os.stat_result | None, head: Fact) -> bool:
        """Tell whether an entry would lose a change of the user; if so, note it.

        Args:
            head: the state that the entry would leave at its path.
        """
        path = header.path
        if found is None:
            return self._gone(header)
        if stat.S_ISDIR(found.st_mode):
            if header.type == pax.DIRECTORY:
                return False
            return bool(self.below(path, of=path)) or self._directory_itself(header)
        differs = self._non_directory(path, found, header, head)
        if differs:
            self._note(path, differs, path)
        return bool(differs)

    def is_edited(self, header: pax.Header, found: os.stat_result, head: Fact) -> bool:
        """Tell whether the user edited the file at the path of an entry, which is a file too; notes
        nothing.
        """
        return self._non_directory(header.path, found, header, head) == "edited"

    def written_at(self, path: bytes) -> Fact | None:
        """Return the entry that the last export or import left at a path; None if none touched it."""
        return None if self.record is None else self.record.finished(path)

    def digest_in_base(self, path: bytes) -> bytes | None:
        """Return the digest of a file of the base that this machine has no copy of."""
        found = self.base_facts.get(path) if self.base_facts is not None else []
        return found[0].digest if found and found[0].letter == FILE else None

    def note_mode(self, path: bytes) -> None:
        """Note a file or directory whose mode the user and the sandbox changed in two ways."""
        self._note(path, "mode", path)

    def below(self, path: bytes, *, of: bytes) -> int:
        """Note the user's changes at `path` and below; return their number."""
        count = 0
        for at, differs in self._work_below(path):
            count += 1
            self._note(at, differs, of)
        return count

    def any_below(self, path: bytes) -> bool:
        """Tell whether `below` would note anything."""
        return any(True for _ in self._work_below(path))

    def _work_below(self, path: bytes) -> Iterator[tuple[bytes, str]]:
        """Yield each changed file or link at `path` and below, and how it differs."""
        assert self.target is not None
        waiting = [path]
        while waiting:
            at = waiting.pop()
            found = self.target.lstat(at)
            if found is None:
                continue
            if stat.S_ISDIR(found.st_mode):
                waiting.extend(at + b"/" + name for name in sorted(self.target.names(at), reverse=True))
            elif differs := self._non_directory(at, found):
                yield at, differs

    def keep(self, path: bytes) -> bool:
        """Tell whether the user's version stays; the result then lists the path as kept back."""
        if self.rules.on_conflict != "keep":
            return False
        self.kept_count += 1
        if len(self.kept) < LISTED_MAX:
            self.kept.append(shown(path))
        return True

    def refuse(self, dest: str, unsafe: list[dict[str, str]]) -> None:
        """Raise if conflicts were found and `on_conflict` is fail, before any write.

        Raises:
            OperationError: operation_failed, export_conflict.
        """
        if not self.count or self.rules.on_conflict not in ("fail", "merge"):
            return
        first = ", ".join(f"{row['path']} ({row['differs']})" for row in self.found[:5])
        more = f", and {self.count - 5} more" if self.count > 5 else ""
        details: dict[str, Any] = {
            "dest": dest,
            "conflicts": self.found,
            "conflict_count": self.count,
            **({"unsafe": unsafe} if unsafe else {}),
            "hint": ("" if self.rules.on_conflict == "merge" else MERGE_HINT)
            + "on_conflict keep writes all other paths, leaves these as they are and lists what it "
            "kept back; with dry_run it only lists it. "
            "on_conflict overwrite loses what is there",
        }
        raise OperationError(
            OPERATION_FAILED,
            f"export to {dest}: {self.count} path{'s' * (self.count != 1)} changed there since the "
            f"sandbox had "
            f"{'them' if self.count != 1 else 'it'}, nothing was written: {first}{more}",
            details,
            reason="export_conflict",
        )

    def to_json(self, dry_run: bool) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if dry_run:
            out["would_conflict"], out["would_conflict_count"] = self.found, self.count
        elif self.count and self.rules.on_conflict == "overwrite":
            out["overwritten"], out["overwritten_count"] = self.found, self.count
        if self.kept_count:
            out["kept_back"], out["kept_back_count"] = self.kept, self.kept_count
        return out

    @property
    def again(self) -> bool:
        """Tell whether the record is of this directory, on its present branch."""
        return self._again

    @property
    def knows_base(self) -> bool:
        return self.copy is not None or self.base_facts is not None

    # the kind of a difference

    def _note(self, path: bytes, differs: str, of: bytes) -> None:
        self.count += 1
        if differs != "deleted":
            self.lost_count += 1
            if len(self.lost) < LISTED_MAX:
                self.lost.append(path.decode("utf-8", "replace"))
        if len(self.found) < LISTED_MAX:
            row = {"path": shown(path), "differs": differs}
            self.found.append({**row, "because_of": shown(of)} if of != path else row)

    def _non_directory(
        self, path: bytes, found: os.stat_result, header: pax.Header | None = None, head: Fact | None = None
    ) -> str:
        """Return how the file or link at `path` differs; empty when the user did not change it, or a program
        can remake it (byte code).
        """
        assert self.target is not None
        if derived(path):
            return ""
        written = self.record.get(path) if self.record is not None else []
        if any(fact.holds(path, found, self.target) for fact in written) or self._as_base(path, found):
            return ""
        if header is not None and self._same_as_earlier(found, header):
            return ""
        if head is not None and head.holds(path, found, self.target, by_time=False):
            return ""
        was = self._was(path)
        if was == NOTHING:
            return "created"
        return "edited" if was is None or was == _letter(found) else "kind"

    def _gone(self, header: pax.Header) -> bool:
        """Classify a path that does not exist: deleted by the user if an export wrote it or the workspace had
        it; else new.
        """
        if header.kind == pax.WHITEOUT or header.type == pax.DIRECTORY:
            return False
        left = self.record.finished(header.path) if self.record is not None else None
        if left is not None:
            deleted = self._again and left.letter in (FILE, LINK)
        else:
            deleted = (
                self._workspace
                and self._base_letter(header.path) in (FILE, LINK)
                and not self._hidden(header.path)
            )
        if deleted:
            self._note(header.path, "deleted", header.path)
        return deleted

    def _directory_itself(self, header: pax.Header) -> bool:
        """Classify a directory that is in the place of a file or link and has no changes of the user below
        it.
        """
        if header.kind == pax.WHITEOUT:
            return False
        was = self._was(header.path)
        if was in (None, DIRECTORY):
            return False
        self._note(header.path, "created" if was == NOTHING else "kind", header.path)
        return True

    # the state before

    def _was(self, path: bytes) -> str | None:
        """Return the letter of the entry that an export wrote at the path, else that of the base; None when
        neither is known.
        """
        left = self.record.finished(path) if self.record is not None else None
        if left is not None:
            return DIRECTORY if left.letter == OPAQUE else left.letter
        return NOTHING if self._hidden(path) else self._base_letter(path)

    def _hidden(self, path: bytes) -> bool:
        """Tell whether an export removed or replaced the base's entry at the path."""
        return self.record is not None and self.record.above(path) is not None

    def _base_letter(self, path: bytes) -> str | None:
        if self.copy is not None:
            was = self.copy.lstat(path)
            return NOTHING if was is None else _letter(was)
        if self.base_facts is not None:
            facts = self.base_facts.get(path)
            return facts[0].letter if facts else NOTHING
        return None

    def _as_base(self, path: bytes, found: os.stat_result) -> bool:
        assert self.target is not None
        if self.copy is not None:
            return _same(path, found, self.target, self.copy)
        return self.base_facts is not None and any(
            fact.holds(path, found, self.target) for fact in self.base_facts.get(path)
        )

    def _same_as_earlier(self, found: os.stat_result, header: pax.Header) -> bool:
        return (
            stat.S_ISREG(found.st_mode)
            and b"%d:%d" % (found.st_size, found.st_mtime_ns) in header.earlier.split()
        )

    def _is_workspace(self) -> bool:
        if self.target is None or self.rules.workspace is None:
            return False
        try:
            return os.path.samestat(os.stat(self.rules.workspace), os.fstat(self.target.fd))
        except OSError:
            return False

    def _is_again(self) -> bool:
        """Tell whether the destination is the directory of the record, on the same branch, and was not
        emptied.
        """
        if self.target is None or self.record is None or self.record.identity() != identity_of(self.target):
            return False
        return any(name != b".git" for name in self.target.names(b""))


def record_base_fact(base_facts: Facts, header: pax.Header) -> None:
    """Store an entry of the base that the agent sent."""
    base_facts.put(header.path, fact_of_base(header.of_base))


def _letter(found: os.stat_result) -> str:
    mode = found.st_mode
    return (
        FILE
        if stat.S_ISREG(mode)
        else LINK
        if stat.S_ISLNK(mode)
        else DIRECTORY
        if stat.S_ISDIR(mode)
        else "s"
    )


def _same(path: bytes, found: os.stat_result, target: DirTree, base: DirTree) -> bool:
    """Tell whether the base has the same entry at `path`: equal size and time, or equal content; modes are
    ignored.
    """
    was = base.lstat(path)
    if was is None or stat.S_IFMT(was.st_mode) != stat.S_IFMT(found.st_mode):
        return False
    if stat.S_ISLNK(found.st_mode):
        return target.readlink(path) == base.readlink(path)
    if not stat.S_ISREG(found.st_mode):
        return False
    if was.st_size != found.st_size:
        return False
    if was.st_mtime_ns == found.st_mtime_ns:
        return True
    one, other = target.open_file(path), base.open_file(path)
    try:
        if one is None or other is None:
            return False
        return same_content(one, other)
    finally:
        for fd in (one, other):
            if fd is not None:
                os.close(fd)


class ComparedPaths:
    """The entry at each path when it was compared; the commit checks that it replaced the same entries."""

    def __init__(self) -> None:
        self._of: dict[bytes, bytes] = {}

    def note(self, name: bytes, target: DirTree, path: bytes) -> None:
        """Note the entry at `path`. `name`: its name in the journal's `undo`, where the commit moves it."""
        if found := fingerprint(target, path):
            self._of[name] = found

    def check(self, stages: Iterable[DirTree], dest: str) -> None:
        """Compare all replaced entries, after everything was put in place and while a rollback is possible.

        Raises:
            OperationError: operation_failed, export_conflict: a replaced entry differs from the compared one.
        """
        changed = 0
        for stage in stages:
            changed += sum(
                fingerprint(stage, b"undo/" + name) != self._of.get(name, b"")
                for name in stage.names(b"undo")
            )
        if changed:
            message = (
                f"export to {dest}: {changed} path{'s' * (changed != 1)} changed there during the "
                f"export; the destination is as it was found"
            )
            details = {
                "dest": dest,
                "conflict_count": changed,
                "retryable": True,
                "hint": "repeat the export: it compares again",
            }
            raise OperationError(OPERATION_FAILED, message, details, reason="export_conflict")


def fingerprint(tree: DirTree, path: bytes) -> bytes:
    """Digest inodes, sizes and times of the entries at a path and below to 16 bytes; empty without any."""
    first = tree.lstat(path)
    if first is None:
        return b""
    out = hashlib.sha256()
    waiting = [(path, b"")]
    while waiting:
        at, name = waiting.pop()
        found = tree.lstat(at)
        if found is None:
            continue
        directory = stat.S_ISDIR(found.st_mode)
        figures = (0, 0) if directory else (found.st_size, found.st_mtime_ns)
        out.update(
            b"%d:%s\0%d:%d:%d:%d\n" % (len(name), name, stat.S_IFMT(found.st_mode), found.st_ino, *figures)
        )
        if directory:
            for child in sorted(tree.names(at), reverse=True):
                waiting.append((at + b"/" + child, name + b"/" + child))
    return out.digest()[:16]
