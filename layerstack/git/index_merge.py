"""Rebuild the index after a merge: the entries of the new HEAD, and what the three sides had staged and not
committed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import NamedTuple

from layerstack.git.git_index import GitIndex
from layerstack.git.index_rows import IndexEntry, entry_of, row_of, stat_of
from layerstack.git.object_format import GitRefused, ObjectFormat, Oid
from layerstack.git.objects import Objects
from layerstack.git.ref_names import above
from layerstack.git.tree_diff import FileValue, Staged, staged_changes, tree_changes, value_in


class IndexSide(NamedTuple):
    """The index of one side, None where it has none, and the tree of its HEAD, None before a first commit."""

    entries: GitIndex | None
    tree: Oid | None


class IndexMerge(NamedTuple):
    """The index of the result."""

    entries: GitIndex
    dropped: tuple[bytes, ...]
    """Paths that were staged and are not any more: what was staged did not fit what the other side did. The
    file in the work tree is as it was.
    """
    changed: frozenset[bytes]
    """Paths whose entry, or stat data, is not the head's: their stat data are to be set or made invalid."""


MergeStaged = Callable[[bytes, FileValue | None, FileValue, FileValue | None], FileValue | None]
"""(path, value in the HEAD on which it was staged, staged value, value in the new HEAD) -> the staged value
on the new HEAD; None: it does not fit.
"""


def merge_indexes(
    objects: Objects,
    base: IndexSide,
    ours: IndexSide,
    head: IndexSide,
    new_tree: Oid | None,
    merge_staged: MergeStaged | None = None,
) -> IndexMerge:
    """Build the index of a merge.

    Args:
        head: its index becomes that of the result, and is changed in place.
        new_tree: the tree of the new HEAD.
    Raises:
        GitRefused: an index of ours or of the head has unmerged entries.
    """
    for side in (ours, head):
        if side.entries is not None and side.entries.unmerged:
            some = sorted(side.entries.unmerged)[0].decode("utf-8", "replace")
            raise GitRefused(
                f"merge two indexes: one has {len(side.entries.unmerged)} unmerged paths, first {some};"
                " `git add` each or `git merge --abort`"
            )
    return _IndexMerger(objects, base, ours, head, merge_staged).merge(new_tree)


class _IndexMerger:
    def __init__(
        self,
        objects: Objects,
        base: IndexSide,
        ours: IndexSide,
        head: IndexSide,
        merge_staged: MergeStaged | None,
    ) -> None:
        self.objects, self.base, self.ours, self.head = objects, base, ours, head
        self.merge_staged = merge_staged
        fmt: ObjectFormat = objects.fmt
        self.index = head.entries if head.entries is not None else GitIndex(fmt)
        self.changed: set[bytes] = set()
        self.dropped: set[bytes] = set()

    def merge(self, new_tree: Oid | None) -> IndexMerge:
        flags = self._flags()
        own, theirs = self._staged(self.ours), self._staged(self.head)
        # without an index, the head has everything of its tree unstaged: all of the new tree is added
        start = self.head.tree if self.head.entries is not None else None
        moved = tree_changes(self.objects, start, new_tree)
        before = self._staged(self.base)
        values = {path: moved[path] if path in moved else theirs[path].head for path in {*moved, *theirs}}
        for path, value in values.items():
            self._place(path, value)
        wanted: dict[bytes, FileValue | None] = {}
        for path in sorted({*before, *own, *theirs}):
            one = self._three_way(path, before.get(path), own.get(path), theirs.get(path))
            if one is None:
                continue
            now = value_in(self.index, path)
            if one.value == now:
                continue
            if one.head == now:
                wanted[path] = one.value
                continue
            merged = None
            if self.merge_staged is not None and one.value is not None:
                merged = self.merge_staged(path, one.head, one.value, now)
            if merged is None:
                self.dropped.add(path)
            elif merged != now:
                wanted[path] = merged
        self._place_staged(wanted)
        self._set_flags(flags)
        return IndexMerge(self.index, tuple(sorted(self.dropped)), frozenset(self.changed))

    def _staged(self, side: IndexSide) -> dict[bytes, Staged]:
        """List what a side has staged; without an index, nothing."""
        return {} if side.entries is None else staged_changes(side.entries, self.objects, side.tree)

    def _three_way(self, path: bytes, b: Staged | None, o: Staged | None, h: Staged | None) -> Staged | None:
        """Decide what stays staged at a path; None: nothing."""
        b_, o_, h_ = (None if one is None else (one.value,) for one in (b, o, h))
        if o_ == h_ or h_ == b_:
            return o
        if o_ == b_:
            return h
        self.dropped.add(path)
        return None

    def _place(self, path: bytes, value: FileValue | None) -> None:
        """Give a path this value, with the stat data of a side that has the same."""
        if value_in(self.index, path) == value:
            return
        self.changed.add(path)
        if value is None:
            self.index.remove(path)
            return
        if self.ours.entries is not None and value_in(self.ours.entries, path) == value:
            self.index.put_row(path, self.ours.entries.rows[path])
            return
        self.index.put(IndexEntry(path, value.mode, value.oid, intent_to_add=value.intent_to_add))

    def _place_staged(self, wanted: Mapping[bytes, FileValue | None]) -> None:
        """Stage values; deletions first. A path that cannot exist beside another entry is dropped."""
        added: list[bytes] = []
        for path, value in wanted.items():
            if value is None:
                self._place(path, None)
            else:
                added.append(path)
        paths = sorted(self.index.rows) if added else []
        for path in added:
            at = bisect_left(paths, path + b"/")
            below = any(one.startswith(path + b"/") for one in paths[at : at + 1])
            if below or any(folder in self.index.rows for folder in above(path)):
                self.dropped.add(path)
                continue
            self._place(path, wanted[path])
            paths.insert(bisect_left(paths, path), path)

    def _flags(self) -> dict[bytes, tuple[bool, bool]]:
        """List assume-unchanged and skip-worktree of each entry that has one of them in the result."""
        sides = [side.entries for side in (self.base, self.ours, self.head)]
        if not any(index is not None and index.flagged for index in sides):
            return {}
        base, own, theirs = (_flags_in(index) for index in sides)
        none = False, False
        return {
            path: own.get(path, none)
            if own.get(path, none) != base.get(path, none)
            else theirs.get(path, none)
            for path in {*own, *theirs, *base}
        }

    def _set_flags(self, flags: Mapping[bytes, tuple[bool, bool]]) -> None:
        size = self.index.fmt.size
        for path, (assume, skip) in flags.items():
            row = self.index.rows.get(path)
            if row is None:
                continue
            entry = entry_of(path, row, size)
            if (entry.assume_valid, entry.skip_worktree) != (assume, skip):
                entry = entry._replace(assume_valid=assume, skip_worktree=skip)
                self.index.rows[path] = row_of(entry, stat_of(row))
                self.index.flagged = True


def _flags_in(index: GitIndex | None) -> dict[bytes, tuple[bool, bool]]:
    if index is None or not index.flagged:
        return {}
    found: dict[bytes, tuple[bool, bool]] = {}
    for path, row in index.rows.items():
        entry = entry_of(path, row, index.fmt.size)
        if entry.assume_valid or entry.skip_worktree:
            found[path] = entry.assume_valid, entry.skip_worktree
    return found
