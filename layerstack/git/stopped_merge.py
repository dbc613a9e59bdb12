"""A merge whose conflicts are resolved by sides that the caller names, or that stops as `git merge` does: at
the head's commit, with MERGE_HEAD, and with unmerged entries in the index.

Paths are merged one by one, without renames: the caller merges files in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from layerstack.git.commits import DIRECTORY, EXECUTABLE, FILE_MODE, TreeEntry, format_tree
from layerstack.git.git_index import GitIndex
from layerstack.git.index_rows import IndexEntry
from layerstack.git.object_format import Oid
from layerstack.git.objects import Objects
from layerstack.git.ref_names import above
from layerstack.git.text_merge import is_binary, merge_texts
from layerstack.git.tree_diff import FileValue, tree_changes

OURS, THEIRS = "ours", "theirs"
_FILES = (FILE_MODE, EXECUTABLE)


class StoppedMerge(NamedTuple):
    """Changes to the head's tree, and what is left to decide."""

    changes: dict[bytes, FileValue | None]
    unmerged: dict[bytes, tuple[FileValue | None, FileValue | None, FileValue | None]]
    """Path -> its values in the merge base, the head and ours: the stages 1, 2 and 3."""


def merge_with_sides(
    objects: Objects, base: Oid | None, head: Oid, ours: Oid, side: Callable[[bytes], str]
) -> StoppedMerge:
    """Merge three trees.

    Args:
        side: path in conflict -> OURS, THEIRS, or anything else: it stays unmerged.
    """
    own, theirs = tree_changes(objects, base, ours), tree_changes(objects, base, head)
    before = tree_changes(objects, head, base)
    found = StoppedMerge({}, {})
    for path, o in own.items():
        if path not in theirs:
            found.changes[path] = o
            continue
        b, h = before.get(path), theirs[path]
        if o == h:
            continue
        merged = _merged(objects, b, o, h)
        if merged is None and (taken := side(path)) in (OURS, THEIRS):
            merged = (o if taken == OURS else h,)
        if merged is None:
            found.unmerged[path] = b, h, o
        elif merged[0] != h:
            found.changes[path] = merged[0]
    return found


def _merged(
    objects: Objects, b: FileValue | None, o: FileValue | None, h: FileValue | None
) -> tuple[FileValue | None] | None:
    """Merge two files; None: a conflict."""
    if b is None or o is None or h is None or any(one.mode not in _FILES for one in (b, o, h)):
        return None
    texts = [objects.read(one.oid, "blob")[1] for one in (b, h, o)]
    if any(map(is_binary, texts)):
        return None
    merged = merge_texts(*texts).content
    if merged is None:
        return None
    return (FileValue(h.mode if b.mode == o.mode else o.mode, objects.write("blob", merged)),)


def put_into_index(index: GitIndex, merge: StoppedMerge) -> None:
    """Stage the changes, and mark the paths that are left as unmerged. A path that collides with another as
    directory and file is left out: it stays a change of the work tree.
    """
    for path, value in merge.changes.items():
        if value is None:
            index.remove(path)
    folders = {folder for path in index.rows for folder in above(path)}
    for path, value in merge.changes.items():
        if value is not None and path not in folders and not any(one in index for one in above(path)):
            index.put(IndexEntry(path, value.mode, value.oid))
            folders.update(above(path))
    for path, stages in merge.unmerged.items():
        if path in folders or any(one in index for one in above(path)):
            continue
        index.remove(path)
        for stage, value in enumerate(stages, 1):
            if value is not None:
                index.put(IndexEntry(path, value.mode, value.oid, stage))


def changed_tree(objects: Objects, tree: Oid | None, changes: Mapping[bytes, FileValue | None]) -> Oid:
    """Write the tree with changes applied. A file takes the place of a directory, and the other way round."""
    entries = {} if tree is None else {entry.name: entry for entry in objects.tree(tree)}
    below: dict[bytes, dict[bytes, FileValue | None]] = {}
    for path, value in changes.items():
        name, slash, rest = path.partition(b"/")
        if slash:
            below.setdefault(name, {})[rest] = value
        elif value is not None:
            entries[name] = TreeEntry(name, value.mode, value.oid)
        elif name in entries and not entries[name].is_tree:
            del entries[name]
    for name, inner in below.items():
        there = entries.get(name)
        if there is not None and not there.is_tree and not any(inner.values()):
            continue
        new = changed_tree(objects, there.oid if there is not None and there.is_tree else None, inner)
        if new == objects.fmt.empty_tree:
            entries.pop(name, None)
        else:
            entries[name] = TreeEntry(name, DIRECTORY, new)
    return objects.write("tree", format_tree(entries.values()))
