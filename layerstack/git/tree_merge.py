"""Three-way merge of trees with the result of git's own merge (ort, without renames of directories).

A clean result is the tree that git makes, byte for byte; the paths in conflict are those that git names.
Source: git-merge-tree(1); the rules for each kind of conflict are those that it shows. One case is a conflict
here and not for git: a file renamed on one side, edited on the other, which also added the renamed content at
the new path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from layerstack.git.commits import (
    DIRECTORY,
    EXECUTABLE,
    FILE_MODE,
    GITLINK,
    TreeEntry,
    format_tree,
)
from layerstack.git.merge_walk import BASE, OURS, THEIRS, MergePath, MergeWalk, PathVersion
from layerstack.git.object_format import ObjectTooLarge, Oid
from layerstack.git.objects import NEW_BYTES_MAX, Objects
from layerstack.git.rename_detection import RenameSearch, SideRename, base_name, dir_name
from layerstack.git.similarity import Similarity
from layerstack.git.text_merge import TEXT_MAX, is_binary, merge_texts
from layerstack.model.conflict import Hunk, Renamed
from layerstack.text.myers import Budget

SIMILARITY_STEPS = 30_000_000
"""Chunks that all comparisons of a search for renames may cost: some seconds."""
TEXT_STEPS = 60_000_000
"""Steps of the diffs of all texts of one merge: some 20 seconds. What is left then is in conflict."""
_SIDES = {OURS: "ours", THEIRS: "theirs"}


class TreeConflict(NamedTuple):
    """A path that the merge could not decide."""

    path: bytes
    cls: str
    """content, add_add, modify_delete, delete_modify, binary, type, rename_rename, directory_file, submodule
    or symlink.
    """
    base: TreeEntry | None
    ours: TreeEntry | None
    theirs: TreeEntry | None
    """Entries in the three trees; their names are those that they have there."""
    hunks: tuple[Hunk, ...] = ()
    was: bytes | None = None
    """The path in base, when one side renamed it to `path`."""
    renamed: tuple[Renamed, ...] = ()
    """New paths of the entry of base."""


class MergedTree(NamedTuple):
    """The tree, or None and the conflicts in the order of their paths."""

    tree: Oid | None
    conflicts: tuple[TreeConflict, ...] = ()
    limited: bool = False
    """True when too many files were removed and added to compare each with each: some renames may be
    missing.
    """


class _MergedContent(NamedTuple):
    """Result of a merge of two entries of one type."""

    version: PathVersion
    cls: str | None = None
    """The class of the conflict, None when clean."""
    hunks: tuple[Hunk, ...] = ()


def merge_trees(
    objects: Objects, base: Oid, ours: Oid, theirs: Oid, driver_of: Callable[[bytes], str]
) -> MergedTree:
    """Merge two trees that come from `base`. Objects are written only for a clean result.

    Args:
        driver_of: path -> its merge driver: `text`, `union`, `binary`, `unset` (merged as binary); other
            names count as `text`.

    Raises:
        GitError: an object is missing, damaged or too large.
    """
    if ours == theirs or base == theirs:
        return MergedTree(ours)
    if base == ours:
        return MergedTree(theirs)
    return _TreeMerger(objects, (base, ours, theirs), driver_of).run()


class _TreeMerger:
    def __init__(
        self, objects: Objects, trees: tuple[Oid, Oid, Oid], driver_of: Callable[[bytes], str]
    ) -> None:
        self._objects, self._driver_of = objects, driver_of
        self._walk = MergeWalk(objects, *trees)
        self._paths = self._walk.paths
        self._rows = self._walk.decided
        self._pending: dict[Oid, tuple[str, bytes]] = {}
        self._pending_bytes = 0
        self._conflicts: list[TreeConflict] = []
        self._new_names: dict[bytes, list[Renamed]] = {}
        self._contents: dict[bytes, _MergedContent] = {}
        """Path -> the first part of its merge, when that was in conflict."""
        self._limited = False
        self._text_budget = Budget(TEXT_STEPS)

    def run(self) -> MergedTree:
        self._apply(self._renames())
        for path in sorted(self._paths, reverse=True):
            self._place(path, self._paths[path])
        if self._conflicts:
            self._conflicts.sort(key=lambda one: one.path)
            return MergedTree(None, tuple(self._conflicts), self._limited)
        tree = self._tree(b"") or self._objects.fmt.empty_tree
        for kind, data in self._pending.values():
            self._objects.write(kind, data)
        return MergedTree(tree, (), self._limited)

    def _renames(self) -> list[tuple[int, SideRename]]:
        """Find the renames of both sides; return (side, rename) in the order of the old paths."""
        walk = self._walk
        empty = self._objects.fmt.oid_of("blob", b"")
        similarity = Similarity(self._objects, Budget(SIMILARITY_STEPS))
        found: list[tuple[int, SideRename]] = []
        for side in (OURS, THEIRS):
            search = RenameSearch(
                walk.removed[side], walk.added[side], walk.relevant[side], walk.dirs[side], similarity, empty
            )
            found.extend((side, rename) for rename in search.run())
            self._limited = self._limited or search.limited
        found.sort(key=lambda row: row[1].old)
        return found

    def _apply(self, renames: list[tuple[int, SideRename]]) -> None:
        """Bring the versions of renamed entries together at the new path."""
        for side, rename in renames:
            self._new_names.setdefault(rename.old, []).append(Renamed(os.fsdecode(rename.new), _SIDES[side]))
        n = 0
        while n < len(renames):
            side, rename = renames[n]
            n += 1
            old, new = self._paths.get(rename.old), self._paths.get(rename.new)
            if old is None or new is None or old.clean:
                continue
            if n < len(renames) and renames[n][1].old == rename.old:
                other = self._paths.get(renames[n][1].new)
                n += 1
                if other is not None:
                    self._renamed_by_both(rename, old, new, other)
                continue
            self._renamed_by_one(side, rename, old, new)

    def _renamed_by_both(self, rename: SideRename, old: MergePath, new: MergePath, other: MergePath) -> None:
        if new is other:
            new.versions[BASE] = old.versions[BASE]
            new.files |= 1
            new.was = rename.old
            old.clean, old.result = True, None
            return
        for path in (old, new, other):
            path.moved = True
        new.was = other.was = rename.old

    def _renamed_by_one(self, side: int, rename: SideRename, old: MergePath, new: MergePath) -> None:
        other = THEIRS if side == OURS else OURS
        mine, there = new.versions[side], old.versions[other]
        deleted = old.files == 1
        collides = bool(new.files & 1 << other)
        retyped = not deleted and (_is_regular(there) != _is_regular(mine))
        if collides and not retyped:
            if deleted:
                new.moved = True
            else:
                pair = (mine, there) if side == OURS else (there, mine)
                merged = self._content(rename.old, old.versions[BASE], *pair)
                if merged.cls is not None:
                    self._contents[rename.new] = merged
                    new.moved = True
                new.versions[side] = merged.version
                new.equal = (
                    0  # both added one content here: git drops the edit of the old path without a word
                )
            new.was = rename.old
        else:
            new.versions[BASE] = old.versions[BASE]
            new.files |= 1
            new.was = rename.old
            if retyped:
                old.versions[BASE] = None
                old.files &= 6
            elif deleted:
                new.moved = True
            else:
                new.versions[other] = there
                new.files |= 1 << other
        if not retyped:
            old.clean, old.result = True, None

    def _place(self, path: bytes, found: MergePath) -> None:
        """Decide a path whose entries below are decided, and put it into its directory."""
        folder = self._tree(path) if found.open else None
        if folder is not None:
            self._put(path, PathVersion(DIRECTORY, folder))
        if found.clean:
            if folder is None:
                self._put(path, found.result)
            return
        if not found.files:
            return
        if found.dirs:
            if folder is not None and found.files == 1:
                return
            found.equal &= ~found.dirs
            found.clashes = folder is not None
            for side in range(3):
                if not found.files & 1 << side:
                    found.versions[side] = None
        else:
            found.clashes = False
        self._decide(path, found)

    def _decide(self, path: bytes, found: MergePath) -> None:
        """Decide a file by its three versions."""
        base, ours, theirs = found.versions
        files = found.files
        hunks: tuple[Hunk, ...] = ()
        cls: str | None = None
        result: PathVersion | None = None
        if found.equal:
            result = theirs if found.equal == 3 else ours
            if result is None:
                return
        elif ours is not None and theirs is not None and files >= 6:
            if _type(ours) != _type(theirs):
                cls = "type"
            else:
                merged = self._content(path, base, ours, theirs)
                result, cls, hunks = merged.version, merged.cls, merged.hunks
                if cls == "content" and files == 6:
                    cls = "add_add"
        elif files in (3, 5):
            cls = "modify_delete" if files == 3 else "delete_modify"
        elif files in (2, 4):
            result = ours if files == 2 else theirs
        elif not found.moved:
            return
        if found.clashes:
            cls = "directory_file"
        elif found.moved and cls is None:
            cls = self._class_of_move(path, found)
        if cls is None:
            self._put(path, result)
            return
        self._put(path, result or ours or theirs)  # its directory is not empty
        if not hunks and path in self._contents:
            hunks = self._contents[path].hunks
        self._conflicts.append(self._conflict(path, found, cls, hunks))

    def _class_of_move(self, path: bytes, found: MergePath) -> str:
        if len(self._new_names.get(found.was or path, ())) > 1:
            return "rename_rename"
        return "add_add"

    def _conflict(self, path: bytes, found: MergePath, cls: str, hunks: tuple[Hunk, ...]) -> TreeConflict:
        def entry(version: PathVersion | None, where: bytes) -> TreeEntry | None:
            return None if version is None else TreeEntry(base_name(where), *version)

        base, ours, theirs = found.versions
        was = found.was
        old = path if was is None else was
        names = {one.by: os.fsencode(one.to) for one in self._new_names.get(old, ())}
        return TreeConflict(
            path,
            cls,
            entry(base, old),
            entry(ours, names.get("ours", old)),
            entry(theirs, names.get("theirs", old)),
            hunks,
            was,
            tuple(self._new_names.get(old, ())),
        )

    def _content(
        self, path: bytes, base: PathVersion | None, ours: PathVersion | None, theirs: PathVersion | None
    ) -> _MergedContent:
        """Merge two entries of one type, with a base that may be missing or of another type."""
        assert ours is not None and theirs is not None
        fine = True
        if ours.mode == theirs.mode or (base is not None and ours.mode == base.mode):
            mode = theirs.mode
        else:
            mode = ours.mode
            fine = base is not None and theirs.mode == base.mode
        if ours.oid == theirs.oid or (base is not None and ours.oid == base.oid):
            return _MergedContent(PathVersion(mode, theirs.oid), None if fine else "content")
        if base is not None and theirs.oid == base.oid:
            return _MergedContent(PathVersion(mode, ours.oid), None if fine else "content")
        if not _is_regular(ours):
            return _MergedContent(
                PathVersion(mode, ours.oid), "submodule" if ours.mode == GITLINK else "symlink"
            )
        driver = self._driver_of(path)
        if driver in ("binary", "unset"):
            return _MergedContent(PathVersion(mode, ours.oid), "binary")
        old = base.oid if base is not None and _is_regular(base) else None
        texts = [b"" if oid is None else self._text(oid) for oid in (old, ours.oid, theirs.oid)]
        a, b, c = texts
        if a is None or b is None or c is None:
            return _MergedContent(PathVersion(mode, ours.oid), "binary")
        merged = merge_texts(a, b, c, union=driver == "union", budget=self._text_budget)
        if merged.content is None:
            return _MergedContent(PathVersion(mode, ours.oid), "content", merged.hunks)
        version = PathVersion(mode, self._write("blob", merged.content))
        return _MergedContent(version, None if fine else "content")

    def _text(self, oid: Oid) -> bytes | None:
        """Read a text; None for a binary content."""
        if oid in self._pending:
            data = self._pending[oid][1]
        elif self._objects.size(oid) > TEXT_MAX:
            return None
        else:
            data = self._objects.read(oid, "blob")[1]
        return None if is_binary(data) else data

    def _write(self, kind: str, data: bytes) -> Oid:
        oid = self._objects.fmt.oid_of(kind, data)
        if oid not in self._pending:
            self._pending_bytes += len(data)
            if self._pending_bytes > NEW_BYTES_MAX:
                raise ObjectTooLarge(
                    f"{self._objects.root}: a merge that makes more than {NEW_BYTES_MAX} bytes of objects"
                )
            self._pending[oid] = kind, data
        return oid

    def _put(self, path: bytes, version: PathVersion | None) -> None:
        if version is not None:
            self._rows.setdefault(dir_name(path), []).append(TreeEntry(base_name(path), *version))

    def _tree(self, folder: bytes) -> Oid | None:
        """Make the tree of a directory; None for an empty one."""
        rows = self._rows.pop(folder, None)
        if rows is None:
            return None
        if self._conflicts:
            return self._objects.fmt.empty_tree
        return self._write("tree", format_tree(rows))


def _type(version: PathVersion) -> int:
    return version.mode & 0o170000


def _is_regular(version: PathVersion | None) -> bool:
    return version is not None and version.mode in (FILE_MODE, EXECUTABLE)
