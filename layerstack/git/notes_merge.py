"""Merge two commits of notes as `git notes merge -s cat_sort_uniq` does: notes of both sides, and where both
changed a note, the lines of both, sorted, each once. Source: notes.c, notes-merge.c of git.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from layerstack.git.ancestry import merge_bases
from layerstack.git.commits import DIRECTORY, FILE_MODE, Commit, TreeEntry, format_commit, format_tree
from layerstack.git.object_format import GitRefused, Oid
from layerstack.git.objects import Objects

NOTES_MAX = 500_000
"""Notes of one tree, and trees in it."""

_HEX = re.compile(rb"[0-9a-f]+")


class NoteTree(NamedTuple):
    """Notes by the id, in hex, of what they are about; other entries by their path."""

    notes: dict[bytes, Oid]
    others: dict[bytes, TreeEntry]


def merge_notes(objects: Objects, local: Oid, remote: Oid, identity: bytes, name: bytes) -> Oid:
    """Merge the notes of a commit into those of another.

    Args:
        local, remote: commits of the head and of ours.
        identity: `Name <address> <seconds> <zone>` of the merge.
        name: the ref, for the message.
    Returns:
        The descendant when one is an ancestor of the other, else a merge commit, written to `objects`.
    Raises:
        GitRefused: a tree has more than NOTES_MAX notes.
    """
    bases = merge_bases(objects, local, remote)
    if remote in bases:
        return local
    if local in bases:
        return remote
    base = read_notes(objects, objects.commit(bases[0]).tree) if bases else NoteTree({}, {})
    ours, theirs = (read_notes(objects, objects.commit(tip).tree) for tip in (local, remote))
    notes: dict[bytes, Oid] = {}
    for about in sorted({*ours.notes, *theirs.notes}):
        merged = _merged(objects, *(tree.notes.get(about) for tree in (base, ours, theirs)))
        if merged is not None:
            notes[about] = merged
    tree = _NoteWriter(objects, notes, theirs.others | ours.others).write()
    message = b"notes: Merged notes from a session into %s\n" % name
    commit = Commit(tree, (local, remote), identity, identity, message=message)
    return objects.write("commit", format_commit(commit))


def _merged(objects: Objects, base: Oid | None, local: Oid | None, remote: Oid | None) -> Oid | None:
    if remote in (base, local):
        return local
    if local in (base, None):  # a note that one side removed and the other changed stays
        return remote
    return cat_sort_uniq(objects, (local, remote))


def cat_sort_uniq(objects: Objects, notes: Iterable[Oid | None]) -> Oid:
    """Write the lines of all notes, sorted, each once, without empty ones."""
    lines = set[bytes]()
    for oid in notes:
        if oid is not None:
            lines.update(objects.read(oid, "blob")[1].split(b"\n"))
    lines.discard(b"")
    return objects.write("blob", b"".join(line + b"\n" for line in sorted(lines)))


def read_notes(objects: Objects, tree: Oid) -> NoteTree:
    """Read the notes of a tree with any fan-out."""
    size = objects.fmt.hex_size
    found = NoteTree({}, {})
    left = [(b"", b"", tree)]
    count = 0
    while left:
        path, prefix, oid = left.pop()
        for entry in objects.tree(oid):
            count += 1
            if count > NOTES_MAX:
                raise GitRefused(f"merge notes: a tree has more than {NOTES_MAX:,} of them")
            about = prefix + entry.name
            is_hex = _HEX.fullmatch(entry.name) is not None
            if is_hex and len(about) == size and entry.is_blob:
                other = found.notes.get(about)
                found.notes[about] = cat_sort_uniq(objects, (other, entry.oid)) if other else entry.oid
            elif is_hex and len(entry.name) == 2 and len(about) < size and entry.is_tree:
                left.append((path + entry.name + b"/", about, entry.oid))
            else:
                found.others[path + entry.name] = entry
    return found


class _NoteWriter:
    """Writes the trees of notes with the fan-out that git would choose."""

    def __init__(
        self, objects: Objects, notes: Mapping[bytes, Oid], others: Mapping[bytes, TreeEntry]
    ) -> None:
        self.objects, self.notes, self.others = objects, notes, others
        self.order = sorted(notes)
        self.full: dict[bytes, bool] = {}

    def write(self) -> Oid:
        paths: dict[bytes, TreeEntry] = dict(self.others)
        for about, oid in self.notes.items():
            fanout = self._fanout(about)
            steps = [about[2 * n : 2 * n + 2] for n in range(fanout)] + [about[2 * fanout :]]
            paths[b"/".join(steps)] = TreeEntry(steps[-1], FILE_MODE, oid)
        return self._tree(paths)

    def _fanout(self, about: bytes) -> int:
        """Give the number of directories above a note: git adds one at each pair of digits whose sixteen
        continuations all have more than one note.
        """
        fanout, digits = 0, 0
        while digits < len(about):
            prefix = about[:digits]
            if digits and self._number(prefix) < 2:
                break  # the note is an entry of its own here
            if digits % 2 == 0 and digits <= 2 * fanout and self._is_full(prefix):
                fanout += 1
            digits += 1
        return fanout

    def _is_full(self, prefix: bytes) -> bool:
        found = self.full.get(prefix)
        if found is None:
            found = self.full[prefix] = all(self._number(prefix + b"%x" % n) > 1 for n in range(16))
        return found

    def _number(self, prefix: bytes) -> int:
        """Count the notes about objects whose id begins so; `g` follows the last digit."""
        return bisect_left(self.order, prefix + b"g") - bisect_left(self.order, prefix)

    def _tree(self, paths: Mapping[bytes, TreeEntry]) -> Oid:
        entries: list[TreeEntry] = []
        below: dict[bytes, dict[bytes, TreeEntry]] = {}
        for path, entry in paths.items():
            first, slash, rest = path.partition(b"/")
            if slash:
                below.setdefault(first, {})[rest] = entry
            else:
                entries.append(entry)
        for name, inside in below.items():
            entries.append(TreeEntry(name, DIRECTORY, self._tree(inside)))
        return self.objects.write("tree", format_tree(entries))
