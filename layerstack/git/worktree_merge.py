"""Merge the files of a work tree with the commits that are checked out: git decides first.

| in ours     | in the head | the file of the result                                             |
|-------------|-------------|--------------------------------------------------------------------|
| clean       | clean       | that of the new HEAD, as ours or the head has it where one does    |
| uncommitted | clean       | ours' change on the new HEAD's file, as `git switch -m` carries it |
| clean       | uncommitted | the head's change on the new HEAD's file                           |
| uncommitted | uncommitted | left to the table for any file, by the base's file and both sides' |

Clean: equal, through the filters of its side, to the file of the side's own HEAD. An uncommitted change that
the base had already, and that this side left as it was, gives way to a side that committed or discarded it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from layerstack.git.commits import EXECUTABLE, FILE_MODE, GITLINK, SYMLINK
from layerstack.git.object_format import BLOB_MAX, Oid
from layerstack.git.objects import GitTree, Objects
from layerstack.git.text_merge import is_binary, merge_texts
from layerstack.git.tree_diff import FileValue
from layerstack.git.worktree_filter import WorktreeFilter
from layerstack.model.conflict import Hunk
from layerstack.model.paths import ancestors, join
from layerstack.tree.state import DIRECTORY, FILE, LINK, State, equal, made_state


class WorktreeSide(NamedTuple):
    """One side of a work tree: its files, the tree of its HEAD, and its filters."""

    files: GitTree
    tree: Oid | None
    filters: WorktreeFilter


class FileConflict(NamedTuple):
    """An uncommitted change that does not fit the new HEAD's file. The classes are those of a publication."""

    path: bytes
    cls: str
    hunks: tuple[Hunk, ...] = ()


class FilesMerged(NamedTuple):
    """Files of the result; paths are below the work tree."""

    states: dict[bytes, State | None]
    conflicts: tuple[FileConflict, ...]
    clean: frozenset[bytes]
    """Paths whose file is equal to the new HEAD's."""
    left: frozenset[bytes]
    """Paths that both sides changed without a commit: the caller decides them by the three files."""


