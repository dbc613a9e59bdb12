"""Differences between two trees, and between a tree and the index, by reading only what differs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from layerstack.git.cache_tree import CacheTree
from layerstack.git.commits import TreeEntry
from layerstack.git.git_index import GitIndex
from layerstack.git.index_rows import INTENT_TO_ADD, flags_of, mode_of, oid_of_row
from layerstack.git.object_format import GitRefused, Oid
from layerstack.git.objects import Objects

CHANGES_MAX = 2_000_000
"""Paths that one comparison lists."""
DEPTH_MAX = 2000
"""Directories in one another."""


class FileValue(NamedTuple):
    """A file, symlink or submodule as a tree or the index has it."""

    mode: int
    oid: Oid
    intent_to_add: bool = False
    """True for a path that `git add -N` announced; only in an index."""


class Staged(NamedTuple):
    """A path at which an index differs from the tree of its HEAD; None is absent."""

    head: FileValue | None
    value: FileValue | None


Changes = dict[bytes, FileValue | None]


def tree_changes(objects: Objects, old: Oid | None, new: Oid | None) -> Changes:
    """List the paths at which two trees differ, with their value in the new one; None: no tree.

    Cost: that of the directories that differ.
    Raises:
        GitRefused: more than CHANGES_MAX paths, or DEPTH_MAX directories in one another.
        GitError: a tree is missing or damaged.
    """
    found: Changes = {}
    left: list[tuple[bytes, Oid | None, Oid | None, int]] = [(b"", old, new, 0)]
    while left:
        prefix, before, after, depth = left.pop()
        if before == after:
            continue
        _bound(len(found), depth)
        was, now = _entries(objects, before), _entries(objects, after)
        for name in {*was, *now}:
            x, y = was.get(name), now.get(name)
            if x == y:
                continue
            path = prefix + name
            sub = (
                x.oid if x is not None and x.is_tree else None,
                y.oid if y is not None and y.is_tree else None,
            )
            if sub != (None, None):
                left.append((path + b"/", *sub, depth + 1))
            if x is not None and not x.is_tree:
                found[path] = None
            if y is not None and not y.is_tree:
                found[path] = FileValue(y.mode, y.oid)
    return found


def _entries(objects: Objects, tree: Oid | None) -> dict[bytes, TreeEntry]:
    return {} if tree is None else {entry.name: entry for entry in objects.tree(tree)}


def _bound(count: int, depth: int) -> None:
    if count > CHANGES_MAX or depth > DEPTH_MAX:
        raise GitRefused(
            f"compare two trees: more than {CHANGES_MAX:,} paths differ, or a directory is more than"
            f" {DEPTH_MAX:,} others deep"
        )


def staged_changes(index: GitIndex, objects: Objects, tree: Oid | None) -> dict[bytes, Staged]:
    """List what is staged and not committed: the paths at which entries of stage 0 differ from a tree.

    A directory for which the extension TREE names the same tree is not read. Unmerged paths count as absent.
    """
    return dict(_Comparison(index, objects).differences(tree))


class _Comparison:
    def __init__(self, index: GitIndex, objects: Objects) -> None:
        self.index, self.objects = index, objects
        self.paths = sorted(index.rows)
        self.size = index.fmt.size

    def differences(self, tree: Oid | None) -> Iterator[tuple[bytes, Staged]]:
        left: list[tuple[bytes, Oid | None, CacheTree | None, int]] = [(b"", tree, self.index.trees, 0)]
        count = 0
        while left:
            prefix, oid, node, depth = left.pop()
            if node is not None and oid is not None and node.oid == oid:
                continue
            entries = _entries(self.objects, oid)
            at, end = self._range(prefix)
            while at < end:
                count += 1
                _bound(count, depth)
                name, slash, _ = self.paths[at][len(prefix) :].partition(b"/")
                there = entries.get(name)
                if slash:
                    sub = None
                    if there is not None and there.is_tree:
                        sub = entries.pop(name).oid
                    below = prefix + name + b"/"
                    left.append((below, sub, None if node is None else node.children.get(name), depth + 1))
                    at = self._range(below)[1]
                    continue
                value = self._value(self.paths[at])
                before = None
                if there is not None and not there.is_tree:
                    before = FileValue(there.mode, there.oid)
                    del entries[name]
                if value != before:
                    yield prefix + name, Staged(before, value)
                at += 1
            for name, entry in entries.items():
                if entry.is_tree:
                    left.append((prefix + name + b"/", entry.oid, None, depth + 1))
                else:
                    yield prefix + name, Staged(FileValue(entry.mode, entry.oid), None)

    def _range(self, prefix: bytes) -> tuple[int, int]:
        """Give the range of entries below a directory; `prefix` ends with a slash, or is empty."""
        if not prefix:
            return 0, len(self.paths)
        first = bisect_left(self.paths, prefix)
        return first, bisect_left(self.paths, prefix[:-1] + b"0", first)  # the byte that follows the slash

    def _value(self, path: bytes) -> FileValue:
        return value_in(self.index, path) or FileValue(0, b"")


def value_in(index: GitIndex, path: bytes) -> FileValue | None:
    """Give the value of an entry of stage 0."""
    row = index.rows.get(path)
    if row is None:
        return None
    size = index.fmt.size
    return FileValue(mode_of(row), oid_of_row(row, size), bool(flags_of(row, size)[1] & INTENT_TO_ADD))