class WorktreeMerge:
    """The merge of the files of one work tree.

    Args:
        worktree: its directory in the trees.
        base, ours, head: the three sides.
        new: the tree of the new HEAD, and the filters with which it is checked out.
        driver_of: as for `merge_trees`.
        file_mode: core.fileMode: the execute bit of a file counts.
    """

    def __init__(
        self,
        objects: Objects,
        worktree: str,
        sides: tuple[GitTree, WorktreeSide, WorktreeSide],
        new: tuple[Oid | None, WorktreeFilter],
        driver_of: Callable[[bytes], str],
        *,
        file_mode: bool = True,
    ) -> None:
        self.objects, self.worktree, self.driver_of, self.file_mode = objects, worktree, driver_of, file_mode
        self.base, self.ours, self.head = sides
        self.new_tree, self.new_filters = new
        self.states: dict[bytes, State | None] = {}
        self.conflicts: list[FileConflict] = []
        self.clean: set[bytes] = set()
        self.left: set[bytes] = set()

    def merge(self, paths: Iterable[bytes]) -> FilesMerged:
        """Decide paths that a side or the new HEAD may have changed; untracked ones are left out."""
        for path in sorted(paths):
            self._decide(path)
        self._check_folders()
        return FilesMerged(self.states, tuple(self.conflicts), frozenset(self.clean), frozenset(self.left))

    def value(self, tree: Oid | None, path: bytes) -> FileValue | None:
        """Give the entry of a path in a tree; None for none and for a directory."""
        entry = self.objects.entry_at(tree, path)
        return None if entry is None or entry.is_tree else FileValue(entry.mode, entry.oid)

    def _file(self, files: GitTree, path: bytes) -> State | None:
        state = files.find(join(self.worktree, os.fsdecode(path)))
        return None if state is None or state.kind == DIRECTORY else state

    def _decide(self, path: bytes) -> None:
        values = [self.value(tree, path) for tree in (self.ours.tree, self.head.tree, self.new_tree)]
        mine, theirs, new = values
        if values == [None, None, None] or any(one is not None and one.mode == GITLINK for one in values):
            return
        o, h = self._file(self.ours.files, path), self._file(self.head.files, path)
        o_clean, h_clean = self.is_clean(self.ours, path, o, mine), self.is_clean(self.head, path, h, theirs)
        if not (o_clean and h_clean):
            b = self._file(self.base, path)
            if o_clean and new == mine and equal(b, h):
                h_clean = True
            elif h_clean and new == theirs and equal(b, o):
                o_clean = True
        if o_clean and h_clean:
            self.clean.add(path)
            self.states[path] = self._checked_out(path, new, ((o, mine, self.ours), (h, theirs, self.head)))
        elif not o_clean and not h_clean:
            self.left.add(path)
        elif h_clean:
            self._carry(path, mine, o, new, self.ours, ours=True)
        else:
            self._carry(path, theirs, h, new, self.head, ours=False)

    def is_clean(self, side: WorktreeSide, path: bytes, state: State | None, value: FileValue | None) -> bool:
        """Check whether a file is what its HEAD has."""
        if state is None or value is None:
            return state is None and value is None
        if value.mode == SYMLINK:
            return state.kind == LINK and self._id(os.fsencode(state.target)) == value.oid
        if state.kind != FILE or (self.file_mode and self._mode(state) != value.mode):
            return False
        return side.filters.is_clean(path, state, value.oid)

    def _id(self, data: bytes) -> Oid:
        return self.objects.fmt.oid_of("blob", data)

    @staticmethod
    def _mode(state: State) -> int:
        return SYMLINK if state.kind == LINK else EXECUTABLE if state.meta[0] & 0o100 else FILE_MODE

    def _checked_out(
        self,
        path: bytes,
        new: FileValue | None,
        having: tuple[tuple[State | None, FileValue | None, WorktreeSide], ...],
    ) -> State | None:
        """Give the file of the new HEAD: the head's or ours' where one is it already."""
        if new is None:
            return None
        for state, value, side in reversed(having):
            if value == new and state is not None and self.is_clean(side, path, state, new):
                return state
        return self._made(path, new.mode, self.objects.read(new.oid, "blob")[1], smudged=False)

    def _made(self, path: bytes, mode: int, blob: bytes, *, smudged: bool) -> State:
        """Make a file that neither side has, with the owner of the file that it replaces, or of a directory
        above.
        """
        at = join(self.worktree, os.fsdecode(path))
        like = self._file(self.head.files, path) or self._file(self.ours.files, path)
        if mode == SYMLINK:
            above = like or self._above(at)
            return made_state(above, LINK, (0o777, *above.meta[1:]), blob)
        data = blob if smudged else self.new_filters.smudge(path, blob)
        if like is not None and like.kind == FILE:
            bits = like.meta[0] & ~0o111
            bits |= (bits & 0o444) >> 2 if mode == EXECUTABLE else 0
            found = like.changed(meta=(bits, *like.meta[1:]), xattrs=dict(like.xattrs), content=data)
            found.linkable = False
            return found
        above = like or self._above(at)
        return made_state(above, FILE, (0o755 if mode == EXECUTABLE else 0o644, *above.meta[1:]), data)

    def _above(self, path: str) -> State:
        for folder in reversed(ancestors(path)):
            for tree in (self.head.files, self.ours.files):
                state = tree.find(folder)
                if state is not None and state.kind == DIRECTORY:
                    return state
        raise AssertionError(f"no directory above {path}")

    # ---- uncommitted changes

    def _carry(
        self,
        path: bytes,
        before: FileValue | None,
        state: State | None,
        new: FileValue | None,
        side: WorktreeSide,
        *,
        ours: bool,
    ) -> None:
        """Carry the uncommitted change of one side (`before` -> `state`) over to the new HEAD's file."""
        if before == new:
            self.states[path] = state
            return
        if state is not None and new is not None and self.is_clean(side, path, state, new):
            self.states[path] = state
            self.clean.add(path)
            return
        if state is None:
            if new is not None:
                self._conflict(path, "delete_modify" if ours else "modify_delete")
            return
        if new is None:
            self._conflict(path, "modify_delete" if ours else "delete_modify")
            return
        if state.kind == LINK or SYMLINK in (new.mode, before.mode if before is not None else new.mode):
            both = state.kind == LINK and new.mode == SYMLINK
            self._conflict(path, "symlink" if both else "type")
            return
        if state.size > BLOB_MAX:
            self._conflict(path, "binary")
            return
        mode = self._mode(state)
        if before is not None and mode == before.mode:
            mode = new.mode
        data = side.filters.clean(path, state.data())
        texts = (
            self.objects.read(before.oid, "blob")[1] if before is not None else b"",
            *((data, self.objects.read(new.oid, "blob")[1])[:: 1 if ours else -1]),
        )
        driver = self.driver_of(path)
        if texts[0] in texts[1:] or texts[1] == texts[2]:
            merged: bytes | None = texts[1] if texts[0] == texts[2] else texts[2]
            hunks: tuple[Hunk, ...] = ()
        elif driver not in ("text", "union") or any(map(is_binary, texts)):
            self._conflict(path, "binary")
            return
        else:
            merged, hunks = merge_texts(*texts, union=driver == "union")
        if merged is None:
            self._conflict(path, "content" if before is not None else "add_add", hunks)
            return
        if merged == data:
            smudged = self._made(path, mode, state.data(), smudged=True)
        else:
            smudged = self._made(path, mode, merged, smudged=False)
        self.states[path] = state if equal(smudged, state) else smudged

    def _conflict(self, path: bytes, cls: str, hunks: tuple[Hunk, ...] = ()) -> None:
        self.conflicts.append(FileConflict(path, cls, hunks))

    def _check_folders(self) -> None:
        """Note a conflict where a file of the result would replace a directory that has other entries."""
        for path, state in list(self.states.items()):
            if state is None:
                continue
            at = join(self.worktree, os.fsdecode(path))
            for tree in (self.ours.files, self.head.files):
                found = tree.find(at)
                if found is not None and found.kind == DIRECTORY and self._has_more(tree, at):
                    self._conflict(path, "type")
                    break

    def _has_more(self, tree: GitTree, folder: str) -> bool:
        skip = len(self.worktree) + 1 if self.worktree else 0
        for name in tree.names(folder):
            path = join(folder, name)
            found = tree.find(path)
            if found is not None and found.kind == DIRECTORY:
                if self._has_more(tree, path):
                    return True
            elif self.states.get(os.fsencode(path[skip:]), found) is not None:
                return True
        return False
